// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// fixed is a kubelet that always says the same.
type fixed struct {
	podresources.UnimplementedPodResourcesListerServer

	pods        []*podresources.PodResources
	allocatable []*podresources.ContainerDevices
}

func (f *fixed) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: f.pods}, nil
}

func (f *fixed) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: f.allocatable}, nil
}

// serve serves it until the test ends, and returns the socket.
func (f *fixed) serve(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "hostile")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, f)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return socket
}

func pod(namespace, name, container, resource string, ids ...string) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: []*podresources.ContainerResources{
		{Name: container, Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}},
	}}
}

// many calls f for the numbers below n.
func many[T any](n int, f func(int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

// TestWhateverTheKubeletSaysThePageIsValidAndBounded has a kubelet that says what none should, and one pod among it that is in order.
func TestWhateverTheKubeletSaysThePageIsValidAndBounded(t *testing.T) {
	const gpu, known = "nvidia.com/gpu", "nvidia0"
	good := pod("research", "good", "main", gpu, known)
	long := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		name    string
		kubelet fixed
		// charged says that the good pod is charged all the same; bytes is the most that the page may have.
		charged bool
		bytes   int
	}{
		{"one that is in order", fixed{pods: []*podresources.PodResources{good}}, true, 200 << 10},
		{"names of 1 MB", fixed{pods: []*podresources.PodResources{
			pod(long, "p", "c", gpu, "nvidia1"), pod("n", long, "c", gpu, "nvidia1"), pod("n", "p", long, gpu, "nvidia1"), pod("n", "p", "c", "nvidia.com/"+long, "nvidia1"),
			pod("n", "p", "c", gpu, long), good,
		}}, true, 200 << 10},
		{"what is no text", fixed{pods: []*podresources.PodResources{pod("n\x00", "p\n\"}", "c\u2028", gpu, "nvidia1\\"), good, {}}}, true, 200 << 10},
		{"ten thousand pods without a GPU", fixed{pods: append(many(10000, func(i int) *podresources.PodResources {
			return pod("n", fmt.Sprintf("p%d", i), "c", "example.com/nic", fmt.Sprint(i))
		}), good)}, true, 200 << 10},
		{"ten thousand pods on one GPU", fixed{pods: many(10000, func(i int) *podresources.PodResources {
			return pod("n", fmt.Sprintf("p%d", i), "c", gpu, known)
		})}, false, 200 << 10},
		{"ten thousand pods with a replica each of one GPU", fixed{pods: many(10000, func(i int) *podresources.PodResources {
			return pod("n", fmt.Sprintf("p%d", i), "c", gpu, fmt.Sprintf("%s/vgpu%d", known, i))
		})}, false, 32 << 20},
		{"a hundred thousand devices that nobody knows", fixed{pods: []*podresources.PodResources{
			pod("n", "p", "c", gpu, many(100000, func(i int) string { return fmt.Sprintf("GPU-%08d", i) })...), good,
		}}, true, 200 << 10},
		{"a hundred thousand devices to give away", fixed{pods: []*podresources.PodResources{good}, allocatable: []*podresources.ContainerDevices{
			{ResourceName: gpu, DeviceIds: many(100000, func(i int) string { return fmt.Sprintf("GPU-%08d::%d", i%8, i) })},
		}}, true, 200 << 10},
		{"twenty thousand resources", fixed{pods: append(many(20000, func(i int) *podresources.PodResources {
			return pod("n", "p", "c", fmt.Sprintf("nvidia.com/mig-%dg.1gb", i), fmt.Sprint(i))
		}), good)}, true, 4 << 20},
		{"more than is taken", fixed{pods: many(66, func(int) *podresources.PodResources { return pod("n", long, "c", gpu, "nvidia1") })}, false, 200 << 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			socket := test.kubelet.serve(t)
			v := attacked(t, func(c *app.Config) {
				c.KubeletSocket, c.KubeletSet, c.Checkpoint, c.Scenario, c.GPUIDType = socket, true, "", "h100x8-exclusive", "device-name"
			})
			deadline := time.Now().Add(20 * time.Second)
			for p := v.page(); ; p = v.page() {
				if err := p.laws(); err != nil {
					t.Fatal(err)
				}
				if charged := p.holds("good"); charged == test.charged && p.value("gpumeter_ticks_total") > 3 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the pod that is in order is charged: want %v; faults %v, skipped %v", test.charged, p["gpumeter_fault"], p["gpumeter_skipped_allocations"])
				}
				time.Sleep(50 * time.Millisecond)
			}
			if n := v.size(); n > test.bytes {
				t.Errorf("the page has %d bytes, want %d at most", n, test.bytes)
			} else {
				t.Logf("the page has %d bytes, a tick takes %.3f s", n, v.page().value("gpumeter_tick_duration_seconds"))
			}
		})
	}
}

// holds reports whether a pod is charged for anything.
func (p page) holds(pod string) bool {
	for _, s := range p["gpumeter_allocation_share"] {
		if s.labels.Get("pod") == pod {
			return true
		}
	}
	return false
}

// value is a series without labels, -1 where it is not there.
func (p page) value(name string) float64 {
	if len(p[name]) == 0 {
		return -1
	}
	return p[name][0].value
}

// size is the page's in bytes.
func (v *victim) size() int {
	v.t.Helper()
	resp, err := v.http.Get(v.url + "/metrics")
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return int(n)
}
