// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"
)

// settle ends or lowers the conditions of a card that things that happened have made, where
// evidence or time says so.
func (f *fold) settle(c *card) {
	if f.paused {
		for i := range c.Conditions {
			f.void(&c.Conditions[i])
		}
		return
	}
	sound := f.sound(c)
	for i := len(c.Conditions) - 1; i >= 0; i-- {
		q := &c.Conditions[i]
		if !q.Withdraws() && !q.Set && q.Origin == ofEvent && f.now.Sub(q.Last) > f.cfg.WatchFor {
			f.durable = true
			c.Conditions = slices.Delete(c.Conditions, i, i+1)
			continue
		}
		if q.Origin != ofEvent {
			if q.Origin != ofFact && (c.Lost || !c.Listed || !c.Mute.IsZero()) {
				f.void(q)
			}
			continue
		}
		if evidence := f.evidence(q); !sound || evidence == "" {
			if q.Recovery != "" {
				q.Recovery, q.RecoveringSince, f.durable = "", time.Time{}, true
			}
		} else if f.stood(q, evidence) && f.e.Fresh {
			f.end(c, i)
			c.Settled = f.now
			continue
		}
		f.lower(c, q)
	}
	if len(c.Past) > 0 {
		f.forgetPast(c)
	}
}

// sound says whether nothing that is known of a card now speaks against its recovery: it is
// there and answers, its driver asks for nothing, and nothing waits for a reset.
func (f *fold) sound(c *card) bool {
	asks := c.Action > 0 && !f.elsewhen(c.ActionBoot)
	return c.Listed && !c.Lost && !f.d.Silent && !c.Answered.IsZero() && c.Mute.IsZero() && !asks && !f.pends(c)
}

// elsewhen says whether something was told in another boot than this one.
func (f *fold) elsewhen(boot string) bool { return boot != "" && boot != f.d.BootID }

// pends says whether a remap or a retirement waits for a reset. One that was last seen before the node
// was restarted does not.
func (f *fold) pends(c *card) bool {
	return slices.ContainsFunc(c.Conditions, func(q condition) bool {
		return (q.Kind == KindRemapPending || q.Kind == KindRetiredPending) && !f.elsewhen(q.BootID)
	})
}

// evidence is what says that a condition is over, empty for nothing.
func (f *fold) evidence(q *condition) string {
	switch {
	case q.told.Equal(f.now):
		return ""
	case f.elsewhen(q.BootID):
		return "the node was restarted"
	case q.Freed:
		return "the driver's recovery action went back to none"
	case q.Returned:
		return "the GPU was gone and is back"
	default:
		return ""
	}
}

// lower makes a condition one to watch where the driver has asked for nothing since it happened,
// for the hold-down. It knows better than a table what the card needs, but not of repetition.
func (f *fold) lower(c *card, q *condition) {
	if q.Class != ClassReset || q.Raised || f.cfg.IgnoreDriver || !f.e.Fresh || q.told.Equal(f.now) {
		return
	}
	switch {
	case c.Action != 0 || c.ActionBoot != f.boot || !f.sound(c):
		if !q.Asks.IsZero() {
			q.Asks, f.durable = time.Time{}, true
		}
	case !c.noneAt.Equal(f.now):
		// It was not asked in this reading.
	case q.Asks.IsZero():
		q.Asks, f.durable = f.now, true
	case f.now.Sub(q.Asks) >= f.cfg.HoldDown:
		f.recovered(c, q)
		q.Class, q.Lowered, q.Asks, f.durable = ClassWatch, true, time.Time{}, true
		q.Evidence = line(q.Cause + "; the driver asks for nothing")
	}
}

// last is when it last ended or came back.
func (p *past) last() time.Time {
	if n := len(p.Returns); n > 0 {
		return later(p.Ended, p.Returns[n-1])
	}
	return p.Ended
}

// forgetPast drops what ended and came back too long ago to count or to be told.
func (f *fold) forgetPast(c *card) {
	old := func(p past) bool { return f.now.Sub(p.last()) > max(f.cfg.FlapWindow, endedFor) }
	if slices.ContainsFunc(c.Past, old) {
		c.Past, f.durable = slices.DeleteFunc(slices.Clone(c.Past), old), true
	}
}
