// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// flagNow is a moment that has an hour, a minute and a part of a millisecond.
var flagNow = time.Date(2026, 11, 18, 13, 45, 7, 123_456_789, time.UTC)

func TestTimesAreReadInTheZoneThatWasAskedFor(t *testing.T) {
	for _, tt := range []struct {
		text, zone, want string
	}{
		{"2026-11-05", "UTC", "2026-11-05T00:00:00Z"},
		{"2026-11-05", "Europe/Berlin", "2026-11-05T00:00:00+01:00"},
		{"2026-11", "America/New_York", "2026-11-01T00:00:00-04:00"},
		{"2026-11-05T10:30", "Asia/Kolkata", "2026-11-05T10:30:00+05:30"},
		{"2026-11-05 10:30:15", "UTC", "2026-11-05T10:30:15Z"},
		{"2026-11-05T10:30:15+02:00", "Asia/Kolkata", "2026-11-05T14:00:15+05:30"},
		{"2026-11-05T10:30:15.25Z", "UTC", "2026-11-05T10:30:15.25Z"},
		{"now", "UTC", "2026-11-18T13:45:07.123456789Z"},
		{"-24h", "UTC", "2026-11-17T13:45:07.123456789Z"},
		{"-90m", "UTC", "2026-11-18T12:15:07.123456789Z"},
		{"-7d", "UTC", "2026-11-11T13:45:07.123456789Z"},
		{"-2w", "UTC", "2026-11-04T13:45:07.123456789Z"},
		// The clocks skip midnight of this day: it begins at one.
		{"2018-11-04", "America/Sao_Paulo", "2018-11-04T01:00:00-02:00"},
		// They are set back over midnight of this one, which so comes twice.
		{"2025-11-02", "America/Havana", "2025-11-02T00:00:00-04:00"},
		// In summer and winter 2:30 is one moment; on the days between it is none or two.
		{"2026-10-24T02:30", "Europe/Berlin", "2026-10-24T02:30:00+02:00"},
		{"2026-10-26T02:30", "Europe/Berlin", "2026-10-26T02:30:00+01:00"},
	} {
		t.Run(tt.text+" in "+tt.zone, func(t *testing.T) {
			zone, err := time.LoadLocation(tt.zone)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseTime(tt.text, zone, flagNow)
			if err != nil {
				t.Fatal(err)
			}
			if s := got.In(zone).Format(time.RFC3339Nano); s != tt.want {
				t.Errorf("it is %s, want %s", s, tt.want)
			}
		})
	}
}

func TestTimesThatMeanNothingOrTwoThingsAreRefused(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                 "want a time such as",
		"yesterday":        "want a time such as",
		"2026-13":          "want a time such as",
		"2026-02-30":       "want a time such as",
		"-":                "before now such as -24h",
		"-7":               "before now such as -24h",
		"--7d":             "before now such as -24h",
		"-99999d":          "before now such as -24h",
		"-1000000000h":     "before now such as -24h",
		"-1.5d":            "before now such as -24h",
		"2026-03-29T02:30": "skip it",
		"2026-10-25T02:30": "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00",
	} {
		if got, err := parseTime(text, berlin, flagNow); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, error %v; want one with %q", text, got, err, want)
		}
	}
}

