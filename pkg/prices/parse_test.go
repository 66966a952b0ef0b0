// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestABookThatIsWrongIsToldAllThatIs(t *testing.T) {
	const fine = "prices: [{name: all, model: \"*\", price: 1}]\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", []string{"prices.yaml: it is empty"}},
		{"no YAML", "\t{", []string{"it is no YAML"}},
		{"two documents", head + fine + "---\na: 1\n", []string{"more than one document"}},
		{"a list", "- 1\n", []string{"prices.yaml:1: a price book is to be a mapping of keys to values, and is a list", "name is missing", "prices is missing", "currency is missing"}},
		{"unknown keys", head + fine + "colour: red\n", []string{"prices.yaml:4: a price book has no key \"colour\": known are currency, "}},
		{"a key twice", head + fine + "name: again\n", []string{"prices.yaml:4: a price book has the key \"name\" twice"}},
		{"everything at once", "format: 2\nname:\ncurrency: XYZ\ndecimals: 7\ntime_zone: Mars/Phobos\nidle: nobody\nstacking: high\nprices: []\n", []string{
			":1: format is to be 1, and is \"2\"", ":2: name is to be a text, and is empty", ":3: currency is to be a code of ISO 4217 such as EUR, and is \"XYZ\"",
			":4: decimals is to be a number from 0 to 6", ":5: time_zone is to be a zone", ":6: idle is to be one of platform, spread, sole-tenant", ":7: stacking is to be one of",
			"prices is missing",
		}},
		{"no price", head + "prices:\n- {name: a, model: x}\n", []string{":4: a: give either price, or \"free: true\""}},
		{"two prices", head + "prices:\n- {name: a, model: x, price: 1, free: true}\n", []string{":4: a: give either price"}},
		{"a zero", head + "prices:\n- {name: a, model: x, price: 0.00}\n", []string{":4: price is 0: write \"free: true\""}},
		{"free: false", head + "prices:\n- {name: a, model: x, free: false}\n", []string{":4: a: give either price"}},
		{"no model", head + "prices:\n- {name: a, price: 1}\n", []string{":4: a: model is missing"}},
		{"an exponent", head + "prices:\n- {name: a, model: x, price: 1e3}\n", []string{":4: price is to be a number such as 2.50"}},
		{"a comma", head + "prices:\n- {name: a, model: x, price: \"1,5\"}\n", []string{":4: price is to be a number"}},
		{"below zero", head + "prices:\n- {name: a, model: x, price: -1}\n", []string{":4: price is to be a number"}},
		{"infinity", head + "prices:\n- {name: a, model: x, price: .inf}\n", []string{":4: price is to be a number"}},
		{"an alias", head + "prices:\n- {name: a, model: x, price: &p 1}\n- {name: b, model: y, price: *p}\n", []string{":5: price is to be a number such as 2.50, of at most 12 digits before and after the point, and is an alias"}},
		{"a name twice", head + "prices:\n- {name: a, model: x, price: 1}\n- {name: a, model: y, price: 1}\n", []string{":5: the name \"a\" is taken by line 4"}},
		{"a bad date", head + "prices:\n- {name: a, model: x, price: 1, valid_from: 01.02.2026}\n", []string{":4: valid_from is to be a date such as"}},
		{"ends before it begins", head + "prices:\n- {name: a, model: x, price: 1, valid_from: 2026-02-01, valid_to: 2026-02-01}\n", []string{":4: a: valid_to is not after valid_from"}},
		{"an unknown mode", head + "prices:\n- {name: a, model: x, price: 1, mode: half}\n", []string{":4: mode is to be one of exclusive, mig, shared, mig-shared"}},
		{"spot: false", head + "prices:\n- {name: a, model: x, price: 1, spot: false}\n", []string{":4: spot: false says nothing"}},
		{"an empty label", head + "prices:\n- {name: a, model: x, price: 1, node_labels: {}}\n", []string{":4: node_labels is to be a mapping"}},
		{"a label that is a list", head + "prices:\n- {name: a, model: x, price: 1, node_labels: {a: [b]}}\n", []string{":4: node_labels: label \"a\""}},
		{"profiles of a profile", head + "prices:\n- {name: a, model: x, price: 1, profile: p, profiles: {q: 1}}\n", []string{":4: a: it has profile already"}},
		{"a free profile", head + "prices:\n- {name: a, model: x, price: 1, profiles: {q: 0}}\n", []string{":4: the price of q is 0"}},
		{"a namespace in prices", head + "prices:\n- {name: a, model: x, price: 1, namespace: b}\n", []string{"an entry of prices has no key \"namespace\""}},
		{"a rule for nobody", head + fine + "namespaces:\n- {name: r, multiplier: 2}\n", []string{":5: r: namespace or namespace_labels is missing"}},
		{"a rule that says nothing", head + fine + "namespaces:\n- {name: r, namespace: x}\n", []string{":5: r: give one of price, multiplier"}},
		{"more than all off", head + fine + "discounts:\n- {name: d, percent: 101}\n- {name: e}\n", []string{":5: percent is above 100", ":6: e: percent is missing"}},
		{"a quota of nothing", head + fine + "quotas:\n- {name: q, namespace: x, per: week}\n- {name: r, namespace: x, gpu_hours: 0.0000001}\n", []string{":5: per is to be one of month, day", ":5: q: gpu_hours is missing", ":6: r: gpu_hours has more than 6 decimals"}},
		{"no currency", "name: x\n" + fine, []string{"prices.yaml: currency is missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Parse("prices.yaml", []byte(c.text))
			if err == nil || b != nil {
				t.Fatalf("no error, book %v", b)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error\n%v\nlacks %q", err, want)
				}
			}
			var p *ProblemError
			if !errors.As(err, &p) || p.File != "prices.yaml" {
				t.Errorf("the error is no ProblemError: %v", err)
			}
		})
	}
}

