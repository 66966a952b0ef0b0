// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// TestEveryXIDOfABadDayIsCountedOnce holds the counters on the page against a twin of the
// node that is asked twice only, at the beginning and at the end: through lost GPUs, slow and
// stuck reads and a repartition nothing is counted twice, and nothing is missed.
func TestEveryXIDOfABadDayIsCountedOnce(t *testing.T) {
	type place struct{ uuid, instance, xid string }
	playingWith(t, "bad-day", 15*time.Second, computedRows, exporter.Config{}, func(t *testing.T, s station) {
		twin, err := sim.NewNode(s.node.Scenario(), sim.Options{Start: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		read := func() gpu.Reading {
			t.Helper()
			r, err := twin.Read(t.Context(), []gpu.FieldID{gpu.FieldXIDErrorsTotal})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		read()
		pass(18 * time.Minute)
		want := map[place]float64{}
		repeated := false
		for _, e := range read().Events {
			if e.Kind != gpu.EventXID {
				continue
			}
			at := place{uuid: string(e.GPU), xid: strconv.Itoa(e.Code)}
			if e.GPUInstance != gpu.NoInstance {
				at.instance = strconv.Itoa(e.GPUInstance)
			}
			want[at]++
			repeated = repeated || want[at] > 1
		}
		if len(want) < 5 || !repeated {
			t.Fatalf("the bad day is not bad enough to tell: %v", want)
		}
		page := parsePage(t, s.page())
		for _, family := range []string{"gpumeter_xid_errors_total", "DCGM_EXP_XID_ERRORS_TOTAL"} {
			got := map[place]float64{}
			for _, m := range page[family].GetMetric() {
				if n := valueOf(m); n != 0 {
					l := labelsOf(m)
					got[place{l["UUID"], l["GPU_I_ID"], l["xid"]}] += n
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-happened +counted):\n%s", family, diff)
			}
		}
	})
}
