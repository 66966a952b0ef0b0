// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"pgregory.net/rapid"
)

// throughJSON is a record as the log gives it back.
func throughJSON(t interface {
	Helper()
	Fatal(args ...any)
}, r Record) Record {
	t.Helper()
	data, err := json.Marshal(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	body := reflect.New(reflect.TypeOf(r.Body).Elem())
	if err := json.Unmarshal(data, body.Interface()); err != nil {
		t.Fatal(err)
	}
	r.Body = body.Interface().(Body)
	return r
}

func TestEveryHistoryAddsUpAndNoRegisterFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAccount()
		before := map[string]sharing.Fraction{}
		for _, s := range anyHistory(t) {
			for _, r := range s.take(a) {
				if f, ok := r.Body.(*FactSeen); ok && f.What == FactRefused {
					t.Fatalf("refused: %s", f.Text)
				}
			}
			totals := a.Totals()
			if err := checkConservation(totals); err != nil {
				t.Fatal(err)
			}
			if over := usedBeyondHeld(totals); over != "" {
				t.Fatal(over)
			}
			if err := checkConservation(a.TotalsAt(a.at.Boot + minute)); err != nil {
				t.Fatal("a minute later:", err)
			}
			now := flat(totals)
			for name, value := range now {
				if value.Cmp(before[name]) < 0 || value.Sign() < 0 {
					t.Fatalf("%s fell from %s to %s", name, before[name], value)
				}
			}
			before = now
			for card, lack := range a.Unbalanced() {
				if !lack.IsZero() {
					t.Fatalf("%s lacks %s", card, lack)
				}
			}
		}
	})
}

// usedBeyondHeld names a register in which more was used than was held.
func usedBeyondHeld(t *Totals) string {
	over := func(what any, held Amount, used map[Basis]sharing.Fraction) string {
		var sum sharing.Fraction
		for _, u := range used {
			sum = sum.Add(u)
		}
		if sum.Cmp(held.GPU) <= 0 {
			return ""
		}
		return fmt.Sprintf("%v held %s GPU-ms and used %s of it", what, held.GPU, sum)
	}
	for i := range t.Series {
		if s := over(t.Series[i].Series, t.Series[i].Amount, t.Series[i].Used); s != "" {
			return s
		}
	}
	for i := range t.Pods {
		if s := over(t.Pods[i].PodSeries, t.Pods[i].Amount, t.Pods[i].Used); s != "" {
			return s
		}
	}
	return ""
}

// flat is every register by a name.
func flat(t *Totals) map[string]sharing.Fraction {
	out := map[string]sharing.Fraction{}
	add := func(name string, a Amount) {
		out[name+" gpu"], out[name+" memory"], out[name+" energy"] = a.GPU, a.Memory, a.Energy
	}
	for _, c := range t.Cards {
		add(string(c.UUID)+" capacity", c.Capacity)
		add(string(c.UUID)+" allocated", c.Allocated)
		for cause, amount := range c.Unallocated {
			add(string(c.UUID)+" "+string(cause), amount)
		}
		for cause, amount := range c.Corrected {
			add(string(c.UUID)+" corrected "+string(cause), amount)
		}
	}
	for _, s := range t.Series {
		add(fmt.Sprint(s.Series), s.Amount)
		for basis, used := range s.Used {
			out[fmt.Sprint(s.Series, basis)] = used
		}
	}
	for reason, ms := range t.Gaps {
		out[reason] = fraction(ms, 1)
	}
	return out
}

func TestReplayGivesTheSameAccountAtEveryRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, replayed := NewAccount(), NewAccount()
		for _, s := range anyHistory(t) {
			for _, r := range s.take(a) {
				if err := replayed.Apply(throughJSON(t, r)); err != nil {
					t.Fatal(err)
				}
			}
			checkCarried(t, replayed)
			if diff := cmp.Diff(written(t, a), written(t, replayed)); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(flat(a.Totals()), flat(replayed.Totals()), cmp.Comparer(sharing.Fraction.Equal)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// checkCarried looks that a reader may begin anywhere, with the state there.
func checkCarried(t *rapid.T, a *Account) {
	t.Helper()
	state := written(t, a)
	carried := NewAccount()
	if err := carried.Apply(Record{Seq: a.seq + 1, At: a.at, Body: &Carry{State: json.RawMessage(state)}}); err != nil {
		t.Fatal(err)
	}
	carried.seq--
	if diff := cmp.Diff(state, written(t, carried)); diff != "" {
		t.Fatal(diff)
	}
}

func TestAMeterThatReadsTheStateGoesOnAsTheOneThatWroteIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAccount()
		for _, s := range anyHistory(t) {
			if !s.begin {
				s.take(a)
				continue
			}
			b := NewAccount()
			if err := b.UnmarshalJSON([]byte(written(t, a))); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s.take(a), s.take(b)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestTheOrderOfAnObservationDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := NewAccount(), NewAccount()
		for _, s := range anyHistory(t) {
			first := s.take(a)
			s.o.Cards = rapid.Permutation(s.o.Cards).Draw(t, "cards")
			s.o.Lines = rapid.Permutation(s.o.Lines).Draw(t, "lines")
			if diff := cmp.Diff(first, s.take(b)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestTheSameObservationAgainChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAccount()
		for _, s := range anyHistory(t) {
			s.take(a)
			before := flat(a.Totals())
			s.o.XIDs = nil
			a.Observe(s.o)
			after := flat(a.Totals())
			// What was measured may be written now.
			maps.DeleteFunc(after, func(name string, _ sharing.Fraction) bool { _, there := before[name]; return !there })
			if diff := cmp.Diff(before, after, cmp.Comparer(sharing.Fraction.Equal)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}
