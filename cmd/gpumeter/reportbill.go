// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/promusage"
)

// usageSource is where consumption is read from.
type usageSource interface {
	Usage(ctx context.Context, q ledger.Query) (ledger.Usage, error)
}

// ledgerSource reads several ledgers as one.
type ledgerSource []*ledger.Reader

func (l ledgerSource) Usage(ctx context.Context, q ledger.Query) (ledger.Usage, error) {
	return ledger.ReadUsage(ctx, l, q)
}

// billFlags are the flags that say which bill is meant.
type billFlags struct {
	source sourceFlags
	period periodFlags

	groupBy                          []string
	prices, teams, namespaces        string
	kubeLabels                       bool
	lookback, ruleLookback, queryFor time.Duration
}

func (f *billFlags) flags() []cli.Flag {
	const category = "Bill"
	return slices.Concat(f.source.flags(), f.source.filterFlags(), f.period.flags(), []cli.Flag{
		&cli.StringSliceFlag{Name: "group-by", Aliases: []string{"g"}, Category: category, Value: []string{string(bill.ByNamespace)}, Destination: &f.groupBy,
			Usage: "`DIMENSIONS` of the rows: " + strings.Join(dimensions(), ", ") + ", label:NAME of the pod, namespace-label:NAME, node-label:NAME; comma-separated or repeated"},
		&cli.StringFlag{Name: "prices", Aliases: []string{"p"}, Category: category, Destination: &f.prices, Sources: cli.EnvVars("GPUMETER_PRICES"),
			Usage: "`FILE` with the price book (etc/prices.example.yaml shows one); without it there are quantities and no money"},
		&cli.StringFlag{Name: "teams", Category: category, Destination: &f.teams, Usage: "`FILE` that says which team a namespace belongs to, for --group-by team"},
		&cli.StringFlag{Name: "namespaces", Category: category, Destination: &f.namespaces,
			Usage: "`FILE` as of 'kubectl get namespaces -o json', for the labels of namespaces; - for the standard input"},
		&cli.BoolFlag{Name: "kube-labels", Category: category, Destination: &f.kubeLabels,
			Usage: "with --prometheus: take labels of pods, namespaces and nodes from kube-state-metrics' series too, in its writing: label:app_kubernetes_io_name"},
		&cli.DurationFlag{Name: "lookback", Category: category, Value: promusage.DefaultLookback, Destination: &f.lookback,
			Usage: "with --prometheus: how old a sample may be, as `TIME`, to be the reading at a moment"},
		&cli.DurationFlag{Name: "rule-lookback", Category: category, Value: promusage.DefaultRuleLookback, Destination: &f.ruleLookback,
			Usage: "with --prometheus: the same for the hourly recording rules"},
		&cli.DurationFlag{Name: "query-timeout", Category: category, Value: promusage.DefaultTimeout, Destination: &f.queryFor,
			Usage: "with --prometheus: `TIME` that one query may take"},
	})
}

func dimensions() []string {
	var words []string
	for _, d := range bill.Dimensions() {
		words = append(words, string(d))
	}
	return words
}

// grouping is what --group-by says; bill.Make knows which there are.
func grouping(words []string) []bill.Dimension {
	var out []bill.Dimension
	for _, word := range words {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, bill.Dimension(word))
		}
	}
	return out
}

// billing is a bill that can be made: where from, of what, at which prices.
type billing struct {
	options bill.Options
	// query has the filters, for what is not made a bill of.
	query ledger.Query
	// ends is when the period ends that is billed up to now; zero where it has ended.
	ends time.Time
	// ledgers and prometheus are the sources that were given, nil for none.
	ledgers    ledgerSource
	prometheus *promusage.Source
	// pods asks for the detail of pods whatever the rows are grouped by.
	pods bool
	// kubeNamespaces says that the labels of namespaces are to be had from prometheus.
	kubeNamespaces bool
}

// open reads what the flags name.
func (f *billFlags) open(now time.Time, stdin io.Reader) (*billing, error) {
	if err := f.source.check(); err != nil {
		return nil, err
	}
	p, err := f.period.period(now)
	if err != nil {
		return nil, err
	}
	b := &billing{
		options: bill.Options{
			From: p.From, To: p.To, Zone: p.Zone, ClosedOnly: p.ClosedOnly, Now: now,
			Nodes: f.source.nodes, Namespaces: f.source.tenants, Pods: f.source.pods,
		},
		query: f.source.query(),
		ends:  p.Ends,
	}
	b.options.GroupBy = grouping(f.groupBy)
	if err := f.books(&b.options, stdin); err != nil {
		return nil, err
	}
	if f.kubeLabels && f.source.prometheus != "" && b.options.NamespaceLabels == nil {
		b.kubeNamespaces, b.options.NamespaceLabels = true, map[string]map[string]string{}
	}
	if err := b.options.Validate(); err != nil {
		return nil, err
	}
	if len(f.source.ledgers) > 0 {
		if b.ledgers, err = f.source.openLedgers(func() time.Time { return now }); err != nil {
			return nil, err
		}
	}
	if f.source.prometheus != "" {
		b.prometheus, err = f.server(now)
	}
	return b, err
}

// server is the Prometheus that the flags name.
func (f *billFlags) server(now time.Time) (*promusage.Source, error) {
	transport, err := f.source.transport()
	if err != nil {
		return nil, err
	}
	return promusage.New(promusage.Config{
		URL: f.source.prometheus, HTTP: transport, KubeLabels: f.kubeLabels, Lookback: f.lookback, RuleLookback: f.ruleLookback,
		Timeout: f.queryFor, Now: func() time.Time { return now },
	})
}

