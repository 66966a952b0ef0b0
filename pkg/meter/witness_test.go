// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

func TestWhatOthersHeardIsFoldedAtOnceAndItsRepetitionWaits(t *testing.T) {
	a := newAlarming()
	rules := someRules(t)
	change := func(c *Config) { every(a, 30*time.Second)(c); c.Health = rules }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		after(5 * time.Second)
		heard := []health.Condition{{Subject: health.WholeCard("GPU-a"), Kind: "xid_79", XID: 79, Class: health.ClassNode, Since: time.Now(), Last: time.Now(), Count: 1}}
		unknown := append(heard[:1:1], heard[0])
		unknown[1].GPU = "GPU-elsewhere"
		mt.Witness("plugin", nil)
		mt.Witness("plugin", unknown)
		after(time.Millisecond)
		s := mt.Latest()
		if statusOf(t, s, "GPU-a") != health.Unhealthy || s.Totals.Ticks != 2 || s.Totals.Alarmed != 1 {
			t.Errorf("a moment after it was handed over: %v, %+v", statusOf(t, s, "GPU-a"), s.Totals)
		}
		for range 15 {
			mt.Witness("plugin", unknown)
			after(time.Second)
		}
		if s := mt.Latest(); s.Totals.Ticks != 2 {
			t.Errorf("the same again and again makes %d ticks", s.Totals.Ticks)
		}
	})
}
