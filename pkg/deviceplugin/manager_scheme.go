// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"maps"
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

// keep goes on with devices of old for which s has no name, under the name that they had: what the
// driver does not say for a while, or a rule says wrong, takes nothing away; nor does a new device that
// makes sharing impossible as it is set. What a setting leaves out is left out, as it would be after a restart.
func (s *scheme) keep(old scheme, problems []error) {
	nameless := map[gpu.UUID]int{}
	for _, p := range problems {
		problem, ok := errors.AsType[*Problem](p)
		switch {
		case ok && problem.Kind == ProblemName && problem.Device != "":
			nameless[problem.Device] = s.devices[problem.Device]
		case ok && problem.Unshares:
			maps.Copy(nameless, s.left())
		}
	}
	for name, o := range old.without(nameless).offers {
		if _, ok := s.offers[name]; !ok && len(o.Seats) > 0 {
			s.offers[name] = o
		}
	}
}

// left are the devices that are there and not handed out.
func (s *scheme) left() map[gpu.UUID]int {
	left := maps.Clone(s.devices)
	for _, o := range s.offers {
		for _, seat := range o.Seats {
			delete(left, seat.Device)
		}
	}
	return left
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
