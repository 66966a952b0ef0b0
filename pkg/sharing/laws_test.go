// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

// drawNode is a node as odd as nodes get: cards of every geometry, some of which
// say less than they should, in and out of MIG mode, with layouts that are legal
// but for a driver that lies now and then.
func drawNode(t *rapid.T) []gpu.Device {
	kinds := []func(gpu.UUID, int) gpu.Device{a30, a100x40, a100x80, h100, rtxPro6000, plain}
	var devices []gpu.Device
	for i := range rapid.IntRange(1, 3).Draw(t, "cards") {
		c := rapid.SampledFrom(kinds).Draw(t, "kind")(gpu.UUID(fmt.Sprintf("GPU-%d", i)), i)
		c.Lost = rapid.IntRange(0, 9).Draw(t, "lost") == 0
		if len(c.MIGProfiles) == 0 || rapid.Bool().Draw(t, "whole") {
			devices = append(devices, c)
			continue
		}
		node := splitInstances(t, cut(c, drawLayout(t, c).placed...))
		switch rapid.IntRange(0, 9).Draw(t, "oddity") {
		case 0:
			node[0].Capacity = gpu.Slices{}
		case 1:
			node[0].Capacity.SMs = 0
		case 2:
			node[0].MIGProfiles = nil
		case 3:
			for i := range node[1:] {
				node[1+i].Placement = gpu.Placement{}
			}
		case 4:
			lie := migDevice(gpu.UUID(fmt.Sprintf("MIG-%d-lie", i)), c, rapid.SampledFrom(c.MIGProfiles).Draw(t, "lie").Name, 77, 0, 0)
			node = append(node, lie)
		case 5:
			for i := range node[1:] {
				if rapid.Bool().Draw(t, "blank") {
					node[1+i].Profile.Slices = gpu.Slices{}
				}
			}
		}
		devices = append(devices, node...)
	}
	return devices
}

// splitInstances cuts some GPU instances into compute instances.
func splitInstances(t *rapid.T, node []gpu.Device) []gpu.Device {
	for _, d := range slices.Clone(node[1:]) {
		if d.Profile.Compute < 2 || !rapid.Bool().Draw(t, "split") {
			continue
		}
		left := d.Profile.Compute
		node = slices.DeleteFunc(node, func(other gpu.Device) bool { return other.UUID == d.UUID })
		for ci := 0; left > 0 && rapid.IntRange(0, 4).Draw(t, "more") > 0; ci++ {
			slices := rapid.IntRange(1, left).Draw(t, "slices")
			part := migDevice(d.UUID+gpu.UUID(fmt.Sprintf("-%d", ci)), node[0], d.Profile.Name, d.GPUInstance, d.Placement.Start, slices)
			part.ComputeInstance = ci
			node = append(node, part)
			left -= slices
		}
	}
	return node
}

func drawAllocation(t *rapid.T, devices []gpu.Device) Allocation {
	d := rapid.SampledFrom(devices).Draw(t, "device")
	n := rapid.IntRange(0, 4).Draw(t, "replica")
	id := rapid.OneOf(
		rapid.SampledFrom([]string{
			string(d.UUID), fmt.Sprintf("%s::%d", d.UUID, n), fmt.Sprintf("%s::%d", d.UUID, n), fmt.Sprintf("nvidia%d", d.Minor),
			fmt.Sprintf("nvidia%d/vgpu%d", d.Minor, n), fmt.Sprintf("nvidia%d/gi%d/vgpu%d", d.Minor, d.GPUInstance, n),
			fmt.Sprintf("MIG-%s/%d/%d", d.Card(), d.GPUInstance, d.ComputeInstance), d.PCIBusID,
		}),
		rapid.SampledFrom([]string{"", "tegra", "GPU-gone", "GPU-0::x", "MIG-GPU-0/1", "nvidia-1"}),
	).Draw(t, "id")
	a := Allocation{
		Holder: Holder{
			Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"),
			Pod:       rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "pod"),
			Container: rapid.SampledFrom([]string{"main", "side"}).Draw(t, "container"),
			PodUID:    rapid.SampledFrom([]string{"", "", "1", "2"}).Draw(t, "uid"),
		},
		Resource: rapid.SampledFrom([]string{"nvidia.com/gpu", "nvidia.com/gpu.shared"}).Draw(t, "resource"),
		DeviceID: id,
		Terminal: rapid.IntRange(0, 5).Draw(t, "terminal") == 0,
	}
	if n := rapid.IntRange(0, 2).Draw(t, "since"); n > 0 {
		a.Since = noon.Add(time.Duration(n) * time.Minute)
	}
	if rapid.IntRange(0, 30).Draw(t, "claimed") == 0 {
		a.Claim = "a/claim"
	}
	return a
}

