// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// clockSamplesLimit bounds the memory of one GPU's history to 2 MiB.
const clockSamplesLimit = 1 << 17

// ClockReasons counts for each reason that can hold a GPU's clocks back. A reason's place is its bit in field 112: 0 GPU idle, 1 clocks setting,
// 2 software power cap, 3 hardware slowdown, 4 sync boost, 5 software thermal slowdown,
// 6 hardware thermal slowdown, 7 hardware power brake, 8 display clocks setting.
type ClockReasons [9]uint64

// add counts one sample, or takes it back with a step of -1.
func (c *ClockReasons) add(mask uint16, step int64) {
	for bit := range c {
		if mask&(1<<bit) != 0 {
			c[bit] += uint64(step)
		}
	}
}

// ClockWindow is what the last samples of one GPU say about its clocks.
type ClockWindow struct {
	// Reasons are the samples in which each was set.
	Reasons ClockReasons
	// Samples is how many samples with a value the window has, at least one.
	Samples int
}

// clockHistory is the samples of one GPU within the window, oldest first.
type clockHistory struct {
	samples []clockSample
	reasons ClockReasons
}

type clockSample struct {
	// at is in Unix nanoseconds, because a time.Time would double the history's size.
	at   int64
	mask uint16
}

func (h *clockHistory) add(at time.Time, mask uint16) {
	if len(h.samples) == clockSamplesLimit {
		h.forget(0, 1)
	}
	h.samples = append(h.samples, clockSample{at: at.UnixNano(), mask: mask})
	h.reasons.add(mask, 1)
}

// slide forgets what is outside of [from, to]. Samples later than now were taken before the
// clock was set back.
func (h *clockHistory) slide(from, to time.Time) {
	low, high, old, now := 0, len(h.samples), from.UnixNano(), to.UnixNano()
	for low < high && h.samples[low].at < old {
		low++
	}
	for high > low && h.samples[high-1].at > now {
		high--
	}
	h.forget(high, len(h.samples))
	h.forget(0, low)
}

func (h *clockHistory) forget(from, to int) {
	for _, s := range h.samples[from:to] {
		h.reasons.add(s.mask, -1)
	}
	h.samples = slices.Delete(h.samples, from, to)
}

// watchClocks takes in the reading's values of field 112 and slides every GPU's window.
func (t *tally) watchClocks(r *gpu.Reading, at time.Time) {
	column := slices.Index(r.Fields, gpu.FieldClockReasons)
	if column < 0 && len(t.histories) == 0 {
		return
	}
	for uuid, h := range t.histories {
		if h.slide(at.Add(-t.clockWindow), at); len(h.samples) == 0 {
			delete(t.histories, uuid)
		}
	}
	if column >= 0 {
		t.sampleClocks(r.Samples, column, at)
	}
	t.recentClocks = make(map[gpu.UUID]ClockWindow, len(t.histories))
	for uuid, h := range t.histories {
		t.recentClocks[uuid] = ClockWindow{Reasons: h.reasons, Samples: len(h.samples)}
	}
}

// sampleClocks counts how often each reason began. One that is set in a GPU's first sample
// began before anybody looked.
func (t *tally) sampleClocks(samples []gpu.Sample, column int, at time.Time) {
	clocks := maps.Clone(t.clocks)
	if clocks == nil {
		clocks = map[gpu.UUID]ClockReasons{}
	}
	for i := range samples {
		s := &samples[i]
		value, ok := s.Values[column].AsInt()
		if s.Entity.Kind != gpu.KindGPU || !ok {
			continue
		}
		mask, uuid := uint16(value)&(1<<len(ClockReasons{})-1), s.Entity.GPU
		total, seen := clocks[uuid]
		if seen {
			total.add(mask&^t.clockMasks[uuid], 1)
		}
		clocks[uuid], t.clockMasks[uuid] = total, mask
		if t.histories[uuid] == nil {
			t.histories[uuid] = &clockHistory{}
		}
		t.histories[uuid].add(at, mask)
	}
	t.clocks = clocks
}
