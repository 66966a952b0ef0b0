// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// EventKind is what an Event tells of.
type EventKind uint8

// The kinds of event.
const (
	// EventXID: the driver reported an error; Code is the XID.
	EventXID EventKind = iota + 1
	// EventECCSingleBit and EventECCDoubleBit: the driver saw a memory error as it happened.
	EventECCSingleBit
	EventECCDoubleBit
	// EventRecoveryAction: the driver changed its mind about what the GPU needs; Code is
	// NVML's number of the action (0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset;
	// later drivers know more).
	EventRecoveryAction
)

// Event is something that happened to a device, once. Every event is in exactly one
// Reading of its source, however often the same code repeats.
type Event struct {
	Kind EventKind
	// Time is when the driver saw it, on the source's wall clock.
	Time time.Time
	// GPU is the physical GPU.
	GPU UUID
	// GPUInstance and ComputeInstance are NVML's ids where the event concerns a part of
	// the card only, else NoInstance.
	GPUInstance, ComputeInstance int
	Code                         int
}

// HealthSystem is a part of a GPU that DCGM's passive health checks look at, in
// dcgm-exporter's words.
type HealthSystem string

// The systems, in the order of DCGM's bits. HealthAll has what concerns the whole GPU.
const (
	HealthPCIe    HealthSystem = "PCIE"
	HealthNVLink  HealthSystem = "NVLINK"
	HealthPMU     HealthSystem = "PMU"
	HealthMCU     HealthSystem = "MCU"
	HealthMemory  HealthSystem = "MEM"
	HealthSM      HealthSystem = "SM"
	HealthInfoROM HealthSystem = "INFOROM"
	HealthThermal HealthSystem = "THERMAL"
	HealthPower   HealthSystem = "POWER"
	HealthDriver  HealthSystem = "DRIVER"
	HealthAll     HealthSystem = "ALL"
)

// HealthSystems are those that are checked on every GPU, in a fixed order.
func HealthSystems() []HealthSystem {
	return []HealthSystem{
		HealthPCIe, HealthNVLink, HealthPMU, HealthMCU, HealthMemory, HealthSM,
		HealthInfoROM, HealthThermal, HealthPower, HealthDriver, HealthAll,
	}
}

// HealthResult is the outcome of a check, in DCGM's numbers.
type HealthResult int

// The results.
const (
	HealthPass HealthResult = 0
	HealthWarn HealthResult = 10
	HealthFail HealthResult = 20
)

// HealthIncident is what a health check found; a system without one passed.
type HealthIncident struct {
	GPU UUID
	// GPUInstance is NVML's id where the incident concerns a GPU instance, else NoInstance.
	GPUInstance int
	System      HealthSystem
	Result      HealthResult
	// Code is DCGM's number of the error (DCGM_FR_*), Text its words, foreign text that is
	// not always right: count on the code.
	Code int
	Text string
}

// HealthReport is the last finished round of health checks. Checks run apart from the
// tick, since they can block for longer than one.
type HealthReport struct {
	// Time is when the round was complete; zero where none has been.
	Time time.Time
	// Checked are the GPUs that the round looked at.
	Checked []UUID
	// Incidents are ordered by GPU, system and code.
	Incidents []HealthIncident
}

// PeerStatus is how well one GPU reaches another over NVLink, in DCGM's numbers.
type PeerStatus int

// The statuses.
const (
	PeerOK PeerStatus = iota
	PeerChipsetNotSupported
	PeerGPUNotSupported
	PeerTopologyNotSupported
	PeerDisabledByRegKey
	PeerNotSupported
	PeerUnknown
)

// Peer is the way from one GPU to another.
type Peer struct {
	From, To UUID
	Status   PeerStatus
	// NVLinks is how many links join the two, 0 where there are none or it is not known. Between
	// GPUs behind NVSwitches a source counts none, or as many for each pair.
	NVLinks int
}

// Origin is where a reading comes from.
type Origin struct {
	// Library is what was called, with its version: "libdcgm 4.6.0", "libnvidia-ml 12.570.86.15".
	Library string
	// Engine is the host engine's address and version where one is asked, else empty.
	Engine string
	// Driver is the version of NVIDIA's driver, empty where it is not known.
	Driver string
}
