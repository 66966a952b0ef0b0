// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// addMPS lets the container reach the resource's control daemon, and holds it to its shares.
func (a *Allocator) addMPS(r *Response, shares []share) {
	shared := slices.ContainsFunc(shares, func(s share) bool { return s.seats > 1 })
	if a.resource.Sharing != SharingMPS || !shared {
		return
	}
	pipe := path.Join("/mps", a.resource.Name, "pipe")
	r.setEnv("CUDA_MPS_PIPE_DIRECTORY", pipe)
	r.Mounts = append(r.Mounts,
		Mount{Host: path.Join(a.settings.MPSRoot, a.resource.Name, "pipe"), Container: pipe},
		Mount{Host: path.Join(a.settings.MPSRoot, "shm"), Container: "/dev/shm"},
	)
	// There is one percentage for all devices of a client: the smallest share keeps within each.
	percent := 100
	var limits []string
	for i, s := range shares {
		percent = min(percent, percentOf(s.taken, s.seats))
		if s.seats > 1 && s.MemoryBytes > 0 {
			limits = append(limits, fmt.Sprintf("%d=%dM", i, mebibytesOf(s.MemoryBytes, s.taken, s.seats)))
		}
	}
	r.setEnv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", strconv.Itoa(percent))
	if len(limits) > 0 {
		r.setEnv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", strings.Join(limits, ","))
	}
}

// percentOf is the percentage of a GPU's threads for some of its seats.
func percentOf(taken, seats int) int { return max(1, 100*taken/seats) }

// mebibytesOf is the device memory for some of its seats, in MiB.
func mebibytesOf(bytes uint64, taken, seats int) uint64 {
	return bytes / uint64(seats) * uint64(taken) >> 20
}

// MPSDaemon is what the control daemon of a resource shared by MPS gives its clients where their
// environment does not ask for less.
type MPSDaemon struct {
	// Resource is the full name.
	Resource string
	// Devices are those that the resource shares, in the order of the inventory. One that it
	// hands out whole is used without the daemon.
	Devices []MPSDevice
	// ThreadPercent is the active thread percentage, 1 to 100.
	ThreadPercent int
}

// MPSDevice is one GPU of a daemon.
type MPSDevice struct {
	UUID gpu.UUID
	// MemoryMiB is the limit of pinned device memory, 0 where the GPU's size is not known.
	MemoryMiB uint64
}

// MPSDaemons are the daemons that a plan needs, in its order. The environment of a client can only
// lower what its daemon gives. Where a container may have more than one replica, the daemon
// therefore gives all, and what Allocate answers holds each container to its share; where it may
// have one only, the daemon gives just that, also to a container that drops the environment.
func MPSDaemons(inv Inventory, s Settings, p Plan) []MPSDaemon {
	var daemons []MPSDaemon
	for _, r := range p.Resources {
		if r.Sharing != SharingMPS {
			continue
		}
		seats := make(map[gpu.UUID]int)
		for _, seat := range r.Seats {
			seats[seat.Device]++
		}
		d := MPSDaemon{Resource: r.Name, ThreadPercent: 1}
		for i := range inv.Devices {
			device := &inv.Devices[i]
			n := seats[device.UUID]
			if n < 2 {
				continue
			}
			delete(seats, device.UUID)
			if !s.FailRequestsGreaterThanOne {
				n = 1
			}
			d.Devices = append(d.Devices, MPSDevice{UUID: device.UUID, MemoryMiB: mebibytesOf(device.MemoryBytes, 1, n)})
			d.ThreadPercent = max(d.ThreadPercent, percentOf(1, n))
		}
		if len(d.Devices) > 0 {
			daemons = append(daemons, d)
		}
	}
	return daemons
}
