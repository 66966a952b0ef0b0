// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/prices"
)

// calendar knows when the hours, days and months of a time zone begin. A day has 23 to 25 hours where the clock
// is changed.
type calendar struct{ zone *time.Location }

func (c calendar) day(t time.Time) time.Time {
	year, month, day := t.In(c.zone).Date()
	return prices.StartOfDay(year, month, day, c.zone)
}

func (c calendar) month(t time.Time) time.Time {
	year, month, _ := t.In(c.zone).Date()
	return prices.StartOfDay(year, month, 1, c.zone)
}

func (c calendar) nextDay(t time.Time) time.Time {
	year, month, day := t.In(c.zone).Date()
	return prices.StartOfDay(year, month, day+1, c.zone)
}

func (c calendar) nextMonth(t time.Time) time.Time {
	year, month, _ := t.In(c.zone).Date()
	return prices.StartOfDay(year, month+1, 1, c.zone)
}

// hour is the beginning of t's hour by the clock on the wall.
func (c calendar) hour(t time.Time) time.Time {
	local := t.In(c.zone)
	start := local.Add(-time.Duration(local.Minute())*time.Minute - time.Duration(local.Second())*time.Second - time.Duration(local.Nanosecond()))
	if changed, _ := local.ZoneBounds(); changed.After(start) {
		// The clock was changed by a part of an hour within it.
		return changed.In(c.zone)
	}
	return start
}

func (c calendar) nextHour(t time.Time) time.Time {
	next := c.hour(t).Add(time.Hour)
	if _, change := t.In(c.zone).ZoneBounds(); !change.IsZero() && change.After(t) && change.Before(next) {
		return change.In(c.zone)
	}
	// After a change by a part of an hour it is not a full one.
	if start := c.hour(next); start.After(t) {
		return start
	}
	return next
}

// dayKey and hourKey name them in rows. Of an hour that there is twice, the offset tells which.
func (c calendar) dayKey(t time.Time) string { return t.In(c.zone).Format(time.DateOnly) }

func (c calendar) hourKey(t time.Time) string { return c.hour(t).In(c.zone).Format(time.RFC3339) }
