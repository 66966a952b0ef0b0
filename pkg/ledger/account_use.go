// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func (a *Account) prepareUse(u *Use) (func(), error) {
	if err := a.checkCounters(u.Energy, u.Counters); err != nil {
		return nil, err
	}
	for n := range u.Energy {
		if c := a.card(n); len(c.lines) == 0 || !c.balanced() {
			return nil, fmt.Errorf("card %d took energy, and its lines are not one card", n)
		}
	}
	for device, ms := range u.Busy {
		if ms < 0 || ms > maxClock {
			return nil, fmt.Errorf("%s was busy for %d ms", device, ms)
		}
	}
	return func() {
		for n, energy := range u.Energy {
			a.spread(a.card(n), energy)
		}
		a.readCounters(u.Counters)
		a.use(u)
	}, nil
}

func (a *Account) checkCounters(energy, counters map[int]int64) error {
	for _, m := range []map[int]int64{energy, counters} {
		for n, v := range m {
			if a.card(n) == nil || v < 0 || v > maxClock {
				return fmt.Errorf("card %d has an energy of %d mJ", n, v)
			}
		}
	}
	return nil
}

func (a *Account) readCounters(counters map[int]int64) {
	for n, v := range counters {
		c := a.card(n)
		c.counter, c.metered = v, true
	}
}

// spread gives a card's energy to its lines, which are charged their parts of it later.
func (a *Account) spread(c *cardAccount, energy int64) {
	for _, l := range c.lines {
		if l.energy > maxClock {
			a.settle(l)
		}
		l.energy += energy
	}
	c.capacity.Energy = c.capacity.Energy.Add(sharing.NewFraction(energy, 1))
}

// use gives the busy time of devices to those who hold them, which are charged for it later.
func (a *Account) use(u *Use) {
	for device, ms := range u.Busy {
		d := a.devices[device]
		if d == nil {
			continue
		}
		if d.basis != u.Basis || len(d.lines) > 0 && d.lines[0].busy > maxClock {
			d.settle()
			d.basis = u.Basis
		}
		seats := d.seats()
		for _, l := range d.lines {
			l.busy += min(ms, l.mostBusy(seats, a.charged.Boot))
			l.measured(l.basisOf(d.basis))
		}
	}
	a.usedUp(u)
}

// usedUp notes up to when it is known what cards were used for: a Use is of all devices of the cards that it names.
func (a *Account) usedUp(u *Use) {
	for n := range u.Counters {
		a.card(n).used = a.charged.Boot
	}
	for device := range u.Busy {
		if d := a.devices[device]; d != nil {
			for _, l := range d.lines {
				l.card.used = a.charged.Boot
			}
		}
	}
}

// measured notes that a line's use is known, and so far may be nothing: which is not the same as nobody having measured it.
func (l *openLine) measured(basis Basis) {
	for _, used := range []map[Basis]sharing.Fraction{l.series.used, l.pod.used} {
		if _, known := used[basis]; !known {
			used[basis] = sharing.Fraction{}
		}
	}
}
