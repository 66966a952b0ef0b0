// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// labelAPI is an API server with the node n1, whose labels are these until the test ends. It has no pods.
func labelAPI(t *testing.T, labels map[string]string) string {
	t.Helper()
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-ended:
			}
			return
		}
		list := map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}}
		if r.URL.Path == "/api/v1/nodes" {
			list["items"] = []any{map[string]any{"metadata": map[string]any{"name": "n1", "labels": labels}}}
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(ended) })
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: " + s.URL + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTheNodesLabelPausesJudging(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		limit  time.Duration
		want   health.MIGState
		paused bool
	}{
		"a repartition":                 {map[string]string{health.MIGStateLabel: "pending"}, 30 * time.Minute, health.MIGPending, true},
		"one that is over":              {map[string]string{health.MIGStateLabel: "failed"}, 30 * time.Minute, health.MIGFailed, false},
		"no MIG manager":                {map[string]string{"a": "b"}, 30 * time.Minute, health.MIGNone, false},
		"pausing is not what is wanted": {map[string]string{health.MIGStateLabel: "pending"}, 0, health.MIGPending, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := simulated()
			cfg.PodWatch, cfg.NodeName, cfg.Kubeconfig = PodWatchOn, "n1", labelAPI(t, c.labels)
			cfg.Health.RepartitionLimit = c.limit
			a := start(t, cfg)
			s, stale := a.Meter().Watch()
			for deadline := time.After(20 * time.Second); s.Health.Repartition.State != c.want; s, stale = a.Meter().Watch() {
				select {
				case <-stale:
				case <-deadline:
					t.Fatalf("%+v", s.Health.Repartition)
				}
			}
			if s.Health.Repartition.Paused != c.paused {
				t.Errorf("%+v", s.Health.Repartition)
			}
		})
	}
}

// A node object that is deleted and made anew, as by a cloud that replaces machines, is no end of what is under way.
func TestANodeThatTheAPIServerDoesNotHaveSaysNothingOfARepartition(t *testing.T) {
	cfg := simulated()
	cfg.PodWatch, cfg.NodeName, cfg.Kubeconfig = PodWatchOn, "n2", labelAPI(t, map[string]string{health.MIGStateLabel: "pending"})
	a := start(t, cfg)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if node, _ := a.node.Watch(); node.Synced && !node.Exists {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the API server is not asked")
		}
	}
	s, stale := a.Meter().Watch()
	for seq := s.Seq; s.Seq < seq+2; s, stale = a.Meter().Watch() {
		<-stale
	}
	if got := s.Health.Repartition.State; got != health.MIGUnsaid {
		t.Errorf("the MIG manager says %q", got)
	}
}
