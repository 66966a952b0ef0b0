// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func benchmarkNode(b *testing.B, devices []gpu.Device, units []gpu.UUID) {
	var advertised []Advertised
	var allocations []Allocation
	for i, u := range units {
		advertised = append(advertised, replicas("nvidia.com/gpu.shared", u, 4)...)
		for r := range 4 {
			allocations = append(allocations, since(held(fmt.Sprintf("pod-%d-%d", i, r), fmt.Sprintf("%s::%d", u, r)), i))
		}
	}
	s := story{devices: devices, advertised: advertised, allocations: allocations, policy: policy(b, "blend")}.situation()
	d := Attribute(s)
	if err := d.Check(devices); err != nil || len(d.Shares) != 4*len(units) {
		b.Fatalf("%d shares, %v", len(d.Shares), err)
	}
	b.ReportAllocs()
	for b.Loop() {
		Attribute(s)
	}
}

func BenchmarkAttribute8x4(b *testing.B) {
	var devices []gpu.Device
	var units []gpu.UUID
	for i := range 8 {
		d := h100(gpu.UUID(fmt.Sprintf("GPU-6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa%04d", i)), i)
		devices, units = append(devices, d), append(units, d.UUID)
	}
	benchmarkNode(b, devices, units)
}

func BenchmarkAttribute8x7x4(b *testing.B) {
	var devices []gpu.Device
	var units []gpu.UUID
	for i := range 8 {
		var places []place
		for start := range 7 {
			places = append(places, place{profile: "1g.10gb", start: start})
		}
		node := cut(h100(gpu.UUID(fmt.Sprintf("GPU-6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa%04d", i)), i), places...)
		devices = append(devices, node...)
		for _, d := range node[1:] {
			units = append(units, d.UUID)
		}
	}
	benchmarkNode(b, devices, units)
}
