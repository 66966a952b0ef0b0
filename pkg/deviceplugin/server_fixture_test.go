// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

const (
	wholeGPU  = "nvidia.com/gpu"
	sharedGPU = "nvidia.com/gpu.shared"
	sliceGPU  = "nvidia.com/mig-1g.10gb"

	// patience is for a machine that is busy; nothing waits for so long where all is well.
	patience = 30 * time.Second
)

// quickPace has the usual order of things in less time.
func quickPace() pace {
	return pace{
		look: 20 * time.Millisecond, gather: 20 * time.Millisecond,
		answer: 2 * time.Second, firstStream: 500 * time.Millisecond, lostStream: 100 * time.Millisecond,
		settle: 10 * time.Millisecond, drain: time.Second,
		serve: 20 * time.Millisecond, retryLeast: 5 * time.Millisecond, retryMost: 100 * time.Millisecond,
		prepareLeast: 5 * time.Millisecond, prepareMost: 50 * time.Millisecond, firstList: patience,
	}
}

// node is a kubelet's folder with a plugin in it.
type node struct {
	t       *testing.T
	dir     string
	kubelet *fakekubelet.Kubelet
	manager *Manager
	log     *lines
	stop    func()
}

// lines keep what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), word)
}

// option changes a node before it starts.
type option func(*fakekubelet.Config, *ManagerConfig, *pace)

func legacy(k *fakekubelet.Config, _ *ManagerConfig, _ *pace) { k.Legacy = true }

func paced(change func(*pace)) option {
	return func(_ *fakekubelet.Config, _ *ManagerConfig, p *pace) { change(p) }
}

func preparedBy(prepare func(Inventory, Plan) error) option {
	return func(_ *fakekubelet.Config, m *ManagerConfig, _ *pace) { m.Prepare = prepare }
}

// bareNode has a plugin that runs, and a kubelet that does not.
func bareNode(t *testing.T, options ...option) *node {
	t.Helper()
	// The folder of the test has its name, which may be too long for a socket.
	dir, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, log: &lines{}}
	kubelet := fakekubelet.Config{Dir: dir}
	manager := ManagerConfig{KubeletDir: dir, KubeletSocket: filepath.Join(dir, fakekubelet.SocketName), Log: slog.New(slog.NewTextHandler(n.log, nil))}
	p := quickPace()
	for _, o := range options {
		o(&kubelet, &manager, &p)
	}
	n.kubelet, n.manager = fakekubelet.New(kubelet), newManager(manager, p)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.manager.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
	t.Cleanup(func() {
		n.stop()
		n.kubelet.Stop()
		leaveNothingRunning(t)
		if t.Failed() {
			t.Log(n.log.text.String())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// newNode has both, and a first state.
func newNode(t *testing.T, state NodeState, options ...option) *node {
	t.Helper()
	n := bareNode(t, options...)
	if err := n.kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	n.manager.Set(state)
	return n
}

// leaveNothingRunning fails if something of a node goes on after its end.
func leaveNothingRunning(t *testing.T) {
	t.Helper()
	words := []string{"(*endpoint)", "(*service)", "(*life)", "(*folderWatch)", "(*Manager)", "(*reconciler)", "deviceplugin.serve", "deviceplugin.register"}
	var left string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		buffer := make([]byte, 1<<20)
		left = ""
		for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
			for _, word := range words {
				if strings.Contains(stack, word) && !strings.Contains(stack, "leaveNothingRunning") {
					left = stack
				}
			}
		}
		if left == "" {
			return
		}
	}
	t.Errorf("still running:\n%s", left)
}

// eventually waits until the kubelet has it so.
func (n *node) eventually(what string, done func(*fakekubelet.Kubelet) bool) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.kubelet.WaitFor(ctx, done); err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// has waits for so many allocatable devices, of so many.
func (n *node) has(resource string, allocatable, capacity int) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s is to have %d of %d", resource, allocatable, capacity), func(k *fakekubelet.Kubelet) bool {
		s, ok := k.Resource(resource)
		return ok && s.Allocatable == allocatable && s.Capacity == capacity && (s.Connected || capacity == 0)
	})
}

// until waits for something that is no change of the kubelet's.
func (n *node) until(what string, done func() bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%s: not within %s; the kubelet has %s", what, patience, n.kubelet)
		}
	}
}

