// SPDX-License-Identifier: Apache-2.0

// Package gpu has the words of the house: what a node's accelerators are, what
// they can be asked, and what they answered. It imports the standard library
// only, does no I/O, and keeps no state, so every other package can speak it.
//
// Names are NVIDIA's: a device is anything the kubelet can hand out (a physical
// GPU or a MIG device), a GPU instance and a compute instance are the two levels
// of MIG, a field is one quantity in DCGM's numbering.
package gpu

import (
	"strings"
	"time"
)

// UUID is the driver's name of a device, "GPU-…" for a physical GPU and "MIG-…"
// for a MIG device. It is the only key by which devices are joined; index, minor
// number and PCI address are attributes.
type UUID string

// IsMIG reports whether u names a MIG device.
func (u UUID) IsMIG() bool { return strings.HasPrefix(string(u), "MIG-") }

// NoInstance is the GPU-instance or compute-instance id of a device that has none.
const NoInstance = -1

// Device is one physical GPU or one MIG device, as the driver described it at
// one instant. A Device inside a published snapshot is never modified.
type Device struct {
	// UUID identifies the device.
	UUID UUID
	// Parent is the physical GPU a MIG device is cut from; empty for a physical GPU.
	Parent UUID

	// Index is DCGM's GPU id (the `gpu` label). A MIG device carries its parent's.
	Index int
	// Minor is N of /dev/nvidiaN, or -1 where it is not known. A MIG device
	// carries its parent's.
	Minor int
	// PCIBusID is the PCI address in NVML's long form, "00000000:18:00.0".
	PCIBusID string
	// Model is the driver's product name, foreign text.
	Model string

	// MIGEnabled says that the physical GPU is in MIG mode, with or without instances.
	MIGEnabled bool
	// Lost says that the driver knew this GPU but can no longer reach it.
	Lost bool

	// Capacity is what the whole card has: the slices and multiprocessors of its
	// largest MIG profile. It is zero for a card without MIG and for a MIG device.
	Capacity Slices
	// MIGProfiles are the GPU-instance profiles the card offers, with the places
	// where each fits; only on a physical GPU, empty where the source cannot tell.
	MIGProfiles []MIGProfile

	// GPUInstance and ComputeInstance are NVML's ids of a MIG device, else NoInstance.
	GPUInstance     int
	ComputeInstance int
	// InstanceEntity is DCGM's entity id of a MIG device's GPU instance, the number that
	// dcgm-exporter's device selectors have: the GPU's index times the instances a card can
	// have, plus a running number. NoInstance for a physical GPU and where it is not known.
	InstanceEntity int
	// Profile is what a MIG device has of its card; zero for a physical GPU.
	Profile Profile
	// Placement is where the GPU instance of a MIG device lies in the card's memory.
	Placement Placement
}

// IsMIG reports whether d is a MIG device.
func (d Device) IsMIG() bool { return d.Parent != "" }

// Card is the UUID of the physical GPU: the device itself, or a MIG device's parent.
func (d Device) Card() UUID {
	if d.Parent != "" {
		return d.Parent
	}
	return d.UUID
}

// Slices counts NVIDIA's units of a card: compute slices, memory slices and
// streaming multiprocessors. A zero count is unknown.
type Slices struct {
	Compute, Memory, SMs int
}

// Profile is the size of a MIG device, as the hardware stated it; never parsed
// from the name, because "1g.10gb" is 1/8 of one card and 2/8 of another.
type Profile struct {
	// Name as the device plugin's resource has it, "1g.10gb" or "1g.10gb+me".
	Name string
	// Slices of the GPU instance that the device belongs to.
	Slices
	// ComputeInstanceSlices are the compute slices of the compute instance; equal
	// to Compute where the compute instance spans the GPU instance.
	ComputeInstanceSlices int
	// ComputeInstanceSMs are the multiprocessors of the compute instance.
	ComputeInstanceSMs int
}

// SpansInstance reports whether the device is the only one its GPU instance can hold.
func (p Profile) SpansInstance() bool { return p.ComputeInstanceSlices >= p.Compute }

// Placement is a range of memory slices, [Start, Start+Size).
type Placement struct {
	Start, Size int
}

// MIGProfile is a kind of GPU instance that a card can create.
type MIGProfile struct {
	Name string
	Slices
	// Max is how many instances of this profile one card holds at most; 0 is no
	// limit beside the placements.
	Max int
	// Starts are the memory slices at which an instance can begin.
	Starts []int
	// Size is how many memory slices an instance covers.
	Size int
	// Exclusive names a unit the card has once ("me" for the media extensions), so
	// that at most one instance among all profiles with the same word can exist;
	// empty for none.
	Exclusive string
}

// Kind is the type of thing a sample was taken of.
type Kind uint8

// The kinds of entity, in DCGM's terms.
const (
	KindNone Kind = iota
	KindGPU
	KindGPUInstance
	KindLink
	KindSwitch
	KindCPU
	KindCPUCore
)

// Entity is what a sample was taken of.
type Entity struct {
	Kind Kind
	// GPU is the physical GPU of a GPU, GPU-instance or GPU-side link entity.
	GPU UUID
	// ID is the GPU-instance id for KindGPUInstance (NVML's), the link, switch, CPU
	// or core number otherwise; 0 for KindGPU.
	ID int
	// Parent is the switch of a switch-side link, or the CPU of a core.
	Parent int
}

// Sample is one entity's answers at one instant.
type Sample struct {
	Entity Entity
	// Time is when the values were read, on the source's wall clock. Where the entity did not
	// answer in this reading (it hangs, is lost or fails), it is the time of the last values
	// that it gave, zero if it never did: whoever watches it sees it stand still.
	Time time.Time
	// Values are parallel to the Fields of the Reading; a field out of the
	// entity's scope is ReasonScope.
	Values []Value
}

// Process is one process that the driver saw on a device.
type Process struct {
	PID         uint32
	GPU         UUID
	GPUInstance int
	// Name is the executable, foreign text, empty where the driver did not say.
	Name string
	// MemoryBytes is used framebuffer memory; absent where the driver did not say.
	MemoryBytes Value
	// SMUtil is the streaming-multiprocessor utilisation, 0..1; absent on MIG.
	SMUtil Value
}

// Reading is everything a telemetry source answered at once. It is immutable
// from the moment it is returned.
type Reading struct {
	// Time is the source's wall clock when the reading was complete. A simulated
	// node's clock may run faster than the wall.
	Time time.Time
	// Source names the source, such as "sim", "dcgm" or "nvml".
	Source string
	// Origin is where the source has it from.
	Origin Origin
	// Fields are the columns of each sample's Values.
	Fields []FieldID
	// Devices is the whole inventory: physical GPUs in index order, each followed
	// by its MIG devices in GPU-instance order. A lost GPU stays listed with Lost.
	Devices []Device
	// Samples hold one entry per entity, in the order of the devices.
	Samples []Sample
	// Processes are the processes seen on the devices, ordered by GPU and PID.
	Processes []Process
	// Events are what happened since the reading before, in the order of their times. An event
	// is in one reading only, so whoever counts must hear every reading.
	Events []Event
	// Health is the last round of health checks, the zero HealthReport unless
	// FieldHealthStatus is among the fields and the source can check.
	Health HealthReport
	// Peers are the ways between the GPUs, empty unless FieldP2PStatus is among the
	// fields and the source can tell.
	Peers []Peer
	// Troubles are what went wrong with single devices; the rest of the reading stands.
	Troubles []Trouble
}

// Trouble is one device's failure inside an otherwise good reading.
type Trouble struct {
	GPU    UUID
	Reason Reason
	Text   string
}
