// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// hourlyOf keeps what of a page has a prefix as the hourly rules do, a little before the full hour.
func hourlyOf(t *testing.T, db *tsdb.DB, m meterOf, from, to int, prefix string) {
	t.Helper()
	app := db.Appender(t.Context())
	for hour := from; hour <= to; hour++ {
		at := epoch.Add(time.Duration(hour)*time.Hour - 20*time.Second)
		for key, v := range m.page(at.Add(-10 * time.Second)) {
			if !strings.HasPrefix(key, prefix) {
				continue
			}
			l := labels.NewBuilder(labelsOf(t, key))
			l.Set("__name__", ruleOf(labelsOf(t, key).Get("__name__")))
			if _, err := app.Append(0, l.Labels(), at.UnixMilli(), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// ruleOf is the name under which the hourly rules keep a family.
func ruleOf(family string) string {
	name := strings.TrimSuffix(strings.TrimPrefix(family, "gpumeter_"), "_total")
	switch {
	case strings.HasPrefix(name, "observation_gap"):
		name = "observation_gap"
	case strings.HasSuffix(name, "_timestamp_seconds"):
		name = strings.TrimSuffix(name, "_seconds")
	}
	return "gpumeter:" + name + ":hourly"
}

// TestACopiedLedgerOnTwoNodesIsNoSmallerBill tells a ledger that two nodes have at once from one whose node got another name.
func TestACopiedLedgerOnTwoNodesIsNoSmallerBill(t *testing.T) {
	born := epoch.Add(-30 * time.Hour)
	one, other := meterOf{id: "l1", node: "one", born: born}, meterOf{id: "l1", node: "other", born: born.Add(time.Hour)}
	minutes := func(m float64) time.Time { return epoch.Add(time.Duration(m * float64(time.Minute))) }
	play := func(db *tsdb.DB, job string, m meterOf, from, to float64) {
		scrapes(t, newTarget(db, job, map[string]string{"node": "of-" + job}), m, minutes(from), minutes(to), 30*time.Second, nil)
	}
	for name, tt := range map[string]struct {
		story  func(db *tsdb.DB)
		cloned bool
	}{
		"two all the time": {cloned: true, story: func(db *tsdb.DB) {
			play(db, "a", one, -60, 240)
			play(db, "b", other, -60, 240)
		}},
		"a copy that lived for a quarter of an hour": {cloned: true, story: func(db *tsdb.DB) {
			play(db, "a", one, -60, 240)
			play(db, "b", other, 65, 80)
		}},
		"two of which the hourly samples are kept": {cloned: true, story: func(db *tsdb.DB) {
			hourlyOf(t, db, one, -3, 4, "")
			hourlyOf(t, db, other, -3, 4, "gpumeter_ledger_info")
		}},
		"renamed": {story: func(db *tsdb.DB) {
			play(db, "a", one, -60, 75)
			m := one
			m.node = "other"
			play(db, "a", m, 76, 240)
		}},
		"renamed there and back again and again": {story: func(db *tsdb.DB) {
			m := one
			m.node = "other"
			play(db, "a", one, -60, 72)
			play(db, "a", m, 73, 76)
			play(db, "a", one, 77, 80)
			play(db, "a", m, 81, 84)
			play(db, "a", one, 85, 88)
			play(db, "a", m, 89, 240)
		}},
		"renamed, and scraped by two whose clocks differ": {story: func(db *tsdb.DB) {
			m := one
			m.node = "other"
			play(db, "a", one, -60, 75)
			play(db, "b", one, -59.8, 76.7)
			play(db, "a", m, 75.5, 240)
			play(db, "b", m, 76.7, 240)
		}},
		"renamed, of which the hourly samples are kept": {story: func(db *tsdb.DB) {
			m := one
			m.node = "other"
			hourlyOf(t, db, one, -3, 1, "")
			hourlyOf(t, db, m, 1, 1, "gpumeter_ledger_info")
			hourlyOf(t, db, m, 2, 4, "")
		}},
		"two, one of them long before": {story: func(db *tsdb.DB) {
			play(db, "b", other, -60, -20)
			play(db, "a", one, -60, 240)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			db := openStorage(t)
			tt.story(db)
			s := reader(t, &web{storage: db}, nil)
			u, err := s.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 3)})
			if err != nil {
				t.Fatal(err)
			}
			var told []ledger.Missing
			for _, m := range u.Nodes[0].Missing {
				if m.Reason == "cloned" {
					told = append(told, m)
				}
			}
			v, err := s.Verify(t.Context(), epoch, epoch.Add(3*time.Hour), time.Hour, nil)
			if err != nil {
				t.Fatal(err)
			}
			proven := strings.Contains(fmt.Sprint(v.Nodes), "cloned")
			if len(u.Nodes) != 1 || (len(told) == 1) != tt.cloned || proven != tt.cloned {
				t.Fatalf("missing %+v, verify says so: %t", u.Nodes[0].Missing, proven)
			}
			if tt.cloned && (!strings.Contains(told[0].Text, "one and other") || !strings.Contains(told[0].Text, "ledger of its own") || told[0].To.Before(told[0].From)) {
				t.Errorf("missing %+v", told[0])
			}
		})
	}
}

// TestAModelThatADriverRenamesGoesOn has a card whose registers go on under another name.
func TestAModelThatADriverRenamesGoesOn(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	g := newTarget(db, "a", nil)
	for at := epoch.Add(-time.Hour); !at.After(epoch.Add(4 * time.Hour)); at = at.Add(30 * time.Second) {
		page := m.page(at)
		if at.After(epoch.Add(115 * time.Minute)) {
			renamed := map[string]float64{}
			for key, v := range page {
				if strings.Contains(key, "UUID=") {
					key = strings.ReplaceAll(key, `model="H100"`, `model="NVIDIA H100"`)
				}
				renamed[key] = v
			}
			page = renamed
		}
		g.scrape(t, at, page)
	}
	s := reader(t, &web{storage: db}, nil)
	u, err := s.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2, 3)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range u.Rest {
		got = append(got, fmt.Sprintf("%d %s %s %v", x.Window, x.Model, x.Cause, float64(x.GPU)/1e6))
	}
	want := "0 H100  3600,0 H100 unrequested 1800,1 NVIDIA H100  3600,1 NVIDIA H100 unrequested 1800,2 NVIDIA H100  3600,2 NVIDIA H100 unrequested 1800"
	if strings.Join(got, ",") != want || reasons(u) != "" {
		t.Errorf("got %s\nwant %s, missing %q", strings.Join(got, ","), want, reasons(u))
	}
	if v, err := s.Verify(t.Context(), epoch, epoch.Add(3*time.Hour), 10*time.Minute, nil); err != nil || !v.OK() || v.GPUs != 1 {
		t.Errorf("verify: %+v, %v", v, err)
	}
}

