// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// serve runs a node's kubelet for the test and returns its socket.
func serve(t *testing.T, n *Node) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "kubelet.sock")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.ServeKubelet(ctx, socket) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket outlives its kubelet: %v", err)
		}
		os.RemoveAll(dir)
	})
	eventually(t, "the socket to appear", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return socket
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

func dial(t *testing.T, socket string) podresources.PodResourcesListerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

func TestKubeletAnswersLikeARealOne(t *testing.T) {
	n := parsed(t, `
gpus:
  - {model: H100-80, count: 2}
  - {model: H100-80, mig: [3g.40gb], numa: [0, 1]}
sharing: [{replicas: 2, rename: true, gpus: 1}]
pods:
  - {name: whole, sidecars: [proxy]}
  - {name: seats, resource: nvidia.com/gpu.shared, count: 2}
  - {name: slice, resource: nvidia.com/mig-3g.40gb}
  - {name: waits}
background_pods: 12
events: [{at: 0s, do: replica_unhealthy, gpu: 1, replica: 1}]
`)
	client := dial(t, serve(t, n))
	list, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(list.PodResources); got != 14 {
		t.Errorf("%d pods listed, want whole, slice and 12 others: seats and waits find no id", got)
	}
	devices := map[string][]*podresources.ContainerDevices{}
	for _, p := range list.PodResources {
		for _, c := range p.Containers {
			if len(c.Devices) > 0 {
				devices[p.Name+"/"+c.Name] = c.Devices
			}
		}
		if p.Name == "whole" && (len(p.Containers) != 2 || p.Containers[1].Name != "proxy") {
			t.Errorf("containers of whole: %v", p.Containers)
		}
	}
	slice := devices["slice/main"]
	if len(slice) != 2 || !slices.Equal(slice[0].DeviceIds, slice[1].DeviceIds) || slice[0].Topology.Nodes[0].ID != 0 || slice[1].Topology.Nodes[0].ID != 1 {
		t.Errorf("a device on two NUMA nodes is listed as %v", slice)
	}
	if len(devices) != 2 {
		t.Errorf("devices of %v", devices)
	}
	pod, err := client.Get(t.Context(), &podresources.GetPodResourcesRequest{PodName: "whole", PodNamespace: "default"})
	if err != nil || pod.PodResources.Name != "whole" {
		t.Errorf("get: %v, %v", pod, err)
	}
	_, err = client.Get(t.Context(), &podresources.GetPodResourcesRequest{PodName: "waits", PodNamespace: "default"})
	if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "not found") {
		t.Errorf("get of a pod that waits: %v", err)
	}
	allocatable, err := client.GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// One whole GPU, the healthy replica, and a MIG device twice.
	if got := len(allocatable.Devices); got != 4 {
		t.Errorf("%d allocatable entries, want 4: %v", got, allocatable.Devices)
	}
}

// What is allocatable shrinks with health and the plugin; what is listed does not.
func TestAllocatableFollowsHealthAndPlugin(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, count: 2}, {model: H100-80, mig: [3g.40gb]}]
sharing: [{replicas: 4}]
pods: [{name: a, copies: 8}]
events:
  - {at: 1m, do: replica_unhealthy, gpu: 0, replica: 3, for: 1m}
  - {at: 3m, do: gpu_lost, gpu: 1, for: 1m}
  - {at: 5m, do: plugin_away, resource: nvidia.com/gpu, for: 1m}
  - {at: 7m, do: plugin_away, for: 1m}
  - {at: 9m, do: replica_unhealthy, gpu: 0, for: 1m}
  - {at: 11m, do: kubelet_restart, for: 20s}