func drawPolicy(t *rapid.T, devices []gpu.Device) Policy {
	switch name := rapid.SampledFrom([]string{"blend", "compute", "memory", "sm", "table", "zero"}).Draw(t, "policy"); name {
	case "zero":
		return Policy{}
	case "table":
		// A table that nobody validated.
		weights := map[string]Fraction{"1g.10gb": NewFraction(1, 3)}
		for _, d := range devices {
			for _, p := range d.MIGProfiles {
				if rapid.IntRange(0, 5).Draw(t, "lacking") > 0 {
					weights[p.Name] = NewFraction(int64(rapid.IntRange(1, 20).Draw(t, "weight")), 20)
				}
			}
		}
		p, err := NewTablePolicy(weights)
		if err != nil {
			t.Fatal(err)
		}
		return p
	default:
		p, err := ParsePolicy(name)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

func drawSituation(t *rapid.T) Situation {
	devices := drawNode(t)
	s := Situation{Devices: devices, Observed: rapid.IntRange(0, 20).Draw(t, "observed") > 0, Policy: drawPolicy(t, devices), Unhealthy: map[gpu.UUID]bool{}}
	for range rapid.IntRange(0, 25).Draw(t, "allocations") {
		s.Allocations = append(s.Allocations, drawAllocation(t, devices))
	}
	var advertised []Advertised
	for _, d := range devices {
		if rapid.Bool().Draw(t, "replicated") {
			advertised = append(advertised, replicas("nvidia.com/gpu", d.UUID, rapid.IntRange(0, 5).Draw(t, "replicas"))...)
		}
		if rapid.IntRange(0, 6).Draw(t, "unhealthy") == 0 {
			s.Unhealthy[d.UUID] = true
		}
	}
	s.Seats = s.Seats.Observe(noon, NewIndex(devices), advertised)
	return s
}

// Law 1. For every physical GPU: held + free + unrequested + stranded + unhealthy +
// unobserved + unattributed = 1, exactly.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		d := Attribute(s)
		if err := d.Check(s.Devices); err != nil {
			t.Fatal(err)
		}
		for _, share := range d.Shares {
			if share.Part.Sign() <= 0 || share.Seats < 1 || share.Seats > share.Of || !share.Part.Equal(share.Weight.Scale(share.Seats, share.Of)) {
				t.Fatalf("impossible share %+v", share)
			}
		}
		for _, u := range d.Unallocated {
			if u.Part.IsZero() && u.Holder == (Holder{}) {
				t.Fatalf("nothing is unallocated: %+v", u)
			}
		}
	})
}

func TestEveryLiveAllocationIsAccountedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		s.Observed = true
		d := Attribute(s)
		ix := NewIndex(s.Devices)
		for _, a := range s.Allocations {
			var card gpu.UUID
			if id, err := ParseID(a.DeviceID); err == nil && a.Claim == "" {
				if device, reason := ix.Resolve(id); reason == "" {
					card = device.Card()
				}
			}
			found := slices.ContainsFunc(d.Shares, func(x Share) bool { return x.Card == card && x.Holder.samePod(a.Holder) }) ||
				slices.ContainsFunc(d.Unallocated, func(x Unallocated) bool { return x.Card == card && x.Holder.samePod(a.Holder) }) ||
				slices.ContainsFunc(d.Conflicts, func(x Conflict) bool { return x.Card == card && x.Loser.samePod(a.Holder) })
			if card == "" {
				found = slices.ContainsFunc(d.Unmatched, func(x Unmatched) bool { return x.Allocation == a && x.Reason != "" })
			}
			if !found && (!a.Terminal || card == "") {
				t.Fatalf("%+v is nowhere in %v", a, tell(d))
			}
		}
	})
}

func TestTheOrderOfTheInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		want := Attribute(s)
		s.Devices = rapid.Permutation(s.Devices).Draw(t, "devices")
		s.Allocations = permuteByPod(t, s.Allocations)
		if diff := cmp.Diff(want, Attribute(s)); diff != "" {
			t.Fatalf("another order (-first +second):\n%s", diff)
		}
	})
}

