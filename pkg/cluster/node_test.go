// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// apiServer is an API server that has nodes, and speaks list and watch as JSON.
type apiServer struct {
	*httptest.Server
	mu sync.Mutex
	// nodes are labels by name; version counts what happened.
	nodes   map[string]map[string]string
	version int
	changed chan struct{}
	// status is the answer to everything while it is not 0; expired answers the next watch with 410.
	status  int
	expired bool
	// unwatchable answers every watch while it is not 0.
	unwatchable int
	lists       int
	// seen are the paths and queries that were asked for.
	seen []string
	// cut ends the open watches when it is closed.
	cut chan struct{}
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{nodes: map[string]map[string]string{}, changed: make(chan struct{}), cut: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.change(func() { close(s.cut) })
		s.Close()
	})
	return s
}

// change does something to the server and tells those who watch.
func (s *apiServer) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) label(node string, labels map[string]string) {
	s.change(func() { s.nodes[node] = labels })
}

func (s *apiServer) object(name string) map[string]any {
	return map[string]any{
		"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
		"metadata": map[string]any{"name": name, "labels": s.nodes[name], "resourceVersion": fmt.Sprint(s.version)},
	}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	s.mu.Lock()
	s.seen = append(s.seen, r.URL.Path+"?"+r.URL.Query().Get("fieldSelector"))
	status, expired := s.status, s.expired && r.URL.Query().Get("watch") != ""
	if s.unwatchable != 0 && r.URL.Query().Get("watch") != "" {
		status = s.unwatchable
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case status != 0:
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": status})
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, name, expired)
	default:
		s.list(w, name)
	}
}

func (s *apiServer) list(w http.ResponseWriter, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	items := []any{}
	if _, ok := s.nodes[name]; ok {
		items = append(items, s.object(name))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}, "items": items,
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, name string, expired bool) {
	out := json.NewEncoder(w)
	flush := func() { _ = http.NewResponseController(w).Flush() }
	if expired {
		s.mu.Lock()
		s.expired = false
		s.mu.Unlock()
		_ = out.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}})
		return
	}
	flush()
	for {
		s.mu.Lock()
		changed, cut := s.changed, s.cut
		version := fmt.Sprint(s.version)
		event := map[string]any{"type": "DELETED", "object": s.object(name)}
		if _, ok := s.nodes[name]; ok {
			event["type"] = "MODIFIED"
		}
		s.mu.Unlock()
		if version != r.URL.Query().Get("resourceVersion") {
			_ = out.Encode(event)
			flush()
		}
		select {
		case <-changed:
			select {
			case <-cut: // a change that cuts closes both
				return
			default:
			}
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *apiServer) client(t *testing.T) *Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: " + s.URL + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Config{Kubeconfig: file, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// follow runs a watch of node n1 until the test ends.
func follow(t *testing.T, c *Client) *NodeWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := c.WatchNode("n1", nil)
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// until waits for a state.
func until(t *testing.T, w *NodeWatch, what string, good func(NodeState) bool) NodeState {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		state, changed := w.Watch()
		if good(state) {
			return state
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("never %s: %+v", what, state)
		}
	}
}

func has(label string) func(NodeState) bool {
	return func(s NodeState) bool { return s.Synced && s.Exists && s.Err == nil && s.Labels["config"] == label }
}

func TestTheLabelsOfANodeAreFollowed(t *testing.T) {
	s := newAPIServer(t)
	s.label("n1", map[string]string{"config": "a"})
	s.label("n2", map[string]string{"config": "other"})
	w := follow(t, s.client(t))
	until(t, w, "synced", has("a"))
	s.label("n1", map[string]string{"config": "b"})
	until(t, w, "changed", has("b"))
	s.label("n2", map[string]string{"config": "none of ours"})
	s.label("n1", nil)
	until(t, w, "without the label", has(""))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, asked := range s.seen {
		if asked != "/api/v1/nodes?metadata.name=n1" {
			t.Errorf("asked for %s", asked)
		}
	}
}

func TestNothingIsSyncedBeforeTheServerAnswers(t *testing.T) {
	s := newAPIServer(t)
	s.change(func() { s.status = http.StatusForbidden })
	s.label("n1", map[string]string{"config": "a"})
	w := follow(t, s.client(t))
	state := until(t, w, "refused", func(s NodeState) bool { return s.Err != nil })
	if state.Synced || state.Labels != nil || !strings.Contains(state.Err.Error(), "must be allowed") {
		t.Errorf("a server that refuses: %+v", state)
	}
	s.change(func() { s.status = 0 })
	until(t, w, "synced", has("a"))
}

func TestAnOutageKeepsTheLastLabels(t *testing.T) {
	s := newAPIServer(t)
	s.label("n1", map[string]string{"config": "a"})
	w := follow(t, s.client(t))
	until(t, w, "synced", has("a"))
	s.change(func() {
		s.status = http.StatusServiceUnavailable
		close(s.cut)
		s.cut = make(chan struct{})
	})
	state := until(t, w, "in trouble", func(s NodeState) bool { return s.Err != nil })
	if !state.Synced || state.Labels["config"] != "a" {
		t.Errorf("during the outage: %+v", state)
	}
	s.label("n1", map[string]string{"config": "b"})
	s.change(func() { s.status = 0 })
	until(t, w, "well again", has("b"))
}

func TestAWatchThatIsTooOldBeginsAnew(t *testing.T) {
	s := newAPIServer(t)
	s.change(func() { s.expired = true })
	s.label("n1", map[string]string{"config": "a"})
	w := follow(t, s.client(t))
	until(t, w, "synced", has("a"))
	s.label("n1", map[string]string{"config": "b"})
	state := until(t, w, "changed", has("b"))
	if state.Err != nil {
		t.Errorf("an old version is told as a trouble: %v", state.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists < 2 {
		t.Errorf("listed %d times", s.lists)
	}
}

func TestANodeThatIsDeletedKeepsItsLabels(t *testing.T) {
	s := newAPIServer(t)
	s.label("n1", map[string]string{"config": "a"})
	w := follow(t, s.client(t))
	until(t, w, "synced", has("a"))
	s.change(func() { delete(s.nodes, "n1") })
	state := until(t, w, "gone", func(s NodeState) bool { return s.Synced && !s.Exists })
	if state.Labels["config"] != "a" || state.Err == nil {
		t.Errorf("after it went: %+v", state)
	}
	s.label("n1", map[string]string{"config": "b"})
	until(t, w, "back", has("b"))
}

func TestANameThatNoNodeHasIsSaid(t *testing.T) {
	w := follow(t, newAPIServer(t).client(t))
	state := until(t, w, "answered", func(s NodeState) bool { return s.Synced })
	if state.Exists || state.Err == nil || !strings.Contains(state.Err.Error(), "n1") {
		t.Errorf("state %+v", state)
	}
}

func TestAConfigurationThatCannotWorkSaysWhatToDo(t *testing.T) {
	if _, err := Connect(Config{Kubeconfig: "/nowhere/kubeconfig"}); err == nil || !strings.Contains(err.Error(), "/nowhere/kubeconfig") {
		t.Errorf("a kubeconfig that is not there: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Connect(Config{}); err == nil || !strings.Contains(err.Error(), "give a kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