`)
	for at, want := range map[time.Duration]int{
		0: 9, 90 * time.Second: 8, 150 * time.Second: 9, 3 * time.Minute: 5, 4 * time.Minute: 9,
		5 * time.Minute: 1, 7 * time.Minute: 0, 8 * time.Minute: 9, 9 * time.Minute: 5,
		11*time.Minute + 22*time.Second: 0, 11*time.Minute + 25*time.Second: 9,
	} {
		if got := len(n.Advertised(at)); got != want {
			t.Errorf("at %s %d ids are advertised, want %d", at, got, want)
		}
		if got := len(n.Truth(at)); got != 8 {
			t.Errorf("at %s %d ids are held, want 8", at, got)
		}
	}
}

// A restart takes the socket away for its time; the allocations outlive it.
func TestKubeletRestart(t *testing.T) {
	s, err := Parse("restart.yaml", []byte(`
gpus: [{model: H100-80, count: 2}]
pods: [{name: a}]
events: [{at: 2m, do: kubelet_restart, for: 1m}]
`))
	if err != nil {
		t.Fatal(err)
	}
	// The restart begins after two seconds.
	n, err := NewNode(s, Options{Speed: 60})
	if err != nil {
		t.Fatal(err)
	}
	socket := serve(t, n)
	client := dial(t, socket)
	before, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the socket to go", func() bool {
		_, err := os.Lstat(socket)
		return errors.Is(err, fs.ErrNotExist)
	})
	if at := n.Elapsed(); at < 2*time.Minute {
		t.Errorf("the socket went at %s already", at)
	}
	// The socket goes a moment before the connections do.
	eventually(t, "the connection to break", func() bool {
		_, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
		return status.Code(err) == codes.Unavailable
	})
	var after *podresources.ListPodResourcesResponse
	eventually(t, "the kubelet to come back", func() bool {
		after, err = client.List(t.Context(), &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
	if at := n.Elapsed(); at < 3*time.Minute {
		t.Errorf("the kubelet was back at %s already", at)
	}
	if got, want := after.String(), before.String(); got != want {
		t.Errorf("after the restart: %s\nbefore: %s", got, want)
	}
}

func TestKubeletLimitsItsRate(t *testing.T) {
	client := dial(t, serve(t, newNode(t, "h100x8-exclusive", Options{})))
	var (
		wg            sync.WaitGroup
		mu            sync.Mutex
		good, refused int
	)
	for range 200 {
		wg.Go(func() {
			_, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				good++
			case status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "rejected by rate limit"):
				refused++
			default:
				t.Errorf("list: %v", err)
			}
		})
	}
	wg.Wait()
	if good < 10 || refused == 0 {
		t.Errorf("of 200 calls at once %d went through and %d were refused", good, refused)
	}
}

// The limit is exact on a clock: a burst of ten, then one per ten milliseconds.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &rateLimit{perSecond: 100, burst: 10}
		burst := func() (allowed int) {
			for range 100 {
				if l.allow() {
					allowed++
				}
			}
			return allowed
		}
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 10}, {0, 0}, {30 * time.Millisecond, 3}, {time.Hour, 10}} {
			time.Sleep(step.wait)
			if got := burst(); got != step.want {
				t.Errorf("after %s %d calls are allowed, want %d", step.wait, got, step.want)
			}
		}
	})
}

func TestSlowKubeletHeedsTheDeadline(t *testing.T) {
	n := parsed(t, "gpus: [{model: H100-80}]\nevents: [{at: 0s, do: kubelet_slow, delay: 1h, for: 10h}]\n")
	client := dial(t, serve(t, n))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.List(ctx, &podresources.ListPodResourcesRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("list: %v", err)
	}
}

// Nothing but a dead socket is ever replaced.
func TestServeKubeletSparesFiles(t *testing.T) {
	n := newNode(t, "h100x8-exclusive", Options{})
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file:                             "is not a socket",
		link:                             "is not a socket",
		dir:                              "is not a socket",
		filepath.Join(dir, "no", "sock"): "the folder must exist",
		serve(t, n):                      "another process serves",
	} {
		if err := n.ServeKubelet(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("serve at %s: %v, want %q", path, err, want)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "precious" {
		t.Errorf("the file is now %q, %v", data, err)
	}
}

func TestServeKubeletReplacesADeadSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- newNode(t, "h100x8-exclusive", Options{}).ServeKubelet(ctx, socket) }()
	client := dial(t, socket)
	eventually(t, "an answer", func() bool {
		_, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
