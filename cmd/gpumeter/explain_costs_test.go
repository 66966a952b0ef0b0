// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// Whatever is on the bill of a row is in its explanation: the discount, free hours, the share of what nobody held.
func TestCostsAreExplainedAsTheReportShowsThem(t *testing.T) {
	dir := shift(t)
	prices := saved(t, `format: 1
name: all
currency: USD
idle: spread
prices:
  - {name: flat, model: "*", price: 100}
discounts:
  - {name: off, percent: 10}
quotas:
  - {name: trial, namespace: ml, gpu_hours: 0.25, per: month}
`)
	flags := shiftFlags(dir, "--prices", prices)
	made := madeOf(t, flags)
	for _, row := range made.Rows {
		x, code := explained(t, append(flags, row.ID)...)
		if code != 0 || x.Costs == nil {
			t.Fatalf("row %v: exit code %d, costs %v", row.Keys, code, x.Costs)
		}
		c := x.Costs
		want := explainedCosts{
			List: row.ListCost.StringFixed(2), Discount: row.Discount.StringFixed(2), Net: row.NetCost.StringFixed(2),
			Idle: row.IdleCost.StringFixed(2), Total: row.TotalCost.StringFixed(2), Policy: "spread",
		}
		if *c != want {
			t.Errorf("row %v: %+v, and the report has %+v", row.Keys, c, row.Sums)
		}
	}
	out, _, _ := ask(t, append([]string{"explain"}, append(flags, made.Rows[0].ID)...)...)
	for _, want := range []string{"10 %, 0.250000 h free (trial)", "IDLE SHARE", "USD: list 38.33 - discount", "; share of what nobody held (spread) ", "; total "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if out, _, _ := ask(t, append([]string{"explain"}, shiftFlags(dir, "--namespace", "ml")...)...); strings.Contains(out, "total") || strings.Contains(out, "IDLE") {
		t.Errorf("without prices it speaks of costs:\n%s", out)
	}
}

func TestTwoPodsOfOneNameAreToldApart(t *testing.T) {
	out, _, _ := ask(t, append([]string{"explain"}, shiftFlags(shift(t), "--namespace", "ml")...)...)
	if !strings.Contains(out, "ml/train-0/main (uid-train-0) nvidia.com/gpu.shared") {
		t.Errorf("whose it is cannot be told in\n%s", out)
	}
}
