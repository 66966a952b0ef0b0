// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// seen is what a look at a GPU has shown beside its values.
type seen struct {
	// unsampled says that the engine has taken no sample yet, unwatched that watches are gone,
	// changed that the devices must be described anew.
	unsampled, unwatched, changed bool
	// nodeUnwatched says that a watch of what the node has is gone: it goes with any of the GPUs.
	nodeUnwatched bool
	// silent is why the GPU says nothing, ReasonNone if it says something.
	silent gpu.Reason
	// asked and answered count what the card itself was asked for and had, known what it said of
	// its identity, which the engine remembers longer.
	asked, answered, known int
	// bound is the time of the last bind event.
	bound      int64
	boundKnown bool
	// newest is the time of the newest sample, before that of the look before. advanced is when
	// we saw it change, on a clock of our own: the engine's may be another host's, or be set back.
	newest, before int64
	advanced       time.Time
	// clock is the time of the newest UUID, by which the engine's own clock is known, self that
	// of the card's.
	clock, self int64
}

func (s *seen) begin() {
	s.newest, s.before = 0, s.newest
	s.clock = 0
	s.unsampled, s.unwatched, s.nodeUnwatched, s.changed, s.silent = false, false, false, false, gpu.ReasonNone
	s.asked, s.answered, s.known = 0, 0, 0
}

// end sums up what a look has shown.
func (s *seen) end() {
	if s.newest != s.before || s.advanced.IsZero() {
		s.advanced = time.Now()
	}
	if s.silent == gpu.ReasonNone && s.answered == 0 && (s.asked > 0 || s.known == 0) {
		s.silent = gpu.ReasonBlank
	}
}

// look reads everything that is asked for. A group that cannot be read costs what is read of
// it, unless it is the one by which the GPU itself is known.
func (c *card) look(job cardJob) cardAnswer {
	c.describe()
	if c.rows.cols != job.cols || !sameSlice(c.described, c.devices) {
		c.layOut(job.cols)
	}
	c.rows.empty()
	c.seen.begin()
	c.xids.begin()
	a := cardAnswer{driver: c.told.attributes.driver, rows: &c.rows}
	for i, s := range c.sets {
		err := c.latest(s, job.cols)
		if err == nil {
			continue
		}
		a.troubles = append(a.troubles, troubleOf(err))
		if c.ss.over() || i == 0 {
			a.rows = nil
			break
		}
		c.seen.unwatched = true
	}
	c.seen.end()
	if c.seen.silent == gpu.ReasonNone {
		c.rows.attest(c.seen.clock)
	}
	a.devices, a.events = c.devices, c.newEvents()
	// Once, because the engine may never have what is missing.
	a.unsampled = c.fresh && (c.seen.unsampled || !c.told.complete())
	c.fresh = false
	if c.refused != nil {
		a.troubles = append(a.troubles, troubleOf(c.refused))
	}
	if quiet := time.Since(c.seen.advanced); quiet > c.staleAfter {
		c.rows.expire()
		a.troubles = append(a.troubles, trouble{gpu.ReasonStale, fmt.Sprintf(
			"DCGM has taken no sample of GPU %d for %s: its driver may hang", c.id, quiet.Round(time.Second))})
	}
	return a
}

// lookAgain looks once more in the same reading. Events are told once, by whichever look.
func (c *card) lookAgain(job cardJob, before cardAnswer) cardAnswer {
	a := c.look(job)
	a.events = append(before.events, a.events...)
	a.unsampled = a.unsampled || before.unsampled
	return a
}

// layOut makes a row for the card and each instance.
func (c *card) layOut(cols *columns) {
	c.described = c.devices
	c.rows.patience = c.frozenAfter
	c.rows.layOut(cols, spotsOf(c.devices, c.gpus), func(s spot) []gpu.Value {
		row := cols.row(s.Kind, s.divided, gpu.ReasonBlank)
		for i, id := range cols.fields {
			if id.Profiling() && row[i].Reason() == gpu.ReasonBlank && !c.offers(id) {
				row[i] = gpu.Absent(c.why)
			}
		}
		return row
	})
}

// latest reads one group into the rows; without columns it only looks at what is watched for
// the source itself.
func (c *card) latest(s *set, cols *columns) error {
	for _, list := range s.read {
		if err := c.ss.latest(s.id, list.id, &c.records); err != nil {
			if s == c.sets[0] {
				c.seen.unwatched = true
			}
			return c.ss.fail(fmt.Errorf("reading %s: %w", s.plan.name, err))
		}
		for i := range c.records.len() {
			rec := c.records.at(i)
			if kind, _ := ownWatch(rec.field); kind != watchXIDs && kind != watchBind {
				c.seen.unsampled = c.seen.unsampled || rec.status == stNoData
			}
			if s == c.sets[0] {
				c.notice(rec)
			}
			if cols == nil {
				continue
			}
			c.noteLevel(rec)
			if col, asked := cols.first[rec.field]; asked {
				c.put(s, cols.scopes[col], col, rec)
			}
		}
	}
	return nil
}

