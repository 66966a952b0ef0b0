// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestProfilesAreNamedAsTheDevicePluginNamesThem(t *testing.T) {
	for name, want := range map[string][]string{
		"A100": {"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"},
		"H100": {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
		"H200": {"1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"},
		"B200": {"1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"},
	} {
		for _, of := range models() {
			if of.name != name {
				continue
			}
			card := read(t, newMachine(of).source(t, Config{})).Devices[0]
			var got []string
			for _, p := range card.MIGProfiles {
				got = append(got, p.Name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			most := of.geometry[len(of.geometry)-1]
			if card.Capacity != (gpu.Slices{Compute: 7, Memory: 8, SMs: int(most.sms)}) {
				t.Errorf("%s has %+v", name, card.Capacity)
			}
		}
	}
	media := read(t, newMachine(modelH100()).source(t, Config{})).Devices[0].MIGProfiles[1]
	want := gpu.MIGProfile{
		Name: "1g.10gb+me", Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 16}, Max: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Size: 1, Exclusive: "me",
	}
	if diff := cmp.Diff(want, media); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProfileSuffixes(t *testing.T) {
	for rank, want := range map[int]string{
		nvml.GPU_INSTANCE_PROFILE_1_SLICE: "1g.24gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: "1g.24gb+me",
		nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2: "1g.24gb", nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX: "1g.24gb+gfx",
		nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "1g.24gb+me.all", nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "1g.24gb-me",
	} {
		if got := profileName(1, 24166, 97887<<20, suffixOf(rank)); got != want {
			t.Errorf("profile %d is %q, want %q", rank, got, want)
		}
	}
}

// mixed is a layout with every kind of MIG device: instances out of order, one with two compute instances.
func mixed(m *machine, i int) {
	m.change(i, func(b *board) {
		b.partition(
			seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE, start: 4, compute: []int{2, 1}},
			seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, start: 0},
			seat{rank: nvml.GPU_INSTANCE_PROFILE_2_SLICE, start: 2},
		)
	})
}

func TestMIGDevicesAreDescribedWhole(t *testing.T) {
	m := newMachine(modelA100())
	mixed(m, 1)
	s := m.source(t, Config{})
	r := read(t, s)
	var got []gpu.Device
	for _, d := range r.Devices {
		if d.IsMIG() {
			got = append(got, d)
		}
	}
	card := r.Devices[1]
	uuids := make(map[[2]int]gpu.UUID)
	for _, p := range m.boards[1].parts {
		uuids[[2]int{p.gi, p.ci}] = gpu.UUID(p.uuid)
	}
	device := func(gi, ci, entity int, profile gpu.Profile, place gpu.Placement) gpu.Device {
		return gpu.Device{
			UUID: uuids[[2]int{gi, ci}], Parent: card.UUID, Index: 1, Minor: 1, PCIBusID: card.PCIBusID, Model: card.Model,
			GPUInstance: gi, ComputeInstance: ci, InstanceEntity: entity, Profile: profile, Placement: place,
		}
	}
	three := func(name string, slices, sms int) gpu.Profile {
		return gpu.Profile{Name: name, Slices: gpu.Slices{Compute: 3, Memory: 4, SMs: 42}, ComputeInstanceSlices: slices, ComputeInstanceSMs: sms}
	}
	// DCGM numbers in the order of NVML's profiles: 2g, 3g, then 1g+me.
	want := []gpu.Device{
		device(2, 0, 8, three("2c.3g.20gb", 2, 28), gpu.Placement{Start: 4, Size: 4}),
		device(2, 1, 8, three("1c.3g.20gb", 1, 14), gpu.Placement{Start: 4, Size: 4}),
		device(4, 0, 7, gpu.Profile{
			Name: "2g.10gb", Slices: gpu.Slices{Compute: 2, Memory: 2, SMs: 28}, ComputeInstanceSlices: 2, ComputeInstanceSMs: 28,
		}, gpu.Placement{Start: 2, Size: 2}),
		device(7, 0, 9, gpu.Profile{
			Name: "1g.5gb+me", Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 14}, ComputeInstanceSlices: 1, ComputeInstanceSMs: 14,
		}, gpu.Placement{Start: 0, Size: 1}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !card.MIGEnabled || r.Devices[0].MIGEnabled {
		t.Error("the wrong card is in MIG mode")
	}
	again := read(t, s)
	if diff := cmp.Diff(r.Devices, again.Devices); diff != "" {
		t.Errorf("the next reading has it otherwise (-first +next):\n%s", diff)
	}
}

// What the driver lets only some ask for is made up for by what a MIG device says of itself.
func TestWithoutPermissionForInstancesTheProfileIsStillKnown(t *testing.T) {
	m := newMachine(modelH200())
	mixed(m, 0)
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetGpuInstanceById"] = nvml.ERROR_NO_PERMISSION })
	r := read(t, m.source(t, Config{}))
	var names []string
	for _, d := range r.Devices[1:5] {
		names = append(names, d.Profile.Name)
		if d.Placement != (gpu.Placement{}) || d.Profile.Memory == 0 || d.Profile.SMs == 0 {
			t.Errorf("%+v", d)
		}
	}
	if want := []string{"2c.3g.71gb", "1c.3g.71gb", "2g.35gb", "1g.18gb+me"}; !slices.Equal(names, want) {
		t.Errorf("the profiles are %v, want %v", names, want)
	}
	m.change(1, func(b *board) {
		b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_2_SLICE})
		b.refused["nvmlDeviceGetGpuInstanceProfileInfo"] = nvml.ERROR_NO_PERMISSION
		b.refused["nvmlDeviceGetGpuInstanceById"] = nvml.ERROR_NO_PERMISSION
	})
	r = read(t, m.source(t, Config{}))
	d := r.Devices[6]
	if d.Profile.Name != "2g.35gb" || d.Profile.Slices != (gpu.Slices{Compute: 2, Memory: 2}) || d.Profile.ComputeInstanceSMs != 32 {
		t.Errorf("without any permission it is %+v", d.Profile)
	}
}

