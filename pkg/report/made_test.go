// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// priceBook has all that makes costs unlike quantity times price.
const priceBook = `
name: test
currency: EUR
idle: %s
prices: [{name: h100, model: "*", price: 2.4975, profiles: {1g.10gb: 3.1}}]
namespaces: [{name: research, namespace: research, multiplier: 0.77}]
discounts: [{name: off, percent: 12.5, namespace: "team-*"}]
quotas: [{name: trial, namespace: team-a, gpu_hours: 7, per: day}]
`

// anyUsage is what some tenants held of two GPUs in some days, and why nobody held the rest.
func anyUsage(t *rapid.T, days int) ledger.Usage {
	start := time.Date(2026, time.March, 3, 0, 0, 0, 0, time.UTC)
	u := ledger.Usage{Source: "ledger"}
	for d := range days + 1 {
		u.Boundaries = append(u.Boundaries, start.AddDate(0, 0, d))
	}
	u.Nodes = []ledger.NodeUsage{{Cluster: "c", Node: "n", LedgerID: "l", Created: start.AddDate(-1, 0, 0), Readings: u.Boundaries, Labels: map[string]string{"pool": "a"}}}
	const whole = 24 * hour
	for window := range days {
		for card := range 2 {
			left := whole
			for tenant, namespace := range []string{"team-a", "team-b", "research"} {
				held := rapid.Int64Range(0, left).Draw(t, "held")
				left -= held
				h := ledger.Held{
					Window: window, Series: ledger.Series{Namespace: namespace, Resource: "nvidia.com/gpu.shared", Mode: sharing.ModeShared, Model: h100},
					Pod: namespace + "-0", PodUID: fmt.Sprint("uid-", tenant), Container: "main", Card: uuid(card), GPUInstance: gpu.NoInstance,
					Quantity: ledger.Quantity{GPU: held, Energy: held * 300}, Used: map[ledger.Basis]int64{ledger.BasisEqual: held / 3},
				}
				if card == 1 {
					h.Mode, h.Profile, h.GPUInstance = sharing.ModeMIG, "1g.10gb", tenant
				}
				u.Held = append(u.Held, h)
			}
			r := ledger.Rest{Window: window, Card: uuid(card), Index: card, Model: h100}
			r.GPU = whole
			u.Rest = append(u.Rest, r)
			r.Cause, r.GPU = sharing.CauseUnrequested, left
			u.Rest = append(u.Rest, r)
		}
	}
	return u
}

// holdersPayAsBilled: what a holder pays in the dataset is what the bill's rows say, but for their rounding.
func holdersPayAsBilled(t *rapid.T, b *bill.Bill, rows []map[string]string) {
	apart, allowed := make(map[string]decimal.Decimal), make(map[string]decimal.Decimal)
	for i := range b.Rows {
		who := b.Rows[i].Keys[0]
		apart[who] = apart[who].Add(b.Rows[i].TotalCost)
		allowed[who] = allowed[who].Add(decimal.New(2, -b.Decimals))
	}
	for _, row := range rows {
		if row["ChargeCategory"] == "Usage" {
			who := row["x_Namespace"]
			apart[who] = apart[who].Sub(decimal.RequireFromString(row["EffectiveCost"]))
		}
	}
	for who, d := range apart {
		if d.Abs().GreaterThan(allowed[who]) {
			t.Errorf("%q pays %s more in the bill than in the dataset", who, d)
		}
	}
}

func TestABillAsMadeIsWrittenInEveryWay(t *testing.T) {
	s := readSchema(t)
	rapid.Check(t, func(rt *rapid.T) {
		days := rapid.IntRange(1, 3).Draw(rt, "days")
		u := anyUsage(rt, days)
		idle := rapid.SampledFrom([]prices.IdlePolicy{prices.IdlePlatform, prices.IdleSpread, prices.IdleSoleTenant}).Draw(rt, "idle")
		book, err := prices.Parse("prices.yaml", []byte(fmt.Sprintf(priceBook, idle)))
		if err != nil {
			rt.Fatal(err)
		}
		o := bill.Options{From: u.Boundaries[0], To: u.Boundaries[days], Zone: time.UTC, GroupBy: []bill.Dimension{bill.ByNamespace, bill.ByDay}, Prices: book}
		b, err := bill.Make(u, o)
		if err != nil {
			rt.Fatal(err)
		}
		b.Hours = bill.Hours(u)
		version := rapid.SampledFrom(FOCUSVersions()).Draw(rt, "version")
		var out strings.Builder
		if err := FOCUS(&out, b, version, FOCUSOptions{}); err != nil {
			rt.Fatal(err)
		}
		header, rows := sheetOfCSV(t, out.String())
		for _, broken := range validate(version, header, rows) {
			rt.Error(broken)
		}
		sumIsTheBills(rt, b, rows, FOCUSOptions{})
		holdersPayAsBilled(rt, b, rows)
		var text strings.Builder
		if err := JSON(&text, b, Options{Items: true}); err != nil {
			rt.Fatal(err)
		}
		var v any
		if err := json.Unmarshal([]byte(text.String()), &v); err != nil {
			rt.Fatal(err)
		}
		for _, broken := range s.check("", s.root, v) {
			rt.Error(broken)
		}
		for name, write := range map[string]func(io.Writer) error{
			"table": func(w io.Writer) error { return Table(w, b, Options{}) }, "csv": func(w io.Writer) error { return CSV(w, b, Options{}) },
			"html": func(w io.Writer) error { return HTML(w, b, Options{}) },
		} {
			if err := write(io.Discard); err != nil {
				rt.Errorf("%s: %v", name, err)
			}
		}
		if adds, ok := balance(b); !ok {
			rt.Errorf("the bill says of itself: %s", adds)
		}
	})
}

func sumIsTheBills(t interface{ Errorf(string, ...any) }, b *bill.Bill, rows []map[string]string, o FOCUSOptions) {
	billed, effective, listed, contracted := decimal.Zero, decimal.Zero, decimal.Zero, decimal.Zero
	for _, row := range rows {
		if row["ChargeClass"] != "Correction" {
			listed = listed.Add(decimal.RequireFromString(row["ListCost"]))
			contracted = contracted.Add(decimal.RequireFromString(row["ContractedCost"]))
		}
		billed = billed.Add(decimal.RequireFromString(row["BilledCost"]))
		effective = effective.Add(decimal.RequireFromString(row["EffectiveCost"]))
	}
	// Without a unit price a cost is that of the charges it rests on: the rounding of the list cost is of list costs.
	if !listed.Equal(b.Total.ListCost) || !contracted.Equal(b.Total.ListCost) {
		t.Errorf("ListCost adds up to %s, ContractedCost to %s, the bill says %s", listed, contracted, b.Total.ListCost)
	}
	want := b.Total.TotalCost
	if !effective.Equal(want) {
		t.Errorf("EffectiveCost adds up to %s, the bill says %s", effective, want)
	}
	if o.Showback {
		want = decimal.Zero
	}
	if !billed.Equal(want) {
		t.Errorf("BilledCost adds up to %s, want %s", billed, want)
	}
}
