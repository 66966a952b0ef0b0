// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// rack builds pretend inventories.
type rack struct{ Inventory }

// gpus adds n GPUs.
func (r *rack) gpus(n int) *rack {
	for range n {
		i := len(r.cards())
		r.Devices = append(r.Devices, Device{
			Device: gpu.Device{
				UUID: card(i), Index: i, Minor: i, PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 16+i), Model: "NVIDIA H100 80GB HBM3",
				GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
			},
			NUMANode: -1, Nodes: []string{fmt.Sprintf("/dev/nvidia%d", i)}, MemoryBytes: 80 << 30, ComputeCapability: "9.0",
		})
	}
	return r
}

// cut puts the last GPU into MIG mode, with instances of these profiles.
func (r *rack) cut(profiles ...string) *rack {
	last := r.cards()[len(r.cards())-1]
	last.MIGEnabled = true
	whole := *last
	for n, profile := range profiles {
		d := whole
		d.Device.UUID = part(whole.Index, n)
		d.Parent, d.MIGEnabled = whole.UUID, false
		d.GPUInstance, d.ComputeInstance = n+1, 0
		d.Profile = gpu.Profile{Name: profile, Slices: gpu.Slices{Compute: 1, Memory: 1}, ComputeInstanceSlices: 1}
		d.Nodes = append(d.Nodes[:1:1], fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", 10*whole.Minor+n))
		d.MemoryBytes = 10 << 30
		r.Devices = append(r.Devices, d)
	}
	return r
}

func (r *rack) cards() []*Device {
	var cards []*Device
	for i := range r.Devices {
		if !r.Devices[i].IsMIG() {
			cards = append(cards, &r.Devices[i])
		}
	}
	return cards
}

func card(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)) }

func part(i, n int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("MIG-%08d-%04d-0000-0000-000000000000", i, n))
}

// slots are so many of the same profile.
func slots(n int, profile string) []string {
	profiles := make([]string, n)
	for i := range profiles {
		profiles[i] = profile
	}
	return profiles
}

// shareAll is a setting that shares all devices of a resource.
func shareAll(s Settings, how Sharing, resource string, replicas int) Settings {
	s.Sharing = how
	s.SharedResources = append(s.SharedResources, SharedResource{Name: resource, All: true, Replicas: replicas})
	return s
}
