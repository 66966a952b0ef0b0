// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// ask describes the devices by NVIDIA's generator, or plainly where there is no library to ask.
func (w *Writer) ask(devices []Device) described {
	if w.cfg.Plain {
		return w.plain(devices)
	}
	lib := w.library()
	switch ret := lib.Init(); {
	case ret == nvml.ERROR_LIBRARY_NOT_FOUND:
		d := w.plain(devices)
		d.bare = true
		return d
	case ret != nvml.SUCCESS:
		return described{err: fmt.Errorf("the driver's library does not start: %s", ret.Error())}
	}
	// The generator starts and stops the library for each device; the driver keeps it while
	// somebody else has it started.
	defer func() { _ = lib.Shutdown() }()
	return w.full(lib, devices)
}

func (w *Writer) library() nvml.Interface {
	if w.lib != nil {
		return w.lib
	}
	found, err := lookup.NewLibraryLocator(lookup.WithLogger(driverLog{w.cfg.Log}), lookup.WithRoot(w.cfg.DriverRootHere)).Locate("libnvidia-ml.so.1")
	if err != nil || len(found) == 0 {
		return nvml.New() // where the loader finds it
	}
	return nvml.New(nvml.WithLibraryPath(found[0]))
}

func (w *Writer) options(lib nvml.Interface) []nvcdi.Option {
	return []nvcdi.Option{
		nvcdi.WithDriverRoot(w.cfg.DriverRootHere),
		nvcdi.WithDevRoot(w.cfg.DevRootHere),
		nvcdi.WithNVIDIACDIHookPath(w.cfg.HookPath),
		nvcdi.WithFeatureFlags(w.cfg.FeatureFlags...),
		nvcdi.WithDisabledHooks(w.cfg.DisabledHooks...),
		nvcdi.WithLogger(driverLog{w.cfg.Log}),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithVendor(w.cfg.Vendor),
	}
}

// full asks NVIDIA's generator, for each device alone, so that a lost one costs itself only.
func (w *Writer) full(lib nvml.Interface, devices []Device) described {
	d := described{devices: make(map[gpu.UUID]specs.Device), extra: make(map[string]specs.Device), failed: make(map[gpu.UUID]error)}
	generator, err := nvcdi.New(append(w.options(lib), nvcdi.WithMode(nvcdi.ModeNvml))...)
	if err != nil {
		return described{err: fmt.Errorf("NVIDIA's generator: %w", err)}
	}
	common, err := generator.GetCommonEdits()
	if err != nil {
		return described{err: fmt.Errorf("NVIDIA's generator does not find the driver below %s: %w", w.cfg.DriverRootHere, err)}
	}
	d.common = common.ContainerEdits
	for _, each := range devices {
		if each.Lost {
			d.failed[each.UUID] = errors.New("the GPU is lost")
			continue
		}
		one, err := generator.GetDeviceSpecsByID(string(each.UUID))
		if err == nil && len(one) == 0 {
			err = errors.New("the driver does not know it")
		}
		if err != nil {
			d.failed[each.UUID] = fmt.Errorf("%s: %w", each.UUID, err)
			continue
		}
		d.devices[each.UUID] = one[0]
	}
	for _, class := range w.extraClasses() {
		if one, ok := w.extra(lib, class); ok {
			d.extra[class] = one
		}
	}
	d.err = w.toHost(&d)
	return d
}

// extra is the device "all" of a class, false where the node has nothing of it.
func (w *Writer) extra(lib nvml.Interface, class string) (specs.Device, bool) {
	generator, err := nvcdi.New(append(w.options(lib), nvcdi.WithMode(class))...)
	if err == nil {
		var found []specs.Device
		if found, err = generator.GetDeviceSpecsByID("all"); err == nil && len(found) == 1 && !empty(found[0].ContainerEdits) {
			return found[0], true
		}
	}
	w.cfg.Log.Warn("the node has nothing of a class that every container is to get", "class", class, "err", err)
	return specs.Device{}, false
}

func empty(e specs.ContainerEdits) bool {
	return len(e.Env)+len(e.DeviceNodes)+len(e.Mounts)+len(e.Hooks) == 0
}

