// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// SeatsHold is how long a smaller set of replicas must be advertised before it
// replaces the remembered one. The kubelet lists healthy ids only, so that one
// unhealthy replica looks like a smaller set, and it must not raise everybody's
// share; a plugin that was really configured anew goes on advertising the new set.
//
// A set that lacks just its last replica could be either for ever: NVIDIA's plugin marks one
// replica of a broken GPU, and never takes it back. It is a new configuration only if the plugin
// was away in between, as it is when it is configured anew, or if every other device that had as
// many replicas lacks its last one too.
const SeatsHold = 5 * time.Minute

// SeatsKeep is how long the replicas of a device that is not in the inventory are remembered.
const SeatsKeep = 24 * time.Hour

// Seats remembers the replicas that were advertised for each device. It is
// immutable and safe for concurrent use; the zero Seats remembers nothing.
type Seats struct {
	memory map[gpu.UUID]seatMemory
}

type seatMemory struct {
	// ids are the remembered replica numbers, ascending.
	ids []int
	// smaller is the size of the complete set 0..smaller-1 that has been advertised
	// since, 0 for the whole device without replicas; noSmaller while the remembered
	// set stands unchallenged.
	smaller int
	since   time.Time
	// away says that the device was not advertised at all since the remembered set was
	// last seen whole.
	away bool
	// card is the physical GPU of the device, gone from when the device has not been in the
	// inventory, zero while it is.
	card gpu.UUID
	gone time.Time
	// told is set where this comes from a file, and the device was not advertised since.
	told bool
}

const noSmaller = -1

// Of is how many replicas of a device are remembered; 0 for a device that was never
// advertised in replicas.
func (s Seats) Of(device gpu.UUID) int { return seatsOf(s.memory[device].ids) }

// seatsOf is how many replicas there are when those with the given ascending numbers are
// advertised: numbers count from 0, so a gap is a replica that is unhealthy now. A plugin that
// leaves more gaps than it fills numbers in a way of its own, and its ids are counted.
func seatsOf(ids []int) int {
	if len(ids) == 0 {
		return 0
	}
	if highest := ids[len(ids)-1] + 1; highest <= 2*len(ids) {
		return highest
	}
	return len(ids)
}

// Recall is s with the replicas that the kubelet has on record for devices that s does not know
// and that are not advertised now: their plugin is away, and was there before s began. What s knows
// from a file only, the record can add to: the plugin may have got another configuration since.
func (s Seats) Recall(ix *Index, advertised, registered []Advertised) Seats {
	if len(registered) == 0 {
		return s
	}
	now, record := replicasOf(ix, advertised), replicasOf(ix, registered)
	var next map[gpu.UUID]seatMemory
	for device, ids := range record {
		old, known := s.memory[device]
		more := !known || old.told && seatsOf(ids) > seatsOf(old.ids)
		if _, here := now[device]; here || !more || len(ids) == 0 {
			continue
		}
		if next == nil {
			next = make(map[gpu.UUID]seatMemory, len(s.memory)+len(record))
			maps.Copy(next, s.memory)
		}
		next[device] = seatMemory{ids: union(ids, old.ids), smaller: noSmaller, away: true, card: ix.card(device), told: old.told}
	}
	if next == nil {
		return s
	}
	return Seats{memory: next}
}

// replicasOf are the replica numbers of each device in a list of ids, ascending; none for a
// device that is in it as a whole.
func replicasOf(ix *Index, list []Advertised) map[gpu.UUID][]int {
	out := make(map[gpu.UUID][]int)
	for _, a := range list {
		id, reason := parseID(a.DeviceID)
		if reason != "" {
			continue
		}
		i, reason := ix.resolve(id)
		if reason != "" {
			continue
		}
		device := ix.devices[i].UUID
		ids, ok := out[device]
		if !ok {
			ids = []int{}
		}
		if id.IsReplica() {
			ids = append(ids, id.Replica())
		}
		out[device] = ids
	}
	for device, ids := range out {
		slices.Sort(ids)
		out[device] = slices.Compact(ids)
	}
	return out
}