// TestAPodThatNobodyNamedForAWhileGoesOn has pods whose UID is not told over the start of the period, a pod that is new, and
// one of a ledger that is new itself.
func TestAPodThatNobodyNamedForAWhileGoesOn(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	g := newTarget(db, "a", nil)
	for at := epoch.Add(-3 * time.Hour); !at.After(epoch.Add(3 * time.Hour)); at = at.Add(30 * time.Second) {
		minute := at.Sub(epoch).Minutes()
		pods := map[string]float64{}
		if minute < -60 {
			pods["long.+"] = 9000
		}
		if minute >= -60 && minute < 30 { // A restart, and the API server is away.
			pods["nameless-long"] = minute + 60
		}
		if minute >= 30 {
			pods["long.+"] = 9000 + minute - 30
			pods["new"] = minute - 30
		}
		g.scrape(t, at, podsOf(m, at, pods))
	}
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2), Detail: ledger.DetailPods})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := podTimes(u), "0 long.+ 30, 0 nameless-long 29.5, 0 new 30, 1 long.+ 60, 1 new 60"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestAPodOfANewLedgerIsChargedFromTheBeginning is one without a UID.
func TestAPodOfANewLedgerIsChargedFromTheBeginning(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(30 * time.Minute)}
	g := newTarget(db, "a", nil)
	for at := m.born; !at.After(epoch.Add(3 * time.Hour)); at = at.Add(30 * time.Second) {
		g.scrape(t, at, podsOf(m, at, map[string]float64{"nameless": at.Sub(m.born).Minutes()}))
	}
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2), Detail: ledger.DetailPods})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := podTimes(u), "0 nameless 30, 1 nameless 60"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func podTimes(u ledger.Usage) string {
	var all []string
	for _, h := range u.Held {
		all = append(all, fmt.Sprintf("%d %s %v", h.Window, h.Pod, float64(h.GPU)/1e6))
	}
	return strings.Join(all, ", ")
}
