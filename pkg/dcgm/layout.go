// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Fields that the source watches for itself, beside those that gpu has names for.
const (
	fieldMinor        gpu.FieldID = 55
	fieldMIGMaxSlices gpu.FieldID = 69
	fieldFBTotal      gpu.FieldID = 250
)

// Fields that say of a GPU's health what may withdraw it, or follows from that.
const (
	fieldDoubleBit      gpu.FieldID = 311
	fieldSRAMThreshold  gpu.FieldID = 346
	fieldRetiredSingle  gpu.FieldID = 390
	fieldRetiredDouble  gpu.FieldID = 391
	fieldRetiredPending gpu.FieldID = 392
	fieldRemapFailed    gpu.FieldID = 395
	fieldRemapPending   gpu.FieldID = 396
	fieldUnrepairable   gpu.FieldID = 1507
	fieldRecoveryAction gpu.FieldID = 1523
)

// kindOfWatch is why a field is watched. DCGM has one watch per entity and field of a client,
// and a second one replaces its period and what it keeps: so a field has one kind.
type kindOfWatch int

const (
	// watchValues: what is asked for.
	watchValues kindOfWatch = iota
	// watchProfiling: the same, apart, because watching it can fail as a whole.
	watchProfiling
	// watchIdentity: by what a device is seen to be another one than before.
	watchIdentity
	// watchStatics: what describes a device, and hardly changes.
	watchStatics
	// watchXIDs: events, of which none may be lost between two readings.
	watchXIDs
	// watchBind: GPUs being bound or unbound, apart, because DCGM refuses to end watches of
	// fields of the node.
	watchBind
	// watchLevels: what is asked for and says how healthy a GPU is, which must not be old.
	watchLevels
	// watchAction: what the driver wants done with a GPU, for the look between readings.
	watchAction

	kindsOfWatch
)

// String is the kind in messages.
func (k kindOfWatch) String() string {
	return [...]string{"the fields", "the profiling fields", "UUID and MIG mode", "name, minor number and memory", "XIDs", "bind events", "the levels of health", "the recovery action"}[k]
}

// askedWatch is how a field is watched that is asked for.
func askedWatch(id gpu.FieldID) kindOfWatch {
	switch id {
	case fieldDoubleBit, fieldSRAMThreshold, fieldRetiredSingle, fieldRetiredDouble, fieldRetiredPending,
		fieldRemapFailed, fieldRemapPending, fieldUnrepairable:
		return watchLevels
	case fieldRecoveryAction:
		return watchAction
	default:
		return watchValues
	}
}

// urgent reports whether a field may withdraw its GPU, so that a change need not wait for a reading.
func urgent(id gpu.FieldID) bool {
	switch id {
	case fieldDoubleBit, fieldSRAMThreshold, fieldRemapFailed, fieldUnrepairable, fieldRecoveryAction:
		return true
	default:
		return false
	}
}

// ownWatch is how a field is watched for the source itself, if it is.
func ownWatch(id gpu.FieldID) (kindOfWatch, bool) {
	switch id {
	case gpu.FieldUUID, gpu.FieldMIGMode:
		return watchIdentity, true
	case gpu.FieldName, fieldMinor, fieldMIGMaxSlices, fieldFBTotal:
		return watchStatics, true
	case gpu.FieldXID:
		return watchXIDs, true
	case gpu.FieldBindEvent:
		return watchBind, true
	default:
		return watchValues, false
	}
}

// glance are the fields that every reading looks at; bind says whether the library has the
// bind event.
func glance(bind bool) []gpu.FieldID {
	ids := []gpu.FieldID{gpu.FieldUUID, gpu.FieldMIGMode, gpu.FieldXID}
	if bind {
		ids = append(ids, gpu.FieldBindEvent)
	}
	return ids
}

// statics are the fields that describe a device, read when it is new.
func statics() []gpu.FieldID {
	return []gpu.FieldID{gpu.FieldName, gpu.FieldUUID, fieldMinor, fieldMIGMaxSlices, fieldFBTotal}
}

// setPlan is a DCGM group, what is watched on it, and what is read of it at each reading.
type setPlan struct {
	name    string
	members []entity
	// parted says that there are instances among the members, which change what they are.
	parted  bool
	watches [kindsOfWatch][]gpu.FieldID
	read    []gpu.FieldID
	// listen is what is looked at between readings; only in the first group of a GPU.
	listen []gpu.FieldID
}

// same reports whether p is for the same members and fields as another plan.
func (p *setPlan) same(other setPlan) bool {
	for kind := range kindsOfWatch {
		if !slices.Equal(p.watches[kind], other.watches[kind]) {
			return false
		}
	}
	return p.name == other.name && slices.Equal(p.members, other.members) && slices.Equal(p.read, other.read) &&
		slices.Equal(p.listen, other.listen)
}

// watchOf is how often a kind of field is sampled and what is kept of it: two samples, because
// only the last is read, but every XID for an hour. Where readings are far apart, the levels of
// health are sampled more often than they come.
func (p *setPlan) watchOf(kind kindOfWatch, interval time.Duration) (period, keep time.Duration, samples int32) {
	const (
		rarely = time.Minute
		events = time.Hour
		most   = 1000
		last   = 2
		levels = 10 * time.Second
		action = 2 * time.Second
	)
	period, samples = interval, last
	switch kind {
	case watchStatics:
		if !p.parted {
			period = max(interval, rarely)
		}
	case watchXIDs, watchBind:
		return interval, events, most
	case watchLevels:
		period = min(interval, levels)
	case watchAction:
		period = min(interval, action)
	default:
	}
	return period, max(3*period, 10*time.Second), samples
}