// Observe is s after one more complete list of advertised ids, seen at now. Ids
// that resolve to no device of ix are passed over, repeated ones count once, and
// the resource does not matter: replicas of one device under two names are united
// by their number.
//
// Ids seen once stay remembered, because the kubelet lists the healthy ones only
// and none while the plugin is away; more ids count at once. A smaller set takes
// the place of the remembered one when it is complete (0 to k-1) or when the device
// is advertised without replicas, unchanged in every observation for SeatsHold.
// A device that left the inventory is forgotten after SeatsKeep, and a MIG device at once
// where its card is still there, which was divided anew. An inventory without any device is
// taken for a failed reading and forgets nothing.
func (s Seats) Observe(now time.Time, ix *Index, advertised []Advertised) Seats {
	if len(ix.byUUID) == 0 {
		return s
	}
	seen := replicasOf(ix, advertised)
	next := make(map[gpu.UUID]seatMemory, len(s.memory))
	for device, m := range s.memory {
		if _, ok := seen[device]; ok {
			continue
		}
		m.smaller, m.away = noSmaller, true
		if ix.position(device) >= 0 {
			m.card, m.gone = ix.card(device), time.Time{}
			next[device] = m
		} else if m.card == device || ix.position(m.card) < 0 {
			if m.gone.IsZero() || now.Before(m.gone) {
				m.gone = now
			}
			if now.Sub(m.gone) < SeatsKeep {
				next[device] = m
			}
		}
	}
	for device, ids := range seen {
		old, ok := s.memory[device]
		if !ok {
			old.smaller = noSmaller
		}
		plausible := old.away || !old.lacksLast(ids) || s.allLackLast(device, seen)
		if m := old.observe(now, ids, plausible); len(m.ids) > 0 {
			m.card, m.gone, m.told = ix.card(device), time.Time{}, false
			next[device] = m
		}
	}
	return Seats{memory: next}
}

// Equal says that two Seats remember the same.
func (s Seats) Equal(other Seats) bool {
	return maps.EqualFunc(s.memory, other.memory, func(a, b seatMemory) bool {
		return slices.Equal(a.ids, b.ids) && a.smaller == b.smaller && a.since.Equal(b.since) && a.away == b.away &&
			a.card == b.card && a.gone.Equal(b.gone)
	})
}

// allLackLast says that there are other devices with as many replicas as this one, and that
// each of them is advertised without its last replica as well.
func (s Seats) allLackLast(device gpu.UUID, seen map[gpu.UUID][]int) bool {
	others := 0
	for other, m := range s.memory {
		ids, advertised := seen[other]
		if other == device || !advertised || s.Of(other) != s.Of(device) {
			continue
		}
		if !m.lacksLast(ids) {
			return false
		}
		others++
	}
	return others > 0
}

// lacksLast says that ids are one replica fewer than remembered.
func (m seatMemory) lacksLast(ids []int) bool {
	n := seatsOf(ids)
	return n > 0 && n == seatsOf(m.ids)-1
}

// observe is m after the device was advertised with these replica numbers, in
// ascending order; none says that it was advertised whole. A smaller set that is not
// plausible as a new configuration changes nothing.
func (m seatMemory) observe(now time.Time, ids []int, plausible bool) seatMemory {
	m.ids = union(m.ids, ids)
	complete := len(ids) == 0 || ids[len(ids)-1] == len(ids)-1
	switch {
	case seatsOf(ids) >= seatsOf(m.ids):
		m.smaller, m.away = noSmaller, false
	case !complete || !plausible:
		m.smaller = noSmaller
	case m.smaller != len(ids) || now.Before(m.since):
		m.smaller, m.since = len(ids), now
	case now.Sub(m.since) >= SeatsHold:
		m = seatMemory{ids: ids, smaller: noSmaller}
	}
	return m
}

// union is the ascending union of two ascending lists: a itself where b adds nothing.
func union(a, b []int) []int {
	missing := 0
	for _, v := range b {
		if _, ok := slices.BinarySearch(a, v); !ok {
			missing++
		}
	}
	if missing == 0 {
		return a
	}
	out := make([]int, 0, len(a)+missing)
	out = append(append(out, a...), b...)
	slices.Sort(out)
	return slices.Compact(out)
}
