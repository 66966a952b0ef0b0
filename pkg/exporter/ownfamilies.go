// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// ownFamilies renders what gpumeter says in its own name.
type ownFamilies struct {
	*builder
	cfg      *Config
	settings *settings
	snapshot *meter.Snapshot
	node     *node
}

// addOwn adds gpumeter's families to b. The count of dropped series comes last,
// so that it is complete.
func addOwn(b *builder, cfg *Config, st *settings, s *meter.Snapshot, n *node, absent map[absence]int64) {
	f := &ownFamilies{builder: b, cfg: cfg, settings: st, snapshot: s, node: n}
	f.addBuild()
	f.addDeviceInfo()
	f.addWeights()
	f.addReplicas()
	f.addAllocationShares()
	f.addUnallocatedShares()
	f.addUnchargedShares()
	f.addUnattributed()
	f.addConflicts()
	f.addFaults()
	f.addVerdicts()
	f.addRestored()
	f.addStream()
	f.addLedger()
	f.addXIDs()
	f.addHealthTime()
	f.addAbsent(absent)
	f.addListing()
	f.addProcesses()
	f.addSampleTimes()
	f.addTicks()
	f.addSourceInfo()
	f.addSources()
	f.addConfig()
	f.addDropped()
	b.end()
}

func (f *ownFamilies) addBuild() {
	f.begin("gpumeter_build_info", "What this exporter was built from; always 1.", kindGauge)
	v := f.cfg.Build
	f.count(f.set("version", v.Version, "revision", v.Revision, "goversion", v.GoVersion), 1)
}

func (f *ownFamilies) addDeviceInfo() {
	f.begin("gpumeter_device_info", "A physical GPU or MIG device of this node, lost ones included; always 1.", kindGauge)
	set := make([]label, 0, 16)
	for i := range f.node.all {
		d := &f.node.all[i]
		index := strconv.Itoa(d.Index)
		set = append(set[:0],
			label{"UUID", string(d.Card())}, label{"gpu", index}, label{"device", "nvidia" + index},
			label{"pci_bus_id", d.PCIBusID}, label{"model", d.Model})
		if d.IsMIG() {
			set = append(set,
				label{"GPU_I_ID", strconv.Itoa(d.GPUInstance)},
				label{"GPU_I_PROFILE", instanceProfileName(d.Profile.Name)},
				label{"GPU_CI_ID", strconv.Itoa(d.ComputeInstance)},
				label{"mig_uuid", string(d.UUID)})
		}
		f.count(f.labels.intern(set), 1)
	}
}

func (f *ownFamilies) addUnattributed() {
	now := make(map[[2]string]int64)
	for _, u := range f.snapshot.Division.Unmatched {
		now[[2]string{u.Reason, u.Allocation.Resource}]++
	}
	f.begin("gpumeter_unattributed_allocations", "Device ids held by containers that could not be tied to a device of this node, by reason and resource.", kindGauge)
	for _, key := range slices.SortedFunc(maps.Keys(now), comparePairs) {
		f.count(f.set("reason", key[0], "resource", key[1]), now[key])
	}
	f.byWord("gpumeter_unattributed_total", "Device ids that could not be tied to a device of this node, each counted when it appeared.",
		"reason", f.snapshot.Totals.NotCharged,
		sharing.ReasonMalformedID, sharing.ReasonMalformedReplica, sharing.ReasonNumberTooLarge,
		sharing.ReasonUnknownDevice, sharing.ReasonAmbiguousDevice, sharing.ReasonNoGPUInstance,
		sharing.ReasonNoComputeInstance, sharing.ReasonAmbiguousInstance, sharing.ReasonClaimUnresolved)
}

func (f *ownFamilies) addConflicts() {
	now := make(map[string]uint64)
	for _, c := range f.snapshot.Division.Conflicts {
		now[c.Kind]++
	}
	f.begin("gpumeter_conflicting_allocations", "Allocations that contradict another one and are not charged, by kind.", kindGauge)
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		f.count(f.set("kind", kind), int64(now[kind]))
	}
	f.byWord("gpumeter_conflicts_total", "Allocations that contradicted another one, each counted when it appeared.",
		"kind", f.snapshot.Totals.Conflicts,
		sharing.ConflictExclusive, sharing.ConflictSeat, sharing.ConflictWholeAndReplicas,
		sharing.ConflictMIGParent, sharing.ConflictOverweight)
}

// byWord adds a counter family with one label. The known words are there from the
// start at 0, because the first increment of a counter that was not there is lost
// to increase().
func (f *ownFamilies) byWord(name, help, labelName string, totals map[string]uint64, known ...string) {
	words := slices.AppendSeq(known, maps.Keys(totals))
	slices.Sort(words)
	f.begin(name, help, kindCounter)
	for _, word := range slices.Compact(words) {
		f.count(f.set(labelName, word), int64(totals[word]))
	}
}

