// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// useDevices is how many devices' use can be written once in useEvery.
	useDevices = 16
	// millionth is the unit of Observation.Busy.
	millionth = 1_000_000
	// maxPower bounds what a card can take, in millijoules per millisecond: a megawatt, so that a clock that runs
	// a thousand times too fast is believed and a counter of nonsense is not. powerSlack is for counters that lag.
	maxPower, powerSlack = 1_000_000, 60_000
)

// measured is what was measured and is not written yet.
type measured struct {
	energy map[gpu.UUID]*energy
	// busy is by device that somebody holds, in millionths of milliseconds, and rests on basis.
	busy  map[gpu.UUID]int64
	basis Basis
	// written is the boot clock when all was written.
	written int64
}

// energy is a card's: what its counter showed last, at which time of the boot clock, and what is not written yet.
type energy struct {
	last, told, pending int64
	// changed is when the lines of the card changed while its counter was silent, 0 where they did not.
	changed int64
}

// of is what of a growth is that of the lines which stand now. Where they are not those of the last reading, it is for the time
// that they stood; whose the rest was is not known.
func (e *energy) of(grown, now int64) int64 {
	if e.changed == 0 || now <= e.told {
		return grown
	}
	return sharing.NewFraction(grown, 1).Scale(int(now-e.changed), int(now-e.told)).Floor()
}

// follow measures the devices that are held now.
func (m *measured) follow(a *Account) {
	busy := make(map[gpu.UUID]int64, len(a.lines))
	for _, l := range a.lines {
		if l.line.Cause == "" {
			busy[l.line.Device] = m.busy[l.line.Device]
		}
	}
	m.busy = busy
}

// growth is what a counter grew by in a time; false where it began anew or shows nonsense.
func growth(from, to, ms int64) (int64, bool) {
	if from < 0 || to < from || to > maxClock || (to-from)/maxPower > ms+powerSlack {
		return 0, false
	}
	return to - from, true
}

// measure takes in what was measured since the last Observation, of lines that stood all the while.
func (d *derivation) measure(o *Observation) {
	a, w := d.account, &d.account.watch
	passed := d.at.Boot - a.charged.Boot
	if w.basis != o.Basis {
		d.useBefore()
		w.basis = Basis(text(string(o.Basis)))
	}
	if w.energy == nil {
		w.energy = map[gpu.UUID]*energy{}
	}
	for uuid, counter := range o.Energy {
		if counter < 0 || counter > maxClock {
			continue
		}
		e := w.energy[uuid]
		if e == nil {
			w.energy[uuid] = &energy{last: counter, told: d.at.Boot}
			continue
		}
		if grown, ok := growth(e.last, counter, max(passed, d.at.Boot-e.told)); ok {
			if c := a.byUUID[uuid]; c != nil && len(c.lines) > 0 {
				e.pending += e.of(grown, d.at.Boot)
			}
		}
		e.last, e.told, e.changed = counter, d.at.Boot, 0
	}
	d.told = o.Busy
	for device, busy := range w.busy {
		if part, told := o.Busy[device]; told {
			w.busy[device] = busy + min(max(part, 0), millionth)*min(passed, max(a.stall, waitingSpan))
		}
	}
}

// useBefore writes all that was measured up to the last record, as of then.
func (d *derivation) useBefore() {
	now := d.at
	d.at = d.account.charged
	d.use(func(*cardAccount) bool { return true })
	d.at = now
}

// useIfDue writes all that was measured, once in a while: the more seldom the more devices there are, since
// a year of it has to fit in the log.
func (d *derivation) useIfDue() {
	w := &d.account.watch
	if d.at.Boot-w.written >= useEvery.Milliseconds()*int64(1+len(w.busy)/useDevices) {
		w.written = d.at.Boot
		d.use(func(*cardAccount) bool { return true })
	}
}

