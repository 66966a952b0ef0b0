// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// situation is what an Observation says of the cards, as it can be booked: in an order of its own, each line once,
// the lines of every card one card.
type situation struct {
	cards []Card
	lines []Line
	// lacks is what the lines that were said lack to one, where they are not one card.
	lacks map[gpu.UUID]sharing.Fraction
}

func situate(o *Observation) *situation {
	s := &situation{lacks: map[gpu.UUID]sharing.Fraction{}}
	known := map[gpu.UUID]bool{}
	add := func(c Card) {
		if c.UUID != "" && !known[c.UUID] {
			known[c.UUID] = true
			s.cards = append(s.cards, c)
		}
	}
	cards := slices.Clone(o.Cards)
	for i := range cards {
		cards[i] = cleanCard(cards[i])
	}
	slices.SortFunc(cards, compareCards)
	for _, c := range cards {
		add(c)
	}
	byCard := map[gpu.UUID][]Line{}
	for i := range o.Lines {
		l := cleanLine(o.Lines[i])
		byCard[l.Card] = append(byCard[l.Card], l)
	}
	strangers := make([]Card, 0)
	for uuid := range byCard {
		strangers = append(strangers, Card{UUID: uuid})
	}
	slices.SortFunc(strangers, compareCards)
	for _, c := range strangers {
		add(c)
	}
	for _, c := range s.cards {
		lines, lack := balance(c.UUID, byCard[c.UUID])
		if !lack.IsZero() {
			s.lacks[c.UUID] = lack
		}
		s.lines = append(s.lines, lines...)
	}
	return s
}

func compareCards(a, b Card) int {
	return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID),
		strings.Compare(a.Model, b.Model), cmp.Compare(a.Memory, b.Memory))
}

func cleanCard(c Card) Card {
	c.UUID, c.Model = gpu.UUID(text(string(c.UUID))), text(c.Model)
	if c.Memory < 0 || c.Memory > maxMemory {
		c.Memory = 0
	}
	return c
}

func cleanLine(l Line) Line {
	l.Card, l.Device = gpu.UUID(text(string(l.Card))), gpu.UUID(text(string(l.Device)))
	l.Profile, l.Resource = text(l.Profile), text(l.Resource)
	l.Cause, l.Mode = sharing.Cause(text(string(l.Cause))), sharing.Mode(text(string(l.Mode)))
	l.Holder = sharing.Holder{
		Namespace: text(l.Holder.Namespace), Pod: text(l.Holder.Pod),
		Container: text(l.Holder.Container), PodUID: text(l.Holder.PodUID),
	}
	l.Seats, l.Of = max(l.Seats, 0), max(l.Of, 0)
	if l.Cause == "" && l.Holder == (sharing.Holder{}) {
		l.Cause = sharing.CauseUnattributed
	}
	return l
}

// balance makes one card of its lines, and says what they lacked to one.
func balance(card gpu.UUID, lines []Line) ([]Line, sharing.Fraction) {
	lines = merge(lines)
	var sum, memory sharing.Fraction
	for i := range lines {
		l := &lines[i]
		if !writable(l.Part) || !writable(l.Memory) {
			return unattributed(card, sharing.One(), sharing.One()), cmpOr(l.Part.Sub(sharing.One()), sharing.One())
		}
		if !writable(l.Weight) {
			l.Weight = sharing.Fraction{}
		}
		sum, memory = sum.Add(l.Part), memory.Add(l.Memory)
	}
	lack, lackMemory := sharing.One().Sub(sum), sharing.One().Sub(memory)
	switch {
	case lack.IsZero() && lackMemory.IsZero():
		return lines, lack
	case lack.Sign() < 0 || lackMemory.Sign() < 0:
		lines = unattributed(card, sharing.One(), sharing.One())
	default:
		lines = merge(append(lines, unattributed(card, lack, lackMemory)...))
	}
	return lines, cmpOr(lack, lackMemory)
}

// cmpOr is f unless that is zero.
func cmpOr(f, g sharing.Fraction) sharing.Fraction {
	if f.IsZero() {
		return g
	}
	return f
}

// writable reports whether a record can say a part: a number from 0 to 1 that is not endless.
func writable(f sharing.Fraction) bool {
	return f.Sign() >= 0 && f.Cmp(sharing.One()) <= 0 && len(f.String()) <= 64
}

func unattributed(card gpu.UUID, part, memory sharing.Fraction) []Line {
	return []Line{{
		Card: card, GPUInstance: gpu.NoInstance, Cause: sharing.CauseUnattributed,
		Weight: sharing.One(), Part: part, Memory: memory,
	}}
}

// merge sorts lines and makes one of those that nothing but their size tells apart.
func merge(lines []Line) []Line {
	slices.SortFunc(lines, compareLines)
	out := lines[:0]
	for _, l := range lines {
		if n := len(out); n > 0 && out[n-1].key() == l.key() {
			last := &out[n-1]
			last.Seats, last.Of = last.Seats+l.Seats, max(last.Of, l.Of)
			last.Part, last.Memory = last.Part.Add(l.Part), last.Memory.Add(l.Memory)
			continue
		}
		out = append(out, l)
	}
	return out
}

func compareLines(a, b Line) int {
	return cmp.Or(
		cmp.Compare(a.GPUInstance, b.GPUInstance), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Cause, b.Cause),
		strings.Compare(a.Holder.Namespace, b.Holder.Namespace), strings.Compare(a.Holder.Pod, b.Holder.Pod),
		strings.Compare(a.Holder.Container, b.Holder.Container), strings.Compare(a.Holder.PodUID, b.Holder.PodUID),
		strings.Compare(a.Resource, b.Resource), cmp.Compare(a.Mode, b.Mode), strings.Compare(a.Profile, b.Profile),
		a.Part.Cmp(b.Part), a.Memory.Cmp(b.Memory), a.Weight.Cmp(b.Weight),
		cmp.Compare(a.Seats, b.Seats), cmp.Compare(a.Of, b.Of))
}

// successor is what makes one line the next of another: the same holder of the same device, or the same cause.
type successor struct {
	card, device              gpu.UUID
	namespace, pod, container string
	cause                     sharing.Cause
}

func (l *Line) successor() successor {
	s := successor{card: l.Card, device: l.Device}
	if l.Holder == (sharing.Holder{}) {
		s.cause = l.Cause
		return s
	}
	s.namespace, s.pod, s.container = l.Holder.Namespace, l.Holder.Pod, l.Holder.Container
	return s
}

// successors are the UIDs of those who hold something, by what they hold.
type successors map[successor][]string

func (s *situation) successors() successors {
	out := make(successors, len(s.lines))
	for i := range s.lines {
		l := &s.lines[i]
		out[l.successor()] = append(out[l.successor()], l.Holder.PodUID)
	}
	return out
}

// has reports whether a line goes on as another one: a UID that became known, or is not known any more, is
// not another pod's.
func (s successors) has(l *Line) bool {
	for _, uid := range s[l.successor()] {
		if uid == "" || l.Holder.PodUID == "" || uid == l.Holder.PodUID {
			return true
		}
	}
	return false
}

// unseen are the cards that nobody can see the holders of.
func (s *situation) unseen() map[gpu.UUID]bool {
	cards := map[gpu.UUID]bool{}
	for i := range s.lines {
		if s.lines[i].Cause == sharing.CauseUnobserved {
			cards[s.lines[i].Card] = true
		}
	}
	return cards
}
