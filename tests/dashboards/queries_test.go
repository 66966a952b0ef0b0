// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpumeter/gpumeter/dashboards/catalogue"
	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// opening is how somebody looks at a dashboard.
type opening struct {
	name   string
	span   time.Duration
	picked picked
	// whole says that all is chosen, so that data must be there.
	whole bool
}

// openings are those that every dashboard is opened in.
func openings() []opening {
	return []opening{
		{name: "as it is imported", whole: true},
		{name: "the last hour", span: time.Hour, whole: true},
		{name: "one node", span: time.Hour, picked: picked{"cluster": {"west"}, "node": {"gpu-node-1"}, "price": {"2.5"}}},
		{name: "a sick node", span: time.Hour, picked: picked{"node": {"gpu-h100-14"}}},
		{name: "several nodes", span: time.Hour, picked: picked{"node": {"gpu-h100-02", "gpu-h100-13", "gpu-a100-01"}, "cluster": {"west", "east"}}},
		{name: "a node of no cluster", span: time.Hour, picked: picked{"node": {"gpu-h100-01"}}},
		{name: "one namespace", span: time.Hour, picked: picked{"namespace": {"inference"}, "price": {"3"}}},
		{name: "several namespaces", span: time.Hour, picked: picked{"namespace": {"ml-research", "search"}, "node": {"gpu-node-1", "gpu-h100-04"}}},
		{name: "one pod", span: time.Hour, picked: picked{"namespace": {"ml-research"}, "pod": {"llm-pretrain"}, "node": {"gpu-node-1"}}},
		{name: "one model", span: time.Hour, picked: picked{"model": {"NVIDIA A100-SXM4-80GB"}, "node": {"gpu-a100-01"}}},
		{name: "what is not there", span: time.Hour, picked: picked{"namespace": {"nobody's (yet)"}, "node": {"gpu-node-1"}}},
	}
}

// asked is what became of a target in all openings.
type asked struct {
	data, none bool
	mayBeEmpty string
}

// TestEveryQueryOfEveryPanelAnswers asks what Grafana would ask, in each opening: every query parses and runs, answers with data where
// there must be some, in the unit that the panel says, and never with what is no number.
func TestEveryQueryOfEveryPanelAnswers(t *testing.T) {
	r := theRig(t)
	for _, d := range load(t) {
		t.Run(d.Name(), func(t *testing.T) {
			reasons := mayBeEmpty(t, d)
			seen := map[string]*asked{}
			for _, o := range openings() {
				v, err := r.open(t.Context(), d, o.span, o.picked)
				if err != nil {
					t.Errorf("%s: %v", o.name, err)
					continue
				}
				for _, p := range d.All() {
					for _, target := range p.Targets {
						key := fmt.Sprintf("%q, query %s", p.Title, target.RefID)
						if seen[key] == nil {
							seen[key] = &asked{mayBeEmpty: reasons[fmt.Sprintf("%d/%s", p.ID, target.RefID)]}
						}
						v.check(t, o, p, target, key, seen[key])
					}
				}
			}
			for key, a := range seen {
				switch {
				case !a.data:
					t.Errorf("%s has no data in any opening (it may be empty: %q)", key, a.mayBeEmpty)
				case a.mayBeEmpty != "" && !a.none:
					t.Logf("%s always has data, and is said to be empty %s", key, a.mayBeEmpty)
				}
			}
		})
	}
}

// mayBeEmpty is why a target may have no data, by panel and query.
func mayBeEmpty(t *testing.T, d *grafana.Dashboard) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range catalogue.All() {
		if c.UID() != d.UID {
			continue
		}
		for _, p := range c.Panels {
			for _, target := range p.Targets {
				out[fmt.Sprintf("%d/%s", p.ID, target.RefID)] = target.MayBeEmpty
			}
		}
		return out
	}
	t.Fatalf("%s is not in the catalogue", d.UID)
	return nil
}

