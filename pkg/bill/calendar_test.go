// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Skipf("this machine does not know %s: %v", name, err)
	}
	return z
}

func TestDaysAndHoursAreThoseOfTheZone(t *testing.T) {
	for _, c := range []struct {
		name, zone, from, to string
		by                   Dimension
		windows              int
	}{
		{"a day", "UTC", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z", ByHour, 24},
		{"the clock goes forward", "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", ByHour, 23},
		{"and back", "Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", ByHour, 25},
		{"a month with 743 hours", "Europe/Berlin", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", ByDay, 31},
		{"half hours", "Asia/Kolkata", "2026-02-28T18:30:00Z", "2026-03-01T18:30:00Z", ByHour, 24},
		{"back by half an hour", "Australia/Lord_Howe", "2026-04-03T13:00:00Z", "2026-04-05T13:30:00Z", ByDay, 2},
		{"by the hour", "Australia/Lord_Howe", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z", ByHour, 25},
		{"no midnight", "America/Sao_Paulo", "2018-11-03T03:00:00Z", "2018-11-05T02:00:00Z", ByDay, 2},
		{"midnight twice", "Atlantic/Azores", "2026-10-24T00:00:00Z", "2026-10-26T01:00:00Z", ByDay, 2},
		{"a day left out", "Pacific/Apia", "2011-12-29T10:00:00Z", "2011-12-31T10:00:00Z", ByDay, 2},
		{"from the middle of an hour", "UTC", "2026-03-01T00:20:00Z", "2026-03-01T02:20:00Z", ByHour, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, _ := time.Parse(time.RFC3339, c.from)
			to, _ := time.Parse(time.RFC3339, c.to)
			z := zone(t, c.zone)
			at := Boundaries(Options{From: from, To: to, Zone: z, GroupBy: []Dimension{c.by}})
			if len(at)-1 != c.windows {
				for _, each := range at {
					t.Log(each.In(z))
				}
				t.Errorf("%d windows, want %d", len(at)-1, c.windows)
			}
		})
	}
}

// Two moments are in one window where they are in one day by the calendar, and only there.
func TestWindowsAreTheDaysAndHoursOfTheCalendar(t *testing.T) {
	names := []string{
		"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo", "Atlantic/Azores", "Asia/Beirut",
		"America/St_Johns", "Pacific/Chatham", "Africa/Casablanca", "America/Havana", "Asia/Tehran", "Asia/Amman",
	}
	rapid.Check(t, func(rt *rapid.T) {
		z := zone(t, rapid.SampledFrom(names).Draw(rt, "zone"))
		from := time.Unix(rapid.Int64Range(1_300_000_000, 1_900_000_000).Draw(rt, "from"), 0)
		if _, change := from.In(z).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(rt, "near a change") {
			from = change.Add(-time.Duration(rapid.Int64Range(0, 30*3600).Draw(rt, "before")) * time.Second)
		}
		to := from.Add(time.Duration(rapid.Int64Range(1, 400_000).Draw(rt, "length")) * time.Second)
		by := rapid.SampledFrom([]Dimension{ByDay, ByHour}).Draw(rt, "by")
		cal := calendar{z}
		key := cal.dayKey
		if by == ByHour {
			key = cal.hourKey
		}
		at := Boundaries(Options{From: from, To: to, Zone: z, GroupBy: []Dimension{by}})
		if !at[0].Equal(from) || !at[len(at)-1].Equal(to) {
			rt.Fatalf("boundaries %v of %s to %s", at, from, to)
		}
		for i := range len(at) - 1 {
			if !at[i].Before(at[i+1]) {
				rt.Fatalf("%s is not before %s", at[i], at[i+1])
			}
			if first, last := key(at[i]), key(at[i+1].Add(-time.Second)); first != last {
				rt.Fatalf("the window from %s to %s has %s and %s", at[i].In(z), at[i+1].In(z), first, last)
			}
			if i > 0 && key(at[i-1]) == key(at[i]) {
				rt.Fatalf("%s is cut at %s", key(at[i]), at[i].In(z))
			}
		}
	})
}

func TestABillAsksForMetersWhereItsPricesAndRulesChange(t *testing.T) {
	o := Options{From: day(10), To: day(40), Prices: book(t, `
prices: [{name: a, model: "*", price: 1, valid_to: 2026-03-23}, {name: b, model: "*", price: 1, valid_from: 2026-03-23}]`)}
	want := func(what string, n int, detail ledger.Detail) {
		t.Helper()
		if got := len(Boundaries(o)); got != n || Detail(o) != detail {
			t.Errorf("%s: %d boundaries at detail %d, want %d at %d", what, got, Detail(o), n, detail)
		}
	}
	want("a change of price", 3, ledger.DetailSeries)
	o.Prices = book(t, "idle: spread\nprices: [{model: \"*\", price: 1}]")
	want("idle cost by month", 3, ledger.DetailSeries)
	o.Prices = book(t, "idle: sole-tenant\nprices: [{model: \"*\", price: 1}]")
	want("sole tenants by day", 31, ledger.DetailPods)
	o.Prices = book(t, "prices: [{model: \"*\", price: 1}]\nquotas: [{namespace: a, gpu_hours: 1, per: day}]")
	want("a quota by day", 31, ledger.DetailSeries)
	o.Prices, o.GroupBy = nil, []Dimension{"label:app"}
	want("labels of pods", 2, ledger.DetailPods)
	o.To = o.From
	if at := Boundaries(o); at != nil {
		t.Errorf("no period has boundaries %v", at)
	}
}
