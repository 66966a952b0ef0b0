// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// seatPending gives waiting pods their ids, in the order in which they came. A pod
// that finds too few waits on without hindering those behind it.
func (g *stage) seatPending() {
	if g.down > 0 || len(g.pending) == 0 {
		return
	}
	now := &nodeState{cards: make([]*cardState, len(g.cards)), sick: g.sick, away: g.away}
	for i := range g.cards {
		now.cards[i] = &g.cards[i]
	}
	free := func(st seat) bool { return g.held[st.key()] == nil && now.offered(st) }
	left := map[string]int{}
	for _, u := range g.units {
		for r := range max(u.replicas, 1) {
			if free(seat{u, r}) {
				left[u.resource]++
			}
		}
	}
	waiting := g.pending
	g.pending = nil
	for _, p := range waiting {
		if left[p.spec.resource] < p.spec.count {
			g.pending = append(g.pending, p)
			continue
		}
		seats := g.choose(p, free)
		left[p.spec.resource] -= len(seats)
		p.start = g.now
		p.seat(seats)
		for _, st := range seats {
			g.held[st.key()] = p
			g.dirty[st.unit.card] = true
		}
		g.active = append(g.active, p)
		g.changed = true
	}
}

// choose picks ids for a pod, of which there are enough free, each on the device with
// the fewest seats taken.
func (g *stage) choose(p *placement, free func(seat) bool) []seat {
	type candidate struct {
		unit   *unit
		taken  int
		free   []int
		chance uint64
	}
	chance := mix(g.seed, hashText("seat"), uint64(p.index), uint64(p.copy), uint64(p.turn))
	var devices []candidate
	for _, u := range g.units {
		if u.resource != p.spec.resource {
			continue
		}
		c := candidate{unit: u, chance: mix(chance, hashText(u.uuid))}
		for r := range max(u.replicas, 1) {
			st := seat{u, r}
			if free(st) {
				c.free = append(c.free, r)
			} else if g.held[st.key()] != nil {
				c.taken++
			}
		}
		devices = append(devices, c)
	}
	seats := make([]seat, 0, p.spec.count)
	for n := range p.spec.count {
		best := -1
		for i := range devices {
			d := &devices[i]
			if len(d.free) == 0 {
				continue
			}
			if best < 0 || cmp.Or(cmp.Compare(d.taken, devices[best].taken), cmp.Compare(d.chance, devices[best].chance)) < 0 {
				best = i
			}
		}
		d := &devices[best]
		k := int(mix(d.chance, uint64(n)) % uint64(len(d.free)))
		seats = append(seats, seat{d.unit, d.free[k]})
		d.free = slices.Delete(d.free, k, k+1)
		d.taken++
	}
	return seats
}

// usesOf are the loads on a card now.
func (g *stage) usesOf(card int) []use {
	c, m := &g.cards[card], g.s.cards[card].model
	var uses []use
	peaks := map[int]float64{}
	for _, p := range g.active {
		for _, d := range p.devices {
			u := d.unit
			if u.card != card {
				continue
			}
			w := use{
				pod: p, slot: slices.Index(c.uuids, gpu.UUID(u.uuid)), part: 1, start: p.start.Seconds(),
				load:      newLoad(p.spec.kind, p.spec.level, mix(p.hash(g.seed, 0), hashText(u.uuid))),
				memoryMiB: float64(m.memoryMiB - m.reservedMiB),
			}
			if w.slot >= 0 {
				profile := c.slots[w.slot].profile
				w.part = float64(profile.Compute) / float64(m.capacity.Compute)
				w.memoryMiB = float64(m.instanceMiB[profile.Name] - instanceReservedMiB)
			}
			if u.replicas > 0 {
				w.memoryMiB *= float64(d.seats) / float64(u.replicas)
			}
			w.base = w.load.integral(g.now.Seconds() - w.start)
			peaks[w.slot] += w.load.peak()
			uses = append(uses, w)
		}
	}
	// Containers on one device share its time once they want more than there is.
	for i := range uses {
		uses[i].weight = 1 / max(1, peaks[uses[i].slot])
	}
	slices.SortStableFunc(uses, func(a, b use) int { return a.slot - b.slot })
	return uses
}

// mostInstances is how many GPU instances a card of the node can have: DCGM gives each card
// a range of numbers as wide.
func (s *Scenario) mostInstances() int {
	most := 0
	for i := range s.cards {
		most = max(most, s.cards[i].model.capacity.Compute)
	}
	return most
}

// runningNumber counts the instances that DCGM lists before one: it goes through the
// profiles, and NVML's ids are not in that order.
func (m *model) runningNumber(slots []slot, of int) int {
	rank := func(i int) int { return slices.Index(m.profileNames(), slots[i].profile.Name) }
	number := 0
	for i := range slots {
		if rank(i) < rank(of) || rank(i) == rank(of) && i < of {
			number++
		}
	}
	return number
}

// instanceReservedMiB is what the driver keeps of each GPU instance's memory.
const instanceReservedMiB = 15

// deviceList is the inventory as the driver would describe it.
func deviceList(s *Scenario, uuids []string, cards []*cardState) []gpu.Device {
	var out []gpu.Device
	for i, c := range cards {
		if c.gone {
			continue
		}
		spec := &s.cards[i]
		m := spec.model
		card := gpu.Device{
			UUID: gpu.UUID(uuids[i]), Index: i, Minor: spec.minor, PCIBusID: pciAddress(i), Model: m.product,
			MIGEnabled: spec.mig, Lost: c.lost, Capacity: m.capacity, MIGProfiles: m.profiles,
			GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
		}
		out = append(out, card)
		for j, sl := range c.slots {
			out = append(out, gpu.Device{
				UUID: c.uuids[j], Parent: card.UUID, Index: i, Minor: card.Minor, PCIBusID: card.PCIBusID,
				Model: m.product, Lost: c.lost, GPUInstance: sl.instanceID(m.capacity.Memory),
				InstanceEntity: i*s.mostInstances() + m.runningNumber(c.slots, j),
				Profile: gpu.Profile{
					Name: sl.profile.Name, Slices: sl.profile.Slices,
					ComputeInstanceSlices: sl.profile.Compute, ComputeInstanceSMs: sl.profile.SMs,
				},
				Placement: gpu.Placement{Start: sl.start, Size: sl.profile.Size},
			})
		}
	}
	return out
}
