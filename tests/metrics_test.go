// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGoldenMetricsReference keeps docs/metrics.md, which is written from the golden
// pages: a family or label that is served is in it, and nothing else.
func TestGoldenMetricsReference(t *testing.T) {
	type family struct {
		typ, help string
		labels    map[string]bool
	}
	families := map[string]*family{}
	pages, err := filepath.Glob(filepath.Join("testdata", "golden", "*.prom"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("golden pages: %d, %v", len(pages), err)
	}
	// Nothing goes wrong enough in the shipped stories for every family to appear.
	for _, name := range []string{"mixed.prom", "computed.prom", "health.prom", "ledger.prom"} {
		pages = append(pages, filepath.Join("..", "pkg", "exporter", "testdata", name))
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range parsePage(t, data) {
			if !strings.HasPrefix(name, "gpumeter_") {
				continue
			}
			if families[name] == nil {
				families[name] = &family{strings.ToLower(f.GetType().String()), f.GetHelp(), map[string]bool{}}
			}
			for _, m := range f.GetMetric() {
				for l := range labelsOf(m) {
					families[name].labels[l] = true
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString(`# Metrics

The families of gpumeter's own, as they are served; written by ` + "`make update`" + ` from golden pages of the tests.
Families named in the counter file (` + "`DCGM_FI_*`, `DCGM_EXP_*`" + `) are DCGM's and carry the help text of that file; ` + "`docs/migration.md`" + ` has their labels.

A label that would be empty is left out: ` + "`GPU_I_ID`" + ` and ` + "`GPU_I_PROFILE`" + ` stand on MIG only, so ` + "`on (UUID, GPU_I_ID)`" + ` joins whole GPUs and
GPU instances alike. ` + "`UUID`" + ` is always the physical GPU's. With ` + "`--kubernetes-enable-pod-uid`" + ` the families that name a pod have ` + "`pod_uid`" + `, read from the
kubelet's device checkpoint; that of a static pod is the kubelet's (the annotation kubernetes.io/config.hash), not the mirror pod's.

## Charges

The families with ` + "`ledger_id`" + ` are the totals of the node's ledger (` + "`docs/ledger.md`" + `). What they say is on disk, as of
` + "`gpumeter_ledger_commit_timestamp_seconds`" + `; before the first commit there are none. They count over restarts of the exporter and of the
node, never fall, and begin anew only with a new ledger, which has another ` + "`ledger_id`" + `. A series is there at 0 before it counts, as
soon as there is something to count; that of a pod stays 15 minutes after the pod's end, and
as long as the kubelet is silent so that nobody can see whether it has ended; ` + "`--pod-gpu-seconds=false`" + ` leaves those of pods out.

- GPU time is in seconds of a whole physical GPU: a quarter of one, held for an hour, is 900. It is shown in whole microseconds, rounded
  down, as is energy in microjoules, so that the difference of two samples is the same number wherever it is computed.
- For each GPU ` + "`capacity + corrected = allocated + unallocated`" + `: exactly in the ledger, where ` + "`gpumeter_conservation_error_gpu_seconds`" + ` checks it in
  each tick and is 0, and to the microsecond per series on the page. ` + "`corrected`" + ` is what was booked as unobserved and found to have been held
  later. Of energy, ` + "`card = allocated + unallocated`" + `.
- ` + "`gpumeter_namespace_gpu_seconds_total`" + ` is the series to bill by. What was consumed in a window is the last sample less the first of
  ` + "`max by (ledger_id, namespace, resource, mode, model, profile)`" + `, which two Prometheus servers or two scrape jobs of one exporter do not double;
  ` + "`increase()`" + ` extrapolates and is no bill.
- ` + "`basis`" + ` says what a measured quantity rests on: energy of a holder is measured where it held the whole GPU (` + "`device`" + `), else its share of what
  is (` + "`share`" + `); use is the engine's activity (` + "`gr_engine`" + `), the time in which any kernel ran (` + "`gpu_util`" + `), or an equal part of either among those
  who share (` + "`equal`" + `), each of whom is credited with what it held at most: one who holds a quarter alone has used a quarter at most, and what the
  GPU did beyond that is nobody's. So used is never more than held. What was used is charged to nobody.
- ` + "`gpumeter_observation_gap_seconds_total{reason=\"stall\"}`" + ` counts where the exporter ran and did not look for more than three intervals and more than ten seconds, as
  when it was frozen. Who is proven to have held a GPU before and after is charged for it, the rest is ` + "`unobserved`" + `.
- Memory over time is by memory slices and replicas: what was held, not what was filled.

Prometheus renames ` + "`namespace`, `pod` and `container`" + ` to ` + "`exported_namespace`" + ` and so on where its own target has such labels and the scrape does not say
` + "`honor_labels: true`" + `; ` + "`gpumeter report`" + ` and the shipped rules understand both.

## All of them

| family | type | labels | |
|---|---|---|---|
`)
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		var labels []string
		for _, l := range slices.Sorted(maps.Keys(f.labels)) {
			labels = append(labels, "`"+l+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, f.typ, strings.Join(labels, " "), f.help)
	}
	file := filepath.Join("..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; run make update", err)
	}
	if string(want) != b.String() {
		t.Errorf("%s does not say what is served; run make update", file)
	}
}
