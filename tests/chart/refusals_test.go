// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

func TestAMistakeInTheValuesIsToldWithItsPlace(t *testing.T) {
	for values, want := range map[string]string{
		// Typos, at each depth.
		`exporters: {enabled: false}`:        `additional properties 'exporters' not allowed`,
		`exporter: {enable: false}`:          `at '/exporter': additional properties 'enable' not allowed`,
		`devicePlugin: {config: {maps: {}}}`: `at '/devicePlugin/config': additional properties 'maps'`,
		`exporter: {resources: {limit: {}}}`: `at '/exporter/resources': additional properties 'limit'`,
		`webConfig: {tls: {secret: x}}`:      `at '/webConfig/tls': additional properties 'secret'`,
		`tolerations: [{keys: x}]`:           `at '/tolerations/0': additional properties 'keys'`,
		`affinity: {nodeAffinities: {}}`:     `additional properties 'nodeAffinities'`,
		// Values of another form than the programs or the API read.
		`exporter: {collectInterval: 30}`:                     `at '/exporter/collectInterval': got number, want string`,
		`exporter: {collectInterval: "30"}`:                   `at '/exporter/collectInterval'`,
		`exporter: {source: simulated}`:                       `at '/exporter/source'`,
		`exporter: {podWatch: true}`:                          `at '/exporter/podWatch'`,
		`exporter: {port: 94000}`:                             `at '/exporter/port'`,
		`exporter: {enabled: "false"}`:                        `at '/exporter/enabled'`,
		`exporter: {extraArgs: [debug]}`:                      `at '/exporter/extraArgs/0'`,
		`exporter: {extraEnv: {A: b}}`:                        `at '/exporter/extraEnv'`,
		`exporter: {extraEnv: [{name: A, value: 1}]}`:         `at '/exporter/extraEnv/0/value'`,
		`exporter: {counters: {file: mine.csv}}`:              `at '/exporter/counters/file'`,
		`devicePlugin: {migStrategy: both}`:                   `at '/devicePlugin/migStrategy'`,
		`devicePlugin: {deviceListStrategy: cdi-cri}`:         `at '/devicePlugin/deviceListStrategy'`,
		`devicePlugin: {config: {map: {a/b: {version: v1}}}}`: `at '/devicePlugin/config/map'`,
		`devicePlugin: {config: {map: {a: ""}}}`:              `at '/devicePlugin/config/map/a'`,
		`ledger: {hostPath: var/lib}`:                         `at '/ledger/hostPath'`,
		`ledger: {maxSize: 1Gi}`:                              `at '/ledger/maxSize'`,
		`ledger: {retention: 1 year}`:                         `at '/ledger/retention'`,
		`image: {digest: latest}`:                             `at '/image/digest'`,
		`image: {tag: "a b"}`:                                 `at '/image/tag'`,
		`updateStrategy: {maxUnavailable: 0}`:                 `at '/updateStrategy/maxUnavailable'`,
		`updateStrategy: {maxUnavailable: 10}`:                ``,
		`webConfig: {basicAuth: {users: {a: secret}}}`:        `at '/webConfig/basicAuth/users/a'`,
		`networkPolicy: {apiServerCIDRs: [10.0.0.1]}`:         `at '/networkPolicy/apiServerCIDRs/0'`,
		`podLabels: {"a b": c}`:                               `at '/podLabels'`,
		`clusterName: "a b"`:                                  `at '/clusterName'`,
		`fullnameOverride: 7up`:                               `at '/fullnameOverride'`,
		`global: {anything: goes}`:                            ``,
		`enabled: true`:                                       ``,
		`enabled: false`:                                      `at '/enabled'`,
		`commonLabels: {app.kubernetes.io/name: x}`:           `at '/commonLabels/app.kubernetes.io~1name'`,
		`podLabels: {app.kubernetes.io/instance: x}`:          `at '/podLabels/app.kubernetes.io~1instance'`,
		`podDisruptionBudget: {minAvailable: 90%}`:            `at '/podDisruptionBudget/minAvailable'`,
		// What no schema sees.
		`{exporter: {enabled: false}, devicePlugin: {enabled: false}}`: `there is nothing to run`,
		`exporter: {port: 9402}`:                                                                                                            `exporter.port and devicePlugin.port are both 9402`,
		`devicePlugin: {config: {name: x, map: {a: {version: v1}}}}`:                                                                        `leave one out`,
		`devicePlugin: {config: {default: b, map: {a: {version: v1}}}}`:                                                                     `names "b", which is not in devicePlugin.config.map: a`,
		`devicePlugin: {config: {map: {a: "version: [v1"}}}`:                                                                                `devicePlugin.config.map.a is no YAML`,
		`devicePlugin: {config: {followNodeLabel: false, name: x}}`:                                                                         `name the key of the ConfigMap`,
		`devicePlugin: {config: {followNodeLabel: false, map: {a: {version: v1}, b: {version: v1}}}}`:                                       `name one by devicePlugin.config.default`,
		`devicePlugin: {config: {map: {a: {sharing: {mps: {resources: []}}}}}}`:                                                             `devicePlugin.mps.daemon is off`,
		`exporter: {counters: {inline: x, configMap: z}}`:                                                                                   `leave one out`,
		`webConfig: {existingSecret: x, tls: {secretName: tls}}`:                                                                            `webConfig.existingSecret is a whole web config`,
		`webConfig: {tls: {clientAuth: RequireAndVerifyClientCert}}`:                                                                        `needs webConfig.tls.secretName`,
		`{serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}`:                                                                    `scrape everything twice`,
		`{serviceMonitor: {enabled: true}, service: {enabled: false}}`:                                                                      `needs service.enabled`,
		`{podMonitor: {enabled: true}, webConfig: {existingSecret: x}}`:                                                                     `say it by monitor.tlsConfig`,
		`{podMonitor: {enabled: true}, webConfig: {existingSecret: x, existingSecretHasTLS: false}}`:                                        ``,
		`{podMonitor: {enabled: true}, webConfig: {existingSecret: x}, monitor: {tlsConfig: {insecureSkipVerify: true}}}`:                   ``,
		`{podMonitor: {enabled: true}, webConfig: {tls: {secretName: x, clientAuth: RequireAndVerifyClientCert}}}`:                          `wants a certificate`,
		`serviceAccount: {create: false}`:                                                                                                   `every pod of the namespace`,
		`{serviceAccount: {create: false}, rbac: {create: false}}`:                                                                          ``,
		`{serviceAccount: {create: false}, exporter: {podWatch: "off"}, devicePlugin: {nodeWatch: "off"}}`:                                  ``,
		`{podMonitor: {enabled: true}, webConfig: {basicAuth: {users: {p: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}}}}`: `monitor.basicAuth`,
	} {
		_, err := renderIn(t, setting{release: release, namespace: namespace}, valuesOf(t, values))
		switch {
		case err == nil && want != "":
			t.Errorf("%s is taken, want %q", values, want)
		case err != nil && (want == "" || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}

func TestAReleaseThatCanNameNoServiceIsRefused(t *testing.T) {
	_, err := renderIn(t, setting{release: "7", namespace: namespace}, nil)
	if err == nil || !strings.Contains(err.Error(), "fullnameOverride") {
		t.Error(err)
	}
}

func TestNamesStayShortEnough(t *testing.T) {
	long := strings.Repeat("x", 53)
	r, err := renderIn(t, setting{release: long, namespace: strings.Repeat("n", 63)}, valuesOf(t, `{xids: x, exporter: {counters: {inline: x}}, dashboards: {enabled: true}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range r.objects {
		limit := 63
		if strings.HasPrefix(o.GetKind(), "Cluster") {
			limit = 253
		}
		if len(o.GetName()) > limit {
			t.Errorf("%s %s has %d letters", o.GetKind(), o.GetName(), len(o.GetName()))
		}
	}
}

// cluster answers helm's lookups with these objects.
type cluster struct{ objects []runtime.Object }

func (c cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, err
	}
	resource := gv.WithResource(strings.ToLower(kind) + "s")
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: kind + "List"})
	for _, o := range c.objects {
		if u := o.(*unstructured.Unstructured); u.GetKind() == kind {
			if err := client.Tracker().Create(resource, o, u.GetNamespace()); err != nil {
				return nil, false, err
			}
		}
	}
	return client.Resource(resource), kind != "Node", nil
}

var _ engine.ClientProvider = cluster{}

func object(t testing.TB, text string) runtime.Object {
	t.Helper()
	return &unstructured.Unstructured{Object: valuesOf(t, text)}
}

// daemonSet is one that has pods on so many nodes.
func daemonSet(t testing.TB, where, name, image string, nodes int64) runtime.Object {
	t.Helper()
	return daemonSetOf(t, where, name, "nvidia-device-plugin-ctr", image, nodes)
}

func daemonSetOf(t testing.TB, where, name, container, image string, nodes int64) runtime.Object {
	t.Helper()
	set := object(t, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: `+name+`, namespace: `+where+`},
spec: {template: {spec: {containers: [{name: `+container+`, image: "`+image+`"}]}}}}`).(*unstructured.Unstructured)
	set.Object["status"] = map[string]any{"desiredNumberScheduled": nodes}
	return set
}

func TestAnotherDevicePluginIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		set     runtime.Object
		values  string
		refused bool
	}{
		"NVIDIA's chart":                {daemonSet(t, "kube-system", "nvidia-device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 3), `{}`, true},
		"a mirror, by digest":           {daemonSet(t, "gpu-operator", "x", "registry.example.com/k8s-device-plugin@sha256:1", 1), `{}`, true},
		"another of our own":            {daemonSet(t, namespace, release, "ghcr.io/gpumeter/gpumeter:1", 3), `{}`, false},
		"another release's":             {daemonSetOf(t, "gpus", release, "device-plugin", "registry.example.com/gpumeter:1", 3), `{}`, true},
		"another release's exporter":    {daemonSetOf(t, "gpus", release, "exporter", "registry.example.com/gpumeter:1", 3), `{}`, false},
		"ours by the GPU Operator":      {daemonSet(t, "gpu-operator", "x", "ghcr.io/gpumeter/gpumeter:1-operator", 3), `{}`, true},
		"one without nodes":             {daemonSet(t, "kube-system", "x", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 0), `{}`, false},
		"AMD's":                         {daemonSet(t, "kube-system", "x", "rocm/k8s-device-plugin-labeller:1", 3), `{}`, false},
		"the exporter alone":            {daemonSet(t, "kube-system", "x", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 3), `devicePlugin: {enabled: false}`, false},
		"who says that it is all right": {daemonSet(t, "kube-system", "x", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", 3), `clusterLookups: false`, false},
	} {
		s := setting{release: release, namespace: namespace, cluster: cluster{[]runtime.Object{c.set}}}
		_, err := renderIn(t, s, valuesOf(t, c.values))
		if refused := err != nil && strings.Contains(err.Error(), "runs another device plugin"); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v, want it refused: %v", name, err, c.refused)
		}
	}
}

func TestTheNotesWarnOfAClusterWithoutLabelledNodes(t *testing.T) {
	bare := object(t, `{apiVersion: v1, kind: Node, metadata: {name: a, labels: {kubernetes.io/os: linux}}}`)
	gpus := object(t, `{apiVersion: v1, kind: Node, metadata: {name: b, labels: {nvidia.com/gpu.present: "true"}}}`)
	for name, c := range map[string]struct {
		nodes  []runtime.Object
		values string
		warned bool
	}{
		"no label":               {[]runtime.Object{bare}, `{}`, true},
		"one of two":             {[]runtime.Object{bare, gpus}, `{}`, false},
		"nodes chosen otherwise": {[]runtime.Object{bare}, `affinity: {}`, false},
		"a pretended node":       {[]runtime.Object{bare}, `exporter: {source: sim}`, false},
		"nobody may look":        {[]runtime.Object{bare}, `clusterLookups: false`, false},
		"no answer":              {nil, `{}`, false},
	} {
		r, err := renderIn(t, setting{release: release, namespace: namespace, cluster: cluster{c.nodes}}, valuesOf(t, c.values))
		if err != nil {
			t.Fatal(name, err)
		}
		if warned := strings.Contains(r.notes, "WARNING: none of"); warned != c.warned {
			t.Errorf("%s: warned is %v in\n%s", name, warned, r.notes)
		}
	}
}

func TestTheNotesSayHowPagesGetIntoPrometheus(t *testing.T) {
	for _, c := range []struct {
		apis   []string
		values string
		want   string
	}{
		{nil, `{}`, "no Prometheus operator"},
		{[]string{"monitoring.coreos.com/v1"}, `{}`, "--set serviceMonitor.enabled=true"},
		{[]string{"monitoring.coreos.com/v1"}, `podMonitor: {enabled: true}`, ""},
		{nil, `podMonitor: {enabled: true}`, "does not seem to have the Prometheus operator"},
	} {
		r, err := renderIn(t, setting{release: release, namespace: namespace, apis: c.apis}, valuesOf(t, c.values))
		if err != nil {
			t.Fatal(err)
		}
		if c.want == "" && strings.Contains(r.notes, "Prometheus operator") || !strings.Contains(r.notes, c.want) {
			t.Errorf("%v %s: want %q in\n%s", c.apis, c.values, c.want, r.notes)
		}
	}
}
