// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const manifestHead = `# SPDX-License-Identifier: Apache-2.0
#
# Rendered from deployment/helm/gpumeter with its default values; ` + "`make update`" + ` writes it.
---
# The folders of the node that the pods mount are more than the other standards allow.
apiVersion: v1
kind: Namespace
metadata:
  name: gpumeter
  labels:
    pod-security.kubernetes.io/enforce: privileged
`

// plain is what the chart renders without what only helm needs.
func plain(text string) string {
	return regexp.MustCompile(`(?m)^\s+(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n`).ReplaceAllString(text, "")
}

func TestTheManifestsAreTheChartsGolden(t *testing.T) {
	text := manifestHead + plain(render(t, nil).text)
	golden(t, top+"/deployment/manifests/gpumeter.yaml", text)
	golden(t, top+"/deployment/kustomize/base/gpumeter.yaml", text)
	conforms(t, newest, text)
}

func TestTheChartsCopiesOfTheRulesAreTheRulesGolden(t *testing.T) {
	for _, name := range []string{"rules.yaml", "alerts.yaml"} {
		rules, err := os.ReadFile(filepath.Join(top, "etc/prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join(chartDir, "files/prometheus", name), string(rules))
	}
}

func TestThePrometheusRuleHasEveryRule(t *testing.T) {
	r := render(t, valuesOf(t, `prometheusRule: {enabled: true, disabled: [GpumeterLedgerReplaced]}`))
	inChart := map[string]any{}
	eachRule(t, listAt(r.one(t, "PrometheusRule").Object, "spec", "groups"), func(key string, rule any) { inChart[key] = rule })
	inFiles := map[string]any{}
	for _, name := range []string{"rules.yaml", "alerts.yaml"} {
		data, err := os.ReadFile(filepath.Join(top, "etc/prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte("\n---\n")) {
			t.Fatal(name, "has more than one document")
		}
		eachRule(t, listAt(valuesOf(t, string(data)), "groups"), func(key string, rule any) { inFiles[key] = rule })
	}
	left := 0
	for key := range inFiles {
		if strings.Contains(key, "GpumeterLedgerReplaced") {
			delete(inFiles, key)
			left++
		}
	}
	if left != 1 {
		t.Errorf("%d alerts are named GpumeterLedgerReplaced, want one", left)
	}
	if diff := cmp.Diff(inFiles, inChart, cmp.Comparer(func(a, b int64) bool { return a == b })); diff != "" {
		t.Errorf("the files' (-) and the chart's (+) rules differ:\n%s", diff)
	}
}

func eachRule(t *testing.T, groups []any, do func(key string, rule any)) {
	t.Helper()
	for _, g := range groups {
		for _, rule := range listAt(g, "rules") {
			do(strings.Join([]string{stringAt(g, "name"), stringAt(rule, "record"), stringAt(rule, "alert"), stringAt(rule, "expr")}, "|"), rule)
		}
	}
}

func TestEveryDashboardIsInAConfigMap(t *testing.T) {
	r := render(t, valuesOf(t, `dashboards: {enabled: true}`))
	sources, err := filepath.Glob(top + "/dashboards/*.json")
	if err != nil {
		t.Fatal(err)
	}
	maps := map[string]string{}
	for _, cm := range r.all("ConfigMap") {
		for key, text := range mapAt(cm.Object, "data") {
			maps[key] = text.(string)
		}
	}
	if len(maps) != len(sources) {
		t.Errorf("%d dashboards, %d in ConfigMaps", len(sources), len(maps))
	}
	for _, source := range sources {
		want, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := maps["gpumeter-"+filepath.Base(source)]; strings.TrimSpace(got) != strings.TrimSpace(string(want)) {
			t.Errorf("%s is not what its ConfigMap has", source)
		}
	}
}
