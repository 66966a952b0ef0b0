// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	h100   = "NVIDIA H100 80GB HBM3"
	second = int64(1_000_000)
)

// day is a day of March 2026 in UTC.
func day(n int) time.Time { return time.Date(2026, 3, n, 0, 0, 0, 0, time.UTC) }

// fleet is a Usage that is put together by and by.
type fleet struct{ ledger.Usage }

// newFleet has one node without cards.
func newFleet(boundaries ...time.Time) *fleet {
	f := &fleet{ledger.Usage{Source: "ledger", Boundaries: boundaries}}
	f.node("node-1", nil)
	return f
}

func (f *fleet) node(name string, labels map[string]string) int {
	f.Nodes = append(f.Nodes, ledger.NodeUsage{Cluster: "c", Node: name, LedgerID: "ledger of " + name, Created: day(1).AddDate(-1, 0, 0), Labels: labels, Readings: f.Boundaries})
	return len(f.Nodes) - 1
}

// seconds are GPU-seconds as a quantity.
func gpuSeconds(s int64) ledger.Quantity { return ledger.Quantity{GPU: s * second} }

// held adds what a namespace held, in GPU-seconds.
func (f *fleet) held(window int, namespace string, s int64, change ...func(*ledger.Held)) {
	h := ledger.Held{
		Window: window, Series: ledger.Series{Namespace: namespace, Resource: "nvidia.com/gpu", Mode: sharing.ModeExclusive, Model: h100},
		GPUInstance: gpu.NoInstance, Quantity: gpuSeconds(s),
	}
	for _, c := range change {
		c(&h)
	}
	f.Held = append(f.Held, h)
}

// rest adds what nobody held of the first card, and with no cause its capacity.
func (f *fleet) rest(window int, cause sharing.Cause, s int64, change ...func(*ledger.Rest)) {
	r := ledger.Rest{Window: window, Card: "GPU-0", Model: h100, Cause: cause, Quantity: gpuSeconds(s)}
	for _, c := range change {
		c(&r)
	}
	f.Rest = append(f.Rest, r)
}

// book is a price book; the head is there already.
func book(t testing.TB, text string) *prices.Book {
	t.Helper()
	b, err := prices.Parse("prices.yaml", []byte("name: test\ncurrency: USD\n"+strings.ReplaceAll(text, "\t", "  ")))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// flat is a price for everything.
func flat(t testing.TB, price string) *prices.Book {
	t.Helper()
	return book(t, fmt.Sprintf("prices: [{name: all, model: \"*\", price: %s}]", price))
}

func bill(t testing.TB, f *fleet, o Options) *Bill {
	t.Helper()
	if o.From.IsZero() {
		o.From, o.To = f.Boundaries[0], f.Boundaries[len(f.Boundaries)-1]
	}
	b, err := Make(f.Usage, o)
	if err != nil {
		t.Fatal(err)
	}
	addsUp(t, b)
	return b
}

// addsUp holds a bill to what must be so of every one.
func addsUp(t testing.TB, b *Bill) {
	t.Helper()
	var sum Sums
	for _, r := range b.Rows {
		for _, c := range moneyOf(r.Sums) {
			if c.left.Sub(c.right).Sign() != 0 {
				t.Fatalf("row %v: %s does not hold: %s and %s", r.Keys, c.what, c.left, c.right)
			}
		}
		sum = sum.Plus(r.Sums)
	}
	if got, want := fmt.Sprint(listed(sum)), fmt.Sprint(listed(b.Total)); got != want {
		t.Fatalf("the rows add up to\n%s\nand the total is\n%s", got, want)
	}
	for _, c := range moneyOf(b.Total) {
		if !c.left.Equal(c.right) {
			t.Fatalf("total: %s does not hold: %s and %s", c.what, c.left, c.right)
		}
	}
}

type equation struct {
	what        string
	left, right decimal.Decimal
}

func moneyOf(s Sums) []equation {
	return []equation{
		{"list - discount = net", s.ListCost.Sub(s.Discount), s.NetCost},
		{"net + idle + adjustment = total", s.NetCost.Add(s.IdleCost).Add(s.Adjustment), s.TotalCost},
	}
}

func listed(s Sums) []string {
	var out []string
	for _, d := range []decimal.Decimal{
		s.GPUHours, s.UsedHours, s.WastedHours, s.MemoryHours, s.Energy, s.ListCost, s.Discount, s.NetCost, s.IdleCost, s.Adjustment, s.TotalCost, s.WastedCost,
	} {
		out = append(out, d.String())
	}
	return out
}

// lines are the rows as short texts: kind, keys, cause, hours, total cost.
func lines(b *Bill) []string {
	var out []string
	for _, r := range b.Rows {
		name := strings.Join(r.Keys, " ")
		if r.Cause != "" {
			name += " [" + string(r.Cause) + "]"
		}
		if r.Kind == KindAdjustment {
			name += " adjusted"
		}
		out = append(out, fmt.Sprintf("%s: %s h, %s", name, r.GPUHours, r.TotalCost))
	}
	return out
}

func wantLines(t *testing.T, b *Bill, want ...string) {
	t.Helper()
	if got := strings.Join(lines(b), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the bill is\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
