// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Writer writes the specs of one node. It is safe for concurrent use, and keeps for each device
// that is still asked for the last good description that it had.
type Writer struct {
	cfg Config
	lib nvml.Interface

	// mu is held for a whole Write: the last one called wins.
	mu sync.Mutex
	// known are the last good descriptions, common what all devices need beside.
	known  map[gpu.UUID]specs.Device
	common *specs.ContainerEdits
	// bare says that the last description had to do without the driver's library.
	bare bool
	// pending is the answer of a driver that has not answered in time.
	pending chan described
	since   time.Time
}

// described is what a generator says.
type described struct {
	common  *specs.ContainerEdits
	devices map[gpu.UUID]specs.Device
	// extra are the devices "all" by class.
	extra map[string]specs.Device
	// failed are why single devices have no description.
	failed map[gpu.UUID]error
	// bare says that there was no library to ask, and somebody wanted to.
	bare bool
	err  error
}

// Write brings the specs up to date with the devices. A spec that is the same already is not
// touched, one that changes is replaced at once. If it fails as a whole the specs that were there
// stay; a *MissingError says that only some devices have none. A driver that hangs costs the
// timeout once; until it answers, each Write fails at once.
func (w *Writer) Write(devices []Device) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	devices, bad := valid(devices)
	if len(devices) == 0 {
		return missing(bad) // a spec without devices is none, and who runs may still need the old one
	}
	d, err := w.describe(devices)
	if err != nil {
		return fmt.Errorf("CDI: %w; the specs in %s stay as they are", err, w.cfg.Dir)
	}
	w.bare = d.bare
	maps.Copy(d.failed, bad)
	if d.common != nil {
		w.common = d.common
	}
	maps.Copy(w.known, d.devices)
	wanted := make(map[gpu.UUID]bool, len(devices))
	var list []specs.Device
	for _, each := range devices {
		wanted[each.UUID] = true
		described, ok := w.known[each.UUID]
		if !ok {
			if each.Lost {
				delete(d.failed, each.UUID)
			}
			continue
		}
		delete(d.failed, each.UUID)
		described.Name = each.Name
		list = append(list, described)
	}
	maps.DeleteFunc(w.known, func(uuid gpu.UUID, _ specs.Device) bool { return !wanted[uuid] })
	if err := w.saveAll(list, d.extra); err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	return missing(d.failed)
}

// Bare says that the specs lack the driver's files, because there was no library of the driver to ask at the
// last Write: they have device nodes only. Plain specs that were asked for are not bare. It waits for a
// Write that runs.
func (w *Writer) Bare() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bare
}

func (w *Writer) saveAll(list []specs.Device, extra map[string]specs.Device) error {
	var common specs.ContainerEdits
	if w.common != nil {
		common = *w.common
	}
	var errs []error
	if len(list) > 0 {
		errs = append(errs, w.save("gpu", common, list))
	}
	if channels := w.imexDevices(); len(channels) > 0 {
		errs = append(errs, w.save("imex-channel", specs.ContainerEdits{}, channels))
	}
	for _, class := range w.extraClasses() {
		errs = append(errs, w.save(class, specs.ContainerEdits{}, []specs.Device{extraOr(extra, class)}))
	}
	return errors.Join(errs...)
}

// extraOr is what the generator found for a class, or a device that does nothing: containers ask
// for it, and a name that nobody knows keeps them from starting.
func extraOr(extra map[string]specs.Device, class string) specs.Device {
	if d, ok := extra[class]; ok {
		return d
	}
	return specs.Device{Name: "all", ContainerEdits: specs.ContainerEdits{Env: []string{"NVIDIA_" + strings.ToUpper(class) + "=enabled"}}}
}

func (w *Writer) extraClasses() []string {
	var classes []string
	for class, on := range map[string]bool{"gdrcopy": w.cfg.GDRCopy, "gds": w.cfg.GDS, "mofed": w.cfg.MOFED} {
		if on {
			classes = append(classes, class)
		}
	}
	slices.Sort(classes)
	return classes
}

// valid are the devices that CDI can name, each once.
func valid(devices []Device) (good []Device, bad map[gpu.UUID]error) {
	bad = make(map[gpu.UUID]error)
	seen := make(map[string]bool)
	for _, d := range devices {
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			bad[d.UUID] = err
			continue
		}
		if seen[d.Name] {
			bad[d.UUID] = fmt.Errorf("another device has the name %q", d.Name)
			continue
		}
		seen[d.Name] = true
		good = append(good, d)
	}
	return good, bad
}

func missing(failed map[gpu.UUID]error) error {
	if len(failed) == 0 {
		return nil
	}
	e := &MissingError{devices: slices.Sorted(maps.Keys(failed))}
	var errs []error
	for _, uuid := range e.devices {
		errs = append(errs, failed[uuid])
	}
	e.err = errors.Join(errs...)
	return e
}

// describe asks the driver, and does not wait for one that hangs.
func (w *Writer) describe(devices []Device) (described, error) {
	if w.pending != nil {
		select {
		case <-w.pending: // of devices that were asked for then
			w.pending = nil
		default:
			return described{}, fmt.Errorf("the driver has not answered since %s: look for XIDs in the kernel log", w.since.Format(time.TimeOnly))
		}
	}
	answer := make(chan described, 1)
	began := time.Now()
	go func() { answer <- w.ask(devices) }()
	timeout := time.NewTimer(w.cfg.Timeout)
	defer timeout.Stop()
	select {
	case d := <-answer:
		return d, d.err
	case <-timeout.C:
		w.pending, w.since = answer, began
		return described{}, fmt.Errorf("the driver did not answer within %s: look for XIDs in the kernel log", w.cfg.Timeout)
	}
}
