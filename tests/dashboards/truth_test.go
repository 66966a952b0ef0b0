// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// dashboard is the shipped dashboard of that name.
func dashboard(t testing.TB, name string) *grafana.Dashboard {
	t.Helper()
	d, err := grafana.Load("../../dashboards/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// numbers are what a query of a panel shows now, by the values of some labels. It is a failure where two series have the same.
func (v *view) numbers(t *testing.T, title, refID string, by ...string) map[string]float64 {
	t.Helper()
	for _, p := range v.dashboard.All() {
		for _, target := range p.Targets {
			if p.Title != title || target.RefID != refID {
				continue
			}
			// Also what is a graph is looked at now.
			target.Instant, target.Range = true, false
			a, err := v.ask(t.Context(), p, target)
			if err != nil {
				t.Fatalf("%q, query %s: %v", title, refID, err)
			}
			out := map[string]float64{}
			for _, s := range a.samples() {
				var key []string
				for _, name := range by {
					key = append(key, s.Metric.Get(name))
				}
				word := strings.Join(key, " ")
				if _, twice := out[word]; twice {
					t.Errorf("%q, query %s: two series are %q\n%s", title, refID, word, a.query)
				}
				out[word] = s.Floats[len(s.Floats)-1].F
			}
			return out
		}
	}
	t.Fatalf("dashboard %s has no panel %q with a query %s", v.dashboard.UID, title, refID)
	return nil
}

// column is what stands in a column of a table, by the cells of other columns.
func (v *view) column(t *testing.T, title, column string, by ...string) map[string]float64 {
	t.Helper()
	for _, p := range v.dashboard.All() {
		if p.Title != title {
			continue
		}
		frames, _, err := v.shown(t, p)
		if err != nil {
			t.Fatalf("%q: %v", title, err)
		}
		return cells(t, frames, title, column, by)
	}
	t.Fatalf("dashboard %s has no panel %q", v.dashboard.UID, title)
	return nil
}

func cells(t *testing.T, frames []grafana.Frame, title, column string, by []string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, f := range frames {
		at := func(name string) grafana.Column {
			i := slices.IndexFunc(f.Fields, func(c grafana.Column) bool { return c.Title() == name })
			if i < 0 {
				t.Fatalf("table %q has no column %q", title, name)
			}
			return f.Fields[i]
		}
		values := at(column)
		for row := range f.Rows() {
			var key []string
			for _, name := range by {
				s, _ := at(name).Values[row].(string)
				key = append(key, s)
			}
			n, ok := values.Values[row].(float64)
			word := strings.Join(key, " ")
			if _, twice := out[word]; twice {
				t.Errorf("table %q has two rows %q", title, word)
			}
			if ok {
				out[word] = n
			}
		}
	}
	return out
}

// same requires numbers to be what they should be. What should be 0 may be absent, and what is not known to the truth must be 0.
func same(t *testing.T, what string, want, got map[string]float64, tolerance float64) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if d := math.Abs(want[key] - got[key]); d > tolerance*math.Max(1, math.Abs(want[key])) {
			t.Errorf("%s: %q is %v, want %v", what, key, got[key], want[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok && math.Abs(got[key]) > tolerance {
			t.Errorf("%s: %q is %v, and there is none", what, key, got[key])
		}
	}
}

const exact = 1e-9

func total(m map[string]float64) float64 {
	sum := 0.0
	for _, v := range m {
		sum += v
	}
	return sum
}

// choices are ways to narrow a dashboard down, with what is left of the truth then.
func choices() map[string]struct {
	picked picked
	keep   func(part) bool
} {
	type choice = struct {
		picked picked
		keep   func(part) bool
	}
	return map[string]choice{
		"all":               {nil, func(part) bool { return true }},
		"a cluster":         {picked{"cluster": {"east"}}, func(p part) bool { return p.cluster == "east" }},
		"scraped by two":    {picked{"node": {"gpu-node-1"}}, func(p part) bool { return p.node == "gpu-node-1" }},
		"scraped by a pair": {picked{"node": {"gpu-h100-02"}}, func(p part) bool { return p.node == "gpu-h100-02" }},
		"virtual GPUs":      {picked{"node": {"gpu-h100-03"}}, func(p part) bool { return p.node == "gpu-h100-03" }},
		"labels renamed":    {picked{"node": {"gpu-h100-04"}}, func(p part) bool { return p.node == "gpu-h100-04" }},
		"of no cluster":     {picked{"node": {"gpu-h100-01", "gpu-a100-01"}}, func(p part) bool { return p.node == "gpu-h100-01" || p.node == "gpu-a100-01" }},
		"a model":           {picked{"model": {"NVIDIA A100-SXM4-80GB"}}, func(p part) bool { return strings.Contains(p.model, "A100") }},
	}
}

func filtered(all []part, keep func(part) bool) []part {
	return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return !keep(p) })
}

// TestTheFleetsNumbersAreTheScenarios holds the page Fleet against what the scenarios give to whom.
func TestTheFleetsNumbersAreTheScenarios(t *testing.T) {
	r := theRig(t)
	everything := r.parts()
	for name, c := range choices() {
		t.Run(name, func(t *testing.T) {
			parts := filtered(everything, c.keep)
			v, err := r.open(t.Context(), dashboard(t, "fleet"), time.Hour, c.picked)
			if err != nil {
				t.Fatal(err)
			}
			one := func(x float64) map[string]float64 { return map[string]float64{"": x} }
			states := sums(parts, func(p part) string { return p.state })
			gpus := total(states)
			nodes := sums(parts, func(p part) string { return p.node })
			same(t, "GPUs", one(gpus), v.numbers(t, "GPUs", "A"), exact)
			same(t, "nodes", one(float64(len(nodes))), v.numbers(t, "Nodes", "A"), exact)
			same(t, "allocated", one(states["held"]/gpus), v.numbers(t, "Allocated", "A"), exact)
			same(t, "unhealthy", one(states["unhealthy"]), v.numbers(t, "Unhealthy", "A"), exact)
			same(t, "GPUs held", one(states["held"]), v.numbers(t, "GPUs by state now", "A"), exact)
			held := states["held"]
			delete(states, "held")
			same(t, "what is not held", states, v.numbers(t, "GPUs by state now", "B", "reason"), exact)
			if sum := held + total(v.numbers(t, "GPUs by state now", "B", "reason")); math.Abs(sum-gpus) > exact {
				t.Errorf("the states add up to %v of %v GPUs", sum, gpus)
			}
			same(t, "free by cluster and model", sums(parts, func(p part) string {
				if p.state == "free" {
					return p.cluster + " " + p.model
				}
				return ""
			}), v.numbers(t, "Free GPUs, by cluster and model", "A", "cluster", "model"), exact)
			r.tables(t, v, parts)
			r.measured(t, v, parts)
		})
	}
}

// tables holds the tables of the page Fleet against the truth.
func (r *rig) tables(t *testing.T, v *view, parts []part) {
	t.Helper()
	for column, state := range map[string]string{"GPUs": "", "Held": "held", "free": "free", "unrequested": "unrequested", "stranded": "stranded", "unhealthy": "unhealthy"} {
		want := sums(parts, func(p part) string {
			if state != "" && p.state != state {
				return ""
			}
			return p.cluster + " " + p.model
		})
		same(t, "by cluster and model, "+column, want, v.column(t, "By cluster and model", column, "Cluster", "Model"), exact)
	}
	node := func(state string) map[string]float64 {
		return sums(parts, func(p part) string {
			if state != "" && p.state != state {
				return ""
			}
			return p.cluster + " " + p.node
		})
	}
	gpus, held := node(""), node("held")
	for name := range held {
		held[name] /= gpus[name]
	}
	for column, want := range map[string]map[string]float64{"GPUs": gpus, "Unhealthy": node("unhealthy"), "Allocated": held, "Free": node("free")} {
		same(t, "nodes, "+column, want, v.column(t, "Each node", column, "Cluster", "Node"), exact)
	}
}

// measured holds power now and energy of the last hour against the physics of the scenarios.
func (r *rig) measured(t *testing.T, v *view, parts []part) {
	t.Helper()
	models := map[gpu.UUID]string{}
	nodes := map[string]bool{}
	for _, p := range parts {
		models[p.card], nodes[p.node] = p.model, true
	}
	power, energy, byModel, byNode := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	for name := range nodes {
		n, at := r.player(name), r.at[name]
		for card, w := range n.field(155, at) {
			if models[card] != "" {
				power[n.cluster+" "+name] += w
			}
		}
		before := n.field(156, at-time.Hour)
		for card, mj := range n.field(156, at) {
			if model := models[card]; model != "" {
				kwh := (mj - before[card]) / 1e3 / 3.6e6
				energy[model] += kwh
				byModel[n.cluster+" "+model] += kwh
				byNode[n.cluster+" "+name] += kwh
			}
		}
	}
	for name := range withdrawn() {
		// What is broken makes the exporter look more often, so that its last look was at another moment.
		if cluster := r.player(name).cluster; nodes[name] {
			got := v.column(t, "Each node", "Power", "Cluster", "Node")
			same(t, "power of "+name, map[string]float64{"": power[cluster+" "+name]}, map[string]float64{"": got[cluster+" "+name]}, 0.05)
			power[cluster+" "+name] = got[cluster+" "+name]
		}
	}
	same(t, "power by node", power, v.column(t, "Each node", "Power", "Cluster", "Node"), 1e-6)
	same(t, "power", map[string]float64{"": total(power)}, v.numbers(t, "Power", "A"), 1e-6)
	energies := total(v.numbers(t, "Energy in this time, by model", "A", "model"))
	for table, keys := range map[string][]string{"By cluster and model": {"Cluster", "Model"}, "Each node": {"Cluster", "Node"}} {
		same(t, "energy of "+table, map[string]float64{"": energies}, map[string]float64{"": total(v.column(t, table, "Energy", keys...))}, exact)
	}
	if len(withdrawn()[one(nodes)]) == 0 && len(nodes) == 1 {
		same(t, "energy", energy, v.numbers(t, "Energy in this time, by model", "A", "model"), 0.02)
		same(t, "energy by cluster and model", byModel, v.column(t, "By cluster and model", "Energy", "Cluster", "Model"), 0.02)
		same(t, "energy by node", byNode, v.column(t, "Each node", "Energy", "Cluster", "Node"), 0.02)
	}
}

func one(m map[string]bool) string {
	for name := range m {
		return name
	}
	return ""
}

// TestASharedGPUIsAsManySeatsAsItHas holds the page Sharing against the scenarios.
func TestASharedGPUIsAsManySeatsAsItHas(t *testing.T) {
	r := theRig(t)
	everything := r.parts()
	for name, c := range choices() {
		t.Run(name, func(t *testing.T) {
			parts := filtered(everything, c.keep)
			v, err := r.open(t.Context(), dashboard(t, "sharing"), time.Hour, c.picked)
			if err != nil {
				t.Fatal(err)
			}
			states := sums(parts, func(p part) string { return p.state })
			modes := sums(parts, func(p part) string {
				if p.state != "held" {
					return ""
				}
				return p.mode
			})
			seats, taken := 0.0, 0.0
			nodes := sums(parts, func(p part) string { return p.node })
			for name := range nodes {
				for _, n := range r.player(name).replicas(r.at[name]) {
					seats += float64(n)
				}
			}
			for _, p := range parts {
				if p.state == "held" {
					taken += p.seats
				}
			}
			one := func(x float64) map[string]float64 { return map[string]float64{"": x} }
			if len(withdrawn()[slices.Sorted(maps.Keys(nodes))[0]]) == 0 {
				same(t, "seats", one(seats), v.numbers(t, "Seats", "A"), exact)
			}
			same(t, "seats held", one(taken), v.numbers(t, "Seats held", "A"), exact)
			same(t, "unrequested", one(states["unrequested"]), v.numbers(t, "Unrequested", "A"), exact)
			same(t, "stranded", one(states["stranded"]), v.numbers(t, "Stranded", "A"), exact)
			same(t, "held by mode", modes, v.numbers(t, "Held by mode", "A", "mode"), exact)
			delete(modes, "exclusive")
			same(t, "held in parts", one(total(modes)), v.numbers(t, "Held in parts", "A"), exact)
		})
	}
}
