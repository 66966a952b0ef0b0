// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// shownOf is t without the pods that ended long ago.
func shownOf(t *Totals) *Totals {
	over := func(p PodTotal) bool { return p.Ended != 0 && t.At.Wall-p.Ended > TombstoneFor.Milliseconds() }
	if !slices.ContainsFunc(t.Pods, over) {
		return t
	}
	shown := *t
	shown.Pods = slices.DeleteFunc(slices.Clone(t.Pods), over)
	return &shown
}

// born lists what latest has and committed has not; newborn says that nothing of a pod was ever committed.
func (v *View) born(committed, latest *Totals, newborn func(PodSeries) bool) {
	known := make(map[gpu.UUID]map[sharing.Cause]Amount, len(committed.Cards))
	for i := range committed.Cards {
		known[committed.Cards[i].UUID] = committed.Cards[i].Unallocated
	}
	for i := range latest.Cards {
		card := &latest.Cards[i]
		before, there := known[card.UUID]
		if !there {
			v.NewCards = append(v.NewCards, card.Card)
		}
		for _, cause := range slices.Sorted(maps.Keys(card.Unallocated)) {
			if _, there := before[cause]; there {
				continue
			}
			if v.NewCauses == nil {
				v.NewCauses = map[gpu.UUID][]sharing.Cause{}
			}
			v.NewCauses[card.UUID] = append(v.NewCauses[card.UUID], cause)
		}
	}
	series := make(map[Series]bool, len(committed.Series))
	for i := range committed.Series {
		series[committed.Series[i].Series] = true
	}
	for i := range latest.Series {
		if s := latest.Series[i].Series; !series[s] {
			v.NewSeries = append(v.NewSeries, s)
		}
	}
	pods := make(map[PodSeries]bool, len(committed.Pods))
	for i := range committed.Pods {
		pods[committed.Pods[i].PodSeries] = true
	}
	for i := range latest.Pods {
		p := &latest.Pods[i]
		// One that ended so long ago that it was not shown any more, and is back, is no new one.
		if pods[p.PodSeries] || !newborn(p.PodSeries) {
			continue
		}
		v.NewPods = append(v.NewPods, PodTotal{PodSeries: p.PodSeries, Pod: p.Pod})
	}
}
