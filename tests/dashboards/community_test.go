// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
)

// foreign is a query of somebody else's dashboard for dcgm-exporter: what it asks, and the labels that its legend shows or that it
// groups by. $ stands for its variables, which are All here.
type foreign struct {
	name, expr string
	labels     []string
	// mayLack are labels that some devices have no value of, as a GPU that is not cut has no GPU instance.
	mayLack []string
}

// theirs are the queries of NVIDIA's dashboard for dcgm-exporter (grafana.com 12239), of its newer revision in dcgm-exporter's own
// repository, which groups by Hostname, and of what other dashboards and alerts commonly ask.
func theirs() []foreign {
	gi := []string{"GPU_I_ID", "GPU_I_PROFILE"}
	return []foreign{
		{"temperature", `DCGM_FI_DEV_GPU_TEMP{instance=~"$", gpu=~"$"}`, []string{"instance", "gpu"}, nil},
		{"mean temperature", `avg(DCGM_FI_DEV_GPU_TEMP{instance=~"$", gpu=~"$"})`, nil, nil},
		{"power", `DCGM_FI_DEV_POWER_USAGE{instance=~"$", gpu=~"$"}`, []string{"instance", "gpu"}, nil},
		{"total power", `sum(DCGM_FI_DEV_POWER_USAGE{instance=~"$", gpu=~"$"})`, nil, nil},
		{"clocks", `DCGM_FI_DEV_SM_CLOCK{instance=~"$", gpu=~"$"} * 1000000`, []string{"instance", "gpu"}, nil},
		{"utilisation", `DCGM_FI_DEV_GPU_UTIL{instance=~"$", gpu=~"$"}`, []string{"instance", "gpu"}, nil},
		{"tensor cores", `DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"$", gpu=~"$"}`, []string{"instance", "gpu"}, nil},
		{"memory", `DCGM_FI_DEV_FB_USED{instance=~"$", gpu=~"$"}`, []string{"instance", "gpu"}, nil},
		{"temperature by host", `max(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$", gpu=~"$"}) by (Hostname, gpu, uuid)`, []string{"Hostname", "gpu"}, nil},
		{"power by host", `max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$", gpu=~"$"}) by (Hostname, gpu, uuid)`, []string{"Hostname", "gpu"}, nil},
		{"total power by host", `sum(max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$", gpu=~"$"}) by (gpu))`, nil, nil},
		{"clocks by host", `max(DCGM_FI_DEV_SM_CLOCK{Hostname=~"$", gpu=~"$"} * 1000000) by (Hostname, UUID, gpu)`, []string{"Hostname", "UUID", "gpu"}, nil},
		{"engine by host", `max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=~"$", gpu=~"$"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`, []string{"Hostname", "gpu"}, gi},
		{"tensor cores by host", `max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=~"$", gpu=~"$"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`, []string{"Hostname", "gpu"}, gi},
		{"memory by host", `max(DCGM_FI_DEV_FB_USED{Hostname=~"$", gpu=~"$"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)`, []string{"Hostname", "gpu"}, gi},
		{"memory by model", `sum by (modelName) (DCGM_FI_DEV_FB_USED)`, []string{"modelName"}, nil},
		{"part of memory", `DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)`, []string{"gpu", "UUID", "modelName"}, nil},
		{"utilisation by pod", `avg by (exported_namespace, exported_pod) (DCGM_FI_DEV_GPU_UTIL{exported_pod!=""})`, []string{"exported_namespace", "exported_pod"}, nil},
		{"utilisation by pod, labels honoured", `avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{pod!="", exported_pod=""})`, []string{"namespace", "pod"}, nil},
		{"energy", `sum by (instance) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[10m])) / 1000`, []string{"instance"}, nil},
		{"XIDs", `DCGM_FI_DEV_XID_ERRORS > 0`, []string{"UUID", "gpu", "err_code", "err_msg"}, nil},
		{"PCIe", `rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m])`, []string{"gpu", "device"}, nil},
		{"NVLink", `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL`, []string{"gpu", "device"}, nil},
		{"remapped rows", `DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS`, []string{"gpu", "modelName"}, nil},
		{"drivers", `count by (DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_GPU_TEMP)`, []string{"DCGM_FI_DRIVER_VERSION"}, nil},
	}
}

// TestADashboardForDCGMExporterWorksUnchanged asks other people's queries of a fleet that gpumeter watches.
func TestADashboardForDCGMExporterWorksUnchanged(t *testing.T) {
	r := theRig(t)
	for _, q := range theirs() {
		t.Run(q.name, func(t *testing.T) {
			value, err := r.instant(t.Context(), strings.ReplaceAll(q.expr, `"$"`, `".*"`), r.now)
			if err != nil {
				t.Fatal(err)
			}
			v, ok := value.(promql.Vector)
			if !ok || len(v) == 0 {
				t.Fatalf("%s has no data", q.expr)
			}
			found := map[string]bool{}
			for _, s := range v {
				for _, name := range append(q.labels, q.mayLack...) {
					found[name] = found[name] || s.Metric.Has(name)
				}
				for _, name := range q.labels {
					if !s.Metric.Has(name) && name != "Hostname" {
						t.Fatalf("%s has no label %s", s.Metric, name)
					}
				}
			}
			for name, ok := range found {
				if !ok {
					t.Errorf("no series of %s has label %s", q.expr, name)
				}
			}
		})
	}
}

// TestTheVariablesOfADashboardForDCGMExporterHaveOptions asks what its pickers offer.
func TestTheVariablesOfADashboardForDCGMExporterHaveOptions(t *testing.T) {
	r := theRig(t)
	v := &view{rig: r}
	v.scope.From, v.scope.To = r.now.Add(-time.Hour), r.now
	for query, want := range map[string]int{
		`label_values(DCGM_FI_DEV_GPU_TEMP, instance)`:                               len(fleet()),
		`label_values(DCGM_FI_DEV_FB_FREE, Hostname)`:                                1,
		`label_values(DCGM_FI_DEV_FB_FREE{Hostname=~".+"}, gpu)`:                     8,
		`label_values(DCGM_FI_DEV_GPU_TEMP{instance="gpu-h100-13:9400"}, gpu)`:       8,
		`label_values(DCGM_FI_DEV_GPU_TEMP{instance="gpu-h100-01:9400"}, modelName)`: 1,
	} {
		got, err := v.variable(t.Context(), query, "")
		if err != nil || len(got) != want {
			t.Errorf("%s offers %d options (%v), want %d: %v", query, len(got), err, want, got)
		}
	}
}
