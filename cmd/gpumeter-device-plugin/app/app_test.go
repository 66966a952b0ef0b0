// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

const (
	gpus   = "nvidia.com/gpu"
	shared = "nvidia.com/gpu.shared"
	small  = "nvidia.com/mig-1g.10gb"
)

const sharedBy = "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: %d}]}}\n"

// a node with two GPUs and one in parts.
const story = "node: n1\nseed: 1\ngpus: [{model: H100-80, count: 2}, {model: H100-80, mig: [1g.10gb, 1g.10gb]}]\n"

func TestAnEditOfTheConfigTakesEffectByItself(t *testing.T) {
	s := newSite(t)
	file := s.write("config.yaml", fmt.Sprintf(sharedBy, 4))
	p := s.start("--source=sim", "--sim-scenario", s.write("story.yaml", story), "--config-file", file)
	s.await("at first", func(k *fakekubelet.Kubelet) bool { return has(shared, 8, 8)(k) && has(small, 2, 2)(k) })
	before, _ := s.kubelet.Resource(small)
	p.metrics("gpumeter_device_plugin_ready 1")

	s.write("config.yaml", fmt.Sprintf(sharedBy, 8))
	s.await("after the edit", has(shared, 16, 16))
	after, _ := s.kubelet.Resource(small)
	if after.Socket != before.Socket || after.Lists != before.Lists {
		t.Errorf("a resource that did not change was disturbed: %+v, before %+v", after, before)
	}

	s.write("config.yaml", "version: v1\nflags: {migStrategie: mixed}\n")
	p.metrics("gpumeter_device_plugin_config_last_reload_successful 0")
	if !has(shared, 16, 16)(s.kubelet) {
		t.Errorf("a bad edit changed what is handed out: %s", s.kubelet)
	}
	if log := p.log.String(); !strings.Contains(log, "did you mean migStrategy?") {
		t.Errorf("the log does not say what is wrong:\n%s", log)
	}
	s.write("config.yaml", "version: v1\n")
	s.await("after a config without sharing", func(k *fakekubelet.Kubelet) bool { return has(gpus, 3, 3)(k) && has(shared, 0, 0)(k) })
	p.metrics("gpumeter_device_plugin_config_last_reload_successful 1")
}

