// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The fields that the laws speak of.
const (
	fieldTemperature gpu.FieldID = 150
	fieldPower       gpu.FieldID = 155
	fieldEnergy      gpu.FieldID = 156
	fieldFBTotal     gpu.FieldID = 250
	fieldFBFree      gpu.FieldID = 251
	fieldFBUsed      gpu.FieldID = 252
	fieldFBReserved  gpu.FieldID = 253
	// fieldUnknown is in no catalogue.
	fieldUnknown gpu.FieldID = 64999
)

// counters are what the stories ask for: dcgm-exporter's default counters and a few more.
func counters() []gpu.FieldID {
	return []gpu.FieldID{
		gpu.FieldDriverVersion, 100, 101, gpu.FieldClockReasons, 140, fieldTemperature, fieldPower, fieldEnergy,
		202, 203, 204, 206, 207, gpu.FieldXID, fieldFBTotal, fieldFBFree, fieldFBUsed, fieldFBReserved, 254,
		393, 394, 395, 449, 526, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010,
	}
}

// bounds are what the values of a field can be, in its unit.
func bounds() map[gpu.FieldID][2]float64 {
	b := map[gpu.FieldID][2]float64{
		fieldTemperature: {0, 120}, 140: {0, 120}, // C
		fieldPower: {0, 2000}, 157: {0, 2000}, // W
		100: {0, 10000}, 101: {0, 20000}, // MHz
		fieldEnergy: {0, 1e15}, // mJ
		254:         {0, 1},
	}
	for _, id := range []gpu.FieldID{fieldFBTotal, fieldFBFree, fieldFBUsed, fieldFBReserved} {
		b[id] = [2]float64{0, 1 << 21} // MiB: a card with bytes or KiB in it shows
	}
	for _, id := range []gpu.FieldID{203, 204, 206, 207} {
		b[id] = [2]float64{0, 100} // percent
	}
	for id := gpu.FieldID(1001); id <= 1008; id++ {
		b[id] = [2]float64{0, 1}
	}
	return b
}

// cards are the physical GPUs of a reading.
func cards(r gpu.Reading) []gpu.Device {
	return slices.DeleteFunc(slices.Clone(r.Devices), gpu.Device.IsMIG)
}

// parts are the MIG devices of a card.
func parts(r gpu.Reading, card gpu.UUID) []gpu.Device {
	return slices.DeleteFunc(slices.Clone(r.Devices), func(d gpu.Device) bool { return d.Parent != card })
}

// cardAt is the physical GPU with an index.
func cardAt(r gpu.Reading, index int) (gpu.Device, bool) {
	for _, d := range r.Devices {
		if d.Index == index && !d.IsMIG() {
			return d, true
		}
	}
	return gpu.Device{}, false
}

// values are the answers of an entity by field.
func values(r gpu.Reading, e gpu.Entity) map[gpu.FieldID]gpu.Value {
	for _, s := range r.Samples {
		if s.Entity != e {
			continue
		}
		out := make(map[gpu.FieldID]gpu.Value, len(s.Values))
		for i, v := range s.Values {
			out[r.Fields[i]] = v
		}
		return out
	}
	return nil
}

func cardEntity(card gpu.UUID) gpu.Entity { return gpu.Entity{Kind: gpu.KindGPU, GPU: card} }

func instanceEntity(d gpu.Device) gpu.Entity {
	return gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.Parent, ID: d.GPUInstance}
}

// answers says what a card and its instances still owe, or "".
func answers(r gpu.Reading, index int) string {
	c, ok := cardAt(r, index)
	switch {
	case !ok:
		return fmt.Sprintf("GPU %d is not listed", index)
	case c.Lost:
		return fmt.Sprintf("GPU %d is lost", index)
	}
	for _, t := range r.Troubles {
		if t.GPU == c.UUID {
			return fmt.Sprintf("GPU %d is in trouble: %s %s", index, t.Reason, t.Text)
		}
	}
	owe := func(e gpu.Entity, fields ...gpu.FieldID) string {
		v := values(r, e)
		for _, id := range fields {
			if slices.Contains(r.Fields, id) && !v[id].Present() {
				return fmt.Sprintf("GPU %d: field %d of %+v is absent: %s", index, id, e, v[id].Reason())
			}
		}
		return ""
	}
	memory := []gpu.FieldID{fieldFBTotal, fieldFBFree, fieldFBUsed}
	whole := []gpu.FieldID{fieldPower, fieldEnergy, fieldTemperature}
	mig := parts(r, c.UUID)
	if len(mig) == 0 {
		whole = append(whole, memory...)
	}
	if why := owe(cardEntity(c.UUID), whole...); why != "" {
		return why
	}
	for _, d := range mig {
		if why := owe(instanceEntity(d), memory...); why != "" {
			return why
		}
	}
	return ""
}

