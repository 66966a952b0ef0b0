// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Attribute divides a node's GPUs among those who hold them. It is a pure function
// of the situation: the order of the devices and allocations does not matter, but
// for the order of one pod's containers, of which the last listed counts. The
// Situation is not modified, nor kept by the Division.
//
// A device held whole counts with its weight, a replica with its seat's part of it.
// The seats are as many as were advertised, or as many as are held where that is
// more; where none ever were, one seat that is held may be one of many, and what is
// held is unattributed. What a terminal pod holds is held by nobody. The resource's
// name changes no part. Every allocation is a share, or part of one, or named in
// Unallocated, Conflicts or Unmatched, unless its pod is terminal or lists the id twice.
//
// On a card in MIG mode, what its MIG devices leave is free as far as further
// instances of its profiles could use it beside those there are, and stranded
// beyond that; it is free where the card's profiles are not known. A held MIG device
// whose weight is not known has a part of zero, and makes what the others leave
// unattributed; so does one that is unhealthy. A card whose MIG devices weigh more
// than the card is unattributed as a whole.
func Attribute(s Situation) Division {
	ix := NewIndex(s.Devices)
	d := divider{s: &s, ix: ix}
	cards := ix.cards()
	if !s.Observed {
		for _, card := range cards {
			d.out.Unallocated = append(d.out.Unallocated,
				Unallocated{Card: ix.devices[card].UUID, Cause: CauseUnobserved, Part: One()})
		}
		return d.out
	}
	claims, unmatched := readClaims(ix, s.Allocations)
	d.out.Unmatched = unmatched
	if len(claims) > 0 {
		d.out.Shares = make([]Share, 0, len(claims))
	}
	d.claims = make([][]claim, len(ix.devices))
	for len(claims) > 0 {
		n := 1
		for n < len(claims) && claims[n].device == claims[0].device {
			n++
		}
		d.claims[claims[0].device] = claims[:n]
		claims = claims[n:]
	}
	for _, card := range cards {
		if migs := ix.migs[card]; len(migs) > 0 {
			d.divideMIG(card, migs)
		} else {
			d.divideCard(card)
		}
	}
	if len(d.out.Shares) == 0 {
		d.out.Shares = nil
	}
	return d.out
}

// cards are the positions of the physical GPUs, by index and UUID.
func (ix *Index) cards() []int {
	var cards []int
	for i := range ix.devices {
		if d := &ix.devices[i]; !d.IsMIG() && ix.position(d.UUID) == i {
			cards = append(cards, i)
		}
	}
	slices.SortFunc(cards, func(a, b int) int {
		x, y := &ix.devices[a], &ix.devices[b]
		return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.UUID, y.UUID))
	})
	return cards
}

type divider struct {
	s  *Situation
	ix *Index
	// claims are those to each device of the index.
	claims [][]claim
	out    Division
}

// piece is one device as it is handed out.
type piece struct {
	card, device *gpu.Device
	holding
	weight Fraction
	// known says that weight is the device's; else it is zero.
	known     bool
	unhealthy bool
}

func (d *divider) piece(card *gpu.Device, i int) piece {
	device := &d.ix.devices[i]
	return piece{
		card:      card,
		device:    device,
		holding:   hold(card.UUID, device.UUID, d.claims[i]),
		unhealthy: device.Lost || d.s.Unhealthy[device.UUID],
	}
}

// divideCard divides a physical GPU that has no MIG devices.
func (d *divider) divideCard(card int) {
	p := d.piece(&d.ix.devices[card], card)
	p.weight, p.known = One(), true
	d.out.Conflicts = append(d.out.Conflicts, p.conflicts...)
	if len(p.claims) == 0 && p.device.MIGEnabled && !p.unhealthy && d.s.Seats.Of(p.device.UUID) == 0 {
		d.leave(p.device, nil, One())
		return
	}
	d.handOut(p)
}

