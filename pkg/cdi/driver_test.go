// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// driver is a pretend driver: a library that knows eight GPUs, and a folder with its files.
type driver struct {
	*server.Server
	root string
	// noNodes is why there are no device nodes, nil if there are.
	noNodes error

	mu    sync.Mutex
	lost  map[string]bool
	asked map[string]bool
	start nvml.Return
	hang  chan struct{}
}

func newDriver(t *testing.T) *driver {
	t.Helper()
	d := &driver{Server: dgxa100.New(), root: t.TempDir(), lost: make(map[string]bool), asked: make(map[string]bool)}
	d.files(t, "usr/lib64/libcuda.so.550.54.15", "usr/lib64/libnvidia-ml.so.550.54.15", "usr/bin/nvidia-smi")
	d.char(t, "nvidiactl", "nvidia-uvm")
	for i, device := range d.Devices {
		one := device.(*server.Device)
		one.UUID = fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)
		d.char(t, fmt.Sprintf("nvidia%d", i))
		one.GetIndexFunc = func() (int, nvml.Return) { return i, nvml.SUCCESS }
		one.GetMinorNumberFunc = one.GetIndexFunc
		one.GetUUIDFunc = func() (string, nvml.Return) { return one.UUID, nvml.SUCCESS }
		one.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
		one.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
	}
	d.InitFunc = func() nvml.Return {
		d.mu.Lock()
		hang, ret := d.hang, d.start
		d.mu.Unlock()
		if hang != nil {
			<-hang
		}
		return ret
	}
	byUUID := d.DeviceGetHandleByUUIDFunc
	d.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.asked[uuid] = true
		if d.lost[uuid] {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return byUUID(uuid)
	}
	return d
}

