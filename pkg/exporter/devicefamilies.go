// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// deviceFamilies renders the operator's counters under the names and labels that
// dcgm-exporter gives them.
type deviceFamilies struct {
	*builder
	cfg      *Config
	names    deviceLabels
	rows     []Counter
	snapshot *meter.Snapshot
	// labelRows are the rows that add a label.
	labelRows []*Counter
	node      *node
	columns   map[gpu.FieldID]int
	// cards are the samples of the physical GPUs, where the labels of their parts
	// are looked up.
	cards    map[gpu.UUID]*gpu.Sample
	entities []entity
	absent   map[absence]int64
	// counted are the rows whose absent values are in absent: a metric and a label may
	// have one name.
	counted map[string]bool
	// pods are the labels that pods add to the series of what they hold.
	pods map[podKey][]label
	// jobs are the batch scheduler's of each GPU, by its index, and of each of its GPU instances.
	jobs map[jobKey][]string
	// explained is where the label sets of an XID are put together.
	explained []labelID
}

// entity is what a sample was taken of, with the label sets of its series: one, or
// one per holder.
type entity struct {
	sample *gpu.Sample
	sets   []labelID
}

// absence is what gpumeter_absent_values counts by.
type absence struct {
	row    string
	reason gpu.Reason
}

// deviceLabels are the label names that the flag for the 1.x names changes.
type deviceLabels struct{ uuid, container, namespace, pod string }

func newDeviceLabels(old bool) deviceLabels {
	if old {
		return deviceLabels{"uuid", "container_name", "pod_namespace", "pod_name"}
	}
	return deviceLabels{"UUID", "container", "namespace", "pod"}
}

// addDevices adds the families of rows to b and returns how many values were
// absent, by row and reason.
func addDevices(b *builder, cfg *Config, rows []Counter, s *meter.Snapshot, n *node) map[absence]int64 {
	f := &deviceFamilies{
		builder: b, cfg: cfg, names: newDeviceLabels(cfg.OldNamespace), rows: rows, snapshot: s, node: n,
		columns: make(map[gpu.FieldID]int, len(s.Reading.Fields)),
		cards:   make(map[gpu.UUID]*gpu.Sample),
		absent:  make(map[absence]int64),
		counted: make(map[string]bool),
	}
	for i, id := range s.Reading.Fields {
		f.columns[id] = i
	}
	for i := range s.Reading.Samples {
		if sample := &s.Reading.Samples[i]; sample.Entity.Kind == gpu.KindGPU {
			f.cards[sample.Entity.GPU] = sample
		}
	}
	f.labelRows = usableLabels(rows)
	f.pods = podLabels(cfg.PodLabels, s.Pods, f.labelRows)
	f.jobs = jobsOf(s.Jobs)
	f.entities = make([]entity, 0, len(s.Reading.Samples))
	for i := range s.Reading.Samples {
		if sample := &s.Reading.Samples[i]; f.shown(sample.Entity) {
			f.entities = append(f.entities, entity{sample, f.perJob(sample.Entity, f.labelSets(sample))})
		}
	}
	for i := range rows {
		f.addRow(&rows[i])
	}
	b.end()
	return f.absent
}

// shown reports whether a row can have a series of the entity: links are read for verdicts too.
func (f *deviceFamilies) shown(e gpu.Entity) bool {
	return e.Kind == gpu.KindGPU || e.Kind == gpu.KindGPUInstance ||
		slices.ContainsFunc(f.rows, func(row Counter) bool { return f.inScope(row.Field.Scope, e) })
}

// addRow adds one row's family, or counts the absent values of a label row.
func (f *deviceFamilies) addRow(row *Counter) {
	if row.Field.ID.Computed() {
		f.addComputed(row)
		return
	}
	if row.Type != TypeLabel {
		f.beginForeign(row.Name, row.Help, counterKinds[row.Type])
	}
	again := f.counted[row.Name]
	f.counted[row.Name] = true
	absent := func(r gpu.Reason) {
		if !again {
			f.countAbsent(row, r)
		}
	}
	for i := range f.entities {
		e := &f.entities[i]
		if !f.inScope(row.Field.Scope, e.sample.Entity) {
			continue
		}
		v := f.value(e.sample, row.Field.ID)
		_, isText := v.AsText()
		switch {
		case !v.Present():
			absent(v.Reason())
		case row.Type == TypeLabel:
		case isText:
			absent(gpu.ReasonType)
		default:
			sets := e.sets
			if row.Field.ID == gpu.FieldXID {
				sets = f.explain(sets, v)
			}
			for _, set := range sets {
				f.reading(set, v)
			}
		}
	}
}

