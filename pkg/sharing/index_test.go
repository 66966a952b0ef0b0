// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func resolveText(t *testing.T, ix *Index, text string) (gpu.UUID, string) {
	t.Helper()
	id, err := ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	d, reason := ix.Resolve(id)
	return d.UUID, reason
}

func TestResolveFindsTheDevice(t *testing.T) {
	lost := plain("GPU-c", 3)
	lost.Lost, lost.Minor = true, 2
	devices := append(cut(a100x80("GPU-"+realUUID, 0),
		place{profile: "3g.40gb", start: 4}, place{profile: "2g.20gb", start: 0}), plain("GPU-b", 1), lost)
	devices[1].UUID = "MIG-Real"
	// The second GPU instance is shared by two compute instances.
	second := devices[2]
	second.UUID, second.ComputeInstance = "MIG-second", 1
	devices = append(devices, second)
	ix := NewIndex(devices)
	first := string(devices[2].UUID)
	for _, tt := range []struct{ text, want, reason string }{
		{"GPU-" + realUUID, "GPU-" + realUUID, ""},
		{"GPU-6D1C0B52-7F0E-4A3B-9C1E-2B7A55AA0001::2", "GPU-" + realUUID, ""},
		{"GPU-b::7", "GPU-b", ""},
		{"GPU-B", "", ReasonUnknownDevice},
		{"GPU-z", "", ReasonUnknownDevice},
		{"MIG-Real", "MIG-Real", ""},
		{"MIG-unknown::0", "", ReasonUnknownDevice},
		{"MIG-GPU-" + realUUID + "/1/0", "MIG-Real", ""},
		{"MIG-GPU-" + realUUID + "/2/0", first, ""},
		{"MIG-GPU-" + realUUID + "/2/1::0", "MIG-second", ""},
		{"MIG-GPU-" + realUUID + "/2/7", "", ReasonNoComputeInstance},
		{"MIG-GPU-" + realUUID + "/9/0", "", ReasonNoGPUInstance},
		{"MIG-GPU-z/1/0", "", ReasonUnknownDevice},
		{"nvidia0", "GPU-" + realUUID, ""},
		{"nvidia1/vgpu3", "GPU-b", ""},
		{"nvidia2", "GPU-c", ""},
		{"nvidia3", "", ReasonUnknownDevice},
		{"nvidia0/gi1", "MIG-Real", ""},
		{"nvidia0/gi1/vgpu2", "MIG-Real", ""},
		{"nvidia0/gi2", "", ReasonAmbiguousInstance},
		{"nvidia0/gi3", "", ReasonNoGPUInstance},
		{"nvidia1/gi0", "", ReasonNoGPUInstance},
		{"nvidia9/gi0", "", ReasonUnknownDevice},
		{"index3", "GPU-c", ""},
		{"index2", "", ReasonUnknownDevice},
		{"index0/gi1", "MIG-Real", ""},
		{"18:00.0", "GPU-" + realUUID, ""},
		{"0000:19:00.0", "GPU-b", ""},
		{"0000:19:00.1", "", ReasonUnknownDevice},
	} {
		got, reason := resolveText(t, ix, tt.text)
		if string(got) != tt.want || reason != tt.reason {
			t.Errorf("%s resolves to %q, %q; want %q, %q", tt.text, got, reason, tt.want, tt.reason)
		}
	}
	if _, reason := ix.Resolve(ID{}); reason != ReasonUnknownDevice {
		t.Errorf("the zero ID: reason %q", reason)
	}
}

func TestIndexNumbersStandInForMissingMinors(t *testing.T) {
	a, b := plain("GPU-a", 0), plain("GPU-b", 1)
	a.Minor, b.Minor = -1, -1
	if got, reason := resolveText(t, NewIndex([]gpu.Device{a, b}), "nvidia1"); got != "GPU-b" {
		t.Errorf("nvidia1 without minors is %q, %q; want GPU-b", got, reason)
	}
	// One known minor says that the others are not the indexes.
	a.Minor = 5
	ix := NewIndex([]gpu.Device{a, b})
	if _, reason := resolveText(t, ix, "nvidia1"); reason != ReasonUnknownDevice {
		t.Errorf("nvidia1 with minors elsewhere: reason %q", reason)
	}
	if got, _ := resolveText(t, ix, "nvidia5"); got != "GPU-a" {
		t.Errorf("nvidia5 is %q, want GPU-a", got)
	}
}

func TestContradictoryInventories(t *testing.T) {
	a, b := plain("GPU-a", 0), plain("GPU-b", 0)
	twin, nameless := plain("GPU-a", 4), plain("", 5)
	b.PCIBusID = a.PCIBusID
	orphan := migDevice("MIG-orphan", a100x80("GPU-gone", 0), "1g.10gb", 1, 0, 0)
	nested := migDevice("MIG-nested", a100x80("GPU-a", 0), "1g.10gb", 1, 0, 0)
	mig := migDevice("MIG-a", a100x80("GPU-a", 0), "1g.10gb", 2, 0, 0)
	nested.Parent = mig.UUID
	ix := NewIndex([]gpu.Device{a, b, twin, nameless, orphan, mig, mig, nested})
	for text, want := range map[string]string{
		"GPU-a": "", "GPU-b": "", "MIG-a": "", "MIG-GPU-a/2/0": "",
		"nvidia0": ReasonAmbiguousDevice, "18:00.0": ReasonAmbiguousDevice,
		"nvidia0/gi1": ReasonAmbiguousDevice, "nvidia4": ReasonUnknownDevice, "nvidia5": ReasonUnknownDevice,
		"MIG-orphan": ReasonUnknownDevice, "MIG-nested": ReasonUnknownDevice,
	} {
		if _, reason := resolveText(t, ix, text); reason != want {
			t.Errorf("%s: reason %q, want %q", text, reason, want)
		}
	}
	if d, ok := ix.Device("GPU-a"); !ok || d.Index != 0 {
		t.Errorf("of two devices with one UUID the second is found: %v, %t", d.Index, ok)
	}
	if _, ok := ix.Device(""); ok {
		t.Error("a device without a UUID is found")
	}
}

func TestLegacyUUIDsOfOldDriversAreFoundByInstance(t *testing.T) {
	devices := cut(a100x80("GPU-a", 0), place{profile: "1g.10gb", start: 0})
	devices[1].UUID = "MIG-GPU-a/1/0"
	if got, reason := resolveText(t, NewIndex(devices), "MIG-GPU-a/1/0::1"); got != "MIG-GPU-a/1/0" {
		t.Errorf("resolves to %q, %q", got, reason)
	}
}

func TestALostCardGivesItsNumberToTheOneInItsPlace(t *testing.T) {
	lost, other, next := plain("GPU-lost", 0), plain("GPU-lost-too", 0), plain("GPU-new", 0)
	lost.Lost, other.Lost = true, true
	for _, tt := range []struct {
		name    string
		devices []gpu.Device
		want    gpu.UUID
	}{
		{"one lost", []gpu.Device{lost}, "GPU-lost"},
		{"the lost one first", []gpu.Device{lost, next}, "GPU-new"},
		{"the lost one last", []gpu.Device{next, lost, other}, "GPU-new"},
		{"two lost", []gpu.Device{lost, other}, ""},
	} {
		id, err := ParseID("nvidia0")
		if err != nil {
			t.Fatal(err)
		}
		if d, reason := NewIndex(tt.devices).Resolve(id); d.UUID != tt.want || (reason == ReasonAmbiguousDevice) != (tt.want == "") {
			t.Errorf("%s: %s %s", tt.name, d.UUID, reason)
		}
	}
}
