// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

func TestAWholeCardIsDescribed(t *testing.T) {
	m := node(t, "driver 580.1.2", `gpu 3 h100 uuid GPU-three pci 00000000:3D:00.0 minor 5 fb 81559 model "NVIDIA H100"`, "text 3 54 GPU-three")
	r := m.read(155)
	want := []gpu.Device{{
		UUID: "GPU-three", Index: 3, Minor: 5, PCIBusID: "00000000:3D:00.0", Model: "NVIDIA H100",
		Capacity:    gpu.Slices{Compute: 7, Memory: 8},
		GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
	}}
	if diff := cmp.Diff(want, r.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if r.Source != "dcgm" || r.Origin != (gpu.Origin{Library: "libdcgm 4.6.0", Engine: "embedded", Driver: "580.1.2"}) || r.Origin != m.Origin() {
		t.Errorf("a reading of %q from %+v; the source says %+v", r.Source, r.Origin, m.Origin())
	}
	if len(r.Troubles) > 0 {
		t.Errorf("troubles: %+v", r.Troubles)
	}
}

// The engine lists instances by profile; the inventory has them in NVML's order.
func TestMIGDevicesAreDescribedInTheOrderOfTheirInstances(t *testing.T) {
	m := node(t, "gpus 2 h100", "mig 1 on",
		"gi 1 profile 1g.20gb nvml 9 placement 0 uuid MIG-nine ci",
		"gi 1 profile 3g.40gb nvml 2 placement 4", "ci 1 gi 2 nvml 1 slices 1 uuid MIG-two-one", "ci 1 gi 2 nvml 0 slices 2 uuid MIG-two-zero",
		"gi 1 profile 1g.10gb nvml 11 placement 2",
	)
	r := m.read(252)
	type row struct {
		uuid           gpu.UUID
		gi, ci, entity int
		profile        gpu.Profile
	}
	var got []row
	card := r.Devices[1]
	for _, d := range r.Devices[2:] {
		if d.Parent != card.UUID || d.Index != 1 || d.Minor != card.Minor || d.Model != card.Model || d.PCIBusID != card.PCIBusID {
			t.Errorf("%+v is not of the card %+v", d, card)
		}
		got = append(got, row{d.UUID, d.GPUInstance, d.ComputeInstance, d.InstanceEntity, d.Profile})
	}
	// 1 is the GPU, 7 the instances that an H100 can have; what nothing can run on is no device.
	three := gpu.Slices{Compute: 3, Memory: 4}
	want := []row{
		{"MIG-two-zero", 2, 0, got[0].entity, gpu.Profile{Name: got[0].profile.Name, Slices: three, ComputeInstanceSlices: 2}},
		{"MIG-two-one", 2, 1, got[0].entity, gpu.Profile{Name: got[1].profile.Name, Slices: three, ComputeInstanceSlices: 1}},
		{"MIG-nine", 9, 0, got[2].entity, gpu.Profile{Name: "1g.20gb", Slices: gpu.Slices{Compute: 1, Memory: 2}, ComputeInstanceSlices: 1}},
	}
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		t.Errorf("MIG devices (-want +got):\n%s", diff)
	}
	if !card.MIGEnabled || r.Devices[0].MIGEnabled {
		t.Errorf("MIG modes are %v and %v", r.Devices[0].MIGEnabled, card.MIGEnabled)
	}
	if len(r.Samples) != 4 || r.Samples[2].Entity.ID != 2 || r.Samples[3].Entity.ID != 9 {
		t.Errorf("samples of %+v", r.Samples)
	}
}

