// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const replicaMark = "::"

// ParseID takes apart what the kubelet calls a device: the UUID, and of "UUID::n" the replica.
// What follows the mark and is no number counts as replica 0, as it does for NVIDIA's plugin.
func ParseID(id string) (device gpu.UUID, replica int, shared bool) {
	name, number, shared := strings.Cut(id, replicaMark)
	if n, err := strconv.ParseUint(number, 10, 31); err == nil {
		replica = int(n)
	}
	return gpu.UUID(name), replica, shared
}

// seatsOf are the seats of one device with so many replicas.
func seatsOf(device gpu.UUID, replicas int) []Seat {
	if replicas <= 1 {
		return []Seat{{ID: string(device), Device: device}}
	}
	seats := make([]Seat, replicas)
	for n := range seats {
		seats[n] = Seat{ID: string(device) + replicaMark + strconv.Itoa(n), Device: device, Replica: n}
	}
	return seats
}
