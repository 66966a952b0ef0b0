// SPDX-License-Identifier: Apache-2.0

package app

import (
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
	writer, on, ids := s.writer, s.on, s.ids
	s.mu.Unlock()
	if !on {
		return nil
	}
	return writer.Write(specDevices(inv, ids))
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