// check asks one target.
func (v *view) check(t *testing.T, o opening, p grafana.Panel, target grafana.Target, key string, a *asked) {
	t.Helper()
	got, err := v.ask(t.Context(), p, target)
	if err != nil {
		t.Errorf("%s, %s: %v\n%s", o.name, key, err, got.query)
		return
	}
	samples := got.samples()
	a.data, a.none = a.data || len(samples) > 0, a.none || len(samples) == 0
	if len(samples) == 0 && o.whole && a.mayBeEmpty == "" {
		t.Errorf("%s, %s has no data:\n%s", o.name, key, got.query)
		return
	}
	frames := got.frames(len(p.Targets) == 1)
	if err := sane(p, frames, v.scope.To); err != nil {
		t.Errorf("%s, %s: %v\n%s", o.name, key, err, got.query)
	}
	if !o.whole || len(samples) == 0 {
		return
	}
	for _, name := range grafana.LegendLabels(target.LegendFormat) {
		if !slices.ContainsFunc(frames, func(f grafana.Frame) bool { return f.Has(name) }) {
			t.Errorf("%s, %s: the legend shows label %s, which no series has\n%s", o.name, key, name, got.query)
		}
	}
}

// sane says whether values are what their unit allows.
func sane(p grafana.Panel, frames []grafana.Frame, now time.Time) error {
	for _, f := range frames {
		for _, c := range f.Fields {
			shown := c
			shown.Name, shown.Display = renamed(p, c), ""
			field, err := p.Field(shown, f.RefID)
			if err != nil {
				return err
			}
			if !grafana.Known(field.Unit) {
				return fmt.Errorf("unit %q is not one of Grafana's", field.Unit)
			}
			for _, x := range c.Values {
				n, ok := x.(float64)
				if ok && !within(field.Unit, n, now) {
					return fmt.Errorf("value %v of %s is no %q", n, shown.Name, field.Unit)
				}
			}
		}
	}
	return nil
}

// renamed is the name that a column has after the panel's transformations, by which overrides go.
func renamed(p grafana.Panel, c grafana.Column) string {
	for _, s := range p.Transformations {
		if name, ok := grafana.Renamed(s, c.Title()); ok {
			return name
		}
	}
	return c.Title()
}

// within says whether a value can be one of a unit. Nothing that the dashboards show is negative, save the difference of two clocks.
func within(unit string, n float64, now time.Time) bool {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return false
	}
	low, high := 0.0, 1e9
	switch unit {
	case "percentunit":
		high = 1
	case "percent":
		high = 100
	case "celsius":
		low, high = 10, 120
	case "watt":
		high = 100_000
	case "bytes", "decbytes", "mbytes", "Bps", "binBps":
		high = 1e14
	case "joule":
		high = 1e15
	case "hertz":
		low, high = 1e8, 1e10
	case "dateTimeFromNow", "dateTimeAsIso", "dateTimeAsLocal", "dateTimeAsSystem":
		low, high = float64(now.AddDate(0, -2, 0).UnixMilli()), float64(now.UnixMilli())
	case "s", "dtdurations":
		high = 40 * 86400
	case "bool", "bool_yes_no", "bool_on_off":
		return n == 0 || n == 1
	}
	const rounding = 1e-6
	return n >= low-rounding && n <= high*(1+rounding)
}

// TestEveryVariableOffersWhatTheFleetHas opens each dashboard with all chosen and with one cluster chosen.
func TestEveryVariableOffersWhatTheFleetHas(t *testing.T) {
	r := theRig(t)
	var all, west []string
	namespaces := map[string]bool{}
	for _, n := range r.players {
		all = append(all, n.name)
		if n.cluster == "west" {
			west = append(west, n.name)
		}
		for _, a := range n.node.Truth(r.at[n.name]) {
			namespaces[a.Holder.Namespace] = true
		}
	}
	slices.Sort(all)
	slices.Sort(west)
	for _, d := range load(t) {
		t.Run(d.Name(), func(t *testing.T) {
			for _, name := range []string{"datasource", "cluster", "node", "namespace", "pod", "model"} {
				if _, ok := d.Variable(name); !ok {
					t.Errorf("there is no variable %s", name)
				}
			}
			v, err := r.open(t.Context(), d, time.Hour, picked{"node": all})
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string][]string{
				"cluster": {"east", "west"}, "node": all, "model": {"NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"},
			} {
				if got := v.options[name]; !slices.Equal(got, want) {
					t.Errorf("%s offers %q, want %q", name, got, want)
				}
			}
			for name := range namespaces {
				if !slices.Contains(v.options["namespace"], name) {
					t.Errorf("namespace does not offer %s: %q", name, v.options["namespace"])
				}
			}
			if slices.Contains(v.options["namespace"], "gpu-system") {
				t.Errorf("namespace offers the exporter's own: %q", v.options["namespace"])
			}
			r.narrowed(t, d, west)
		})
	}
}

