// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// busyNode is a node on which much happens, the same for the same seed.
type busyNode struct {
	rnd    *rand.Rand
	at     Instant
	cards  []Card
	lines  [][]Line
	energy map[gpu.UUID]int64
	// calm is how often nothing changes, of 10 ticks.
	calm int
	// quiet: there are no XIDs.
	quiet bool
}

const nodeStart = 1_780_272_000_000 // a midnight, UTC

func newBusyNode(seed uint64, cards int) *busyNode {
	n := &busyNode{rnd: rand.New(rand.NewPCG(seed, 1)), at: Instant{"boot-1", 100_000, nodeStart}, energy: map[gpu.UUID]int64{}, calm: 5}
	for i := range cards {
		n.cards = append(n.cards, Card{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Model: "NVIDIA H100 80GB HBM3", Memory: 81559})
		n.lines = append(n.lines, n.divide(i))
	}
	return n
}

// divide is one way to divide a card.
func (n *busyNode) divide(card int) []Line {
	uuid := n.cards[card].UUID
	rest := func(cause sharing.Cause, part sharing.Fraction) Line {
		return Line{Card: uuid, GPUInstance: gpu.NoInstance, Cause: cause, Weight: sharing.One(), Part: part, Memory: part}
	}
	held := func(pod, of int) Line {
		part := sharing.NewFraction(1, int64(of))
		l := Line{
			Card: uuid, Device: uuid, GPUInstance: gpu.NoInstance, Resource: "nvidia.com/gpu", Mode: sharing.ModeExclusive,
			Holder: sharing.Holder{Namespace: fmt.Sprintf("team-%d", pod%3), Pod: fmt.Sprintf("pod-%d", pod), PodUID: fmt.Sprintf("uid-%d", pod), Container: "main"},
			Seats:  1, Of: of, Weight: sharing.One(), Part: part, Memory: part,
		}
		if of > 1 {
			l.Resource, l.Mode = "nvidia.com/gpu.shared", sharing.ModeShared
		}
		return l
	}
	switch n.rnd.IntN(4) {
	case 0:
		return []Line{rest(sharing.Causes()[n.rnd.IntN(5)], sharing.One())}
	case 1:
		return []Line{held(card*10+n.rnd.IntN(3), 1)}
	}
	of := 3 + n.rnd.IntN(5)
	seats := n.rnd.IntN(of)
	lines := []Line{rest(sharing.CauseUnrequested, sharing.NewFraction(int64(of-seats), int64(of)))}
	for i := range seats {
		lines = append(lines, held(card*10+i, of))
	}
	return lines
}

// tick lets some seconds pass and perhaps something happen.
func (n *busyNode) tick() Observation {
	span := 500 + n.rnd.Int64N(3000)
	n.at.Boot += span
	n.at.Wall += span
	for i := range n.cards {
		n.energy[n.cards[i].UUID] += span * (100 + n.rnd.Int64N(500))
	}
	if n.rnd.IntN(10) >= n.calm {
		card := n.rnd.IntN(len(n.cards))
		n.lines[card] = n.divide(card)
	}
	return n.see()
}

// see is what there is now.
func (n *busyNode) see() Observation {
	o := Observation{At: n.at, Cards: n.cards, Energy: maps.Clone(n.energy), Busy: map[gpu.UUID]int64{}, Basis: BasisEngine}
	for i, lines := range n.lines {
		o.Lines = append(o.Lines, lines...)
		o.Busy[n.cards[i].UUID] = n.rnd.Int64N(1_000_000)
	}
	if !n.quiet && n.rnd.IntN(20) == 0 {
		o.XIDs = map[XID]uint64{{GPU: n.cards[0].UUID, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 13}: 2}
	}
	return o
}

// outlined is what of totals must be the same for the same history, whoever wrote it down.
func outlined(t *Totals) string {
	out := fmt.Sprintf("at %+v gaps %v xids %v\n", t.At, t.Gaps, t.XIDs)
	for i := range t.Cards {
		c := &t.Cards[i]
		out += fmt.Sprintf("%s %v %v %v %v\n", c.UUID, c.Capacity, c.Allocated, c.Unallocated, c.Corrected)
	}
	for i := range t.Series {
		out += fmt.Sprintf("%+v\n", t.Series[i])
	}
	return out
}

// add adds fractions up.
func add(sum sharing.Fraction, more map[sharing.Cause]Amount) sharing.Fraction {
	for _, amount := range more {
		sum = sum.Add(amount.GPU)
	}
	return sum
}

// checkConserved fails where a card's registers do not add up, or are not the time that the node was up since first.
func checkConserved(t testing.TB, totals *Totals, span int64) {
	t.Helper()
	for i := range totals.Cards {
		c := &totals.Cards[i]
		if got, want := add(c.Allocated.GPU, c.Unallocated), add(c.Capacity.GPU, c.Corrected); !got.Equal(want) {
			t.Errorf("%s: allocated and the rest are %s, capacity and corrected %s", c.UUID, got, want)
		}
		if want := sharing.NewFraction(span, 1); !c.Capacity.GPU.Equal(want) {
			t.Errorf("%s: capacity is %s ms of %s", c.UUID, c.Capacity.GPU, want)
		}
		for cause, amount := range c.Unallocated {
			if amount.GPU.Sign() < 0 || amount.Energy.Sign() < 0 {
				t.Errorf("%s: %s is %v", c.UUID, cause, amount)
			}
		}
	}
}

// checkNotFallen fails where a register is below what was shown of the same ledger.
func checkNotFallen(t testing.TB, shown, now *Totals) {
	t.Helper()
	if shown.LedgerID == "" {
		return
	}
	if shown.LedgerID != now.LedgerID {
		t.Errorf("the ledger was %s and is %s", shown.LedgerID, now.LedgerID)
		return
	}
	registers := func(totals *Totals) map[string]sharing.Fraction {
		all := map[string]sharing.Fraction{}
		for i := range totals.Cards {
			c := &totals.Cards[i]
			all["capacity of "+string(c.UUID)] = c.Capacity.GPU
			all["energy of "+string(c.UUID)] = c.Capacity.Energy
			for cause, amount := range c.Unallocated {
				all[string(cause)+" of "+string(c.UUID)] = amount.GPU
			}
		}
		for i := range totals.Series {
			all[fmt.Sprint(totals.Series[i].Series)] = totals.Series[i].GPU
		}
		return all
	}
	after := registers(now)
	for name, before := range registers(shown) {
		if after[name].Cmp(before) < 0 {
			t.Errorf("%s fell from %s to %s", name, before, after[name])
		}
	}
	for x, count := range shown.XIDs {
		if now.XIDs[x] < count {
			t.Errorf("XID %v fell from %d to %d", x, count, now.XIDs[x])
		}
	}
}

// replayedLog folds the whole log of a book in dir, and fails where anything is wrong with it.
func replayedLog(t testing.TB, dir string) *Account {
	t.Helper()
	a := NewAccount()
	for line, err := range scanSegments(dir + "/" + bookFolder) {
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Apply(line.Record); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func committed(t testing.TB, b *Book) *Totals {
	t.Helper()
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	return b.View().Totals
}
