// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// clockEvents are dcgm-exporter's words for the bits of field 112.
var clockEvents = [len(meter.ClockReasons{})]string{
	"gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost",
	"sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks",
}

// linkStatuses are dcgm-exporter's words for DCGM's numbers.
var linkStatuses = [...]string{
	gpu.PeerOK:                   "OK",
	gpu.PeerChipsetNotSupported:  "ChipsetNotSupported",
	gpu.PeerGPUNotSupported:      "GPUNotSupported",
	gpu.PeerTopologyNotSupported: "TopologyNotSupported",
	gpu.PeerDisabledByRegKey:     "DisabledByRegKey",
	gpu.PeerNotSupported:         "NotSupported",
	gpu.PeerUnknown:              "Unknown",
}

// addComputed adds one of the families that dcgm-exporter computes, with the labels it
// gives them. The reading has no column for it.
func (f *deviceFamilies) addComputed(row *Counter) {
	f.beginForeign(row.Name, row.Help, counterKinds[row.Type])
	switch row.Field.ID {
	case gpu.FieldXIDErrorsCount:
		f.addXIDsInWindow()
	case gpu.FieldXIDErrorsTotal:
		f.addXIDTotals()
	case gpu.FieldClockEventsCount:
		f.addClocksInWindow(row)
	case gpu.FieldClockEventsTotal:
		f.addClockTotals(row)
	case gpu.FieldHealthStatus:
		f.addHealth(row)
	case gpu.FieldP2PStatus:
		f.addPeers(row)
	}
}

// extend adds a whole number under each of the sets with more labels.
func (f *deviceFamilies) extend(sets []labelID, n int64, more ...label) {
	for _, set := range sets {
		f.count(f.labels.extend(set, more...), n)
	}
}

// setsOf are the label sets of an entity, sampled or not: health and peers are not among
// the values of a sample, and an instance may be gone while its errors are still counted.
func (f *deviceFamilies) setsOf(e gpu.Entity) []labelID {
	for i := range f.entities {
		if f.entities[i].sample.Entity == e {
			return f.entities[i].sets
		}
	}
	return f.labelSets(&gpu.Sample{Entity: e})
}

// xidCounts are counts of XIDs on a GPU instance, or on the card where id is NoInstance.
type xidCounts map[instanceKey]map[int]uint64

func (c xidCounts) add(key instanceKey, xid int, n uint64) {
	if c[key] == nil {
		c[key] = make(map[int]uint64)
	}
	c[key][xid] += n
}

// addXIDsInWindow adds a series per entity and XID, and for an entity without any one of
// zero without the label xid, as dcgm-exporter has it.
func (f *deviceFamilies) addXIDsInWindow() {
	counts := make(xidCounts)
	for i := range f.snapshot.Recent {
		if e := &f.snapshot.Recent[i]; e.Kind == gpu.EventXID {
			counts.add(instanceKey{e.GPU, e.GPUInstance}, e.Code, 1)
		}
	}
	window := windowLabel(f.cfg.XIDWindow)
	f.eachXIDs(counts, func(sets []labelID, xids map[int]uint64) {
		if len(xids) == 0 {
			f.extend(sets, 0, window)
		}
		for _, xid := range slices.Sorted(maps.Keys(xids)) {
			f.extend(sets, int64(xids[xid]), window, label{"xid", strconv.Itoa(xid)})
		}
	})
}

// addXIDTotals adds a series per entity and XID. The codes that are alerted on are on every
// card from the start, because the first step of a counter that was not there is lost to
// increase(). An instance has those that it had.
func (f *deviceFamilies) addXIDTotals() {
	counts := make(xidCounts)
	for _, x := range f.cfg.XIDs.Alerted() {
		for card := range f.cards {
			counts.add(instanceKey{card, gpu.NoInstance}, x.Code, 0)
		}
	}
	for key, n := range f.snapshot.Totals.XIDs {
		counts.add(instanceKey{key.GPU, key.GPUInstance}, key.XID, n)
	}
	f.eachXIDs(counts, func(sets []labelID, xids map[int]uint64) {
		for _, xid := range slices.Sorted(maps.Keys(xids)) {
			f.extend(sets, int64(xids[xid]), label{"xid", strconv.Itoa(xid)})
		}
	})
}

// eachXIDs calls add for each sampled card and instance with its counts, then for the
// instances of sampled cards that are no longer there or not sampled: their errors were.
func (f *deviceFamilies) eachXIDs(counts xidCounts, add func([]labelID, map[int]uint64)) {
	for i := range f.entities {
		e := &f.entities[i]
		key := instanceKey{e.sample.Entity.GPU, gpu.NoInstance}
		switch e.sample.Entity.Kind {
		case gpu.KindGPU:
		case gpu.KindGPUInstance:
			key.id = e.sample.Entity.ID
		default:
			continue
		}
		add(e.sets, counts[key])
		delete(counts, key)
	}
	left := slices.SortedFunc(maps.Keys(counts), func(a, b instanceKey) int {
		return cmp.Or(cmp.Compare(a.card, b.card), cmp.Compare(a.id, b.id))
	})
	for _, key := range left {
		if f.cards[key.card] != nil {
			add(f.setsOf(gpu.Entity{Kind: gpu.KindGPUInstance, GPU: key.card, ID: key.id}), counts[key])
		}
	}
}