// stats are those of one resource.
func (n *node) stats(resource string) ResourceStats {
	n.t.Helper()
	for _, s := range n.manager.Stats().Resources {
		if s.Name == resource {
			return s
		}
	}
	return ResourceStats{}
}

// state is what the kubelet has of a resource.
func (n *node) state(resource string) fakekubelet.State {
	n.t.Helper()
	s, ok := n.kubelet.Resource(resource)
	if !ok {
		n.t.Fatalf("the kubelet does not know %s: %s", resource, n.kubelet)
	}
	return s
}

func (n *node) restartKubelet() {
	n.t.Helper()
	if err := n.kubelet.Restart(); err != nil {
		n.t.Fatal(err)
	}
}

// plugin is a connection to the present socket of a resource, beside the kubelet's.
func (n *node) plugin(resource string) pluginapi.DevicePluginClient {
	n.t.Helper()
	socket := n.stats(resource).Socket
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return pluginapi.NewDevicePluginClient(conn)
}

func gpuID(n int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%08d-1111-2222-3333-444444444444", n)) }

func sliceID(n int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("MIG-%08d-1111-2222-3333-444444444444", n))
}

// gpus is an inventory of so many whole GPUs, on two NUMA nodes in turn.
func gpus(n int) Inventory {
	var inv Inventory
	for i := range n {
		inv.Devices = append(inv.Devices, Device{
			Device: gpu.Device{
				UUID: gpuID(i), Index: i, Minor: i, Model: "NVIDIA H100 80GB HBM3",
				GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
			},
			NUMANode: i % 2, Nodes: []string{fmt.Sprintf("/dev/nvidia%d", i)},
		})
	}
	return inv
}

// withSlices adds a GPU in MIG mode with so many instances.
func withSlices(inv Inventory, n int) Inventory {
	card := Device{Device: gpu.Device{
		UUID: gpuID(99), Index: len(inv.Devices), Model: "NVIDIA H100 80GB HBM3", MIGEnabled: true,
		GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
	}, NUMANode: -1}
	inv.Devices = append(inv.Devices, card)
	for i := range n {
		slice := gpu.Slices{Compute: 1, Memory: 1, SMs: 16}
		inv.Devices = append(inv.Devices, Device{Device: gpu.Device{
			UUID: sliceID(i), Parent: card.UUID, Index: card.Index, Model: card.Model,
			GPUInstance: i + 7, ComputeInstance: 0,
			Profile: gpu.Profile{Name: "1g.10gb", Slices: slice, ComputeInstanceSlices: 1, ComputeInstanceSMs: 16},
		}, NUMANode: -1})
	}
	return inv
}

// plain settings hand out each device as it is.
func plain() Settings {
	return Settings{
		MIGStrategy: MIGMixed, Sharing: SharingNone, ListStrategies: []ListStrategy{ListEnvvar},
		IDStrategy: IDUUID, SharedPolicy: Distributed, CDIAnnotationPrefix: "cdi.k8s.io/", DevRoot: "/",
	}
}

// timeSliced settings share every whole GPU.
func timeSliced(replicas int) Settings {
	s := plain()
	s.Sharing = SharingTimeSlicing
	s.SharedResources = []SharedResource{{Name: wholeGPU, All: true, Replicas: replicas}}
	return s
}

// verdicts is a report in which these devices are Unhealthy, and all others of inv Healthy.
func verdicts(inv Inventory, unhealthy ...gpu.UUID) *health.Report {
	r := &health.Report{}
	for _, d := range inv.Devices {
		v := health.Verdict{Device: d.UUID, Card: d.Card(), Status: health.Healthy}
		for _, bad := range unhealthy {
			if bad == d.UUID || bad == d.Parent {
				v.Status, v.Reason = health.Unhealthy, "XID 79: fell off the bus"
			}
		}
		r.Verdicts = append(r.Verdicts, v)
	}
	return r
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// lonelyHost is a folder in which there is no kubelet.
func lonelyHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := quickPace()
	return &host{folder: dir, prefix: "nvidia", pace: p, watch: newFolderWatch(discard(), p.look, dir), verdicts: &atomic.Pointer[book]{}}
}
