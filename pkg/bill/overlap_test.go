// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestAGPUThatTwoLedgersChargeForDoesNotAddUp(t *testing.T) {
	const whole = 86400
	read := func(f *fleet, node int, at ...time.Time) { f.Nodes[node].Readings = at }
	for _, tt := range []struct {
		name          string
		first, second int64
		change        func(f *fleet)
		filtered      bool
		// beyond is in seconds.
		beyond int64
	}{
		{name: "two exporters on one node", first: whole, second: whole, beyond: whole - 2 - 17},
		{name: "though only a namespace was asked for", first: whole, second: whole, filtered: true, beyond: whole - 2 - 17},
		{name: "one of them for an hour", first: whole, second: 3600, beyond: 3600 - 2 - 17},
		{name: "it moved", first: whole / 3, second: whole / 3 * 2},
		{name: "it moved, and the clocks were not quite right", first: whole / 3, second: whole/3*2 + 15},
		{name: "it moved, and the first was last read an hour before the start", first: whole/3 + 3600, second: whole / 3 * 2, change: func(f *fleet) {
			read(f, 0, day(1).Add(-time.Hour), day(2))
		}},
		{name: "nobody knows when it was read", first: whole / 3, second: whole / 3 * 2, change: func(f *fleet) {
			read(f, 0)
			read(f, 1, time.Time{}, time.Time{})
		}},
		{name: "one ledger whose clock was set back", first: whole + 3600},
		{name: "two GPUs", first: whole, second: whole, change: func(f *fleet) {
			for i := range f.Rest {
				if f.Rest[i].Node == 1 {
					f.Rest[i].Card = "GPU-1"
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(day(1), day(2))
			f.node("node-2", nil)
			for node, s := range []int64{tt.first, tt.second} {
				for _, cause := range []sharing.Cause{"", sharing.CauseFree} {
					f.rest(0, cause, s, func(r *ledger.Rest) { r.Node = node })
				}
			}
			if tt.change != nil {
				tt.change(f)
			}
			b := bill(t, f, Options{Filtered: tt.filtered})
			if (b.Difference+second-1)/second != tt.beyond || (len(b.Unbalanced) == 1) != (tt.beyond > 0) {
				t.Fatalf("difference %d µs, want %d s; %q", b.Difference, tt.beyond, b.Unbalanced)
			}
			if tt.beyond == 0 {
				return
			}
			for _, want := range []string{"GPU-0", "ledger of node-1", "ledger of node-2", "2026-03-01T00:00:00Z", "86400"} {
				if !strings.Contains(b.Unbalanced[0], want) {
					t.Errorf("no %q in %q", want, b.Unbalanced[0])
				}
			}
		})
	}
}

func TestAGPUIsHeldAgainstEachWindow(t *testing.T) {
	f := newFleet(day(1), day(2), day(3))
	f.node("node-2", nil)
	for node := range 2 {
		for window := range 2 {
			s := int64(43200)
			if window == 1 {
				s = 86400
			}
			for _, cause := range []sharing.Cause{"", sharing.CauseFree} {
				f.rest(window, cause, s, func(r *ledger.Rest) { r.Node = node })
			}
		}
	}
	b := bill(t, f, Options{GroupBy: []Dimension{ByDay}})
	if len(b.Unbalanced) != 1 || !strings.Contains(b.Unbalanced[0], "2026-03-02T00:00:00Z to 2026-03-03") {
		t.Errorf("%q", b.Unbalanced)
	}
}
