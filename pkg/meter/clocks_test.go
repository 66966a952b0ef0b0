// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// clocked is newMachine with field 112 as its second field: GPU-a is idle and capped by power, GPU-b does not say.
func clocked() *machine {
	m := newMachine()
	m.reading.Fields = []gpu.FieldID{150, gpu.FieldClockReasons}
	m.reading.Samples = []gpu.Sample{
		{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-a"}, Values: []gpu.Value{gpu.Int(40), gpu.Int(1<<0 | 1<<2)}},
		{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-b"}, Values: []gpu.Value{gpu.Int(40), gpu.Absent(gpu.ReasonNotSupported)}},
		{Entity: gpu.Entity{Kind: gpu.KindGPUInstance, GPU: "GPU-a", ID: 1}, Values: []gpu.Value{gpu.Int(40), gpu.Int(1 << 3)}},
	}
	return m
}

func say(m *machine, mask int64) {
	m.set(func(m *machine) {
		m.reading.Samples = slices.Clone(m.reading.Samples)
		m.reading.Samples[0].Values = []gpu.Value{gpu.Int(40), gpu.Int(mask)}
	})
}

func TestClockReasonsCountByBeginningAndBySampleOfAWindow(t *testing.T) {
	m := clocked()
	turning(t, m, func(c *Config) { c.ClockWindow = 30 * time.Second }, func(t *testing.T, mt *Meter) {
		check := func(when string, total ClockReasons, window ClockReasons, samples int) {
			t.Helper()
			s := mt.Latest()
			if diff := cmp.Diff(map[gpu.UUID]ClockReasons{"GPU-a": total}, s.Totals.Clocks); diff != "" {
				t.Errorf("%s: totals (-want +got):\n%s", when, diff)
			}
			want := map[gpu.UUID]ClockWindow{}
			if samples > 0 {
				want["GPU-a"] = ClockWindow{Reasons: window, Samples: samples}
			}
			if diff := cmp.Diff(want, s.RecentClocks); diff != "" {
				t.Errorf("%s: window (-want +got):\n%s", when, diff)
			}
		}
		check("one sample, which is no beginning", ClockReasons{}, ClockReasons{0: 1, 2: 1}, 1)
		say(m, 1<<8|1<<9|1<<40)
		after(10 * time.Second)
		check("the last reason, and bits that no reason has", ClockReasons{8: 1}, ClockReasons{0: 1, 2: 1, 8: 1}, 2)
		say(m, 0)
		after(20 * time.Second)
		check("a window and its border", ClockReasons{8: 1}, ClockReasons{0: 1, 2: 1, 8: 1}, 4)
		after(10 * time.Second)
		check("past the first sample", ClockReasons{8: 1}, ClockReasons{8: 1}, 4)
		m.set(func(m *machine) { m.reading.Samples = m.reading.Samples[1:] })
		after(30 * time.Second)
		check("a GPU that says no more, a window ago", ClockReasons{8: 1}, ClockReasons{}, 1)
		after(10 * time.Second)
		check("a GPU that says no more, and longer ago", ClockReasons{8: 1}, ClockReasons{}, 0)
	})
}

func TestAReadingThatStandsInIsNoSample(t *testing.T) {
	m := clocked()
	turning(t, m, func(c *Config) { c.Interval = 10 * time.Second }, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.err = errors.New("gone") })
		after(20 * time.Second)
		if s := mt.Latest(); s.RecentClocks["GPU-a"].Samples != 1 {
			t.Errorf("window %v, totals %v; want the one sample that there was", s.RecentClocks, s.Totals.Clocks)
		}
		after(10 * time.Second)
		if s := mt.Latest(); s.RecentClocks != nil || len(s.Totals.Clocks) != 1 {
			t.Errorf("window %v, totals %v; want no window of what is not known any more", s.RecentClocks, s.Totals.Clocks)
		}
		m.set(func(m *machine) { m.err = nil })
		after(10 * time.Second)
		if s := mt.Latest(); s.RecentClocks["GPU-a"].Samples != 2 || s.Totals.Clocks["GPU-a"] != (ClockReasons{}) {
			t.Errorf("window %v, totals %v; want both samples, and no beginning of what went on", s.RecentClocks, s.Totals.Clocks)
		}
	})
}