func TestAnotherDescriptionFillsWhatDCGMDoesNotSay(t *testing.T) {
	sim := pretend(t, "strict on", "gpu 0 h100 uuid GPU-zero", "text 0 54 GPU-zero", "mig 0 on", "gi 0 profile 1g.10gb nvml 7 placement 3 uuid MIG-a ci")
	var asked []gpu.UUID
	m := openOn(t, sim, func(c *Config) {
		c.Parts = func(_ context.Context, id gpu.UUID) ([]gpu.Device, error) {
			if asked = append(asked, id); len(asked) == 1 {
				return nil, errors.New("not yet")
			}
			// It sees the second MIG device later than DCGM.
			return []gpu.Device{
				{UUID: "GPU-zero", Capacity: gpu.Slices{Compute: 7, Memory: 8, SMs: 132}, MIGProfiles: []gpu.MIGProfile{{Name: "1g.10gb"}}},
				{UUID: "MIG-a", Parent: "GPU-zero", Placement: gpu.Placement{Start: 3, Size: 1}, Profile: gpu.Profile{Name: "1g.10gb+me", Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 16}, ComputeInstanceSlices: 1, ComputeInstanceSMs: 16}},
			}, nil
		}
	})
	r := m.read()
	if r.Devices[1].Profile.Name != "1g.10gb" || r.Devices[1].Placement.Size != 0 {
		t.Errorf("DCGM alone says %+v", r.Devices[1])
	}
	// A repartition is a reason to ask again.
	m.do("ci 0 gi 7 nvml 1 slices 1 uuid MIG-b")
	r = m.until("the other description", nil, func(r gpu.Reading) string {
		if len(r.Devices) != 3 {
			return fmt.Sprintf("%+v", r.Devices)
		}
		return ""
	})
	card, a, b := r.Devices[0], r.Devices[1], r.Devices[2]
	if card.Capacity.SMs != 132 || len(card.MIGProfiles) != 1 || card.Model == "" {
		t.Errorf("the card is %+v", card)
	}
	if a.Profile.Name != "1g.10gb+me" || a.Profile.SMs != 16 || a.Placement != (gpu.Placement{Start: 3, Size: 1}) || a.GPUInstance != 7 {
		t.Errorf("the MIG device is %+v", a)
	}
	if b.UUID != "MIG-b" || b.Profile.Name == "" || b.Placement.Size != 0 {
		t.Errorf("the MIG device that is not described is %+v", b)
	}
	for _, id := range asked {
		if id != "GPU-zero" {
			t.Errorf("asked for %q", id)
		}
	}
}

// The ids stay, the devices do not.
func TestTheSameLayoutMadeAnewIsNewDevices(t *testing.T) {
	m := node(t, "gpus 1 h100", "mig 0 on", "gi 0 profile 3g.40gb nvml 1 uuid MIG-old ci")
	if r := m.read(252); r.Devices[1].UUID != "MIG-old" {
		t.Fatalf("devices: %+v", r.Devices)
	}
	m.do("mig 0 on", "gi 0 profile 3g.40gb nvml 1 uuid MIG-new ci")
	m.until("the new device", []gpu.FieldID{252}, func(r gpu.Reading) string {
		if len(r.Devices) != 2 || r.Devices[1].UUID != "MIG-new" {
			return fmt.Sprintf("%+v", r.Devices)
		}
		return ""
	})
	r := m.read(252)
	if s, ok := sampleOf(r, gpu.KindGPUInstance, 0, 1); shown(r, s, ok, 252)[0] == '(' {
		t.Errorf("its memory is %s", shown(r, s, ok, 252))
	}
}

func TestMIGModeIsSeenWithoutInstances(t *testing.T) {
	m := node(t, "gpus 1 h100")
	if r := m.read(252); r.Devices[0].MIGEnabled || cell(r, 0, 252)[0] == '(' {
		t.Fatalf("a whole card: %+v, memory %s", r.Devices[0], cell(r, 0, 252))
	}
	m.do("mig 0 on")
	r := m.until("MIG mode", []gpu.FieldID{252}, func(r gpu.Reading) string {
		if !r.Devices[0].MIGEnabled {
			return "not in MIG mode"
		}
		return ""
	})
	// Nothing divides the card yet: its memory is its own.
	if cell(r, 0, 252)[0] == '(' {
		t.Errorf("memory is %s", cell(r, 0, 252))
	}
}

// Between two readings nobody would notice by the lists alone.
func TestAGPUThatWasAwayForAMomentIsWatchedAgain(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155)
	m.do("detach 1", "attach 1")
	m.until("GPU 1 answers", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if cell(r, 1, 155)[0] == '(' {
			return cell(r, 1, 155)
		}
		return ""
	})
	m.do("xid 1 31")
	m.until("an XID", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Events) != 1 {
			return fmt.Sprintf("%d events", len(r.Events))
		}
		return ""
	})
}

func TestAnotherGPUUnderTheSameNumberIsAnotherDevice(t *testing.T) {
	m := node(t, `gpu 0 h100 uuid GPU-old`, "text 0 54 GPU-old")
	m.read(155)
	m.do("detach 0")
	m.until("it has left", nil, func(r gpu.Reading) string {
		if len(r.Devices) > 0 {
			return "it is there"
		}
		return ""
	})
	m.do("gpu 0 h100 uuid GPU-new", "text 0 54 GPU-new", "attach 0")
	r := m.until("the new one", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Devices) != 1 || r.Devices[0].UUID != "GPU-new" || cell(r, 0, 155)[0] == '(' {
			return fmt.Sprintf("%+v %s", r.Devices, cell(r, 0, 155))
		}
		return ""
	})
	if r.Samples[0].Entity.GPU != "GPU-new" {
		t.Errorf("samples of %+v", r.Samples[0].Entity)
	}
}

