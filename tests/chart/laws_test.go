// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// laws are what holds for every rendering, whatever the values are.
func laws(t testing.TB, values map[string]any, r rendering) {
	t.Helper()
	lawOfNames(t, r)
	lawOfLeastPrivilege(t, values, r)
	lawOfMounts(t, r)
	lawOfSelectors(t, r)
	lawOfPorts(t, r)
	lawOfTokens(t, values, r)
	lawOfPrograms(t, r)
}

func TestTheLawsHoldForEveryStory(t *testing.T) {
	eachStory(t, func(t *testing.T, s story, r rendering) { laws(t, s.values, r) })
}

// drawn are values drawn at random: switches, with what makes sense of them.
func drawn(t *rapid.T) map[string]any {
	values := map[string]any{}
	set := func(key string, choices ...any) {
		choice := rapid.SampledFrom(append([]any{nil}, choices...)).Draw(t, key)
		if choice == nil {
			return
		}
		keys := strings.Split(key, ".")
		m := values
		for _, k := range keys[:len(keys)-1] {
			if _, ok := m[k].(map[string]any); !ok {
				m[k] = map[string]any{}
			}
			m = m[k].(map[string]any)
		}
		m[keys[len(keys)-1]] = choice
	}
	config := func(text string) any {
		var c map[string]any
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	set("exporter.source", "sim", "nvml")
	set("exporter.podWatch", "off", "on")
	set("exporter.hostEngine", "unix:///run/dcgm.sock", "tcp://$(NODE_IP):5555")
	set("exporter.counters.inline", "DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
	set("exporter.virtualGPUs", true)
	set("devicePlugin.migStrategy", "single", "none")
	set("devicePlugin.deviceListStrategy", []any{"cdi-cri"}, []any{"envvar", "volume-mounts"})
	set("devicePlugin.mps.daemon", "own", "external")
	set("devicePlugin.config.map", config("a: {version: v1}"), config("a: {version: v1}\nb: {version: v1, flags: {migStrategy: mixed}}"))
	set("devicePlugin.config.default", "a")
	set("devicePlugin.config.followNodeLabel", true, false)
	set("devicePlugin.cdi.enabled", true, false)
	set("features.profiling", true)
	set("features.hostPID", true)
	set("features.mig", true, false)
	set("devicePlugin.nodeWatch", "on", "off")
	set("devicePlugin.featureLabels", "file", "node")
	set("rbac.nodeScopedWrites", false)
	set("gpuAccess", "volume-mounts")
	set("driverRoot", "/run/nvidia/driver")
	set("hostNetwork", true)
	set("xids", "xids:\n- {code: 31, class: info, name: x, source: gpumeter}\n")
	set("clusterName", "east")
	set("webConfig.tls.secretName", "tls")
	set("service.enabled", false)
	set("service.headless", false)
	set("networkPolicy.enabled", true)
	set("podDisruptionBudget.enabled", true)
	set("priorityQuota.enabled", true)
	set("rbac.create", false)
	set("serviceAccount.create", false)
	set("commonLabels", map[string]any{"team": "gpu"})
	set("podMonitor.enabled", true)
	set("updateStrategy.type", "OnDelete")
	switch rapid.SampledFrom([]string{"both", "exporter", "plugin"}).Draw(t, "programs") {
	case "exporter":
		mapAt(values, "devicePlugin")["enabled"] = false
	case "plugin":
		values["exporter"] = map[string]any{"enabled": false}
	}
	return values
}

func TestTheLawsHoldForAnyValues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		values := drawn(rt)
		r, err := renderIn(t, setting{release: release, namespace: namespace}, values)
		if err != nil {
			if refusal.MatchString(err.Error()) {
				rt.Skip(err)
			}
			rt.Fatal(err)
		}
		seen := &loud{TB: t}
		laws(seen, values, r)
		conforms(seen, newest, r.text)
		if len(seen.said) > 0 {
			rt.Fatal(strings.Join(seen.said, "\n"))
		}
	})
}