func TestThePeriodIsWhatTheFlagsSay(t *testing.T) {
	for _, tt := range []struct {
		name     string
		flags    periodFlags
		from, to string
	}{
		{"nothing: this month up to now", periodFlags{zone: "UTC"}, "2026-11-01T00:00:00Z", "2026-11-18T13:45:07.123Z"},
		{"closed only: the last month", periodFlags{zone: "UTC", closedOnly: true}, "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z"},
		{"last", periodFlags{zone: "UTC", month: "last"}, "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z"},
		{"this", periodFlags{zone: "UTC", month: "this"}, "2026-11-01T00:00:00Z", "2026-11-18T13:45:07.123Z"},
		{"a month with a change of the clocks", periodFlags{zone: "Europe/Berlin", month: "2026-10"}, "2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00"},
		{"December", periodFlags{zone: "UTC", month: "2025-12"}, "2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z"},
		{"from alone: up to now", periodFlags{zone: "UTC", from: "-1h"}, "2026-11-18T12:45:07.123Z", "2026-11-18T13:45:07.123Z"},
		{"from and to", periodFlags{zone: "UTC", from: "2026-11-01", to: "2026-11-02"}, "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := tt.flags.period(flagNow)
			if err != nil {
				t.Fatal(err)
			}
			from, to := p.From.In(p.Zone).Format(time.RFC3339Nano), p.To.In(p.Zone).Format(time.RFC3339Nano)
			if from != tt.from || to != tt.to {
				t.Errorf("from %s to %s, want %s to %s", from, to, tt.from, tt.to)
			}
		})
	}
}

func TestPeriodsThatAreNoneAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags periodFlags
		want  string
	}{
		{"no zone", periodFlags{zone: "Mars/Phobos"}, "Europe/Berlin"},
		{"a month and a from", periodFlags{zone: "UTC", month: "last", from: "-1h"}, "excludes"},
		{"a to alone", periodFlags{zone: "UTC", to: "now"}, "--to without --from"},
		{"no month", periodFlags{zone: "UTC", month: "november"}, `"november"`},
		{"no from", periodFlags{zone: "UTC", from: "never"}, `--from "never"`},
		{"no to", periodFlags{zone: "UTC", from: "-1h", to: "never"}, `--to "never"`},
		{"backwards", periodFlags{zone: "UTC", from: "2026-11-02", to: "2026-11-01"}, "is empty"},
		{"the future", periodFlags{zone: "UTC", from: "2027-01-01"}, "has not come yet"},
		{"a month to come", periodFlags{zone: "UTC", month: "2027-01"}, "has not come yet"},
		{"not closed", periodFlags{zone: "UTC", month: "this", closedOnly: true}, "has not come yet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if p, err := tt.flags.period(flagNow); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("period %v, error %v; want one with %q", p, err, tt.want)
			}
		})
	}
}

// Days follow each other without a hole and without meeting twice, whatever a zone's clocks do.
func TestDaysFollowEachOther(t *testing.T) {
	zones := []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana", "Asia/Kathmandu",
		"Pacific/Apia", "Africa/Cairo", "Asia/Beirut", "Australia/Lord_Howe", "America/St_Johns", "Atlantic/Azores",
	}
	rapid.Check(t, func(t *rapid.T) {
		zone, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		day := rapid.IntRange(1, 60*365).Draw(t, "day since 1970")
		this, next := startOfDay(1970, 1, day, zone), startOfDay(1970, 1, day+1, zone)
		want := time.Date(1970, 1, day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
		last := next.Add(-time.Nanosecond)
		skipped := this.Equal(next)
		if !skipped && (this.Format(time.DateOnly) != want || last.Format(time.DateOnly) != want) {
			t.Fatalf("%s in %v is from %v to %v", want, zone, this, last)
		}
		if this.After(next) || next.Sub(this) > 27*time.Hour {
			t.Fatalf("%s in %v is %v long", want, zone, next.Sub(this))
		}
		if before := this.Add(-time.Nanosecond); !skipped && before.Format(time.DateOnly) >= want {
			t.Fatalf("%s in %v begins at %v, and %v is within it too", want, zone, this, before)
		}
	})
}

func FuzzTimes(f *testing.F) {
	for _, seed := range []string{"2026-11-05", "2026-11", "-24h", "-7d", "now", "2026-11-05T10:00", "2026-10-25T02:30", "9999-12-31", "0000-01"} {
		f.Add(seed)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseTime(text, berlin, flagNow)
		if err != nil && !got.IsZero() {
			t.Errorf("%q is %v and an error: %v", text, got, err)
		}
	})
}