// instance is a GPU instance with its compute instances, in DCGM's and NVML's numbering.
type instance struct {
	id, nvml, slices int
	parts            []part
}

// part is a compute instance.
type part struct {
	id, nvml, slices int
}

func sameInstances(a, b []instance) bool {
	return slices.EqualFunc(a, b, func(x, y instance) bool {
		return x.id == y.id && x.nvml == y.nvml && x.slices == y.slices && slices.Equal(x.parts, y.parts)
	})
}

// cardPlan is what is needed to plan the groups of one GPU.
type cardPlan struct {
	id        uint32
	instances []instance
	cols      *columns
	gpus      gpu.Selection
	// offered says whether the GPU offers a profiling field.
	offered func(gpu.FieldID) bool
	// bind says whether the library has the bind event.
	bind bool
	// crowded says that there are so many GPUs that each can have one group only.
	crowded bool
}

// sets are the groups of a GPU; the first has what is watched for the source itself. A GPU
// without instances has one, of itself. One with instances has three, so that what the card
// has is asked of the card alone and what instances have of those alone that are read, or of the
// card where none is; events and UUIDs are
// those of compute instances too.
func (p cardPlan) sets() []setPlan {
	sets := p.unsorted()
	// The order of the fields must not make them another field group.
	for _, s := range sets {
		slices.Sort(s.read)
		slices.Sort(s.listen)
		for _, ids := range s.watches {
			slices.Sort(ids)
		}
	}
	return sets
}

func (p cardPlan) unsorted() []setPlan {
	card := []entity{{groupGPU, p.id}}
	name := fmt.Sprintf("gpumeter GPU %d", p.id)
	onCard := []gpu.Scope{gpu.ScopeNode}
	if p.gpus.Major(int(p.id)) {
		onCard = append(onCard, gpu.ScopeGPU)
	}
	read := func(i instance) bool { return p.gpus.Minor(i.id) }
	if len(onCard) > 1 && !slices.ContainsFunc(p.instances, read) {
		onCard = append(onCard, gpu.ScopeGPUInstance)
	}
	if len(p.instances) == 0 {
		own := setPlan{name: name, members: card, listen: p.listen(onCard)}
		p.watchOwn(&own)
		p.watchFields(&own, p.cols.ids(onCard...))
		return []setPlan{own}
	}
	all, chosen := slices.Clone(card), []entity(nil)
	for _, i := range p.instances {
		e := entity{groupGPUInstance, uint32(i.id)}
		all = append(all, e)
		if read(i) {
			chosen = append(chosen, e)
		}
		for _, c := range i.parts {
			all = append(all, entity{groupComputeInstance, uint32(c.id)})
		}
	}
	own := setPlan{name: name + " and instances", members: all, parted: true, listen: p.listen(onCard)}
	p.watchOwn(&own)
	if p.crowded {
		if len(chosen) > 0 {
			onCard = append(onCard, gpu.ScopeGPUInstance)
		}
		p.watchFields(&own, p.cols.ids(onCard...))
		return []setPlan{own}
	}
	sets := []setPlan{own}
	for _, s := range []struct {
		plan   setPlan
		scopes []gpu.Scope
	}{
		{setPlan{name: name, members: card}, onCard},
		{setPlan{name: name + " instances", members: chosen}, []gpu.Scope{gpu.ScopeGPUInstance}},
	} {
		p.watchFields(&s.plan, p.cols.ids(s.scopes...))
		if len(s.plan.members) > 0 && len(s.plan.read) > 0 {
			sets = append(sets, s.plan)
		}
	}
	return sets
}

// listen are the fields to look at between readings: XIDs, and what may withdraw the card, if it is
// asked for.
func (p cardPlan) listen(onCard []gpu.Scope) []gpu.FieldID {
	return append(slices.DeleteFunc(p.cols.ids(onCard...), func(id gpu.FieldID) bool { return !urgent(id) }), gpu.FieldXID)
}

// watchOwn adds what is watched for the source itself.
func (p cardPlan) watchOwn(s *setPlan) {
	s.read = append(s.read, glance(p.bind)...)
	for _, id := range append(glance(p.bind), statics()...) {
		kind, _ := ownWatch(id)
		if !slices.Contains(s.watches[kind], id) {
			s.watches[kind] = append(s.watches[kind], id)
		}
	}
}

// watchFields adds what is asked for. Fields that the source watches for itself are read where
// they are watched.
func (p cardPlan) watchFields(s *setPlan, ids []gpu.FieldID) {
	for _, id := range ids {
		_, own := ownWatch(id)
		switch {
		case own:
		case !id.Profiling():
			kind := askedWatch(id)
			s.watches[kind] = append(s.watches[kind], id)
		case p.offered(id):
			s.watches[watchProfiling] = append(s.watches[watchProfiling], id)
		default:
			continue
		}
		if !slices.Contains(s.read, id) {
			s.read = append(s.read, id)
		}
	}
}