func TestAGPUThatIsExchangedUnnoticedIsSeenByItsUUID(t *testing.T) {
	m := node(t, `gpu 0 h100 uuid GPU-old`, "text 0 54 GPU-old", "xid 0 31 ago 1s")
	m.read(155)
	m.do("gpu 0 uuid GPU-new", "text 0 54 GPU-new")
	r := m.until("the new one", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Devices) != 1 || r.Devices[0].UUID != "GPU-new" {
			return fmt.Sprintf("%+v", r.Devices)
		}
		return ""
	})
	if r.Samples[0].Entity.GPU != "GPU-new" || cell(r, 0, 155)[0] == '(' || len(r.Events) > 0 {
		t.Errorf("samples of %+v, events %+v", r.Samples[0].Entity, r.Events)
	}
}

// A GPU that is lost in another way: the engine has no status for it, only blanks.
func TestAGPUWhoseValuesAllVanishIsLookedAfter(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155, 150)
	m.do("lost 1 blank")
	m.until("GPU 1 is lost", []gpu.FieldID{155, 150}, func(r gpu.Reading) string {
		if len(r.Devices) != 2 || !r.Devices[1].Lost || cell(r, 1, 155) != "(lost)" {
			return fmt.Sprintf("%+v %s", r.Devices, cell(r, 1, 155))
		}
		return ""
	})
}

func TestAGPUThatCannotBeDescribedCostsOnlyItself(t *testing.T) {
	m := node(t, "gpus 2 h100", "fail dcgmGetDeviceAttributes -3 1")
	r := m.read(155)
	if len(r.Devices) != 1 || len(r.Troubles) != 1 || r.Troubles[0].GPU != "" || !strings.Contains(r.Troubles[0].Text, "asking what GPU") {
		t.Errorf("one GPU has no description: devices %+v, troubles %+v", r.Devices, r.Troubles)
	}
	if r := m.read(155); len(r.Devices) != 2 || len(r.Troubles) != 0 {
		t.Errorf("then it has: devices %+v, troubles %+v", r.Devices, r.Troubles)
	}
}

func TestAGPUThatIsDescribedNoLongerKeepsItsName(t *testing.T) {
	m := node(t, "gpus 1 h100")
	before := m.read(155)
	m.do("fail dcgmGetDeviceAttributes -3", "bind begin", "bind end")
	m.read(155)
	r := m.read(155)
	if len(r.Devices) != 1 || r.Devices[0].UUID != before.Devices[0].UUID || cell(r, 0, 155)[0] == '(' {
		t.Errorf("devices %+v, power %s", r.Devices, cell(r, 0, 155))
	}
	if len(r.Troubles) != 1 || r.Troubles[0].GPU != r.Devices[0].UUID {
		t.Errorf("troubles: %+v", r.Troubles)
	}
	m.do("fail dcgmGetDeviceAttributes 0")
	if r := m.read(155); len(r.Troubles) > 0 {
		t.Errorf("troubles: %+v", r.Troubles)
	}
}

