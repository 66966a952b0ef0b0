// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// clusterNode is an API server with the node n1, whose labels can be watched and applied.
type clusterNode struct {
	mu      sync.Mutex
	labels  map[string]string
	applied map[string]string
	agents  []string
}

func (n *clusterNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	n.mu.Lock()
	node := map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"name": "n1", "labels": n.labels}}
	n.agents = append(n.agents, r.Method+" "+r.URL.Path)
	n.mu.Unlock()
	switch {
	case r.Method == http.MethodPatch:
		var object struct {
			Metadata struct{ Labels map[string]string }
		}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &object); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		n.mu.Lock()
		n.applied = object.Metadata.Labels
		n.mu.Unlock()
		_ = json.NewEncoder(w).Encode(node)
	case r.URL.Query().Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{node},
		})
	}
}

// clusterOf is such an API server, and a kubeconfig for it.
func clusterOf(s *site, labels map[string]string) (*clusterNode, string) {
	node := &clusterNode{labels: labels}
	api := httptest.NewServer(node)
	s.t.Cleanup(api.Close)
	return node, s.write("kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: "+api.URL+"}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n")
}

func TestLabelsGoOntoTheNode(t *testing.T) {
	s := newSite(t)
	node, kubeconfig := clusterOf(s, nil)
	p := s.start("--source=sim", "--sim-scenario=h100x8-exclusive", "--health-socket=", "--node-name=n1", "--kubeconfig", kubeconfig, "--feature-labels=node")
	p.metrics("gpumeter_device_plugin_feature_labels_written 1")
	node.mu.Lock()
	defer node.mu.Unlock()
	if node.applied["nvidia.com/gpu.count"] != "8" || node.applied["nvidia.com/gpu.product"] != "NVIDIA-H100-80GB-HBM3" {
		t.Errorf("%v", node.applied)
	}
	for _, request := range node.agents {
		if request != "PATCH /api/v1/nodes/n1" {
			t.Errorf("labels alone are wanted, and there was %s", request)
		}
	}
}

func TestThePluginsOwnVerdictsRestInARepartition(t *testing.T) {
	s := newSite(t)
	_, kubeconfig := clusterOf(s, map[string]string{health.MIGStateLabel: "pending"})
	p := s.start("--source=sim", "--sim-scenario=h100x8-exclusive", "--health-socket=", "--node-name=n1", "--kubeconfig", kubeconfig, "--node-watch=on")
	p.metrics("gpumeter_device_plugin_judging_paused 1")

	without := newSite(t)
	q := without.start("--source=sim", "--sim-scenario=h100x8-exclusive", "--health-socket=", "--node-name=n1", "--kubeconfig", kubeconfig)
	q.metrics("gpumeter_device_plugin_ready 1")
	if strings.Contains(q.page("/metrics"), "judging_paused") {
		t.Error("a pretend node's labels are asked for")
	}
}

func TestAGPUThatIsResetForARepartitionIsStillHandedOut(t *testing.T) {
	for _, said := range []health.MIGState{health.MIGPending, health.MIGSuccess} {
		s := newStage(t, func(c *config) { c.healthSocket = "" })
		s.engine.migState = func() health.MIGState { return said }
		s.config("").look(4)
		for range 5 {
			s.pass(10 * time.Second).look(3)
		}
		v, _ := s.own.Verdict("GPU-3")
		if want := said == health.MIGSuccess; (v.Status == health.Unhealthy) != want {
			t.Errorf("%s: %+v", said, v)
		}
	}
}

func TestThePluginHearsOfARepartitionFromTheExporter(t *testing.T) {
	s := newStage(t, func(c *config) { c.healthSocket = "" })
	s.config("").look(4)
	s.engine.follow(&health.Report{Repartition: health.Repartition{State: health.MIGRebooting, Paused: true}})
	for range 5 {
		s.pass(10 * time.Second).look(3)
	}
	if v, _ := s.own.Verdict("GPU-3"); v.Status == health.Unhealthy {
		t.Errorf("it is withdrawn in the midst of a reset: %+v", v)
	}
	s.engine.follow(&health.Report{Repartition: health.Repartition{State: health.MIGSuccess}})
	for range 5 {
		s.pass(10 * time.Second).look(3)
	}
	if v, _ := s.own.Verdict("GPU-3"); v.Status != health.Unhealthy {
		t.Errorf("it has not come back, and is not lost: %+v", v)
	}
}

func TestWhatConcernsTheNodeIsChecked(t *testing.T) {
	for _, c := range []struct{ args, complaint string }{
		{"--feature-labels=somewhere", "off, file or node"},
		{"--feature-labels=node", "set NODE_NAME from spec.nodeName"},
		{"--feature-labels=file --feature-file=", "needs a --feature-file"},
		{"--node-watch=on", "set NODE_NAME from spec.nodeName"},
		{"--node-watch=maybe", "auto, on or off"},
		{"--health-repartition-limit=-1s", "want 0 to 12h"},
	} {
		if _, err := parse(t, nil, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.complaint) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	got, err := parse(t, map[string]string{"GPUMETER_FEATURE_LABELS": "file", "GPUMETER_NODE_WATCH": "off", "GPUMETER_HEALTH_REPARTITION_LIMIT": "10m", "GPUMETER_FEATURE_FILE": "/f"})
	if err != nil || got.features != (featureConfig{featuresFile, "/f"}) || got.nodeWatch != nodeWatchOff || got.repartition != 10*time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
}