// In MIG mode not everybody may see the whole card's memory, by which profiles are named.
func TestWithoutTheCardsMemoryTheDriversNameIsTaken(t *testing.T) {
	m := newMachine(modelH200())
	mixed(m, 0)
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetMemoryInfo"] = nvml.ERROR_NO_PERMISSION })
	if d := read(t, m.source(t, Config{})).Devices[4]; d.Profile.Name != "1g.profile" || d.Profile.Memory != 1 {
		t.Errorf("it is %+v", d.Profile)
	}
}

// The driver makes a MIG device's UUID of its ids, and another profile can get the same ones.
func TestAnotherProfileUnderTheSameUUIDIsSeen(t *testing.T) {
	m := newMachine(modelH100())
	m.change(0, func(b *board) {
		b.sameUUIDs = true
		b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, start: 2})
	})
	s := m.source(t, Config{})
	before := read(t, s).Devices[1]
	m.change(0, func(b *board) { b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_2_SLICE, start: 2}) })
	after := read(t, s).Devices[1]
	if before.UUID != after.UUID || before.Profile.Name != "1g.20gb" || after.Profile.Name != "2g.20gb" {
		t.Errorf("%s %s became %s %s", before.UUID, before.Profile.Name, after.UUID, after.Profile.Name)
	}
}

func TestTurningMIGOnAndOffIsSeen(t *testing.T) {
	m := newMachine(modelH100())
	// A driver may not tell of profiles while MIG is off.
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetGpuInstanceProfileInfo"] = nvml.ERROR_NOT_SUPPORTED })
	s := m.source(t, Config{})
	if r := read(t, s, 203, 252); r.Devices[0].MIGEnabled || len(r.Samples) != 8 || r.Devices[0].Capacity != (gpu.Slices{}) {
		t.Fatalf("%+v", r.Devices[0])
	}
	m.change(0, func(b *board) { b.partition(); clear(b.refused) })
	r := read(t, s, 67, 203, 252)
	if d := r.Devices[0]; !d.MIGEnabled || len(r.Devices) != 8 || d.Capacity.Compute != 7 || show(valueOf(t, r, 0, 67)) != "1" {
		t.Errorf("with MIG and no instance: %+v", d)
	}
	if util, used := valueOf(t, r, 0, 203), valueOf(t, r, 0, 252); util.Reason() != gpu.ReasonNotSupported || show(used) != "1000" {
		t.Errorf("a card in MIG mode without instances has utilisation %s and memory %s", show(util), show(used))
	}
	mixed(m, 0)
	r = read(t, s, 252, 1005, 155)
	if len(r.Devices) != 12 || len(r.Samples) != 11 || valueOf(t, r, 0, 252).Reason() != gpu.ReasonScope {
		t.Fatalf("%d devices, %d samples", len(r.Devices), len(r.Samples))
	}
	for i, want := range []string{"3", "5", "8"} {
		if got := show(valueOf(t, r, 1+i, 252)); got != want || valueOf(t, r, 1+i, 155).Reason() != gpu.ReasonScope {
			t.Errorf("instance %d uses %s MiB, want %s", i, got, want)
		}
	}
	m.change(0, func(b *board) { b.mig, b.parts = false, nil })
	if r := read(t, s, 252); r.Devices[0].MIGEnabled || len(r.Devices) != 8 {
		t.Errorf("MIG is off again: %+v", r.Devices[0])
	}
}

