// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/cdi"
	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func partedInventory() deviceplugin.Inventory {
	inv := deviceplugin.Inventory{ControlNodes: []string{"/dev/nvidiactl"}}
	for _, d := range cards(2) {
		inv.Devices = append(inv.Devices, deviceplugin.Device{Device: d, Nodes: []string{"/dev/nvidia" + d.PCIBusID}})
	}
	inv.Devices[1].Lost = true
	for _, id := range []string{"MIG-a", "MIG-b"} {
		inv.Devices = append(inv.Devices, deviceplugin.Device{Device: gpu.Device{UUID: gpu.UUID(id), Parent: "GPU-1", Index: 1}})
	}
	return inv
}

func TestSpecsCallDevicesWhatContainersAreTold(t *testing.T) {
	names := func(devices []cdi.Device) (out []string) {
		for _, d := range devices {
			out = append(out, d.Name)
		}
		return out
	}
	inv := partedInventory()
	if diff := cmp.Diff([]string{"GPU-0", "GPU-1", "MIG-a", "MIG-b"}, names(specDevices(inv, deviceplugin.IDUUID))); diff != "" {
		t.Error(diff)
	}
	devices := specDevices(inv, deviceplugin.IDIndex)
	if diff := cmp.Diff([]string{"0", "1", "1:0", "1:1"}, names(devices)); diff != "" {
		t.Error(diff)
	}
	inv.Devices = append(inv.Devices, deviceplugin.Device{Device: gpu.Device{Index: 2}})
	if n := len(specDevices(inv, deviceplugin.IDUUID)); n != 4 {
		t.Errorf("%d devices with a spec: one has no name", n)
	}
	if devices[0].Nodes[0] != "/dev/nvidiactl" || devices[0].Lost || !devices[1].Lost {
		t.Errorf("devices %+v", devices)
	}
}

func TestSpecsAreWrittenWhereContainersAreToldByCDI(t *testing.T) {
	dir := t.TempDir()
	s := &specs{cfg: config{source: sourceSim, cdiDir: dir, hostRoot: "/"}, log: slog.New(slog.DiscardHandler)}
	written := func() string {
		t.Helper()
		if err := s.write(partedInventory()); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			return ""
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if s.use(mustEffective(t, nil, nil, "")); written() != "" {
		t.Error("a spec is written that nobody asks for")
	}
	s.use(mustEffective(t, nil, map[string]string{"DEVICE_LIST_STRATEGY": "cdi-cri"}, ""))
	if got := written(); !strings.Contains(got, `"GPU-0"`) {
		t.Errorf("spec: %s", got)
	}
	s.use(mustEffective(t, nil, map[string]string{"DEVICE_LIST_STRATEGY": "cdi-cri", "DEVICE_ID_STRATEGY": "index"}, ""))
	if got := written(); !strings.Contains(got, `"1:1"`) {
		t.Errorf("spec after a change: %s", got)
	}
}

func TestDeviceNodesAreTheHostsWhereTheDriverRootHasNone(t *testing.T) {
	bare, whole := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(whole, "dev"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		here, devRoot string
		// root and rootHere are where the nodes are on the host and for the plugin.
		root, rootHere string
	}{
		{bare, "", "/", "/"},
		{whole, "", "/opt/driver", ""},
		{bare, "/opt/nodes", "/opt/nodes", ""},
		{"/nowhere", "", "/opt/driver", ""},
	} {
		s := &specs{cfg: config{cdiDir: t.TempDir(), hostRoot: "/"}, log: slog.New(slog.DiscardHandler)}
		s.use(mustEffective(t, nil, map[string]string{
			"NVIDIA_DRIVER_ROOT": "/opt/driver", "NVIDIA_DEV_ROOT": c.devRoot, "DRIVER_ROOT_CTR_PATH": c.here,
		}, ""))
		if s.made.DevRoot != c.root || s.made.DevRootHere != c.rootHere || s.made.DriverRoot != "/opt/driver" {
			t.Errorf("%+v: nodes in %q, seen in %q, of the driver in %q", c, s.made.DevRoot, s.made.DevRootHere, s.made.DriverRoot)
		}
	}
}

// A machine that runs this test with a driver of its own has a library to ask.
func TestSpecsWithoutTheDriversFilesAreTold(t *testing.T) {
	for _, folder := range []string{"/usr/lib*", "/usr/lib*/*"} {
		if found, _ := filepath.Glob(folder + "/libnvidia-ml.so.1"); len(found) > 0 {
			t.Skip("there is a driver here: ", found)
		}
	}
	for source, lacks := range map[string]bool{sourceNVML: true, sourceStream: true, sourceAuto: true, sourceSim: false} {
		t.Run(source, func(t *testing.T) {
			var logged bytes.Buffer
			s := &specs{cfg: config{source: source, cdiDir: t.TempDir(), hostRoot: "/"}, log: slog.New(slog.NewTextHandler(&logged, nil))}
			for range 3 {
				s.use(mustEffective(t, nil, map[string]string{"DEVICE_LIST_STRATEGY": "cdi-cri"}, ""))
				if err := s.write(partedInventory()); err != nil {
					t.Fatal(err)
				}
			}
			said := strings.Count(logged.String(), "level=WARN")
			problem := s.problem()
			if !lacks {
				if problem != nil || said != 0 {
					t.Errorf("a pretended node is told to lack something: %v", problem)
				}
				return
			}
			if said != 1 || problem == nil || problem.Kind != deviceplugin.ProblemCDIPlain || !strings.Contains(logged.String(), "driver-root-ctr-path") {
				t.Errorf("%d warnings, problem %v:\n%s", said, problem, &logged)
			}
			s.use(mustEffective(t, nil, nil, ""))
			if err := s.write(partedInventory()); err != nil || s.problem() != nil {
				t.Errorf("without CDI it is still told: %v, %v", s.problem(), err)
			}
		})
	}
}