// check holds a reading against what every reading must be.
func (s *subject) check(r gpu.Reading, fields []gpu.FieldID) {
	s.Helper()
	if !slices.Equal(r.Fields, fields) {
		s.Fatalf("asked for the fields %v, the columns are %v", fields, r.Fields)
	}
	if r.Source == "" || r.Time.IsZero() {
		s.Errorf("a reading of %q at %s", r.Source, r.Time)
	}
	if r.Time.Before(s.last.Time) {
		s.Errorf("a reading at %s after one at %s", r.Time, s.last.Time)
	}
	for _, problem := range slices.Concat(
		inventoryProblems(r.Devices), sampleProblems(r, s.gpus), valueProblems(r, s.gpus), companionProblems(r),
	) {
		s.Error(problem)
	}
	s.checkEnergy(r)
}

// checkEnergy sees that the counter of energy does not fall, but for a GPU that was away.
func (s *subject) checkEnergy(r gpu.Reading) {
	s.Helper()
	for _, c := range cards(r) {
		now, ok := values(r, cardEntity(c.UUID))[fieldEnergy].AsInt()
		if c.Lost {
			delete(s.energy, c.UUID)
			continue
		}
		if !ok {
			continue
		}
		if before, known := s.energy[c.UUID]; known && now < before {
			s.Errorf("GPU %d: its energy fell from %d to %d mJ", c.Index, before, now)
		}
		s.energy[c.UUID] = now
	}
	for id := range s.energy {
		if !slices.ContainsFunc(r.Devices, func(d gpu.Device) bool { return d.UUID == id }) {
			delete(s.energy, id)
		}
	}
}

// sampleProblems: there is one sample of each card and GPU instance that is selected, in the
// order of the devices, as wide as the fields.
func sampleProblems(r gpu.Reading, gpus gpu.Selection) []string {
	var problems []string
	var want, got []gpu.Entity
	for _, d := range r.Devices {
		switch {
		case !d.IsMIG() && gpus.Major(d.Index):
			want = append(want, cardEntity(d.UUID))
		case d.IsMIG() && gpus.Minor(d.InstanceEntity) && !slices.Contains(want, instanceEntity(d)):
			want = append(want, instanceEntity(d))
		}
	}
	for _, s := range r.Samples {
		got = append(got, s.Entity)
		if len(s.Values) != len(r.Fields) {
			problems = append(problems, fmt.Sprintf("%d values of %+v for %d fields", len(s.Values), s.Entity, len(r.Fields)))
		}
		if slices.ContainsFunc(s.Values, gpu.Value.Present) && s.Time.IsZero() || s.Time.After(r.Time) {
			problems = append(problems, fmt.Sprintf("a sample of %+v at %s in a reading at %s", s.Entity, s.Time, r.Time))
		}
	}
	got = slices.DeleteFunc(got, func(e gpu.Entity) bool {
		return e.Kind != gpu.KindGPU && e.Kind != gpu.KindGPUInstance
	})
	if !slices.Equal(want, got) {
		problems = append(problems, fmt.Sprintf("samples (selection %s) of %v, want %v", gpus, got, want))
	}
	return problems
}

