// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	captures = "../../tests/testdata/kubelet-1.37.2"

	gpu0 = "GPU-6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa0000"
	gpu1 = "GPU-6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa0001"
	mig1 = "MIG-1f0a77e2-3c55-5d0e-8a7b-90c0ffee0001"
)

// nvidia matches the resources of NVIDIA's device plugin.
type nvidia struct{}

func (nvidia) Match(resource string) bool { return strings.HasPrefix(resource, "nvidia.com/") }

// fakeKubelet serves PodResources on a real socket and can be restarted on it.
type fakeKubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	t      testing.TB
	socket string

	// hook runs before each answer; an error is the answer.
	hook func(ctx context.Context, method string) error
	list *podresources.ListPodResourcesResponse
	// shown is the answer instead of list where it is set, for a test that changes it while somebody asks.
	shown       atomic.Pointer[podresources.ListPodResourcesResponse]
	allocatable *podresources.AllocatableResourcesResponse

	accepts, calls atomic.Int64
	server         *grpc.Server
	served         sync.WaitGroup
}

func (k *fakeKubelet) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.calls.Add(1)
	if k.hook != nil {
		if err := k.hook(ctx, "List"); err != nil {
			return nil, err
		}
	}
	if shown := k.shown.Load(); shown != nil {
		return shown, nil
	}
	return k.list, nil
}

func (k *fakeKubelet) GetAllocatableResources(ctx context.Context, _ *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	if k.hook != nil {
		if err := k.hook(ctx, "GetAllocatableResources"); err != nil {
			return nil, err
		}
	}
	return k.allocatable, nil
}

// Accept counts connections.
type countingListener struct {
	net.Listener
	accepts *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepts.Add(1)
	}
	return conn, err
}

func (k *fakeKubelet) start() {
	k.t.Helper()
	l, err := net.Listen("unix", k.socket)
	if err != nil {
		k.t.Fatal(err)
	}
	k.serve(l)
}

func (k *fakeKubelet) serve(l net.Listener) {
	k.server = grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(k.server, k)
	server := k.server
	k.served.Go(func() {
		if err := server.Serve(countingListener{l, &k.accepts}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			k.t.Errorf("serve: %v", err)
		}
	})
}

// stop ends the server and, as the kubelet does, takes the socket away.
func (k *fakeKubelet) stop() {
	k.server.Stop()
	k.served.Wait()
}

// newKubelet is a running kubelet with the given captured answers, either may be empty.
func newKubelet(t testing.TB, list, allocatable string) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{t: t, socket: filepath.Join(shortDir(t), "kubelet.sock")}
	k.answers(list, allocatable)
	k.start()
	t.Cleanup(k.stop)
	return k
}

func (k *fakeKubelet) answers(list, allocatable string) {
	k.t.Helper()
	k.list, k.allocatable = &podresources.ListPodResourcesResponse{}, &podresources.AllocatableResourcesResponse{}
	if list != "" {
		capture(k.t, list, k.list)
	}
	if allocatable != "" {
		capture(k.t, allocatable, k.allocatable)
	}
}

// memoryKubelet is a kubelet without a socket, for a synctest bubble: what waits
// for a socket keeps the bubble's clock from going on.
type memoryKubelet struct {
	fakeKubelet
	listener atomic.Pointer[bufconn.Listener]
	away     atomic.Bool
}

func newMemoryKubelet(t testing.TB, list, allocatable string) *memoryKubelet {
	t.Helper()
	k := &memoryKubelet{fakeKubelet: fakeKubelet{t: t}}
	k.listener.Store(bufconn.Listen(1 << 20))
	k.answers(list, allocatable)
	k.serve(k.listener.Load())
	t.Cleanup(k.stop)
	return k
}

// restart breaks the connections, and serves anew.
func (k *memoryKubelet) restart() {
	k.stop()
	k.listener.Store(bufconn.Listen(1 << 20))
	k.serve(k.listener.Load())
}

func (k *memoryKubelet) dial(ctx context.Context) (net.Conn, error) {
	if k.away.Load() {
		return nil, fs.ErrNotExist
	}
	return k.listener.Load().DialContext(ctx)
}

// shortDir is a directory whose paths fit a socket address, whatever the test is called.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func capture(t testing.TB, name string, into proto.Message) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(captures, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

var moment = time.Date(2026, 11, 30, 18, 0, 0, 0, time.UTC)

// newClient is a client of the socket with a stopped wall clock; edit changes its
// configuration before it is made.
func newClient(t testing.TB, socket string, edit func(*Config)) *Client {
	t.Helper()
	cfg := Config{Socket: socket, Resources: nvidia{}, Now: func() time.Time { return moment }}
	if edit != nil {
		edit(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
	return c
}

// withDeadline is a context that ends well after a healthy test.
func withDeadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// held is an allocation; the pod is "namespace/name/container".
func held(pod, uid, resource, id string) sharing.Allocation {
	p := strings.Split(pod, "/")
	return sharing.Allocation{
		Holder:   sharing.Holder{Namespace: p[0], Pod: p[1], Container: p[2], PodUID: uid},
		Resource: resource, DeviceID: id,
	}
}

// logBook takes a client's log, a line per record, without times.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBook) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Split(strings.TrimSuffix(b.buf.String(), "\n"), "\n")
}

// logger leaves out what varies: the time, and the given attributes.
func (b *logBook) logger(without ...string) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if slices.Contains(append(without, slog.TimeKey), a.Key) {
			return slog.Attr{}
		}
		return a
	}}))
}
