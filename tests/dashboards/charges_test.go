// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestWhatIsHeldIsChargedOnce holds GPU-hours of the last hour by namespace against who held what, minute by minute.
func TestWhatIsHeldIsChargedOnce(t *testing.T) {
	r := theRig(t)
	for name, nodes := range map[string][]string{
		"scraped by two": {"gpu-node-1"}, "scraped by a pair": {"gpu-h100-02"}, "virtual GPUs": {"gpu-h100-03"}, "labels renamed": {"gpu-h100-04"},
		"MIG": {"gpu-a100-01"}, "whole": {"gpu-h100-01"}, "a month's": {"gpu-month-1"}, "several": {"gpu-node-1", "gpu-h100-02", "gpu-h100-04", "gpu-h100-01"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := r.open(t.Context(), dashboard(t, "chargeback"), time.Hour, picked{"node": nodes})
			if err != nil {
				t.Fatal(err)
			}
			namespaces, modes, states := map[string]float64{}, map[string]float64{}, map[string]float64{}
			// The exporter looks that often, and what it sees holds until it looks again.
			const step = exporterInterval
			for _, node := range nodes {
				n, end := r.player(node), r.at[node]
				for at := end - time.Hour; at < end; at += step {
					for _, p := range n.parts(at) {
						hours := p.gpus * step.Hours()
						states[p.state] += hours
						if p.state == "held" {
							namespaces[p.namespace] += hours
							modes[p.mode] += hours
						}
					}
				}
			}
			// Pods that come and go between two looks are charged to a look's precision.
			const tolerance = 0.03
			held := states["held"]
			same(t, "held", map[string]float64{"": held}, v.numbers(t, "GPU-hours held", "A"), 0.01)
			same(t, "by namespace", namespaces, v.column(t, "By namespace", "GPU-hours", "Namespace"), tolerance)
			same(t, "by mode", modes, v.numbers(t, "GPU-hours by mode", "A", "mode"), tolerance)
			delete(states, "held")
			same(t, "by state", states, v.numbers(t, "GPU-hours by state", "B", "reason"), tolerance)
			sum := total(v.numbers(t, "GPU-hours by state", "A")) + total(v.numbers(t, "GPU-hours by state", "B", "reason"))
			if want := float64(8 * len(nodes)); math.Abs(sum-want) > 0.01*want {
				t.Errorf("the states add up to %v GPU-hours of %v", sum, want)
			}
			if byNamespace, all := total(v.column(t, "By namespace", "GPU-hours", "Namespace")), total(v.numbers(t, "GPU-hours held", "A")); math.Abs(byNamespace-all) > 1e-6 {
				t.Errorf("namespaces add up to %v of %v GPU-hours", byNamespace, all)
			}
		})
	}
}

// TestAMonthToDateIsTheMonthsConsumption holds a node's month, of which Prometheus has a reading an hour, against who held what of it.
func TestAMonthToDateIsTheMonthsConsumption(t *testing.T) {
	r := theRig(t)
	v, err := r.open(t.Context(), dashboard(t, "chargeback"), 0, picked{"node": {"gpu-month-1"}, "price": {"2.5"}})
	if err != nil {
		t.Fatal(err)
	}
	if !v.scope.From.Equal(monthBegin()) {
		t.Fatalf("the page begins at %v, not with the month", v.scope.From)
	}
	n := r.player("gpu-month-1")
	want := map[string]float64{}
	const step = time.Minute
	for at := monthBegin().Sub(n.started); at < r.at[n.name]; at += step {
		broken := n.broken(at)
		for _, a := range n.node.Truth(at) {
			id, _, shared := strings.Cut(a.DeviceID, "::")
			w := 1.0
			if profile, ok := strings.CutPrefix(a.Resource, "nvidia.com/mig-"); ok {
				w = instanceWeight(profile)
			}
			if shared {
				w /= 4
			}
			if !broken[id] {
				want[a.Holder.Namespace] += w * step.Hours()
			}
		}
	}
	got := v.column(t, "By namespace", "GPU-hours", "Namespace")
	same(t, "GPU-hours of the month", want, got, 0.03)
	elapsed, month := v.scope.To.Sub(monthBegin()).Hours(), 30*24.0
	same(t, "forecast", map[string]float64{"": total(got) / elapsed * month}, v.numbers(t, "Forecast: GPU-hours", "A"), 1e-6)
	same(t, "cost", map[string]float64{"USD": total(got) * 2.5}, v.numbers(t, "Cost", "A", "currency"), 1e-6)
}

// broken are the GPUs that are lost at a time of the story.
func (n *player) broken(at time.Duration) map[string]bool {
	out := map[string]bool{}
	for _, d := range n.node.ReadingAt(at, nil).Devices {
		out[string(d.UUID)] = d.Lost
	}
	return out
}

// TestWhatIsBrokenIsShownAsBroken holds the page Health against what the stories have broken.
func TestWhatIsBrokenIsShownAsBroken(t *testing.T) {
	r := theRig(t)
	v, err := r.open(t.Context(), dashboard(t, "health"), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := 0.0
	for _, indices := range withdrawn() {
		want += float64(len(indices))
	}
	for _, panel := range []string{"Unhealthy", "Capacity lost now"} {
		same(t, panel, map[string]float64{"": want}, v.numbers(t, panel, "A"), exact)
	}
	if got := total(v.numbers(t, "Capacity lost, by cause", "A", "kind", "class")); math.Abs(got-want) > exact {
		t.Errorf("the causes add up to %v of %v GPUs", got, want)
	}
	same(t, "healthy", map[string]float64{"": (72 - want) / 72}, v.numbers(t, "Healthy", "A"), 1.01/72)
}
