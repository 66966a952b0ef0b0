// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// monthNode is the node that the demo's month is of, on a Monday.
func monthNode(t *testing.T) (*hands, *ledger.Book, string) {
	t.Helper()
	scenario, err := sim.LoadShipped(monthScenario)
	if err != nil {
		t.Fatal(err)
	}
	start := mondayBefore(bookStart)
	node, err := sim.NewNode(scenario, sim.Options{Start: start})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	book := ledger.OpenBook(ledger.BookConfig{Dir: dir, Node: scenario.Node, Policy: "blend", Log: slog.New(slog.DiscardHandler)})
	return &hands{node: node, start: start}, book, dir
}

// A day at speed comes to what the scenario says that was held, tick by tick, in a bill that adds up.
func TestADayAtSpeedIsBilledAsTheScenarioSays(t *testing.T) {
	const step = 5 * time.Minute
	h, book, dir := monthNode(t)
	told := 0
	if err := h.turn(t.Context(), book, 24*time.Hour, step, func(float64, string) { told++ }); err != nil {
		t.Fatal(err)
	}
	if told != 24*12+1 {
		t.Errorf("progress was told %d times", told)
	}
	want := map[string]time.Duration{}
	for at := time.Duration(0); at < 24*time.Hour; at += step {
		for _, a := range h.node.Truth(at) {
			switch a.Resource {
			case "nvidia.com/gpu":
				want[a.Holder.Namespace+" exclusive"] += step
			case "nvidia.com/gpu.shared":
				want[a.Holder.Namespace+" shared"] += step / 4
			}
		}
	}
	reader, err := ledger.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	b := &billing{
		options: bill.Options{From: h.start, To: h.start.AddDate(0, 0, 1), GroupBy: []bill.Dimension{bill.ByNamespace, bill.ByMode}},
		ledgers: ledgerSource{reader},
	}
	made, err := b.make(t.Context(), b.source(), true, newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	if !made.Complete || made.Difference != 0 || made.Capacity.String() != "192" || len(made.Hours) != 8*24 {
		t.Errorf("complete %t, difference %d, capacity %s h, %d GPU-hours for the map", made.Complete, made.Difference, made.Capacity, len(made.Hours))
	}
	for _, r := range made.Rows {
		key := strings.Join(r.Keys, " ")
		if r.Kind != bill.KindHeld || strings.HasSuffix(key, " mig") {
			continue
		}
		if got := r.GPUHours.StringFixed(4); got != hoursOf(want[key]) {
			t.Errorf("%s is billed %s h, and held %s h", key, got, hoursOf(want[key]))
		}
		delete(want, key)
	}
	for key, d := range want {
		t.Errorf("%s held %v and is not billed", key, d)
	}
}

func hoursOf(d time.Duration) string { return fmt.Sprintf("%.4f", d.Hours()) }

func TestAMonthThatIsLeftOffSaysWhere(t *testing.T) {
	h, book, _ := monthNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := h.turn(ctx, book, 24*time.Hour, time.Minute, nil)
	if err == nil || !strings.Contains(err.Error(), "left off on 9 November") {
		t.Errorf("it ended with %v", err)
	}
	if err := book.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheDemosMonthIsTheLastWholeOne(t *testing.T) {
	for now, want := range map[string]string{
		"2026-12-01T00:00:00Z": "2026-11-01 to 2026-12-01", "2026-01-31T23:00:00-05:00": "2026-01-01 to 2026-02-01",
		"2026-03-31T12:00:00Z": "2026-02-01 to 2026-03-01", "2027-01-01T00:30:00Z": "2026-12-01 to 2027-01-01",
	} {
		at, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		from, to := lastMonth(at)
		if got := from.Format(time.DateOnly) + " to " + to.Format(time.DateOnly); got != want {
			t.Errorf("on %s it is %s, want %s", now, got, want)
		}
	}
	for day := range 8 {
		at := time.Date(2026, 11, 1+day, 17, 30, 0, 0, time.UTC)
		if monday := mondayBefore(at); monday.Weekday() != time.Monday || !monday.Equal(monday.Truncate(24*time.Hour)) || monday.After(at) || at.Sub(monday) >= 7*24*time.Hour {
			t.Errorf("the Monday before %v is %v", at, monday)
		}
	}
}

// The story's week begins on Monday, on whichever day the bill does.
func TestTheDemosBillIsOfThoseDays(t *testing.T) {
	thursday := mondayBefore(bookStart).AddDate(0, 0, 3)
	var out, noise bytes.Buffer
	dir := t.TempDir()
	page, err := simulatedReport(t.Context(), dir, thursday, thursday.AddDate(0, 0, 1), thursday.AddDate(0, 0, 2), &out, &noise)
	if err != nil || noise.Len() > 0 {
		t.Fatalf("%v, and it says %q", err, noise.String())
	}
	// On Thursdays somebody has a GPU that he forgot, which on Mondays he has not.
	for _, want := range []string{"GPU bill for 12 November 2026", "sandbox", "192.000000 GPU-hours of capacity", "difference 0", "Complete    yes", "costs in EUR"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if data, err := os.ReadFile(page); err != nil || !bytes.Contains(data, []byte("sandbox")) {
		t.Errorf("the page %s: %v", page, err)
	}
}

func TestTheMonthIsShownAsATableAndAsAPage(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	made := &bill.Bill{Complete: true, From: bookStart, To: bookStart.AddDate(0, 1, 0), Zone: time.UTC}
	name, err := showMonth(&out, made, dir)
	if err != nil || !strings.HasPrefix(name, dir) || !strings.Contains(out.String(), "GPU bill for") {
		t.Errorf("%s, %v:\n%s", name, err, out.String())
	}
	if _, err := showMonth(&out, made, "/there/is/no/folder/here"); err == nil {
		t.Error("a page in a folder that is not there is no error")
	}
}
