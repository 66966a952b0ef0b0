// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// thermalWindow is the time over which a card's temperature follows its power.
const thermalWindow = 30 * time.Second

// dynamicPart is how much of the way from idle to its limit a card's power goes
// under the heaviest load.
const dynamicPart = 0.97

// physics is what one card does at one moment.
type physics struct {
	node   *Node
	card   *card
	state  *cardState
	m      moment
	index  int
	absent gpu.Reason
	// divided says that some of the card's GPU instances are read, and have what is theirs.
	divided bool
	// part is what the device being read does.
	part part
	// util and the rest are ratios of the whole card, 0..1.
	util, draw, pcie, sm, tensor, dram, encode float64
	usedMiB                                    int64
	// power in watts; energy in joules; mean is the power over the thermal window.
	power, energy, mean float64
	// traffic is the integral of pcie, in seconds of the card's full traffic.
	traffic float64
}

// part is what one device of a card does.
type part struct {
	util, sm, tensor, dram float64
	usedMiB                int64
}

func (u *use) usedMiB(age float64) int64 {
	return int64(u.memoryMiB * u.load.memory(u.pod.spec.memory, age))
}

func (n *Node) look(m, before moment, index int) *physics {
	p := &physics{node: n, card: &n.cards[index], state: m.state.cards[index], m: m, index: index}
	if p.state.lost {
		return p
	}
	for i := range p.state.uses {
		u := &p.state.uses[i]
		age, k := m.seconds-u.start, u.load.kind
		v := u.load.at(age) * u.weight * u.part
		p.util += v
		p.draw += v * k.draw
		p.pcie += v * k.pcie
		p.sm += v * k.sm
		p.tensor += v * k.tensor
		p.dram += v * k.dram
		if k.encodes {
			p.encode += v
		}
		p.usedMiB += u.usedMiB(age)
	}
	span := p.span()
	p.power = p.card.idle + span*p.draw
	draw, pcie, up := n.line.areas(m, index)
	p.energy, p.traffic = p.card.idle*up+span*draw, pcie
	p.mean = p.power
	if window := m.total - before.total; window > 0 {
		d, _, u := n.line.areas(before, index)
		p.mean = (p.energy - p.card.idle*u - span*d) / window
	}
	if f, ok := p.card.fields[fieldPower]; ok && f.numeric() {
		p.power, p.energy = f.at(m.total), f.integral(m.total)
		p.mean = p.power
	}
	return p
}

// span is how far the card's power can rise above idle, in watts.
func (p *physics) span() float64 {
	return dynamicPart*p.card.model.powerLimit - p.card.idle
}

// device is what happens in one GPU instance, or on the whole card (slot -1).
func (p *physics) device(slot int) part {
	if slot < 0 {
		return part{p.util, p.sm, p.tensor, p.dram, p.usedMiB}
	}
	var d part
	for i := range p.state.uses {
		u := &p.state.uses[i]
		if u.slot != slot {
			continue
		}
		age, k := p.m.seconds-u.start, u.load.kind
		v := u.load.at(age) * u.weight
		d.util += v
		d.sm += v * k.sm
		d.tensor += v * k.tensor
		d.dram += v * k.dram
		d.usedMiB += u.usedMiB(age)
	}
	return d
}

// The fields that other code in this package refers to.
const (
	fieldPower  gpu.FieldID = 155
	fieldEnergy gpu.FieldID = 156
)

// nodeValue is a field of the whole node.
func (p *physics) nodeValue(id gpu.FieldID) gpu.Value {
	if f, ok := p.card.fields[id]; ok {
		return f.value(p.m.total, gpu.FieldText)
	}
	switch id {
	case 1:
		return gpu.Text(p.node.scenario.driver)
	case 2:
		return gpu.Text("13." + p.node.scenario.driver)
	case 4:
		return gpu.Int(int64(len(p.node.cards)))
	default:
		return gpu.Absent(gpu.ReasonNotSupported)
	}
}

// instanceValue is a field of a GPU instance; slot -1 is a card without instances,
// for which the same fields are read.
func (p *physics) instanceValue(id gpu.FieldID, slot int) gpu.Value {
	d := &p.part
	total, reserved := int64(p.card.model.memoryMiB), int64(p.card.model.reservedMiB)
	if slot >= 0 {
		total, reserved = int64(p.card.model.instanceMiB[p.state.slots[slot].profile.Name]), instanceReservedMiB
	}
	switch id {
	case 250:
		return gpu.Int(total)
	case 251:
		return gpu.Int(total - reserved - d.usedMiB)
	case 252:
		return gpu.Int(d.usedMiB)
	case 253:
		return gpu.Int(reserved)
	case 254:
		return gpu.Float(float64(d.usedMiB) / float64(total-reserved))
	case 1001:
		return gpu.Float(d.util)
	case 1002:
		return gpu.Float(d.sm)
	case 1003:
		return gpu.Float(d.sm * 0.6)
	case 1004, 1014:
		return gpu.Float(d.tensor)
	case 1005:
		return gpu.Float(d.dram)
	case 1006, 1013, 1015:
		return gpu.Float(0)
	case 1007:
		return gpu.Float(d.sm * 0.22)
	case 1008:
		return gpu.Float(d.sm * 0.08)
	case 1016:
		return gpu.Float(d.sm * 0.12)
	default:
		return gpu.Absent(gpu.ReasonNotSupported)
	}
}

// fullTraffic is a card's PCIe traffic at full load, in bytes a second.
const fullTraffic = 2.4e10

