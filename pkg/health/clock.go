// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"
)

// firstYear is that of the earliest time that a clock which was set can show.
const firstYear = 2000

// rewind takes in that the clock was set back: what is dated later than now would otherwise be recent,
// or not begun yet, until the clock is there again. A clock that is not set yet dates nothing anew.
func (f *fold) rewind() {
	f.setBack = true
	if f.now.Year() < firstYear {
		return
	}
	past := func(t *time.Time) {
		if t.After(f.now) {
			*t, f.durable = f.now, true
		}
	}
	all := func(times []time.Time) []time.Time {
		times = slices.Clone(times)
		for i := range times {
			past(&times[i])
		}
		return times
	}
	for _, t := range []*time.Time{&f.d.Repartition.Since, &f.d.Repartition.Began, &f.d.Repartition.Ended} {
		past(t)
	}
	for i := range f.d.Cards {
		c := &f.d.Cards[i]
		c.Parts = slices.Clone(c.Parts)
		for k := range c.Parts {
			past(&c.Parts[k].Since)
		}
		for _, t := range []*time.Time{&c.Since, &c.Answered, &c.Mute, &c.Away, &c.Settled} {
			past(t)
		}
		for k := range c.Conditions {
			q := &c.Conditions[k]
			for _, t := range []*time.Time{&q.Since, &q.Last, &q.RecoveringSince, &q.Asks} {
				past(t)
			}
			q.Recent = all(q.Recent)
		}
		c.Past = slices.Clone(c.Past)
		for k := range c.Past {
			past(&c.Past[k].Ended)
			c.Past[k].Returns = all(c.Past[k].Returns)
		}
	}
}