// refusal is what the chart says of values that contradict each other.
var refusal = regexp.MustCompile(`followNodeLabel is false|devicePlugin.config.default names|serviceAccount.create is false`)

// loud collects what a law says.
type loud struct {
	testing.TB
	said []string
}

func (l *loud) Errorf(format string, args ...any) {
	l.said = append(l.said, fmt.Sprintf(format, args...))
}

// lawOfNames: every object has a name that the API takes, the usual labels, and a namespace where there is one.
func lawOfNames(t testing.TB, r rendering) {
	t.Helper()
	seen := map[string]bool{}
	for _, o := range r.objects {
		id := o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
		if seen[id] {
			t.Errorf("%s is there twice", id)
		}
		seen[id] = true
		if why := validation.IsDNS1123Label(o.GetName()); len(why) > 0 {
			t.Errorf("%s: %v", id, why)
		}
		for key, value := range o.GetLabels() {
			if why := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(why) > 0 {
				t.Errorf("%s: label %s=%s: %v", id, key, value, why)
			}
		}
		if o.GetLabels()["app.kubernetes.io/instance"] != release {
			t.Errorf("%s has not the label of its release", id)
		}
		if clusterwide := strings.HasPrefix(o.GetKind(), "Cluster") || strings.HasPrefix(o.GetKind(), "Validating"); clusterwide != (o.GetNamespace() == "") {
			t.Errorf("%s: a namespace where there is none, or none where there is one", id)
		}
	}
}

// lawOfLeastPrivilege: a container has no more rights than what was asked for needs.
func lawOfLeastPrivilege(t testing.TB, values map[string]any, r rendering) {
	t.Helper()
	sim := stringAt(values, "exporter", "source") == "sim" && at(values, "exporter", "enabled") != false
	ownMPS := stringAt(values, "devicePlugin", "mps", "daemon") == "own" && at(values, "devicePlugin", "enabled") != false && !sim
	pod := mapAt(r.pod(t), "spec")
	if got, want := at(pod, "hostPID") == true, ownMPS || at(values, "features", "hostPID") == true; got != want {
		t.Errorf("hostPID is %v", got)
	}
	if got, want := at(pod, "hostNetwork") == true, at(values, "hostNetwork") == true; got != want {
		t.Errorf("hostNetwork is %v", got)
	}
	mig := strings.Contains(fmt.Sprint(values), "migStrategy:single") || strings.Contains(fmt.Sprint(values), "migStrategy:mixed") ||
		regexp.MustCompile(`migStrategy: *(single|mixed)`).MatchString(fmt.Sprint(values))
	if on, is := at(values, "features", "mig").(bool); is {
		mig = on
	}
	for name, c := range r.containers(t) {
		security := mapAt(c, "securityContext")
		if len(mapAt(c, "resources", "requests")) == 0 {
			t.Errorf("%s asks for no resources", name)
		}
		if security["readOnlyRootFilesystem"] != true {
			t.Errorf("%s can write to its image", name)
		}
		if privileged := security["privileged"] == true; privileged != (ownMPS && name == "device-plugin") {
			t.Errorf("%s: privileged is %v", name, privileged)
		} else if privileged {
			continue
		}
		if security["allowPrivilegeEscalation"] != false || stringAt(security, "seccompProfile", "type") != "RuntimeDefault" ||
			!cmp.Equal(listAt(security, "capabilities", "drop"), []any{"ALL"}) {
			t.Errorf("%s has more than it needs: %v", name, security)
		}
		wantAdmin := !sim && (mig || name == "exporter" && at(values, "features", "profiling") == true)
		var want []any
		if wantAdmin {
			want = []any{"SYS_ADMIN"}
		}
		if diff := cmp.Diff(want, listAt(security, "capabilities", "add")); diff != "" {
			t.Errorf("%s has other capabilities: %s", name, diff)
		}
		if hostFree := sim && at(values, "devicePlugin", "enabled") == false; hostFree != (security["runAsNonRoot"] == true) {
			t.Errorf("%s: runAsNonRoot is %v", name, security["runAsNonRoot"])
		}
	}
	if sim && at(values, "devicePlugin", "enabled") == false {
		for _, v := range listAt(pod, "volumes") {
			if at(v, "hostPath") != nil && stringAt(v, "name") != "host-engine" {
				t.Errorf("a pretended node has the folder %v of the real one", v)
			}
		}
	}
}