func TestOverlapsAndHolesAreErrors(t *testing.T) {
	for _, c := range []struct {
		name, entries string
		want          []string
	}{
		{"twice the same", `
- {name: a, model: x, price: 1}
- {name: b, model: x, price: 2}`, []string{"prices.yaml:5: a (line 4) and b (line 5) are as specific as each other"}},
		{"one after the other", `
- {name: a, model: x, price: 1, valid_to: 2026-01-01}
- {name: b, model: x, price: 2, valid_from: 2026-01-01}`, nil},
		{"a day too long", `
- {name: a, model: x, price: 1, valid_to: 2026-01-02}
- {name: b, model: x, price: 2, valid_from: 2026-01-01}`, []string{"a (line 4) and b (line 5)"}},
		{"a day too short", `
- {name: b, model: x, price: 2, valid_from: 2026-01-02}
- {name: a, model: x, price: 1, valid_to: 2026-01-01}`, []string{"prices.yaml:4: between a (line 5, until 2026-01-01T00:00:00Z) and b (line 4, from 2026-01-02T00:00:00Z) there is a hole"}},
		{"a hole that is meant", `
- {name: a, model: x, price: 1, valid_to: 2026-01-01, ends: true}
- {name: b, model: x, price: 2, valid_from: 2026-01-02}`, nil},
		{"patterns that meet", `
- {name: a, model: "ab*", price: 1}
- {name: b, model: "*bc", price: 2}`, []string{"a (line 4) and b (line 5)"}},
		{"patterns that do not", `
- {name: a, model: "ab*", price: 1}
- {name: b, model: "ac*", price: 2}`, nil},
		{"labels that can both be there", `
- {name: a, model: x, price: 1, node_labels: {pool: a}}
- {name: b, model: x, price: 2, node_labels: {zone: b}}`, []string{"a (line 4) and b (line 5)"}},
		{"labels that cannot", `
- {name: a, model: x, price: 1, node_labels: {pool: a}}
- {name: b, model: x, price: 2, node_labels: {pool: b}}`, nil},
		{"an entry of its own beside profiles", `
- {name: a, model: x, price: 1, profiles: {1g: 2}}
- {name: b, model: x, profile: 1g, price: 3}`, []string{"a/1g (line 4) and b (line 5)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("prices.yaml", []byte(head+"prices:"+c.entries+"\n"))
			if (err == nil) != (c.want == nil) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
			}
		})
	}
}

func TestWhatNothingCanMatchIsWarnedOf(t *testing.T) {
	b := parse(t, `
prices:
- {name: all, model: "*", price: 1}
- {name: a, model: "*", mode: shared, profile: 1g.10gb, price: 1}
- {name: b, model: "*", spot: true, price: 1, node_labels: {karpenter.sh/capacity-type: on-demand, eks.amazonaws.com/capacityType: x, cloud.google.com/gke-spot: "no", cloud.google.com/gke-preemptible: "no", kubernetes.azure.com/scalesetpriority: r}}
- {name: c, model: "*", spot: true, price: 1, node_labels: {karpenter.sh/capacity-type: on-demand}}
`)
	warnings := b.Warnings()
	if len(warnings) != 2 || !strings.Contains(warnings[0].String()+warnings[1].String(), "prices.yaml:6: a: nothing can match it") {
		t.Errorf("warnings %v", warnings)
	}
}

