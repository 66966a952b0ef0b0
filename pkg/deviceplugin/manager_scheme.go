// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// scheme is all that follows from a state but its verdicts: what is handed out, and who answers
// for it. It is never modified once it is followed.
type scheme struct {
	inventory Inventory
	settings  Settings
	revision  string
	plan      Plan
	// offers are by resource name.
	offers map[string]offer
	// devices are those there are, each with the NUMA node to tell the kubelet, -1 for none.
	devices map[gpu.UUID]int
}

// offer is a resource with who answers for it.
type offer struct {
	Resource
	allocator *Allocator
}

func newScheme(state NodeState, cdi Names) (scheme, []error) {
	plan, problems := NewPlan(state.Inventory, state.Settings)
	s := scheme{
		inventory: state.Inventory, settings: state.Settings, revision: state.Revision, plan: plan,
		offers:  make(map[string]offer, len(plan.Resources)),
		devices: make(map[gpu.UUID]int, len(state.Inventory.Devices)),
	}
	for _, resource := range plan.Resources {
		s.offers[resource.Name] = offer{resource, NewAllocator(state.Inventory, state.Settings, resource, cdi)}
	}
	for _, d := range state.Inventory.Devices {
		s.devices[d.UUID] = d.NUMANode
		if state.Settings.NoTopology {
			s.devices[d.UUID] = -1
		}
	}
	return s, problems
}

// keep goes on with resources of old that s, having problems, lacks, as far as their devices are
// there and are not handed out otherwise, whole or in parts: what is wrong with a new plan does
// not end the old.
func (s *scheme) keep(old scheme) {
	taken, cut := map[gpu.UUID]bool{}, map[gpu.UUID]bool{}
	for _, o := range s.offers {
		for _, seat := range o.Seats {
			taken[seat.Device] = true
		}
	}
	for _, d := range s.inventory.Devices {
		cut[d.Parent] = cut[d.Parent] || taken[d.UUID]
	}
	free := map[gpu.UUID]int{}
	for _, d := range s.inventory.Devices {
		// One that has been put into MIG mode is not what it was: CUDA cannot use it whole.
		useless := d.MIGEnabled && !d.IsMIG() && s.settings.MIGStrategy != MIGNone
		if !taken[d.UUID] && !taken[d.Card()] && !cut[d.UUID] && !useless {
			free[d.UUID] = s.devices[d.UUID]
		}
	}
	for name, o := range old.without(free).offers {
		if _, ok := s.offers[name]; !ok && len(o.Seats) > 0 {
			s.offers[name] = o
		}
	}
}

// without is s with only those devices that are there.
func (s scheme) without(there map[gpu.UUID]int) scheme {
	offers := make(map[string]offer, len(s.offers))
	for name, o := range s.offers {
		o.Seats = slices.DeleteFunc(slices.Clone(o.Seats), func(seat Seat) bool {
			_, ok := there[seat.Device]
			return !ok
		})
		offers[name] = o
	}
	s.offers = offers
	return s
}
