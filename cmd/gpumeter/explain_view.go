// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func (x *explanation) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(x)
}

// write explains for people.
func (x *explanation) write(w io.Writer) error {
	var b strings.Builder
	if x.Row != "" {
		fmt.Fprintf(&b, "Row %s\n", x.Row)
	}
	for _, subject := range x.Subject {
		fmt.Fprintf(&b, "%s\n", subject)
	}
	fmt.Fprintf(&b, "from %s to %s: %s GPU-hours\n", x.stamp(x.From), x.stamp(x.To), gpuHours(x.GPUMicros))
	x.writeReadings(&b)
	if x.Intervals == nil {
		b.WriteString("\nPrometheus knows what the counters read at these moments, and no intervals: ask a ledger (--ledger) for who held which GPU when.\n")
	} else {
		x.writeIntervals(&b)
		x.writeEvents(&b)
	}
	for _, note := range x.Notes {
		fmt.Fprintf(&b, "note: %s\n", oneLine(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// stamp is a moment in the time zone of the report.
func (x *explanation) stamp(t time.Time) string {
	const layout = "2006-01-02T15:04:05.999Z07:00"
	if x.zone == nil {
		return t.UTC().Format(layout)
	}
	return t.In(x.zone).Format(layout)
}

// writeReadings shows what the row is made of, window by window, and at which prices.
func (x *explanation) writeReadings(b *strings.Builder) {
	b.WriteString("\nWhat it is made of\n\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "FROM\tTO\tNODE\tWHAT\tGPU-HOURS")
	idle := slices.ContainsFunc(x.Readings, func(r explainedReading) bool { return r.Idle != "" })
	if x.Currency != "" {
		fmt.Fprintf(table, "\t%s/H\tDISCOUNT\tPRICE ENTRY\tLIST\tNET", x.Currency)
	}
	if idle {
		fmt.Fprint(table, "\tIDLE SHARE")
	}
	fmt.Fprintln(table)
	for i := range x.Readings {
		r, item := &x.Readings[i], &x.items[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s", x.stamp(r.From), x.stamp(r.To), oneLine(r.Node), orDash(r.What), gpuHours(r.GPUMicros))
		if x.Currency != "" {
			fmt.Fprintf(table, "\t%s\t%s\t%s (%s)\t%.6f\t%.6f", r.Hour, r.takenOff(), oneLine(r.Entry), oneLine(r.Version), item.List.Float64(), item.Net.Float64())
		}
		if idle {
			fmt.Fprintf(table, "\t%.6f", item.Idle.Float64())
		}
		fmt.Fprintln(table)
	}
	// A strings.Builder takes everything.
	_ = table.Flush()
	fmt.Fprintf(b, "\n%s: %s GPU-hours\n", many(len(x.Readings), "item"), gpuHours(x.GPUMicros))
	x.writeCosts(b)
}

// takenOff is the discount, with what quotas gave for nothing.
func (r *explainedReading) takenOff() string {
	text := r.Discount + " %"
	if r.Free != 0 {
		text += fmt.Sprintf(", %s h free (%s)", gpuHours(r.Free), oneLine(strings.Join(r.Quotas, ", ")))
	}
	return text
}

// writeCosts shows the amounts of the row, which are rounded once for all of it.
func (x *explanation) writeCosts(b *strings.Builder) {
	c := x.Costs
	if c == nil {
		return
	}
	fmt.Fprintf(b, "%s: list %s - discount %s = net %s", x.Currency, c.List, c.Discount, c.Net)
	if c.Idle != "" {
		fmt.Fprintf(b, "; share of what nobody held (%s) %s", c.Policy, c.Idle)
	}
	if c.Adjustment != "" {
		fmt.Fprintf(b, "; adjustment for earlier periods %s", c.Adjustment)
	}
	fmt.Fprintf(b, "; total %s\n", c.Total)
}

func (x *explanation) writeIntervals(b *strings.Builder) {
	b.WriteString("\nIntervals\n\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FROM\tTO\tSECONDS\tNODE\tGPU\tDEVICE\tWHO\tSEATS\tWEIGHT\tPART\tGPU-SECONDS\tRECORDS\tBEGAN\tENDED")
	namesakes := x.namesakes()
	for i := range x.Intervals {
		v := &x.Intervals[i]
		who := v.Holder
		if v.Cause != "" {
			who = strings.TrimSpace(v.Cause + " " + who)
		}
		weight := orDash(v.Weight)
		if v.Policy != "" && v.Weight != "1" && v.Weight != "" {
			weight += " (" + oneLine(v.Policy) + ")"
		}
		if namesakes[v.Holder] {
			who += " (" + v.PodUID + ")"
		}
		began, ended := v.Began, v.Ended
		if began == ledger.CloseGap && ended == ledger.CloseGap && v.Cause == "" {
			began, ended = "proven", "over a gap"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			x.stamp(v.From), x.stamp(v.To), thousandths(v.Millis), oneLine(v.Node), v.GPU, orDash(oneLine(string(v.Device))), oneLine(who),
			seats(v.Seats, v.Of), weight, v.Part, millionths(v.GPUMicros), recordRange(v.Opened, v.Closed), began, ended)
	}
	_ = table.Flush()
	fmt.Fprintf(b, "\n%s: %s GPU-hours", many(len(x.Intervals), "interval"), gpuHours(x.Sum))
	if x.Agrees {
		b.WriteString(", which is the row\n")
		return
	}
	fmt.Fprintf(b, ", which is NOT the row: %d µs apart\n", x.Sum-x.GPUMicros)
}

// namesakes are the holders that several pods had the name of, one after the other: their lines look alike.
func (x *explanation) namesakes() map[string]bool {
	uids, several := map[string]string{}, map[string]bool{}
	for i := range x.Intervals {
		v := &x.Intervals[i]
		if uid, known := uids[v.Holder]; known && uid != v.PodUID {
			several[v.Holder] = true
		}
		uids[v.Holder] = v.PodUID
	}
	return several
}

func (x *explanation) writeEvents(b *strings.Builder) {
	if len(x.Events) == 0 {
		return
	}
	b.WriteString("\nWhat happened meanwhile\n\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AT\tNODE\tRECORD\tWHAT\tDEVICE\tTEXT")
	for i := range x.Events {
		e := &x.Events[i]
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", x.stamp(e.At), oneLine(e.Node), e.Record, e.Kind, orDash(oneLine(string(e.Device))), oneLine(e.Text))
	}
	_ = table.Flush()
}

// gpuHours is GPU-microseconds in hours, to six decimals.
func gpuHours(micros int64) string {
	return strconv.FormatFloat(float64(micros)/float64(time.Hour/time.Microsecond), 'f', 6, 64)
}

func thousandths(n int64) string { return strconv.FormatFloat(float64(n)/1e3, 'f', 3, 64) }

func millionths(n int64) string { return strconv.FormatFloat(float64(n)/1e6, 'f', 6, 64) }

func seats(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d", n, of)
}

// recordRange is which records began and ended something.
func recordRange(opened, closed uint64) string {
	switch {
	case opened == 0 && closed == 0:
		return "-"
	case closed == 0:
		return fmt.Sprintf("%d-", opened)
	case opened == 0:
		return fmt.Sprintf("-%d", closed)
	}
	return fmt.Sprintf("%d-%d", opened, closed)
}
