// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// addAllocationShares sums shares that have equal labels before they become floats:
// one third thrice is one.
func (f *ownFamilies) addAllocationShares() {
	f.begin("gpumeter_allocation_share", "Part of the physical GPU that a container holds, 0 to 1.", kindGauge)
	shares := f.snapshot.Division.Shares
	order := make([]labelID, 0, len(shares))
	sums := make(map[labelID]sharing.Fraction, len(shares))
	set := make([]label, 0, 16)
	for i := range shares {
		id := f.labels.intern(f.shareLabels(set, &shares[i]))
		sum, again := sums[id]
		if !again {
			order = append(order, id)
		}
		sums[id] = sum.Add(shares[i].Part)
	}
	for _, id := range order {
		f.number(id, sums[id].Float64())
	}
}

func (f *ownFamilies) shareLabels(set []label, s *sharing.Share) []label {
	set = append(f.deviceLabels(set, s.Card, s.Device),
		label{"resource", s.Resource},
		label{"mode", string(s.Mode)})
	return f.holderLabels(set, s.Holder)
}

// deviceLabels are the hardware labels of a device, or its card's alone where the inventory does not have it.
func (f *ownFamilies) deviceLabels(set []label, card, device gpu.UUID) []label {
	if d, ok := f.node.devices[device]; ok {
		return f.node.hardware(set, d)
	}
	return append(set, label{"UUID", string(card)})
}

func (f *ownFamilies) holderLabels(set []label, h sharing.Holder) []label {
	set = append(set,
		label{"namespace", h.Namespace},
		label{"pod", h.Pod},
		label{"container", h.Container})
	if f.cfg.PodUID {
		set = append(set, label{"pod_uid", h.PodUID})
	}
	return set
}

func (f *ownFamilies) addUnallocatedShares() {
	type part struct {
		card  gpu.UUID
		cause sharing.Cause
	}
	sums := make(map[part]sharing.Fraction)
	for _, u := range f.snapshot.Division.Unallocated {
		p := part{u.Card, u.Cause}
		sums[p] = sums[p].Add(u.Part)
	}
	f.begin("gpumeter_unallocated_share", "Part of the physical GPU that no container is charged for, 0 to 1, by reason.", kindGauge)
	for _, card := range f.node.cards {
		for _, cause := range sharing.Causes() {
			f.number(f.set("UUID", string(card.UUID), "reason", string(cause)), sums[part{card.UUID, cause}].Float64())
		}
	}
}

// addWeights says what a share of a device is a share of: dividing by it gives the part of
// the device, which is what the device's own series are multiplied with.
func (f *ownFamilies) addWeights() {
	f.begin("gpumeter_device_weight", "Part of the physical GPU that the device counts as, 0 to 1: 1 for a whole GPU, less for a MIG device.", kindGauge)
	set := make([]label, 0, 16)
	for i := range f.node.all {
		d := &f.node.all[i]
		if w, known := f.snapshot.Weights[d.UUID]; known {
			f.number(f.labels.intern(f.node.hardware(set, d)), w.Float64())
		}
	}
}

// addReplicas says into how many seats each shared device is divided.
func (f *ownFamilies) addReplicas() {
	f.begin("gpumeter_device_replicas", "Replicas that the shared device is reckoned to have: those advertised, remembered while their plugin is away or one is unhealthy.", kindGauge)
	set := make([]label, 0, 16)
	for i := range f.node.all {
		d := &f.node.all[i]
		if n := f.snapshot.Seats.Of(d.UUID); n > 0 {
			f.count(f.labels.intern(f.node.hardware(set, d)), int64(n))
		}
	}
}

// addUnchargedShares names who holds what is booked to a reason: whose job a broken GPU hurts.
func (f *ownFamilies) addUnchargedShares() {
	f.begin("gpumeter_uncharged_share",
		"Part of the physical GPU that a container holds without being charged for it, by reason; contained in gpumeter_unallocated_share.", kindGauge)
	sums := make(map[labelID]sharing.Fraction)
	var order []labelID
	set := make([]label, 0, 16)
	for i := range f.snapshot.Division.Unallocated {
		u := &f.snapshot.Division.Unallocated[i]
		if u.Holder == (sharing.Holder{}) {
			continue
		}
		held := append(f.deviceLabels(set, u.Card, u.Device), label{"reason", string(u.Cause)})
		id := f.labels.intern(f.holderLabels(held, u.Holder))
		if _, again := sums[id]; !again {
			order = append(order, id)
		}
		sums[id] = sums[id].Add(u.Part)
	}
	for _, id := range order {
		f.number(id, sums[id].Float64())
	}
}
