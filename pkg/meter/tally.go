// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// defaultWindow is how far back the windows look unless the Config says otherwise.
	defaultWindow = 5 * time.Minute
	// recentLimit bounds Snapshot.Recent. A GPU in a loop of errors can report hundreds
	// a second, and every reader of a snapshot walks the list.
	recentLimit = 4096
	// kindEventsDropped is the fault of more events than recentLimit within the window.
	kindEventsDropped = "events_dropped"
)

// XIDKey is what XIDs are counted by. The instances are gpu.NoInstance where the error
// concerns the whole card.
type XIDKey struct {
	GPU                          gpu.UUID
	GPUInstance, ComputeInstance int
	XID                          int
}

// tally remembers what snapshots must know of readings that are over. It hears each good
// reading once, in their order. What it has published it replaces and never modifies, and it
// does not allocate for a reading in which nothing happened. It is for the Meter's loop alone.
type tally struct {
	eventWindow, clockWindow time.Duration

	xids   map[XIDKey]uint64
	recent []gpu.Event

	clocks       map[gpu.UUID]ClockReasons
	recentClocks map[gpu.UUID]ClockWindow
	histories    map[gpu.UUID]*clockHistory
	// clockMasks are the reasons in each GPU's last sample.
	clockMasks map[gpu.UUID]uint16
}

func newTally(eventWindow, clockWindow time.Duration) *tally {
	return &tally{
		eventWindow: eventWindow, clockWindow: clockWindow,
		histories: map[gpu.UUID]*clockHistory{}, clockMasks: map[gpu.UUID]uint16{},
	}
}

// hear takes in a reading that was complete at the given moment of its source's clock.
func (t *tally) hear(r *gpu.Reading, at time.Time) []Fault {
	t.countXIDs(r.Events)
	faults := t.keepRecent(r.Events, at)
	t.watchClocks(r, at)
	return faults
}

func (t *tally) countXIDs(events []gpu.Event) {
	own := false
	for _, e := range events {
		if e.Kind != gpu.EventXID {
			continue
		}
		if !own {
			xids := make(map[XIDKey]uint64, len(t.xids)+1)
			maps.Copy(xids, t.xids)
			t.xids, own = xids, true
		}
		t.xids[XIDKey{GPU: e.GPU, GPUInstance: e.GPUInstance, ComputeInstance: e.ComputeInstance, XID: e.Code}]++
	}
}

// keepRecent slides the window of events to the moment at.
func (t *tally) keepRecent(events []gpu.Event, at time.Time) []Fault {
	if len(events) > 0 {
		recent := slices.Concat(t.recent, events)
		for i := range recent {
			if recent[i].Time.IsZero() {
				recent[i].Time = at
			}
		}
		slices.SortStableFunc(recent, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) })
		t.recent = recent
	}
	// An event more than a window ahead was seen before the clock was set back, and would
	// otherwise stay for as long as the clock was wrong.
	low := firstEvent(t.recent, at.Add(-t.eventWindow))
	high := firstEvent(t.recent, at.Add(t.eventWindow+1))
	dropped := max(high-low-recentLimit, 0)
	t.recent = t.recent[low+dropped : high : high]
	if dropped == 0 {
		return nil
	}
	return []Fault{{
		Source: SourceTelemetry, Kind: kindEventsDropped,
		Text: fmt.Sprintf("more than %d events within %v; the oldest %d are only in the totals now (shorten the event window)", recentLimit, t.eventWindow, dropped),
	}}
}

// firstEvent is the place of the first event that is no older than the moment.
func firstEvent(events []gpu.Event, moment time.Time) int {
	i, _ := slices.BinarySearchFunc(events, moment, func(e gpu.Event, moment time.Time) int { return e.Time.Compare(moment) })
	return i
}
