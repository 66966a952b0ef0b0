// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// tree is a folder that looks like a host's root.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree { return tree{t, t.TempDir()} }

func (h tree) file(name, text string) tree {
	h.t.Helper()
	path := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return h
}

func (h tree) nodes(paths ...string) tree {
	for _, p := range paths {
		h.file(p, "")
	}
	return h
}

// pci attaches a card, way being its path below /sys/devices.
func (h tree) pci(way, numa string) tree {
	h.t.Helper()
	h.file("/sys/devices/"+way+"/numa_node", numa)
	link := filepath.Join(h.root, "sys/bus/pci/devices", filepath.Base(way))
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/"+way, link); err != nil {
		h.t.Fatal(err)
	}
	return h
}

func TestASurveySeesWhatTheKernelKnows(t *testing.T) {
	r := new(rack).gpus(3).cut("1g.10gb", "1g.10gb")
	r.Devices[0].PCIBusID, r.Devices[1].PCIBusID = "00000000:18:00.0", "00010000:AF:00.0"
	for i := 2; i < len(r.Devices); i++ {
		r.Devices[i].PCIBusID = "00000000:2A:00.0"
	}
	h := newTree(t).
		nodes("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm").
		nodes("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia-caps/nvidia-cap30").
		nodes("/dev/nvidia-caps-imex-channels/channel3", "/dev/nvidia-caps-imex-channels/channel10", "/dev/nvidia-caps-imex-channels/channel0", "/dev/nvidia-caps-imex-channels/other").
		pci("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0", "0\n").
		pci("pci10000:00/10000:af:00.0", "-1\n").
		pci("pci0000:29/0000:2a:00.0", "1\n").
		file("/proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu2/gi1/access 21\ngpu2/gi1/ci0/access 22\ngpu2/gi2/access 30\ngpu2/gi2/ci0/access 31\ngpu0/gi1/access 5\n")
	inv, errs := Survey(h.root, r.Devices, []Link{{A: card(0), B: card(1), NVLinks: 2}})
	if len(errs) > 0 {
		t.Errorf("errors %v", errs)
	}
	type seen struct {
		NUMA  int
		Way   string
		Nodes []string
	}
	var got []seen
	for _, d := range inv.Devices {
		got = append(got, seen{d.NUMANode, d.PCIPath, d.Nodes})
	}
	want := []seen{
		{0, "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0", []string{"/dev/nvidia0"}},
		{-1, "pci10000:00/10000:af:00.0", []string{"/dev/nvidia1"}},
		{1, "pci0000:29/0000:2a:00.0", []string{"/dev/nvidia2"}},
		{1, "pci0000:29/0000:2a:00.0", []string{"/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"}},
		// The node of its compute instance is on the host: the driver knows of it.
		{1, "pci0000:29/0000:2a:00.0", []string{"/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	rest := Inventory{Links: []Link{{A: card(0), B: card(1), NVLinks: 2}}, ControlNodes: []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}, IMEXChannels: []int{0, 3, 10}}
	if diff := cmp.Diff(rest, inv, cmpopts.IgnoreFields(Inventory{}, "Devices")); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
}

func TestWhatASurveyDoesNotFindCostsThatFactOnly(t *testing.T) {
	r := new(rack).gpus(5).cut("1g.10gb")
	r.Devices[0].PCIBusID, r.Devices[1].PCIBusID, r.Devices[2].PCIBusID, r.Devices[3].PCIBusID = "00000000:01:00.0", "00000000:02:00.0", "nonsense", ""
	r.Devices[3].Minor = -1
	h := newTree(t).nodes("/dev/nvidia0").pci("pci0000:00/0000:01:00.0", "1\n").pci("pci0000:00/0000:02:00.0", "many\n")
	before := *r.cards()[1]
	inv, errs := Survey(h.root, r.Devices, nil)
	if len(inv.Devices) != len(r.Devices) {
		t.Fatalf("%d devices of %d", len(inv.Devices), len(r.Devices))
	}
	if d := inv.Devices[0]; d.NUMANode != 1 || len(d.Nodes) != 1 {
		t.Errorf("the good one is %+v", d)
	}
	if d := inv.Devices[1]; d.NUMANode != -1 || d.PCIPath != "pci0000:00/0000:02:00.0" || d.Nodes != nil {
		t.Errorf("one with a broken NUMA node is %+v", d)
	}
	if d := inv.Devices[3]; d.NUMANode != -1 || d.PCIPath != "" || d.Nodes != nil {
		t.Errorf("one that the driver says nothing of is %+v", d)
	}
	var text []string
	for _, err := range errs {
		text = append(text, err.Error())
	}
	all := strings.Join(text, "\n")
	for _, word := range []string{"00000000:02:00.0", "nonsense", "mig-minors"} {
		if !strings.Contains(all, word) {
			t.Errorf("no error about %s in:\n%s", word, all)
		}
	}
	if diff := cmp.Diff(before, *r.cards()[1]); diff != "" {
		t.Errorf("what was given was changed:\n%s", diff)
	}
}

func FuzzMIGMinors(f *testing.F) {
	f.Add("config 1\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
	f.Add("gpu0/gi/access 1\ngpu99999999999999999999/gi1/access 1\n/// 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		caps, _ := parseMIGMinors(strings.NewReader(text))
		for at, minor := range caps {
			if at.minor < 0 || at.gpu < 0 || at.compute < gpu.NoInstance || minor < 0 {
				t.Errorf("%+v is %d", at, minor)
			}
		}
	})
}
