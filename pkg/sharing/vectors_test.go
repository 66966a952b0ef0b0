// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The vectors keep the names they have in the collection of other systems' defects.

func TestVectorsOfSharing(t *testing.T) {
	a, b := plain("GPU-a", 0), plain("GPU-b", 1)
	four := append(replicas("nvidia.com/gpu", "GPU-a", 4), replicas("nvidia.com/gpu", "GPU-b", 4)...)
	slice := cut(h100("GPU-a", 0), place{profile: "1g.10gb", start: 0})
	runStories(t, []story{
		{
			name: "T1", devices: []gpu.Device{a}, advertised: four[:4],
			allocations: []Allocation{held("p1", "GPU-a::0"), held("p2", "GPU-a::1")},
			want: []string{
				"GPU-a p1 shared 1/4 seats [0] of 4",
				"GPU-a p2 shared 1/4 seats [1] of 4",
				"GPU-a unrequested 1/2",
			},
		},
		{
			name: "T2", devices: []gpu.Device{a, b}, advertised: four,
			allocations: []Allocation{held("p1", "GPU-a::0"), held("p1", "GPU-b::1"), held("p1", "GPU-a::3")},
			want: []string{
				"GPU-a p1 shared 1/2 seats [0 3] of 4",
				"GPU-b p1 shared 1/4 seats [1] of 4",
				"GPU-a unrequested 1/2",
				"GPU-b unrequested 3/4",
			},
		},
		{
			name: "T3", devices: slice, advertised: replicas("nvidia.com/mig-1g.10gb", "MIG-a-1", 2),
			allocations: []Allocation{held("p1", "MIG-a-1::0"), held("p2", "MIG-a-1::1")},
			want: []string{
				"MIG-a-1 p1 mig-shared 15/224 seats [0] of 2",
				"MIG-a-1 p2 mig-shared 15/224 seats [1] of 2",
				"GPU-a free 97/112",
			},
		},
		{
			name: "T4", devices: cut(h100("GPU-5c1f", 0), place{profile: "7g.80gb", start: 0}),
			allocations: []Allocation{held("p1", "MIG-GPU-5c1f/1/0")},
			want:        []string{"MIG-5c1f-1 p1 mig 1"},
		},
		{
			name: "T7", devices: []gpu.Device{a},
			allocations: []Allocation{ended(held("p1", "GPU-a")), held("p2", "GPU-a")},
			want:        []string{"GPU-a p2 exclusive 1", "GPU-a conflict exclusive: p1 loses to p2"},
		},
		{
			name: "T7 in the other order", devices: []gpu.Device{a},
			allocations: []Allocation{held("p2", "GPU-a"), ended(held("p1", "GPU-a"))},
			want:        []string{"GPU-a p2 exclusive 1", "GPU-a conflict exclusive: p1 loses to p2"},
		},
	})
}

func TestVectorsOfAccounting(t *testing.T) {
	a := plain("GPU-a", 0)
	quarters := []string{
		"GPU-a p0 shared 1/4 seats [0] of 4", "GPU-a p1 shared 1/4 seats [1] of 4",
		"GPU-a p2 shared 1/4 seats [2] of 4", "GPU-a p3 shared 1/4 seats [3] of 4",
	}
	each := func(resource, format string, n int) []Allocation {
		var list []Allocation
		for i := range n {
			list = append(list, as(held(fmt.Sprintf("p%d", i), fmt.Sprintf(format, i)), resource))
		}
		return list
	}
	eight := replicas("nvidia.com/gpu.shared", "GPU-a", 8)
	fifty := replicas("nvidia.com/gpu", "GPU-a", 50)
	two := cut(h100("GPU-a", 2), place{profile: "3g.40gb", start: 4}, place{profile: "2g.20gb", start: 0})
	odd := cut(h100("GPU-a", 0), place{profile: "7g.80gb", start: 0})
	odd[1].Profile.Name = "7g.79gb"
	runStories(t, []story{
		// The kubelet says that the node has no GPU: the inventory says how many there are.
		{
			name: "B07", devices: []gpu.Device{a}, advertised: []Advertised{{DeviceID: "nvidia0/vgpu0"}, {DeviceID: "nvidia0/vgpu1"}},
			allocations: each("k8s.amazonaws.com/vgpu", "nvidia0/vgpu%d", 2),
			want:        []string{"GPU-a p0 shared 1/2 seats [0] of 2", "GPU-a p1 shared 1/2 seats [1] of 2"},
		},
		{
			name: "B21", devices: []gpu.Device{a}, advertised: replicas("nvidia.com/gpu", "GPU-a", 4),
			allocations: each("nvidia.com/gpu", "GPU-a::%d", 4), want: quarters,
		},
		{
			name: "B23 renameByDefault true", devices: []gpu.Device{a}, advertised: replicas("nvidia.com/gpu.shared", "GPU-a", 4),
			allocations: each("nvidia.com/gpu.shared", "GPU-a::%d", 4), want: quarters,
		},
		{
			name: "B23 renameByDefault false", devices: []gpu.Device{a}, advertised: replicas("nvidia.com/gpu", "GPU-a", 4),
			allocations: each("nvidia.com/gpu", "GPU-a::%d", 4), want: quarters,
		},
		{
			name: "B25", devices: []gpu.Device{a}, advertised: eight, allocations: each("nvidia.com/gpu.shared", "GPU-a::%d", 1),
			want: []string{"GPU-a p0 shared 1/8 seats [0] of 8", "GPU-a unrequested 7/8"},
		},
		{
			name: "B29", devices: two, allocations: []Allocation{held("p1", "MIG-a-2"), held("p2", "nvidia2/gi1")},
			want: []string{"MIG-a-1 p2 mig 13/28", "MIG-a-2 p1 mig 15/56", "GPU-a free 15/56"},
		},
		{name: "B31", devices: odd, allocations: each("nvidia.com/mig-7g.79gb", "MIG-a-%d", 2)[1:], want: []string{"MIG-a-1 p1 mig 1"}},
		{
			name: "B35", devices: []gpu.Device{a}, advertised: fifty, allocations: each("nvidia.com/gpu", "GPU-a::%d", 1),
			want: []string{"GPU-a p0 shared 1/50 seats [0] of 50", "GPU-a unrequested 49/50"},
		},
	})
}
