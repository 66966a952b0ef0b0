// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"math"
	"strings"
	"testing"
	"time"
)

// listed is what an hour of a model costs in the rig: the rule of testdata/prices.yaml has H100s only.
func listed(model string, typed float64) float64 {
	if strings.Contains(model, "H100") {
		return 2.5
	}
	return typed
}

// TestWhatEachStateCostsIsItsHoursTimesThePrice holds costs of the last hour against who held what, minute by minute, with a model
// that has no rule: while no price is typed, it is in the hours and in no cost.
func TestWhatEachStateCostsIsItsHoursTimesThePrice(t *testing.T) {
	r := theRig(t)
	nodes := []string{"gpu-h100-04", "gpu-a100-01", "gpu-node-1"}
	for typed, price := range map[string]float64{"0": 0, "1.5": 1.5} {
		t.Run("price "+typed, func(t *testing.T) {
			v, err := r.open(t.Context(), dashboard(t, "chargeback"), time.Hour, picked{"node": nodes, "price": {typed}})
			if err != nil {
				t.Fatal(err)
			}
			hours, costs, capacity := map[string]float64{}, map[string]float64{}, 0.0
			for _, node := range nodes {
				n, end := r.player(node), r.at[node]
				for at := end - time.Hour; at < end; at += exporterInterval {
					for _, p := range n.parts(at) {
						h := p.gpus * exporterInterval.Hours()
						c := h * listed(p.model, price)
						hours[p.state] += h
						costs[p.state] += c
						capacity += c
					}
				}
			}
			gotHours, gotCosts := v.column(t, "By state", "GPU-hours", "State"), v.column(t, "By state", "Cost", "State")
			near(t, "the capacity", 24, total(gotHours), 0.01)
			near(t, "the price of the capacity", capacity, total(gotCosts), 0.01)
			same(t, "hours", hours, gotHours, 0.03)
			same(t, "costs", costs, gotCosts, 0.03)
			near(t, "held is what the figure says", v.numbers(t, "GPU-hours held", "A")[""], gotHours["held"], exact)
			near(t, "held costs what the figures say", total(v.numbers(t, "Cost", "A", "currency")), gotCosts["held"], 1e-6)
			near(t, "namespaces cost what is held", gotCosts["held"], total(v.column(t, "By namespace", "Cost", "Namespace")), 1e-6)
		})
	}
}

// TestWhatIsBrokenHasItsCost has the price of a sick node's capacity in the states, with what is unhealthy.
func TestWhatIsBrokenHasItsCost(t *testing.T) {
	r := theRig(t)
	v, err := r.open(t.Context(), dashboard(t, "chargeback"), time.Hour, picked{"node": {"gpu-h100-13"}, "price": {"0"}})
	if err != nil {
		t.Fatal(err)
	}
	costs := v.column(t, "By state", "Cost", "State")
	near(t, "the price of the capacity", 8*2.5, total(costs), 0.01)
	if costs["unhealthy"] < 1 {
		t.Errorf("what is unhealthy costs %v", costs["unhealthy"])
	}
}

// TestAPodCostsItsHoursTimesThePrice looks at nodes of one price each: with the rule's, with one typed, and without any.
func TestAPodCostsItsHoursTimesThePrice(t *testing.T) {
	r := theRig(t)
	for name, c := range map[string]struct {
		node, typed string
		price       float64
	}{
		"of the rule":               {"gpu-h100-04", "7", 2.5},
		"typed":                     {"gpu-a100-01", "7", 7},
		"of the rule and not typed": {"gpu-node-1", "0", 2.5},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := r.open(t.Context(), dashboard(t, "chargeback"), time.Hour, picked{"node": {c.node}, "price": {c.typed}})
			if err != nil {
				t.Fatal(err)
			}
			for table, keys := range map[string][]string{"By pod": {"Namespace", "Pod"}, "By namespace": {"Namespace"}, "By model": {"Model"}, "By state": {"State"}} {
				times(t, table, v.column(t, table, "GPU-hours", keys...), v.column(t, table, "Cost", keys...), c.price)
			}
			times(t, "idle", v.column(t, "By namespace", "Held and idle", "Namespace"), v.column(t, "By namespace", "Cost of idle", "Namespace"), c.price)
			pods := map[string]float64{}
			n, end := r.player(c.node), r.at[c.node]
			for at := end - time.Hour; at < end; at += exporterInterval {
				for _, p := range n.parts(at) {
					if p.state == "held" {
						pods[p.namespace+" "+p.pod] += p.gpus * exporterInterval.Hours() * c.price
					}
				}
			}
			got := v.column(t, "By pod", "Cost", "Namespace", "Pod")
			for pod := range got {
				near(t, "cost of "+pod, pods[pod], got[pod], 0.03)
			}
		})
	}
}

// TestWithoutAPriceThereIsNoCost wants no column of zeros where nobody said what a GPU costs.
func TestWithoutAPriceThereIsNoCost(t *testing.T) {
	r := theRig(t)
	v, err := r.open(t.Context(), dashboard(t, "chargeback"), time.Hour, picked{"node": {"gpu-a100-01"}, "price": {"0"}})
	if err != nil {
		t.Fatal(err)
	}
	priced := map[string]bool{}
	for _, p := range v.dashboard.All() {
		for _, target := range p.Targets {
			if !strings.Contains(target.Expr, "gpumeter:price_per_gpu_hour") {
				continue
			}
			priced[p.Title] = true
			a, err := v.ask(t.Context(), p, target)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range a.samples() {
				if s.Metric.Get("model") == "" || strings.Contains(s.Metric.Get("model"), "A100") {
					t.Errorf("%q, query %s: %v", p.Title, target.RefID, s)
				}
			}
		}
	}
	for _, title := range []string{"Cost", "Forecast: cost", "By namespace", "By pod", "By state", "By model", "Prices in use"} {
		if !priced[title] {
			t.Errorf("%q asks for no price", title)
		}
	}
}

// times requires that each cost is its hours times the price.
func times(t *testing.T, what string, hours, costs map[string]float64, price float64) {
	t.Helper()
	if total(hours) == 0 {
		t.Errorf("%s: nothing is charged", what)
	}
	want := map[string]float64{}
	for key, h := range hours {
		want[key] = h * price
	}
	same(t, what, want, costs, 1e-6)
}

func near(t *testing.T, what string, want, got, tolerance float64) {
	t.Helper()
	if math.Abs(want-got) > tolerance*math.Max(1, math.Abs(want)) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