// cardValue is a field of a physical GPU.
func (p *physics) cardValue(id gpu.FieldID) gpu.Value {
	m := p.card.model
	switch id {
	case 100:
		return gpu.Int(int64(p.smClock()))
	case 101:
		return gpu.Int(int64(m.memClock))
	case gpu.FieldClockReasons:
		return gpu.Int(p.clockReasons())
	case 140:
		return gpu.Int(int64(p.celsius(4, 52)))
	case 150:
		return gpu.Int(int64(p.celsius(0, 46)))
	case fieldPower, 157:
		return gpu.Float(p.power)
	case fieldEnergy:
		return gpu.Int(int64(math.Floor(1000 * (p.card.energy + p.energy))))
	case 203, 204, 206, 207:
		return p.utilization(id)
	case gpu.FieldXID:
		return gpu.Int(int64(p.xid()))
	case 449:
		if m.nvlinks == 0 {
			return gpu.Absent(gpu.ReasonNotSupported)
		}
		return gpu.Int(int64(p.tensor * 120000))
	case 526:
		return gpu.Int(0)
	case 310, 312, 314, 318, 202:
		return gpu.Int(p.card.replays)
	case 311, 319:
		return gpu.Int(p.volatileErrors())
	case 313, 393:
		return gpu.Int(p.doubleBitErrors())
	case 240, 241, 315, 394:
		return gpu.Int(0)
	case 346, 390, 391, 392, 395, 396, 1507, fieldRecoveryAction:
		return p.state.defects.level(id)
	case 1009:
		return gpu.Int(int64(p.pcie * fullTraffic * 0.4))
	case 1010:
		return gpu.Int(int64(p.pcie * fullTraffic))
	case 1091:
		return gpu.Int(int64(math.Floor(p.traffic * fullTraffic * 0.4)))
	case 1092:
		return gpu.Int(int64(math.Floor(p.traffic * fullTraffic)))
	default:
		if v, ok := p.constant(id); ok {
			return v
		}
		return p.instanceValue(id, -1)
	}
}

// constant is what a card says the same all the time.
func (p *physics) constant(id gpu.FieldID) (gpu.Value, bool) {
	m := p.card.model
	switch id {
	case 50:
		return gpu.Text(m.product), true
	case 52:
		return gpu.Int(int64(p.index)), true
	case 53:
		return gpu.Text(p.card.serial), true
	case 54:
		return gpu.Text(string(p.card.uuid)), true
	case 63:
		if m.computeMajor == 0 {
			return gpu.Absent(gpu.ReasonNotSupported), true
		}
		// The major version is in the upper half of the word, as DCGM has it.
		return gpu.Int(int64(m.computeMajor<<16 | m.computeMinor)), true
	case 57:
		return gpu.Text(pciAddress(p.index)), true
	case 110, 113:
		return gpu.Int(int64(m.smClock)), true
	case 111:
		return gpu.Int(int64(m.memClock)), true
	case 152:
		return gpu.Int(85), true
	case 158:
		return gpu.Int(87), true
	case 159:
		return gpu.Int(92), true
	case 160, 163:
		return gpu.Float(m.powerLimit), true
	case 161:
		return gpu.Float(math.Round(m.powerLimit / 3)), true
	case 190:
		return gpu.Int(0), true
	default:
		return gpu.Value{}, false
	}
}

// utilization is what the driver samples of engines in percent. It has no answer
// for a card in MIG mode.
func (p *physics) utilization(id gpu.FieldID) gpu.Value {
	if p.node.scenario.cards[p.index].mig {
		return gpu.Absent(gpu.ReasonNotSupported)
	}
	var ratio float64
	switch id {
	case 204:
		ratio = p.dram * 0.8
	case 206:
		ratio = p.encode * 1.6
	case 207:
		ratio = p.encode * 1.2
	default:
		ratio = p.util
	}
	return gpu.Int(int64(math.Round(100 * ratio)))
}

func (p *physics) smClock() float64 {
	m := p.card.model
	if p.util < 0.005 {
		return float64(m.idleClock)
	}
	// Clocks come in steps of 15 MHz, and fall as the power nears its limit.
	return float64(m.smClock) - 15*math.Round(0.1*float64(m.smClock)/15*max(0, p.power/m.powerLimit-0.6))
}

// clockReasons are NVML's bits: 1 is idle, 4 the software power cap.
func (p *physics) clockReasons() int64 {
	slowed := p.state.defects.slowdown
	switch {
	case p.util < 0.005:
		return slowed | 1
	case p.power > 0.85*p.card.model.powerLimit:
		return slowed | 4
	default:
		return slowed
	}
}

// celsius is a temperature that follows the power of the last half minute.
func (p *physics) celsius(offset, rise float64) float64 {
	return math.Round(25 + offset + p.card.warmth + rise*p.mean/p.card.model.powerLimit)
}

// xid is the last XID; one from an earlier round stands until this one speaks of it.
func (p *physics) xid() int {
	if !p.state.touched && p.m.round > 0 {
		return p.node.line.closing[p.index].xid
	}
	return p.state.xid
}

func (p *physics) doubleBitErrors() int64 {
	n := int64(p.state.dbe)
	if p.m.round > 0 {
		n += p.m.round * int64(p.node.line.closing[p.index].dbe)
	}
	return n
}

// volatileErrors are the double-bit errors since the card was last reset, in this
// round or an earlier one.
func (p *physics) volatileErrors() int64 {
	n := int64(p.state.volatileDBE)
	if p.state.reset || p.m.round == 0 {
		return n
	}
	c := &p.node.line.closing[p.index]
	if c.reset {
		return n + int64(c.volatileDBE)
	}
	return n + p.m.round*int64(c.volatileDBE)
}
