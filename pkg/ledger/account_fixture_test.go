// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	// epoch is the wall clock when the boot clock of the first boot shows 0.
	epoch = int64(1_800_000_000_000)
)

// instant is a moment of a machine whose clocks go alike.
func instant(boot string, ms int64) Instant { return Instant{BootID: boot, Boot: ms, Wall: epoch + ms} }

func fraction(num, den int64) sharing.Fraction { return sharing.NewFraction(num, den) }

// a100 is a card of 80 GiB.
func a100(n int) Card {
	return Card{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", n)), Index: n, Model: "A100", Memory: 81920}
}

// pod is a holder whose UID is known.
func pod(name string) sharing.Holder {
	return sharing.Holder{Namespace: "team", Pod: name, Container: "main", PodUID: "uid-" + name}
}

// nameless is the holder as it is known without a UID.
func nameless(h sharing.Holder) sharing.Holder {
	h.PodUID = ""
	return h
}

// wholeLine is a card held by one container.
func wholeLine(c Card, h sharing.Holder) Line {
	return Line{
		Card: c.UUID, Device: c.UUID, GPUInstance: gpu.NoInstance, Holder: h, Resource: "nvidia.com/gpu",
		Mode: sharing.ModeExclusive, Seats: 1, Of: 1, Weight: sharing.One(), Part: sharing.One(), Memory: sharing.One(),
	}
}

// seatLine is some seats of a card.
func seatLine(c Card, h sharing.Holder, seats, of int) Line {
	l := wholeLine(c, h)
	l.Mode, l.Seats, l.Of = sharing.ModeShared, seats, of
	l.Part, l.Memory = fraction(int64(seats), int64(of)), fraction(int64(seats), int64(of))
	return l
}

// migLine is a MIG device of a card with a part of its time and memory.
func migLine(c Card, instance int, h sharing.Holder, part, memory sharing.Fraction) Line {
	return Line{
		Card: c.UUID, Device: gpu.UUID(fmt.Sprintf("MIG-%s-%d", c.UUID, instance)), GPUInstance: instance, Profile: "1g.10gb",
		Holder: h, Resource: "nvidia.com/mig-1g.10gb", Mode: sharing.ModeMIG, Seats: 1, Of: 1,
		Weight: part, Part: part, Memory: memory,
	}
}

// restLine is what nobody is charged for.
func restLine(c Card, cause sharing.Cause, part, memory sharing.Fraction) Line {
	return Line{
		Card: c.UUID, GPUInstance: gpu.NoInstance, Cause: cause,
		Weight: sharing.One(), Part: part, Memory: memory,
	}
}

func freeLine(c Card) Line { return restLine(c, sharing.CauseFree, sharing.One(), sharing.One()) }

// begun is an account that a meter has taken up at a moment.
func begun(at Instant) *Account {
	a := NewAccount()
	a.Begin(Begin{LedgerID: "ledger", Node: "node", Policy: "blend"}, at)
	return a
}

// seen is an Observation of cards and lines.
func seen(at Instant, cards []Card, lines ...Line) Observation {
	return Observation{At: at, Cards: cards, Lines: lines}
}

// kinds are what records say, in short.
func kinds(records []Record) []Kind {
	var out []Kind
	for _, r := range records {
		out = append(out, r.Body.Kind())
	}
	return out
}

// find is the first body of a type among records.
func find[B Body](records []Record) (body B, found bool) {
	for _, r := range records {
		if b, ok := r.Body.(B); ok {
			return b, true
		}
	}
	return body, false
}

// written is an account as it is written.
func written(t interface {
	Helper()
	Fatal(args ...any)
}, a *Account) string {
	t.Helper()
	data, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// seriesTotal is the sum over the series of a namespace.
func seriesTotal(t *Totals, namespace string) Amount {
	var sum Amount
	for _, s := range t.Series {
		if s.Namespace == namespace {
			sum = sum.plus(s.Amount)
		}
	}
	return sum
}

// podTotalOf is the sum over the series of a pod.
func podTotalOf(t *Totals, name, uid string) Amount {
	var sum Amount
	for _, p := range t.Pods {
		if p.PodSeries.Pod == name && p.PodUID == uid {
			sum = sum.plus(p.Amount)
		}
	}
	return sum
}

// wantGPU compares a total in GPU-milliseconds.
func wantGPU(t *testing.T, what string, got sharing.Fraction, want int64) {
	t.Helper()
	if !got.Equal(fraction(want, 1)) {
		t.Errorf("%s is %s, want %d", what, got, want)
	}
}

// checkConservation says what of a card does not add up.
func checkConservation(t *Totals) error {
	for _, c := range t.Cards {
		var rest, late Amount
		for _, amount := range c.Unallocated {
			rest = rest.plus(amount)
		}
		for _, amount := range c.Corrected {
			late = late.plus(amount)
		}
		left, right := c.Capacity.plus(late), c.Allocated.plus(rest)
		if !left.GPU.Equal(right.GPU) || !left.Memory.Equal(right.Memory) || !left.Energy.Equal(right.Energy) {
			return fmt.Errorf("GPU %s: capacity and corrected are %v, allocated and the rest %v", c.UUID, left, right)
		}
		basis := sharing.Fraction{}
		for _, energy := range c.AllocatedEnergy {
			basis = basis.Add(energy)
		}
		if !basis.Equal(c.Allocated.Energy) {
			return fmt.Errorf("GPU %s: energy by basis is %s, allocated %s", c.UUID, basis, c.Allocated.Energy)
		}
	}
	var cards, series Amount
	for _, c := range t.Cards {
		cards = cards.plus(c.Allocated)
	}
	for _, s := range t.Series {
		series = series.plus(s.Amount)
	}
	if !cards.GPU.Equal(series.GPU) || !cards.Memory.Equal(series.Memory) || !cards.Energy.Equal(series.Energy) {
		return fmt.Errorf("the cards' allocated is %v, the series come to %v", cards, series)
	}
	return nil
}
