// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

const head = "name: test\ncurrency: USD\n"

func parse(t testing.TB, text string) *Book {
	t.Helper()
	b, err := Parse("prices.yaml", []byte(head+text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

// show is a price on one line: entry, hour, discount, sources.
func show(b *Book, s Subject) string {
	p, err := b.Price(s)
	switch {
	case errors.Is(err, ErrNoPrice):
		return "no price"
	case errors.Is(err, ErrLabelsUnknown):
		return "labels unknown"
	case err != nil:
		return err.Error()
	}
	return strings.TrimSpace(p.Entry + " " + p.Hour.String() + " -" + p.Discount.String() + "% " + strings.Join(p.Sources, ","))
}

// example is the book that is shipped, with its entries that are commented out where all is wanted.
func example(t testing.TB, all bool) *Book {
	t.Helper()
	text := exampleText(t)
	if all {
		text = regexp.MustCompile(`(?m)^  #(- |  )`).ReplaceAllString(text, "  $1")
	}
	b, err := Parse("prices.example.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func exampleText(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("../../etc/prices.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Who tries the example has told the exporter nothing of labels yet.
func TestTheExampleNeedsNoLabels(t *testing.T) {
	s := Subject{Model: "NVIDIA H100 80GB HBM3", Mode: "mig", Profile: "1g.10gb", Namespace: "web", At: at("2026-02-01T00:00:00Z")}
	if got := show(example(t, false), s); got != "h100/1g.10gb 3.2 -0%" {
		t.Errorf("price %q", got)
	}
}

func TestTheExampleSaysWhatItsCommentsSay(t *testing.T) {
	b := example(t, true)
	none := map[string]string{}
	h100 := Subject{Model: "NVIDIA H100 80GB HBM3", Resource: "nvidia.com/gpu", Mode: "exclusive", Namespace: "web", Node: "n", NodeLabels: none, NamespaceLabels: none, At: at("2026-02-01T00:00:00Z")}
	for _, c := range []struct {
		name   string
		change func(*Subject)
		want   string
	}{
		{"an H100", func(*Subject) {}, "h100 2.85 -0%"},
		{"in the year before", func(s *Subject) { s.At = at("2025-06-01T00:00:00Z") }, "h100-2025 3.1 -0%"},
		{"the last second of it in Berlin", func(s *Subject) { s.At = at("2025-12-31T22:59:59Z") }, "h100-2025 3.1 -0%"},
		{"the first of the next", func(s *Subject) { s.At = at("2025-12-31T23:00:00Z") }, "h100 2.85 -0%"},
		{"a slice", func(s *Subject) { s.Mode, s.Profile = "mig", "1g.10gb" }, "h100/1g.10gb 3.2 -0%"},
		{"a slice with media engines", func(s *Subject) { s.Mode, s.Profile = "mig", "1g.10gb+me" }, "h100/1g.10gb+me 3.3 -0%"},
		{"another slice", func(s *Subject) { s.Mode, s.Profile = "mig", "3g.40gb" }, "h100 2.85 -0%"},
		{"on spot", func(s *Subject) { s.NodeLabels = map[string]string{"cloud.google.com/gke-spot": "true"} }, "h100-spot 1.2 -0%"},
		{"on a node that nobody knows the labels of", func(s *Subject) { s.NodeLabels = nil }, "labels unknown"},
		{"research", func(s *Subject) { s.Namespace = "research-1" }, "h100 2.85 -20% research"},
		{"a partner", func(s *Subject) { s.Namespace = "partner-acme" }, "partner 2.5 -0%"},
		{"a partner, committed", func(s *Subject) { s.Namespace, s.At = "partner-acme", at("2026-05-01T00:00:00Z") }, "partner 2.5 -0%"},
		{"the platform's own", func(s *Subject) { s.NamespaceLabels = map[string]string{"gpumeter.example/billing": "none"} }, "platform-itself 0 -0%"},
		{"committed", func(s *Subject) { s.At = at("2026-05-01T00:00:00Z") }, "h100 2.85 -12.5% committed-use"},
		{"committed research in a queue", func(s *Subject) {
			s.At, s.Namespace, s.NamespaceLabels = at("2026-05-01T00:00:00Z"), "research-1", map[string]string{"queue": "batch"}
		}, "h100 2.85 -37% research,committed-use,batch"},
		{"nobody's", func(s *Subject) { s.Namespace, s.NamespaceLabels, s.Mode, s.Resource = "", nil, "", "" }, "h100 2.85 -0%"},
		{"nobody's, committed", func(s *Subject) {
			s.Namespace, s.NamespaceLabels, s.At = "", nil, at("2026-05-01T00:00:00Z")
		}, "h100 2.85 -12.5% committed-use"},
		{"the lab's", func(s *Subject) { s.Model, s.NodeLabels = "NVIDIA A100-SXM4-40GB", map[string]string{"pool": "lab"} }, "lab 0 -0%"},
		{"a shared L4", func(s *Subject) { s.Model, s.Mode = "NVIDIA L4", "shared" }, "l4-shared 0.55 -0%"},
		{"an unknown model", func(s *Subject) { s.Model = "NVIDIA B200" }, "no price"},
		{"no model", func(s *Subject) { s.Model = "" }, "no price"},
	} {
		s := h100
		c.change(&s)
		if got := show(b, s); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if b.Currency() != "EUR" || b.Decimals() != 2 || b.Idle() != IdlePlatform || b.Name() != "example-2026" || len(b.Warnings()) != 0 {
		t.Errorf("%s %d %s %s %v", b.Currency(), b.Decimals(), b.Idle(), b.Name(), b.Warnings())
	}
	if q := b.Quotas(); len(q) != 1 || q[0].Hours.String() != "100" || q[0].Per != PerMonth || q[0].Shared {
		t.Errorf("quotas %+v", q)
	}
}

func TestTheMostSpecificEntryCounts(t *testing.T) {
	b := parse(t, `
prices:
- {name: any, model: "*", price: 1}
- {name: family, model: "NVIDIA H*", price: 2}
- {name: longer, model: "NVIDIA H100*", price: 3}
- {name: exact, model: "NVIDIA H100 80GB HBM3", price: 4}
- {name: slice, model: "*", profile: 1g.10gb, price: 5}
- {name: cluster, model: "*", cluster: east, price: 6}
- {name: pool, model: "*", node_labels: {pool: a}, price: 7}
- {name: zone and pool, model: "*", node_labels: {pool: a, zone: b}, price: 8}
- {name: node, model: "*", node: "gpu-*", price: 9}
`)
	s := Subject{Model: "NVIDIA H100 80GB HBM3", NodeLabels: map[string]string{}, At: at("2026-01-01T00:00:00Z")}
	for _, c := range []struct {
		want   string
		change func(*Subject)
	}{
		{"exact", func(*Subject) {}},
		{"longer", func(s *Subject) { s.Model = "NVIDIA H100 NVL" }},
		{"family", func(s *Subject) { s.Model = "NVIDIA H200" }},
		{"any", func(s *Subject) { s.Model = "NVIDIA L4" }},
		{"exact", func(s *Subject) { s.Profile = "1g.10gb" }},
		{"slice", func(s *Subject) { s.Model, s.Profile = "NVIDIA A100", "1g.10gb" }},
		{"cluster", func(s *Subject) { s.Cluster = "east" }},
		{"pool", func(s *Subject) { s.Cluster, s.NodeLabels = "east", map[string]string{"pool": "a"} }},
		{"zone and pool", func(s *Subject) { s.NodeLabels = map[string]string{"pool": "a", "zone": "b"} }},
		{"node", func(s *Subject) { s.Node, s.NodeLabels = "gpu-1", map[string]string{"pool": "a", "zone": "b"} }},
	} {
		s := s
		c.change(&s)
		if p, err := b.Price(s); err != nil || p.Entry != c.want {
			t.Errorf("%+v: %q, %v, want %q", s, p.Entry, err, c.want)
		}
	}
}

func TestDiscountsStack(t *testing.T) {
	text := `
prices: [{name: all, model: "*", price: 10}]
namespaces: [{name: dear, namespace: b, multiplier: 1.5}]
discounts: [{name: one, percent: 10}, {name: two, percent: 20}, {name: three, percent: 75, namespace: c}]
stacking: `
	for _, c := range []struct{ stacking, namespace, want string }{
		{"compound", "a", "all 10 -28% one,two"},
		{"add", "a", "all 10 -30% one,two"},
		{"compound", "b", "all 10 --8% dear,one,two"},
		{"add", "b", "all 10 --5% dear,one,two"},
		{"compound", "c", "all 10 -82% one,two,three"},
	} {
		if got := show(parse(t, text+c.stacking), Subject{Model: "m", Namespace: c.namespace}); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.stacking, c.namespace, got, c.want)
		}
	}
	if got := show(parse(t, text+"add"), Subject{Model: "m", Namespace: "c"}); !strings.Contains(got, "105 %") {
		t.Errorf("discounts of more than all: %q", got)
	}
}

func TestNumbersAreThoseOfTheFile(t *testing.T) {
	b := parse(t, `prices: [{name: all, model: "*", price: 123456789012.000000000001}]`)
	if p, err := b.Price(Subject{Model: "m"}); err != nil || p.Hour.String() != "123456789012.000000000001" {
		t.Errorf("price %s, %v", p.Hour, err)
	}
}

func TestChangesAreAllThatBeginsOrEndsWithin(t *testing.T) {
	b := parse(t, `
prices: [{name: a, model: "*", price: 1, valid_to: 2026-01-10}, {name: b, model: "*", price: 2, valid_from: 2026-01-10}]
namespaces: [{namespace: x, multiplier: 2, valid_from: 2026-01-05T12:00:00+02:00}]
discounts: [{percent: 5, valid_to: 2026-01-20}, {percent: 5, valid_to: 2026-02-01}]
quotas: [{namespace: x, gpu_hours: 5, valid_from: 2026-01-01}]
`)
	var got []string
	for _, c := range b.Changes(at("2026-01-01T00:00:00Z"), at("2026-02-01T00:00:00Z")) {
		got = append(got, c.UTC().Format(time.RFC3339))
	}
	if want := "2026-01-05T10:00:00Z 2026-01-10T00:00:00Z 2026-01-20T00:00:00Z"; strings.Join(got, " ") != want {
		t.Errorf("changes %v, want %s", got, want)
	}
	if list := b.ListedAt(at("2026-01-10T00:00:00Z")); len(list) != 1 || list[0].Name != "b" || list[0].Selector != "model=*" {
		t.Errorf("listed %+v", list)
	}
}

func TestTheVersionIsWhatTheBookSays(t *testing.T) {
	one := `prices: [{name: a, model: x, price: 1.50}, {name: b, model: y, price: 2}]`
	version := parse(t, one).Version()
	if same := parse(t, "# a remark\nprices:\n- {name: b, model: y, price: 2.00}\n- name: a\n  price: \"1.5\"\n  model: x\n").Version(); same != version {
		t.Errorf("the same prices are %s and %s", version, same)
	}
	for _, other := range []string{
		strings.Replace(one, "1.50", "1.51", 1), one + "\nidle: spread", one + "\nstacking: add", one + "\ndiscounts: [{percent: 1}]", one + "\ndecimals: 3",
		one + "\ntime_zone: Europe/Berlin", strings.Replace(one, "price: 2", "free: true", 1), strings.Replace(one, "price: 2", "price: 2, valid_from: 2026-01-01", 1),
		strings.Replace(one, "price: 2", "price: 2, valid_to: 2026-01-01", 1), strings.Replace(one, "price: 2", "price: 2, mode: mig", 1),
	} {
		if got := parse(t, other).Version(); got == version || !strings.HasPrefix(got, "test@") {
			t.Errorf("%s has the version %s", other, got)
		}
	}
}

func TestTeams(t *testing.T) {
	teams, err := ParseTeams("teams.yaml", []byte(`
format: 1
label: team
cost_center_label: cc
teams:
- {team: search, cost_center: "0042", namespaces: [search, "search-*"]}
- {team: ads, namespaces: [search-ads]}
- {team: web, namespace_labels: {org: web}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace string
		labels    map[string]string
		want      Team
	}{
		{"search", nil, Team{"search", "0042"}},
		{"search-1", nil, Team{"search", "0042"}},
		{"search-ads", nil, Team{"ads", ""}},
		{"x", map[string]string{"org": "web", "team": "other"}, Team{"web", ""}},
		{"x", map[string]string{"team": "other", "cc": "7"}, Team{"other", "7"}},
		{"x", map[string]string{}, Team{}},
		{"", nil, Team{}},
	} {
		if got, err := teams.Of(c.namespace, c.labels); err != nil || got != c.want {
			t.Errorf("%q %v is %+v, %v, want %+v", c.namespace, c.labels, got, err, c.want)
		}
	}
	if _, err := teams.Of("x", nil); !errors.Is(err, ErrLabelsUnknown) {
		t.Errorf("a namespace of unknown labels: %v", err)
	}
	_, err = ParseTeams("teams.yaml", []byte("teams:\n- {team: a, namespaces: [x]}\n- {team: b, namespaces: [x]}\n- {namespaces: [y]}\n- {team: c}\n- {team: d, colour: red, namespaces: [z]}\n"))
	for _, want := range []string{"teams.yaml:3: namespace \"x\" is of team \"a\" already", "teams.yaml:4: an entry of teams: team is missing", "teams.yaml:5: team \"c\"", "teams.yaml:6: an entry of teams has no key \"colour\""} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
