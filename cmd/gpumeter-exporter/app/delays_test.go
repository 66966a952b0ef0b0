// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// However rarely the exporter reads, an XID that breaks a GPU is told at once.
func TestAnXIDIsHeardLongBeforeTheNextTick(t *testing.T) {
	cfg := falling(t, "79")
	const interval = 30 * time.Minute
	cfg.Interval = "30m"
	r := start(t, cfg)
	s := r.until(t, "the GPU is unhealthy", isUnhealthy)
	if s.Interval != interval || s.Totals.Alarmed == 0 || s.Late > interval/2 {
		t.Errorf("interval %v, %+v", s.Interval, s.Totals)
	}
}

// Whatever withdraws a GPU is told within seconds, from a tick beside a grid that would be far too late. How
// many seconds is logged: it is a bound here, and no measure.
func TestWhatWithdrawsAGPUOfDCGMIsHeardLongBeforeTheNextTick(t *testing.T) {
	const ready = "gpus 2 h100\nfield 0 1523 0\nfield 0 395 0\nfield 0 346 0"
	for name, does := range map[string]string{
		"an XID":            "xid 0 79",
		"a recovery action": "field 0 1523 1",
		"a failed remap":    "field 0 395 1",
		"lost":              "lost 0",
		"detached":          "detach 0",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim := pretendDCGM(t, ready)
			cfg := onDCGM(sim)
			cfg.Interval = "30m"
			r := start(t, cfg)
			s := r.until(t, "the first tick", func(s *meter.Snapshot) bool { return len(s.Reading.Samples) > 0 })
			card := s.Reading.Devices[0].UUID
			r.does(t, sim, does)
			began := time.Now()
			s = r.until(t, "GPU 0 is unhealthy", func(s *meter.Snapshot) bool { return withdrawn(s, card) })
			t.Logf("after %v", time.Since(began).Round(100*time.Millisecond))
			if withdrawn(s, s.Reading.Devices[len(s.Reading.Devices)-1].UUID) {
				t.Errorf("the other GPU is withdrawn too: %+v", s.Health.Verdicts)
			}
		})
	}
}

func withdrawn(s *meter.Snapshot, device gpu.UUID) bool {
	v, _ := s.Health.Verdict(device)
	return v.Status == health.Unhealthy
}
