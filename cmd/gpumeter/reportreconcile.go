// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// reconciledRows bounds how many differences are shown.
const reconciledRows = 50

// reconcile makes the report from the ledgers, and says where Prometheus disagrees.
func (r *reporter) reconcile(ctx context.Context, b *billing, p *progress) error {
	made, err := b.make(ctx, b.ledgers, r.wants(formatHTML), p)
	if err != nil {
		return err
	}
	theirs, err := b.read(ctx, b.prometheus, p)
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
	differences := ledger.Reconcile(theirs, ours)
	if err := showDifferences(w, differences, theirs); err != nil {
		return err
	}
	if slices.ContainsFunc(differences, ledger.Difference.Serious) {
		return &exitError{code: exitUnbalanced, err: errors.New("the ledgers and Prometheus do not agree; it says where")}
	}
	return verdict(made)
}

// readAlike reads each ledger at the very instants at which Prometheus had its readings, so that what differs is
// not when they were taken.
func readAlike(ctx context.Context, readers ledgerSource, theirs ledger.Usage, q ledger.Query) (ledger.Usage, error) {
	all := ledger.Usage{Source: "ledger", Boundaries: theirs.Boundaries}
	for _, r := range readers {
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

// showDifferences says in a table who disagrees by how much, and why.
func showDifferences(w io.Writer, all []ledger.Difference, theirs ledger.Usage) error {
	fmt.Fprintf(w, "\nPrometheus against the ledgers, of %d nodes in Prometheus:\n\n", len(theirs.Nodes))
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "They agree in every number, to the microsecond.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tWHAT\tPROMETHEUS\tLEDGER\tDIFFERENCE\tWHY\t")
	for _, d := range all[:min(len(all), reconciledRows)] {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t\n", oneLine(cmp.Or(d.Node, d.LedgerID)), oneLine(subject(d)),
			hours(d.Prometheus), hours(d.Ledger), hours(d.Prometheus-d.Ledger), oneLine(cmp.Or(d.Text, d.Why)))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if more := len(all) - reconciledRows; more > 0 {
		_, err := fmt.Fprintf(w, "… and %d smaller ones.\n", more)
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