// Entries that Parse lets pass never leave it open which of them counts.
func TestNoTwoEntriesOfABookAreForOneThingAtOneTime(t *testing.T) {
	words := []string{"a", "b", "ab", "*", "a*", "*b", "?", "a?"}
	rapid.Check(t, func(rt *rapid.T) {
		var text strings.Builder
		text.WriteString(head + "prices:\n")
		for range rapid.IntRange(1, 5).Draw(rt, "entries") {
			text.WriteString("- {price: 1, model: \"" + rapid.SampledFrom(words).Draw(rt, "model") + "\"")
			if rapid.Bool().Draw(rt, "has node") {
				text.WriteString(", node: \"" + rapid.SampledFrom(words).Draw(rt, "node") + "\"")
			}
			if from := rapid.SampledFrom([]string{"", ", valid_from: 2026-01-01", ", valid_to: 2026-01-01, ends: true"}).Draw(rt, "valid"); from != "" {
				text.WriteString(from)
			}
			text.WriteString("}\n")
		}
		b, err := Parse("prices.yaml", []byte(text.String()))
		if err != nil {
			return
		}
		s := Subject{
			Model: rapid.SampledFrom([]string{"a", "b", "ab", "abb"}).Draw(rt, "of model"), Node: rapid.SampledFrom([]string{"", "a", "b", "ab"}).Draw(rt, "on node"),
			At: time.Date(2025+rapid.IntRange(0, 1).Draw(rt, "year"), 6, 1, 0, 0, 0, 0, time.UTC),
		}
		var best [][]int
		for i := range b.entries {
			if applies, _ := b.entries[i].applies(&s); applies {
				best = append(best, b.entries[i].ranked)
			}
		}
		if len(best) > 1 && slices.Equal(best[0], best[1]) {
			rt.Fatalf("%s\nhas two entries for %+v", text.String(), s)
		}
	})
}

func TestPatternsMeetWhereANameIsMatchedByBoth(t *testing.T) {
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("ab*?")), 1, 5, -1)
	var names []string
	for length := 1; length <= 6; length++ {
		for bits := range 1 << length {
			name := make([]byte, length)
			for i := range name {
				name[i] = "ab"[bits>>i&1]
			}
			names = append(names, string(name))
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		p, q := newPattern(letters.Draw(rt, "p")), newPattern(letters.Draw(rt, "q"))
		both := slices.ContainsFunc(names, func(name string) bool { return p.matches(name) && q.matches(name) })
		if p.meets(q) != q.meets(p) || both && !p.meets(q) {
			rt.Fatalf("%q and %q meet: %t and %t, want %t", p.text, q.text, p.meets(q), q.meets(p), both)
		}
		// Five characters of each need at most ten.
		if p.meets(q) && !both && len(strings.Trim(p.text, "*"))+len(strings.Trim(q.text, "*")) <= 6 && p.text != q.text {
			if strings.Trim(p.text, "*") != "" || strings.Trim(q.text, "*") != "" {
				rt.Fatalf("%q and %q are said to meet, and no name is both's", p.text, q.text)
			}
		}
	})
}

func TestADayBeginsWhereItsFirstInstantIs(t *testing.T) {
	for _, c := range []struct {
		zone             string
		year, month, day int
		want             string
	}{
		{"Europe/Berlin", 2026, 3, 29, "2026-03-28T23:00:00Z"},
		{"America/Sao_Paulo", 2018, 11, 4, "2018-11-04T03:00:00Z"},
		{"Asia/Beirut", 2026, 3, 29, "2026-03-28T22:00:00Z"},
		{"Atlantic/Azores", 2026, 10, 25, "2026-10-25T00:00:00Z"},
		{"America/Havana", 2025, 11, 2, "2025-11-02T04:00:00Z"},
		{"Asia/Amman", 2021, 10, 29, "2021-10-28T21:00:00Z"},
		{"Pacific/Apia", 2011, 12, 31, "2011-12-30T10:00:00Z"},
	} {
		z, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Skip(err)
		}
		if got := StartOfDay(c.year, time.Month(c.month), c.day, z).UTC().Format(time.RFC3339); got != c.want {
			t.Errorf("%s: %d-%d-%d begins at %s, want %s", c.zone, c.year, c.month, c.day, got, c.want)
		}
	}
}