func TestAMIGDeviceThatCannotBeReadCostsItself(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	s := m.source(t, Config{})
	read(t, s)
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetComputeInstanceId"] = nvml.ERROR_UNKNOWN })
	r := read(t, s, 155)
	if len(r.Devices) != 8 || len(r.Troubles) != 4 || r.Troubles[0].Reason != gpu.ReasonError || !valueOf(t, r, 0, 155).Present() {
		t.Errorf("%d devices, troubles %+v", len(r.Devices), r.Troubles)
	}
	m.change(0, func(b *board) { clear(b.refused) })
	if r := read(t, s, 155); len(r.Devices) != 12 || len(r.Troubles) != 0 {
		t.Errorf("%d devices, troubles %+v", len(r.Devices), r.Troubles)
	}
}

// Whatever memory an instance has of its card, it is at least one slice and no more than all.
func TestMemorySlicesAreWithinTheCard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		card := rapid.Uint64Range(1, 1<<20).Draw(t, "card MiB")
		part := rapid.Uint64Range(0, card).Draw(t, "part MiB")
		whole := rapid.IntRange(1, 16).Draw(t, "slices")
		if n := memorySlices(part, card<<20, whole); n < 1 || n > whole {
			t.Fatalf("%d of %d MiB are %d of %d slices", part, card, n, whole)
		}
	})
}

// The handles of a GPU that has fallen off the bus are there, and its parts cannot be listed.
func TestAGPUThatIsLostWhileItsPartsAreListedKeepsThem(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	s := m.source(t, Config{})
	before := read(t, s, 252)
	for _, function := range []string{"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetAttributes", "nvmlDeviceGetMaxMigDeviceCount"} {
		m.change(0, func(b *board) { clear(b.refused); b.refused[function] = nvml.ERROR_GPU_IS_LOST })
		r := read(t, s, 252)
		if len(r.Devices) != len(before.Devices) || !r.Devices[0].Lost || !r.Devices[4].Lost || len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonLost {
			t.Errorf("%s: %d of %d devices, troubles %+v", function, len(r.Devices), len(before.Devices), r.Troubles)
		}
	}
}

func TestAPartThatCannotBeReadSaysWhy(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	s := m.source(t, Config{})
	for ret, want := range map[nvml.Return]gpu.Reason{nvml.ERROR_NO_PERMISSION: gpu.ReasonNotPermitted, nvml.ERROR_UNKNOWN: gpu.ReasonError} {
		m.change(0, func(b *board) { b.refused["nvmlDeviceGetGpuInstanceId"] = ret })
		if r := read(t, s, 155); len(r.Troubles) != 4 || r.Troubles[0].Reason != want {
			t.Errorf("%v: %+v", returned(ret), r.Troubles)
		}
	}
	// One that was destroyed since its handle was had is not there.
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetGpuInstanceId"] = nvml.ERROR_NOT_FOUND })
	if r := read(t, s, 155); len(r.Troubles) != 0 || len(r.Devices) != 8 {
		t.Errorf("%d devices, %+v", len(r.Devices), r.Troubles)
	}
}

// A later driver can have kinds of GPU instance that the binding does not know.
func TestAProfileOfALaterDriverIsKnown(t *testing.T) {
	of := modelB200()
	const later = nvml.GPU_INSTANCE_PROFILE_COUNT + 2
	of.geometry = append(of.geometry, geometry{rank: later, sms: 100, mib: 136000, count: 1, size: 6, starts: []uint32{0}, slices: 5})
	m := newMachine(of)
	m.change(0, func(b *board) { b.partition(seat{rank: later}) })
	d := read(t, m.source(t, Config{})).Devices[1]
	if d.Profile.Slices != (gpu.Slices{Compute: 5, Memory: 6, SMs: 100}) || d.Placement != (gpu.Placement{Size: 6}) || d.Profile.Name != "5g.135gb" {
		t.Errorf("it is %+v at %+v", d.Profile, d.Placement)
	}
}

// Without permission to ask the driver for the GPU instance, two profiles can look the same.
func TestProfilesThatLookTheSameAreToldApartByTheDriversName(t *testing.T) {
	of := modelB200()
	plain := of.geometry[0]
	plain.rank, plain.slices = nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, 1
	of.geometry = append(of.geometry, plain)
	m := newMachine(of)
	m.change(0, func(b *board) {
		b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX}, seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: 1})
		b.parts[0].says, b.parts[1].says = "1g.23gb+gfx", "1g.23gb"
		b.refused["nvmlDeviceGetGpuInstanceById"] = nvml.ERROR_NO_PERMISSION
	})
	r := read(t, m.source(t, Config{}))
	if a, b := r.Devices[1].Profile.Name, r.Devices[2].Profile.Name; a != "1g.23gb+gfx" || b != "1g.23gb" {
		t.Errorf("they are %q and %q", a, b)
	}
}