// lawOfMounts: what is mounted is there, what is there is mounted, each once; what the chart makes is what is mounted.
func lawOfMounts(t testing.TB, r rendering) {
	t.Helper()
	mounted := map[string]bool{}
	volumes := map[string]any{}
	for _, v := range listAt(r.pod(t), "spec", "volumes") {
		if volumes[stringAt(v, "name")] != nil {
			t.Errorf("volume %s is there twice", stringAt(v, "name"))
		}
		volumes[stringAt(v, "name")] = v
	}
	for name, c := range r.containers(t) {
		paths := map[string]bool{}
		for _, m := range listAt(c, "volumeMounts") {
			volume, path := stringAt(m, "name"), stringAt(m, "mountPath")
			if paths[path] {
				t.Errorf("%s has two mounts at %s", name, path)
			}
			if volumes[volume] == nil {
				t.Errorf("%s mounts %s, which is no volume", name, volume)
			}
			paths[path], mounted[volume] = true, true
		}
	}
	for name := range volumes {
		if !mounted[name] {
			t.Errorf("nobody mounts the volume %s", name)
		}
	}
	for _, o := range slices.Concat(r.all("ConfigMap"), r.all("Secret")) {
		if _, dashboard := o.GetLabels()["grafana_dashboard"]; !dashboard && !strings.Contains(fmt.Sprint(volumes), ":"+o.GetName()+"]") {
			t.Errorf("nobody mounts %s %s", o.GetKind(), o.GetName())
		}
	}
}

func subset(of, labels map[string]any) bool {
	for key, value := range of {
		if labels[key] != value {
			return false
		}
	}
	return len(of) > 0
}

// lawOfSelectors: whatever selects pods selects these.
func lawOfSelectors(t testing.TB, r rendering) {
	t.Helper()
	labels := mapAt(r.pod(t), "metadata", "labels")
	for kind, path := range map[string][]string{
		"DaemonSet": {"spec", "selector", "matchLabels"}, "Service": {"spec", "selector"}, "NetworkPolicy": {"spec", "podSelector", "matchLabels"},
		"PodDisruptionBudget": {"spec", "selector", "matchLabels"}, "PodMonitor": {"spec", "selector", "matchLabels"},
	} {
		for _, o := range r.all(kind) {
			if selector := mapAt(o.Object, path...); !subset(selector, labels) {
				t.Errorf("%s selects %v, which the pods are not: %v", kind, selector, labels)
			}
		}
	}
	for _, o := range r.all("ServiceMonitor") {
		service := mapAt(r.one(t, "Service").Object, "metadata", "labels")
		if selector := mapAt(o.Object, "spec", "selector", "matchLabels"); !subset(selector, service) {
			t.Errorf("the ServiceMonitor selects %v, which the Service is not: %v", selector, service)
		}
	}
}

// lawOfPorts: whoever names a port names one of the containers', and all of them are reached.
func lawOfPorts(t testing.TB, r rendering) {
	t.Helper()
	have := []string{}
	for name, c := range r.containers(t) {
		own := stringAt(listAt(c, "ports")[0], "name")
		have = append(have, own)
		for _, kind := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			probe := mapAt(c, kind)
			if port := stringAt(probe, "httpGet", "port") + stringAt(probe, "tcpSocket", "port"); port != own {
				t.Errorf("the %s of %s asks the port %q", kind, name, port)
			}
		}
		if path := stringAt(c, "livenessProbe", "httpGet", "path"); path != "" && path != "/livez" && path != "/healthz" {
			t.Errorf("%s is killed for %s", name, path)
		}
	}
	slices.Sort(have)
	names := func(kind string, list []any, key string) {
		var got []string
		for _, p := range list {
			got = append(got, fmt.Sprint(at(p, key)))
		}
		slices.Sort(got)
		if diff := cmp.Diff(have, got); diff != "" {
			t.Errorf("the containers' (-) and the %s's (+) ports differ: %s", kind, diff)
		}
	}
	for _, o := range r.objects {
		switch o.GetKind() {
		case "Service":
			names(o.GetKind(), listAt(o.Object, "spec", "ports"), "targetPort")
		case "ServiceMonitor":
			names(o.GetKind(), listAt(o.Object, "spec", "endpoints"), "port")
		case "PodMonitor":
			names(o.GetKind(), listAt(o.Object, "spec", "podMetricsEndpoints"), "port")
		case "NetworkPolicy":
			names(o.GetKind(), listAt(listAt(o.Object, "spec", "ingress")[0], "ports"), "port")
		}
	}
}