// divideMIG divides a physical GPU among its MIG devices.
func (d *divider) divideMIG(card int, positions []int) {
	parent := &d.ix.devices[card]
	unhealthy := parent.Lost || d.s.Unhealthy[parent.UUID]
	d.refuseParent(parent, d.claims[card])
	pieces := make([]piece, 0, len(positions))
	sum, unsized, unknown := Fraction{}, false, false
	for _, i := range positions {
		p := d.piece(parent, i)
		p.weight, p.known = d.s.Policy.Weight(*parent, *p.device)
		sum = sum.Add(p.weight)
		unknown = unknown || !p.known
		unsized = unsized || !p.known && (p.unhealthy || len(p.claims) > 0)
		p.unhealthy = p.unhealthy || unhealthy
		pieces = append(pieces, p)
	}
	slices.SortFunc(pieces, func(a, b piece) int {
		x, y := a.device, b.device
		return cmp.Or(
			cmp.Compare(x.GPUInstance, y.GPUInstance),
			cmp.Compare(x.ComputeInstance, y.ComputeInstance),
			cmp.Compare(x.UUID, y.UUID))
	})
	if sum.Cmp(One()) > 0 {
		d.refuseOverweight(parent, pieces, unhealthy)
		return
	}
	rest := One().Sub(sum)
	switch {
	case unhealthy:
		d.unallocated(parent, parent, CauseUnhealthy, rest)
	case unsized:
		d.unallocated(parent, parent, CauseUnattributed, rest)
	case unknown:
		d.unallocated(parent, parent, CauseFree, rest)
	default:
		d.leave(parent, pieces, rest)
	}
	for _, p := range pieces {
		d.out.Conflicts = append(d.out.Conflicts, p.conflicts...)
		d.handOut(p)
	}
}

// refuseParent counts those who hold a GPU whose MIG devices are what can be held.
func (d *divider) refuseParent(parent *gpu.Device, claims []claim) {
	from := len(d.out.Conflicts)
	for _, c := range claims {
		conflict := Conflict{Card: parent.UUID, Device: parent.UUID, Loser: c.Holder, Kind: ConflictMIGParent}
		if !c.Terminal && !slices.Contains(d.out.Conflicts[from:], conflict) {
			d.out.Conflicts = append(d.out.Conflicts, conflict)
		}
	}
	slices.SortFunc(d.out.Conflicts[from:], func(a, b Conflict) int { return a.Loser.compare(b.Loser) })
}

// refuseOverweight charges nobody on a card whose MIG devices are more than it.
func (d *divider) refuseOverweight(parent *gpu.Device, pieces []piece, unhealthy bool) {
	cause := CauseUnattributed
	if unhealthy {
		cause = CauseUnhealthy
	}
	d.unallocated(parent, parent, cause, One())
	held := false
	for _, p := range pieces {
		d.out.Conflicts = append(d.out.Conflicts, p.conflicts...)
		from := len(d.out.Conflicts)
		for _, c := range p.claims {
			held = true
			conflict := Conflict{Card: parent.UUID, Device: p.device.UUID, Loser: c.Holder, Kind: ConflictOverweight}
			if !slices.Contains(d.out.Conflicts[from:], conflict) {
				d.out.Conflicts = append(d.out.Conflicts, conflict)
			}
		}
		slices.SortFunc(d.out.Conflicts[from:], func(a, b Conflict) int { return a.Loser.compare(b.Loser) })
	}
	if !held {
		d.out.Conflicts = append(d.out.Conflicts,
			Conflict{Card: parent.UUID, Device: parent.UUID, Kind: ConflictOverweight})
	}
}

// leave splits what a card's MIG devices leave into free and stranded.
func (d *divider) leave(parent *gpu.Device, pieces []piece, rest Fraction) {
	policy := d.s.Policy
	instances := make([]*gpu.Device, 0, len(pieces))
	free := Fraction{}
	for len(pieces) > 0 {
		first := pieces[0].device
		held, n := Fraction{}, 0
		for n < len(pieces) && (n == 0 || first.GPUInstance >= 0 && pieces[n].device.GPUInstance == first.GPUInstance) {
			held = held.Add(pieces[n].weight)
			n++
		}
		// Compute slices that no compute instance has can still become one.
		whole, ok := policy.instanceWeight(parent, instanceName(first.Profile.Name), first.Profile.Slices)
		if ok && whole.Cmp(held) > 0 {
			free = free.Add(whole.Sub(held))
		}
		instances = append(instances, first)
		pieces = pieces[n:]
	}
	slices.SortFunc(instances, byPlace)
	if more, known := policy.creatable(parent, instances); known {
		free = free.Add(more)
	} else {
		free = rest
	}
	if free.Cmp(rest) > 0 {
		free = rest
	}
	d.unallocated(parent, parent, CauseFree, free)
	d.unallocated(parent, parent, CauseStranded, rest.Sub(free))
}

