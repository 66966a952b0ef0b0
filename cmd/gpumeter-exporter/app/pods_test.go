// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// What a meter looks for in who lists allocations.
var (
	_ meter.Allocations                       = (*podMap)(nil)
	_ meter.Alarms                            = (*podMap)(nil)
	_ interface{ Pods() []ledger.Pod }        = (*podMap)(nil)
	_ interface{ Kinds() []string }           = (*podMap)(nil)
	_ interface{ Run(context.Context) error } = (*podMap)(nil)
)

// fakeLister is a kubelet that lists pods n/train and n/other, without UIDs.
type fakeLister struct {
	alarm chan struct{}
	err   error
	ends  error
}

func (f *fakeLister) List(context.Context) (sharing.Listing, error) {
	if f.err != nil {
		return sharing.Listing{}, f.err
	}
	hold := func(pod, id string) sharing.Allocation {
		return sharing.Allocation{Holder: sharing.Holder{Namespace: "n", Pod: pod, Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: id}
	}
	return sharing.Listing{Pods: 2, Allocations: []sharing.Allocation{hold("train", "GPU-0"), hold("other", "GPU-1")}}, nil
}

func (f *fakeLister) Kinds() []string         { return []string{"odd"} }
func (f *fakeLister) Alarms() <-chan struct{} { return f.alarm }
func (f *fakeLister) Run(ctx context.Context) error {
	if f.ends != nil {
		return f.ends
	}
	<-ctx.Done()
	return nil
}

// podAPI is an API server with the pod n/train, whose watch says what comes in events; it answers when ready closes.
func podAPI(t *testing.T, ready <-chan struct{}, events <-chan map[string]any) string {
	t.Helper()
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-ready:
		case <-ended:
			return
		}
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		if r.URL.Query().Get("watch") == "" {
			_ = out.Encode(map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{trainer("Running")}})
			return
		}
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case e := <-events:
				_ = out.Encode(e)
			case <-r.Context().Done():
				return
			case <-ended:
				return
			}
		}
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

func trainer(phase string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{
			"namespace": "n", "name": "train", "uid": "u1", "labels": map[string]string{"team": "a"},
			"ownerReferences": []any{map[string]any{"kind": "StatefulSet", "name": "trainers", "controller": true}},
		},
		"status": map[string]any{"phase": phase},
	}
}

// runPods runs a podMap until the test ends.
func runPods(t *testing.T, m *podMap) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func alarmOf(t *testing.T, m *podMap) {
	t.Helper()
	select {
	case <-m.Alarms():
	case <-time.After(20 * time.Second):
		t.Fatal("no alarm")
	}
}

// The first listing already knows the pods, the end of one raises an alarm, and so does the kubelet's word.
func TestTheKubeletSaysWhoHoldsAndTheAPIServerWhoThatIs(t *testing.T) {
	ready, events := make(chan struct{}), make(chan map[string]any)
	_, pods, err := watchPods(PodWatchAuto, podAPI(t, ready, events), "n1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	kubelet := &fakeLister{alarm: make(chan struct{}, 1)}
	m := newPodMap(kubelet, pods)
	runPods(t, m)
	time.AfterFunc(100*time.Millisecond, func() { close(ready) })
	list := func() []sharing.Allocation {
		t.Helper()
		l, err := m.List(t.Context())
		if err != nil || len(l.Allocations) != 2 {
			t.Fatalf("%v, %v", l, err)
		}
		return l.Allocations
	}
	if got := list(); got[0].Holder.PodUID != "u1" || got[0].Terminal || got[1].Holder.PodUID != "" {
		t.Errorf("first listing: %+v", got)
	}
	want := []ledger.Pod{{Namespace: "n", Name: "train", UID: "u1", WorkloadKind: "StatefulSet", Workload: "trainers", Labels: map[string]string{"team": "a"}}}
	if diff := cmp.Diff(want, m.Pods()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	events <- map[string]any{"type": "MODIFIED", "object": trainer("Succeeded")}
	alarmOf(t, m)
	if got := list(); !got[0].Terminal || got[1].Terminal {
		t.Errorf("after its end: %+v", got)
	}
	kubelet.alarm <- struct{}{}
	alarmOf(t, m)
}

func TestWithoutTheAPIServerTheKubeletsWordIsAll(t *testing.T) {
	kubelet := &fakeLister{alarm: make(chan struct{}, 1)}
	m := newPodMap(kubelet, nil)
	runPods(t, m)
	if l, err := m.List(t.Context()); err != nil || len(l.Allocations) != 2 || m.Pods() != nil {
		t.Errorf("%v, %v, pods %v", l, err, m.Pods())
	}
	kubelet.alarm <- struct{}{}
	alarmOf(t, m)
	kubelet.err = errors.New("away")
	if _, err := m.List(t.Context()); !errors.Is(err, kubelet.err) || m.Kinds()[0] != "odd" {
		t.Errorf("error %v", err)
	}
}

// An API server that hangs holds up the first listing for a moment, and stops nothing.
func TestAnAPIServerThatHangsHoldsUpNothing(t *testing.T) {
	_, pods, err := watchPods(PodWatchOn, podAPI(t, nil, nil), "n1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m := newPodMap(&fakeLister{}, pods)
	runPods(t, m)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	l, err := m.List(ctx)
	if err != nil || ctx.Err() != nil || len(l.Allocations) != 2 {
		t.Errorf("%v, %v, %v", l, err, ctx.Err())
	}
}

func TestAnEndOfEitherEndsBoth(t *testing.T) {
	_, pods, err := watchPods(PodWatchOn, podAPI(t, nil, nil), "n1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := newPodMap(&fakeLister{ends: broken}, pods).Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestWhetherTheAPIServerIsAsked(t *testing.T) {
	file := podAPI(t, nil, nil)
	for name, c := range map[string]struct {
		mode, kubeconfig, node string
		asked                  bool
		complaint, log         string
	}{
		"off":                      {PodWatchOff, file, "n1", false, "", ""},
		"on":                       {PodWatchOn, file, "n1", true, "", ""},
		"on, and no node":          {PodWatchOn, file, "", false, "NODE_NAME", ""},
		"on, and no cluster":       {PodWatchOn, "", "n1", false, "give a kubeconfig", ""},
		"on, and a bad kubeconfig": {PodWatchOn, "/nowhere", "n1", false, "/nowhere", ""},
		"auto, with a kubeconfig":  {PodWatchAuto, file, "n1", true, "", ""},
		"auto, and no node":        {PodWatchAuto, file, "", false, "", "node-name"},
		"auto, and no cluster":     {PodWatchAuto, "", "n1", false, "", "this is no pod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			var log bytes.Buffer
			client, watch, err := watchPods(c.mode, c.kubeconfig, c.node, slog.New(slog.NewTextHandler(&log, nil)))
			if (watch != nil) != c.asked || (client != nil) != c.asked || (err != nil) != (c.complaint != "") || !strings.Contains(log.String(), c.log) {
				t.Errorf("asked %v, error %v, log %s", watch != nil, err, &log)
			}
			if err != nil && (!strings.Contains(err.Error(), c.complaint) || !strings.Contains(err.Error(), "--kubernetes-pod-watch=on")) {
				t.Errorf("error %v", err)
			}
		})
	}
}
