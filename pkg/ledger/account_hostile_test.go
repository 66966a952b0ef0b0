// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"pgregory.net/rapid"
)

// stranger draws records that nobody made sure of.
type stranger struct{ *rapid.T }

func (s stranger) number(what string) int64 {
	return rapid.SampledFrom([]int64{-1, 0, 1, 1, 2, 2, 3, 1000, maxClock, maxClock + 1}).Draw(s.T, what)
}

func (s stranger) part() string {
	return rapid.SampledFrom([]string{"1", "1", "1/2", "1/2", "1/3", "0", "-1", "2", "", "1/0", "0.25"}).Draw(s.T, "part")
}

func (s stranger) open() Open {
	o := Open{
		ID: uint64(rapid.IntRange(0, 6).Draw(s.T, "id")), Card: rapid.IntRange(0, 3).Draw(s.T, "card"),
		Device: gpu.UUID(rapid.SampledFrom([]string{"", "GPU-0", "MIG"}).Draw(s.T, "device")), GPUInstance: gpu.NoInstance,
		Part: s.part(), Memory: s.part(), Weight: s.part(),
		Seats: rapid.IntRange(-1, 3).Draw(s.T, "seats"), Of: rapid.IntRange(-1, 3).Draw(s.T, "of"),
	}
	if rapid.Bool().Draw(s.T, "held") {
		o.Namespace, o.Pod, o.Mode = "team", rapid.SampledFrom([]string{"p", "q"}).Draw(s.T, "pod"), sharing.ModeShared
		o.PodUID = rapid.SampledFrom([]string{"", "u"}).Draw(s.T, "uid")
	} else {
		o.Cause = rapid.SampledFrom([]sharing.Cause{sharing.CauseFree, sharing.CauseUnobserved, "odd"}).Draw(s.T, "cause")
	}
	return o
}

func (s stranger) numbers(what string) map[int]int64 {
	return rapid.MapOfN(rapid.IntRange(0, 3), rapid.Int64Range(-1, 5000), 0, 2).Draw(s.T, what)
}

func (s stranger) gap() *Gap {
	g := &Gap{
		Reason: rapid.SampledFrom([]string{GapRestart, GapReboot, GapStall, GapLost, "odd"}).Draw(s.T, "reason"),
		Span:   s.number("span"), Wall: s.number("wall"), Energy: s.numbers("energy"), Counters: s.numbers("counters"),
		Cards: rapid.SliceOfN(rapid.IntRange(0, 2), 0, 2).Draw(s.T, "cards"),
	}
	for range rapid.IntRange(0, 2).Draw(s.T, "bridges") {
		g.Bridged = append(g.Bridged, Bridge{ID: uint64(rapid.IntRange(0, 6).Draw(s.T, "bridge")), Part: s.part(), Memory: s.part()})
	}
	return g
}

func (s stranger) body(a *Account) Body {
	switch rapid.IntRange(0, 10).Draw(s.T, "kind") {
	case 0:
		n := rapid.IntRange(0, 3).Draw(s.T, "card")
		return &CardSeen{N: n, Card: Card{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", n)), Memory: s.number("memory"), Model: rapid.SampledFrom([]string{"", "A", "B"}).Draw(s.T, "model")}}
	case 1, 2, 3:
		o := s.open()
		return &o
	case 4:
		return &Close{ID: uint64(rapid.IntRange(0, 6).Draw(s.T, "closed"))}
	case 5:
		return s.gap()
	case 6:
		return &Use{Energy: s.numbers("energy"), Counters: s.numbers("counters"), Basis: BasisEngine, Busy: map[gpu.UUID]int64{"GPU-0": s.number("busy")}}
	case 7:
		return &Begin{LedgerID: rapid.SampledFrom([]string{"ledger", "ledger", "odd"}).Draw(s.T, "ledger"), BootID: rapid.SampledFrom([]string{"b", "c"}).Draw(s.T, "boot")}
	case 8:
		o := s.open()
		return &Correction{Card: o.Card, To: o, From: sharing.CauseUnobserved, Span: s.number("span"), Part: s.part(), Memory: s.part(), Refers: 1}
	case 9:
		return &Carry{State: json.RawMessage(`{"version":1,"seq":` + fmt.Sprint(a.seq) + `}`)}
	}
	return &Beat{}
}

func TestNoRecordMakesAnAccountThatDoesNotAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := stranger{t}
		a := begun(instant("b", 5000))
		for range rapid.IntRange(5, 60).Draw(t, "records") {
			at := Instant{BootID: rapid.SampledFrom([]string{"b", "b", "b", "c"}).Draw(t, "boot id"), Boot: a.at.Boot + rapid.Int64Range(-1, 3).Draw(t, "passed")}
			before := written(t, a)
			if err := a.Apply(Record{Seq: a.seq + 1, At: at, Body: s.body(a)}); err != nil {
				if diff := cmp.Diff(before, written(t, a)); diff != "" {
					t.Fatalf("%v, and it changed:\n%s", err, diff)
				}
				continue
			}
			if err := checkConservation(a.Totals()); err != nil {
				t.Fatal(err)
			}
			checkCarried(t, a)
		}
	})
}
