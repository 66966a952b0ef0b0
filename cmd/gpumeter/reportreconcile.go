// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

const (
	// reconciledRows bounds how many differences are shown, namedNodes how many nodes without a ledger are named.
	reconciledRows = 50
	namedNodes     = 10
	// youngFor is how old a ledger is at most that two scrapes at the slowest usual pace, two minutes, may not know yet.
	youngFor = 5 * time.Minute
	// noReading is a Missing's word where Prometheus has no sample.
	noReading = "no_reading"
)

// reconcile makes the report from the ledgers, and says where Prometheus disagrees.
func (r *reporter) reconcile(ctx context.Context, b *billing, p *progress) error {
	made, err := b.make(ctx, b.ledgers, r.wants(formatHTML), p)
	if err != nil {
		return err
	}
	theirs, err := b.read(ctx, b.prometheus, b.alike(), p)
	if err != nil {
		return err
	}
	ours, err := readAlike(ctx, b.ledgers, theirs, b.query)
	if err != nil {
		return err
	}
	p.clear()
	if err := r.write(made); err != nil {
		return err
	}
	// Beside a table people read on; what programs read stays as it is.
	w := r.stderr
	if r.format == formatTable {
		w = r.stdout
	}
	found := sorted(ledger.Reconcile(theirs, ours), ours, theirs)
	if err := found.show(w, len(theirs.Nodes)); err != nil {
		return err
	}
	if found.serious > 0 {
		return &exitError{code: exitUnbalanced, err: errors.New("the ledgers and Prometheus do not agree; it says where")}
	}
	return verdict(made)
}

// readAlike reads each ledger at the very instants at which Prometheus had its readings, so that what differs is
// not when they were taken.
func readAlike(ctx context.Context, readers ledgerSource, theirs ledger.Usage, q ledger.Query) (ledger.Usage, error) {
	all := ledger.Usage{Source: "ledger", Boundaries: theirs.Boundaries}
	distinct, err := ledger.Distinct(ctx, readers, q.Nodes)
	if err != nil {
		return ledger.Usage{}, err
	}
	for _, r := range distinct {
		one := q
		one.Boundaries, one.Detail = theirs.Boundaries, ledger.DetailSeries
		u, err := r.Usage(ctx, one)
		if err != nil && ctx.Err() == nil {
			// The report names it; it stands here as a ledger that is not there.
			continue
		}
		if err != nil {
			return ledger.Usage{}, err
		}
		if i := slices.IndexFunc(theirs.Nodes, func(n ledger.NodeUsage) bool {
			return len(u.Nodes) > 0 && n.LedgerID == u.Nodes[0].LedgerID
		}); i >= 0 {
			one.Boundaries = readAt(theirs.Boundaries, theirs.Nodes[i].Readings)
			if u, err = r.Usage(ctx, one); err != nil {
				return ledger.Usage{}, err
			}
		}
		all = joined(all, u)
	}
	return all, nil
}

// readAt is the boundaries moved to the readings that were taken for them.
func readAt(boundaries, readings []time.Time) []time.Time {
	at := slices.Clone(boundaries)
	for i := range at {
		if i < len(readings) && !readings[i].IsZero() {
			at[i] = readings[i]
		}
		// Two boundaries may have had one reading; a window is never empty.
		if i > 0 && !at[i].After(at[i-1]) {
			at[i] = at[i-1].Add(time.Millisecond)
		}
	}
	return at
}

// joined is a with the nodes of b behind its own.
func joined(a, b ledger.Usage) ledger.Usage {
	n := len(a.Nodes)
	a.Nodes = append(a.Nodes, b.Nodes...)
	for _, h := range b.Held {
		h.Node += n
		a.Held = append(a.Held, h)
	}
	for _, rest := range b.Rest {
		rest.Node += n
		a.Rest = append(a.Rest, rest)
	}
	for _, c := range b.Corrections {
		c.Node, c.Held.Node = c.Node+n, c.Held.Node+n
		a.Corrections = append(a.Corrections, c)
	}
	a.Notes = append(a.Notes, b.Notes...)
	return a
}

