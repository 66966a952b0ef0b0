// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"pgregory.net/rapid"
)

// truth charges a history the slow way: every tick, every line.
type truth struct {
	held map[string]*big.Rat
	// last is what was seen last, by whom it stands; nil before anything.
	last *Observation
	// high is the latest time of the boot.
	high    int64
	cards   bool
	mayHeal []heal
	age     int64
}

// heal is what a gap took from somebody who may be proven to have held on.
type heal struct {
	line Line
	span int64
	age  int64
}

func (w *truth) add(key string, part sharing.Fraction, ms int64) {
	if w.held[key] == nil {
		w.held[key] = new(big.Rat)
	}
	exact, _ := new(big.Rat).SetString(part.String())
	w.held[key].Add(w.held[key], exact.Mul(exact, big.NewRat(ms, 1)))
}

func (w *truth) line(l *Line, ms int64) {
	if l.Cause != "" {
		w.add(string(l.Card)+" "+string(l.Cause), l.Part, ms)
		return
	}
	w.add("held by "+l.Holder.Namespace, l.Part, ms)
}

func (w *truth) see(s step) {
	o := s.o
	now := o.At.Boot
	fell := false
	if w.last != nil && o.At.BootID == w.last.At.BootID {
		fell = !s.begin && now < w.last.At.Boot
		now = max(now, w.high)
	}
	switch {
	case w.last == nil || !w.cards:
	case o.At.BootID != w.last.At.BootID:
		for _, c := range cardsWithLines(w.last) {
			if slices.ContainsFunc(o.Cards, func(d Card) bool { return d.UUID == c }) {
				w.add(string(c)+" unobserved", sharing.One(), now)
			}
		}
		w.age += now
	case s.begin || fell || now-w.high > 5*minute:
		w.bridge(&o, now-w.high, fell)
	default:
		for i := range w.last.Lines {
			w.line(&w.last.Lines[i], now-w.high)
		}
		w.age += now - w.high
	}
	w.cards = w.cards || len(o.Cards) > 0
	w.last, w.high = &o, now
	w.proofs(&o)
}

func cardsWithLines(o *Observation) []gpu.UUID {
	var cards []gpu.UUID
	for _, l := range o.Lines {
		if !slices.Contains(cards, l.Card) {
			cards = append(cards, l.Card)
		}
	}
	return cards
}

func (w *truth) bridge(o *Observation, span int64, fell bool) {
	if fell {
		span = 0
	}
	for _, c := range cardsWithLines(w.last) {
		rest := sharing.One()
		for _, l := range w.last.Lines {
			if l.Card != c || l.Cause != "" || l.Holder.PodUID == "" {
				continue
			}
			proof := slices.IndexFunc(o.Lines, func(n Line) bool { return sameHold(l, n) })
			if proof < 0 {
				if span > 0 {
					w.mayHeal = append(w.mayHeal, heal{line: l, span: span, age: w.age + span})
				}
				continue
			}
			l.Part = least(l.Part, o.Lines[proof].Part)
			w.line(&l, span)
			rest = rest.Sub(l.Part)
		}
		w.add(string(c)+" unobserved", rest, span)
	}
	w.age += span
}

func sameHold(l, n Line) bool {
	return n.Cause == "" && n.Card == l.Card && n.Device == l.Device && n.Holder == l.Holder && n.Resource == l.Resource && n.Mode == l.Mode
}

func (w *truth) proofs(o *Observation) {
	w.mayHeal = slices.DeleteFunc(w.mayHeal, func(h heal) bool {
		i := slices.IndexFunc(o.Lines, func(n Line) bool { return sameHold(h.line, n) })
		if w.age-h.age > hour {
			return true
		}
		if i < 0 {
			return false
		}
		part := least(h.line.Part, o.Lines[i].Part)
		w.add("held by "+h.line.Holder.Namespace, part, h.span)
		return true
	})
}

func TestRegistersAreTheIntegralOfWhatWasSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAccount()
		w := &truth{held: map[string]*big.Rat{}}
		for _, s := range history(t) {
			s.take(a)
			w.see(s)
		}
		got := map[string]string{}
		totals := a.Totals()
		for _, c := range totals.Cards {
			for cause, amount := range c.Unallocated {
				got[string(c.UUID)+" "+string(cause)] = amount.GPU.String()
			}
		}
		for _, ns := range []string{"a", "b"} {
			got["held by "+ns] = seriesTotal(totals, ns).GPU.String()
		}
		want := map[string]string{"held by a": "0", "held by b": "0"}
		for key, value := range w.held {
			want[key] = value.RatString()
		}
		maps.DeleteFunc(got, func(_, v string) bool { return v == "0" })
		maps.DeleteFunc(want, func(_, v string) bool { return v == "0" })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-truth +account)\n%s", diff)
		}
	})
}