// notice looks at what is watched for the source itself.
func (c *card) notice(rec record) {
	self := rec.entity == entity{groupGPU, c.id}
	switch rec.field {
	case gpu.FieldXID:
		c.xids.seen(rec, c.since())
	case gpu.FieldBindEvent:
		c.noticeBind(rec)
	case gpu.FieldUUID:
		c.seen.unwatched = c.seen.unwatched || rec.status == stNotWatched
		c.noticeUUID(rec, self)
	case gpu.FieldMIGMode:
		if mode, ok := rec.value().AsInt(); ok && self && (mode == 1) != c.told.attributes.migEnabled {
			c.told.attributes.migEnabled = mode == 1
			c.redescribe()
		}
	}
}

// noticeUUID sees that a device is another one than it was.
func (c *card) noticeUUID(rec record, self bool) {
	uuid, ok := rec.value().AsText()
	c.seen.newest = max(c.seen.newest, rec.ts)
	c.seen.clock = max(c.seen.clock, rec.ts)
	if self && ok {
		if rec.ts < c.seen.self {
			// The clock was set back, and says nothing of what was before.
			c.formers = nil
		}
		c.seen.self = rec.ts
	}
	switch {
	case self && rec.status == stGPUIsLost:
		c.seen.silent = gpu.ReasonLost
	case !ok:
	case self:
		c.seen.known++
		c.suspect = c.suspect || uuid != c.told.attributes.uuid
	case rec.entity.group == groupComputeInstance:
		c.noticePart(rec, uuid)
	}
}

// since is when XIDs were first watched, by the clock that they are told in.
func (c *card) since() int64 {
	since := micros(c.watchedSince)
	if c.ss.local || c.seen.clock == 0 {
		return since
	}
	// Another host's clock, which is as far from ours as its newest sample; that is a little
	// older than now, so that rather too much than too little counts as new.
	return since + c.seen.clock - micros(time.Now())
}

// redescribe has the devices described anew in the same reading.
func (c *card) redescribe() { c.unfinished, c.tried, c.seen.changed = true, time.Time{}, true }

// noticeBind sees that GPUs were bound or unbound, after which any of them may be another one.
func (c *card) noticeBind(rec record) {
	const done = 2
	event, ok := rec.value().AsInt()
	if ok && event == done && rec.ts > c.seen.bound {
		c.suspect = c.suspect || c.seen.boundKnown
		c.seen.bound = rec.ts
	}
	c.seen.boundKnown = true
}

// put places a record in the rows that it belongs to.
func (c *card) put(s *set, scope gpu.Scope, col int, rec record) {
	v := rec.value()
	if rec.status == stNotWatched {
		v = gpu.Absent(s.unwatchedReason(rec.field))
		c.seen.nodeUnwatched = c.seen.nodeUnwatched || scope == gpu.ScopeNode && v.Reason() == gpu.ReasonBlank
	}
	if _, own := ownWatch(rec.field); !own {
		if rec.entity == (entity{groupGPU, c.id}) {
			c.seen.asked++
			if v.Present() {
				c.seen.answered++
			} else if rec.status == stGPUIsLost {
				c.seen.silent = gpu.ReasonLost
			}
		}
		c.seen.newest = max(c.seen.newest, rec.ts)
	}
	switch {
	case scope == gpu.ScopeNode:
		c.rows.putEverywhere(col, v)
	case rec.field == gpu.FieldXID:
		if v.Reason() == gpu.ReasonBlank {
			// Alerts are written for the 0 that DCGM before 4.5 had for none.
			v = gpu.Int(0)
		}
		c.rows.putXID(col, v, rec.ts)
	case c.former(rec):
	default:
		c.rows.put(rec.entity, col, v, rec.ts)
	}
}

// newEvents are the XIDs that were not told before. It asks for them only where the last one
// is newer than what was told, which hardly ever is.
func (c *card) newEvents() []gpu.Event {
	if !c.xids.fresh || len(c.sets) == 0 {
		return nil
	}
	own := c.sets[0]
	for _, list := range own.watched[watchXIDs] {
		// Whether DCGM counts that moment itself in or not.
		if _, err := c.ss.since(own.id, list.id, max(c.xids.from-1, 0), &c.samples); err != nil {
			// They are told at the next reading: the last one is still newer then.
			_ = c.ss.fail(err)
			return nil
		}
	}
	var events []gpu.Event
	now := time.Now()
	c.xids.take(c.samples.all(), func(e entity, ts int64, code int) {
		gi, ci := instanceOfEntity(e, c.told.instances)
		events = append(events, gpu.Event{
			Kind: gpu.EventXID, Time: timeOf(ts, now), GPU: gpu.UUID(c.told.attributes.uuid),
			GPUInstance: gi, ComputeInstance: ci, Code: code,
		})
	})
	return events
}
