// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// description is what the engine said of one GPU and its instances, out of which the devices
// are made.
type description struct {
	id         uint32
	attributes attributes
	instances  []instance
	// static has the fields that describe a device.
	static map[entity]map[gpu.FieldID]gpu.Value
}

func (d *description) text(e entity, id gpu.FieldID) string {
	text, _ := d.static[e][id].AsText()
	return text
}

func (d *description) number(e entity, id gpu.FieldID) (int, bool) {
	n, ok := d.static[e][id].AsInt()
	return int(n), ok
}

// complete reports whether nothing is missing that the engine may say later: a MIG device
// without UUID cannot be listed.
func (d *description) complete() bool {
	for _, i := range d.instances {
		for _, p := range i.parts {
			if !gpu.UUID(d.text(entity{groupComputeInstance, uint32(p.id)}, gpu.FieldUUID)).IsMIG() {
				return false
			}
		}
	}
	return d.static[entity{groupGPU, d.id}][fieldMinor].Reason() != gpu.ReasonBlank
}

// unsliced reports whether the card is in MIG mode and its slices are not known: DCGM has 0 for
// them out of MIG mode, and samples them rarely.
func (d *description) unsliced() bool {
	slices, ok := d.number(entity{groupGPU, d.id}, fieldMIGMaxSlices)
	return d.attributes.migEnabled && ok && slices == 0
}

// devices are the card and its MIG devices, in the order of the GPU instances. parts are the
// same devices as somebody else describes them who knows more, such as NVML; it may be empty.
func (d *description) devices(parts []gpu.Device) []gpu.Device {
	card := d.card()
	memoryMiB := d.cardMiB()
	out := []gpu.Device{card}
	for _, i := range d.instances {
		for _, p := range i.parts {
			m := d.migDevice(card, memoryMiB, i, p)
			if m.UUID == "" {
				m.UUID = uuidAmong(parts, i.nvml, p.nvml)
			}
			if m.UUID != "" {
				out = append(out, m)
			}
		}
	}
	for i := range out {
		complement(&out[i], parts)
	}
	return out
}

func (d *description) card() gpu.Device {
	self := entity{groupGPU, d.id}
	card := gpu.Device{
		UUID: gpu.UUID(d.attributes.uuid), Index: int(d.id), Minor: -1,
		PCIBusID: d.attributes.pciBusID, Model: d.attributes.name,
		MIGEnabled:  d.attributes.migEnabled || len(d.instances) > 0,
		GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
	}
	if minor, ok := d.number(self, fieldMinor); ok && minor >= 0 {
		card.Minor = minor
	}
	if slices, ok := d.number(self, fieldMIGMaxSlices); ok {
		card.Capacity = capacityOf(slices)
	}
	return card
}

// cardMiB is the card's framebuffer, 0 where it is not known.
func (d *description) cardMiB() int {
	if total, ok := d.number(entity{groupGPU, d.id}, fieldFBTotal); ok && total > 0 {
		return total
	}
	return int(d.attributes.fbTotalMiB)
}

// capacityOf is what a card with so many compute slices has: one memory slice more than the
// seven of the large cards, and as many on those with four.
func capacityOf(computeSlices int) gpu.Slices {
	switch computeSlices {
	case 7:
		return gpu.Slices{Compute: 7, Memory: 8}
	case 4:
		return gpu.Slices{Compute: 4, Memory: 4}
	default:
		return gpu.Slices{}
	}
}

func (d *description) migDevice(card gpu.Device, cardMiB int, i instance, p part) gpu.Device {
	gi, ci := entity{groupGPUInstance, uint32(i.id)}, entity{groupComputeInstance, uint32(p.id)}
	m := gpu.Device{
		Parent: card.UUID, Index: card.Index, Minor: card.Minor, PCIBusID: card.PCIBusID, Model: card.Model,
		GPUInstance: i.nvml, ComputeInstance: p.nvml, InstanceEntity: i.id,
	}
	if uuid := gpu.UUID(d.text(ci, gpu.FieldUUID)); uuid.IsMIG() {
		m.UUID = uuid
	}
	m.Profile.Compute, m.Profile.ComputeInstanceSlices = i.slices, p.slices
	if card.Capacity.Memory > 0 {
		m.Profile.Memory = memorySlices(d.instanceMiB(gi, ci), cardMiB, card.Capacity.Memory)
	}
	m.Profile.Name = d.profileName(gi, ci)
	if m.Profile.Name == "" {
		m.Profile.Name = nameOf(m.Profile, cardMiB, card.Capacity.Memory)
	}
	return m
}

func (d *description) instanceMiB(gi, ci entity) int {
	for _, e := range []entity{gi, ci} {
		if total, ok := d.number(e, fieldFBTotal); ok && total > 0 {
			return total
		}
	}
	return 0
}

