// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Inventory is what a division rests on and no source tells again after a restart: the devices of a node
// as they were listed, those that cannot be reached any more among them, and their replicas. It is
// immutable; the zero Inventory knows nothing.
type Inventory struct {
	// Devices are physical GPUs, each before its MIG devices.
	Devices []gpu.Device
	Seats   Seats
}

// ErrNewerFormat is the reason of an error about an Inventory that a newer version has written.
var ErrNewerFormat = errors.New("it was written by a newer version")

const (
	// inventoryFormat is the format that is written. Formats from 1 to this one are read.
	inventoryFormat = 1
	// maxInventory bounds the devices of a node, maxWord a UUID.
	maxInventory = 4096
	maxWord      = 256
)

type inventoryText struct {
	Format  int          `json:"format"`
	Devices []gpu.Device `json:"devices"`
	Seats   []seatsText  `json:"seats"`
}

type seatsText struct {
	Device   gpu.UUID `json:"device"`
	Card     gpu.UUID `json:"card"`
	Replicas []int    `json:"replicas"`
	// Smaller is missing while nothing challenges the replicas.
	Smaller *int      `json:"smaller,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Away    bool      `json:"away,omitempty"`
	Gone    time.Time `json:"gone,omitzero"`
}

// Equal says whether two Inventories would be written alike.
func (v Inventory) Equal(other Inventory) bool {
	if len(v.Devices) != len(other.Devices) || !v.Seats.Equal(other.Seats) {
		return false
	}
	if len(v.Devices) == 0 || &v.Devices[0] == &other.Devices[0] {
		return true
	}
	return slices.EqualFunc(v.Devices, other.Devices, alike)
}

// alike compares two devices without the profiles that could be created.
func alike(a, b gpu.Device) bool {
	return a.UUID == b.UUID && a.Parent == b.Parent && a.Index == b.Index && a.Minor == b.Minor &&
		a.PCIBusID == b.PCIBusID && a.Model == b.Model && a.MIGEnabled == b.MIGEnabled && a.Lost == b.Lost &&
		a.Capacity == b.Capacity && a.GPUInstance == b.GPUInstance && a.ComputeInstance == b.ComputeInstance &&
		a.InstanceEntity == b.InstanceEntity && a.Profile == b.Profile && a.Placement == b.Placement
}

// written is a device as it is kept: what a card could be divided into is of no use once it is lost.
func written(d gpu.Device) gpu.Device {
	d.MIGProfiles = nil
	return d
}

// MarshalJSON is the Inventory for UnmarshalJSON of this version and later ones.
func (v Inventory) MarshalJSON() ([]byte, error) {
	text := inventoryText{Format: inventoryFormat, Devices: make([]gpu.Device, len(v.Devices)), Seats: make([]seatsText, 0, len(v.Seats.memory))}
	for i, d := range v.Devices {
		text.Devices[i] = written(d)
	}
	for device, m := range v.Seats.memory {
		t := seatsText{Device: device, Card: m.card, Replicas: m.ids, Since: m.since, Away: m.away, Gone: m.gone}
		if m.smaller != noSmaller {
			t.Smaller = &m.smaller
		}
		text.Seats = append(text.Seats, t)
	}
	slices.SortFunc(text.Seats, func(a, b seatsText) int { return cmp.Compare(a.Device, b.Device) })
	return json.Marshal(text)
}

// UnmarshalJSON takes up an Inventory that MarshalJSON has written. An error leaves v as it was; it wraps
// ErrNewerFormat where a newer version has written it.
func (v *Inventory) UnmarshalJSON(data []byte) error {
	var format struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &format); err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	switch {
	case format.Format > inventoryFormat:
		return fmt.Errorf("inventory in format %d, and up to %d is known: %w", format.Format, inventoryFormat, ErrNewerFormat)
	case format.Format < 1:
		return fmt.Errorf("inventory without a format (want 1 to %d)", inventoryFormat)
	}
	var text inventoryText
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	if len(text.Devices) > maxInventory || len(text.Seats) > 2*maxInventory {
		return errors.New("inventory: it has more devices than a node can have")
	}
	if err := validDevices(text.Devices); err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	next := Inventory{Devices: text.Devices}
	if len(text.Seats) > 0 {
		next.Seats.memory = make(map[gpu.UUID]seatMemory, len(text.Seats))
	}
	for _, t := range text.Seats {
		m, err := t.memory()
		if _, twice := next.Seats.memory[t.Device]; twice {
			err = errors.New("they are there twice")
		}
		if err != nil {
			return fmt.Errorf("inventory: replicas of %q: %w", t.Device, err)
		}
		next.Seats.memory[t.Device] = m
	}
	*v = next
	return nil
}

func validDevices(devices []gpu.Device) error {
	known := make(map[gpu.UUID]bool, len(devices))
	for _, d := range devices {
		if !named(d.UUID) || known[d.UUID] || d.Parent != "" && !known[d.Parent] {
			return fmt.Errorf("device %q has no name, another's, or no card before it", d.UUID)
		}
		known[d.UUID] = true
	}
	return nil
}

func named(u gpu.UUID) bool {
	return u != "" && len(u) <= maxWord && utf8.ValidString(string(u)) && !strings.ContainsRune(string(u), 0)
}

// memory is what the text says, with an error for what Observe cannot have made.
func (t seatsText) memory() (seatMemory, error) {
	m := seatMemory{ids: t.Replicas, smaller: noSmaller, since: t.Since, away: t.Away, card: t.Card, gone: t.Gone, told: true}
	if t.Smaller != nil {
		m.smaller = *t.Smaller
	}
	switch {
	case !named(t.Device) || len(t.Card) > maxWord:
		return m, errors.New("the device has no name")
	case len(m.ids) == 0 || m.ids[0] < 0 || m.ids[len(m.ids)-1] > math.MaxInt32:
		return m, errors.New("they have no numbers that a replica can have")
	case m.smaller < noSmaller || m.smaller > len(m.ids):
		return m, fmt.Errorf("a smaller set of %d", m.smaller)
	}
	for i, id := range m.ids[1:] {
		if id <= m.ids[i] {
			return m, errors.New("their numbers do not ascend")
		}
	}
	return m, nil
}