// addClocksInWindow adds for each card the samples of the window in which a reason held
// its clocks back, and zero without the label clock_event where none did.
func (f *deviceFamilies) addClocksInWindow(row *Counter) {
	window := windowLabel(f.cfg.ClockWindow)
	f.eachCard(func(e *entity) {
		w := f.snapshot.RecentClocks[e.sample.Entity.GPU]
		switch {
		case w.Samples == 0:
			f.countAbsent(row, f.value(e.sample, gpu.FieldClockReasons).Reason())
		case w.Reasons == meter.ClockReasons{}:
			f.extend(e.sets, 0, window)
		}
		for bit, n := range w.Reasons {
			if n > 0 {
				f.extend(e.sets, int64(n), window, label{"clock_event", clockEvents[bit]})
			}
		}
	})
}

// addClockTotals adds a series for each card and reason, also for those that never were.
func (f *deviceFamilies) addClockTotals(row *Counter) {
	f.eachCard(func(e *entity) {
		total, known := f.snapshot.Totals.Clocks[e.sample.Entity.GPU]
		if !known {
			f.countAbsent(row, f.value(e.sample, gpu.FieldClockReasons).Reason())
			return
		}
		for bit, n := range total {
			f.extend(e.sets, int64(n), label{"clock_event", clockEvents[bit]})
		}
	})
}

func (f *deviceFamilies) eachCard(add func(*entity)) {
	for i := range f.entities {
		if e := &f.entities[i]; e.sample.Entity.Kind == gpu.KindGPU {
			add(e)
		}
	}
}

// addHealth adds a series for each checked card and system, with the worst that the last
// round found there. What was found on a GPU instance is a fault of its card's system.
func (f *deviceFamilies) addHealth(row *Counter) {
	report := &f.snapshot.Reading.Health
	f.countUntold(row, func(card gpu.UUID) bool {
		return !report.Time.IsZero() && slices.Contains(report.Checked, card)
	})
	if report.Time.IsZero() {
		return
	}
	type place struct {
		card   gpu.UUID
		system gpu.HealthSystem
	}
	systems := gpu.HealthSystems()
	worst := make(map[place]*gpu.HealthIncident)
	for i := range report.Incidents {
		incident := &report.Incidents[i]
		at := place{incident.GPU, incident.System}
		if !slices.Contains(systems, at.system) {
			at.system = gpu.HealthAll
		}
		if w := worst[at]; w == nil || incident.Result > w.Result {
			worst[at] = incident
		}
	}
	for _, card := range report.Checked {
		sets := f.setsOf(gpu.Entity{Kind: gpu.KindGPU, GPU: card})
		for _, system := range systems {
			result, code := gpu.HealthPass, 0
			if w := worst[place{card, system}]; w != nil {
				result, code = w.Result, w.Code
			}
			f.extend(sets, int64(result), label{"health_watch", string(system)}, label{"health_error_code", incidentCode(code)})
		}
	}
}

// addPeers adds a series for each way from one card to another.
func (f *deviceFamilies) addPeers(row *Counter) {
	if len(f.node.cards) > 1 {
		f.countUntold(row, func(card gpu.UUID) bool {
			return slices.ContainsFunc(f.snapshot.Reading.Peers, func(p gpu.Peer) bool { return p.From == card })
		})
	}
	for _, p := range f.snapshot.Reading.Peers {
		peer, known := f.node.devices[p.To]
		if !known {
			f.count(noDevice, 0)
			continue
		}
		status := linkStatuses[gpu.PeerUnknown]
		if p.Status >= 0 && int(p.Status) < len(linkStatuses) {
			status = linkStatuses[p.Status]
		}
		f.extend(f.setsOf(gpu.Entity{Kind: gpu.KindGPU, GPU: p.From}), int64(p.Status),
			label{"peer_gpu", strconv.Itoa(peer.Index)}, label{"link_status", status})
	}
}

// countUntold counts the sampled cards of which the reading does not say what is no field's value.
func (f *deviceFamilies) countUntold(row *Counter, told func(gpu.UUID) bool) {
	r := &f.snapshot.Reading
	f.eachCard(func(e *entity) {
		card := e.sample.Entity.GPU
		if told(card) {
			return
		}
		d := f.node.devices[card]
		troubled := func(with gpu.UUID, why gpu.Reason) bool {
			return slices.ContainsFunc(r.Troubles, func(t gpu.Trouble) bool { return t.GPU == with && t.Reason == why })
		}
		reason := gpu.ReasonBlank
		switch {
		case d != nil && d.Lost:
			reason = gpu.ReasonLost
		case troubled(card, gpu.ReasonTimeout):
			reason = gpu.ReasonTimeout
		case troubled("", gpu.ReasonNotSupported):
			reason = gpu.ReasonNotSupported
		}
		f.countAbsent(row, reason)
	})
}

func windowLabel(window time.Duration) label {
	return label{"window_size_in_ms", strconv.FormatInt(window.Milliseconds(), 10)}
}