// addFaults says what is wrong now and counts what has been.
func (f *ownFamilies) addFaults() {
	f.begin("gpumeter_fault", "Something is wrong with a source or with one of its devices now; 1 while it lasts.", kindGauge)
	present := make(map[labelID]bool)
	for _, fault := range f.snapshot.Faults {
		id := f.set("source", fault.Source, "kind", fault.Kind, "UUID", string(fault.Subject))
		if !present[id] {
			present[id] = true
			f.count(id, 1)
		}
	}
	totals := f.snapshot.Totals.Faults
	f.begin("gpumeter_faults_total", "Faults by source and kind, counted in each tick in which they are present.", kindCounter)
	for _, key := range slices.SortedFunc(maps.Keys(totals), compareFaults) {
		f.count(f.set("source", key.Source, "kind", key.Kind), int64(totals[key]))
	}
}

func compareFaults(a, b meter.FaultKey) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Kind, b.Kind))
}

func comparePairs(a, b [2]string) int { return slices.Compare(a[:], b[:]) }

func (f *ownFamilies) addAbsent(absent map[absence]int64) {
	keys := slices.SortedFunc(maps.Keys(absent), func(a, b absence) int {
		return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.reason, b.reason))
	})
	f.begin("gpumeter_absent_values", "Devices that have no value of a configured field, by reason.", kindGauge)
	for _, key := range keys {
		f.count(f.set("field", key.row, "reason", key.reason.String()), absent[key])
	}
}

// addListing says what the allocation source listed, which is nothing where nobody
// could see the allocations.
func (f *ownFamilies) addListing() {
	if !f.snapshot.Observed {
		return
	}
	l := &f.snapshot.Listing
	f.begin("gpumeter_skipped_allocations", "Entries of the allocation source that could not be used, by reason.", kindGauge)
	for _, reason := range slices.Sorted(maps.Keys(l.Skipped)) {
		f.count(f.set("reason", reason), int64(l.Skipped[reason]))
	}
	// A resource that is held or on record and not advertised has lost its plugin.
	ids := make(map[string]int64)
	for _, a := range l.Allocations {
		if a.Claim == "" {
			ids[a.Resource] += 0
		}
	}
	for _, a := range l.Registered {
		ids[a.Resource] += 0
	}
	for _, a := range l.Advertised {
		ids[a.Resource]++
	}
	f.begin("gpumeter_advertised_devices", "Device ids that the kubelet could hand out now, healthy ones only, by resource; 0 while the device plugin is away.", kindGauge)
	for _, resource := range slices.Sorted(maps.Keys(ids)) {
		f.count(f.set("resource", resource), ids[resource])
	}
	f.begin("gpumeter_kubelet_pods", "Pods that the kubelet listed, with and without GPUs.", kindGauge)
	f.count(f.set(), int64(l.Pods))
	f.begin("gpumeter_kubelet_containers", "Containers that the kubelet listed, with and without GPUs.", kindGauge)
	f.count(f.set(), int64(l.Containers))
}

// addProcesses counts processes on each device that can be reached. A process on a
// divided card whose GPU instance the driver did not name is counted on the card.
func (f *ownFamilies) addProcesses() {
	if f.snapshot.Reading.Processes == nil {
		return
	}
	counts := make(map[instanceKey]int64)
	// Processes are listed whatever is selected.
	parted := make(map[gpu.UUID]bool)
	for key := range f.node.instances {
		parted[key.card] = true
	}
	for _, p := range f.snapshot.Reading.Processes {
		key := instanceKey{p.GPU, p.GPUInstance}
		if _, ok := f.node.instances[key]; !ok {
			key.id = gpu.NoInstance
		}
		counts[key]++
	}
	f.begin("gpumeter_device_processes", "Processes that the driver sees on a GPU or GPU instance.", kindGauge)
	for _, card := range f.node.cards {
		if n := counts[instanceKey{card.UUID, gpu.NoInstance}]; n > 0 || !card.Lost && !parted[card.UUID] {
			f.count(f.set("UUID", string(card.UUID)), n)
		}
	}
	keys := slices.SortedFunc(maps.Keys(f.node.instances), func(a, b instanceKey) int {
		return cmp.Or(cmp.Compare(f.index(a.card), f.index(b.card)), cmp.Compare(a.card, b.card), cmp.Compare(a.id, b.id))
	})
	for _, key := range keys {
		if card := f.node.devices[key.card]; card == nil || !card.Lost || counts[key] > 0 {
			f.count(f.set("UUID", string(key.card), "GPU_I_ID", strconv.Itoa(key.id)), counts[key])
		}
	}
}