func TestASignalHasTheConfigReadAnew(t *testing.T) {
	// Before the plugin listens for it, the signal would end the test.
	guard := make(chan os.Signal, 1)
	signal.Notify(guard, syscall.SIGHUP)
	defer signal.Stop(guard)
	s := newSite(t)
	p := s.start("--source=sim", "--sim-scenario", s.write("story.yaml", story), "--config-file", s.write("config.yaml", "version: v1\n"))
	s.await("at first", has(gpus, 3, 3))
	taken := func() int { return strings.Count(p.log.String(), "the config is taken") }
	for limit := time.Now().Add(patience); taken() < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the signal was not heard")
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoSharedReplicasAreRefusedInWordsForTheUser(t *testing.T) {
	s := newSite(t)
	p := s.start("--source=sim", "--sim-scenario", s.write("story.yaml", story), "--config-file", s.write("config.yaml", fmt.Sprintf(sharedBy, 4)))
	s.await("at first", has(shared, 8, 8))
	if _, err := s.kubelet.Allocate(t.Context(), "greedy", shared, 2); err == nil || !strings.Contains(err.Error(), "ask for 1") {
		t.Errorf("two replicas: %v", err)
	}
	got, err := s.kubelet.Allocate(t.Context(), "modest", shared, 1)
	if err != nil || !strings.HasPrefix(got.Response.Envs["NVIDIA_VISIBLE_DEVICES"], "GPU-") {
		t.Errorf("one replica: %+v, %v", got, err)
	}
	p.metrics(`gpumeter_device_plugin_allocate_errors_total{reason="too_many_replicas",resource="nvidia.com/gpu.shared"} 1`)
	p.metrics(`gpumeter_device_plugin_allocate_total{resource="nvidia.com/gpu.shared"} 2`)
}

func TestAnotherMIGLayoutTakesEffectByItself(t *testing.T) {
	s := newSite(t)
	s.start("--mig-strategy=mixed", "--source=sim", "--sim-scenario",
		s.write("story.yaml", story+"events: [{at: 2s, do: repartition, gpu: 2, layout: [1g.10gb, 1g.10gb, 1g.10gb, 3g.40gb]}]\n"))
	s.await("at first", func(k *fakekubelet.Kubelet) bool { return has(gpus, 2, 2)(k) && has(small, 2, 2)(k) })
	s.await("after the repartition", func(k *fakekubelet.Kubelet) bool {
		return has(gpus, 2, 2)(k) && has(small, 3, 3)(k) && has("nvidia.com/mig-3g.40gb", 1, 1)(k)
	})
}

func TestARestartWithoutAnExporterKeepsABrokenGPUWithdrawn(t *testing.T) {
	s := newSite(t)
	config := s.write("config.yaml", fmt.Sprintf(sharedBy, 4))
	p := s.start("--source=sim", "--config-file", config, "--sim-scenario",
		s.write("story.yaml", story+"events: [{at: 2s, do: xid, gpu: 0, code: 79}, {at: 2s, do: xid, gpu: 1, code: 31}]\n"))
	s.await("at first", has(shared, 8, 8))
	s.await("after XID 79", has(shared, 8, 4))
	p.metrics(`gpumeter_device_plugin_verdict_source{source="own"} 1`)
	p.stop()

	// Nothing happens in this one: what is known of the GPU is what was kept.
	s.start("--source=sim", "--config-file", config, "--sim-scenario", s.write("story.yaml", story))
	lists := 0
	s.await("after the restart", func(k *fakekubelet.Kubelet) bool {
		r, _ := k.Resource(shared)
		if r.Connected && r.Allocatable == 8 {
			lists++
		}
		return r.Connected && has(shared, 8, 4)(k)
	})
	if lists > 0 {
		t.Error("the restart healed the GPU for a while")
	}
}

func TestTheExportersVerdictsAreFollowedAndHeldThroughRestarts(t *testing.T) {
	s := newSite(t)
	exporter, stopExporter := s.export(listOf(healthy, healthy))
	p := s.start("--source=stream")
	s.await("at first", has(gpus, 2, 2))
	p.metrics("gpumeter_device_plugin_monitor_up 1")
	exporter.say(listOf(healthy, unhealthy))
	s.await("after a verdict", has(gpus, 2, 1))

	stopExporter()
	p.metrics(`gpumeter_device_plugin_verdict_source{source="held"} 1`)
	p.metrics("gpumeter_device_plugin_monitor_up 0")
	if !has(gpus, 2, 1)(s.kubelet) {
		t.Errorf("losing the exporter changed what is handed out: %s", s.kubelet)
	}
	p.stop()
	p = s.start("--source=stream")
	s.await("after the plugin's restart without the exporter", has(gpus, 2, 1))
	if err := s.kubelet.Restart(); err != nil {
		t.Fatal(err)
	}
	s.await("after the kubelet's restart", has(gpus, 2, 1))

	s.export(listOf(healthy, healthy))
	s.await("when the exporter is back and says so", has(gpus, 2, 2))
	p.metrics(`gpumeter_device_plugin_verdict_source{source="stream"} 1`)
}

func TestTheEndOfPatienceWithALostExporter(t *testing.T) {
	s := newSite(t)
	_, stopExporter := s.export(listOf(healthy, healthy))
	p := s.start("--source=stream", "--health-lost-after=500ms", "--health-lost-policy=unhealthy")
	s.await("at first", has(gpus, 2, 2))
	stopExporter()
	s.await("after the exporter went", has(gpus, 2, 0))
	p.metrics(`gpumeter_device_plugin_verdict_source{source="policy"} 1`)
	s.export(listOf(healthy, healthy))
	s.await("when it is back", has(gpus, 2, 2))
}

// nodeServer is an API server with one node, whose label a test sets.
type nodeServer struct {
	mu      sync.Mutex
	label   string
	version int
	changed chan struct{}
}

func (n *nodeServer) set(label string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.label = label
	n.version++
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *nodeServer) now() (node map[string]any, version string, changed chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	version = fmt.Sprint(n.version)
	return map[string]any{
		"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
		"metadata": map[string]any{"name": "n1", "labels": map[string]string{"nvidia.com/device-plugin.config": n.label}, "resourceVersion": version},
	}, version, n.changed
}

func (n *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	node, version, changed := n.now()
	if r.URL.Query().Get("watch") == "" {
		_ = out.Encode(map[string]any{
			"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"resourceVersion": version}, "items": []any{node},
		})
		return
	}
	for known := r.URL.Query().Get("resourceVersion"); ; {
		if version != known {
			_ = out.Encode(map[string]any{"type": "MODIFIED", "object": node})
			known = version
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
			node, version, changed = n.now()
		case <-r.Context().Done():
			return
		}
	}
}

func TestTheNodesLabelChoosesTheConfig(t *testing.T) {
	s := newSite(t)
	node := &nodeServer{changed: make(chan struct{}), label: "four"}
	api := httptest.NewServer(node)
	// After the plugin, whose open watch it would wait for.
	t.Cleanup(api.Close)
	kubeconfig := s.write("kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: "+api.URL+"}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n")
	if err := os.Mkdir(s.path("configs"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("configs/default", "version: v1")
	s.write("configs/four", fmt.Sprintf(sharedBy, 4))
	s.write("configs/eight", fmt.Sprintf(sharedBy, 8))
	s.env["NODE_NAME"], s.env["CONFIG_FILE_SRCDIR"] = "n1", s.path("configs")
	p := s.start("--source=sim", "--sim-scenario", s.write("story.yaml", story), "--kubeconfig", kubeconfig)
	s.await("with the label four", has(shared, 8, 8))
	if _, applied := s.kubelet.Resource(gpus); applied {
		t.Error("the default was applied before the label")
	}
	node.set("eight")
	s.await("with the label eight", has(shared, 16, 16))
	node.set("nope")
	p.metrics("gpumeter_device_plugin_config_last_reload_successful 0")
	if !has(shared, 16, 16)(s.kubelet) {
		t.Errorf("an unknown name changed what is handed out: %s", s.kubelet)
	}
	node.set("")
	s.await("without a label", func(k *fakekubelet.Kubelet) bool { return has(gpus, 3, 3)(k) && has(shared, 0, 0)(k) })
	p.metrics("gpumeter_device_plugin_config_last_reload_successful 1")
}

func TestABadConfigEndsAProgramThatHasNone(t *testing.T) {
	s := newSite(t)
	for name, args := range map[string][]string{
		"a bad file":       {"--config-file", s.write("config.yaml", "version: v2")},
		"a missing file":   {"--config-file", s.path("nowhere")},
		"no GPUs, no hope": {"--source=nvml", "--nvml-library=/nowhere/libnvidia-ml.so.1", "--health-socket="},
	} {
		base := []string{"gpumeter-device-plugin", "--kubelet-dir", s.dir, "--state-dir=", "--address=127.0.0.1:0", "--source=sim"}
		err := Command(environ(nil), io.Discard, io.Discard).Run(t.Context(), append(base, args...))
		if err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}