// reconciliation is what differs, as it is told.
type reconciliation struct {
	// told has the serious ones first, of each kind the largest first; serious counts them.
	told    []ledger.Difference
	serious int
	// notGiven are the nodes of which Prometheus knows and no ledger was given, in the order of their names.
	notGiven []string
}

// sorted puts apart what says that something is wrong.
func sorted(all []ledger.Difference, ours, theirs ledger.Usage) reconciliation {
	var r reconciliation
	var harmless []ledger.Difference
	ended := theirs.Boundaries[len(theirs.Boundaries)-1]
	young := map[string]bool{}
	for _, n := range slices.Concat(ours.Nodes, theirs.Nodes) {
		young[n.LedgerID] = young[n.LedgerID] || n.Created.After(ended.Add(-youngFor))
	}
	for _, d := range all {
		switch {
		case d.Why == ledger.WhyNotGiven:
			r.notGiven = append(r.notGiven, cmp.Or(d.Node, d.LedgerID))
		case young[d.LedgerID] && (d.Why == ledger.WhyNotScraped || d.Why == noReading):
			d.Text = fmt.Sprintf("the ledger of node %s is younger than %s: it was scraped less than twice", cmp.Or(d.Node, d.LedgerID), youngFor)
			harmless = append(harmless, d)
		case d.Serious():
			r.told = append(r.told, d)
		default:
			harmless = append(harmless, d)
		}
	}
	r.serious = len(r.told)
	r.told = append(r.told, harmless...)
	slices.Sort(r.notGiven)
	r.notGiven = slices.Compact(r.notGiven)
	return r
}

// show says in a table who disagrees by how much, and why.
func (r *reconciliation) show(w io.Writer, nodes int) error {
	fmt.Fprintf(w, "\nPrometheus against the ledgers, of %s in Prometheus:\n\n", many(nodes, "node"))
	if len(r.notGiven) > 0 {
		names := r.notGiven[:min(len(r.notGiven), namedNodes)]
		fmt.Fprintf(w, "No ledger was given of %s: %s", many(len(r.notGiven), "node"), oneLine(strings.Join(names, ", ")))
		if more := len(r.notGiven) - len(names); more > 0 {
			fmt.Fprintf(w, " and %d more", more)
		}
		fmt.Fprint(w, ".\n")
	}
	if len(r.told) == 0 {
		text := "They agree in every number, to the microsecond."
		if len(r.notGiven) > 0 {
			text = "The others agree in every number, to the microsecond."
			if len(r.notGiven) == nodes {
				text = "There is nothing left to hold against each other."
			}
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tWHAT\tPROMETHEUS\tLEDGER\tDIFFERENCE\tWHY\t")
	for _, d := range r.told[:min(len(r.told), reconciledRows)] {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t\n", oneLine(cmp.Or(d.Node, d.LedgerID)), oneLine(subject(d)),
			hours(d.Prometheus), hours(d.Ledger), hours(d.Prometheus-d.Ledger), oneLine(cmp.Or(d.Text, d.Why)))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if more := len(r.told) - reconciledRows; more > 0 {
		_, err := fmt.Fprintf(w, "… and %d more, %d of all of them serious.\n", more, r.serious)
		return err
	}
	return nil
}

// subject is what a difference is of, for people.
func subject(d ledger.Difference) string {
	switch {
	case d.Card == "":
		return fmt.Sprintf("%q %s %s %s", d.Series.Namespace, d.Series.Resource, d.Series.Mode, d.Series.Profile)
	case d.Corrected:
		return fmt.Sprintf("%s corrected", d.Card)
	default:
		return fmt.Sprintf("%s %s", d.Card, cmp.Or(string(d.Cause), "capacity"))
	}
}

// hours are GPU-microseconds as GPU-hours.
func hours(micro int64) string {
	return fmt.Sprintf("%.6f h", float64(micro)/float64(time.Hour/time.Microsecond))
}
