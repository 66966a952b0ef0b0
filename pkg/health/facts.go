// SPDX-License-Identifier: Apache-2.0

package health

import (
	"maps"
	"slices"
	"strings"
)

// takeFacts takes over what reporters say, whatever the reading. The facts of one that said
// something before stand until it says something else.
func (f *fold) takeFacts() {
	own := false
	for reporter, facts := range f.e.Facts {
		reporter, facts := word(reporter), foldable(facts)
		before, known := f.d.Facts[reporter]
		if slices.Equal(before, facts) && (known || len(facts) == 0) || !known && len(f.d.Facts) >= mostReporters {
			continue
		}
		if !own {
			f.d.Facts, own = maps.Clone(f.d.Facts), true
			if f.d.Facts == nil {
				f.d.Facts = map[string][]Fact{}
			}
		}
		if f.durable = true; len(facts) == 0 {
			delete(f.d.Facts, reporter)
		} else {
			f.d.Facts[reporter] = facts
		}
	}
}

// foldable are the facts that can be folded, the caller's own copy.
func foldable(facts []Fact) []Fact {
	var out []Fact
	for _, fact := range facts {
		if fact.GPU == "" || len(fact.GPU) > mostWord || fact.Class < ClassWatch || fact.Class > ClassHardware || !foreign(fact.Kind) || len(out) == mostFacts {
			continue
		}
		fact.Text = line(fact.Text)
		out = append(out, fact)
	}
	return out
}

// foreign says whether a kind is a word that reporters may use.
func foreign(k Kind) bool {
	own := []Kind{
		KindECC, KindRemapFailed, KindRemapPending, KindRetiredPending, KindRetiredPages, KindSRAM, KindUnrepairable, KindNVLinkDown,
		KindRecoveryAction, KindLost, KindStuck, KindThermal, KindPower, KindFlapping, "",
	}
	return !slices.Contains(own, k) && len(k) <= 64 && !strings.HasPrefix(string(k), "xid_") && !strings.HasPrefix(string(k), "dcgm_") &&
		!strings.ContainsFunc(string(k), func(r rune) bool { return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
}

// factsOf folds what reporters say of a card. Of two that say the same kind of thing the worse counts.
func (f *fold) factsOf(c *card) {
	standing := map[Kind]Fact{}
	for _, facts := range f.d.Facts {
		for _, fact := range facts {
			if has, there := standing[fact.Kind]; fact.GPU == c.UUID && (!there || has.Class < fact.Class || has.Class == fact.Class && has.Text > fact.Text) {
				standing[fact.Kind] = fact
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(standing)) {
		fact := standing[kind]
		cause := fact.Text
		if cause == "" {
			cause = string(kind)
		}
		f.stands(c, finding{subject: WholeCard(c.UUID), kind: kind, origin: ofFact, class: fact.Class, cause: cause, at: f.now})
	}
	for i := len(c.Conditions) - 1; i >= 0; i-- {
		if q := &c.Conditions[i]; q.Origin == ofFact {
			if _, stands := standing[q.Kind]; !stands {
				f.unset(c, i, clean, 0)
			}
		}
	}
}