func TestWithoutItsFieldNobodyHasClocks(t *testing.T) {
	m := clocked()
	turning(t, m, func(c *Config) { c.ClockWindow = time.Minute }, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.reading.Fields = []gpu.FieldID{150, 203} })
		after(2 * time.Minute)
		if s := mt.Latest(); len(s.RecentClocks) != 0 || len(s.Totals.Clocks) != 1 {
			t.Errorf("window %v, totals %v; want the window to end with its samples", s.RecentClocks, s.Totals.Clocks)
		}
	})
	turning(t, newMachine(), nil, func(t *testing.T, mt *Meter) {
		if s := mt.Latest(); s.RecentClocks != nil || s.Totals.Clocks != nil {
			t.Errorf("window %v, totals %v; nobody asked", s.RecentClocks, s.Totals.Clocks)
		}
	})
}

func TestAClockWindowThatNoMemoryHoldsIsRefused(t *testing.T) {
	_, err := New(Config{Telemetry: newMachine(), Interval: time.Second, ClockWindow: 37 * time.Hour})
	if err == nil || !strings.Contains(err.Error(), "36h24m32s") {
		t.Errorf("error %v, want one with the longest window", err)
	}
	mt, err := New(Config{Telemetry: newMachine(), Interval: time.Second})
	if err != nil || mt.cfg.ClockWindow != 5*time.Minute || mt.cfg.EventWindow != 5*time.Minute {
		t.Errorf("windows %v and %v (%v), want five minutes", mt.cfg.EventWindow, mt.cfg.ClockWindow, err)
	}
}

func TestAReasonCountsEachTimeItBegins(t *testing.T) {
	m := clocked()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		for _, mask := range []int64{1 << 2, 0, 1<<2 | 1<<5, 1 << 5, 1 << 5, 1 << 2} {
			say(m, mask)
			after(mt.cfg.Interval)
		}
		if got, want := mt.Latest().Totals.Clocks["GPU-a"], (ClockReasons{2: 2, 5: 1}); got != want {
			t.Errorf("beginnings %v, want %v", got, want)
		}
	})
}

// Whatever the source's clock does, a window has the samples that a look through all of them finds.
func TestAClockWindowIsWhatItsSamplesAddUpTo(t *testing.T) {
	type sample struct {
		at   time.Time
		mask int64
	}
	rapid.Check(t, func(t *rapid.T) {
		y, at := newTally(time.Minute, time.Minute), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var all []sample
		for range rapid.IntRange(1, 40).Draw(t, "ticks") {
			at = at.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 10, 29, 61, 0, -5, -70}).Draw(t, "step")) * time.Second)
			all = slices.DeleteFunc(all, func(s sample) bool { return s.at.Before(at.Add(-time.Minute)) || s.at.After(at) })
			r := gpu.Reading{Fields: []gpu.FieldID{gpu.FieldClockReasons}}
			if rapid.Bool().Draw(t, "answers") {
				s := sample{at, rapid.Int64Range(0, 1<<9-1).Draw(t, "mask")}
				all = append(all, s)
				r.Samples = []gpu.Sample{{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-a"}, Values: []gpu.Value{gpu.Int(s.mask)}}}
			}
			y.hear(&r, at)
			want := ClockWindow{Samples: len(all)}
			for _, s := range all {
				for bit := range want.Reasons {
					want.Reasons[bit] += uint64(s.mask >> bit & 1)
				}
			}
			got, there := y.recentClocks["GPU-a"]
			if got != want || there != (len(all) > 0) {
				t.Fatalf("%v (there: %v), want %v", got, there, want)
			}
		}
	})
}

func TestAClockHistoryIsBounded(t *testing.T) {
	var h clockHistory
	at := time.Unix(1e9, 0)
	for i := range clockSamplesLimit + 3 {
		mask := uint16(2)
		if i < 3 {
			mask = 1
		}
		h.add(at.Add(time.Duration(i)), mask)
	}
	if len(h.samples) != clockSamplesLimit || h.reasons != (ClockReasons{1: clockSamplesLimit}) {
		t.Errorf("%d samples, %v; want the last %d", len(h.samples), h.reasons, clockSamplesLimit)
	}
}
