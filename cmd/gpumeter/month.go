// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/report"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
	"github.com/gpumeter/gpumeter/pkg/xidfile"
)

const (
	// monthScenario is the story that the demo's month is of.
	monthScenario = "month"
	// monthStep is the time between the meter's ticks in it.
	monthStep = time.Minute
	// examplePrices is the shipped price book.
	examplePrices = "prices.example.yaml"
)

// hands turn the clock of a simulated node, so that a month of it takes no month.
type hands struct {
	node *sim.Node
	// start is the wall clock at which the node's story begins.
	start time.Time
	// at is the time since then, told the time up to which events have been told of.
	at, told time.Duration
}

// Read is the node's telemetry at the hands' moment.
func (h *hands) Read(_ context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	r := h.node.ReadingAt(h.at, fields)
	r.Events = h.node.Events(h.told, h.at)
	h.told = h.at
	return r, nil
}

// List is who holds what at that moment.
func (h *hands) List(context.Context) (sharing.Listing, error) {
	return sharing.Listing{Time: h.start.Add(h.at), Allocations: h.node.Truth(h.at), Advertised: h.node.Advertised(h.at)}, nil
}

// Pods is what an API server would tell of those who hold something then.
func (h *hands) Pods() []ledger.Pod {
	var pods []ledger.Pod
	for _, a := range h.node.Truth(h.at) {
		if labels, ok := h.node.Labels(h.at, a.Holder.Namespace, a.Holder.Pod); ok {
			pods = append(pods, ledger.Pod{
				Namespace: a.Holder.Namespace, Name: a.Holder.Pod, UID: a.Holder.PodUID,
				WorkloadKind: "Deployment", Workload: labels["app"], Labels: labels,
			})
		}
	}
	return pods
}

// now is the node's two clocks.
func (h *hands) now() ledger.Instant {
	return ledger.Instant{BootID: h.node.BootID(h.at), Boot: h.at.Milliseconds(), Wall: h.start.Add(h.at).UnixMilli()}
}

// turn meters the node for span, a tick each step, into book: with the meter that users run, its clock turned by hand.
func (h *hands) turn(ctx context.Context, book *ledger.Book, span, step time.Duration, done func(float64, string)) error {
	xids, err := xidfile.Load(etc.XIDs(), "")
	if err != nil {
		return err
	}
	rules, err := health.NewRules(health.Config{XIDs: xids})
	if err != nil {
		return err
	}
	m, err := meter.New(meter.Config{
		Telemetry: h, Allocations: h, Interval: step, Health: rules, BootID: func() string { return h.node.BootID(h.at) },
		Book: book, Clock: h.now,
	})
	if err != nil {
		return err
	}
	for end := h.at + span; h.at <= end; h.at += step {
		m.Tick(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the month was left off on %s: %w", h.start.Add(h.at).Format("2 January"), err)
		}
		if done != nil {
			done(1-float64(end-h.at)/float64(span), h.start.Add(h.at).Format("Mon 2 January"))
		}
	}
	return book.Close()
}

// lastMonth is the month before now, in UTC.
func lastMonth(now time.Time) (from, to time.Time) {
	year, month, _ := now.UTC().Date()
	return time.Date(year, month-1, 1, 0, 0, 0, 0, time.UTC), time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
}

// mondayBefore is the midnight of the last Monday at or before t, in UTC.
func mondayBefore(t time.Time) time.Time {
	year, month, day := t.UTC().Date()
	return time.Date(year, month, day-(int(t.UTC().Weekday())+6)%7, 0, 0, 0, 0, time.UTC)
}

// monthReport meters a simulated month into a ledger in dir, makes the bill of it, and shows it: on w, and as a page
// of which it gives the name.
func monthReport(ctx context.Context, dir string, now time.Time, w, stderr io.Writer) (string, error) {
	from, to := lastMonth(now)
	return simulatedReport(ctx, dir, from, to, now, w, stderr)
}

// simulatedReport is monthReport for any time that begins at midnight.
func simulatedReport(ctx context.Context, dir string, from, to, now time.Time, w, stderr io.Writer) (string, error) {
	scenario, err := sim.LoadShipped(monthScenario)
	if err != nil {
		return "", err
	}
	start := mondayBefore(from)
	node, err := sim.NewNode(scenario, sim.Options{Start: start})
	if err != nil {
		return "", err
	}
	p := newProgress(stderr)
	defer p.clear()
	book := ledger.OpenBook(ledger.BookConfig{
		Dir: dir, Node: scenario.Node, Version: app.Version(), Policy: "blend", Log: slog.New(slog.DiscardHandler),
	})
	h := &hands{node: node, start: start, at: from.Sub(start), told: from.Sub(start)}
	if err := errors.Join(h.turn(ctx, book, to.Sub(from), monthStep, p.step("metering "+from.Format("January 2006"))), node.Close()); err != nil {
		return "", err
	}
	b, err := monthBill(ctx, dir, from, to, now, p)
	if err != nil {
		return "", err
	}
	p.clear()
	return showMonth(w, b, dir)
}

// monthBill makes the bill of a month from the ledger in dir, at the shipped prices.
func monthBill(ctx context.Context, dir string, from, to, now time.Time, p *progress) (*bill.Bill, error) {
	book, err := prices.Parse(examplePrices, etc.ExamplePrices())
	if err != nil {
		return nil, err
	}
	reader, err := ledger.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	billing := billing{
		options: bill.Options{From: from, To: to, Zone: time.UTC, Prices: book, GroupBy: []bill.Dimension{bill.ByNamespace, bill.ByMode}, Now: now},
		ledgers: ledgerSource{reader},
	}
	return billing.make(ctx, billing.ledgers, true, p)
}

// showMonth writes the bill as a table to w and as a page into dir, and gives the page's name.
func showMonth(w io.Writer, b *bill.Bill, dir string) (string, error) {
	o := report.Options{Width: terminalWidth(w), Generator: "gpumeter " + app.Version()}
	if err := report.Table(w, b, o); err != nil {
		return "", err
	}
	name := filepath.Join(dir, "report.html")
	page, err := os.Create(name)
	if err != nil {
		return "", err
	}
	return name, errors.Join(report.HTML(page, b, o), page.Close())
}
