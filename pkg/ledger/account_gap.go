// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// bridge is a Bridge as it can be counted with.
type bridge struct {
	line         *openLine
	part, memory sharing.Fraction
}

func (a *Account) applyGap(seq uint64, at Instant, g *Gap) error {
	if !slices.Contains(GapReasons(), g.Reason) {
		return fmt.Errorf("%q is no reason of a gap", g.Reason)
	}
	if g.Reason == GapLost {
		return a.applyLost(at, g)
	}
	if err := a.checkSpan(at, g); err != nil {
		return err
	}
	bridges, err := a.bridges(g)
	if err != nil {
		return err
	}
	cards, err := a.gapCards(at, g)
	if err != nil {
		return err
	}
	if err := a.checkCounters(g.Energy, g.Counters); err != nil {
		return err
	}
	for n := range g.Energy {
		if !slices.Contains(cards, a.card(n)) {
			return fmt.Errorf("card %d took energy and had no lines", n)
		}
	}
	a.bridge(seq, at, g, bridges, cards)
	return nil
}

// applyLost notes that records are missing. What they said is in the state already.
func (a *Account) applyLost(at Instant, g *Gap) error {
	if g.Span != 0 || len(g.Bridged)+len(g.Cards)+len(g.Energy)+len(g.Counters) > 0 || at.BootID != a.at.BootID || at.Boot < a.at.Boot {
		return errors.New("lost records are noted, and charge nothing")
	}
	a.at, a.away = at, true
	return nil
}

func (a *Account) checkSpan(at Instant, g *Gap) error {
	longest := at.Boot
	switch {
	case a.oneBoot(at):
		longest = at.Boot - a.charged.Boot
		if at.Boot < a.at.Boot {
			return fmt.Errorf("the boot clock goes back from %d to %d ms", a.at.Boot, at.Boot)
		}
	case at.BootID == "" || a.charged.BootID == "":
		longest = 0
	}
	if g.Span < 0 || g.Span > longest {
		return fmt.Errorf("it spans %d ms, and %d are possible", g.Span, longest)
	}
	if a.age+g.Span > maxClock {
		return errors.New("the account is older than time can be counted")
	}
	if at.BootID != a.begin.BootID {
		return fmt.Errorf("boot %q has not begun", at.BootID)
	}
	return nil
}

// bridges are the lines that go on. Each was held, and has no more within the gap than it had.
func (a *Account) bridges(g *Gap) ([]bridge, error) {
	out := make([]bridge, 0, len(g.Bridged))
	seen := make(map[uint64]bool, len(g.Bridged))
	for _, b := range g.Bridged {
		l := a.lines[b.ID]
		if l == nil || l.line.Cause != "" || seen[b.ID] {
			return nil, fmt.Errorf("line %d is bridged, and is no open line that is held", b.ID)
		}
		seen[b.ID] = true
		bridgePart, err := part(b.Part)
		if err != nil {
			return nil, err
		}
		memory, err := part(b.Memory)
		if err != nil {
			return nil, err
		}
		if bridgePart.Cmp(l.line.Part) > 0 || memory.Cmp(l.line.Memory) > 0 {
			return nil, fmt.Errorf("line %d is bridged with more than it had", b.ID)
		}
		out = append(out, bridge{line: l, part: bridgePart, memory: memory})
	}
	return out, nil
}

// gapCards are those that count the gap as capacity: those that had lines, of which after another boot only
// the named.
func (a *Account) gapCards(at Instant, g *Gap) ([]*cardAccount, error) {
	var cards []*cardAccount
	if a.oneBoot(at) {
		if len(g.Cards) > 0 {
			return nil, errors.New("cards are named, and the boot is the same")
		}
		for _, c := range a.cards {
			if len(c.lines) > 0 {
				cards = append(cards, c)
			}
		}
		return cards, nil
	}
	if len(g.Bridged) > 0 {
		return nil, errors.New("nothing can be held over a start of the machine")
	}
	for _, n := range g.Cards {
		c := a.card(n)
		if c == nil || len(c.lines) == 0 || slices.Contains(cards, c) {
			return nil, fmt.Errorf("card %d is named, and had no lines", n)
		}
		cards = append(cards, c)
	}
	return cards, nil
}

