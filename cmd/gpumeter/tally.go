// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// tally adds up who held how much over a run, exactly: GPU time is a fraction of
// nanoseconds, and what nobody held is kept by its cause.
type tally struct {
	last     *meter.Snapshot
	span     time.Duration
	capacity sharing.Fraction
	held     map[line]sharing.Fraction
	idle     map[sharing.Cause]sharing.Fraction
	cards    map[gpu.UUID]bool
}

// line is one row of the closing table.
type line struct {
	namespace, pod, resource string
	mode                     sharing.Mode
}

func newTally() *tally {
	return &tally{held: map[line]sharing.Fraction{}, idle: map[sharing.Cause]sharing.Fraction{}, cards: map[gpu.UUID]bool{}}
}

// add books the time from the snapshot before to s, divided as it was at its beginning.
func (t *tally) add(s *meter.Snapshot) {
	before := t.last
	t.last = s
	if before == nil || before.Reading.Time.IsZero() {
		return
	}
	dt := s.Reading.Time.Sub(before.Reading.Time)
	if dt <= 0 {
		return
	}
	t.span += dt
	ns := sharing.NewFraction(int64(dt), 1)
	for _, d := range before.Divided() {
		if !d.IsMIG() {
			t.capacity = t.capacity.Add(ns)
			t.cards[d.UUID] = true
		}
	}
	for _, h := range before.Division.Shares {
		l := line{h.Holder.Namespace, h.Holder.Pod, h.Resource, h.Mode}
		t.held[l] = t.held[l].Add(h.Part.Mul(ns))
	}
	for _, u := range before.Division.Unallocated {
		t.idle[u.Cause] = t.idle[u.Cause].Add(u.Part.Mul(ns))
	}
}

// sum is everything that was booked.
func (t *tally) sum() sharing.Fraction {
	var sum sharing.Fraction
	for _, f := range t.held {
		sum = sum.Add(f)
	}
	for _, f := range t.idle {
		sum = sum.Add(f)
	}
	return sum
}

// print writes the table and whether it adds up.
func (t *tally) print(w io.Writer) error {
	if t.capacity.IsZero() {
		_, err := fmt.Fprintln(w, "\nToo short a run to have measured anything.")
		return err
	}
	fmt.Fprintf(w, "\nWho held how much of %d GPUs in %v of the node's time:\n\n", len(t.cards), t.span.Round(time.Second))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAMESPACE\tPOD\tRESOURCE\tMODE\tGPU-HOURS\tOF THE NODE\t")
	lines := make([]line, 0, len(t.held))
	for l := range t.held {
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(t.held[b].Cmp(t.held[a]), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod),
			cmp.Compare(a.resource, b.resource), cmp.Compare(a.mode, b.mode))
	})
	row := func(f sharing.Fraction, cells ...any) {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t", cells...)
		fmt.Fprintf(tw, "%.4f\t%.2f %%\t\n", f.Float64()/float64(time.Hour), 100*f.Float64()/t.capacity.Float64())
	}
	for _, l := range lines {
		row(t.held[l], l.namespace, l.pod, l.resource, l.mode)
	}
	for _, c := range sharing.Causes() {
		if f := t.idle[c]; !f.IsZero() {
			row(f, "-", "nobody", "-", c)
		}
	}
	row(t.sum(), "", "", "", "total")
	row(t.capacity, "", "", "", "capacity")
	if err := tw.Flush(); err != nil {
		return err
	}
	if !t.sum().Equal(t.capacity) {
		return fmt.Errorf("the parts do not add up to the capacity: %s of %s GPU-nanoseconds", t.sum(), t.capacity)
	}
	_, err := fmt.Fprintln(w, "\nThe parts add up to the capacity exactly (compared as fractions, not as rounded numbers).")
	return err
}
