// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// heldBy is a node whose only GPU a pod with these labels holds, or holds half of.
func heldBy(part sharing.Fraction, labels map[string]string) *meter.Snapshot {
	d := bare(card(4))
	s := ticked(temps([]gpu.Device{d}, []gpu.Sample{onGPU(d, gpu.Int(40))}),
		sharing.Division{Shares: []sharing.Share{whole(d, holder("ns", "p"), part)}})
	s.Pods = []ledger.Pod{{Namespace: "ns", Name: "p", Labels: labels}, {Namespace: "other", Name: "p", Labels: map[string]string{"app": "not this"}}}
	return s
}

func allLabels(string) bool { return true }

func TestPodLabelsStandOnWhatThePodHolds(t *testing.T) {
	const before, after = `{gpu="4",UUID="GPU-4",device="nvidia4",container="main",namespace="ns",pod="p"`, `} 40`
	for _, tc := range []struct {
		name    string
		allowed func(string) bool
		labels  map[string]string
		want    string
	}{
		{"none unless asked for", nil, map[string]string{"app": "x"}, ""},
		{"with their names made to fit", allLabels, map[string]string{"app.kubernetes.io/name": "llm", "team": "ml"}, `,app_kubernetes_io_name="llm",team="ml"`},
		{"those allowed", func(k string) bool { return k == "team" }, map[string]string{"app": "x", "team": "ml"}, `,team="ml"`},
		{"not in place of a device's", allLabels, map[string]string{"gpu": "7", "UUID": "GPU-0"}, `,label_UUID="GPU-0",label_gpu="7"`},
		{"not in place of the target's", allLabels, map[string]string{"instance": "elsewhere:9400"}, `,label_instance="elsewhere:9400"`},
		{"a name that cannot be one", allLabels, map[string]string{"3scale.net/x": "1", "__meta": "2"}, `,label_3scale_net_x="1",label___meta="2"`},
		{"the first of two with one name", allLabels, map[string]string{"a.b": "1", "a_b": "2"}, `,a_b="1"`},
		{"no empty ones", allLabels, map[string]string{"app": "", "team": "ml"}, `,team="ml"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := heldBy(sharing.One(), tc.labels)
			wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), Config{PodLabels: tc.allowed}), "DCGM_FI_DEV_GPU_TEMP", before+tc.want+after)
		})
	}
}

func TestAPodThatSharesAGPUHasNoLabelsOnItsSeries(t *testing.T) {
	half := sharing.NewFraction(1, 2)
	wantSeries(t, pageOf(t, heldBy(half, map[string]string{"team": "ml"}), rowsOf(t, tempOnly), Config{PodLabels: allLabels}),
		"DCGM_FI_DEV_GPU_TEMP", `{gpu="4",UUID="GPU-4",device="nvidia4"} 40`)
}

func TestAPodWithThousandsOfLabelsCostsItselfOnly(t *testing.T) {
	labels := map[string]string{}
	for i := range 5000 {
		labels[fmt.Sprintf("l%04d", i)] = "x"
	}
	page := pageOf(t, heldBy(sharing.One(), labels), rowsOf(t, tempOnly), Config{PodLabels: allLabels})
	if n := strings.Count(page, `="x"`); n != maxPodLabels {
		t.Errorf("%d labels are shown, want %d", n, maxPodLabels)
	}
}

func TestSeriesStandOncePerJob(t *testing.T) {
	card4 := bare(card(4))
	for _, tc := range []struct {
		name string
		jobs []sharing.Job
		want []string
	}{
		{"none", nil, []string{`{gpu="4",UUID="GPU-4",device="nvidia4"} 40`}},
		{"of another GPU", []sharing.Job{{GPU: 3, Instance: gpu.NoInstance, ID: "1"}}, []string{`{gpu="4",UUID="GPU-4",device="nvidia4"} 40`}},
		{"of a GPU instance", []sharing.Job{{GPU: 4, Instance: 1, ID: "1"}}, []string{`{gpu="4",UUID="GPU-4",device="nvidia4"} 40`}},
		{"two", []sharing.Job{{GPU: 4, Instance: gpu.NoInstance, ID: "1"}, {GPU: 4, Instance: gpu.NoInstance, ID: `"2"`}}, []string{
			`{gpu="4",UUID="GPU-4",device="nvidia4",hpc_job="1"} 40`, `{gpu="4",UUID="GPU-4",device="nvidia4",hpc_job="\"2\""} 40`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := ticked(temps([]gpu.Device{card4}, []gpu.Sample{onGPU(card4, gpu.Int(40))}), sharing.Division{})
			s.Jobs = tc.jobs
			wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), Config{}), "DCGM_FI_DEV_GPU_TEMP", tc.want...)
		})
	}
}
