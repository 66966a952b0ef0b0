// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestResourceNamesAreThoseThatKubernetesTakes(t *testing.T) {
	for name, want := range map[string]string{
		"gpu": "nvidia.com/gpu", "nvidia.com/gpu": "nvidia.com/gpu", "mig-1g.10gb.me": "nvidia.com/mig-1g.10gb.me", "example.com/a_b": "example.com/a_b",
		"nvidia.com/" + strings.Repeat("x", 52): "nvidia.com/" + strings.Repeat("x", 52),
		"nvidia.com/" + strings.Repeat("x", 53): "",
		"":                                      "", "a/b/c": "", "/gpu": "", "Nvidia.com/gpu": "", "a..b/gpu": "", "nvidia.com/": "", "gpu-": "", "-gpu": "", "g pu": "",
		"kubernetes.io/gpu": "", "x.kubernetes.io/gpu": "", "requests.nvidia.com/gpu": "",
	} {
		got, err := FullName(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), want %q", name, got, err, want)
		}
	}
	for profile, want := range map[string]string{
		"1g.5gb": "nvidia.com/mig-1g.5gb", "1g.10gb+me": "nvidia.com/mig-1g.10gb.me", "1g.12gb+me.all": "nvidia.com/mig-1g.12gb.me.all",
		"1g.24gb+gfx": "nvidia.com/mig-1g.24gb.gfx", "1g.24gb-me": "nvidia.com/mig-1g.24gb-me", "1c.3g.20gb": "nvidia.com/mig-1c.3g.20gb",
	} {
		if got := DefaultName(profile); got != want {
			t.Errorf("%s is %s, want %s", profile, got, want)
		}
	}
}

func TestAnIDIsTakenApartAsNVIDIAsPluginDoes(t *testing.T) {
	type parts struct {
		Device  gpu.UUID
		Replica int
		Shared  bool
	}
	for id, want := range map[string]parts{
		"GPU-a": {"GPU-a", 0, false}, "GPU-a::0": {"GPU-a", 0, true}, "GPU-a::17": {"GPU-a", 17, true}, "GPU-a::x": {"GPU-a", 0, true},
		"GPU-a::1::2": {"GPU-a", 0, true}, "MIG-GPU-a/1/0::3": {"MIG-GPU-a/1/0", 3, true}, "": {}, "::": {"", 0, true}, "GPU-a::-1": {"GPU-a", 0, true},
		"GPU-a:1": {"GPU-a:1", 0, false},
	} {
		device, replica, shared := ParseID(id)
		if got := (parts{device, replica, shared}); got != want {
			t.Errorf("%q is %v, want %v", id, got, want)
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, id := range []string{"GPU-a", "GPU-a::3", "GPU-a::99999999999999999999", "::", "MIG-GPU-a/1/0::3"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		device, replica, shared := ParseID(id)
		if replica < 0 || strings.Contains(string(device), replicaMark) || shared != strings.Contains(id, replicaMark) || !strings.HasPrefix(id, string(device)) {
			t.Errorf("%q is %q, %d, %v", id, device, replica, shared)
		}
	})
}

func TestDeviceNamesFollowTheStrategy(t *testing.T) {
	inv := new(rack).gpus(2).cut("1g.10gb", "1g.10gb").Inventory
	want := map[gpu.UUID]string{card(0): "0", card(1): "1", part(1, 0): "1:0", part(1, 1): "1:1"}
	if diff := cmp.Diff(want, DeviceNames(inv, IDIndex)); diff != "" {
		t.Errorf("by index (-want +got):\n%s", diff)
	}
	for uuid := range maps.Keys(want) {
		want[uuid] = string(uuid)
	}
	if diff := cmp.Diff(want, DeviceNames(inv, IDUUID)); diff != "" {
		t.Errorf("by UUID (-want +got):\n%s", diff)
	}
}
