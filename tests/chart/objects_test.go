// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAScrapeKeepsTheHoldersLabelsAndNamesTheNode(t *testing.T) {
	for _, kind := range []struct{ values, kind, endpoints string }{
		{`serviceMonitor: {enabled: true}`, "ServiceMonitor", "endpoints"},
		{`podMonitor: {enabled: true}`, "PodMonitor", "podMetricsEndpoints"},
	} {
		endpoints := listAt(render(t, valuesOf(t, kind.values)).one(t, kind.kind).Object, "spec", kind.endpoints)
		if len(endpoints) != 2 {
			t.Errorf("%s has %d endpoints, want both programs'", kind.kind, len(endpoints))
		}
		for _, e := range endpoints {
			node := listAt(e, "relabelings")[0]
			if at(e, "honorLabels") != true || stringAt(node, "targetLabel") != "node" || !cmp.Equal(listAt(node, "sourceLabels"), []any{"__meta_kubernetes_pod_node_name"}) {
				t.Errorf("%s: %v", kind.kind, e)
			}
		}
	}
}

func TestNodesThatAreNotReadyAreScrapedToo(t *testing.T) {
	if at(render(t, nil).one(t, "Service").Object, "spec", "publishNotReadyAddresses") != true {
		t.Error("the Service leaves them out")
	}
}

func TestOnlyWhatIsReadAtTheStartRestartsThePods(t *testing.T) {
	for _, c := range []struct {
		what, before, after string
		restart             bool
	}{
		{"counters", `exporter: {counters: {inline: a}}`, `exporter: {counters: {inline: b}}`, false},
		{"a config", `devicePlugin: {config: {map: {a: {version: v1}, b: {version: v1}}}}`, `devicePlugin: {config: {map: {a: {version: v1, flags: {}}, c: {version: v1}}}}`, false},
		{
			"a password", `webConfig: {basicAuth: {users: {p: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}}}`,
			`webConfig: {basicAuth: {users: {q: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}}}`, false,
		},
		{"the table of XIDs", `xids: a`, `xids: b`, true},
		{"a flag", `exporter: {collectInterval: 30s}`, `exporter: {collectInterval: 15s}`, true},
	} {
		before, after := render(t, valuesOf(t, c.before)), render(t, valuesOf(t, c.after))
		if before.text == after.text {
			t.Errorf("%s changes nothing", c.what)
		}
		if restart := !cmp.Equal(before.pod(t), after.pod(t)); restart != c.restart {
			t.Errorf("%s restarts the pods: %v", c.what, restart)
		}
	}
}

func TestNothingGoesOutThatNobodyAskedFor(t *testing.T) {
	for values, want := range map[string]int{
		`networkPolicy: {enabled: true}`: 1,
		`{networkPolicy: {enabled: true}, exporter: {podWatch: "off"}, devicePlugin: {nodeWatch: "off"}}`: 0,
		`{networkPolicy: {enabled: true}, devicePlugin: {enabled: false}, exporter: {source: sim}}`:       0,
		`networkPolicy: {enabled: true, egress: [{ports: [{port: 5555}]}]}`:                               2,
	} {
		policy := render(t, valuesOf(t, values)).one(t, "NetworkPolicy")
		if got := len(listAt(policy.Object, "spec", "egress")); got != want {
			t.Errorf("%s: %d rules, want %d", values, got, want)
		}
		if !cmp.Equal(listAt(policy.Object, "spec", "policyTypes"), []any{"Ingress", "Egress"}) {
			t.Errorf("%s: what goes out is not looked at", values)
		}
	}
}

func TestOneConfigNeedsNoAPIServer(t *testing.T) {
	r := render(t, valuesOf(t, `{exporter: {podWatch: "off"}, devicePlugin: {nodeWatch: "off", config: {map: {only: {version: v1}}}}}`))
	rules, _ := roleOf(r)
	if len(rules) > 0 || at(r.pod(t), "spec", "automountServiceAccountToken") != false {
		t.Errorf("it asks for %v", rules)
	}
}

func TestAnOlderClusterHasNoPolicyOfAdmission(t *testing.T) {
	for version, want := range map[string]int{"1.31.9": 0, "1.32.0": 1, newest: 1} {
		s := setting{release: release, namespace: namespace, kubernetes: version}
		r, err := renderIn(t, s, valuesOf(t, `devicePlugin: {featureLabels: node}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(r.all("ValidatingAdmissionPolicy")); got != want {
			t.Errorf("Kubernetes %s: %d policies, want %d", version, got, want)
		}
	}
}