// use writes what was measured on some cards.
func (d *derivation) use(of func(*cardAccount) bool) {
	a, w := d.account, &d.account.watch
	u := &Use{Energy: map[int]int64{}, Busy: map[gpu.UUID]int64{}, Counters: map[int]int64{}}
	for _, c := range a.cards {
		if !of(c) {
			continue
		}
		if e := w.energy[c.card.UUID]; e != nil && (e.pending > 0 || !c.metered || c.counter != e.last) {
			u.Counters[c.n] = e.last
			if e.pending > 0 {
				u.Energy[c.n] = e.pending
			}
			e.pending = 0
		}
		for _, l := range c.lines {
			device := l.line.Device
			if _, said := u.Busy[device]; said || l.line.Cause != "" {
				continue
			}
			if ms := w.busy[device] / millionth; ms > 0 || d.idle(l) {
				u.Busy[device], u.Basis = ms, w.basis
				w.busy[device] -= ms * millionth
			}
		}
	}
	if len(u.Counters)+len(u.Busy) > 0 {
		d.emit(u)
	}
}

// idle reports whether a line is seen not to be used, of which nothing was known yet.
func (d *derivation) idle(l *openLine) bool {
	if _, told := d.told[l.line.Device]; !told {
		return false
	}
	_, known := l.pod.used[l.basisOf(d.account.watch.basis)]
	return !known
}

// gap is why nobody can say what was before an instant, empty where somebody can, and for how long. The boot clock may have
// fallen; watched says that somebody looked meanwhile.
func (a *Account) gap(at Instant, fell, watched bool) (reason string, span int64) {
	if len(a.cards) == 0 {
		return "", 0
	}
	oneBoot := a.oneBoot(at)
	switch {
	case !oneBoot && (at.BootID == "" || a.charged.BootID == ""):
		return GapStall, 0
	case !oneBoot:
		return GapReboot, at.Boot
	case fell:
		return GapStall, 0
	case a.away:
		return GapRestart, at.Boot - a.charged.Boot
	case at.Boot-a.charged.Boot > a.stall && !watched:
		return GapStall, at.Boot - a.charged.Boot
	}
	return "", 0
}

// gap says a gap, with what the situation after it proves.
func (d *derivation) gap(s *situation, o *Observation, reason string, span int64) {
	a, w := d.account, &d.account.watch
	sameBoot := a.oneBoot(d.at)
	g := &Gap{Reason: reason, Span: span, Wall: d.at.Wall - a.charged.Wall, Counters: map[int]int64{}}
	here := map[gpu.UUID]bool{}
	for _, c := range s.cards {
		here[c.UUID] = true
	}
	for _, c := range a.cards {
		if reason == GapReboot && len(c.lines) > 0 && here[c.card.UUID] {
			g.Cards = append(g.Cards, c.n)
		}
		counter, told := o.Energy[c.card.UUID]
		if !told || counter < 0 || counter > maxClock {
			continue
		}
		g.Counters[c.n] = counter
		if grown, ok := growth(c.counter, counter, span); ok && c.metered && sameBoot && span > 0 && grown > 0 && len(c.lines) > 0 {
			if g.Energy == nil {
				g.Energy = map[int]int64{}
			}
			g.Energy[c.n] = grown
		}
	}
	if sameBoot {
		g.Bridged = a.proven(s)
	}
	d.emit(g)
	w.measured = measured{energy: map[gpu.UUID]*energy{}, basis: Basis(text(string(o.Basis))), written: d.at.Boot}
	for uuid, counter := range o.Energy {
		if counter >= 0 && counter <= maxClock {
			w.energy[uuid] = &energy{last: counter, told: d.at.Boot}
		}
	}
}

// proven are the open lines that the situation after a gap proves to have stood all the while.
func (a *Account) proven(s *situation) []Bridge {
	now := map[proof]*Line{}
	for i := range s.lines {
		if p, can := s.lines[i].proof(); can {
			now[p] = &s.lines[i]
		}
	}
	var out []Bridge
	for _, id := range a.openIDs() {
		l := a.lines[id]
		p, can := l.line.proof()
		if !can || now[p] == nil || now[p].Card != l.line.Card {
			continue
		}
		out = append(out, Bridge{
			ID:     id,
			Part:   least(l.line.Part, now[p].Part).String(),
			Memory: least(l.line.Memory, now[p].Memory).String(),
		})
	}
	return out
}
