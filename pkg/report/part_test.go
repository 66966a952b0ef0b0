// SPDX-License-Identifier: Apache-2.0

package report

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func TestADatasetOfPartsOfGPUsIsRefused(t *testing.T) {
	b := *march(t)
	b.OfHolders = true
	if err := FOCUS(io.Discard, &b, "1.3", FOCUSOptions{}); err == nil || !strings.Contains(err.Error(), "whole GPUs") {
		t.Errorf("it is written: %v", err)
	}
}

func TestAHolderWithoutANameIsToldAsNone(t *testing.T) {
	b := *march(t)
	b.GroupBy = []bill.Dimension{bill.ByTeam}
	b.Rows = []bill.Row{{ID: "a", Kind: bill.KindHeld, Keys: []string{""}}, {ID: "b", Kind: bill.KindUnallocated, Keys: []string{""}, Cause: "free"}}
	if text := written(t, func(w io.Writer) error { return Table(w, &b, Options{}) }); strings.Count(text, "(none)") != 1 {
		t.Errorf("the table has %d of (none), want one:\n%s", strings.Count(text, "(none)"), text)
	}
	page := written(t, func(w io.Writer) error { return HTML(w, &b, Options{}) })
	if n := strings.Count(page, `<td class="name"><bdi>(none)</bdi></td>`); n != 1 {
		t.Errorf("%d rows of the page are of (none), want one", n)
	}
	if text := written(t, func(w io.Writer) error { return CSV(w, &b, Options{}) }); strings.Contains(text, "(none)") {
		t.Errorf("a program reads a team (none):\n%s", text)
	}
}

func TestPricesStandPointBelowPoint(t *testing.T) {
	b := *march(t)
	b.GroupBy = nil
	b.Rows = nil
	for _, price := range []string{"2", "1.375", "0.5"} {
		b.Rows = append(b.Rows, bill.Row{Kind: bill.KindHeld, UnitPrice: decimal.NewNullDecimal(decimal.RequireFromString(price))})
	}
	text := written(t, func(w io.Writer) error { return Table(w, &b, Options{}) })
	for _, want := range []string{" 2.000 ", " 1.375 ", " 0.500 "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestAThousandGapsAreNotToldOneByOne(t *testing.T) {
	b := *march(t)
	b.Nodes = []bill.Node{{NodeUsage: ledger.NodeUsage{Node: "n"}}}
	for i := range mostGaps + 3 {
		from := b.From.Add(time.Duration(i) * time.Hour)
		b.Nodes[0].Gaps = append(b.Nodes[0].Gaps, ledger.Missing{From: from, To: from.Add(time.Minute), Reason: "restart", Text: "walked off"})
	}
	for name, write := range map[string]func(io.Writer) error{
		"table": func(w io.Writer) error { return Table(w, &b, Options{}) }, "html": func(w io.Writer) error { return HTML(w, &b, Options{}) },
	} {
		text := written(t, write)
		if n := strings.Count(text, "walked off"); n != mostGaps || !strings.Contains(text, "3 more times, 3 min together") {
			t.Errorf("%s tells %d gaps:\n%s", name, n, text)
		}
	}
}