// memorySlices is how many of a card's memory slices hold so much of its memory. A slice has a
// little less than its part, because the driver keeps some.
func memorySlices(instanceMiB, cardMiB, slices int) int {
	if instanceMiB <= 0 || cardMiB <= 0 {
		return 0
	}
	n := int(math.Round(float64(instanceMiB) / float64(cardMiB) * float64(slices)))
	return min(max(n, 1), slices)
}

// profileName is the profile in the driver's name of a MIG device, "… MIG 1g.10gb", or "".
func (d *description) profileName(gi, ci entity) string {
	for _, e := range []entity{ci, gi} {
		if _, profile, found := strings.Cut(d.text(e, gpu.FieldName), " MIG "); found && profile != "" {
			return strings.TrimSpace(profile)
		}
	}
	return ""
}

// nameOf writes a profile as the driver does: the compute slices, and the instance's part of
// the card's memory in whole GiB.
func nameOf(p gpu.Profile, cardMiB, memorySlices int) string {
	name := fmt.Sprintf("%dg", p.Compute)
	if p.ComputeInstanceSlices > 0 && p.ComputeInstanceSlices < p.Compute {
		name = fmt.Sprintf("%dc.%s", p.ComputeInstanceSlices, name)
	}
	if cardMiB <= 0 || memorySlices <= 0 || p.Memory <= 0 {
		return name
	}
	const miBPerGiB = 1024
	cardGiB := math.Ceil(float64(cardMiB) / miBPerGiB)
	return fmt.Sprintf("%s.%.0fgb", name, math.Round(cardGiB*float64(p.Memory)/float64(memorySlices)))
}

func uuidAmong(parts []gpu.Device, gpuInstance, computeInstance int) gpu.UUID {
	for _, p := range parts {
		if p.IsMIG() && p.GPUInstance == gpuInstance && p.ComputeInstance == computeInstance {
			return p.UUID
		}
	}
	return ""
}

// complement fills in what DCGM does not say of a device, from the same device among parts.
func complement(d *gpu.Device, parts []gpu.Device) {
	i := slices.IndexFunc(parts, func(p gpu.Device) bool { return p.UUID == d.UUID })
	if i < 0 {
		return
	}
	p := &parts[i]
	if p.Capacity != (gpu.Slices{}) {
		d.Capacity = p.Capacity
	}
	if len(p.MIGProfiles) > 0 {
		d.MIGProfiles = p.MIGProfiles
	}
	if p.Profile != (gpu.Profile{}) {
		d.Profile = p.Profile
	}
	if p.Placement != (gpu.Placement{}) {
		d.Placement = p.Placement
	}
	if d.Minor < 0 && p.Minor >= 0 {
		d.Minor = p.Minor
	}
}

func sameDevice(a, b gpu.Device) bool { return reflect.DeepEqual(a, b) }

// sameSlice reports whether a and b are one slice, and not just equal.
func sameSlice(a, b []gpu.Device) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// lostDevices are devices that can no longer be reached.
func lostDevices(devices []gpu.Device) []gpu.Device {
	lost := slices.Clone(devices)
	for i := range lost {
		lost[i].Lost = true
	}
	return lost
}

// spotsOf are the entities of which a card and its instances have samples, in the order of the
// devices.
func spotsOf(devices []gpu.Device, gpus gpu.Selection) []spot {
	var out []spot
	divided := slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.IsMIG() && gpus.Minor(d.InstanceEntity) })
	for i, d := range devices {
		switch {
		case !d.IsMIG() && gpus.Major(d.Index):
			out = append(out, spot{entity{groupGPU, uint32(d.Index)}, gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID}, divided})
		case d.IsMIG() && d.GPUInstance != devices[i-1].GPUInstance && gpus.Minor(d.InstanceEntity):
			out = append(out, spot{
				entity{groupGPUInstance, uint32(d.InstanceEntity)},
				gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.Parent, ID: d.GPUInstance}, divided,
			})
		}
	}
	return out
}

// without names the devices of which others have none, by index and UUID, the first few of many.
// A device that was lost and is not, or the other way round, is another one here.
func without(devices, others []gpu.Device) string {
	const most = 16
	type state struct {
		id   gpu.UUID
		lost bool
	}
	there := make(map[state]bool, len(others))
	for _, d := range others {
		there[state{d.UUID, d.Lost}] = true
	}
	var names []string
	for _, d := range devices {
		if there[state{d.UUID, d.Lost}] {
			continue
		}
		name := fmt.Sprintf("GPU %d %.80s", d.Index, d.UUID)
		if d.Lost {
			name += " (lost)"
		}
		names = append(names, name)
	}
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
