// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// explainer is gpumeter explain.
type explainer struct {
	bill   billFlags
	asJSON bool

	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
}

func explainCommand(stdout, stderr io.Writer, now func() time.Time) *cli.Command {
	e := &explainer{stdin: os.Stdin, stdout: stdout, stderr: stderr, now: now}
	return &cli.Command{
		Name:      "explain",
		Usage:     "say what is behind a row of a report: intervals, parts, prices and events",
		ArgsUsage: "[ROW]",
		Description: "ROW is the id of a row, or its beginning, as gpumeter report shows it; give the flags of that report too. Without ROW it is all that --node, --namespace and --pod " +
			"name in the period.\n\n" +
			"Intervals are in a ledger only (--ledger): Prometheus knows readings of counters, and these are shown then.\n\n" +
			"It ends with 0 where the intervals come to the row, 2 where the report is incomplete, and 3 where they do not come to it.",
		OnUsageError: app.UsageError,
		Flags: slices.Concat(e.bill.flags(), []cli.Flag{
			&cli.BoolFlag{Name: "json", Destination: &e.asJSON, Usage: "JSON instead of tables"},
		}),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.NArg() > 1 {
				return fmt.Errorf("%q: explain takes one row; flags come before it", cmd.Args().Get(1))
			}
			return e.run(ctx, cmd.Args().First())
		},
	}
}

func (e *explainer) run(ctx context.Context, row string) error {
	if len(e.bill.source.ledgers) > 0 && e.bill.source.prometheus != "" {
		return errors.New("--ledger and --prometheus: from which was the report made? Give one")
	}
	b, err := e.bill.open(e.now(), e.stdin)
	if err != nil {
		return err
	}
	b.pods = true
	if row == "" && len(b.query.Nodes)+len(b.query.Namespaces)+len(b.query.Pods) == 0 {
		return errors.New("explain what? Give the id of a row of gpumeter report, or --node, --namespace or --pod")
	}
	p := newProgress(e.stderr)
	defer p.clear()
	made, err := b.make(ctx, b.source(), false, p)
	if err != nil {
		return err
	}
	x, err := explain(made, row)
	if err != nil {
		return err
	}
	if b.ledgers != nil {
		p.say("reading intervals")
		if err := x.follow(ctx, made, b.ledgers, b.query.Nodes); err != nil {
			return err
		}
	}
	p.clear()
	if e.asJSON {
		err = x.writeJSON(e.stdout)
	} else {
		err = x.write(e.stdout)
	}
	if err != nil {
		return fmt.Errorf("write the explanation: %w", err)
	}
	switch {
	case x.Intervals != nil && !x.Agrees:
		return &exitError{code: exitUnbalanced, err: errors.New("the intervals do not come to the row; gpumeter verify says whether the ledger is whole")}
	case !made.Complete:
		return &exitError{code: exitIncomplete, err: errors.New("the report is incomplete; it says what is missing")}
	}
	return nil
}

// explanation is what is behind one row, or behind several together.
type explanation struct {
	Row       string    `json:"row,omitempty"`
	Subject   []string  `json:"subject"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Source    string    `json:"source"`
	GPUMicros int64     `json:"gpu_microseconds"`
	Currency  string    `json:"currency,omitempty"`
	// Costs are those of the row, or of the rows together; nil without prices.
	Costs     *explainedCosts     `json:"costs,omitempty"`
	Readings  []explainedReading  `json:"readings"`
	Intervals []explainedInterval `json:"intervals,omitempty"`
	// Sum is what the intervals come to, in GPU-microseconds. Agrees says that it is the row's, but for what registers are
	// rounded by.
	Sum    int64           `json:"intervals_gpu_microseconds"`
	Agrees bool            `json:"agrees"`
	Events []explainedFact `json:"events,omitempty"`
	Notes  []string        `json:"notes,omitempty"`

	zone  *time.Location
	items []bill.Item
}

// explainedCosts are amounts as the report shows them, in its currency: net is list less discount, and total is net with the
// other two, which are left out where they are 0.
type explainedCosts struct {
	List       string `json:"list_cost"`
	Discount   string `json:"discount_cost"`
	Net        string `json:"net_cost"`
	Idle       string `json:"idle_share_cost,omitempty"`
	Adjustment string `json:"adjustment_cost,omitempty"`
	Total      string `json:"total_cost"`
	// Policy is who pays for what nobody held.
	Policy string `json:"idle_policy"`
}

// costsOf are the costs of rows together; nil without prices.
func costsOf(b *bill.Bill, rows []*bill.Row) *explainedCosts {
	if b.Currency == "" {
		return nil
	}
	var sum bill.Sums
	for _, r := range rows {
		sum = sum.Plus(r.Sums)
	}
	c := &explainedCosts{
		List: sum.ListCost.StringFixed(b.Decimals), Discount: sum.Discount.StringFixed(b.Decimals), Net: sum.NetCost.StringFixed(b.Decimals),
		Total: sum.TotalCost.StringFixed(b.Decimals), Policy: string(b.Idle),
	}
	if !sum.IdleCost.IsZero() {
		c.Idle = sum.IdleCost.StringFixed(b.Decimals)
	}
	if !sum.Adjustment.IsZero() {
		c.Adjustment = sum.Adjustment.StringFixed(b.Decimals)
	}
	return c
}

// explainedReading is one consumption in one window, with its price.
type explainedReading struct {
	Node      string    `json:"node"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	What      string    `json:"what"`
	GPUMicros int64     `json:"gpu_microseconds"`
	Hour      string    `json:"price_per_gpu_hour,omitempty"`
	Discount  string    `json:"discount_percent,omitempty"`
	Entry     string    `json:"price_entry,omitempty"`
	Version   string    `json:"price_version,omitempty"`
	List      string    `json:"list_cost,omitempty"`
	Net       string    `json:"net_cost,omitempty"`
	// Idle is what it bears of what nobody held, or, below 0, what others bear of it.
	Idle string `json:"idle_share_cost,omitempty"`
	// Free is what quotas gave for nothing.
	Free   int64    `json:"free_gpu_microseconds,omitempty"`
	Quotas []string `json:"quotas,omitempty"`
	PodUID string   `json:"pod_uid,omitempty"`
}