// countAbsent counts a value that an entity should have and has not.
func (f *deviceFamilies) countAbsent(row *Counter, r gpu.Reason) {
	if r != gpu.ReasonScope {
		f.absent[absence{row.Name, r}]++
	}
}

// explain adds the code of an XID and what it means to the label sets of its series, as
// dcgm-exporter does. The result is good until the next call.
func (f *deviceFamilies) explain(sets []labelID, v gpu.Value) []labelID {
	code, ok := v.AsInt()
	if f.cfg.XIDs == nil || !ok {
		return sets
	}
	meaning := "no error"
	if code != 0 {
		meaning = f.cfg.XIDs.Lookup(int(code)).Name
	}
	f.explained = f.explained[:0]
	for _, set := range sets {
		f.explained = append(f.explained, f.labels.extend(set,
			label{"err_code", strconv.FormatInt(code, 10)}, label{"err_msg", meaning}))
	}
	return f.explained
}

var counterKinds = [...]kind{TypeGauge: kindGauge, TypeCounter: kindCounter, TypeUntyped: kindUntyped}

// inScope is the law that a quantity has one place: a card's quantity is on the
// card alone, a slice's on the GPU instances alone where there are any. Scopes that
// DCGM leaves open are the card's; their values exist where a source gave one.
func (f *deviceFamilies) inScope(scope gpu.Scope, e gpu.Entity) bool {
	switch e.Kind {
	case gpu.KindGPU:
		switch scope {
		case gpu.ScopeGPUInstance:
			return !f.node.divided[e.GPU]
		case gpu.ScopeLink, gpu.ScopeSwitch, gpu.ScopeCPU, gpu.ScopeCPUCore:
			return false
		default:
			return true
		}
	case gpu.KindGPUInstance:
		return scope == gpu.ScopeGPUInstance
	case gpu.KindLink:
		return scope == gpu.ScopeLink
	case gpu.KindSwitch:
		return scope == gpu.ScopeSwitch
	case gpu.KindCPU:
		return scope == gpu.ScopeCPU
	case gpu.KindCPUCore:
		return scope == gpu.ScopeCPUCore
	default:
		return false
	}
}

// value is a sample's answer for a field; a field that was not asked has none yet.
func (f *deviceFamilies) value(s *gpu.Sample, id gpu.FieldID) gpu.Value {
	if s == nil {
		return gpu.Absent(gpu.ReasonScope)
	}
	column, ok := f.columns[id]
	if !ok || column >= len(s.Values) {
		return gpu.Absent(gpu.ReasonBlank)
	}
	return s.Values[column]
}

// labelSets are the label sets of an entity's series. Where copies are asked for,
// there is one for each seat of each holder; otherwise a holder stands on the one
// series only if all of the entity is the holder's.
func (f *deviceFamilies) labelSets(s *gpu.Sample) []labelID {
	base, ok := f.entityLabels(f.scratch[:0], s)
	if !ok {
		return []labelID{noDevice}
	}
	// Labels are made one entity after another in one place, which grows to fit.
	f.scratch = base
	if f.cfg.VirtualGPUs && (s.Entity.Kind == gpu.KindGPU || s.Entity.Kind == gpu.KindGPUInstance) {
		if held := f.node.holdings(s.Entity); len(held) > 0 {
			return f.copies(base, held)
		}
	}
	holder, ok := f.holder(s.Entity)
	if ok {
		base = f.holderLabels(base, holder)
	}
	return []labelID{f.labels.intern(base)}
}

// holder is who holds all of what an entity measures.
func (f *deviceFamilies) holder(e gpu.Entity) (sharing.Holder, bool) {
	switch e.Kind {
	case gpu.KindGPUInstance:
		return f.node.instanceHolder(instanceKey{e.GPU, e.ID})
	case gpu.KindGPU, gpu.KindLink:
		return f.node.soleHolder(e.GPU)
	default:
		return sharing.Holder{}, false
	}
}

// copies are base with each holder's labels, once per seat. Shares that the labels
// do not tell apart have one copy.
func (f *deviceFamilies) copies(base []label, held []*sharing.Share) []labelID {
	sets := make([]labelID, 0, len(held))
	once := func(set []label) {
		if id := f.labels.intern(set); !slices.Contains(sets, id) {
			sets = append(sets, id)
		}
	}
	for _, share := range held {
		// Each copy is written over the last one's tail: intern keeps none of it.
		set := f.holderLabels(base, share.Holder)
		if len(share.SeatIDs) == 0 {
			once(set)
		}
		for _, seat := range share.SeatIDs {
			once(append(set, label{"vgpu", strconv.Itoa(seat)}))
		}
	}
	return sets
}

