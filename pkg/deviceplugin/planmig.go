// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// choose applies the MIG strategy: which of the devices are handed out at all.
func (p *planner) choose(devices []*Device) []*Device {
	cards, parts := split(devices)
	if p.settings.MIGStrategy != MIGSingle && p.settings.MIGStrategy != MIGMixed {
		for _, d := range cards {
			if d.MIGEnabled {
				p.problems = append(p.problems, &Problem{Kind: ProblemMIG, Device: d.UUID, Usual: true, Text: fmt.Sprintf(
					"%s is in MIG mode and is handed out whole, which CUDA cannot use: set the MIG strategy to single or mixed, or switch its MIG mode off", d.UUID)})
			}
		}
		return cards
	}
	whole := p.whole(cards, parts)
	if p.settings.MIGStrategy == MIGSingle && len(parts) > 0 {
		alike := p.alike(parts)
		for _, d := range whole {
			p.tell(ProblemMIG, "", d.UUID, "%s is not in MIG mode and others are: with the MIG strategy single it is not handed out; switch its MIG mode on, or set the strategy to mixed", d.UUID)
		}
		return alike
	}
	var chosen []*Device
	for _, d := range devices {
		if d.IsMIG() || slices.Contains(whole, d) {
			chosen = append(chosen, d)
		}
	}
	return chosen
}

func split(devices []*Device) (cards, parts []*Device) {
	for _, d := range devices {
		if d.IsMIG() {
			parts = append(parts, d)
		} else {
			cards = append(cards, d)
		}
	}
	return cards, parts
}

// whole are the GPUs that are used as such; those in MIG mode without an instance are told.
func (p *planner) whole(cards, parts []*Device) []*Device {
	cut := make(map[gpu.UUID]bool)
	for _, d := range parts {
		cut[d.Parent] = true
	}
	var whole []*Device
	for _, d := range cards {
		switch {
		case cut[d.UUID]:
		case d.MIGEnabled:
			p.tell(ProblemMIG, "", d.UUID, "%s is in MIG mode and has no instance: nothing of it is handed out; create instances, or switch its MIG mode off", d.UUID)
		default:
			whole = append(whole, d)
		}
	}
	return whole
}

// alike are the MIG devices of the size that is there most often, the first of equals; the
// strategy single knows one size only.
func (p *planner) alike(parts []*Device) []*Device {
	count := make(map[gpu.Profile]int)
	for _, d := range parts {
		count[d.Profile]++
	}
	size := parts[0].Profile
	for _, d := range parts {
		if count[d.Profile] > count[size] {
			size = d.Profile
		}
	}
	var alike []*Device
	var others []string
	for _, d := range parts {
		if d.Profile == size {
			alike = append(alike, d)
		} else {
			others = append(others, string(d.UUID)+" ("+d.Profile.Name+")")
		}
	}
	if len(others) > 0 {
		p.tell(ProblemMIG, "", "", "the MIG strategy single wants instances that are all alike; most are %s and are handed out, not so %s: cut all GPUs alike, or set the strategy to mixed",
			size.Name, strings.Join(others, ", "))
	}
	return alike
}