// handOut gives a device to those who hold it, and the rest of it to a cause.
func (d *divider) handOut(p piece) {
	firstShare, firstRest := len(d.out.Shares), len(d.out.Unallocated)
	advertised := d.s.Seats.Of(p.device.UUID)
	rest, cause := p.weight, CauseFree
	switch {
	case p.whole:
		d.out.Shares = append(d.out.Shares, p.share(p.claims[0], 1))
		rest = Fraction{}
	case len(p.claims) > 0 || advertised > 0:
		seats := max(advertised, len(p.claims))
		slices.SortFunc(p.claims, func(a, b claim) int {
			return cmp.Or(a.Holder.compare(b.Holder), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.replica, b.replica))
		})
		for claims := p.claims; len(claims) > 0; {
			n := 1
			for n < len(claims) && claims[n].Holder == claims[0].Holder && claims[n].Resource == claims[0].Resource {
				n++
			}
			share := p.share(claims[0], seats)
			share.Seats, share.Part = n, p.weight.Scale(n, seats)
			for _, c := range claims[:n] {
				share.SeatIDs = append(share.SeatIDs, c.replica)
			}
			d.out.Shares = append(d.out.Shares, share)
			claims = claims[n:]
		}
		rest, cause = p.weight.Scale(seats-len(p.claims), seats), CauseUnrequested
	}
	if p.unhealthy {
		cause = CauseUnhealthy
	}
	if p.unhealthy || !p.known || !p.whole && advertised == 0 {
		withheld := CauseUnattributed
		if p.unhealthy {
			withheld = CauseUnhealthy
		}
		d.withhold(p, withheld, firstShare)
	}
	d.unallocated(p.card, p.device, cause, rest)
	slices.SortStableFunc(d.out.Unallocated[firstRest:], func(a, b Unallocated) int {
		return cmp.Or(cmp.Compare(causeRank(a.Cause), causeRank(b.Cause)), a.Holder.compare(b.Holder))
	})
}

// share is the share of one claim of a device that has so many seats.
func (p *piece) share(c claim, of int) Share {
	mode := ModeExclusive
	switch {
	case p.device.IsMIG() && p.whole:
		mode = ModeMIG
	case p.device.IsMIG():
		mode = ModeMIGShared
	case !p.whole:
		mode = ModeShared
	}
	return Share{
		Card: p.card.UUID, Device: p.device.UUID, Holder: c.Holder, Resource: c.Resource,
		Mode: mode, Seats: 1, Of: of, Weight: p.weight, Part: p.weight.Scale(1, of),
	}
}

// withhold turns the shares from a position on into parts that are booked to a
// cause, with the holder named; one entry for each holder.
func (d *divider) withhold(p piece, cause Cause, from int) {
	for i, s := range d.out.Shares[from:] {
		if i > 0 && d.out.Shares[from+i-1].Holder == s.Holder {
			last := &d.out.Unallocated[len(d.out.Unallocated)-1]
			last.Part = last.Part.Add(s.Part)
			continue
		}
		d.out.Unallocated = append(d.out.Unallocated,
			Unallocated{Card: s.Card, Device: ownDevice(p.device), Cause: cause, Holder: s.Holder, Part: s.Part})
	}
	d.out.Shares = d.out.Shares[:from]
}

// unallocated books a part of a device that nobody holds to a cause; none for zero.
func (d *divider) unallocated(card, device *gpu.Device, cause Cause, part Fraction) {
	if !part.IsZero() {
		d.out.Unallocated = append(d.out.Unallocated,
			Unallocated{Card: card.UUID, Device: ownDevice(device), Cause: cause, Part: part})
	}
}

// ownDevice is what Unallocated.Device is for a device: empty for the card's own.
func ownDevice(d *gpu.Device) gpu.UUID {
	if d.IsMIG() {
		return d.UUID
	}
	return ""
}

func causeRank(c Cause) int { return slices.Index(Causes(), c) }

// Check reports whether the parts of every physical GPU among devices add up to
// exactly one, none is negative, and there are no parts of anything else. The error
// names the card and the sum.
func (d Division) Check(devices []gpu.Device) error {
	ix := NewIndex(devices)
	cards := ix.cards()
	sums := make(map[gpu.UUID]Fraction, len(cards))
	for _, i := range cards {
		sums[ix.devices[i].UUID] = Fraction{}
	}
	add := func(card, device gpu.UUID, part Fraction) error {
		sum, ok := sums[card]
		if !ok {
			return fmt.Errorf("check division: a part %s of %s, which is not a GPU of the node", part, card)
		}
		if part.Sign() < 0 {
			return fmt.Errorf("check division: a part of GPU %s is negative: %s on device %q", card, part, device)
		}
		sums[card] = sum.Add(part)
		return nil
	}
	for i := range d.Shares {
		if err := add(d.Shares[i].Card, d.Shares[i].Device, d.Shares[i].Part); err != nil {
			return err
		}
	}
	for i := range d.Unallocated {
		if err := add(d.Unallocated[i].Card, d.Unallocated[i].Device, d.Unallocated[i].Part); err != nil {
			return err
		}
	}
	for _, i := range cards {
		card := ix.devices[i].UUID
		if sum := sums[card]; !sum.IsOne() {
			return fmt.Errorf("check division: the parts of GPU %s add up to %s, not 1", card, sum)
		}
	}
	return nil
}