// books reads the files that a bill is made with.
func (f *billFlags) books(o *bill.Options, stdin io.Reader) error {
	if f.prices != "" {
		data, err := os.ReadFile(f.prices)
		if err != nil {
			return fmt.Errorf("--prices: %w", err)
		}
		if o.Prices, err = prices.Parse(f.prices, data); err != nil {
			return fmt.Errorf("--prices: %w", err)
		}
	}
	if f.teams != "" {
		data, err := os.ReadFile(f.teams)
		if err != nil {
			return fmt.Errorf("--teams: %w", err)
		}
		if o.Teams, err = prices.ParseTeams(f.teams, data); err != nil {
			return fmt.Errorf("--teams: %w", err)
		}
	}
	if f.namespaces == "" {
		return nil
	}
	data, err := readNamed(f.namespaces, stdin)
	if err != nil {
		return fmt.Errorf("--namespaces: %w", err)
	}
	if o.NamespaceLabels, err = namespaceLabels(data); err != nil {
		return fmt.Errorf("--namespaces %s: %w", f.namespaces, err)
	}
	return nil
}

func readNamed(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

// namespaceLabels reads a list of namespaces as kubectl writes it.
func namespaceLabels(data []byte) (map[string]map[string]string, error) {
	var list struct {
		Kind  string
		Items []struct {
			Kind     string
			Metadata struct {
				Name   string
				Labels map[string]string
			}
		}
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("it is not what 'kubectl get namespaces -o json' writes: %w", err)
	}
	if list.Kind != "List" && list.Kind != "NamespaceList" {
		return nil, fmt.Errorf("it is not what 'kubectl get namespaces -o json' writes: its kind is %q", list.Kind)
	}
	labels := make(map[string]map[string]string, len(list.Items))
	for i, item := range list.Items {
		if item.Metadata.Name == "" || item.Kind != "" && item.Kind != "Namespace" {
			return nil, fmt.Errorf("item %d is no namespace with a name, but a %q", i, item.Kind)
		}
		labels[item.Metadata.Name] = item.Metadata.Labels
	}
	return labels, nil
}

// source is the one that the bill is made from: the ledgers where both are given.
func (b *billing) source() usageSource {
	if b.ledgers != nil {
		return b.ledgers
	}
	return b.prometheus
}

// make reads the consumption and makes the bill of it; with hours also what each GPU did by the hour.
func (b *billing) make(ctx context.Context, from usageSource, hours bool, p *progress) (*bill.Bill, error) {
	u, err := b.read(ctx, from, bill.Query(b.options), p)
	if err != nil {
		return nil, err
	}
	metered := func(n ledger.NodeUsage) bool { return n.Created.Before(b.options.To) && b.shows(n.Node) }
	if !slices.ContainsFunc(u.Nodes, metered) {
		return nil, errors.New("nobody has metered anything in this period: no ledger of it is known there (is the period right, and do the filters name something?)")
	}
	u.Notes = append(u.Notes, b.unmet(&u)...)
	if !b.ends.IsZero() {
		u.Notes = append(u.Notes, "until now: the period ends at "+b.ends.In(b.options.Zone).Format(time.RFC3339))
	}
	if b.kubeNamespaces {
		if b.options.NamespaceLabels, err = b.prometheus.NamespaceLabels(ctx, b.options.From, b.options.To); err != nil {
			return nil, err
		}
	}
	made, err := bill.Make(u, b.options)
	if err != nil || !hours {
		return made, err
	}
	byHour, err := from.Usage(ctx, ledger.Query{
		Boundaries: bill.HourBoundaries(b.options.From, b.options.To, b.options.Zone), Nodes: b.options.Nodes, Progress: p.step("GPUs by the hour"),
	})
	if err != nil {
		return nil, err
	}
	withHours := *made
	withHours.Hours = bill.Hours(byHour)
	return &withHours, nil
}

// unmet says which of the filters' names nothing was found for, so that a slip of the pen is not read as no consumption.
func (b *billing) unmet(u *ledger.Usage) []string {
	var notes []string
	note := func(names []string, met func(string) bool, format string) {
		for _, name := range names {
			if !met(name) {
				notes = append(notes, fmt.Sprintf(format, name))
			}
		}
	}
	held := func(of func(*ledger.Held) string) func(string) bool {
		return func(name string) bool {
			return slices.ContainsFunc(u.Held, func(h ledger.Held) bool { return of(&h) == name && b.shows(u.Nodes[h.Node].Node) })
		}
	}
	note(b.options.Nodes, func(name string) bool {
		return slices.ContainsFunc(u.Nodes, func(n ledger.NodeUsage) bool { return n.Node == name })
	}, "--node %s: no node of that name is known in this period")
	note(b.options.Namespaces, held(func(h *ledger.Held) string { return h.Namespace }), "--namespace %s: no such namespace held anything in this period")
	note(b.options.Pods, held(func(h *ledger.Held) string { return h.Pod }), "--pod %s: no such pod held anything in this period")
	return notes
}

// shows reports whether the filters keep a node.
func (b *billing) shows(node string) bool {
	return len(b.options.Nodes) == 0 || slices.Contains(b.options.Nodes, node)
}

// alike is what both sources are asked for to be held against each other: what the filters keep of the bill's windows.
func (b *billing) alike() ledger.Query {
	q := b.query
	q.Boundaries, q.Detail = bill.Boundaries(b.options), bill.Detail(b.options)
	return q
}

// read is the consumption that a query is for.
func (b *billing) read(ctx context.Context, from usageSource, q ledger.Query, p *progress) (ledger.Usage, error) {
	if b.pods {
		q.Detail = ledger.DetailPods
	}
	q.Progress = p.step("consumption")
	return from.Usage(ctx, q)
}