func (f *ownFamilies) index(card gpu.UUID) int {
	if d, ok := f.node.devices[card]; ok {
		return d.Index
	}
	return gpu.NoInstance
}

func (f *ownFamilies) addSampleTimes() {
	f.begin("gpumeter_device_sample_timestamp_seconds", "When the values of a GPU or GPU instance were read, in Unix time.", kindGauge)
	for i := range f.snapshot.Reading.Samples {
		s := &f.snapshot.Reading.Samples[i]
		switch s.Entity.Kind {
		case gpu.KindGPU:
			f.instant(f.set("UUID", string(s.Entity.GPU)), s.Time)
		case gpu.KindGPUInstance:
			f.instant(f.set("UUID", string(s.Entity.GPU), "GPU_I_ID", strconv.Itoa(s.Entity.ID)), s.Time)
		}
	}
}

func (f *ownFamilies) addTicks() {
	s, none := f.snapshot, f.set()
	f.begin("gpumeter_ticks_total", "Ticks of the meter since it began.", kindCounter)
	f.count(none, int64(s.Totals.Ticks))
	f.begin("gpumeter_late_ticks_total", "Ticks that began more than half an interval after their moment.", kindCounter)
	f.count(none, int64(s.Totals.LateTicks))
	f.begin("gpumeter_alarmed_ticks_total", "Ticks beside the interval, because of news that cannot wait; they are among the ticks.", kindCounter)
	f.count(none, int64(s.Totals.Alarmed))
	f.begin("gpumeter_tick_interval_seconds", "Time between ticks.", kindGauge)
	f.number(none, s.Interval.Seconds())
	if s.Seq == 0 {
		return
	}
	f.begin("gpumeter_tick_duration_seconds", "How long the last tick took.", kindGauge)
	f.number(none, s.Took.Seconds())
	f.begin("gpumeter_snapshot_timestamp_seconds", "When the last tick was complete, in Unix time.", kindGauge)
	f.instant(none, s.Time)
}

func (f *ownFamilies) addSources() {
	each := func(name, help string, add func(labelID, *meter.SourceState)) {
		f.begin(name, help, kindGauge)
		for i := range f.snapshot.Sources {
			source := &f.snapshot.Sources[i]
			add(f.set("source", source.Name), source)
		}
	}
	each("gpumeter_source_up", "Whether a source answered in the last tick.", func(id labelID, s *meter.SourceState) {
		f.count(id, truth(s.Up))
	})
	each("gpumeter_source_age_seconds", "Age of a source's last good answer at the last tick.", func(id labelID, s *meter.SourceState) {
		if s.Age >= 0 && !s.LastSuccess.IsZero() {
			f.number(id, s.Age.Seconds())
		}
	})
	each("gpumeter_source_last_success_timestamp_seconds", "When a source's last good answer was complete, in Unix time.", func(id labelID, s *meter.SourceState) {
		f.instant(id, s.LastSuccess)
	})
	each("gpumeter_source_call_duration_seconds", "How long a source's last finished call took.", func(id labelID, s *meter.SourceState) {
		// No call has finished yet where neither is set.
		if s.Took > 0 || !s.LastSuccess.IsZero() {
			f.number(id, s.Took.Seconds())
		}
	})
	each("gpumeter_source_outstanding_seconds", "How long a call that a source has not answered has been running; 0 for none.", func(id labelID, s *meter.SourceState) {
		f.number(id, s.Outstanding.Seconds())
	})
}

func (f *ownFamilies) addConfig() {
	none := f.set()
	f.begin("gpumeter_config_last_reload_successful", "Whether the configuration was taken the last time it was read.", kindGauge)
	f.count(none, truth(f.settings.failed == nil))
	f.begin("gpumeter_config_last_reload_success_timestamp_seconds", "When the configuration in use was taken, in Unix time.", kindGauge)
	f.instant(none, f.settings.taken)
	f.begin("gpumeter_config_problems", "Problems in the configuration in use, by severity.", kindGauge)
	for _, severity := range []Severity{SeverityError, SeverityWarning} {
		f.count(f.set("severity", severity.String()), f.settings.problems[severity])
	}
}

func (f *ownFamilies) addDropped() {
	f.begin("gpumeter_dropped_series", "Series left out of this page because they would make it invalid, by reason.", kindGauge)
	for _, reason := range []string{dropDuplicate, dropInvalidLabels, dropInvalidName, dropUnknownDevice} {
		f.count(f.set("reason", reason), int64(f.dropped[reason]))
	}
}

func truth(v bool) int64 {
	if v {
		return 1
	}
	return 0
}