// narrowed chooses a cluster and a namespace, and looks what the variables behind them still offer.
func (r *rig) narrowed(t *testing.T, d *grafana.Dashboard, west []string) {
	t.Helper()
	v, err := r.open(t.Context(), d, time.Hour, picked{"cluster": {"west"}, "node": {"gpu-node-1"}, "namespace": {"media", "search"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := v.options["node"]; !slices.Equal(got, west) {
		t.Errorf("in cluster west node offers %q, want %q", got, west)
	}
	pods := map[string]bool{}
	for _, a := range r.player("gpu-node-1").node.Truth(r.at["gpu-node-1"]) {
		if a.Holder.Namespace == "search" || a.Holder.Namespace == "media" {
			pods[a.Holder.Pod] = true
		}
	}
	for name := range pods {
		if !slices.Contains(v.options["pod"], name) {
			t.Errorf("pod does not offer %s: %q", name, v.options["pod"])
		}
	}
	for _, name := range v.options["pod"] {
		if strings.HasPrefix(name, "chat") || strings.HasPrefix(name, "gpumeter") {
			t.Errorf("of the namespaces media and search pod offers %s", name)
		}
	}
}

// player is the node of that name.
func (r *rig) player(name string) *player {
	i := slices.IndexFunc(r.players, func(n *player) bool { return n.name == name })
	return r.players[i]
}

// TestEveryMetricThatIsAskedForIsDocumented parses each expression and looks its metrics up.
func TestEveryMetricThatIsAskedForIsDocumented(t *testing.T) {
	known := documented(t)
	r := theRig(t)
	for _, d := range load(t) {
		t.Run(d.Name(), func(t *testing.T) {
			v, err := r.open(t.Context(), d, time.Hour, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range d.All() {
				for _, target := range p.Targets {
					query, err := v.scope.Interpolate(target.Expr)
					if err != nil {
						t.Errorf("%q: %v", p.Title, err)
						continue
					}
					expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
					if err != nil {
						t.Errorf("%q: %v", p.Title, err)
						continue
					}
					parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
						if s, ok := n.(*parser.VectorSelector); ok && !known[s.Name] {
							t.Errorf("%q asks for %q, which is documented nowhere", p.Title, s.Name)
						}
						return nil
					})
				}
			}
		})
	}
}

// documented are the metrics of the reference, of the counter files, of the shipped rules, and of Prometheus itself.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{"up": true, "ALERTS": true, "scrape_duration_seconds": true, "scrape_samples_scraped": true, "gpumeter:price_per_gpu_hour": true}
	for file, pattern := range map[string]string{
		"../../docs/metrics.md":              "(?m)^\\| `([a-z_]+)` \\|",
		"../../docs/device-plugin.md":        "`(?:gpumeter_device_plugin)?(_[a-z_]+)",
		"../../etc/default-counters.csv":     `(?m)^(?:# )?(DCGM_[A-Z0-9_]+),`,
		"../../etc/dcp-metrics-included.csv": `(?m)^(?:# )?(DCGM_[A-Z0-9_]+),`,
		"../../etc/prometheus/rules.yaml":    `record: (\S+)`,
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(data, -1) {
			name := string(m[1])
			if strings.HasPrefix(name, "_") {
				name = "gpumeter_device_plugin" + name // The page names the first in full and of the others the end.
			}
			known[name] = true
		}
	}
	return known
}
