// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Index finds a node's devices by what device ids say. It is immutable and safe
// for concurrent use; the devices it was made of must not be modified.
type Index struct {
	devices []gpu.Device
	// The maps have positions in devices; ambiguous marks a key that two devices have.
	byUUID  map[gpu.UUID]int
	byMinor map[int]int
	byIndex map[int]int
	byPCI   map[string]int
	// migs are the positions of each card's MIG devices, in the order of the devices.
	migs map[int][]int
}

const ambiguous = -1

// NewIndex indexes an inventory. A device without a UUID, the second of two
// devices with one UUID, and a MIG device whose physical GPU is not in the
// inventory cannot be held: no id finds them. A number or address that a lost GPU
// shares with one that is not is the other's: it stands in its place.
func NewIndex(devices []gpu.Device) *Index {
	ix := &Index{
		devices: devices,
		byUUID:  make(map[gpu.UUID]int, len(devices)),
		byMinor: make(map[int]int),
		byIndex: make(map[int]int),
		byPCI:   make(map[string]int),
		migs:    make(map[int][]int),
	}
	minors := false
	lost := &Index{byMinor: make(map[int]int), byIndex: make(map[int]int), byPCI: make(map[string]int)}
	for i := range devices {
		d := &devices[i]
		if d.IsMIG() || d.UUID == "" {
			continue
		}
		minors = minors || d.Minor >= 0
		if _, taken := ix.byUUID[canonicalUUID(d.UUID)]; !taken {
			ix.byUUID[canonicalUUID(d.UUID)] = i
		}
	}
	for i := range devices {
		d := &devices[i]
		if d.IsMIG() {
			ix.addMIG(i)
			continue
		}
		if ix.position(d.UUID) != i {
			continue
		}
		minor := d.Minor
		if !minors {
			minor = d.Index
		}
		at := ix
		if d.Lost {
			at = lost
		}
		if minor >= 0 {
			addUnique(at.byMinor, minor, i)
		}
		if d.Index >= 0 {
			addUnique(at.byIndex, d.Index, i)
		}
		if pci, ok := canonicalPCI(d.PCIBusID); ok {
			addUnique(at.byPCI, pci, i)
		}
	}
	addMissing(ix.byMinor, lost.byMinor)
	addMissing(ix.byIndex, lost.byIndex)
	addMissing(ix.byPCI, lost.byPCI)
	return ix
}

// addMissing adds what from has under keys that m does not have.
func addMissing[K comparable](m, from map[K]int) {
	for key, i := range from {
		if _, taken := m[key]; !taken {
			m[key] = i
		}
	}
}

func (ix *Index) addMIG(i int) {
	d := &ix.devices[i]
	card := ix.position(d.Parent)
	if d.UUID == "" || card < 0 || ix.devices[card].IsMIG() {
		return
	}
	if _, taken := ix.byUUID[canonicalUUID(d.UUID)]; taken {
		return
	}
	ix.byUUID[canonicalUUID(d.UUID)] = i
	ix.migs[card] = append(ix.migs[card], i)
}

func addUnique[K comparable](m map[K]int, key K, i int) {
	if _, taken := m[key]; taken {
		i = ambiguous
	}
	m[key] = i
}

// position is where the device with this UUID stands, or -1.
func (ix *Index) position(u gpu.UUID) int {
	if i, ok := ix.byUUID[canonicalUUID(u)]; ok {
		return i
	}
	return -1
}

// card is the physical GPU of the device with this UUID, empty where there is none.
func (ix *Index) card(u gpu.UUID) gpu.UUID {
	if i := ix.position(u); i >= 0 {
		return ix.devices[i].Card()
	}
	return ""
}

// Device is the device with this UUID, and whether there is one.
func (ix *Index) Device(u gpu.UUID) (gpu.Device, bool) {
	i := ix.position(u)
	if i < 0 {
		return gpu.Device{}, false
	}
	return ix.devices[i], true
}

// Resolve is the device that id names, of which a replica is one seat, or a short
// word for a label that says why there is none: ReasonUnknownDevice,
// ReasonAmbiguousDevice, ReasonNoGPUInstance, ReasonNoComputeInstance or
// ReasonAmbiguousInstance. The word is empty where the device was found. A GPU that
// is lost is found too.
//
// The number in nvidia<N> is the minor number, or the index on a node where no
// device has a minor number; that in index<N> is the index always. With /gi<M> it is the MIG device of that GPU
// instance, where it has exactly one.
func (ix *Index) Resolve(id ID) (gpu.Device, string) {
	i, reason := ix.resolve(id)
	if reason != "" {
		return gpu.Device{}, reason
	}
	return ix.devices[i], ""
}

func (ix *Index) resolve(id ID) (int, string) {
	card, found := 0, false
	switch id.form {
	case formUUID, formLegacyMIG:
		card, found = ix.byUUID[id.uuid]
	case formMinor:
		card, found = ix.byMinor[id.number]
	case formIndex:
		card, found = ix.byIndex[id.number]
	case formPCI:
		card, found = ix.byPCI[id.pci]
	}
	switch {
	case !found:
		return 0, ReasonUnknownDevice
	case card == ambiguous:
		return 0, ReasonAmbiguousDevice
	case id.form == formLegacyMIG:
		return ix.instance(card, id.gi, id.ci)
	case (id.form == formMinor || id.form == formIndex) && id.gi != gpu.NoInstance:
		return ix.instance(card, id.gi, gpu.NoInstance)
	}
	return card, ""
}

// instance is the MIG device of a card's GPU and compute instance; any compute
// instance, if it is the only one, for a ci of NoInstance.
func (ix *Index) instance(card, gi, ci int) (int, string) {
	reason := ReasonNoGPUInstance
	found := -1
	for _, i := range ix.migs[card] {
		if ix.devices[i].GPUInstance != gi {
			continue
		}
		if ci != gpu.NoInstance && ix.devices[i].ComputeInstance != ci {
			reason = ReasonNoComputeInstance
			continue
		}
		if found >= 0 {
			return 0, ReasonAmbiguousInstance
		}
		found = i
	}
	if found < 0 {
		return 0, reason
	}
	return found, ""
}