// documented is the ClusterRole of docs/permissions.md.
func documented(t testing.TB) []any {
	t.Helper()
	doc, err := os.ReadFile(top + "/docs/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(doc), "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	for _, o := range parse(t, block) {
		if o.GetKind() == "ClusterRole" {
			return listAt(o.Object, "rules")
		}
	}
	t.Fatal("docs/permissions.md has no ClusterRole")
	return nil
}

func roleOf(r rendering) (rules []any, bound []unstructured.Unstructured) {
	for _, o := range r.all("ClusterRole") {
		rules = append(rules, listAt(o.Object, "rules")...)
	}
	return rules, r.all("ClusterRoleBinding")
}

// lawOfTokens: the pods have a token where the API server is asked and nowhere else, and then no right that docs/permissions.md has not.
func lawOfTokens(t testing.TB, values map[string]any, r rendering) {
	t.Helper()
	spec := mapAt(r.pod(t), "spec")
	asks, writes := false, false
	for name, c := range r.containers(t) {
		for _, a := range args(c) {
			asks = asks || name == "exporter" && strings.HasPrefix(a, "--kubernetes-pod-watch=") && a != "--kubernetes-pod-watch=off" ||
				name == "device-plugin" && (strings.HasPrefix(a, "--config-dir=") || strings.HasPrefix(a, "--node-watch=") && a != "--node-watch=off")
			writes = writes || a == "--feature-labels=node"
		}
	}
	asks = asks || writes
	if got := spec["automountServiceAccountToken"] == true; got != asks {
		t.Errorf("the API server is asked: %v, the pods have a token: %v", asks, got)
	}
	rules, bound := roleOf(r)
	if want := asks && at(values, "rbac", "create") != false; (len(rules) > 0) != want || (len(bound) > 0) != want {
		t.Errorf("there are %d rules and %d bindings, wanted: %v", len(rules), len(bound), want)
	}
	allowed := map[string][]any{}
	for _, rule := range documented(t) {
		for _, resource := range listAt(rule, "resources") {
			allowed[resource.(string)] = listAt(rule, "verbs")
		}
	}
	for _, rule := range rules {
		if writes && cmp.Equal(rule, map[string]any{"apiGroups": []any{""}, "resources": []any{"nodes"}, "verbs": []any{"patch"}}) {
			continue
		}
		for _, resource := range listAt(rule, "resources") {
			if diff := cmp.Diff(allowed[resource.(string)], listAt(rule, "verbs")); diff != "" {
				t.Errorf("docs/permissions.md (-) and the chart (+) differ on %s: %s", resource, diff)
			}
		}
	}
	for _, b := range bound {
		if subject := listAt(b.Object, "subjects")[0]; stringAt(subject, "name") != spec["serviceAccountName"] || stringAt(subject, "namespace") != namespace {
			t.Errorf("the role is bound to %v, the pods are %v", subject, spec["serviceAccountName"])
		}
	}
}

func TestTheDefaultRoleIsTheDocumentedOne(t *testing.T) {
	rules, _ := roleOf(render(t, nil))
	if diff := cmp.Diff(documented(t), rules); diff != "" {
		t.Errorf("docs/permissions.md (-) and the chart (+) differ:\n%s", diff)
	}
}
