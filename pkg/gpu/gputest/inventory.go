// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// inventoryIsWhole: every reading lists what is there, whatever was asked.
func inventoryIsWhole(s *subject) {
	r := s.settled()
	physical := cards(r)
	if len(physical) < 3 || physical[0].Index != 0 || physical[1].Index != 1 {
		s.Fatalf("the cards are %+v, want three or more from index 0", physical)
	}
	for _, c := range physical[:2] {
		if c.MIGEnabled || len(parts(r, c.UUID)) > 0 {
			s.Errorf("GPU %d is in MIG mode: %+v", c.Index, c)
		}
	}
	for _, c := range physical {
		if mig := parts(r, c.UUID); len(mig) > 0 && (c.Capacity.Compute == 0 || c.Capacity.Memory == 0) {
			s.Errorf("GPU %d has %d MIG devices and a capacity of %+v", c.Index, len(mig), c.Capacity)
		}
	}
	for _, problem := range layoutProblems(r) {
		s.Error(problem)
	}
	again := s.until("the same inventory without fields", nil, func(again gpu.Reading) string {
		return differs(r.Devices, again.Devices)
	})
	if again.Origin != r.Origin {
		s.Errorf("the origin was %+v and is %+v", r.Origin, again.Origin)
	}
	if r.Origin.Library == "" {
		s.Errorf("a reading from nowhere: %+v", r.Origin)
	}
}

func differs(want, got []gpu.Device) string {
	if fmt.Sprintf("%+v", want) != fmt.Sprintf("%+v", got) {
		return fmt.Sprintf("the devices are %+v, want %+v", got, want)
	}
	return ""
}

// layoutProblems: the GPU instances of a card fit on it together.
func layoutProblems(r gpu.Reading) []string {
	var problems []string
	for _, c := range cards(r) {
		var sum gpu.Slices
		taken := map[int]int{}
		counted := map[int]bool{}
		for _, d := range parts(r, c.UUID) {
			if counted[d.GPUInstance] {
				continue
			}
			counted[d.GPUInstance] = true
			sum.Compute += d.Profile.Compute
			sum.Memory += d.Profile.Memory
			for slice := range d.Placement.Size {
				if other, twice := taken[d.Placement.Start+slice]; twice {
					problems = append(problems, fmt.Sprintf("GPU %d: the instances %d and %d lie on memory slice %d",
						c.Index, other, d.GPUInstance, d.Placement.Start+slice))
				}
				taken[d.Placement.Start+slice] = d.GPUInstance
			}
		}
		if sum.Compute > c.Capacity.Compute || sum.Memory > c.Capacity.Memory {
			problems = append(problems, fmt.Sprintf("GPU %d: its instances have %+v of %+v", c.Index, sum, c.Capacity))
		}
	}
	return problems
}

// split is the first card with two GPU instances or more; the story is skipped without one.
func (s *subject) split(r gpu.Reading) gpu.Device {
	s.Helper()
	for _, c := range cards(r) {
		instances := map[int]bool{}
		for _, d := range parts(r, c.UUID) {
			instances[d.GPUInstance] = true
		}
		if len(instances) >= 2 {
			return c
		}
	}
	s.Skip("this machine has no card with two GPU instances")
	return gpu.Device{}
}

// migQuantitiesStandWhereTheyBelong: on a card with instances, power is the card's alone and
// memory the instances', and the instances' memory is within the card's.
func migQuantitiesStandWhereTheyBelong(s *subject) {
	r := s.settled()
	c := s.split(r)
	var instances, largest float64
	for _, d := range cards(r) {
		if total, ok := values(r, cardEntity(d.UUID))[fieldFBTotal].AsFloat(); ok && d.Model == c.Model {
			largest = max(largest, total)
		}
	}
	for _, sample := range r.Samples {
		if sample.Entity.Kind != gpu.KindGPUInstance || sample.Entity.GPU != c.UUID {
			continue
		}
		total, _ := values(r, sample.Entity)[fieldFBTotal].AsFloat()
		if total <= 0 || largest > 0 && total >= largest {
			s.Errorf("%+v has %v MiB, its card %v", sample.Entity, total, largest)
		}
		instances += total
	}
	if largest > 0 && instances > largest {
		s.Errorf("the instances of GPU %d have %v MiB together, the card %v", c.Index, instances, largest)
	}
	// That nothing stands out of its scope is held against every reading; here it is
	// seen that something stands in it.
	if card := values(r, cardEntity(c.UUID)); !card[fieldPower].Present() || card[fieldFBUsed].Reason() != gpu.ReasonScope {
		s.Errorf("the card has power %+v and memory %+v", card[fieldPower], card[fieldFBUsed])
	}
}

