// SPDX-License-Identifier: Apache-2.0

package fakekubelet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumeter/gpumeter/tests/fakekubelet"
)

const resource = "nvidia.com/gpu"

// plugin is the simplest there can be.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	lists  chan []*pluginapi.Device
	wish   []string
	server *grpc.Server
}

func (*plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list, ok := <-p.lists:
			if !ok {
				return nil
			}
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) GetPreferredAllocation(context.Context, *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: p.wish}}}, nil
}

func (*plugin) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := req.GetContainerRequests()[0].GetDevicesIds()
	if slices.Contains(ids, "cursed") {
		return nil, errors.New("cursed")
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{Envs: map[string]string{"IDS": strings.Join(ids, ",")}}}}, nil
}

// start runs a kubelet in a folder of its own.
func start(t *testing.T, config fakekubelet.Config) (*fakekubelet.Kubelet, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fk")
	if err != nil {
		t.Fatal(err)
	}
	config.Dir = dir
	k := fakekubelet.New(config)
	if err := k.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return k, dir
}

// serve runs a plugin on a socket.
func serve(t *testing.T, dir, endpoint string) *plugin {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, endpoint))
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{lists: make(chan []*pluginapi.Device, 10), server: grpc.NewServer()}
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	t.Cleanup(p.server.Stop)
	return p
}

func register(t *testing.T, k *fakekubelet.Kubelet, req *pluginapi.RegisterRequest) error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+k.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(t.Context(), req)
	return err
}

func request(endpoint string) *pluginapi.RegisterRequest {
	return &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource}
}

func mustRegister(t *testing.T, k *fakekubelet.Kubelet, endpoint string) {
	t.Helper()
	if err := register(t, k, request(endpoint)); err != nil {
		t.Fatal(err)
	}
}

func devices(health string, ids ...string) []*pluginapi.Device {
	var all []*pluginapi.Device
	for _, id := range ids {
		all = append(all, &pluginapi.Device{ID: id, Health: health})
	}
	return all
}

func wait(t *testing.T, k *fakekubelet.Kubelet, done func(fakekubelet.State, bool) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := k.WaitFor(ctx, func(k *fakekubelet.Kubelet) bool { return done(k.Resource(resource)) }); err != nil {
		t.Fatal(err)
	}
}

func has(allocatable, capacity int) func(fakekubelet.State, bool) bool {
	return func(s fakekubelet.State, ok bool) bool {
		return ok && s.Allocatable == allocatable && s.Capacity == capacity
	}
}

func TestAStartEmptiesTheFolderOfSocketsOnly(t *testing.T) {
	k, dir := start(t, fakekubelet.Config{})
	serve(t, dir, "a.sock")
	for _, name := range []string{"kubelet_internal_checkpoint", "file.sock"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Restart(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if want := []string{"file.sock", "kubelet.sock", "kubelet_internal_checkpoint"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the folder has %v (%v), want %v", names, err, want)
	}
	if err := k.Start(); err == nil {
		t.Error("it was started twice")
	}
}

func TestRegistrationsThatTheKubeletRefuses(t *testing.T) {
	k, dir := start(t, fakekubelet.Config{DialTimeout: 50 * time.Millisecond})
	serve(t, dir, "a.sock")
	mustRegister(t, k, "a.sock")
	for name, c := range map[string]struct {
		change func(*pluginapi.RegisterRequest)
		want   string
	}{
		"another version":         {func(r *pluginapi.RegisterRequest) { r.Version = "v1" }, "not supported"},
		"no domain":               {func(r *pluginapi.RegisterRequest) { r.ResourceName = "gpu" }, "invalid"},
		"Kubernetes' own":         {func(r *pluginapi.RegisterRequest) { r.ResourceName = "kubernetes.io/gpu" }, "invalid"},
		"nobody serves":           {func(r *pluginapi.RegisterRequest) { r.Endpoint = "b.sock" }, "failed to dial device plugin"},
		"a socket that it has":    {func(*pluginapi.RegisterRequest) {}, "already connected"},
		"what a test has refused": {func(*pluginapi.RegisterRequest) { k.RefuseRegister(1) }, "not yet"},
	} {
		req := request("a.sock")
		c.change(req)
		if err := register(t, k, req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if all := k.Registrations(); len(all) != 7 || all[0].Err != nil || all[6].Err == nil || all[0].Endpoint != "a.sock" {
		t.Errorf("the registrations are %v", all)
	}
}

func TestAListReplacesTheOneBefore(t *testing.T) {
	k, dir := start(t, fakekubelet.Config{})
	p := serve(t, dir, "a.sock")
	mustRegister(t, k, "a.sock")
	if _, ok := k.Resource(resource); ok {
		t.Error("a resource is known before its first list")
	}
	p.lists <- append(devices(pluginapi.Healthy, "a", "b"), devices("Sick", "c")...)
	wait(t, k, has(2, 3))
	onTwo := devices(pluginapi.Healthy, "d", "e", "f")
	onTwo[0].Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 2}}}
	onTwo[1].Topology = &pluginapi.TopologyInfo{}
	p.lists <- onTwo
	wait(t, k, has(3, 3))
	s, _ := k.Resource(resource)
	want := map[string]fakekubelet.Device{
		"d": {ID: "d", Healthy: true, NUMANode: 2},
		"e": {ID: "e", Healthy: true, NUMANode: -1, EmptyTopology: true},
		"f": {ID: "f", Healthy: true, NUMANode: -1},
	}
	for id, d := range s.Devices {
		if d != want[id] {
			t.Errorf("%s is %+v, want %+v", id, d, want[id])
		}
	}
	p.lists <- nil
	wait(t, k, has(0, 0))
}

func TestTheEndOfAStreamIsTheDeathOfAllDevices(t *testing.T) {
	for name, end := range map[string]func(*fakekubelet.Kubelet, *plugin){
		"the plugin ends":          func(_ *fakekubelet.Kubelet, p *plugin) { p.server.Stop() },
		"the plugin ends the call": func(_ *fakekubelet.Kubelet, p *plugin) { close(p.lists) },
		"the kubelet closes it":    func(k *fakekubelet.Kubelet, _ *plugin) { k.DropStream(resource) },
		"the list is too long": func(_ *fakekubelet.Kubelet, p *plugin) {
			var ids []string
			for i := range 70_000 {
				ids = append(ids, fmt.Sprintf("GPU-00000000-1111-2222-3333-444444444444::%05d", i))
			}
			p.lists <- devices(pluginapi.Healthy, ids...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const grace = 300 * time.Millisecond
			k, dir := start(t, fakekubelet.Config{Grace: grace})
			p := serve(t, dir, "a.sock")
			mustRegister(t, k, "a.sock")
			p.lists <- devices(pluginapi.Healthy, "a", "b")
			wait(t, k, has(2, 2))
			end(k, p)
			wait(t, k, func(s fakekubelet.State, ok bool) bool {
				return !ok || s.Allocatable == 0 && s.Capacity == 2 && !s.Connected
			})
			for _, ok := k.Resource(resource); ok; _, ok = k.Resource(resource) {
				time.Sleep(time.Millisecond) // until the grace is over
			}
			if err := k.Restart(); err != nil || len(k.Resources()) != 0 {
				t.Errorf("after the grace and a restart there are %v (%v)", k.Resources(), err)
			}
		})
	}
}

// TestTheEndOfAnOldStream is the race that plugins met before 1.36.
func TestTheEndOfAnOldStream(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprint("legacy=", legacy), func(t *testing.T) {
			k, dir := start(t, fakekubelet.Config{Legacy: legacy})
			before := serve(t, dir, "a.sock")
			mustRegister(t, k, "a.sock")
			before.lists <- devices(pluginapi.Healthy, "a")
			wait(t, k, has(1, 1))
			after := serve(t, dir, "b.sock")
			mustRegister(t, k, "b.sock")
			after.lists <- devices(pluginapi.Healthy, "a", "b")
			wait(t, k, has(2, 2))
			close(before.lists)
			if legacy {
				wait(t, k, has(0, 2))
				return
			}
			after.lists <- devices(pluginapi.Healthy, "a", "b", "c")
			wait(t, k, has(3, 3))
		})
	}
}

