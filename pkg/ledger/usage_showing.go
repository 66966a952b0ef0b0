// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// showing is what a ledger's registers showed at one moment, in whole millionths: the difference of two of them
// is a consumption.
type showing struct {
	// known is false before there was anything to show.
	known bool
	// at is the wall clock of what was shown: the moment itself where the registers can be told for it exactly,
	// else that of the last record before it.
	at                int64
	node, cluster, id string
	policy            string
	created           time.Time
	labels            map[string]string
	cards             map[gpu.UUID]cardShowing
	numbers           map[int]Card
	series            map[Series]heldShowing
	// pods are those that the account knows. Gone are the last showings of those that it dropped since the showing before,
	// where there is one.
	pods, gone map[PodSeries]heldShowing
	facts      map[PodSeries]Pod
}

type cardShowing struct {
	Card
	capacity, allocated    Quantity
	unallocated, corrected map[sharing.Cause]Quantity
}

type heldShowing struct {
	Quantity
	used map[Basis]int64
}

// shownAmount is an amount as registers show it.
func shownAmount(a Amount) Quantity {
	const mibMillisecondsPerGiBSecond = 1024 * 1000
	return Quantity{GPU: Micro(a.GPU), Energy: Microjoules(a.Energy), Memory: a.Memory.Float64() / mibMillisecondsPerGiBSecond}
}

func shownUsed(used map[Basis]sharing.Fraction) map[Basis]int64 {
	if len(used) == 0 {
		return nil
	}
	shown := make(map[Basis]int64, len(used))
	for basis, f := range used {
		shown[basis] = Micro(f)
	}
	return shown
}

func shownCauses(amounts map[sharing.Cause]Amount) map[sharing.Cause]Quantity {
	shown := make(map[sharing.Cause]Quantity, len(amounts))
	for cause, a := range amounts {
		shown[cause] = shownAmount(a)
	}
	return shown
}

// show is what totals show as of a wall clock, without the pods.
func show(t *Totals, at int64) showing {
	s := showing{
		known: true, at: at, node: t.Node, cluster: t.Cluster, id: t.LedgerID, policy: t.Policy, created: t.Created, labels: t.NodeLabels,
		cards:  make(map[gpu.UUID]cardShowing, len(t.Cards)),
		series: make(map[Series]heldShowing, len(t.Series)),
	}
	for i := range t.Cards {
		c := &t.Cards[i]
		s.cards[c.UUID] = cardShowing{
			Card: c.Card, capacity: shownAmount(c.Capacity), allocated: shownAmount(c.Allocated),
			unallocated: shownCauses(c.Unallocated), corrected: shownCauses(c.Corrected),
		}
	}
	for i := range t.Series {
		e := &t.Series[i]
		s.series[e.Series] = heldShowing{shownAmount(e.Amount), shownUsed(e.Used)}
	}
	return s
}

// showPods adds what all pods came to that an account knows, those among them that ended long ago: now, or at
// a later time of the boot clock while nothing changes.
func (s *showing) showPods(a *Account, boot *int64) {
	at := a.charged.Boot
	if boot != nil && !a.away && a.crooked == 0 {
		at = max(at, *boot)
	}
	open := a.pending(at)
	s.pods = make(map[PodSeries]heldShowing, len(a.pods))
	s.facts = make(map[PodSeries]Pod, len(a.pods))
	for key, p := range a.pods {
		t := a.podTotal(p, p.amount.plus(open.pods[p]))
		s.pods[key], s.facts[key] = heldShowing{shownAmount(t.Amount), shownUsed(t.Used)}, t.Pod
	}
}

// share says which part of a time has gone by.
type share struct{ gone, whole int64 }

// between is what a register showed when the share of the time between two showings had gone by, in which it
// grew evenly.
func (s share) between(from, to int64) int64 {
	return from + sharing.NewFraction(to-from, 1).Mul(sharing.NewFraction(s.gone, s.whole)).Floor()
}

