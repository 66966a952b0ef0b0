// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// addLedger says how the book of charges fares, and what is on disk of it. There is nothing to say where
// no book is kept; nothing of the totals before they are on disk.
func (f *ownFamilies) addLedger() {
	v := f.snapshot.Ledger
	if v == nil {
		return
	}
	f.addBookState(v)
	f.addConservation(v)
	if !meter.Committed(v) {
		return
	}
	f.addLedgerIdentity(v.Totals)
	c := newCharges(f, v)
	c.addCards()
	c.addNamespaces()
	if !f.cfg.NoPodCharges {
		c.addPods()
	}
}

func (f *ownFamilies) addBookState(v *ledger.View) {
	s, none := &v.State, f.set()
	f.begin("gpumeter_ledger_degraded", "Whether charges are in memory only because the disk does not take them; a restart loses them then. 0 where none is to be written.", kindGauge)
	f.count(none, truth(s.Degraded))
	f.begin("gpumeter_ledger_pending_records", "Records of the ledger that wait for the disk.", kindGauge)
	f.count(none, int64(s.Pending))
	f.begin("gpumeter_ledger_errors_total", "What failed about the ledger since the exporter began, by what was being done.", kindCounter)
	for _, operation := range ledger.BookErrors() {
		f.count(f.set("operation", operation), int64(s.Errors[operation]))
	}
	if s.Restored != "" {
		f.begin("gpumeter_ledger_restored", "What was found of the ledger at the start: restored, new (there was none), previous (a part was damaged, what could be was taken from elsewhere), corrupt, newer or unread; always 1.", kindGauge)
		f.count(f.set("state", string(s.Restored)), 1)
	}
	if !s.Durable {
		return
	}
	f.begin("gpumeter_ledger_size_bytes", "Size of the ledger's log on disk.", kindGauge)
	f.count(none, s.Size)
	f.begin("gpumeter_ledger_oldest_timestamp_seconds", "When the oldest record in the ledger's log was made, in Unix time; what came before is in the totals only.", kindGauge)
	f.instant(none, s.Oldest)
}

// addConservation is the check that the books balance: what a card's totals lack in all the time of the
// ledger, in exact arithmetic, and what its lines lack to a whole card now.
func (f *ownFamilies) addConservation(v *ledger.View) {
	off := make(map[gpu.UUID]float64, len(v.Unbalanced))
	for card, lack := range v.Unbalanced {
		off[card] += magnitude(lack)
	}
	if v.Totals != nil {
		for i := range v.Totals.Cards {
			c := &v.Totals.Cards[i]
			off[c.UUID] += magnitude(imbalance(c)) / 1000
		}
	}
	f.begin("gpumeter_conservation_error_gpu_seconds", "By how much what was held of a GPU and what was not differ from all of it, by the ledger and now; always 0, or the meter is wrong.", kindGauge)
	for _, card := range slices.Sorted(maps.Keys(off)) {
		f.number(f.set("UUID", string(card)), off[card])
	}
}

// imbalance is capacity and corrections less what was allocated and what was not, in GPU-milliseconds.
func imbalance(c *ledger.CardTotal) sharing.Fraction {
	sum := c.Capacity.GPU.Sub(c.Allocated.GPU)
	for _, a := range c.Corrected {
		sum = sum.Add(a.GPU)
	}
	for _, a := range c.Unallocated {
		sum = sum.Sub(a.GPU)
	}
	return sum
}

func magnitude(v sharing.Fraction) float64 {
	if v.Sign() < 0 {
		return -v.Float64()
	}
	return v.Float64()
}

// addLedgerIdentity says which ledger it is and as of when its totals are.
func (f *ownFamilies) addLedgerIdentity(t *ledger.Totals) {
	id := f.set("ledger_id", t.LedgerID)
	f.begin("gpumeter_ledger_info", "Which ledger the totals are of: its id stays as long as its disk, whatever restarts; always 1.", kindGauge)
	f.count(f.labels.extend(id, label{"node", t.Node}, label{"cluster", t.Cluster}, label{"policy", f.cfg.Policy}), 1)
	f.begin("gpumeter_ledger_created_timestamp_seconds", "When the ledger began, in Unix time.", kindGauge)
	f.instant(id, t.Created)
	f.begin("gpumeter_ledger_commit_timestamp_seconds", "As of when the totals on this page are, in Unix time: all of them are on disk.", kindGauge)
	f.instant(id, time.UnixMilli(t.At.Wall))
	f.begin("gpumeter_ledger_sequence", "Number of the last record of the ledger that the totals on this page have.", kindGauge)
	f.count(id, int64(t.Sequence))
	f.begin("gpumeter_observation_gap_seconds_total", "Time in which nobody looked, by why; what could be proven of it is charged all the same.", kindCounter)
	for _, reason := range ledger.GapReasons() {
		f.number(f.labels.extend(id, label{"reason", reason}), float64(t.Gaps[reason])/1e3)
	}
	f.begin("gpumeter_node_label", "A label of the node, as far as it is asked for; always 1.", kindGauge)
	for _, name := range slices.Sorted(maps.Keys(t.NodeLabels)) {
		f.count(f.labels.extend(id, label{"label", name}, label{"value", t.NodeLabels[name]}), 1)
	}
}