// valueProblems: a value has its field's type, lies in its bounds, and stands where the
// field is a quantity.
func valueProblems(r gpu.Reading, gpus gpu.Selection) []string {
	var problems []string
	limits := bounds()
	split := dividedCards(r, gpus)
	for _, s := range r.Samples {
		for i, v := range s.Values[:min(len(s.Values), len(r.Fields))] {
			field, known := gpu.FieldByID(r.Fields[i])
			say := func(format string, args ...any) {
				problems = append(problems, fmt.Sprintf("field %d of %+v ", r.Fields[i], s.Entity)+fmt.Sprintf(format, args...))
			}
			if outOfPlace(s.Entity, field.Scope, split[s.Entity.GPU]) && known && v.Reason() != gpu.ReasonScope {
				say("is out of its scope, but absent is %v for %s", !v.Present(), v.Reason())
			}
			if !v.Present() {
				continue
			}
			if !typed(v, field.Type) {
				say("is %+v, which is not of its type", v)
			}
			number, _ := v.AsFloat()
			if b, bound := limits[field.ID]; bound && (number < b[0] || number > b[1]) {
				say("is %v, beyond %v", number, b)
			}
		}
		problems = append(problems, memoryProblems(r, s.Entity)...)
	}
	return problems
}

// dividedCards are the cards of which at least one GPU instance is selected.
func dividedCards(r gpu.Reading, gpus gpu.Selection) map[gpu.UUID]bool {
	divided := map[gpu.UUID]bool{}
	for _, d := range r.Devices {
		if d.IsMIG() && gpus.Minor(d.InstanceEntity) {
			divided[d.Parent] = true
		}
	}
	return divided
}

// outOfPlace reports whether a field of a scope is no quantity of the entity: what the whole
// card has is not its instances', and what instances have is not the card's beside them, but
// its own where none of them is selected.
func outOfPlace(e gpu.Entity, scope gpu.Scope, split bool) bool {
	switch scope {
	case gpu.ScopeGPU:
		return e.Kind == gpu.KindGPUInstance
	case gpu.ScopeGPUInstance:
		return e.Kind == gpu.KindGPU && split
	default:
		return false
	}
}

func typed(v gpu.Value, as gpu.FieldType) bool {
	_, isText := v.AsText()
	_, isInt := v.AsInt()
	switch as {
	case gpu.FieldInt:
		return isInt
	case gpu.FieldFloat:
		return !isInt && !isText
	case gpu.FieldText:
		return isText
	default:
		return false
	}
}

// memoryProblems: what is free, used and reserved is not more than there is. A source may ask for
// each at an instant of its own, between which programs take memory and give it back.
func memoryProblems(r gpu.Reading, e gpu.Entity) []string {
	v := values(r, e)
	total, ok := v[fieldFBTotal].AsFloat()
	if !ok {
		return nil
	}
	var sum float64
	for _, id := range []gpu.FieldID{fieldFBFree, fieldFBUsed, fieldFBReserved} {
		n, _ := v[id].AsFloat()
		sum += n
	}
	if sum > total*1.01+64 {
		return []string{fmt.Sprintf("%+v has %v MiB free, used and reserved of %v", e, sum, total)}
	}
	return nil
}

// companionProblems: what stands beside the samples speaks of devices that are there, in order,
// and health and peers come only when asked for.
func companionProblems(r gpu.Reading) []string {
	var problems []string
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	position := map[gpu.UUID]int{}
	for i, d := range r.Devices {
		position[d.UUID] = i
	}
	for _, t := range r.Troubles {
		if _, ok := position[t.GPU]; t.GPU != "" && !ok || t.Reason == gpu.ReasonNone || t.Text == "" {
			say("an odd trouble: %+v", t)
		}
	}
	for _, p := range r.Processes {
		if _, ok := position[p.GPU]; !ok {
			say("a process of an unknown GPU: %+v", p)
		}
	}
	if !slices.IsSortedFunc(r.Processes, func(a, b gpu.Process) int {
		return cmp.Or(cmp.Compare(position[a.GPU], position[b.GPU]), cmp.Compare(a.PID, b.PID))
	}) {
		say("the processes are out of order: %+v", r.Processes)
	}
	for i, e := range r.Events {
		if e.Kind == 0 || e.GPU == "" || e.GPU.IsMIG() || e.Time.IsZero() || i > 0 && e.Time.Before(r.Events[i-1].Time) {
			say("an odd event, or out of order: %+v", e)
		}
	}
	if !slices.Contains(r.Fields, gpu.FieldHealthStatus) && (!r.Health.Time.IsZero() || len(r.Health.Incidents) > 0) {
		say("health that was not asked for: %+v", r.Health)
	}
	if !slices.Contains(r.Fields, gpu.FieldP2PStatus) && len(r.Peers) > 0 {
		say("peers that were not asked for: %+v", r.Peers)
	}
	return problems
}