func (s share) quantity(from, to Quantity) Quantity {
	return Quantity{
		GPU: s.between(from.GPU, to.GPU), Energy: s.between(from.Energy, to.Energy),
		Memory: from.Memory + (to.Memory-from.Memory)*float64(s.gone)/float64(s.whole),
	}
}

func (s share) causes(from, to map[sharing.Cause]Quantity) map[sharing.Cause]Quantity {
	all := make(map[sharing.Cause]Quantity, len(to))
	for cause, q := range to {
		all[cause] = s.quantity(from[cause], q)
	}
	return all
}

func (s share) held(from, to heldShowing) heldShowing {
	h := heldShowing{Quantity: s.quantity(from.Quantity, to.Quantity)}
	for basis, v := range to.used {
		if h.used == nil {
			h.used = make(map[Basis]int64, len(to.used))
		}
		h.used[basis] = s.between(from.used[basis], v)
	}
	return h
}

// within is what was shown when the share of the time between from and to had gone by, in which all registers grew evenly.
func (s share) within(from, to showing) showing {
	mid := from
	mid.cards = make(map[gpu.UUID]cardShowing, len(to.cards))
	for uuid, c := range to.cards {
		f := from.cards[uuid]
		mid.cards[uuid] = cardShowing{
			Card: c.Card, capacity: s.quantity(f.capacity, c.capacity), allocated: s.quantity(f.allocated, c.allocated),
			unallocated: s.causes(f.unallocated, c.unallocated), corrected: s.causes(f.corrected, c.corrected),
		}
	}
	mid.series = make(map[Series]heldShowing, len(to.series))
	for key, h := range to.series {
		mid.series[key] = s.held(from.series[key], h)
	}
	if from.pods != nil {
		mid.pods = make(map[PodSeries]heldShowing, len(from.pods))
		for key, h := range from.pods {
			mid.pods[key] = h
			// One that was dropped with the gap's end did not grow in it.
			if later, there := to.pods[key]; there {
				mid.pods[key] = s.held(h, later)
			}
		}
		// Where records are missing, pods may have come.
		mid.facts = maps.Clone(from.facts)
		for key, later := range to.pods {
			if _, there := from.pods[key]; !there {
				mid.pods[key], mid.facts[key] = s.held(heldShowing{}, later), to.facts[key]
			}
		}
	}
	return mid
}

// since is what came between two showings of one register.
func (q Quantity) since(before Quantity) Quantity {
	return Quantity{GPU: q.GPU - before.GPU, Energy: q.Energy - before.Energy, Memory: q.Memory - before.Memory}
}

func (q Quantity) plus(more Quantity) Quantity {
	return Quantity{GPU: q.GPU + more.GPU, Energy: q.Energy + more.Energy, Memory: q.Memory + more.Memory}
}

// nothing reports whether there is no consumption in it.
func (q Quantity) nothing() bool { return q.GPU == 0 && q.Energy == 0 && q.Memory == 0 }

// fell reports whether a register went back, which none ever may.
func (q Quantity) fell() bool { return q.GPU < 0 || q.Energy < 0 }

func (h heldShowing) since(before heldShowing) heldShowing {
	d := heldShowing{Quantity: h.Quantity.since(before.Quantity)}
	for basis, v := range h.used {
		if d.used == nil {
			d.used = map[Basis]int64{}
		}
		d.used[basis] = v - before.used[basis]
	}
	d.used = KnownUse(d.used, d.GPU)
	return d
}

func (h heldShowing) plus(more heldShowing) heldShowing {
	sum := heldShowing{Quantity: h.Quantity.plus(more.Quantity)}
	for _, used := range []map[Basis]int64{h.used, more.used} {
		for basis, v := range used {
			if sum.used == nil {
				sum.used = map[Basis]int64{}
			}
			sum.used[basis] += v
		}
	}
	return sum
}