func TestCurrenciesHaveTheirDecimals(t *testing.T) {
	for code, want := range map[string]int32{"EUR": 2, "USD": 2, "JPY": 0, "KWD": 3, "CLF": 4} {
		b, err := Parse("f", []byte("name: x\ncurrency: "+code+"\nprices: [{model: \"*\", price: 1}]"))
		if err != nil || b.Decimals() != want {
			t.Errorf("%s: %v, %v, want %d decimals", code, b, err, want)
		}
	}
	if b := parse(t, "decimals: 4\nprices: [{model: \"*\", price: 1}]"); b.Decimals() != 4 {
		t.Errorf("%d decimals, want 4", b.Decimals())
	}
}

// The schema is for editors; what it knows must be what the program reads.
func TestTheSchemaKnowsTheKeysThatAreRead(t *testing.T) {
	data, err := os.ReadFile("../../etc/prices.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type object struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Closed     *bool                      `json:"additionalProperties"`
	}
	var root object
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	p := &parser{book: &Book{}, names: map[string]int{}}
	same := func(what string, o object, known []string) {
		t.Helper()
		if got := sortedKeys(o.Properties); !slices.Equal(got, known) || o.Closed == nil || *o.Closed {
			t.Errorf("%s: the schema has %v, the program reads %v; closed: %v", what, got, known, o.Closed)
		}
	}
	same("a price book", root, sortedKeys(p.sections()))
	for _, list := range []string{"prices", "namespaces", "discounts", "quotas"} {
		var array struct {
			Items object `json:"items"`
		}
		if err := json.Unmarshal(root.Properties[list], &array); err != nil {
			t.Fatal(err)
		}
		same(list, array.Items, keysRead(t, list))
	}
}

// keysRead are the keys of an entry, out of the program's own words.
func keysRead(t *testing.T, list string) []string {
	t.Helper()
	_, err := Parse("f", []byte(head+list+": [{colour: red}]\n"))
	_, keys, ok := strings.Cut(err.Error(), "has no key \"colour\": known are ")
	if !ok {
		t.Fatalf("error %v does not list the keys", err)
	}
	keys, _, _ = strings.Cut(keys, "\n")
	return strings.Split(keys, ", ")
}

func FuzzParse(f *testing.F) {
	f.Add(exampleText(f))
	for _, text := range []string{
		"", "a: b", head + "prices: [{model: \"*\", price: 1}]", "- 1", "&a [*a]", head + "prices: [{model: \"*\", price: 1, profiles: {[1]: 2}}]", "? {a: b}\n: c", "name: !!binary x", "<<: {}",
		head + "prices: [{<<: {a: b}}]", "time_zone: ../../etc/passwd",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := Parse("f", []byte(text))
		if (b == nil) == (err == nil) {
			t.Fatalf("book %v and error %v", b, err)
		}
		if err != nil {
			return
		}
		again, err := Parse("f", []byte(text))
		if err != nil || again.Version() != b.Version() {
			t.Fatalf("read again it is %v, %v", again, err)
		}
		p, err := b.Price(Subject{Model: "m", Namespace: "n", NodeLabels: map[string]string{}, NamespaceLabels: map[string]string{}})
		if err == nil && (p.Hour.IsNegative() || p.Entry == "") {
			t.Fatalf("price %+v", p)
		}
	})
}

func FuzzParseTeams(f *testing.F) {
	f.Add("teams: [{team: a, namespaces: [b, \"c*\"], namespace_labels: {d: e}}]\nlabel: x")
	f.Fuzz(func(t *testing.T, text string) {
		teams, err := ParseTeams("f", []byte(text))
		if (teams == nil) == (err == nil) {
			t.Fatalf("teams %v and error %v", teams, err)
		}
		if err == nil {
			if _, err := teams.Of("n", map[string]string{"x": "y"}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What the schema calls an example must be read by any YAML reader as this program reads it: no tricks.
func TestTheExampleHasNoAnchors(t *testing.T) {
	var plain map[string]any
	if err := yaml.Unmarshal([]byte(exampleText(t)), &plain); err != nil {
		t.Fatal(err)
	}
	want := []string{"currency", "discounts", "format", "idle", "name", "namespaces", "prices", "quotas", "stacking", "time_zone"}
	if got := slices.Sorted(maps.Keys(plain)); !slices.Equal(got, want) {
		t.Errorf("sections %v, want %v", got, want)
	}
}
