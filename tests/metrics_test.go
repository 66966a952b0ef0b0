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
	for _, name := range []string{"mixed.prom", "computed.prom", "health.prom"} {
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