func (a *Account) bridge(seq uint64, at Instant, g *Gap, bridges []bridge, cards []*cardAccount) {
	for _, l := range a.lines {
		a.settle(l)
	}
	for _, c := range a.cards {
		a.settleCard(c)
	}
	sameBoot := a.oneBoot(at)
	keep := make(map[uint64]bool, len(bridges))
	parts := map[*cardAccount]bridge{}
	for _, b := range bridges {
		c := b.line.card
		keep[b.line.id] = true
		amount := c.held(b.part, b.memory, g.Span)
		amount.Energy = times(b.part, g.Energy[c.n])
		a.book(b.line, amount)
		sum := parts[c]
		parts[c] = bridge{part: sum.part.Add(b.part), memory: sum.memory.Add(b.memory)}
	}
	for _, c := range cards {
		whole := c.held(sharing.One(), sharing.One(), g.Span)
		whole.Energy = sharing.NewFraction(g.Energy[c.n], 1)
		rest := c.held(sharing.One().Sub(parts[c].part), sharing.One().Sub(parts[c].memory), g.Span)
		rest.Energy = times(sharing.One().Sub(parts[c].part), g.Energy[c.n])
		c.capacity = c.capacity.plus(whole)
		c.unallocated[sharing.CauseUnobserved] = c.unallocated[sharing.CauseUnobserved].plus(rest)
	}
	a.gaps[g.Reason] += g.Span
	a.age += g.Span
	a.endUnbridged(seq, at, g, keep, sameBoot)
	a.readCounters(g.Counters)
	a.at, a.charged, a.away = at, at, false
	for _, l := range a.lines {
		l.since = at.Boot
	}
	for _, c := range a.cards {
		c.since, c.used = at.Boot, at.Boot
	}
}

// endUnbridged ends what a gap does not bridge, and remembers what could still be proven.
func (a *Account) endUnbridged(seq uint64, at Instant, g *Gap, keep map[uint64]bool, sameBoot bool) {
	if !sameBoot {
		a.hidden = nil
	}
	for _, id := range a.openIDs() {
		if keep[id] {
			continue
		}
		l := a.lines[id]
		if _, can := l.line.proof(); can && sameBoot && g.Span > 0 {
			a.late = append(a.late, &lateLine{
				said: l.said, line: l.line, refers: seq, span: g.Span,
				from: at.Wall - g.Wall, to: at.Wall, age: a.age, mebibytes: l.card.card.Memory,
			})
		}
		a.close(l)
	}
}

func (a *Account) prepareCorrection(c *Correction) (func(), error) {
	card := a.card(c.Card)
	if card == nil || c.To.Card != c.Card {
		return nil, fmt.Errorf("it is of card %d and of card %d", c.Card, c.To.Card)
	}
	line, err := lineOf(&c.To, card.card)
	if err != nil {
		return nil, err
	}
	if line.Cause != "" {
		return nil, errors.New("it charges nobody")
	}
	ofTime, err := part(c.Part)
	if err != nil {
		return nil, err
	}
	ofMemory, err := part(c.Memory)
	if err != nil {
		return nil, err
	}
	if c.Span < 0 || c.Span > maxClock {
		return nil, fmt.Errorf("it spans %d ms", c.Span)
	}
	amount := card.held(ofTime, ofMemory, c.Span)
	sum := card.corrected[c.From].plus(amount)
	booked := card.unallocated[c.From]
	for _, l := range card.lines {
		if l.line.Cause == c.From {
			booked = booked.plus(card.held(l.line.Part, l.line.Memory, a.charged.Boot-l.since))
		}
	}
	if sum.GPU.Cmp(booked.GPU) > 0 || sum.Memory.Cmp(booked.Memory) > 0 {
		return nil, fmt.Errorf("it takes more off %q than was booked to it", c.From)
	}
	return func() {
		card.corrected[c.From] = sum
		card.allocate(line.Mode, amount)
		p := a.podOf(podSeriesOf(&line, card.card.Model))
		p.amount = p.amount.plus(amount)
		s := a.seriesOf(p.key.Series)
		s.amount = s.amount.plus(amount)
		if len(p.lines) == 0 && p.endedSeq == 0 && !p.unseen {
			a.end(p)
		}
		a.late = slices.DeleteFunc(a.late, func(l *lateLine) bool {
			return l.refers == c.Refers && l.line.Card == line.Card && sameProof(&l.line, &line)
		})
	}, nil
}

func sameProof(l, m *Line) bool {
	a, can := l.proof()
	b, could := m.proof()
	return can && could && a == b
}
