// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
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

// The rules below are FOCUS' own, column by column, as its versions 1.2 and 1.3 have them.

// columnRule is what the specification says of one column.
type columnRule struct {
	// since is the version that has it, empty for both; mandatory columns must be there.
	since     string
	mandatory bool
	// null says when the column is null: "never", "may", or "unless usage".
	null    string
	kind    string // string, decimal, positive, time, json, currency
	allowed []string
}

func focusRules() map[string]columnRule {
	must := func(kind string, allowed ...string) columnRule {
		return columnRule{mandatory: true, null: "never", kind: kind, allowed: allowed}
	}
	may := func(kind string) columnRule { return columnRule{null: "may", kind: kind} }
	used := func(kind string, allowed ...string) columnRule {
		return columnRule{null: "unless usage", kind: kind, allowed: allowed}
	}
	since13 := func(r columnRule) columnRule { r.since = "1.3"; return r }
	rules := map[string]columnRule{
		"BilledCost": must("decimal"), "EffectiveCost": must("decimal"), "ListCost": must("decimal"), "ContractedCost": must("decimal"),
		"BillingAccountId": must("string"), "BillingAccountName": {mandatory: true, null: "may", kind: "string"}, "BillingCurrency": must("currency"),
		"BillingPeriodStart": must("time"), "BillingPeriodEnd": must("time"), "ChargePeriodStart": must("time"), "ChargePeriodEnd": must("time"),
		"ChargeCategory":    must("string", "Usage", "Purchase", "Tax", "Credit", "Adjustment"),
		"ChargeClass":       {mandatory: true, null: "may", kind: "string", allowed: []string{"Correction"}},
		"ChargeDescription": {mandatory: true, null: "may", kind: "string"},
		"ChargeFrequency":   {null: "never", kind: "string", allowed: []string{"One-Time", "Recurring", "Usage-Based"}},
		"InvoiceId":         may("string"), "InvoiceIssuerName": must("string"), "ProviderName": must("string"), "PublisherName": must("string"),
		"ServiceCategory": must("string", "Compute"), "ServiceName": must("string"), "ServiceSubcategory": must("string", "Containers"),
		"PricingQuantity": {mandatory: true, null: "unless usage", kind: "decimal"}, "PricingUnit": {mandatory: true, null: "unless usage", kind: "string"},
		"PricingCategory": used("string", "Standard", "Dynamic", "Committed", "Other"),
		"ListUnitPrice":   used("positive"), "ContractedUnitPrice": used("positive"), "ConsumedQuantity": used("decimal"), "ConsumedUnit": used("string"),
		"ResourceId": used("string"), "ResourceName": used("string"), "ResourceType": used("string"),
		"SkuId": used("string"), "SkuMeter": used("string"), "SkuPriceId": used("string"), "SkuPriceDetails": used("json"), "Tags": may("json"),
		"SubAccountId": may("string"), "SubAccountName": may("string"), "SubAccountType": may("string"),
		"AllocatedMethodId": since13(used("string")), "AllocatedMethodDetails": since13(used("object")),
		"AllocatedResourceId": since13(may("string")), "AllocatedResourceName": since13(may("string")), "AllocatedTags": since13(may("json")),
		"HostProviderName": since13(must("string")), "ServiceProviderName": since13(must("string")),
	}
	return rules
}

