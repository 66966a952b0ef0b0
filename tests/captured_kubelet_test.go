// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// recorded is a kubelet that says again what a real one said.
type recorded struct {
	podresources.UnimplementedPodResourcesListerServer

	mu          sync.Mutex
	list        *podresources.ListPodResourcesResponse
	allocatable *podresources.AllocatableResourcesResponse
}

func (r *recorded) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list, nil
}

func (r *recorded) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.allocatable, nil
}

// say changes the answers to those in the files; an empty name is an empty answer.
func (r *recorded) say(t *testing.T, list, allocatable string) {
	t.Helper()
	r.sayFrom(t, "kubelet-1.37.2", list, allocatable)
}

// sayFrom is say with files of a folder, which has the kubelet's version in its name.
func (r *recorded) sayFrom(t *testing.T, folder, list, allocatable string) {
	t.Helper()
	l, a := &podresources.ListPodResourcesResponse{}, &podresources.AllocatableResourcesResponse{}
	for file, m := range map[string]proto.Message{list: l, allocatable: a} {
		data, err := os.ReadFile(filepath.Join("testdata", folder, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(data, m); err != nil {
			t.Fatal(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.allocatable = l, a
}

// serve listens on a unix socket until the test ends.
func (r *recorded) serve(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, r)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return socket
}

// exporterOn runs the exporter itself, configured by change, and returns where it serves.
func exporterOn(t *testing.T, change func(*app.Config)) string {
	t.Helper()
	cfg := app.Defaults()
	cfg.Source, cfg.Kubernetes, cfg.Address, cfg.Interval = "sim", true, "127.0.0.1:0", "100ms"
	change(&cfg)
	a, err := app.New(cfg, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	addr, err := a.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + addr.String()
}

func scrape(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("scrape: %d, %v", resp.StatusCode, err)
	}
	return parsePage(t, body)
}

// shares are the parts on a page, by pod, and by "-reason" per card for what nobody holds.
func shares(page map[string]*dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, m := range page["gpumeter_allocation_share"].GetMetric() {
		l := labelsOf(m)
		out[l["namespace"]+"/"+l["pod"]] += valueOf(m)
	}
	for _, m := range page["gpumeter_unallocated_share"].GetMetric() {
		l := labelsOf(m)
		if v := valueOf(m); v != 0 {
			out[l["UUID"][len(l["UUID"])-4:]+"-"+l["reason"]] += v
		}
	}
	return out
}

// TestCapturedKubeletEndToEnd runs the exporter's main job on the answers of a real kubelet.
func TestCapturedKubeletEndToEnd(t *testing.T) {
	kubelet := &recorded{}
	kubelet.say(t, "list.json", "allocatable.json")
	socket := kubelet.serve(t)
	url := exporterOn(t, func(c *app.Config) {
		c.Scenario = filepath.Join("testdata", "kubelet-1.37.2", "node.yaml")
		c.KubeletSocket, c.KubeletSet = socket, true
		c.Checkpoint = filepath.Join("testdata", "kubelet-1.37.2", "kubelet_internal_checkpoint.json")
		c.EnablePodUID = true
	})
	const slice = 15.0 / 112
	full := map[string]float64{
		"inference/chat-7f9c4d-x2x": 1. / 4, "ml-research/train-0": 2. / 4, "0000-unrequested": 1. / 4,
		"inference/embed-0": 1. / 3, "ml-research/notebook": 1. / 3, "0001-unrequested": 1. / 3,
		"inference/small": slice / 2, "0002-unrequested": slice / 2, "0002-free": 1 - slice,
	}
	steps := []struct {
		name, list, allocatable string
		want                    func(map[string]float64)
	}{
		{"everything runs", "list.json", "allocatable.json", func(map[string]float64) {}},
		{"one replica is unhealthy: nobody's share changes", "list.json", "allocatable_one-replica-unhealthy.json", func(map[string]float64) {}},
		{"the plugin is stopped: its ids are remembered", "list_plugin-stopped.json", "allocatable_plugin-stopped.json", func(map[string]float64) {}},
		{"a pod is deleted", "list_after-delete.json", "allocatable.json", func(w map[string]float64) {
			delete(w, "inference/chat-7f9c4d-x2x")
			w["0000-unrequested"] = 2. / 4
		}},
		{"DRA claims of another driver are none of ours", "list_dra.json", "allocatable.json", func(w map[string]float64) {
			delete(w, "inference/chat-7f9c4d-x2x")
			w["0000-unrequested"] = 2. / 4
		}},
		{"everything runs again", "list.json", "allocatable.json", func(map[string]float64) {}},
	}
	for _, step := range steps {
		kubelet.say(t, step.list, step.allocatable)
		want := maps.Clone(full)
		step.want(want)
		got, difference := map[string]float64{}, ""
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			page := scrape(t, url)
			got = shares(page)
			if difference = differ(want, got); difference == "" {
				if err := addsUp(page, 3); err != nil {
					t.Errorf("%s: %v", step.name, err)
				}
				break
			}
		}
		if difference != "" {
			t.Fatalf("%s: %s\ngot %v", step.name, difference, got)
		}
		// The answer that was right must stay right: a tick later, memory may have changed it.
		time.Sleep(250 * time.Millisecond)
		if d := differ(want, shares(scrape(t, url))); d != "" {
			t.Fatalf("%s, some ticks later: %s", step.name, d)
		}
	}
	page := scrape(t, url)
	uids := map[string]string{}
	for _, m := range page["gpumeter_allocation_share"].GetMetric() {
		l := labelsOf(m)
		uids[l["pod"]] = l["pod_uid"]
	}
	if got := uids["chat-7f9c4d-x2x"]; got != "7e4e24ba-eb91-4386-bd4a-57ada2e94ade" {
		t.Errorf("UID %q from the checkpoint, all: %v", got, uids)
	}
}

func differ(want, got map[string]float64) string {
	for k, v := range want {
		if g, ok := got[k]; !ok || math.Abs(g-v) > 1e-12 {
			return fmt.Sprintf("%s has %v, want %v", k, g, v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			return fmt.Sprintf("%s has %v, want nothing", k, v)
		}
	}
	return ""
}
