// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	interval     = 500 * time.Millisecond
	holdDown     = time.Second
	exporterPage = "http://127.0.0.1:9400/metrics"
	pluginPage   = "http://127.0.0.1:9401/metrics"
	healthSocket = "/run/gpumeter/health.sock"
	ledgerFolder = work + "/ledger"

	whole  = "nvidia.com/gpu"
	shared = "nvidia.com/gpu.shared"
	slice  = "nvidia.com/mig-1g.10gb"

	exporter = "gpumeter-exporter"
	plugin   = "gpumeter-device-plugin"
	kubelet  = "kubelet"
)

// testNode is a whole node: Kubernetes, the cards and our two programs.
type testNode struct {
	t        *testing.T
	began    time.Time
	product  string
	cluster  *cluster
	cards    *gpus
	kubelet  *kubeletClient
	watch    *nodeWatch
	sums     *sumsWatch
	replicas int
	strategy string
}

// startNode brings everything up until the node offers all that it has.
func startNode(t *testing.T) *testNode {
	t.Helper()
	minor := os.Getenv(envKubelet)
	out := outFolder(minor)
	logs, records := filepath.Join(out, "logs"), filepath.Join(out, "records")
	if err := os.RemoveAll(out); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{logs, records} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := os.Getenv(envBin)
	p := newProcesses(t, logs, strings.Join([]string{bin, os.Getenv("PATH")}, ":"))
	n := &testNode{t: t, began: time.Now(), product: os.Getenv(envProduct), cards: newGPUs(t), kubelet: newKubeletClient(t, records)}
	n.cluster = startCluster(t, p, bin, minor)
	n.watch = n.cluster.api.follow(t)
	n.strategy = byCDI
	n.configure(4)
	n.permit()
	n.start(exporter)
	n.start(plugin)
	n.start(kubelet)
	n.sums = watchSums(t)
	p.eventually(60*time.Second, "the node is ready and pods may be made", n.ready)
	n.offers(30*time.Second, "the node offers all of it", n.everything())
	return n
}

func (n *testNode) ready() error {
	var this node
	if err := n.cluster.api.get(nodePath, &this); err != nil {
		return err
	}
	for _, c := range this.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			return errors.New("the node is not ready")
		}
	}
	return n.cluster.api.get("/api/v1/namespaces/default/serviceaccounts/default", nil)
}

// everything is what the node offers when nothing is broken.
func (n *testNode) everything() map[string]int {
	return map[string]int{whole: 2, shared: n.replicas, slice: len(instances)}
}

// start starts one of the three programs that are restarted, and waits until it answers.
func (n *testNode) start(name string) {
	n.t.Helper()
	p := n.cluster.processes
	switch name {
	case exporter:
		p.start(name, filepath.Join(n.product, name), "--source=dcgm", "--dcgm-library="+n.cards.sim.Path, "--kubernetes", "--kubernetes-enable-pod-uid",
			"--address=127.0.0.1:9400", fmt.Sprintf("--collect-interval=%d", interval.Milliseconds()), "--ledger-dir="+ledgerFolder, "--ledger-commit=1s",
			"--kubernetes-pod-watch=on", "--kubeconfig="+filepath.Join(work, "credentials", kubeconfig(exporter)), "--node-name="+nodeName,
			"--health-socket="+healthSocket, "--health-hold-down="+holdDown.String(), "--health-flap-limit=-1")
		p.eventually(20*time.Second, "the exporter answers", answers(exporterPage))
	case plugin:
		p.start(name, filepath.Join(n.product, name), "--source=stream", "--config-file="+n.configFile(),
			"--health-socket="+healthSocket, "--state-dir="+filepath.Join(work, "plugin"), "--address=127.0.0.1:9401")
		p.eventually(20*time.Second, "the device plugin answers", answers(pluginPage))
	case kubelet:
		n.cluster.startKubelet()
	}
}

// restart ends one of them, gently or as a crash does, and starts it again.
func (n *testNode) restart(name string, crash bool) {
	n.t.Helper()
	if crash {
		n.cluster.kill(name)
	} else {
		n.cluster.stop(name)
	}
	if name == exporter {
		n.cards.forget()
	}
	n.start(name)
}

func (n *testNode) configFile() string { return filepath.Join(work, "plugin.yaml") }

// How containers are told their devices.
const (
	byCDI = "{deviceListStrategy: [cdi-cri]}"
	byEnv = "{deviceListStrategy: [envvar], passDeviceSpecs: true}"
)

// configure writes the device plugin's file, NVIDIA's version 1, in one step.
func (n *testNode) configure(replicas int) {
	n.t.Helper()
	n.replicas = replicas
	n.writeConfig(n.configText(n.strategy))
}