func TestAdmission(t *testing.T) {
	k, dir := start(t, fakekubelet.Config{})
	refused := func(n int, want string) {
		t.Helper()
		if _, err := k.Allocate(t.Context(), "pod", resource, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a pod with %d devices: %v, want %q", n, err, want)
		}
	}
	refused(1, "cannot allocate unregistered device")
	p := serve(t, dir, "a.sock")
	mustRegister(t, k, "a.sock")
	p.lists <- devices(pluginapi.Unhealthy, "a")
	wait(t, k, has(0, 1))
	refused(1, "no healthy devices present")
	p.lists <- devices(pluginapi.Healthy, "a", "b", "c", "cursed")
	wait(t, k, has(4, 4))
	refused(5, "Requested: 5, Available: 4")

	p.wish = []string{"elsewhere", "c"}
	got, err := k.Allocate(t.Context(), "first", resource, 2)
	if err != nil || !slices.Equal(got.IDs, []string{"c", "a"}) || got.Response.GetEnvs()["IDS"] != "c,a" {
		t.Errorf("with a wish that can be met in part a pod got %v, %v", got, err)
	}
	p.wish = []string{"cursed"}
	refused(1, "which is unexpected")
	refused(3, "Requested: 3, Available: 2")
	if err := k.Restart(); err != nil {
		t.Fatal(err)
	}
	again := serve(t, dir, "a.sock")
	mustRegister(t, k, "a.sock")
	again.lists <- devices(pluginapi.Healthy, "a", "b", "c")
	wait(t, k, has(3, 3))
	refused(2, "Requested: 2, Available: 1")
	k.Free("first")
	if got, err := k.Allocate(t.Context(), "second", resource, 3); err != nil || len(got.IDs) != 3 {
		t.Errorf("after the first pod has ended the second got %v, %v", got, err)
	}
}

func TestAForgetfulKubeletAsksForNothing(t *testing.T) {
	k, dir := start(t, fakekubelet.Config{})
	k.Forget(1)
	first := serve(t, dir, "a.sock")
	mustRegister(t, k, "a.sock")
	first.lists <- devices(pluginapi.Healthy, "a")
	second := serve(t, dir, "b.sock")
	mustRegister(t, k, "b.sock")
	second.lists <- devices(pluginapi.Healthy, "a", "b")
	wait(t, k, has(2, 2))
	if len(first.lists) != 1 {
		t.Error("the plugin that was to be forgotten was asked")
	}
}

func TestAHungKubeletAnswersWhenItIsToldTo(t *testing.T) {
	k, dir := start(t, fakekubelet.Config{})
	serve(t, dir, "a.sock")
	k.Hang(true)
	answered := make(chan error, 1)
	go func() { answered <- register(t, k, request("a.sock")) }()
	select {
	case err := <-answered:
		t.Errorf("it answered %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	k.Hang(false)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
