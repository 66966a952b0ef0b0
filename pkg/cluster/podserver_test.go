// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// obj is an object as JSON has it.
type obj = map[string]any

// podServer is an API server that has pods, and speaks list and watch as JSON.
type podServer struct {
	*httptest.Server
	t *testing.T

	mu sync.Mutex
	// pods are by namespace and name; log is what happened, its version the position.
	pods    map[string]obj
	log     []obj
	changed chan struct{}
	// status is the answer to everything while it is not 0; raw is what the next watch says, and nothing else.
	status int
	raw    string
	lists  int
	seen   []string
	// cut ends the open watches when it is closed.
	cut chan struct{}
}

func newPodServer(t *testing.T) *podServer {
	t.Helper()
	s := &podServer{t: t, pods: map[string]obj{}, changed: make(chan struct{}), cut: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.do(func() { close(s.cut) })
		s.Close()
	})
	return s
}

// do does something to the server and tells those who watch.
func (s *podServer) do(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// aPod is "namespace/name" with a UID and a phase, on the node n1; edits change the object.
func aPod(path, uid, phase string, edits ...func(obj)) obj {
	ns, name, _ := cutPath(path)
	p := obj{
		"kind": "Pod", "apiVersion": "v1",
		"metadata": obj{"namespace": ns, "name": name, "uid": uid, "creationTimestamp": "2026-11-30T18:00:00Z"},
		"spec":     obj{"nodeName": "n1", "containers": []any{obj{"name": "main", "env": []any{obj{"name": "SECRET", "value": "hunter2"}}}}},
		"status":   obj{"phase": phase},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func cutPath(path string) (ns, name string, ok bool) {
	for i := range path {
		if path[i] == '/' {
			return path[:i], path[i+1:], true
		}
	}
	return "", path, false
}

func labelled(labels map[string]string) func(obj) {
	return func(p obj) { p["metadata"].(obj)["labels"] = labels }
}

func ownedBy(kind, name string) func(obj) {
	return func(p obj) {
		p["metadata"].(obj)["ownerReferences"] = []any{
			obj{"kind": "Tenant", "name": "somebody", "apiVersion": "v1"},
			obj{"kind": kind, "name": name, "apiVersion": "v1", "controller": true},
		}
	}
}

func mirrors(hash string) func(obj) {
	return func(p obj) {
		p["metadata"].(obj)["annotations"] = obj{"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash, "other": "x"}
	}
}

func runningStill(p obj) {
	p["status"].(obj)["containerStatuses"] = []any{
		obj{"name": "done", "state": obj{"terminated": obj{"exitCode": 0}}}, obj{"name": "main", "state": obj{"running": obj{"startedAt": "2026-11-30T18:00:00Z"}}},
	}
}

func (s *podServer) put(pods ...obj) {
	s.do(func() {
		for _, p := range pods {
			m := p["metadata"].(obj)
			key := fmt.Sprint(m["namespace"], "/", m["name"])
			kind := "ADDED"
			if _, known := s.pods[key]; known {
				kind = "MODIFIED"
			}
			s.pods[key] = p
			s.log = append(s.log, obj{"type": kind, "object": p})
		}
	})
}

func (s *podServer) remove(path string) {
	s.do(func() {
		s.log = append(s.log, obj{"type": "DELETED", "object": s.pods[path]})
		delete(s.pods, path)
	})
}

// breaks ends all watches and answers everything with a status; 0 is well again.
func (s *podServer) breaks(status int) {
	s.do(func() {
		s.status = status
		close(s.cut)
		s.cut = make(chan struct{})
	})
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.URL.Path+"?"+r.URL.Query().Get("fieldSelector"))
	status := s.status
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case status != 0:
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(obj{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not today", "code": status})
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lists++
		items := []obj{}
		for _, key := range slices.Sorted(maps.Keys(s.pods)) {
			items = append(items, s.pods[key])
		}
		_ = json.NewEncoder(w).Encode(obj{"kind": "PodList", "apiVersion": "v1", "metadata": obj{"resourceVersion": strconv.Itoa(len(s.log))}, "items": items})
	}
}

func (s *podServer) watch(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		s.t.Errorf("watch from version %q", r.URL.Query().Get("resourceVersion"))
		return
	}
	out := json.NewEncoder(w)
	for {
		s.mu.Lock()
		changed, cut, raw := s.changed, s.cut, s.raw
		s.raw = ""
		news := s.log[from:]
		from = len(s.log)
		s.mu.Unlock()
		if raw != "" {
			_, _ = io.WriteString(w, raw)
			return
		}
		for _, event := range news {
			_ = out.Encode(event)
		}
		_ = http.NewResponseController(w).Flush()
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

// connect makes a Client of an API server.
func connect(t *testing.T, url string) *Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: " + url + "}}]\n" +
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

// followPods runs a watch of node n1's pods until the test ends.
func followPods(t *testing.T, s *podServer) *PodWatch {
	t.Helper()
	return followPodsTelling(t, s, nil)
}

// followPodsTelling has a log too.
func followPodsTelling(t *testing.T, s *podServer, log *slog.Logger) *PodWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := connect(t, s.URL).WatchPods("n1", log)
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

// untilPods waits for what the watch says of a listing.
func untilPods(t *testing.T, w *PodWatch, what string, good func(PodState) bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		state, changed := w.Watch()
		if good(state) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("never %s: %+v", what, state)
		}
	}
}

func synced(s PodState) bool   { return s.Synced && s.Err == nil }
func troubled(s PodState) bool { return s.Err != nil }

// listed are allocations of one GPU each: "namespace/name", and its UID in the listing.
func listed(pods ...[2]string) sharing.Listing {
	var l sharing.Listing
	for i, p := range pods {
		ns, name, _ := cutPath(p[0])
		l.Allocations = append(l.Allocations, sharing.Allocation{
			Holder:   sharing.Holder{Namespace: ns, Pod: name, Container: "main", PodUID: p[1]},
			Resource: "nvidia.com/gpu", DeviceID: fmt.Sprint("GPU-", i),
		})
	}
	return l
}

// uids are those of a listing, in its order, with "+" behind those of pods that have ended.
func uids(l sharing.Listing) []string {
	var out []string
	for _, a := range l.Allocations {
		uid := a.Holder.PodUID
		if a.Terminal {
			uid += "+"
		}
		out = append(out, uid)
	}
	return out
}
