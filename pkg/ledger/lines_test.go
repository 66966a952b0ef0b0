// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// dividedNode is a node of two cards, one whole and shared by seats, one of two MIG devices of which one is
// shared and one is not held, divided in time and in memory.
func dividedNode() ([]gpu.Device, sharing.Division, sharing.Division) {
	slices := gpu.Slices{Compute: 7, Memory: 8}
	devices := []gpu.Device{
		{UUID: "GPU-0", Index: 0, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance},
		{UUID: "GPU-1", Index: 1, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, MIGEnabled: true, Capacity: slices},
	}
	for i, p := range []gpu.Profile{
		{Name: "3g.40gb", Slices: gpu.Slices{Compute: 3, Memory: 4}, ComputeInstanceSlices: 3},
		{Name: "2g.20gb", Slices: gpu.Slices{Compute: 2, Memory: 2}, ComputeInstanceSlices: 2},
	} {
		devices = append(devices, gpu.Device{
			UUID: gpu.UUID(fmt.Sprintf("MIG-%d", i)), Parent: "GPU-1", Index: 1, GPUInstance: i + 1, Profile: p,
		})
	}
	var advertised []sharing.Advertised
	for i := range 4 {
		advertised = append(advertised, sharing.Advertised{Resource: "nvidia.com/gpu", DeviceID: fmt.Sprintf("GPU-0::%d", i)},
			sharing.Advertised{Resource: "nvidia.com/mig-3g.40gb", DeviceID: fmt.Sprintf("MIG-0::%d", i)})
	}
	s := sharing.Situation{
		Devices: devices, Observed: true,
		Seats: sharing.Seats{}.Observe(time.Unix(0, 0), sharing.NewIndex(devices), advertised),
		Allocations: []sharing.Allocation{
			{Holder: pod("p"), Resource: "nvidia.com/gpu", DeviceID: "GPU-0::1"},
			{Holder: pod("q"), Resource: "nvidia.com/mig-3g.40gb", DeviceID: "MIG-0::2"},
		},
	}
	inTime := sharing.Attribute(s)
	memory, err := sharing.ParsePolicy("memory")
	if err != nil {
		return nil, sharing.Division{}, sharing.Division{}
	}
	s.Policy = memory
	return devices, inTime, sharing.Attribute(s)
}

func TestLinesJoinTimeAndMemory(t *testing.T) {
	devices, inTime, memory := dividedNode()
	weights := map[gpu.UUID]sharing.Fraction{"MIG-0": fraction(13, 28), "MIG-1": fraction(15, 56)}
	sums := map[gpu.UUID]Amount{}
	held := map[string]string{}
	for _, l := range Lines(devices, weights, inTime, memory) {
		sums[l.Card] = sums[l.Card].plus(Amount{GPU: l.Part, Memory: l.Memory})
		if l.Cause == "" {
			held[l.Holder.Pod] = fmt.Sprintf("%s %d %s %d/%d of %s: %s %s", l.Device, l.GPUInstance, l.Profile, l.Seats, l.Of, l.Weight, l.Part, l.Memory)
		}
		if l.Cause != "" && l.Device == "MIG-1" && (!l.Weight.Equal(weights["MIG-1"]) || l.GPUInstance != 2 || l.Profile != "2g.20gb") {
			t.Errorf("%+v", l)
		}
	}
	for card, sum := range sums {
		if !sum.GPU.IsOne() || !sum.Memory.IsOne() {
			t.Errorf("the lines of %s add up to %s and %s", card, sum.GPU, sum.Memory)
		}
	}
	if len(sums) != 2 {
		t.Errorf("%d cards", len(sums))
	}
	for name, want := range map[string]string{
		"p": "GPU-0 -1  1/4 of 1: 1/4 1/4",
		"q": "MIG-0 1 3g.40gb 1/4 of 13/28: 13/112 1/8",
	} {
		if held[name] != want {
			t.Errorf("%s holds %q, want %q", name, held[name], want)
		}
	}
}

func TestAPartThatOnlyOneOfTheDivisionsHasIsALineToo(t *testing.T) {
	share := sharing.Share{Card: "GPU-0", Device: "GPU-0", Holder: pod("p"), Mode: sharing.ModeExclusive, Seats: 1, Of: 1, Weight: sharing.One(), Part: sharing.One()}
	inTime := sharing.Division{Shares: []sharing.Share{share}}
	memory := sharing.Division{Unallocated: []sharing.Unallocated{
		{Card: "GPU-0", Cause: sharing.CauseFree, Part: fraction(1, 4)},
		{Card: "GPU-0", Device: "MIG-0", Cause: sharing.CauseUnattributed, Holder: pod("p"), Part: fraction(3, 4)},
	}}
	lines := Lines(nil, nil, inTime, memory)
	if len(lines) != 3 {
		t.Fatalf("%+v", lines)
	}
	var part, ofMemory sharing.Fraction
	for _, l := range lines {
		part, ofMemory = part.Add(l.Part), ofMemory.Add(l.Memory)
	}
	if !part.IsOne() || !ofMemory.IsOne() || !lines[0].Memory.IsZero() {
		t.Errorf("%+v", lines)
	}
}