var (
	focusDecimal  = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`)
	focusMoment   = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`)
	focusCurrency = regexp.MustCompile(`^[A-Z]{3}$`)
	pascalCase    = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{1,49}$`)
)

// validate lists what a dataset breaks.
func validate(version string, header []string, rows []map[string]string) []string {
	rules := focusRules()
	var found []string
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	custom := false
	for i, name := range header {
		if slices.Contains(header[:i], name) {
			say("column %s is there twice", name)
		}
		own, isCustom := strings.CutPrefix(name, "x_")
		switch {
		case !pascalCase.MatchString(own):
			say("column %s is not in Pascal case, or too long", name)
		case isCustom:
			custom = true
		case custom:
			say("column %s stands after custom ones", name)
		case rules[name].kind == "" || rules[name].since > version:
			say("FOCUS %s has no column %s", version, name)
		}
	}
	for name, rule := range rules {
		if rule.mandatory && rule.since <= version && !slices.Contains(header, name) {
			say("column %s is missing", name)
		}
	}
	for i, row := range rows {
		for name, value := range row {
			if broken := breaks(rules[name], value, row); broken != "" {
				say("row %d: %s is %q: %s", i+1, name, value, broken)
			}
		}
		for _, broken := range rowBreaks(row) {
			say("row %d: %s", i+1, broken)
		}
	}
	return append(found, originBreaks(version, header, rows)...)
}

func breaks(rule columnRule, value string, row map[string]string) string {
	if value == "" {
		if rule.null == "never" || rule.null == "unless usage" && row["ChargeCategory"] == "Usage" && row["ChargeClass"] == "" {
			return "it must not be null"
		}
		return ""
	}
	if len(rule.allowed) > 0 && !slices.Contains(rule.allowed, value) {
		return "it is none of the allowed values"
	}
	var object map[string]any
	switch rule.kind {
	case "decimal":
		if !focusDecimal.MatchString(value) {
			return "it is no decimal"
		}
	case "positive":
		if !focusDecimal.MatchString(value) || value[0] == '-' {
			return "it is no decimal of 0 or more"
		}
	case "time":
		if _, err := time.Parse(time.RFC3339, value); err != nil || !focusMoment.MatchString(value) {
			return "it is no moment in UTC and whole seconds"
		}
	case "currency":
		if !focusCurrency.MatchString(value) {
			return "it is no code of ISO 4217"
		}
	case "object", "json":
		if err := json.Unmarshal([]byte(value), &object); err != nil {
			return "it is no JSON object"
		}
		for key, member := range object {
			if _, nested := member.(map[string]any); rule.kind == "json" && (nested || isOf("array", member)) {
				return "its member " + key + " is nested"
			}
		}
	case "string":
		if strings.TrimSpace(value) == "" {
			return "it is blank"
		}
	}
	return ""
}

// rowBreaks are the rules across the columns of one charge.
func rowBreaks(row map[string]string) []string {
	var found []string
	number := func(name string) decimal.Decimal {
		d, err := decimal.NewFromString(row[name])
		if err != nil {
			return decimal.Zero
		}
		return d
	}
	correction := row["ChargeClass"] == "Correction"
	for price, cost := range map[string]string{"ListUnitPrice": "ListCost", "ContractedUnitPrice": "ContractedCost"} {
		if row[price] != "" && !number(price).Mul(number("PricingQuantity")).Equal(number(cost)) {
			found = append(found, cost+" is not quantity times "+price)
		}
	}
	for _, pair := range [][2]string{
		{"PricingQuantity", "PricingUnit"}, {"ConsumedQuantity", "ConsumedUnit"}, {"ResourceId", "ResourceType"}, {"SkuId", "SkuMeter"},
		{"SubAccountId", "SubAccountName"}, {"AllocatedResourceId", "AllocatedResourceName"},
	} {
		if (row[pair[0]] == "") != (row[pair[1]] == "") {
			found = append(found, pair[0]+" and "+pair[1]+" are not null together")
		}
	}
	if row["ChargePeriodStart"] >= row["ChargePeriodEnd"] {
		found = append(found, "the charge period ends before it begins")
	}
	if before := row["ChargePeriodEnd"] <= row["BillingPeriodStart"]; before != correction {
		found = append(found, "a charge is a correction where it is of an earlier period, and only there")
	}
	return found
}

// originBreaks are the rules of split allocation: what is one with the origin, and what adds up to it.
func originBreaks(version string, header []string, rows []map[string]string) []string {
	prefix := map[string]string{"1.2": "x_", "1.3": ""}[version]
	sums, first := make(map[string]decimal.Decimal), make(map[string]map[string]string)
	var found []string
	for i, row := range rows {
		id := row["x_OriginId"]
		if id == "" {
			continue
		}
		var details struct {
			Elements []struct{ AllocatedRatio json.Number }
		}
		if err := json.Unmarshal([]byte(row[prefix+"AllocatedMethodDetails"]), &details); err != nil || len(details.Elements) != 1 {
			found = append(found, fmt.Sprintf("row %d: details are %q: %v", i+1, row[prefix+"AllocatedMethodDetails"], err))
			continue
		}
		sums[id] = sums[id].Add(decimal.RequireFromString(details.Elements[0].AllocatedRatio.String()))
		if nobody := row["x_UnallocatedReason"] != ""; nobody != (row[prefix+"AllocatedResourceId"] == "") {
			found = append(found, fmt.Sprintf("row %d: the part that nobody held has no resource, and every other part has", i+1))
		}
		if first[id] == nil {
			first[id] = row
		}
		for _, name := range header {
			own := strings.HasPrefix(name, "x_") || strings.HasPrefix(name, "Allocated") || strings.HasSuffix(name, "Cost") || strings.HasSuffix(name, "Quantity") ||
				version == "1.2" && strings.HasPrefix(name, "SubAccount")
			if !own && row[name] != first[id][name] {
				found = append(found, fmt.Sprintf("row %d: %s is %q, and of its origin it is %q", i+1, name, row[name], first[id][name]))
			}
		}
	}
	for id, sum := range sums {
		if !sum.Equal(decimal.NewFromInt(1)) {
			found = append(found, fmt.Sprintf("the ratios of origin %s add up to %s", id, sum))
		}
	}
	return found
}

func TestADatasetKeepsTheRulesOfFOCUS(t *testing.T) {
	bills := map[string]*bill.Bill{"march": march(t), "hostile": hostile(t)}
	for _, version := range FOCUSVersions() {
		for name, b := range bills {
			for _, o := range []FOCUSOptions{{}, {Showback: true, Issuer: "Example AG", Host: "Colo"}} {
				header, rows := sheetOfCSV(t, written(t, func(w io.Writer) error { return FOCUS(w, b, version, o) }))
				for _, broken := range validate(version, header, rows) {
					t.Errorf("%s, %s: %s", name, version, broken)
				}
				sumIsTheBills(t, b, rows, o)
			}
		}
	}
}

func TestTheValidatorSeesBrokenDatasets(t *testing.T) {
	b := march(t)
	whole := written(t, func(w io.Writer) error { return FOCUS(w, b, "1.3", FOCUSOptions{}) })
	for name, spoil := range map[string]func(row map[string]string){
		"null":       func(row map[string]string) { row["BilledCost"] = "" },
		"sign":       func(row map[string]string) { row["EffectiveCost"] = "+1" },
		"product":    func(row map[string]string) { row["ListCost"] = "1" },
		"category":   func(row map[string]string) { row["ChargeCategory"] = "Lease" },
		"local time": func(row map[string]string) { row["ChargePeriodStart"] = "2026-03-01T00:00:00+01:00" },
		"nested tag": func(row map[string]string) { row["Tags"] = `{"a":{}}` },
		"resource":   func(row map[string]string) { row["AllocatedResourceId"] = "" },
		"ratio": func(row map[string]string) {
			row["AllocatedMethodDetails"] = strings.Replace(row["AllocatedMethodDetails"], `Ratio":`, `Ratio":-`, 1)
		},
		"dimension":  func(row map[string]string) { row["x_OriginId"], row["SkuId"] = "1", "other" },
		"correction": func(row map[string]string) { row["ChargeClass"] = "Correction" },
	} {
		t.Run(name, func(t *testing.T) {
			header, rows := sheetOfCSV(t, whole)
			rows[2]["x_OriginId"] = "1"
			spoil(rows[1])
			if len(validate("1.3", header, rows)) == 0 {
				t.Error("nothing was found")
			}
		})
	}
	header, rows := sheetOfCSV(t, whole)
	if len(validate("1.2", header, rows)) == 0 {
		t.Error("columns of 1.3 pass for 1.2")
	}
}

func TestWhatFOCUSCannotShowIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(b *bill.Bill)
		version string
		want    string
	}{
		"version": {func(*bill.Bill) {}, "1.4", "1.2 or 1.3"},
		"prices":  {func(b *bill.Bill) { b.Currency = "" }, "1.3", "price book"},
		"pods":    {func(b *bill.Bill) { b.Rows[2].Items[0].Card = "" }, "1.3", "pods"},
		"node":    {func(b *bill.Bill) { b.Rows[2].Items[0].Node = 7 }, "1.3", "node 7"},
		"total":   {func(b *bill.Bill) { b.Rows = b.Rows[1:] }, "1.3", "not made of all"},
	} {
		b := march(t)
		c.spoil(b)
		if err := FOCUS(io.Discard, b, c.version, FOCUSOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestPartsAddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Int64Range(1, 1<<50), 1, 12).Draw(t, "weights")
		if rapid.Bool().Draw(t, "negative") {
			for i := range weights {
				weights[i] = -weights[i]
			}
		}
		whole := decimal.New(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "whole"), -rapid.Int32Range(0, ratioDecimals).Draw(t, "decimals"))
		sum, unit := decimal.Zero, decimal.New(1, -ratioDecimals)
		total := decimal.Zero
		for _, w := range weights {
			total = total.Add(decimal.NewFromInt(w))
		}
		for i, part := range divide(whole, weights) {
			sum = sum.Add(part)
			exact := whole.Mul(decimal.NewFromInt(weights[i])).DivRound(total, 2*ratioDecimals)
			if part.Sub(exact).Abs().GreaterThan(unit) {
				t.Fatalf("part %d is %s, far from %s", i, part, exact)
			}
		}
		if !sum.Equal(whole) {
			t.Fatalf("%v of %s add up to %s", weights, whole, sum)
		}
	})
}

func TestAnyBillIsAValidDataset(t *testing.T) {
	berlin := inBerlin(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := anyBill(rt, berlin)
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
	})
}

// anyBill has some items on some cards, at prices that may have no end as decimals once a discount or a quota is off.
func anyBill(t *rapid.T, zone *time.Location) *bill.Bill {
	b := &bill.Bill{ID: "b", From: at(zone, 1, 0), To: at(zone, 32, 0), Zone: zone, Currency: "EUR", Decimals: rapid.SampledFrom([]int32{0, 2, 3}).Draw(t, "decimals")}
	b.Nodes = []bill.Node{node(b, "a", 4), node(b, "b", 4)}
	var total, list sharing.Fraction
	for i := range rapid.IntRange(0, 12).Draw(t, "items") {
		card := rapid.IntRange(0, 7).Draw(t, "card")
		item := &bill.Item{
			Kind: bill.KindHeld, Node: card / 4, Start: b.From, End: b.To, Card: uuid(card), CardIndex: card % 4, GPUInstance: gpu.NoInstance,
			Series: ledger.Series{Namespace: "ns", Mode: sharing.ModeShared, Model: h100}, Pod: fmt.Sprint("pod-", i),
			Quantity: ledger.Quantity{GPU: rapid.Int64Range(0, 744*hour).Draw(t, "micros")},
			Price: prices.Price{
				Hour:     decimal.New(rapid.Int64Range(0, 99999).Draw(t, "price"), -rapid.Int32Range(0, 4).Draw(t, "scale")),
				Discount: decimal.New(rapid.Int64Range(-5000, 10000).Draw(t, "discount"), -2),
			},
		}
		if rapid.Bool().Draw(t, "nobody") {
			item.Kind, item.Series, item.Pod, item.Cause = bill.KindUnallocated, ledger.Series{Model: h100}, "", sharing.CauseFree
		}
		item.List = exact(item.Price.Hour).Mul(sharing.NewFraction(item.GPU, hour))
		item.Net = item.List.Mul(sharing.One().Sub(exact(item.Price.Discount).Scale(1, 100)))
		item.Idle = sharing.NewFraction(rapid.Int64Range(-1000, 1000).Draw(t, "idle"), 7)
		if item.GPU == 0 {
			item.Idle = sharing.Fraction{}
		}
		total, list = total.Add(item.Net).Add(item.Idle), list.Add(item.List)
		b.Rows = append(b.Rows, bill.Row{ID: fmt.Sprint("r", i), Kind: item.Kind, Items: []bill.Item{*item}})
	}
	b.Total.TotalCost, b.Total.ListCost = rounded(total, b.Decimals), rounded(list, b.Decimals)
	return b
}
