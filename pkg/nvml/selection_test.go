// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Who reads cards alone wants the whole card's memory and profiling of a card with instances too.
func TestACardSpeaksForInstancesThatAreNotSelected(t *testing.T) {
	for text, want := range map[string]struct {
		samples    int
		used, busy string
	}{
		"f":      {11, "scope", "scope"},
		"g":      {8, "1000", "0.8"},
		"g+i":    {11, "scope", "scope"},
		"g+i:1":  {9, "scope", "scope"},
		"g:0":    {1, "1000", "0.8"},
		"g+i:99": {8, "1000", "0.8"},
	} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(modelH100())
				mixed(m, 0)
				gpus, err := gpu.ParseSelection(text)
				if err != nil {
					t.Fatal(err)
				}
				s := m.source(t, Config{GPUs: gpus})
				for _, gone := range []bool{false, true} {
					m.change(0, func(b *board) { b.lost = gone })
					read(t, s, 252, 1002)
					time.Sleep(gpmClosest)
					r := read(t, s, 252, 1002)
					used, busy := want.used, want.busy
					if gone && used != "scope" {
						used, busy = "lost", "lost"
					}
					if u, b := show(valueOf(t, r, 0, 252)), show(valueOf(t, r, 0, 1002)); len(r.Samples) != want.samples || u != used || b != busy {
						t.Errorf("lost %t: %d samples; the card uses %s MiB and is busy %s, want %s and %s", gone, len(r.Samples), u, b, used, busy)
					}
				}
			})
		})
	}
}
