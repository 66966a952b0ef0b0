// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// waitingSpan is how much time one kept observation may stand for, in milliseconds.
	waitingSpan = 4 * 60 * 1000
	// apartFor is for how long at the beginning an event stays with the moment at which it was seen, in milliseconds: while the
	// meter before this one still writes, as in a rolling update, only what it did not see may count.
	apartFor = 10 * 60 * 1000
	// maxWaiting bounds the observations that wait; a day in which little changes is 360 of them.
	maxWaiting = 2000
)

// waiting are observations of a time in which the book's past is not known yet, because its disk does not let it
// be read. Those between two that say the same are left out, where no gap is between them.
type waiting struct {
	kept []Observation
	// busy is the sum of busy time x milliseconds since the observation before the last one kept.
	busy map[gpu.UUID]int64
}

// add keeps o; false where there is no more room. A gap is what is longer than stall, in milliseconds.
func (w *waiting) add(o Observation, stall int64) bool {
	n := len(w.kept)
	if n < 2 || !w.replaces(o, stall) {
		if n >= maxWaiting {
			return false
		}
		w.busy = nil
		if n > 0 {
			w.busy = weigh(nil, o.Busy, o.At.Boot-w.kept[n-1].At.Boot)
		}
		w.kept = append(w.kept, o)
		return true
	}
	before, last := &w.kept[n-2], &w.kept[n-1]
	w.busy = weigh(w.busy, o.Busy, o.At.Boot-last.At.Boot)
	o.Busy = make(map[gpu.UUID]int64, len(w.busy))
	for device, sum := range w.busy {
		o.Busy[device] = sum / max(o.At.Boot-before.At.Boot, 1)
	}
	xids := maps.Clone(last.XIDs)
	for x, count := range o.XIDs {
		if xids == nil {
			xids = map[XID]uint64{}
		}
		xids[x] += count
	}
	o.XIDs, o.Facts, o.watched = xids, slices.Concat(last.Facts, o.Facts), true
	*last = o
	return true
}

// weigh adds busy x span to sums.
func weigh(sums, busy map[gpu.UUID]int64, span int64) map[gpu.UUID]int64 {
	if sums == nil {
		sums = make(map[gpu.UUID]int64, len(busy))
	}
	for device, millionths := range busy {
		sums[device] += millionths * span
	}
	return sums
}

// replaces says whether the last one kept may be left out, because the one before it, it and o tell the same.
func (w *waiting) replaces(o Observation, stall int64) bool {
	n := len(w.kept)
	before, last := &w.kept[n-2], &w.kept[n-1]
	if o.At.Boot-last.At.Boot > stall || last.At.Boot-before.At.Boot > stall && !last.watched {
		return false
	}
	if len(last.XIDs)+len(last.Facts) > 0 && last.At.Boot-w.kept[0].At.Boot < apartFor {
		return false
	}
	return o.At.Boot-before.At.Boot <= waitingSpan && o.At.Boot >= last.At.Boot && tellTheSame(before, last) && tellTheSame(last, &o)
}

// tellTheSame says whether two observations differ only in what is measured.
func tellTheSame(a, b *Observation) bool {
	samePod := func(p, q Pod) bool {
		return p.Namespace == q.Namespace && p.Name == q.Name && p.UID == q.UID && p.WorkloadKind == q.WorkloadKind &&
			p.Workload == q.Workload && maps.Equal(p.Labels, q.Labels)
	}
	return a.At.BootID == b.At.BootID && a.Basis == b.Basis && slices.Equal(a.Cards, b.Cards) &&
		slices.EqualFunc(a.Lines, b.Lines, sameLine) && slices.EqualFunc(a.Pods, b.Pods, samePod) && maps.Equal(a.NodeLabels, b.NodeLabels)
}

// sameLine compares the fractions as numbers.
func sameLine(a, b Line) bool {
	if !a.Weight.Equal(b.Weight) || !a.Part.Equal(b.Part) || !a.Memory.Equal(b.Memory) {
		return false
	}
	a.Weight, a.Part, a.Memory = b.Weight, b.Part, b.Memory
	return a == b
}
