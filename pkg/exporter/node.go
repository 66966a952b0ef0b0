// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// node is a snapshot's inventory and division by UUID.
type node struct {
	devices map[gpu.UUID]*gpu.Device
	// all are the devices in the reading's order, then those that are gone and still held.
	all []gpu.Device
	// cards are the physical GPUs among them.
	cards []*gpu.Device
	// instances are the MIG devices of each GPU instance. A GPU instance that was
	// sampled but holds no device is there with none.
	instances map[instanceKey][]*gpu.Device
	// divided are the cards of which GPU instances were sampled. Quantities of an instance are
	// theirs; of a card without any, or whose instances are not selected, they are the card's.
	divided map[gpu.UUID]bool
	// shares are each card's.
	shares map[gpu.UUID][]*sharing.Share
}

type instanceKey struct {
	card gpu.UUID
	id   int
}

func newNode(s *meter.Snapshot) *node {
	n := &node{
		devices:   make(map[gpu.UUID]*gpu.Device, len(s.Reading.Devices)),
		instances: make(map[instanceKey][]*gpu.Device),
		divided:   make(map[gpu.UUID]bool),
		shares:    make(map[gpu.UUID][]*sharing.Share),
	}
	n.all = s.Divided()
	for i := range n.all {
		d := &n.all[i]
		n.devices[d.UUID] = d
		if !d.IsMIG() {
			n.cards = append(n.cards, d)
			continue
		}
		key := instanceKey{d.Parent, d.GPUInstance}
		n.instances[key] = append(n.instances[key], d)
	}
	for i := range s.Reading.Samples {
		if e := s.Reading.Samples[i].Entity; e.Kind == gpu.KindGPUInstance {
			n.divided[e.GPU] = true
		}
	}
	for i := range s.Division.Shares {
		share := &s.Division.Shares[i]
		n.shares[share.Card] = append(n.shares[share.Card], share)
	}
	return n
}

// soleHolder is who holds all of a card, in however many parts.
func (n *node) soleHolder(card gpu.UUID) (sharing.Holder, bool) {
	shares := n.shares[card]
	for i, s := range shares {
		sum := s.Part
		for _, other := range shares[i+1:] {
			if other.Holder == s.Holder {
				sum = sum.Add(other.Part)
			}
		}
		if sum.IsOne() {
			return s.Holder, true
		}
	}
	return sharing.Holder{}, false
}

// instanceHolder is who holds all of a GPU instance: the whole of its only MIG
// device. With a second device there, what is measured is not the first one's alone.
func (n *node) instanceHolder(key instanceKey) (sharing.Holder, bool) {
	devices := n.instances[key]
	if len(devices) != 1 {
		return sharing.Holder{}, false
	}
	for _, s := range n.shares[key.card] {
		if s.Device == devices[0].UUID && s.Whole() {
			return s.Holder, true
		}
	}
	return sharing.Holder{}, false
}

// holdings are the shares held directly of what an entity measures: of the card
// itself, or of any MIG device in the GPU instance.
func (n *node) holdings(e gpu.Entity) []*sharing.Share {
	var held []*sharing.Share
	for _, s := range n.shares[e.GPU] {
		d, ok := n.devices[s.Device]
		switch {
		case !ok:
		case e.Kind == gpu.KindGPU && !d.IsMIG(),
			e.Kind == gpu.KindGPUInstance && d.IsMIG() && d.GPUInstance == e.ID:
			held = append(held, s)
		}
	}
	return held
}

// instanceProfile is the profile of a GPU instance, which a device on part of it
// names behind the size of the part: "1c.3g.40gb" lies in a "3g.40gb".
func (n *node) instanceProfile(key instanceKey) string {
	for _, d := range n.instances[key] {
		if name := instanceProfileName(d.Profile.Name); name != "" {
			return name
		}
	}
	return ""
}

func instanceProfileName(name string) string {
	part, rest, ok := strings.Cut(name, "c.")
	if ok && part != "" && strings.Trim(part, "0123456789") == "" {
		return rest
	}
	return name
}

// hardware are the labels of a device in gpumeter's own families: the card, and
// for a MIG device where in the card it lies.
func (n *node) hardware(set []label, d *gpu.Device) []label {
	set = append(set, label{"UUID", string(d.Card())})
	if !d.IsMIG() {
		return set
	}
	set = append(set,
		label{"GPU_I_ID", strconv.Itoa(d.GPUInstance)},
		label{"GPU_I_PROFILE", instanceProfileName(d.Profile.Name)})
	if !d.Profile.SpansInstance() {
		set = append(set, label{"GPU_CI_ID", strconv.Itoa(d.ComputeInstance)})
	}
	return set
}
