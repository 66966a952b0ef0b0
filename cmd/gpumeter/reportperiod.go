// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	// The zones are within the program, so that a container without them makes the same bill.
	_ "time/tzdata"

	"github.com/urfave/cli/v3"
)

// period is a time from one instant to another, end exclusive.
type period struct {
	From, To time.Time
	// Ends is when it ends that was cut off at now; zero where it was not.
	Ends time.Time
	// Zone is that of its days.
	Zone *time.Location
	// ClosedOnly says that nothing of it may still change.
	ClosedOnly bool
}

// periodFlags are the flags that say which time is meant.
type periodFlags struct {
	from, to, month, zone string
	closedOnly            bool
}

func (f *periodFlags) flags() []cli.Flag {
	const category = "Period"
	return []cli.Flag{
		&cli.StringFlag{Name: "from", Category: category, Destination: &f.from,
			Usage: "`TIME` at which the period begins: 2026-11-05, 2026-11, 2026-11-05T10:00, RFC 3339, or before now: -24h, -7d"},
		&cli.StringFlag{Name: "to", Category: category, Destination: &f.to,
			Usage: "`TIME` at which it ends, itself not within: a date means its midnight (default: now); one that is yet to come is now"},
		&cli.StringFlag{Name: "month", Category: category, Destination: &f.month,
			Usage: "`MONTH` instead of --from and --to: 2026-11, \"this\" or \"last\" (default: this; with --closed-only: last)"},
		&cli.StringFlag{Name: "tz", Category: category, Value: "UTC", Destination: &f.zone, Sources: cli.EnvVars("GPUMETER_TZ"),
			Usage: "time `ZONE` of days and months, such as Europe/Berlin; Local for this machine's"},
		&cli.BoolFlag{Name: "closed-only", Category: category, Destination: &f.closedOnly, Usage: "refuse a period that has not ended yet"},
	}
}

// period is what the flags mean now.
func (f *periodFlags) period(now time.Time) (period, error) {
	p := period{ClosedOnly: f.closedOnly}
	var err error
	if p.Zone, err = time.LoadLocation(f.zone); err != nil {
		return period{}, fmt.Errorf("--tz %q: there is no such zone; want one such as Europe/Berlin or UTC", f.zone)
	}
	switch {
	case f.month != "" && (f.from != "" || f.to != ""):
		return period{}, errors.New("--month excludes --from and --to: give one or the others")
	case f.month == "" && f.from == "" && f.to != "":
		return period{}, errors.New("--to without --from: when does the period begin?")
	case f.month != "" || f.from == "":
		err = p.ofMonth(f.month, now)
	default:
		err = p.between(f.from, f.to, now)
	}
	if err != nil {
		return period{}, err
	}
	if p.From.After(now) {
		return period{}, fmt.Errorf("the period begins at %s, which has not come yet: take an earlier one", p.From.In(p.Zone).Format(time.RFC3339))
	}
	if p.To.After(now) && !p.ClosedOnly {
		p.To, p.Ends = now, p.To
	}
	// Counters are shown to the millisecond.
	p.From, p.To = p.From.Truncate(time.Millisecond), p.To.Truncate(time.Millisecond)
	switch {
	case !p.From.Before(p.To):
		return period{}, fmt.Errorf("the period from %s to %s is empty: --to has to be later than --from, and --from earlier than now",
			p.From.In(p.Zone).Format(time.RFC3339), p.To.In(p.Zone).Format(time.RFC3339))
	case p.ClosedOnly && p.To.After(now):
		return period{}, fmt.Errorf("--closed-only: the period ends at %s, which has not come yet: take an earlier one",
			p.To.In(p.Zone).Format(time.RFC3339))
	}
	return p, nil
}