func (d *driver) files(t *testing.T, names ...string) {
	for _, name := range names {
		path := filepath.Join(d.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// char makes device nodes, where this process may.
func (d *driver) char(t *testing.T, names ...string) {
	dev := filepath.Join(d.root, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		const null = 1<<8 | 3
		if err := syscall.Mknod(filepath.Join(dev, name), syscall.S_IFCHR|0o666, null); err != nil {
			d.noNodes = fmt.Errorf("making %s: %w", name, err)
		}
	}
}

func (d *driver) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// writer writes into dir as on a host where the driver lies in /run/nvidia/driver.
func (d *driver) writer(dir string) *Writer {
	return newWriter(Config{
		Dir: dir, DriverRoot: "/run/nvidia/driver", DriverRootHere: d.root, HookPath: "/opt/nvidia-cdi-hook",
		FeatureFlags: []string{"disable-nvsandboxutils"},
	}, d)
}

func (d *driver) devices(numbers ...int) []Device {
	var devices []Device
	for _, n := range numbers {
		uuid, _ := d.Devices[n].GetUUID()
		devices = append(devices, Device{Name: uuid, UUID: gpu.UUID(uuid)})
	}
	return devices
}

func TestADeviceIsWhatNVIDIAsGeneratorSays(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	if d.noNodes != nil {
		t.Skip("this process may not make device nodes: ", d.noNodes)
	}
	write(t, d.writer(dir), d.devices(0, 3))
	r := newRuntime(t, dir)
	device := r.cache.GetDevice(kind + string(d.devices(3)[0].UUID))
	if device == nil {
		t.Fatalf("devices %v", r.cache.ListDevices())
	}
	var nodes []string
	for _, n := range device.ContainerEdits.DeviceNodes {
		nodes = append(nodes, n.Path+" from "+n.HostPath)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia3 from /run/nvidia/driver/dev/nvidia3"}, nodes); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	spec := device.GetSpec()
	var hosts []string
	for _, m := range spec.ContainerEdits.Mounts {
		hosts = append(hosts, m.HostPath)
	}
	for _, n := range spec.ContainerEdits.DeviceNodes {
		hosts = append(hosts, n.HostPath)
	}
	for _, want := range []string{"/run/nvidia/driver/usr/lib64/libcuda.so.550.54.15", "/run/nvidia/driver/usr/bin/nvidia-smi", "/run/nvidia/driver/dev/nvidiactl"} {
		if !slices.Contains(hosts, want) {
			t.Errorf("no %s among %v", want, hosts)
		}
	}
	for _, h := range spec.ContainerEdits.Hooks {
		if h.Path != "/opt/nvidia-cdi-hook" {
			t.Errorf("hook %s", h.Path)
		}
	}
	text, _ := os.ReadFile(spec.GetPath())
	if strings.Contains(string(text), d.root) {
		t.Errorf("the spec has paths that hold in this process only:\n%s", text)
	}
}

func TestDevicesAreCalledAsTheCallerCallsThem(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	devices := d.devices(0, 3)
	devices[0].Name, devices[1].Name = "0", "3"
	write(t, d.writer(dir), devices)
	got := newRuntime(t, dir).cache.ListDevices()
	if diff := cmp.Diff([]string{kind + "0", kind + "3"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestTheSameDevicesMakeTheSameFile(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	w := d.writer(dir)
	file := filepath.Join(dir, "k8s.device-plugin.nvidia.com-gpu.json")
	write(t, w, d.devices(0, 1, 2))
	before, _ := os.Stat(file)
	for range 5 {
		write(t, w, d.devices(0, 1, 2))
		write(t, d.writer(dir), d.devices(0, 1, 2))
	}
	if after, _ := os.Stat(file); !os.SameFile(before, after) {
		t.Error("the file was written again")
	}
}

func TestOneLostGPUCostsNoOtherItsSpec(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	w := d.writer(dir)
	sick := d.devices(1)[0]
	d.set(func() { d.lost[string(sick.UUID)] = true })
	err := w.Write(d.devices(0, 1, 2))
	gone, ok := errors.AsType[*MissingError](err)
	if !ok || !slices.Equal(gone.Missing(), []gpu.UUID{sick.UUID}) || !strings.Contains(err.Error(), string(sick.UUID)) {
		t.Fatalf("error %v", err)
	}
	if got := newRuntime(t, dir).cache.ListDevices(); len(got) != 2 {
		t.Errorf("devices %v", got)
	}
	lost := d.devices(0, 1, 2)
	lost[1].Lost = true
	clear(d.asked)
	if err := w.Write(lost); err != nil {
		t.Errorf("a GPU that everybody knows to be lost: %v", err)
	}
	if d.asked[string(sick.UUID)] {
		t.Error("the driver was asked about a GPU that it has lost")
	}
	d.set(func() { d.lost[string(sick.UUID)] = false })
	write(t, w, d.devices(0, 1, 2))
	d.set(func() { d.lost[string(sick.UUID)] = true })
	write(t, w, d.devices(0, 1, 2))
	write(t, w, lost)
	if got := newRuntime(t, dir).cache.ListDevices(); len(got) != 3 {
		t.Errorf("devices %v", got)
	}
}

func TestADeviceThatWentAndCameBackIsDescribedAnew(t *testing.T) {
	d := newDriver(t)
	w := d.writer(t.TempDir())
	write(t, w, d.devices(0, 1))
	write(t, w, d.devices(0))
	d.set(func() { d.lost[string(d.devices(1)[0].UUID)] = true })
	if _, ok := errors.AsType[*MissingError](w.Write(d.devices(0, 1))); !ok {
		t.Error("it has what was true of it before")
	}
}

func TestANodeWithoutDevicesNeedsNoDriver(t *testing.T) {
	d := newDriver(t)
	d.start = nvml.ERROR_DRIVER_NOT_LOADED
	write(t, d.writer(t.TempDir()), nil)
}

func TestAGoodSpecOutlivesABadDriver(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	w := d.writer(dir)
	write(t, w, d.devices(0, 1))
	d.set(func() { d.start = nvml.ERROR_DRIVER_NOT_LOADED })
	if err := w.Write(d.devices(0, 1, 2)); err == nil {
		t.Error("no error")
	}
	if got := newRuntime(t, dir).cache.ListDevices(); len(got) != 2 {
		t.Errorf("devices %v", got)
	}
	d.set(func() { d.start = nvml.SUCCESS })
	write(t, w, d.devices(2))
	if got := newRuntime(t, dir).cache.ListDevices(); len(got) != 1 {
		t.Errorf("when it is good again: devices %v", got)
	}
}

func TestWithoutADriverBelowTheRootThereIsNoSpec(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	if err := os.RemoveAll(filepath.Join(d.root, "usr")); err != nil {
		t.Fatal(err)
	}
	if err := d.writer(dir).Write(d.devices(0)); err == nil || !strings.Contains(err.Error(), d.root) {
		t.Errorf("error %v does not say where there is no driver", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("written nevertheless: %v", entries)
	}
}

func TestWithoutALibraryDevicesAreDescribedPlainly(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	d.start = nvml.ERROR_LIBRARY_NOT_FOUND
	w := d.writer(dir)
	write(t, w, simulated("a"))
	r := newRuntime(t, dir)
	if device := r.cache.GetDevice(kind + "a"); device == nil || device.ContainerEdits.DeviceNodes[0].HostPath != "/run/nvidia/driver/dev/null" {
		t.Errorf("devices %v", r.cache.ListDevices())
	}
	if !w.Bare() {
		t.Error("nobody is told that the driver's files are missing")
	}
	d.set(func() { d.start = nvml.SUCCESS })
	if write(t, w, d.devices(0)); w.Bare() {
		t.Error("with a library the spec is still told to lack the driver's files")
	}
	asked := NewWriter(Config{Dir: dir, Plain: true})
	if write(t, asked, simulated("a")); asked.Bare() {
		t.Error("a plain spec that was asked for is told to lack something")
	}
}

func TestADriverThatHangsHoldsNobodyUp(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := d.writer(dir)
		write(t, w, d.devices(0))
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		began := time.Now()
		err := w.Write(d.devices(0, 1))
		if err == nil || time.Since(began) != defaultTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		began = time.Now()
		if err = w.Write(d.devices(0, 1)); err == nil || time.Since(began) != 0 {
			t.Errorf("while it still hangs, after %s: %v", time.Since(began), err)
		}
		if got := newRuntime(t, dir).cache.ListDevices(); len(got) != 1 {
			t.Errorf("devices %v", got)
		}
		d.set(func() { d.hang = nil })
		close(hang)
		synctest.Wait()
		write(t, w, d.devices(0, 1))
	})
	if got := newRuntime(t, dir).cache.ListDevices(); len(got) != 2 {
		t.Errorf("devices %v", got)
	}
}
