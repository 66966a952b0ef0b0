// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// runtime is a container runtime that knows the specs of a folder.
type runtime struct {
	t     *testing.T
	cache *cdi.Cache
}

func newRuntime(t *testing.T, dir string) runtime {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("specs that a runtime cannot read: %v", errs)
	}
	return runtime{t, cache}
}

// container is one that got the devices.
func (r runtime) container(devices ...string) *oci.Spec {
	r.t.Helper()
	c := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if unresolved, err := r.cache.InjectDevices(c, devices...); err != nil {
		r.t.Fatalf("%v, unresolved %v", err, unresolved)
	}
	return c
}

func nodesOf(c *oci.Spec) []string {
	var paths []string
	for _, d := range c.Linux.Devices {
		paths = append(paths, d.Path)
	}
	return paths
}

const kind = "k8s.device-plugin.nvidia.com/gpu="

func simulated(names ...string) []Device {
	var devices []Device
	for _, n := range names {
		devices = append(devices, Device{Name: n, UUID: gpu.UUID("GPU-" + n), Nodes: []string{"/dev/null"}})
	}
	return devices
}

func write(t *testing.T, w *Writer, devices []Device) {
	t.Helper()
	if err := w.Write(devices); err != nil {
		t.Fatal(err)
	}
}

func TestARuntimeResolvesEveryDeviceOfASimulatedNode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi") // not there yet
	devices := append(simulated("a", "0:1"), Device{Name: "bare", UUID: "MIG-bare"})
	write(t, NewWriter(Config{Dir: dir, Plain: true}), devices)
	r := newRuntime(t, dir)
	c := r.container(kind+"a", kind+"bare")
	if diff := cmp.Diff([]string{"/dev/null"}, nodesOf(c)); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	for _, v := range []string{"NVIDIA_VISIBLE_DEVICES=void", "GPUMETER_DEVICE_GPU_a=GPU-a", "GPUMETER_DEVICE_MIG_bare=MIG-bare"} {
		if !slices.Contains(c.Process.Env, v) {
			t.Errorf("no %s in %v", v, c.Process.Env)
		}
	}
	if r.cache.GetDevice(kind+"0:1") == nil {
		t.Error("no device 0:1")
	}
	if name := "k8s.device-plugin.nvidia.com-gpu.json"; !exists(filepath.Join(dir, name)) {
		t.Errorf("no file %s", name)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestTheSameSpecIsNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	w := NewWriter(Config{Dir: dir, Plain: true})
	write(t, w, simulated("a", "b"))
	file := filepath.Join(dir, "k8s.device-plugin.nvidia.com-gpu.json")
	before, _ := os.Stat(file)
	write(t, w, simulated("a", "b"))
	write(t, NewWriter(Config{Dir: dir, Plain: true}), simulated("a", "b"))
	after, _ := os.Stat(file)
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("the file was written again")
	}
	write(t, w, simulated("a", "c"))
	if now, _ := os.Stat(file); os.SameFile(before, now) {
		t.Error("the file was changed in place: a runtime could read half of it")
	}
	r := newRuntime(t, dir)
	if r.cache.GetDevice(kind+"b") != nil || r.cache.GetDevice(kind+"c") == nil {
		t.Errorf("devices %v", r.cache.ListDevices())
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestAllCanReadASpecAndOnlyItsOwnerWriteIt(t *testing.T) {
	dir := t.TempDir()
	write(t, NewWriter(Config{Dir: dir, Plain: true}), simulated("a"))
	info, err := os.Stat(filepath.Join(dir, "k8s.device-plugin.nvidia.com-gpu.json"))
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestADeviceThatCDICannotNameCostsItselfOnly(t *testing.T) {
	dir := t.TempDir()
	devices := append(simulated("good"), Device{Name: "MIG-GPU-x/1/0", UUID: "MIG-GPU-x/1/0"}, Device{Name: "good", UUID: "GPU-twin"})
	err := NewWriter(Config{Dir: dir, Plain: true}).Write(devices)
	gone, ok := errors.AsType[interface {
		error
		Missing() []gpu.UUID
	}](err)
	if !ok {
		t.Fatalf("error %v", err)
	}
	if diff := cmp.Diff([]gpu.UUID{"GPU-twin", "MIG-GPU-x/1/0"}, gone.Missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	newRuntime(t, dir).container(kind + "good")
}

func TestWithoutDevicesTheOldSpecStays(t *testing.T) {
	dir := t.TempDir()
	w := NewWriter(Config{Dir: dir, Plain: true})
	write(t, w, simulated("a"))
	write(t, w, nil)
	newRuntime(t, dir).container(kind + "a")
}

func TestAFolderThatCannotBeWrittenIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := NewWriter(Config{Dir: filepath.Join(file, "cdi"), Plain: true}).Write(simulated("a"))
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v does not name the folder", err)
	}
}

func TestWhatEveryContainerGetsCanAlwaysBeResolved(t *testing.T) {
	dir, dev := t.TempDir(), t.TempDir()
	channels := filepath.Join(dev, "dev/nvidia-caps-imex-channels")
	if err := os.MkdirAll(channels, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", filepath.Join(channels, "channel0")); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(Config{Dir: dir, Plain: true, DevRoot: dev, Vendor: "example.com", GDS: true, MOFED: true, GDRCopy: true, IMEXChannels: []int{0, 7}})
	write(t, w, []Device{{Name: "a", UUID: "GPU-a"}})
	r := newRuntime(t, dir)
	c := r.container("example.com/gpu=a", "example.com/gds=all", "example.com/mofed=all", "example.com/gdrcopy=all")
	if !slices.Contains(c.Process.Env, "NVIDIA_GDS=enabled") {
		t.Errorf("environment %v", c.Process.Env)
	}
	channel := r.cache.GetDevice("example.com/imex-channel=0")
	if channel == nil || r.cache.GetDevice("example.com/imex-channel=7") != nil {
		t.Fatalf("devices %v", r.cache.ListDevices())
	}
	node := channel.ContainerEdits.DeviceNodes[0]
	if node.Path != "/dev/nvidia-caps-imex-channels/channel0" || node.HostPath != filepath.Join(channels, "channel0") {
		t.Errorf("channel 0 is %s on the host and %s in a container", node.HostPath, node.Path)
	}
}

func TestManyDevicesGetTheirNames(t *testing.T) {
	dir := t.TempDir()
	var devices []Device
	for i := range 112 {
		devices = append(devices, Device{Name: fmt.Sprintf("MIG-%d", i), UUID: gpu.UUID(fmt.Sprintf("MIG-%d", i))})
	}
	write(t, NewWriter(Config{Dir: dir, Plain: true}), devices)
	if n := len(newRuntime(t, dir).cache.ListDevices()); n != 112 {
		t.Errorf("%d devices", n)
	}
}
