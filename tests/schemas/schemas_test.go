// SPDX-License-Identifier: Apache-2.0

// Package schemas holds what gpumeter writes and reads against the JSON schemas that it ships, with a validator of
// others.
package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/report"
)

func shipped(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join("../../etc", name))
	if err != nil {
		t.Fatalf("%s is no JSON schema: %v", name, err)
	}
	return s
}

func fromJSON(t *testing.T, data []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// goldenReport has all that a report can have.
func goldenReport(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../pkg/report/testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReportsAreAsTheirSchemaSays(t *testing.T) {
	schema := shipped(t, "report.schema.json")
	if err := schema.Validate(fromJSON(t, []byte(goldenReport(t)))); err != nil {
		t.Errorf("a report with all there is: %v", err)
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	var bare bytes.Buffer
	if err := report.JSON(&bare, &bill.Bill{Zone: time.UTC, From: day, To: day.AddDate(0, 0, 1)}, report.Options{Items: true}); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(fromJSON(t, bare.Bytes())); err != nil {
		t.Errorf("a report of nothing: %v", err)
	}
}

func TestTheReportsSchemaRefusesWhatIsNoReport(t *testing.T) {
	schema, whole := shipped(t, "report.schema.json"), goldenReport(t)
	for _, change := range [][2]string{
		{`"version": "gpumeter.report/1"`, `"version": "gpumeter.report/2"`},
		{`"complete": false`, `"complete": "no"`},
		{`"kind": "held"`, `"kind": "borrowed"`},
		{`"currency": "EUR"`, `"currency": "euro"`},
		{`"gpu_hours": "`, `"gpu_hours": "about `},
		{`"zone": `, `"zones": `},
		{`"notes": `, `"surprise": 1, "notes": `},
		{`"from": "2026-03-01T00:00:00+01:00"`, `"from": "2026-03-01"`},
		{`"list_cost_exact": "`, `"list_cost_exact": "0.`},
	} {
		if !strings.Contains(whole, change[0]) {
			t.Errorf("%s is not in the report", change[0])
			continue
		}
		if schema.Validate(fromJSON(t, []byte(strings.Replace(whole, change[0], change[1], 1)))) == nil {
			t.Errorf("%s passes for a report", change[1])
		}
	}
}

// asJSON is a YAML text as a JSON document; dates are texts there.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	var document any
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(texts(document))
	if err != nil {
		t.Fatal(err)
	}
	return fromJSON(t, data)
}

func texts(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			v[key] = texts(member)
		}
	case []any:
		for i, member := range v {
			v[i] = texts(member)
		}
	case time.Time:
		if v.Equal(v.Truncate(24 * time.Hour)) {
			return v.Format(time.DateOnly)
		}
		return v.Format(time.RFC3339)
	}
	return v
}

func TestTheExampleOfAPriceBookIsAsTheSchemaSays(t *testing.T) {
	schema := shipped(t, "prices.schema.json")
	example := string(etc.ExamplePrices())
	if err := schema.Validate(asJSON(t, example)); err != nil {
		t.Error(err)
	}
	// What is commented out in it is meant to be used.
	if err := schema.Validate(asJSON(t, strings.NewReplacer("\n  #-", "\n  -", "\n  #  ", "\n    ").Replace(example))); err != nil {
		t.Errorf("with all that is commented out: %v", err)
	}
}

// An editor that knows the schema and gpumeter prices check are of one mind on what either of them can see.
func TestTheSchemaAndTheParserAgreeOnPriceBooks(t *testing.T) {
	schema := shipped(t, "prices.schema.json")
	const head, fine = "name: x\ncurrency: USD\n", "prices: [{name: a, model: \"*\", price: 1}]\n"
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{head + fine, true},
		{"format: 1\n" + head + fine, true},
		{head + fine + "idle: spread\nstacking: add\ndecimals: 4\ntime_zone: Europe/Berlin\n", true},
		{head + "prices:\n- {name: a, model: x, price: 2.50, profiles: {1g.10gb: 3}, valid_from: 2026-01-01, valid_to: 2026-02-01T00:00:00Z, ends: true}\n", true},
		{head + "prices:\n- {name: a, model: x, free: true, spot: true, node_labels: {pool: lab}, cluster: c, node: n, resource: r, mode: mig}\n", true},
		{head + fine + "namespaces:\n- {name: r, namespace: x, multiplier: 2}\ndiscounts:\n- {name: d, percent: 12.5}\nquotas:\n- {name: q, namespace: x, gpu_hours: 5, per: day, shared: true}\n", true},
		{"format: 2\n" + head + fine, false},
		{head, false},
		{head + "prices: []\n", false},
		{"name: x\n" + fine, false},
		{head + fine + "colour: red\n", false},
		{head + fine + "idle: nobody\n", false},
		{head + fine + "decimals: 7\n", false},
		{head + "prices:\n- {name: a, price: 1}\n", false},
		{head + "prices:\n- {name: a, model: x}\n", false},
		{head + "prices:\n- {name: a, model: x, price: 1, free: true}\n", false},
		{head + "prices:\n- {name: a, model: x, price: -1}\n", false},
		{head + "prices:\n- {name: a, model: x, price: 1, mode: half}\n", false},
		{head + "prices:\n- {name: a, model: x, price: 1, spot: false}\n", false},
		{head + "prices:\n- {name: a, model: x, price: 1, valid_from: 01.02.2026}\n", false},
		{head + fine + "namespaces:\n- {name: r, multiplier: 2}\n", false},
		{head + fine + "discounts:\n- {name: d, percent: 101}\n", false},
		{head + fine + "quotas:\n- {name: q, namespace: x, per: week}\n", false},
	} {
		_, parsed := prices.Parse("prices.yaml", []byte(tt.text))
		checked := schema.Validate(asJSON(t, tt.text))
		if said := fmt.Sprint(parsed == nil, checked == nil); said != fmt.Sprint(tt.ok, tt.ok) {
			t.Errorf("%s\nparser: %v\nschema: %v", tt.text, parsed, checked)
		}
	}
}
