// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// The fields that charges are made of.
const (
	fieldEnergy  gpu.FieldID = 156
	fieldGPUUtil gpu.FieldID = 203
	fieldFBTotal gpu.FieldID = 250
	fieldEngine  gpu.FieldID = 1001
)

// bookFields are asked for where there is a Book. The engine's activity is not among them: its hardware counters
// are for one program at a time, so it is used where somebody else wants it.
func bookFields() []gpu.FieldID { return []gpu.FieldID{fieldEnergy, fieldGPUUtil, fieldFBTotal} }

// processClock is the time since the meter was made, for those who have no better one.
func processClock() func() ledger.Instant {
	began := time.Now()
	return func() ledger.Instant {
		now := time.Now()
		return ledger.Instant{BootID: "process", Boot: now.Sub(began).Milliseconds(), Wall: now.UnixMilli()}
	}
}

// scene is a tick as a Book is to know it.
type scene struct {
	situation sharing.Situation
	division  *sharing.Division
	weights   map[gpu.UUID]sharing.Fraction
	reading   *gpu.Reading
	// fresh says that the reading is this tick's, answered that there ever was one.
	fresh, answered bool
	// asked is when the listing was asked for that the situation has.
	asked time.Time
	// pods are what more is known of those that hold something.
	pods []ledger.Pod

	report *health.Report
	// xids are all that were counted in this process.
	xids map[XIDKey]uint64
}

// observer turns ticks into observations. It is for the Meter's loop alone.
type observer struct {
	clock  func() ledger.Instant
	labels func() map[string]string
	memory sharing.Policy
	// frames is each card's frame buffer in MiB as far as it was ever told.
	frames map[gpu.UUID]int64
	// statuses and conflicts are those of the tick before.
	statuses  map[gpu.UUID]health.Status
	conflicts map[sharing.Conflict]bool
	// xids and facts wait for the next observation.
	xids  map[ledger.XID]uint64
	facts []ledger.Fact
}

func newObserver(cfg Config, memory sharing.Policy) *observer {
	o := &observer{
		clock: cfg.Clock, labels: cfg.NodeLabels, memory: memory,
		frames: map[gpu.UUID]int64{}, statuses: map[gpu.UUID]health.Status{}, xids: map[ledger.XID]uint64{},
	}
	for _, v := range cfg.HealthState.Report().Verdicts {
		o.statuses[v.Device] = v.Status
	}
	return o
}

// gather takes over what a tick has to say that the next one will not say again.
func (o *observer) gather(s *scene) {
	for _, e := range s.reading.Events {
		if e.Kind == gpu.EventXID {
			o.xids[ledger.XID{GPU: e.GPU, GPUInstance: e.GPUInstance, ComputeInstance: e.ComputeInstance, Code: e.Code}]++
		}
	}
	o.gatherVerdicts(s.report)
	conflicts := make(map[sharing.Conflict]bool, len(s.division.Conflicts))
	for _, c := range s.division.Conflicts {
		conflicts[c] = true
		if !o.conflicts[c] {
			o.facts = append(o.facts, conflictFact(c))
		}
	}
	o.conflicts = conflicts
}

func (o *observer) gatherVerdicts(r *health.Report) {
	statuses := make(map[gpu.UUID]health.Status, len(r.Verdicts))
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		statuses[v.Device] = v.Status
		was, known := o.statuses[v.Device]
		if was == v.Status || !known && v.Status == health.Healthy {
			continue
		}
		detail := map[string]string{"status": v.Status.String()}
		if known {
			detail["was"] = was.String()
		}
		text := fmt.Sprintf("%s is %s", v.Device, v.Status)
		if v.Reason != "" {
			text += ": " + v.Reason
		}
		o.facts = append(o.facts, ledger.Fact{What: ledger.FactHealth, Device: v.Device, Text: text, Detail: detail})
	}
	o.statuses = statuses
}

func conflictFact(c sharing.Conflict) ledger.Fact {
	detail := map[string]string{"kind": c.Kind, "loser": c.Loser.Namespace + "/" + c.Loser.Pod + "/" + c.Loser.Container}
	text := fmt.Sprintf("%s/%s is not charged for %s: %s", c.Loser.Namespace, c.Loser.Pod, c.Device, c.Kind)
	if c.Winner != (sharing.Holder{}) {
		detail["winner"] = c.Winner.Namespace + "/" + c.Winner.Pod + "/" + c.Winner.Container
		text += fmt.Sprintf("; %s/%s is", c.Winner.Namespace, c.Winner.Pod)
	}
	return ledger.Fact{What: ledger.FactConflict, Device: c.Device, Text: text, Detail: detail}
}

// observation is the tick and what waited for it.
func (o *observer) observation(s *scene) ledger.Observation {
	out := ledger.Observation{At: o.clock(), XIDs: o.xids, Facts: o.facts}
	o.xids, o.facts = map[ledger.XID]uint64{}, nil
	if s.fresh {
		o.measure(s.reading, &out)
	}
	for i := range s.situation.Devices {
		if d := &s.situation.Devices[i]; !d.IsMIG() {
			out.Cards = append(out.Cards, ledger.Card{UUID: d.UUID, Index: d.Index, Model: d.Model, Memory: o.frames[d.UUID]})
		}
	}
	out.Lines = ledger.Lines(s.situation.Devices, s.weights, *s.division, o.divideMemory(s))
	if o.labels != nil {
		out.NodeLabels = o.labels()
	}
	out.Pods = s.pods
	return out
}