// permuteByPod changes the order of allocations, but for the order within a pod:
// of a pod's containers the last listed counts.
func permuteByPod(t *rapid.T, list []Allocation) []Allocation {
	type key struct{ namespace, pod, uid string }
	of := func(a Allocation) key { return key{a.Holder.Namespace, a.Holder.Pod, a.Holder.PodUID} }
	queues := make(map[key][]Allocation)
	for _, a := range list {
		queues[of(a)] = append(queues[of(a)], a)
	}
	var out []Allocation
	for _, a := range rapid.Permutation(list).Draw(t, "allocations") {
		queue := queues[of(a)]
		out = append(out, queue[0])
		queues[of(a)] = queue[1:]
	}
	return out
}

func TestTheInputIsNotModified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		devices, allocations := slices.Clone(s.Devices), slices.Clone(s.Allocations)
		first := Attribute(s)
		if diff := cmp.Diff(devices, s.Devices) + cmp.Diff(allocations, s.Allocations); diff != "" {
			t.Fatalf("the situation changed:\n%s", diff)
		}
		if diff := cmp.Diff(first, Attribute(s)); diff != "" {
			t.Fatalf("a second time (-first +second):\n%s", diff)
		}
	})
}

func TestTheResourceChangesNoPart(t *testing.T) {
	type key struct {
		device gpu.UUID
		holder Holder
	}
	parts := func(d Division) map[key]string {
		sums := make(map[key]Fraction)
		for _, s := range d.Shares {
			k := key{s.Device, s.Holder}
			sums[k] = sums[k].Add(s.Part)
		}
		texts := make(map[key]string)
		for k, f := range sums {
			texts[k] = f.String()
		}
		return texts
	}
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		before := Attribute(s)
		s.Allocations = slices.Clone(s.Allocations)
		for i := range s.Allocations {
			s.Allocations[i].Resource = "example.com/renamed"
		}
		after := Attribute(s)
		if !maps.Equal(parts(before), parts(after)) {
			t.Fatalf("renamed: %v became %v", tell(before), tell(after))
		}
		if diff := cmp.Diff(before.Unallocated, after.Unallocated) + cmp.Diff(before.Conflicts, after.Conflicts); diff != "" {
			t.Fatalf("renamed (-before +after):\n%s", diff)
		}
	})
}

func TestEndedPodsChangeNoPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t)
		before := Attribute(s)
		s.Allocations = slices.DeleteFunc(slices.Clone(s.Allocations), func(a Allocation) bool { return a.Terminal })
		after := Attribute(s)
		if diff := cmp.Diff(before.Shares, after.Shares) + cmp.Diff(before.Unallocated, after.Unallocated); diff != "" {
			t.Fatalf("without the ended pods (-with +without):\n%s", diff)
		}
	})
}

func TestAHolderOfAFreeSeatChangesNobodyElsesPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := drawNode(t)
		d := rapid.SampledFrom(devices).Draw(t, "shared device")
		if slices.ContainsFunc(devices, func(mig gpu.Device) bool { return mig.Parent == d.UUID }) {
			t.Skip("a GPU with MIG devices is not shared itself")
		}
		of := rapid.IntRange(1, 8).Draw(t, "replicas")
		s := Situation{Devices: devices, Observed: true, Policy: drawPolicy(t, devices)}
		s.Seats = s.Seats.Observe(noon, NewIndex(devices), replicas("nvidia.com/gpu", d.UUID, of))
		free := rapid.IntRange(0, of-1).Draw(t, "free seat")
		for n := range of {
			if n != free && rapid.Bool().Draw(t, "held") {
				s.Allocations = append(s.Allocations, held(rapid.SampledFrom([]string{"p", "q"}).Draw(t, "pod"), fmt.Sprintf("%s::%d", d.UUID, n)))
			}
		}
		before := Attribute(s)
		s.Allocations = append(s.Allocations, held("new", fmt.Sprintf("%s::%d", d.UUID, free)))
		after := Attribute(s)
		others := slices.DeleteFunc(slices.Clone(after.Shares), func(x Share) bool { return x.Holder == pod("new") })
		if len(others) == 0 {
			others = nil
		}
		if diff := cmp.Diff(before.Shares, others); diff != "" {
			t.Fatalf("the others (-before +after):\n%s", diff)
		}
	})
}

func FuzzAttributeSituations(f *testing.F) {
	f.Add([]byte("GPU-0::1"))
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		s := drawSituation(t)
		if err := Attribute(s).Check(s.Devices); err != nil {
			t.Fatal(err)
		}
	}))
}