func TestAHierarchyThatFailsKeepsWhatWasKnown(t *testing.T) {
	m := node(t, "gpus 1 h100", "mig 0 on", "gi 0 profile 1g.10gb nvml 7 ci")
	before := m.read(252)
	m.do("fail dcgmGetGpuInstanceHierarchy -3")
	r := m.read(252)
	if diff := cmp.Diff(before.Devices, r.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonError || !strings.Contains(r.Troubles[0].Text, "MIG instances") {
		t.Errorf("troubles: %+v", r.Troubles)
	}
	m.do("fail dcgmGetGpuInstanceHierarchy 0")
	if r := m.read(252); len(r.Troubles) > 0 {
		t.Errorf("troubles: %+v", r.Troubles)
	}
}

func TestTheInventoryIsOneSliceUntilItChanges(t *testing.T) {
	m := node(t, "gpus 2 h100")
	a, b := m.read(), m.read()
	if &a.Devices[0] != &b.Devices[0] {
		t.Error("two readings of the same devices have two slices")
	}
	m.do("lost 0")
	r := m.until("a lost GPU", nil, func(r gpu.Reading) string {
		if !r.Devices[0].Lost {
			return "not lost"
		}
		return ""
	})
	if a.Devices[0].Lost || &r.Devices[0] == &a.Devices[0] {
		t.Error("a reading that was returned has changed")
	}
}

func TestManyCardsHaveOneGroupEach(t *testing.T) {
	m := node(t, append([]string{"gpus 24 h100"}, divided(24)...)...)
	r := m.until("a second sample", []gpu.FieldID{155, 252, 1001}, func(r gpu.Reading) string {
		if last := r.Samples[len(r.Samples)-1]; !last.Values[2].Present() {
			return last.Values[2].Reason().String()
		}
		return ""
	})
	if len(r.Devices) != 24*8 || len(r.Samples) != 24*8 || len(r.Troubles) > 0 {
		t.Errorf("%d devices, %d samples, troubles %+v", len(r.Devices), len(r.Samples), r.Troubles)
	}
	for i := range r.Samples {
		whole := r.Samples[i].Entity.Kind == gpu.KindGPU
		for j, onCard := range []bool{true, false, false} {
			v := r.Samples[i].Values[j]
			if v.Present() != (whole == onCard) || !v.Present() && v.Reason() != gpu.ReasonScope {
				t.Fatalf("field %d of %+v is %+v", r.Fields[j], r.Samples[i].Entity, v)
			}
		}
	}
	m.state("few groups", func(s dcgmsim.State) bool { return s.Groups == 24 })
}

func TestProfilesAreNamedAsTheDriverDoes(t *testing.T) {
	for _, tc := range []struct {
		cardMiB, memorySlices, instanceMiB, compute, part int
		memory                                            int
		name                                              string
	}{
		{40960, 8, 4864, 1, 1, 1, "1g.5gb"},
		{40960, 8, 9856, 2, 2, 2, "2g.10gb"},
		{40960, 8, 19968, 3, 3, 4, "3g.20gb"},
		{40960, 8, 40192, 7, 7, 8, "7g.40gb"},
		{81559, 8, 9984, 1, 1, 1, "1g.10gb"},
		{81559, 8, 19968, 1, 1, 2, "1g.20gb"},
		{81559, 8, 40448, 3, 1, 4, "1c.3g.40gb"},
		{143771, 8, 16384, 1, 1, 1, "1g.18gb"},
		{24576, 4, 5952, 1, 1, 1, "1g.6gb"},
		{24576, 4, 11968, 2, 2, 2, "2g.12gb"},
		{0, 8, 9984, 1, 1, 0, "1g"},
		{81559, 8, 0, 2, 2, 0, "2g"},
	} {
		p := gpu.Profile{Slices: gpu.Slices{Compute: tc.compute}, ComputeInstanceSlices: tc.part}
		p.Memory = memorySlices(tc.instanceMiB, tc.cardMiB, tc.memorySlices)
		if name := nameOf(p, tc.cardMiB, tc.memorySlices); p.Memory != tc.memory || name != tc.name {
			t.Errorf("%d of %d MiB are %d memory slices, %q; want %d, %q", tc.instanceMiB, tc.cardMiB, p.Memory, name, tc.memory, tc.name)
		}
	}
}

// Whatever the hierarchy says, each instance is its GPU's, in order, and never twice.
func TestAnyHierarchyIsSortedByGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pairs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) migEntity {
			kind := rapid.SampledFrom([]entityGroup{groupGPUInstance, groupComputeInstance, groupGPU}).Draw(t, "kind")
			parent := rapid.SampledFrom([]entityGroup{groupGPU, groupGPUInstance}).Draw(t, "parent kind")
			return migEntity{
				entity:      entity{kind, rapid.Uint32Range(0, 12).Draw(t, "id")},
				parent:      entity{parent, rapid.Uint32Range(0, 12).Draw(t, "parent")},
				gpuInstance: rapid.IntRange(-1, 14).Draw(t, "gi"), computeInstance: rapid.IntRange(-1, 7).Draw(t, "ci"),
			}
		}), 0, 40).Draw(t, "hierarchy")
		for id, list := range instancesOf(pairs) {
			if !slices.IsSortedFunc(list, func(a, b instance) int { return a.nvml - b.nvml }) {
				t.Fatalf("GPU %d: %+v", id, list)
			}
			for _, i := range list {
				if len(i.parts) == 0 {
					t.Fatalf("nothing can run on instance %d of GPU %d", i.id, id)
				}
				child := func(e migEntity) bool {
					return e.entity == entity{groupGPUInstance, uint32(i.id)} && e.parent == entity{groupGPU, id}
				}
				if !slices.ContainsFunc(pairs, child) {
					t.Fatalf("instance %d is not of GPU %d", i.id, id)
				}
			}
		}
	})
}