// repartitionIsSeen: after a repartition the readings have the new devices and not the old,
// and the other cards are as they were.
func repartitionIsSeen(s *subject) {
	s.needs(s.Repartition != nil, "change a layout")
	before := s.settled()
	c := s.split(before)
	s.Repartition(c.Index)
	old := parts(before, c.UUID)
	after := s.until("the new layout", counters(), func(r gpu.Reading) string {
		now := parts(r, c.UUID)
		gone := slices.ContainsFunc(old, func(d gpu.Device) bool { return !has(now, d.UUID) })
		come := slices.ContainsFunc(now, func(d gpu.Device) bool { return !has(old, d.UUID) })
		if !gone || !come {
			return fmt.Sprintf("the MIG devices are %+v", now)
		}
		return answers(r, c.Index)
	})
	for _, d := range parts(after, c.UUID) {
		for _, was := range old {
			// DCGM may number an instance anew that stayed where it was.
			was.InstanceEntity = d.InstanceEntity
			if d.UUID == was.UUID && differs([]gpu.Device{was}, []gpu.Device{d}) != "" {
				s.Errorf("the UUID of %+v is that of another device before: %+v", d, was)
			}
		}
	}
	for _, problem := range layoutProblems(after) {
		s.Error(problem)
	}
	rest := func(r gpu.Reading) []gpu.Device {
		return slices.DeleteFunc(slices.Clone(r.Devices), func(d gpu.Device) bool { return d.Parent == c.UUID })
	}
	if why := differs(rest(before), rest(after)); why != "" {
		s.Errorf("the rest of the node changed: %s", why)
	}
	s.more()
	if why := differs(after.Devices, s.last.Devices); why != "" {
		s.Errorf("the inventory went on changing: %s", why)
	}
}

func has(devices []gpu.Device, id gpu.UUID) bool {
	return slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.UUID == id })
}

// selectionChoosesSamples: the inventory is whole under every selection; the samples are the
// selection's, which is held against every reading. What instances have is told: by them where
// they are selected, and else by their card, for the whole of it.
func selectionChoosesSamples(s *subject) {
	whole := s.settled()
	texts := []string{"g:1", "g:0,2", "g", "g+i", "i"}
	for _, d := range whole.Devices {
		if d.IsMIG() {
			texts = append(texts, fmt.Sprintf("i:%d", d.InstanceEntity), fmt.Sprintf("g:0+i:%d", d.InstanceEntity))
			break
		}
	}
	for _, text := range texts {
		gpus, err := gpu.ParseSelection(text)
		if err != nil {
			s.Fatal(err)
		}
		chosen := newSubject(s.T, s.start, gpus)
		chosen.until("the whole inventory under "+text, counters(), func(r gpu.Reading) string {
			if len(r.Devices) != len(whole.Devices) {
				return fmt.Sprintf("%d devices, want %d", len(r.Devices), len(whole.Devices))
			}
			divided := dividedCards(r, gpus)
			for _, sample := range r.Samples {
				v := values(r, sample.Entity)
				isCard := sample.Entity.Kind == gpu.KindGPU
				if isCard && !v[fieldPower].Present() {
					return fmt.Sprintf("%+v does not answer", sample.Entity)
				}
				if !(isCard && divided[sample.Entity.GPU]) && !v[fieldFBUsed].Present() {
					return fmt.Sprintf("%+v has no memory: %s", sample.Entity, v[fieldFBUsed].Reason())
				}
			}
			return ""
		})
		if text == "g" {
			chosen.wholeMemory(whole)
		}
	}
}

// wholeMemory: the memory that a card answers for its instances is the card's and not that of one
// of them.
func (s *subject) wholeMemory(whole gpu.Reading) {
	s.Helper()
	for _, c := range cards(s.last) {
		total, _ := values(s.last, cardEntity(c.UUID))[fieldFBTotal].AsFloat()
		var instances float64
		for _, sample := range whole.Samples {
			if sample.Entity.Kind == gpu.KindGPUInstance && sample.Entity.GPU == c.UUID {
				mib, _ := values(whole, sample.Entity)[fieldFBTotal].AsFloat()
				instances += mib
			}
		}
		if total <= 0 || total < instances {
			s.Errorf("GPU %d has %v MiB, its instances %v together", c.Index, total, instances)
		}
	}
}
