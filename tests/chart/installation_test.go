// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// permits says what a standard of Pod Security has against the pods, empty for nothing.
func permits(t *testing.T, level api.Level, r rendering) string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.pod(t), &pod); err != nil {
		t.Fatal(err)
	}
	found := policy.AggregateCheckResults(evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
	if found.Allowed {
		return ""
	}
	return found.ForbiddenReason()
}

func TestOnlyAPretendedNodeRunsInARestrictedNamespace(t *testing.T) {
	sim := render(t, valuesOf(t, `{exporter: {source: sim}, devicePlugin: {enabled: false}}`))
	if why := permits(t, api.LevelRestricted, sim); why != "" {
		t.Errorf("a pretended node is refused: %s", why)
	}
	for values, want := range map[string]string{
		`{}`:                                 "hostPath volumes",
		`devicePlugin: {enabled: false}`:     "hostPath volumes",
		`exporter: {enabled: false}`:         "hostPath volumes",
		`features: {profiling: true}`:        "non-default capabilities, hostPath volumes",
		`devicePlugin: {mps: {daemon: own}}`: "host namespaces, hostPath volumes, privileged",
	} {
		if why := permits(t, api.LevelBaseline, render(t, valuesOf(t, values))); why != want {
			t.Errorf("%s: baseline says %q, want %q; docs/helm.md says that privileged is needed", values, why, want)
		}
	}
}

func TestAKeyOfASecurityContextReplacesOursByFalseToo(t *testing.T) {
	r := render(t, valuesOf(t, `
exporter: {securityContext: {readOnlyRootFilesystem: false, seLinuxOptions: {type: spc_t}, capabilities: {add: [SYS_PTRACE]}}}
devicePlugin: {securityContext: {privileged: true}}
`))
	exporter, plugin := mapAt(r.containers(t)["exporter"], "securityContext"), mapAt(r.containers(t)["device-plugin"], "securityContext")
	if exporter["readOnlyRootFilesystem"] != false || stringAt(exporter, "seLinuxOptions", "type") != "spc_t" {
		t.Errorf("the exporter's keys are lost: %v", exporter)
	}
	want := map[string]any{"add": []any{"SYS_PTRACE"}, "drop": []any{"ALL"}}
	if diff := cmp.Diff(want, mapAt(exporter, "capabilities")); diff != "" {
		t.Errorf("capabilities: %s", diff)
	}
	if plugin["privileged"] != true || plugin["allowPrivilegeEscalation"] != nil {
		t.Errorf("the API refuses what is privileged and may not be: %v", plugin)
	}
}

func TestALabelOfSeveralPlacesIsThereOnce(t *testing.T) {
	r := render(t, valuesOf(t, `
commonLabels: {team: common, cost: x}
podLabels: {team: pods}
podMonitor: {enabled: true}
monitor: {labels: {team: monitor}}
prometheusRule: {enabled: true, labels: {team: rules}}
dashboards: {enabled: true, labels: {team: dashboards}}
`))
	want := map[string]string{"PodMonitor": "monitor", "PrometheusRule": "rules", "ConfigMap": "dashboards", "DaemonSet": "common"}
	for _, o := range r.objects {
		if team, known := want[o.GetKind()]; known && o.GetLabels()["team"] != team {
			t.Errorf("%s has the team %s", o.GetKind(), o.GetLabels()["team"])
		}
		if o.GetLabels()["cost"] != "x" {
			t.Errorf("%s has lost a label of all", o.GetKind())
		}
	}
	if labels := mapAt(r.pod(t), "metadata", "labels"); labels["team"] != "pods" || labels["cost"] != "x" {
		t.Errorf("the pods have %v", labels)
	}
	if n := strings.Count(r.text, "team: "); n != len(r.objects)+1 {
		t.Errorf("the label is there %d times, in %d objects and the pods", n, len(r.objects))
	}
}

// The disruption controller cannot count what a DaemonSet should have: with maxUnavailable, or a percentage, it permits no eviction at all.
func TestABudgetIsOneThatTheAPICanCount(t *testing.T) {
	spec := mapAt(render(t, valuesOf(t, `podDisruptionBudget: {enabled: true}`)).one(t, "PodDisruptionBudget").Object, "spec")
	if spec["maxUnavailable"] != nil || fmt.Sprintf("%T", spec["minAvailable"]) != "int64" {
		t.Errorf("it says %v", spec)
	}
}

func TestReleasesOfOneClusterDoNotMeet(t *testing.T) {
	values := valuesOf(t, `{dashboards: {enabled: true}, devicePlugin: {featureLabels: node}, podDisruptionBudget: {enabled: true}}`)
	seen := map[string]setting{}
	for _, s := range []setting{
		{release: "gpumeter", namespace: "gpumeter"}, {release: "gpumeter", namespace: "gpus"}, {release: "second", namespace: "gpumeter"}, {release: "second", namespace: "gpus"},
	} {
		r, err := renderIn(t, s, values)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range r.objects {
			id := o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
			if other, twice := seen[id]; twice {
				t.Errorf("%s is that of %+v and of %+v", id, other, s)
			}
			seen[id] = s
		}
	}
}

func TestItCanBeAPartOfAnotherChart(t *testing.T) {
	for enabled, want := range map[bool]int{true: 1, false: 0} {
		whole := &chart.Chart{Metadata: &chart.Metadata{
			APIVersion: "v2", Name: "platform", Version: "1.0.0",
			Dependencies: []*chart.Dependency{{Name: "gpumeter", Version: "*", Condition: "gpumeter.enabled"}},
		}}
		whole.AddDependency(openChart(t))
		values := map[string]any{"global": map[string]any{"registry": "x"}, "gpumeter": map[string]any{"enabled": enabled}}
		if err := chartutil.ProcessDependenciesWithMerge(whole, values); err != nil {
			t.Fatal(err)
		}
		all, err := chartutil.ToRenderValues(whole, values, chartutil.ReleaseOptions{Name: "r", Namespace: "n"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(whole, all)
		if err != nil {
			t.Fatal(err)
		}
		r, err := sortedRendering(t, files)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(r.all("DaemonSet")); got != want {
			t.Errorf("enabled=%v: %d DaemonSets", enabled, got)
		}
	}
}
