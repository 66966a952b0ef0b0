// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// mostBars and mostWasters are how many are drawn; the others are counted beneath, and all are in the table.
	mostBars    = 24
	mostWasters = 12
)

// causes are all of them, as they are shown.
func causes() []sharing.Cause {
	return []sharing.Cause{
		sharing.CauseFree, sharing.CauseUnrequested, sharing.CauseStranded,
		sharing.CauseUnhealthy, sharing.CauseUnobserved, sharing.CauseUnattributed,
	}
}

// tally is what was summed up for one bar.
type tally struct {
	name                            string
	hours, used, wasted, cost, lost decimal.Decimal
	measured                        bool
}

// whereBar is the bar of all capacity.
func whereBar(b *bill.Bill) bar {
	all := tally{}
	for i := range b.Rows {
		if b.Rows[i].Kind == bill.KindHeld {
			all.add(&b.Rows[i])
		}
	}
	held, left, _ := split(b)
	whole := held.Add(left)
	segments := all.segments(whole)
	rest := restHours(b)
	for _, c := range causes() {
		if hours := rest[c].hours; !hours.IsZero() {
			segments = append(segments, newSegment(string(c), causeName(c), hours, whole))
		}
	}
	return bar{Name: "All GPUs", Segments: segments}
}

func (t *tally) add(r *bill.Row) {
	t.hours = t.hours.Add(r.GPUHours)
	t.cost = t.cost.Add(r.TotalCost)
	if measured(r) {
		t.measured = true
		t.used = t.used.Add(r.UsedHours)
		t.wasted = t.wasted.Add(r.WastedHours)
		t.lost = t.lost.Add(r.WastedCost)
	}
}

// segments are what was held: used, wasted, and what of it nobody measured. Used that exceeds what was held is drawn to the
// end of the bar.
func (t *tally) segments(whole decimal.Decimal) []segment {
	wasted := decimal.Max(decimal.Zero, t.wasted)
	used := decimal.Max(decimal.Zero, decimal.Min(t.used, t.hours.Sub(wasted)))
	var all []segment
	for _, s := range []struct {
		class, label string
		hours        decimal.Decimal
	}{{"used", "used", used}, {"wasted", "held, not used", wasted}, {"unmeasured", "held, not measured", t.hours.Sub(used).Sub(wasted)}} {
		if s.hours.IsPositive() {
			all = append(all, newSegment(s.class, s.label, s.hours, whole))
		}
	}
	return all
}

func newSegment(class, label string, hours, whole decimal.Decimal) segment {
	share, _ := percent(hours, whole)
	return segment{Class: class, Label: label, Value: thousands(hours.StringFixed(1)) + " GPU-h", Share: share, Width: widthOf(hours, whole), Hours: hours.String()}
}

func widthOf(part, whole decimal.Decimal) string {
	if !whole.IsPositive() || !part.IsPositive() {
		return "0"
	}
	return part.Mul(decimal.NewFromInt(100)).DivRound(whole, 4).String()
}

func restHours(b *bill.Bill) map[sharing.Cause]tally {
	rest := make(map[sharing.Cause]tally)
	for i := range b.Rows {
		if r := &b.Rows[i]; r.Kind == bill.KindUnallocated {
			t := rest[r.Cause]
			t.add(r)
			rest[r.Cause] = t
		}
	}
	return rest
}

func causesOf(b *bill.Bill) []cause {
	held, left, _ := split(b)
	rest := restHours(b)
	var all []cause
	for _, c := range causes() {
		t := rest[c]
		if t.hours.IsZero() {
			continue
		}
		share, _ := percent(t.hours, held.Add(left))
		one := cause{Class: string(c), Name: causeName(c), Hours: thousands(t.hours.StringFixed(1)), Share: share, Meaning: causeMeaning(c)}
		if priced(b) {
			one.Cost = thousands(t.cost.StringFixed(b.Decimals))
		}
		all = append(all, one)
	}
	return all
}

// holders sums the held rows up by name, in the order of their first rows.
func holders(b *bill.Bill, name func(*bill.Row) string) []tally {
	var all []tally
	index := make(map[string]int)
	for i := range b.Rows {
		r := &b.Rows[i]
		if r.Kind != bill.KindHeld {
			continue
		}
		key := name(r)
		n, known := index[key]
		if !known {
			n = len(all)
			index[key] = n
			all = append(all, tally{name: key})
		}
		all[n].add(r)
	}
	return all
}

// tenantBars are the bars of who held, the longest first, by what, and what is said of those not drawn.
func tenantBars(b *bill.Bill) (bars []bar, by, others string) {
	at := slices.Index(b.GroupBy, bill.ByNamespace)
	if at < 0 {
		at = slices.IndexFunc(b.GroupBy, func(d bill.Dimension) bool { return !timeDimension(d) })
	}
	by = "holder"
	name := func(*bill.Row) string { return "everybody" }
	if at >= 0 {
		by = string(b.GroupBy[at])
		name = func(r *bill.Row) string { return orNone(r.Keys[at]) }
	}
	all := holders(b, name)
	slices.SortStableFunc(all, func(x, y tally) int { return y.hours.Cmp(x.hours) })
	if len(all) == 0 {
		return nil, visible(by), ""
	}
	for i, t := range all {
		if i == mostBars {
			rest := decimal.Zero
			for _, t := range all[i:] {
				rest = rest.Add(t.hours)
			}
			others = counted(len(all)-i, "other") + " held " + thousands(rest.StringFixed(1)) + " GPU-hours together; they are in the table below."
			break
		}
		one := bar{Name: visible(t.name), Value: thousands(t.hours.StringFixed(1)) + " GPU-h", Segments: t.segments(all[0].hours)}
		if priced(b) {
			one.Note = thousands(t.cost.StringFixed(b.Decimals)) + " " + b.Currency
		}
		bars = append(bars, one)
	}
	return bars, visible(by), others
}

func orNone(name string) string {
	if name == "" {
		return "(none)"
	}
	return name
}

// wasters are who wasted most, and what is said of the others.
func wasters(b *bill.Bill) (list []waster, note string) {
	var all []tally
	for _, t := range holders(b, func(r *bill.Row) string { return rowName(b, r) }) {
		if t.measured && t.wasted.IsPositive() {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(x, y tally) int {
		if byCost := y.lost.Cmp(x.lost); priced(b) && byCost != 0 {
			return byCost
		}
		return y.wasted.Cmp(x.wasted)
	})
	longest := decimal.Zero
	for _, t := range all {
		longest = decimal.Max(longest, t.wasted)
	}
	for i, t := range all {
		if i == mostWasters {
			return list, counted(len(all)-i, "other") + " wasted less; they are in the table below."
		}
		share, _ := percent(t.wasted, t.hours)
		one := waster{Name: visible(t.name), Hours: thousands(t.wasted.StringFixed(1)), Share: strings.TrimSuffix(share, " %"), Width: widthOf(t.wasted, longest)}
		if priced(b) {
			one.Cost = thousands(t.lost.StringFixed(b.Decimals))
		}
		list = append(list, one)
	}
	return list, ""
}
