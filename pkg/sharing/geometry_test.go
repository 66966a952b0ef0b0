// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The cards of the tests, with the geometry that their drivers state.

func profile(name string, compute, memory, sms, limit int, starts ...int) gpu.MIGProfile {
	return gpu.MIGProfile{
		Name: name, Slices: gpu.Slices{Compute: compute, Memory: memory, SMs: sms},
		Max: limit, Starts: starts, Size: memory,
	}
}

// once is p as the only one on the card among the profiles with the same unit.
func once(p gpu.MIGProfile, suffix, unit string) gpu.MIGProfile {
	p.Name += suffix
	p.Exclusive = unit
	if unit != "" {
		p.Max = 1
	}
	return p
}

func card(uuid gpu.UUID, index int) gpu.Device {
	return gpu.Device{
		UUID: uuid, Index: index, Minor: index, PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x18+index),
		Model: "NVIDIA Test GPU", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
	}
}

func sevenSlices(uuid gpu.UUID, index int, names [6]string, sms [6]int) gpu.Device {
	d := card(uuid, index)
	d.Capacity = gpu.Slices{Compute: 7, Memory: 8, SMs: sms[5]}
	small := profile(names[0], 1, 1, sms[0], 7, 0, 1, 2, 3, 4, 5, 6)
	d.MIGProfiles = []gpu.MIGProfile{
		small,
		once(small, "+me", "me"),
		profile(names[1], 1, 2, sms[1], 4, 0, 2, 4, 6),
		profile(names[2], 2, 2, sms[2], 3, 0, 2, 4),
		profile(names[3], 3, 4, sms[3], 2, 0, 4),
		profile(names[4], 4, 4, sms[4], 1, 0),
		profile(names[5], 7, 8, sms[5], 1, 0),
	}
	return d
}

func a100x40(uuid gpu.UUID, index int) gpu.Device {
	return sevenSlices(uuid, index,
		[6]string{"1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}, [6]int{14, 14, 28, 42, 56, 98})
}

func a100x80(uuid gpu.UUID, index int) gpu.Device {
	return sevenSlices(uuid, index,
		[6]string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}, [6]int{14, 14, 28, 42, 56, 98})
}

func h100(uuid gpu.UUID, index int) gpu.Device {
	return sevenSlices(uuid, index,
		[6]string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}, [6]int{16, 26, 32, 60, 64, 132})
}

func a30(uuid gpu.UUID, index int) gpu.Device {
	d := card(uuid, index)
	d.Capacity = gpu.Slices{Compute: 4, Memory: 4, SMs: 56}
	one, two := profile("1g.6gb", 1, 1, 14, 4, 0, 1, 2, 3), profile("2g.12gb", 2, 2, 28, 2, 0, 2)
	d.MIGProfiles = []gpu.MIGProfile{
		one, once(one, "+me", "me"), two, once(two, "+me", "me"), profile("4g.24gb", 4, 4, 56, 1, 0),
	}
	return d
}

func rtxPro6000(uuid gpu.UUID, index int) gpu.Device {
	d := card(uuid, index)
	d.Capacity = gpu.Slices{Compute: 4, Memory: 4, SMs: 188}
	one, two := profile("1g.24gb", 1, 1, 46, 4, 0, 1, 2, 3), profile("2g.48gb", 2, 2, 94, 2, 0, 2)
	four := profile("4g.96gb", 4, 4, 188, 1, 0)
	d.MIGProfiles = []gpu.MIGProfile{
		one, once(one, "+me", "me"), once(one, "+gfx", ""), once(one, "+me.all", "me"), once(one, "-me", ""),
		two, once(two, "+gfx", ""), once(two, "+me.all", "me"), once(two, "-me", ""),
		four, once(four, "+gfx", ""),
	}
	return d
}

// plain has no MIG.
func plain(uuid gpu.UUID, index int) gpu.Device { return card(uuid, index) }

// migDevice is a MIG device on the GPU instance gi of card, which begins at a memory
// slice; its compute instance has so many compute slices, 0 for all.
func migDevice(uuid gpu.UUID, parent gpu.Device, profileName string, gi, start, slices int) gpu.Device {
	for _, p := range parent.MIGProfiles {
		if p.Name != profileName {
			continue
		}
		f := gpu.Profile{Name: p.Name, Slices: p.Slices, ComputeInstanceSlices: p.Compute, ComputeInstanceSMs: p.SMs}
		if slices > 0 && slices < p.Compute {
			f.Name = fmt.Sprintf("%dc.%s", slices, p.Name)
			f.ComputeInstanceSlices, f.ComputeInstanceSMs = slices, p.SMs*slices/p.Compute
		}
		return gpu.Device{
			UUID: uuid, Parent: parent.UUID, Index: parent.Index, Minor: parent.Minor, PCIBusID: parent.PCIBusID,
			Model: parent.Model, GPUInstance: gi, Profile: f, Placement: gpu.Placement{Start: start, Size: p.Size},
		}
	}
	panic("no profile " + profileName)
}

// cut is a card in MIG mode with its MIG devices, one for each "profile@start"; the
// GPU instances count from 1.
func cut(parent gpu.Device, places ...place) []gpu.Device {
	parent.MIGEnabled = true
	devices := []gpu.Device{parent}
	for i, p := range places {
		uuid := gpu.UUID(fmt.Sprintf("MIG-%s-%d", parent.UUID[len("GPU-"):], i+1))
		devices = append(devices, migDevice(uuid, parent, p.profile, i+1, p.start, p.slices))
	}
	return devices
}

type place struct {
	profile       string
	start, slices int
}

func pod(name string) Holder { return Holder{Namespace: "team", Pod: name, Container: "main"} }

func held(name, id string) Allocation {
	return Allocation{Holder: pod(name), Resource: "nvidia.com/gpu", DeviceID: id}
}

// replicas are n advertised replicas of a device.
func replicas(resource string, device gpu.UUID, n int) []Advertised {
	list := make([]Advertised, n)
	for i := range list {
		list[i] = Advertised{Resource: resource, DeviceID: fmt.Sprintf("%s::%d", device, i)}
	}
	return list
}