// toHost changes the paths that hold here to those that hold on the host.
func (w *Writer) toHost(d *described) error {
	dev := func(path string) string {
		return filepath.Join(strings.TrimSuffix(filepath.Clean(path), "/dev"), "dev")
	}
	move := func(from, to string) transform.Transformer {
		return root.New(root.WithRoot(from), root.WithTargetRoot(to), root.WithRelativeTo("host"))
	}
	// The device nodes come first: their root may lie in the driver's.
	for _, t := range []transform.Transformer{
		move(dev(w.cfg.DevRootHere), dev(w.cfg.DevRoot)), move(w.cfg.DriverRootHere, w.cfg.DriverRoot),
	} {
		all := &specs.Spec{ContainerEdits: *d.common}
		uuids, classes := slices.Sorted(maps.Keys(d.devices)), slices.Sorted(maps.Keys(d.extra))
		for _, uuid := range uuids {
			all.Devices = append(all.Devices, d.devices[uuid])
		}
		for _, class := range classes {
			all.Devices = append(all.Devices, d.extra[class])
		}
		if err := t.Transform(all); err != nil {
			return fmt.Errorf("paths from %s to %s: %w", w.cfg.DriverRootHere, w.cfg.DriverRoot, err)
		}
		d.common = &all.ContainerEdits
		for i, uuid := range uuids {
			d.devices[uuid] = all.Devices[i]
		}
		for i, class := range classes {
			d.extra[class] = all.Devices[len(uuids)+i]
		}
	}
	return nil
}

// plain describes devices by their nodes, and by an environment variable each, because a device
// that changes nothing in a container is none for CDI.
func (w *Writer) plain(devices []Device) described {
	d := described{
		common:  &specs.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}},
		devices: make(map[gpu.UUID]specs.Device), failed: make(map[gpu.UUID]error),
	}
	for _, each := range devices {
		edits := specs.ContainerEdits{Env: []string{plainVariable(each.UUID) + "=" + string(each.UUID)}}
		for _, node := range each.Nodes {
			edits.DeviceNodes = append(edits.DeviceNodes, w.node(node))
		}
		d.devices[each.UUID] = specs.Device{ContainerEdits: edits}
	}
	return d
}

func plainVariable(uuid gpu.UUID) string {
	return "GPUMETER_DEVICE_" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, string(uuid))
}

// node is a device node by its path in a container.
func (w *Writer) node(path string) *specs.DeviceNode {
	n := &specs.DeviceNode{Path: path, Permissions: "rw"}
	if host := filepath.Join(w.cfg.DevRoot, path); host != path {
		n.HostPath = host
	}
	return n
}

// imexDevices are the channels that the host has.
func (w *Writer) imexDevices() []specs.Device {
	var devices []specs.Device
	for _, channel := range w.cfg.IMEXChannels {
		path := "/dev/nvidia-caps-imex-channels/channel" + strconv.Itoa(channel)
		// A container may have been given the node itself instead of the folder.
		if !isThere(filepath.Join(w.cfg.DevRootHere, path)) && !isThere(path) {
			continue
		}
		devices = append(devices, specs.Device{
			Name:           strconv.Itoa(channel),
			ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{w.node(path)}},
		})
	}
	return devices
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// driverLog takes what NVIDIA's generator says. It warns of each library that a node need not
// have, so its warnings are for who looks for something.
type driverLog struct{ log *slog.Logger }

func (l driverLog) say(level slog.Level, format string, args []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "CDI generator: "+fmt.Sprintf(format, args...))
	}
}

// Tracef drops what it is given.
func (l driverLog) Tracef(string, ...any) {}

// Debugf logs for debugging, as Infof and Warningf do.
func (l driverLog) Debugf(format string, args ...any) { l.say(slog.LevelDebug, format, args) }

// Infof logs for debugging.
func (l driverLog) Infof(format string, args ...any) { l.say(slog.LevelDebug, format, args) }

// Warningf logs for debugging.
func (l driverLog) Warningf(format string, args ...any) { l.say(slog.LevelDebug, format, args) }

// Errorf logs a warning: what it costs is told by the error that follows.
func (l driverLog) Errorf(format string, args ...any) { l.say(slog.LevelWarn, format, args) }
