// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// Prefer is which of the available ids to take. It has size of them, or all if there are fewer;
// those of must are among them, and what avoid speaks of is taken only if the rest does not
// suffice. It never fails. Whole GPUs are chosen near to each other; replicas and MIG devices by
// Settings.SharedPolicy. Both functions may be nil. A seat that is not available counts as given
// away, unless status says that its device is Unhealthy.
func (a *Allocator) Prefer(available, must []string, size int, avoid func(gpu.UUID) bool, status func(gpu.UUID) health.Status) []string {
	c := a.choice(available, must, avoid, status)
	if size <= len(c.chosen) {
		return idsOf(c.chosen[:max(size, 0)])
	}
	for _, some := range c.ranks() {
		need := min(size-len(c.chosen), len(some))
		switch {
		case need <= 0:
		case need == len(some):
			c.take(some...)
		case allWhole(c.chosen) && allWhole(some):
			c.take(a.topology.nearest(c.chosen, some, need)...)
		default:
			c.spread(a.settings.SharedPolicy, some, need)
		}
	}
	return idsOf(c.chosen)
}

// candidate is an available seat.
type candidate struct {
	Seat
	card gpu.UUID
	// order is its place in the resource; what the resource does not have comes last.
	order int
	rank  rank
	whole bool
}

// rank is when a candidate is taken: one of a later rank only if the ranks before it do not
// suffice.
type rank uint8

const (
	rankFirst rank = iota
	rankAvoid
	rankUnknown
)

// choice is one preference on its way.
type choice struct {
	chosen, free []candidate
	// gone are the seats given away, by device and by card; used those of this call.
	gone, goneOfCard, used, usedOfCard map[gpu.UUID]int
}

func (a *Allocator) choice(available, must []string, avoid func(gpu.UUID) bool, status func(gpu.UUID) health.Status) *choice {
	c := &choice{
		gone: make(map[gpu.UUID]int), goneOfCard: make(map[gpu.UUID]int),
		used: make(map[gpu.UUID]int), usedOfCard: make(map[gpu.UUID]int),
	}
	wanted := make(map[string]bool, len(must))
	for _, id := range must {
		wanted[id] = true
	}
	offered := make(map[string]bool, len(available))
	for _, id := range available {
		if offered[id] {
			continue
		}
		offered[id] = true
		one := a.candidate(id)
		switch {
		case wanted[id]:
			c.take(one)
			continue
		case one.rank == rankFirst && avoid != nil && avoid(one.Device):
			one.rank = rankAvoid
		}
		c.free = append(c.free, one)
	}
	slices.SortFunc(c.free, byOrder)
	slices.SortFunc(c.chosen, byOrder)
	for _, seat := range a.resource.Seats {
		d := a.devices[seat.Device]
		if offered[seat.ID] || d == nil || status != nil && status(seat.Device) == health.Unhealthy {
			continue
		}
		c.gone[d.UUID]++
		c.goneOfCard[d.Card()]++
	}
	return c
}

func (a *Allocator) candidate(id string) candidate {
	seat, device := a.seat(id)
	if device == nil {
		return candidate{Seat: Seat{ID: id, Device: gpu.UUID(id)}, card: gpu.UUID(id), order: len(a.resource.Seats), rank: rankUnknown}
	}
	return candidate{Seat: seat, card: device.Card(), order: a.seats[id], whole: device.seats == 1 && !device.IsMIG()}
}

func byOrder(x, y candidate) int {
	return cmp.Or(cmp.Compare(x.order, y.order), cmp.Compare(x.ID, y.ID))
}

// ranks are the free candidates by rank.
func (c *choice) ranks() [][]candidate {
	ranks := make([][]candidate, rankUnknown+1)
	for _, one := range c.free {
		ranks[one.rank] = append(ranks[one.rank], one)
	}
	return ranks
}

func (c *choice) take(some ...candidate) {
	for _, one := range some {
		c.chosen = append(c.chosen, one)
		c.used[one.Device]++
		c.usedOfCard[one.card]++
	}
}

// spread takes so many of the candidates, one after the other, as the policy has it.
func (c *choice) spread(policy SharedPolicy, from []candidate, need int) {
	var devices []gpu.UUID
	seats := make(map[gpu.UUID][]candidate)
	for _, one := range from {
		if seats[one.Device] == nil {
			devices = append(devices, one.Device)
		}
		seats[one.Device] = append(seats[one.Device], one)
	}
	for range need {
		var best *candidate
		for _, d := range devices {
			if left := seats[d]; len(left) > 0 && (best == nil || c.before(policy, &left[0], best)) {
				best = &left[0]
			}
		}
		seats[best.Device] = seats[best.Device][1:]
		c.take(*best)
	}
}

// before says whether x is to be taken before y. Of equals the first in order stays.
func (c *choice) before(policy SharedPolicy, x, y *candidate) bool {
	used := cmp.Or(cmp.Compare(c.usedOfCard[x.card], c.usedOfCard[y.card]), cmp.Compare(c.used[x.Device], c.used[y.Device]))
	gone := cmp.Or(
		cmp.Compare(c.goneOfCard[x.card]+c.usedOfCard[x.card], c.goneOfCard[y.card]+c.usedOfCard[y.card]),
		cmp.Compare(c.gone[x.Device]+c.used[x.Device], c.gone[y.Device]+c.used[y.Device]),
	)
	if policy == Packed {
		return cmp.Or(-gone, used) < 0
	}
	// A second share of the same GPU is worth less to a container than a share of another.
	return cmp.Or(used, gone) < 0
}

func allWhole(some []candidate) bool {
	return !slices.ContainsFunc(some, func(c candidate) bool { return !c.whole })
}

func idsOf(some []candidate) []string {
	ids := make([]string, len(some))
	for i, one := range some {
		ids[i] = one.ID
	}
	return ids
}