// configText is a config of the device plugin.
func (n *testNode) configText(strategy string) string {
	return fmt.Sprintf(`version: v1
flags:
  migStrategy: mixed
  plugin: %s
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
    - name: %s
      rename: %s
      devices: ["%d"]
      replicas: %d
`, strategy, whole, shared, sharedCard, n.replicas)
}

// reconfigure changes how containers are told their devices, and waits until that holds.
func (n *testNode) reconfigure(strategy string) {
	n.t.Helper()
	before := n.configHash()
	n.strategy = strategy
	n.configure(n.replicas)
	n.cluster.eventually(10*time.Second, "the device plugin has taken the config", func() error {
		if n.configHash() == before {
			return errors.New("it has the one before")
		}
		return nil
	})
	// It lets changes that come together go together.
	time.Sleep(interval)
}

// configHash names the config that the device plugin follows.
func (n *testNode) configHash() string {
	n.t.Helper()
	p, err := scrape(pluginPage)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range p["gpumeter_device_plugin_config_info"].GetMetric() {
		return labels(m)["hash"]
	}
	n.t.Fatal("the device plugin does not say which config it has")
	return ""
}

func (n *testNode) writeConfig(text string) {
	n.t.Helper()
	file := n.configFile()
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		n.t.Fatal(err)
	}
}

// offers waits until the node's status has these devices to give away.
func (n *testNode) offers(limit time.Duration, what string, want map[string]int) time.Duration {
	n.t.Helper()
	return n.cluster.eventually(limit, what, func() error {
		now := n.watch.now()
		for resource, count := range want {
			if now.allocatable[resource] != count {
				return fmt.Errorf("allocatable is %v, want %v", now.allocatable, want)
			}
		}
		return nil
	})
}

// never fails the test if the node offered less than that at any moment since.
func (n *testNode) never(since time.Time, lessThan map[string]int) {
	n.t.Helper()
	for _, s := range n.watch.since(since) {
		for resource, count := range lessThan {
			if s.allocatable[resource] < count {
				n.t.Errorf("%v after the change the node offered %d %s, never less than %d was to be", s.at.Sub(since), s.allocatable[resource], resource, count)
			}
		}
	}
}

// create makes a pod that asks for so many devices, says what it sees, and stays.
func (n *testNode) create(name, resource string, count int) {
	n.t.Helper()
	n.make(name, resource, count, "trap 'exit 0' TERM; env | sort; ls /dev/nvidia* /dev/nvidia-caps/*; echo complete; while :; do sleep 1; done")
}

// make makes a pod that asks for so many devices, does this, and is not started again when it has.
func (n *testNode) make(name, resource string, count int, script string) {
	n.t.Helper()
	container := map[string]any{
		"name": "main", "image": shellImage, "imagePullPolicy": "Never",
		"command":   []string{"/bin/sh", "-c", script},
		"resources": map[string]any{"limits": map[string]string{resource: fmt.Sprint(count)}},
	}
	body := map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": []any{container}},
	}
	if err := n.cluster.api.call("POST", podsPath, body, nil); err != nil {
		n.t.Fatal(err)
	}
}

// runs waits until a pod runs.
func (n *testNode) runs(name string) {
	n.t.Helper()
	n.cluster.eventually(30*time.Second, "pod "+name+" runs", func() error {
		var p pod
		if err := n.cluster.api.get(podsPath+"/"+name, &p); err != nil {
			return err
		}
		if p.Status.Phase != "Running" || len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("pod %s is %s: %s %s", name, p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})
}

// delete ends a pod and waits until it is gone.
func (n *testNode) delete(name string) {
	n.t.Helper()
	if err := n.cluster.api.call("DELETE", podsPath+"/"+name, nil, nil); err != nil {
		n.t.Fatal(err)
	}
	n.cluster.eventually(30*time.Second, "pod "+name+" is gone", func() error {
		if err := n.cluster.api.get(podsPath+"/"+name, nil); err == nil {
			return fmt.Errorf("pod %s is still there", name)
		}
		return nil
	})
}

// health is what the pod's status says of its devices, in the resource's order; empty where
// this version does not say.
func (n *testNode) health(name string) (string, error) {
	var p pod
	if err := n.cluster.api.get(podsPath+"/"+name, &p); err != nil {
		return "", err
	}
	for _, c := range p.Status.ContainerStatuses {
		for _, r := range c.Allocated {
			for _, d := range r.Resources {
				return d.Health, nil
			}
		}
	}
	return "", nil
}