// divideMemory is the division by memory: the other one unless there are MIG devices, which are
// weighed by more than their memory.
func (o *observer) divideMemory(s *scene) sharing.Division {
	cut := slices.ContainsFunc(s.situation.Devices, func(d gpu.Device) bool { return d.IsMIG() })
	if !cut || s.situation.Policy.Name() == o.memory.Name() {
		return *s.division
	}
	again := s.situation
	again.Policy = o.memory
	return sharing.Attribute(again)
}

// holding are those of the pods that are charged for something, or hold it uncharged.
func holding(pods []ledger.Pod, d *sharing.Division) []ledger.Pod {
	if len(pods) == 0 {
		return nil
	}
	type name struct{ namespace, pod string }
	held := make(map[name]bool, len(d.Shares))
	for i := range d.Shares {
		held[name{d.Shares[i].Holder.Namespace, d.Shares[i].Holder.Pod}] = true
	}
	for i := range d.Unallocated {
		held[name{d.Unallocated[i].Holder.Namespace, d.Unallocated[i].Holder.Pod}] = true
	}
	return filter(pods, func(p ledger.Pod) bool { return held[name{p.Namespace, p.Name}] })
}

// instance is a physical GPU, with gpu.NoInstance, or one of its GPU instances.
type instance struct {
	card gpu.UUID
	id   int
}

// places is what a reading's instances are of its devices.
type places struct {
	// alone are the devices that what is measured on an instance is measured of: a card that is not divided, a MIG
	// device that has its GPU instance for itself.
	alone map[instance]gpu.UUID
	// memory are the memory slices of cards and of GPU instances, where they are known.
	memory map[instance]int64
}

func placesOf(devices []gpu.Device) places {
	p := places{alone: make(map[instance]gpu.UUID, len(devices)), memory: make(map[instance]int64, len(devices))}
	crowded := map[instance]bool{}
	for i := range devices {
		d := &devices[i]
		if !d.IsMIG() {
			whole := instance{d.UUID, gpu.NoInstance}
			p.alone[whole], p.memory[whole] = d.UUID, int64(d.Capacity.Memory)
			continue
		}
		crowded[instance{d.Parent, gpu.NoInstance}] = true
		at := instance{d.Parent, d.GPUInstance}
		if _, second := p.alone[at]; second {
			crowded[at] = true
		}
		p.alone[at], p.memory[at] = d.UUID, int64(d.Profile.Memory)
	}
	for at := range crowded {
		delete(p.alone, at)
	}
	return p
}

// columnsOf says where the fields are that charges are made of, -1 for nowhere.
type columnsOf struct{ energy, util, frame, engine int }

func bookColumns(fields []gpu.FieldID) columnsOf {
	return columnsOf{
		energy: slices.Index(fields, fieldEnergy), util: slices.Index(fields, fieldGPUUtil),
		frame: slices.Index(fields, fieldFBTotal), engine: slices.Index(fields, fieldEngine),
	}
}

// measure takes out of a reading what it says of energy, memory and activity. A device that does not tell is missing.
func (o *observer) measure(r *gpu.Reading, out *ledger.Observation) {
	columns, places := bookColumns(r.Fields), placesOf(r.Devices)
	out.Energy = map[gpu.UUID]int64{}
	engine, util := map[gpu.UUID]int64{}, map[gpu.UUID]int64{}
	for i := range r.Samples {
		s := &r.Samples[i]
		at := instance{s.Entity.GPU, s.Entity.ID}
		switch s.Entity.Kind {
		case gpu.KindGPU:
			at.id = gpu.NoInstance
			if v, ok := numberIn(s, columns.energy); ok && v >= 0 {
				out.Energy[at.card] = v
			}
			busyIn(s, columns.util, 1e4, places.alone[at], util)
		case gpu.KindGPUInstance:
		default:
			continue
		}
		if v, ok := numberIn(s, columns.frame); ok && v > 0 {
			o.frame(at, v, &places)
		}
		busyIn(s, columns.engine, 1e6, places.alone[at], engine)
	}
	out.Busy, out.Basis = util, ledger.BasisUtil
	if len(engine) > 0 {
		out.Busy, out.Basis = engine, ledger.BasisEngine
	}
}

// frame takes over the frame buffer of a card or of a GPU instance. That of a divided card is nobody's to tell: it is
// reckoned from the largest instance, as the drivers keep a little of each for themselves.
func (o *observer) frame(at instance, mebibytes int64, p *places) {
	if at.id == gpu.NoInstance {
		o.frames[at.card] = mebibytes
		return
	}
	whole, part := p.memory[instance{at.card, gpu.NoInstance}], p.memory[at]
	if whole > 0 && part > 0 && whole <= 1<<16 && mebibytes <= 1<<40 {
		o.frames[at.card] = max(o.frames[at.card], mebibytes*whole/part)
	}
}

// numberIn is a column of a sample, to the next whole number below.
func numberIn(s *gpu.Sample, column int) (int64, bool) {
	if column < 0 {
		return 0, false
	}
	if v, ok := s.Values[column].AsInt(); ok {
		return v, true
	}
	v, ok := s.Values[column].AsFloat()
	return int64(v), ok && v >= 0 && v < math.MaxInt64
}

// busyIn puts a column of a sample into busy, in millionths of all the time; scale is how many of them its unit has.
func busyIn(s *gpu.Sample, column int, scale float64, device gpu.UUID, busy map[gpu.UUID]int64) {
	if column < 0 || device == "" {
		return
	}
	if v, ok := s.Values[column].AsFloat(); ok && v >= 0 {
		busy[device] = int64(math.Round(min(v*scale, 1e6)))
	}
}
