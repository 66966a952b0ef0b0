// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"time"
)

// entrypoint is a script such as the GPU Operator mounts into the device plugin's container: it
// waits for the driver, takes its features into the environment and becomes the plugin, by name.
const entrypoint = `#!/bin/bash
until [[ -e /run/ready ]]; do sleep 1; done
grep -v '^#' /run/ready > features.env
while read -r line; do export "$line"; done < features.env
exec nvidia-device-plugin
`

// replaced: the images stand in for dcgm-exporter's and for that of NVIDIA's device plugin, in containers
// that were written for those: their arguments, environment, commands and privileges.
func (n *testNode) replaced() {
	n.must(n.kubectl(nil, "delete", "daemonset", "--namespace", namespace, "gpumeter", "--wait", "--cascade=foreground"))
	n.sums.stop()
	n.cards.forget()
	for _, object := range []map[string]any{
		{"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": "entrypoint"}, "data": map[string]string{
			"entrypoint.sh": entrypoint, "ready": "# by the validator\nGPUMETER_SOURCE=stream\n",
		}},
		{"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": "configs"}, "data": map[string]string{"shared": n.configText(byEnv)}},
		{
			"kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": map[string]any{"name": "replaced"},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpumeter"},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "default", "namespace": namespace}},
		},
		n.alone("nvidia-dcgm-exporter", n.dcgmExporter()),
		n.alone("nvidia-device-plugin-daemonset", n.devicePlugin("config-manager-init", "config-manager"), n.devicePlugin("nvidia-device-plugin", "/bin/bash", "-c")),
	} {
		text, err := json.Marshal(object)
		if err != nil {
			n.t.Fatal(err)
		}
		n.must(n.kubectl(text, "apply", "--namespace", namespace, "-f", "-"))
	}
	n.cluster.eventually(30*time.Second, "dcgm-exporter's series are there", func() error {
		p, err := scrape(exporterPage)
		if err == nil && len(p["DCGM_FI_PROF_GR_ENGINE_ACTIVE"].GetMetric()) == 0 {
			err = fmt.Errorf("%d families, none of them DCGM_FI_PROF_GR_ENGINE_ACTIVE", len(p))
		}
		return err
	})
	n.offers(30*time.Second, "the node offers all of it", n.everything())
	n.gets("replaced", whole, "NVIDIA_VISIBLE_DEVICES="+n.spare())
	n.holds("replaced", 20*interval, 1)
}

// dcgmExporter is a container as dcgm-exporter's chart has it.
func (n *testNode) dcgmExporter() map[string]any {
	return map[string]any{
		"name": "exporter", "image": n.imported(""), "imagePullPolicy": "Never",
		"args": []string{"-f", "/etc/dcgm-exporter/dcp-metrics-included.csv"},
		"env": []any{
			env("DCGM_EXPORTER_LISTEN", ":9400"), env("DCGM_EXPORTER_KUBERNETES", "true"), env("DCGM_EXPORTER_INTERVAL", fmt.Sprint(interval.Milliseconds())),
			env("NODE_NAME", nodeName), env("GPUMETER_DCGM_LIBRARY", n.cards.sim.Path), env("GPUMETER_SOURCE", "dcgm"),
		},
		"securityContext": map[string]any{
			"runAsNonRoot": false, "runAsUser": 0, "allowPrivilegeEscalation": false,
			"capabilities": map[string]any{"drop": []string{"ALL"}, "add": []string{"SYS_ADMIN"}},
		},
		"volumeMounts": []any{mount("pod-resources", "/var/lib/kubelet/pod-resources"), mount("dcgm", filepath.Dir(n.cards.sim.Path)), mount("run", "/run/gpumeter")},
	}
}

// devicePlugin is a container of the device plugin's pod as the GPU Operator has it: the plugin, or with the same image
// what chooses its config before it starts.
func (n *testNode) devicePlugin(name string, command ...string) map[string]any {
	container := map[string]any{
		"name": name, "image": n.imported("operator"), "imagePullPolicy": "Never", "command": command,
		"env": []any{
			env("NODE_NAME", nodeName), env("KUBERNETES_SERVICE_HOST", "127.0.0.1"), env("KUBERNETES_SERVICE_PORT", "6443"),
			env("ONESHOT", "true"), env("KUBECONFIG", ""), env("NODE_LABEL", "nvidia.com/device-plugin.config"), env("CONFIG_FILE_SRCDIR", "/available-configs"),
			env("CONFIG_FILE_DST", "/config/config.yaml"), env("DEFAULT_CONFIG", "shared"), env("SEND_SIGNAL", "false"),
		},
		"securityContext": map[string]any{"privileged": true},
		"volumeMounts":    []any{mount("configs", "/available-configs"), mount("config", "/config")},
	}
	if name == "nvidia-device-plugin" {
		maps.Copy(container, map[string]any{
			"args": []string{"/bin/entrypoint.sh"},
			"env":  []any{env("CONFIG_FILE", "/config/config.yaml")},
			"volumeMounts": []any{
				mount("device-plugins", "/var/lib/kubelet/device-plugins"), mount("run", "/run/gpumeter"), mount("configs", "/available-configs"), mount("config", "/config"),
				map[string]any{"name": "entrypoint", "mountPath": "/bin/entrypoint.sh", "subPath": "entrypoint.sh"},
				map[string]any{"name": "entrypoint", "mountPath": "/run/ready", "subPath": "ready"},
			},
		})
	}
	return container
}

// spare is the whole card that pod whole does not hold.
func (n *testNode) spare() string {
	n.t.Helper()
	held, err := n.kubelet.held("whole")
	if err != nil || len(held[whole]) != 1 {
		n.t.Fatalf("pod whole holds %v, %v", held, err)
	}
	if held[whole][0] == cardID(0) {
		return cardID(1)
	}
	return cardID(0)
}

func env(name, value string) map[string]any { return map[string]any{"name": name, "value": value} }

func mount(name, path string) map[string]any {
	return map[string]any{"name": name, "mountPath": path}
}

// alone is a pod on the node's network, with the folders of the node that such pods mount. Its last container stays.
func (n *testNode) alone(name string, containers ...map[string]any) map[string]any {
	host := func(name, path string) map[string]any {
		return map[string]any{"name": name, "hostPath": map[string]any{"path": path}}
	}
	last := len(containers) - 1
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"hostNetwork": true, "terminationGracePeriodSeconds": 5, "initContainers": containers[:last], "containers": containers[last:],
			"volumes": []any{
				host("pod-resources", "/var/lib/kubelet/pod-resources"), host("device-plugins", "/var/lib/kubelet/device-plugins"),
				host("dcgm", filepath.Dir(n.cards.sim.Path)), host("run", "/run/gpumeter"),
				map[string]any{"name": "entrypoint", "configMap": map[string]any{"name": "entrypoint", "defaultMode": 0o755}},
				map[string]any{"name": "configs", "configMap": map[string]any{"name": "configs"}},
				map[string]any{"name": "config", "emptyDir": map[string]any{}},
			},
		},
	}
}