func (f *deviceFamilies) holderLabels(set []label, h sharing.Holder) []label {
	set = append(set,
		label{f.names.container, h.Container},
		label{f.names.namespace, h.Namespace},
		label{f.names.pod, h.Pod})
	if f.cfg.PodUID {
		set = append(set, label{"pod_uid", h.PodUID})
	}
	return append(set, f.pods[podKey{h.Namespace, h.Pod}]...)
}

// entityLabels appends the labels every series of an entity has, and reports whether
// the inventory knows the entity's GPU.
func (f *deviceFamilies) entityLabels(set []label, s *gpu.Sample) ([]label, bool) {
	e := s.Entity
	number := strconv.Itoa(e.ID)
	switch e.Kind {
	case gpu.KindGPU, gpu.KindGPUInstance:
		card, ok := f.node.devices[e.GPU]
		if !ok {
			return nil, false
		}
		set = f.cardLabels(set, card, f.names.uuid, "modelName")
		if e.Kind == gpu.KindGPUInstance {
			set = append(set,
				label{"GPU_I_PROFILE", f.node.instanceProfile(instanceKey{e.GPU, e.ID})},
				label{"GPU_I_ID", number})
		}
	case gpu.KindLink:
		set = append(set, label{"nvlink", number})
		if e.GPU == "" {
			set = append(set, label{"nvswitch", "nvswitch" + strconv.Itoa(e.Parent)})
			break
		}
		card, ok := f.node.devices[e.GPU]
		if !ok {
			return nil, false
		}
		set = f.cardLabels(set, card, "gpu_uuid", "model_name")
	case gpu.KindSwitch:
		set = append(set, label{"nvswitch", "nvswitch" + number})
	case gpu.KindCPU:
		set = append(set, label{"cpu", number})
	case gpu.KindCPUCore:
		set = append(set, label{"cpucore", number}, label{"cpu", strconv.Itoa(e.Parent)})
	default:
		return nil, false
	}
	set = append(set, label{f.cfg.HostnameLabel, f.cfg.Hostname})
	for _, row := range f.labelRows {
		set = append(set, label{row.Name, f.labelText(row, s)})
	}
	return set, true
}

func (f *deviceFamilies) cardLabels(set []label, d *gpu.Device, uuid, model string) []label {
	name := d.Model
	if f.cfg.ReplaceBlanksInModelName {
		name = strings.ReplaceAll(name, " ", "-")
	}
	index := strconv.Itoa(d.Index)
	return append(set,
		label{"gpu", index},
		label{uuid, string(d.UUID)},
		label{"pci_bus_id", d.PCIBusID},
		label{"device", "nvidia" + index},
		label{model, name})
}

// usableLabels are the label rows, without names that are taken: what identifies a
// device cannot be overwritten by a field, nor spoofed on the series that lack it.
func usableLabels(rows []Counter) []*Counter {
	var usable []*Counter
	seen := make(map[string]bool)
	for i := range rows {
		row := &rows[i]
		if row.Type != TypeLabel || builtinLabel(row.Name) || seen[row.Name] {
			continue
		}
		seen[row.Name] = true
		usable = append(usable, row)
	}
	return usable
}

// labelText is a label row's text on an entity, looked up where the field belongs:
// on the entity, on its GPU, and what is the node's on any GPU.
func (f *deviceFamilies) labelText(row *Counter, s *gpu.Sample) string {
	scope := row.Field.Scope
	if scope == gpu.ScopeNode || f.inScope(scope, s.Entity) {
		if text := valueText(f.value(s, row.Field.ID)); text != "" {
			return text
		}
	}
	if card := f.cards[s.Entity.GPU]; card != nil && f.inScope(scope, card.Entity) {
		if text := valueText(f.value(card, row.Field.ID)); text != "" {
			return text
		}
	}
	if scope != gpu.ScopeNode {
		return ""
	}
	for _, d := range f.node.cards {
		if text := valueText(f.value(f.cards[d.UUID], row.Field.ID)); text != "" {
			return text
		}
	}
	return ""
}

// valueText is a value as a label value, empty where it is absent.
func valueText(v gpu.Value) string {
	if text, ok := v.AsText(); ok {
		return text
	}
	if n, ok := v.AsInt(); ok {
		return strconv.FormatInt(n, 10)
	}
	if f, ok := v.AsFloat(); ok {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return ""
}