// explain finds a row by its id or the beginning of it; without one it takes all of the bill.
func explain(b *bill.Bill, id string) (*explanation, error) {
	x := &explanation{From: b.From, To: b.To, Source: b.Source, Currency: b.Currency, Notes: b.Notes, zone: b.Zone}
	var found []*bill.Row
	for i := range b.Rows {
		r := &b.Rows[i]
		if strings.HasPrefix(r.ID, id) {
			found = append(found, r)
		}
	}
	switch {
	case id != "" && len(found) > 1:
		return nil, fmt.Errorf("row %q: %d rows begin with that: give more of the id", id, len(found))
	case id != "" && len(found) == 0:
		return nil, fmt.Errorf("row %q: this report has no such row among its %d: give the flags of the report that showed it, --group-by and --tz above all, and its period, with the dates where it was told from now", id, len(b.Rows))
	case len(found) == 0:
		return nil, errors.New("nothing was held in this period by what the filters name")
	}
	if id != "" {
		x.Row = found[0].ID
	}
	x.Costs = costsOf(b, found)
	for _, r := range found {
		x.Subject = append(x.Subject, rowWords(b, r))
		x.items = append(x.items, r.Items...)
	}
	for i := range x.items {
		item := &x.items[i]
		x.GPUMicros += item.GPU
		x.Readings = append(x.Readings, readingOf(b, item))
	}
	return x, nil
}

// rowWords say what a row is of.
func rowWords(b *bill.Bill, r *bill.Row) string {
	words := []string{string(r.Kind)}
	if r.Cause != "" {
		words = append(words, string(r.Cause))
	}
	for i, d := range b.GroupBy {
		if i < len(r.Keys) && r.Keys[i] != "" {
			words = append(words, string(d)+"="+oneLine(r.Keys[i]))
		}
	}
	return strings.Join(words, " ")
}

func readingOf(b *bill.Bill, item *bill.Item) explainedReading {
	r := explainedReading{
		Node: nodeName(b, item.Node), From: item.Start, To: item.End, What: itemWords(item), GPUMicros: item.GPU, PodUID: item.PodUID,
	}
	if b.Currency != "" {
		r.Hour, r.Discount, r.Entry, r.Version = item.Price.Hour.String(), item.Price.Discount.String(), item.Price.Entry, item.Price.Version
		r.List, r.Net, r.Free, r.Quotas = item.List.String(), item.Net.String(), item.Free, item.Quotas
		if !item.Idle.IsZero() {
			r.Idle = item.Idle.String()
		}
	}
	return r
}

func nodeName(b *bill.Bill, n int) string { return cmp.Or(b.Nodes[n].Node, b.Nodes[n].LedgerID) }

// itemWords say what an item is of.
func itemWords(item *bill.Item) string {
	if item.Cause != "" && item.Correction == nil {
		return oneLine(fmt.Sprintf("%s of GPU %d %s", item.Cause, item.CardIndex, item.Card))
	}
	who := item.Namespace
	if item.Pod != "" {
		who += "/" + item.Pod
	}
	if item.Container != "" {
		who += "/" + item.Container
	}
	if item.PodUID != "" {
		who += " (" + item.PodUID + ")"
	}
	words := []string{who, item.Resource, string(item.Mode), item.Profile, string(item.Card)}
	if item.Correction != nil {
		words = append(words, "for "+item.Correction.FromTime.UTC().Format(time.RFC3339))
	}
	return oneLine(strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
}

// behind tells which lines of one ledger an item may be made of.
type behind struct {
	cause sharing.Cause
	card  gpu.UUID
	// adjusts says that it is about an earlier period.
	adjusts bool
	ledger.Series
	pod, uid, container string
	instance            int
}

func behindItem(item *bill.Item) behind {
	if item.Kind == bill.KindUnallocated || item.Cause != "" {
		return behind{cause: item.Cause, card: item.Card}
	}
	return behind{
		card: item.Card, Series: item.Series, pod: item.Pod, uid: item.PodUID, container: item.Container, instance: item.GPUInstance,
	}
}

func behindLine(l *ledger.Line, model string) behind {
	if l.Cause != "" {
		return behind{cause: l.Cause, card: l.Card}
	}
	return behind{
		card: l.Card, pod: l.Holder.Pod, uid: l.Holder.PodUID, container: l.Holder.Container, instance: l.GPUInstance,
		Series: ledger.Series{Namespace: l.Holder.Namespace, Resource: l.Resource, Mode: l.Mode, Model: model, Profile: l.Profile},
	}
}
