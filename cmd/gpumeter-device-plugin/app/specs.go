// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/gpumeter/gpumeter/pkg/cdi"
	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
)

// specs writes the CDI specs for the config that holds. It is safe for concurrent use.
type specs struct {
	cfg config
	log *slog.Logger

	mu     sync.Mutex
	writer *cdi.Writer
	// made is the config that the writer was made for; ids is how devices are called.
	made cdi.Config
	on   bool
	ids  deviceplugin.IDStrategy
	// lack is what the specs that were written last lack, nil for nothing.
	lack *deviceplugin.Problem
}

// use takes the config that holds from now on.
func (s *specs) use(e *effective) {
	next := cdi.Config{
		Dir: s.cfg.cdiDir, DriverRoot: e.values.text("driver-root"), DevRoot: e.settings.DevRoot,
		HookPath:     e.values.text("nvidia-cdi-hook-path"),
		FeatureFlags: e.values.list("cdi-feature-flags"), DisabledHooks: e.values.list("cdi-disable-hooks"),
		GDRCopy: e.settings.GDRCopy, GDS: e.settings.GDS, MOFED: e.settings.MOFED, IMEXChannels: e.settings.IMEXChannels,
		Plain: s.cfg.source == sourceSim, Log: s.log,
	}
	if here := e.values.text("driver-root-ctr-path"); isDir(here) {
		next.DriverRootHere = here
		if e.values.text("dev-root") == "" && !isDir(filepath.Join(here, "dev")) {
			// A root with nothing but the driver's files: the nodes are the host's own.
			next.DevRoot, next.DevRootHere = "/", "/"
		}
	}
	if s.cfg.hostRoot != "/" {
		next.DevRootHere = filepath.Join(s.cfg.hostRoot, next.DevRoot)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.ids = e.cdi(), e.settings.IDStrategy
	if s.writer == nil || !reflect.DeepEqual(s.made, next) {
		s.writer, s.made = cdi.NewWriter(next), next
	}
}

// write writes the specs of all devices, where containers are told their devices by CDI.
func (s *specs) write(inv deviceplugin.Inventory) error {
	s.mu.Lock()
	writer, on, ids, made := s.writer, s.on, s.ids, s.made
	s.mu.Unlock()
	if !on {
		s.lacks(nil)
		return nil
	}
	err := writer.Write(specDevices(inv, ids))
	if writer.Bare() {
		s.lacks(bareSpecs(made))
	} else {
		s.lacks(nil)
	}
	return err
}

// bareSpecs says what specs of devices without the driver's files cost.
func bareSpecs(made cdi.Config) *deviceplugin.Problem {
	return &deviceplugin.Problem{Kind: deviceplugin.ProblemCDIPlain, Text: fmt.Sprintf(
		"the CDI specs have device nodes and none of the driver's libraries and programs, since no libnvidia-ml.so.1 can be loaded from %s or by the loader: containers start without CUDA and nvidia-smi; "+
			"mount the host's driver root there (--driver-root-ctr-path), or have the NVIDIA runtime run the plugin with NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility; then restart the plugin",
		cmp.Or(made.DriverRootHere, made.DriverRoot, "/"))}
}

// lacks notes what the specs lack, and says so if that is new.
func (s *specs) lacks(p *deviceplugin.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p != nil && (s.lack == nil || s.lack.Text != p.Text) {
		s.log.Warn("containers do not get all that they need", "problem", p)
	}
	s.lack = p
}

// problem is what the specs lack, nil for nothing.
func (s *specs) problem() *deviceplugin.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lack
}

// specDevices are the devices as CDI has them, under the names that containers are told. One without
// a UUID is handed out to nobody.
func specDevices(inv deviceplugin.Inventory, ids deviceplugin.IDStrategy) []cdi.Device {
	names := deviceplugin.DeviceNames(inv, ids)
	out := make([]cdi.Device, 0, len(inv.Devices))
	for _, d := range inv.Devices {
		if d.UUID != "" {
			out = append(out, cdi.Device{Name: names[d.UUID], UUID: d.UUID, Nodes: slices.Concat(inv.ControlNodes, d.Nodes), Lost: d.Lost})
		}
	}
	return out
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
