// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// inventoryProblems: cards in the order of their indices, each before its MIG devices in the
// order of their GPU instances; every device complete and with a UUID of its own.
func inventoryProblems(devices []gpu.Device) []string {
	var problems []string
	say := func(d gpu.Device, what string) { problems = append(problems, fmt.Sprintf("%s: %+v", what, d)) }
	seen := map[gpu.UUID]bool{}
	var card, previous gpu.Device
	card.Index = -1
	for _, d := range devices {
		if seen[d.UUID] || d.UUID == "" {
			say(d, "a UUID that is empty or another's")
		}
		seen[d.UUID] = true
		if !d.IsMIG() {
			if d.Index <= card.Index {
				say(d, "out of the order of indices")
			}
			card = d
			for _, what := range cardProblems(d) {
				say(d, what)
			}
		} else {
			if d.Parent == previous.Parent && cmp.Or(cmp.Compare(d.GPUInstance, previous.GPUInstance),
				cmp.Compare(d.ComputeInstance, previous.ComputeInstance)) <= 0 {
				say(d, "out of the order of instances")
			}
			for _, what := range partProblems(d, card) {
				say(d, what)
			}
		}
		previous = d
	}
	return append(problems, entityProblems(devices)...)
}

func cardProblems(d gpu.Device) (problems []string) {
	if !strings.HasPrefix(string(d.UUID), "GPU-") || d.Model == "" || d.PCIBusID == "" || d.Minor < -1 {
		problems = append(problems, "a card without UUID, model or address")
	}
	if d.GPUInstance != gpu.NoInstance || d.ComputeInstance != gpu.NoInstance || d.InstanceEntity != gpu.NoInstance {
		problems = append(problems, "a card with an instance")
	}
	if d.Profile != (gpu.Profile{}) {
		problems = append(problems, "a card with a profile")
	}
	return problems
}

func partProblems(d, card gpu.Device) (problems []string) {
	if !d.UUID.IsMIG() || d.Parent != card.UUID || d.Index != card.Index || d.Minor != card.Minor || d.Lost != card.Lost {
		problems = append(problems, "a MIG device that does not follow its card")
	}
	if !card.MIGEnabled || d.MIGEnabled {
		problems = append(problems, "a MIG device of a card without MIG, or with MIG itself")
	}
	if d.GPUInstance < 0 || d.InstanceEntity < 0 || d.ComputeInstance < gpu.NoInstance {
		problems = append(problems, "a MIG device without an instance")
	}
	if d.Capacity != (gpu.Slices{}) || len(d.MIGProfiles) > 0 {
		problems = append(problems, "a MIG device with the capacity of a card")
	}
	p, whole := d.Profile, card.Capacity
	if p.Name == "" || p.Compute <= 0 || p.Memory <= 0 || p.Compute > whole.Compute || p.Memory > whole.Memory ||
		p.SMs > whole.SMs && whole.SMs > 0 || p.ComputeInstanceSlices > p.Compute {
		problems = append(problems, "a profile beyond its card")
	}
	if d.Placement.Start < 0 || d.Placement.Start+d.Placement.Size > whole.Memory {
		problems = append(problems, "a placement beyond its card")
	}
	return problems
}

// entityProblems: DCGM numbers the GPU instances through all cards, those of a card before
// those of the next, and each has one number.
func entityProblems(devices []gpu.Device) []string {
	var problems []string
	owner := map[int]gpu.Device{}
	highest := map[int]int{}
	for _, d := range devices {
		if !d.IsMIG() {
			continue
		}
		if o, taken := owner[d.InstanceEntity]; taken && (o.Parent != d.Parent || o.GPUInstance != d.GPUInstance) {
			problems = append(problems, fmt.Sprintf("the instances of %s and %s have the number %d", o.UUID, d.UUID, d.InstanceEntity))
		}
		owner[d.InstanceEntity] = d
		highest[d.Index] = max(highest[d.Index], d.InstanceEntity)
	}
	for _, d := range devices {
		for index, n := range highest {
			if d.IsMIG() && index < d.Index && n >= d.InstanceEntity {
				problems = append(problems, fmt.Sprintf("the instance of %s has the number %d, below one of GPU %d", d.UUID, d.InstanceEntity, index))
			}
		}
	}
	return problems
}
