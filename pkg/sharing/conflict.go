// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The kinds of Conflict. They are label values.
const (
	// ConflictExclusive: two pods hold one whole device.
	ConflictExclusive = "exclusive"
	// ConflictSeat: two pods hold one replica.
	ConflictSeat = "seat"
	// ConflictWholeAndReplicas: a device is held whole by one and in replicas by others.
	ConflictWholeAndReplicas = "whole_and_replicas"
	// ConflictMIGParent: a GPU that has MIG devices is held itself; nobody is the winner.
	ConflictMIGParent = "mig_parent"
	// ConflictOverweight: the card's MIG devices weigh more than the card, and no
	// holder of one is charged; nobody is the winner, and nobody the loser where
	// none is held.
	ConflictOverweight = "overweight"
)

// compare orders holders by namespace, pod, container and pod UID.
func (h Holder) compare(g Holder) int {
	return cmp.Or(
		cmp.Compare(h.Namespace, g.Namespace),
		cmp.Compare(h.Pod, g.Pod),
		cmp.Compare(h.Container, g.Container),
		cmp.Compare(h.PodUID, g.PodUID))
}

func (h Holder) samePod(g Holder) bool {
	return h.Namespace == g.Namespace && h.Pod == g.Pod && h.PodUID == g.PodUID
}

// claim is one allocation that names a device of the node.
type claim struct {
	*Allocation
	// device is a position in the index, replica a number or NoReplica.
	device, replica int
}

// readClaims ties allocations to devices. The claims are ordered by device and
// replica, with one claim for each pod: the last listed, because the kubelet lists
// init containers first and regular containers take their devices over.
func readClaims(ix *Index, allocations []Allocation) ([]claim, []Unmatched) {
	claims := make([]claim, 0, len(allocations))
	var unmatched []Unmatched
	for i := range allocations {
		a := &allocations[i]
		c, reason := readClaim(ix, a)
		if reason != "" {
			unmatched = append(unmatched, Unmatched{Allocation: *a, Reason: reason})
			continue
		}
		claims = append(claims, c)
	}
	slices.SortStableFunc(claims, func(a, b claim) int {
		return cmp.Or(
			cmp.Compare(a.device, b.device),
			cmp.Compare(a.replica, b.replica),
			cmp.Compare(a.Holder.Namespace, b.Holder.Namespace),
			cmp.Compare(a.Holder.Pod, b.Holder.Pod),
			cmp.Compare(a.Holder.PodUID, b.Holder.PodUID))
	})
	slices.SortFunc(unmatched, compareUnmatched)
	return lastOfPod(claims), unmatched
}

func readClaim(ix *Index, a *Allocation) (claim, string) {
	if a.Claim != "" {
		return claim{}, ReasonClaimUnresolved
	}
	id, reason := parseID(a.DeviceID)
	if reason != "" {
		return claim{}, reason
	}
	device, reason := ix.resolve(id)
	return claim{Allocation: a, device: device, replica: id.Replica()}, reason
}

func lastOfPod(claims []claim) []claim {
	kept := claims[:0]
	for _, c := range claims {
		if n := len(kept) - 1; n >= 0 && kept[n].device == c.device && kept[n].replica == c.replica &&
			kept[n].Holder.samePod(c.Holder) {
			if !c.Terminal || kept[n].Terminal {
				kept[n] = c
			}
			continue
		}
		kept = append(kept, c)
	}
	return kept
}

func compareUnmatched(a, b Unmatched) int {
	x, y := &a.Allocation, &b.Allocation
	return cmp.Or(
		x.Holder.compare(y.Holder),
		cmp.Compare(x.Resource, y.Resource),
		cmp.Compare(x.DeviceID, y.DeviceID),
		cmp.Compare(x.Claim, y.Claim),
		cmp.Compare(a.Reason, b.Reason),
		x.Since.Compare(y.Since),
		compareBools(x.Terminal, y.Terminal))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// precedence is negative where a goes before b in a conflict: the live pod, then the
// one seen first later, because the kubelet frees a device before it gives it to
// another, then the smaller name.
func precedence(a, b claim) int {
	return cmp.Or(compareBools(a.Terminal, b.Terminal), b.Since.Compare(a.Since), a.Holder.compare(b.Holder))
}

// holding is who holds one device once its conflicts are resolved: one claim to the
// whole, or one claim for each replica that is held.
type holding struct {
	claims    []claim
	whole     bool
	conflicts []Conflict
}

// hold resolves the claims to one device, ordered by replica.
func hold(card, device gpu.UUID, claims []claim) holding {
	var h holding
	n := slices.IndexFunc(claims, func(c claim) bool { return c.replica != NoReplica })
	if n < 0 {
		n = len(claims)
	}
	whole, seats := claims[:n], claims[n:]
	wholeSince, seatSince := newest(whole), newest(seats)
	var losers []claim
	var kind string
	switch {
	case wholeSince < 0 && seatSince < 0:
		return h
	case seatSince < 0 || wholeSince >= 0 && !seats[seatSince].Since.After(whole[wholeSince].Since):
		h.whole, kind, losers = true, ConflictExclusive, seats
		claims = whole
	default:
		kind, losers = ConflictSeat, whole
		claims = seats
	}
	conflict := func(kind string, loser, winner Holder) {
		if loser != winner && !slices.ContainsFunc(h.conflicts, func(c Conflict) bool { return c.Loser == loser }) {
			h.conflicts = append(h.conflicts, Conflict{Card: card, Device: device, Loser: loser, Winner: winner, Kind: kind})
		}
	}
	h.claims = make([]claim, 0, len(claims))
	for len(claims) > 0 {
		n := 1
		for n < len(claims) && claims[n].replica == claims[0].replica {
			n++
		}
		if winner := slices.MinFunc(claims[:n], precedence); !winner.Terminal {
			h.claims = append(h.claims, winner)
			for _, c := range claims[:n] {
				conflict(kind, c.Holder, winner.Holder)
			}
		}
		claims = claims[n:]
	}
	winner := slices.MinFunc(h.claims, precedence).Holder
	for _, c := range losers {
		if !c.Terminal {
			conflict(ConflictWholeAndReplicas, c.Holder, winner)
		}
	}
	slices.SortFunc(h.conflicts, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Loser.compare(b.Loser))
	})
	return h
}

// newest is the position of the live claim that was seen first last, or -1 where
// none is live.
func newest(claims []claim) int {
	found := -1
	for i, c := range claims {
		if !c.Terminal && (found < 0 || c.Since.After(claims[found].Since)) {
			found = i
		}
	}
	return found
}