// ofMonth is the named month; the present one up to now.
func (p *period) ofMonth(text string, now time.Time) error {
	year, month, _ := now.In(p.Zone).Date()
	switch {
	case text == "last" || text == "" && p.ClosedOnly:
		month--
	case text == "this" || text == "":
	default:
		t, err := time.Parse("2006-01", text)
		if err != nil {
			return fmt.Errorf("--month %q: want a month such as 2026-11, \"this\" or \"last\"", text)
		}
		year, month = t.Year(), t.Month()
	}
	p.From, p.To = startOfDay(year, month, 1, p.Zone), startOfDay(year, month+1, 1, p.Zone)
	return nil
}

func (p *period) between(from, to string, now time.Time) error {
	var err error
	if p.From, err = parseTime(from, p.Zone, now); err != nil {
		return fmt.Errorf("--from %w", err)
	}
	p.To = now
	if to == "" {
		return nil
	}
	if p.To, err = parseTime(to, p.Zone, now); err != nil {
		return fmt.Errorf("--to %w", err)
	}
	return nil
}

// parseTime reads what --from and --to take. The error begins with the text.
func parseTime(text string, zone *time.Location, now time.Time) (time.Time, error) {
	if text == "now" {
		return now, nil
	}
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		d, err := parseSpan(ago)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q: want a time before now such as -24h or -7d", text)
		}
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01"} {
		if t, err := time.Parse(layout, text); err == nil {
			return startOfDay(t.Year(), t.Month(), t.Day(), zone), nil
		}
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			return onTheClock(text, t, zone)
		}
	}
	return time.Time{}, fmt.Errorf("%q: want a time such as 2026-11-05, 2026-11, 2026-11-05T10:00, 2026-11-05T10:00:00+01:00, -24h or now", text)
}

// parseSpan reads a duration of Go's, or whole days and weeks: these are of 24 hours each.
func parseSpan(text string) (time.Duration, error) {
	for unit, length := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		number, ok := strings.CutSuffix(text, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || time.Duration(n) > maxSpan/length {
			return 0, fmt.Errorf("%q is no number of days", text)
		}
		return time.Duration(n) * length, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && (d < 0 || d > maxSpan) {
		return 0, fmt.Errorf("%q is too long ago", text)
	}
	return d, err
}

// maxSpan is more than any ledger is old.
const maxSpan = 100 * 366 * 24 * time.Hour

// startOfDay is the first instant of a day, which is not midnight where the clocks skip it.
func startOfDay(year int, month time.Month, day int, zone *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	want := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	start, end := t.ZoneBounds()
	switch y, m, d := t.Date(); {
	case d == want.Day() && m == want.Month() && y == want.Year():
		if t.Hour() != 0 || t.Minute() != 0 {
			return start
		}
		// Where the clocks are set back over midnight it comes twice: the day begins with the first one.
		if before := t.Add(-time.Nanosecond); !start.IsZero() && start.Equal(t) && before.Day() == t.Day() {
			return startBefore(t, want)
		}
		return t
	default:
		return end
	}
}

// startBefore is the earlier midnight of a day that has two.
func startBefore(t, want time.Time) time.Time {
	_, offset := t.Add(-time.Nanosecond).Zone()
	return want.Add(-time.Duration(offset) * time.Second).In(t.Location())
}

// onTheClock is the instant at which the zone's clocks show what t does.
func onTheClock(text string, t time.Time, zone *time.Location) (time.Time, error) {
	var found []time.Time
	near := time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, zone)
	start, end := near.ZoneBounds()
	for _, moment := range []time.Time{start.Add(-time.Nanosecond), near, end} {
		_, offset := moment.Zone()
		at := t.Add(-time.Duration(offset) * time.Second).In(zone)
		if _, real := at.Zone(); real == offset && (len(found) == 0 || !at.Equal(found[len(found)-1])) {
			found = append(found, at)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return time.Time{}, fmt.Errorf("%q: the clocks of %s skip it; give it with its offset, as in %s", text, zone, near.Format(time.RFC3339))
	default:
		return time.Time{}, fmt.Errorf("%q: the clocks of %s show it twice; give %s or %s", text, zone,
			found[0].Format(time.RFC3339), found[1].Format(time.RFC3339))
	}
}
