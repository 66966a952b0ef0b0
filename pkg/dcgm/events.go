// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// cursor is how far an entity's XIDs have been told: all samples older than ts, and told of
// those at ts. DCGM shows the last XID for ever with the time it had, so that only the times
// tell a code that repeats from one that is shown again.
type cursor struct {
	ts   int64
	told int
}

// xids tells each XID of one GPU once. It outlives the session: what was told is not told
// again after reconnecting to an engine that still has it, and what came in between is.
type xids struct {
	of      gpu.UUID
	cursors map[entity]cursor
	// from is where the samples are needed from, with those of that moment; valid while fresh is
	// set.
	from  int64
	fresh bool
}

// begin forgets what one reading has shown, before the next is looked at.
func (x *xids) begin() {
	if x.cursors == nil {
		x.cursors = map[entity]cursor{}
	}
	x.fresh = false
}

// seen looks at the last XID of an entity. since is when the entity was first watched, on the
// engine's clock, in microseconds. What came before is no event of ours, however long the
// engine shows it, and also where it finds it later, in the kernel's log.
func (x *xids) seen(rec record, since int64) {
	c, known := x.cursors[rec.entity]
	if !known {
		c = cursor{ts: since - 1, told: math.MaxInt}
		x.cursors[rec.entity] = c
	}
	if _, present := rec.value().AsInt(); !present || rec.ts <= c.ts {
		return
	}
	if !x.fresh || c.ts < x.from {
		x.from, x.fresh = c.ts, true
	}
}

// take tells the XIDs among all samples from x.from on that have not been told.
func (x *xids) take(samples iter.Seq[record], tell func(entity, int64, int)) {
	counts := map[entity]cursor{}
	for rec := range samples {
		code, present := rec.value().AsInt()
		if rec.field != gpu.FieldXID || !present {
			continue
		}
		now := counts[rec.entity]
		if rec.ts > now.ts {
			now = cursor{ts: rec.ts}
		}
		now.told++
		counts[rec.entity] = now
		if c, known := x.cursors[rec.entity]; known && now.after(c) {
			tell(rec.entity, rec.ts, int(code))
		}
	}
	for e, now := range counts {
		if c, known := x.cursors[e]; known && now.after(c) {
			x.cursors[e] = now
		}
	}
}

// after reports whether c has told more than another cursor.
func (c cursor) after(other cursor) bool {
	return c.ts > other.ts || c.ts == other.ts && c.told > other.told
}

// all are the records in the order in which they came.
func (r *records) all() iter.Seq[record] {
	return func(yield func(record) bool) {
		for i := range r.len() {
			if !yield(r.at(i)) {
				return
			}
		}
	}
}

// instanceOfEntity is the GPU instance and compute instance that an entity is, in NVML's
// numbering, gpu.NoInstance for the whole card and for what is no longer there.
func instanceOfEntity(e entity, instances []instance) (gi, ci int) {
	for _, i := range instances {
		if e.group == groupGPUInstance && int(e.id) == i.id {
			return i.nvml, gpu.NoInstance
		}
		for _, p := range i.parts {
			if e.group == groupComputeInstance && int(e.id) == p.id {
				return i.nvml, p.nvml
			}
		}
	}
	return gpu.NoInstance, gpu.NoInstance
}

// maxEvents is how many events wait for a reading that succeeds; beyond it the oldest go.
const maxEvents = 1 << 16

// eventQueue are the events that no reading has told yet.
type eventQueue struct {
	waiting []gpu.Event
	dropped int
}

func (q *eventQueue) add(events []gpu.Event) {
	q.waiting = append(q.waiting, events...)
	if over := len(q.waiting) - maxEvents; over > 0 {
		q.waiting = slices.Delete(q.waiting, 0, over)
		q.dropped += over
	}
}

// take hands the events over, in the order of their times, and says how many were dropped.
func (q *eventQueue) take() (events []gpu.Event, dropped int) {
	events, dropped = q.waiting, q.dropped
	q.waiting, q.dropped = nil, 0
	slices.SortStableFunc(events, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) })
	return events, dropped
}

// micros is a time in DCGM's measure.
func micros(t time.Time) int64 { return t.UnixMicro() }

// timeOf is DCGM's time as ours, but not later than now: a sample is not from the future,
// whatever the clock of another host says.
func timeOf(ts int64, now time.Time) time.Time {
	if ts <= 0 {
		return now
	}
	if t := time.UnixMicro(ts); t.Before(now) {
		return t
	}
	return now
}
