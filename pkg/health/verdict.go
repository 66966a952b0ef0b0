// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Status is what a verdict says of a device.
type Status uint8

const (
	// Unknown: nobody can tell now. It is not Unhealthy, and withdraws nothing.
	Unknown Status = iota
	// Healthy: nothing known speaks against giving the device to somebody.
	Healthy
	// Unhealthy: evidence says that the device must not be given to anybody.
	Unhealthy
)

// Statuses are all of them.
func Statuses() []Status { return []Status{Unknown, Healthy, Unhealthy} }

// String is the word for a label: "unknown", "healthy", "unhealthy".
func (s Status) String() string {
	switch s {
	case Healthy:
		return "healthy"
	case Unhealthy:
		return "unhealthy"
	default:
		return "unknown"
	}
}

// ParseStatus is the Status of a word.
func ParseStatus(word string) (Status, error) {
	for _, s := range Statuses() {
		if s.String() == word {
			return s, nil
		}
	}
	return Unknown, fmt.Errorf("unknown status %q (want unknown, healthy or unhealthy)", word)
}

// Kind is a short word for what is wrong, the `kind` label.
type Kind string

// The kinds of condition that have a word of their own; XIDKind and IncidentKind make the others.
const (
	KindECC            Kind = "ecc_uncorrectable"
	KindRemapFailed    Kind = "row_remap_failed"
	KindRemapPending   Kind = "row_remap_pending"
	KindRetiredPending Kind = "retired_pages_pending"
	KindRetiredPages   Kind = "retired_pages"
	KindSRAM           Kind = "sram_threshold"
	KindUnrepairable   Kind = "memory_unrepairable"
	KindNVLinkDown     Kind = "nvlink_down"
	KindRecoveryAction Kind = "recovery_action"
	KindLost           Kind = "gpu_lost"
	KindStuck          Kind = "gpu_stuck"
	KindThermal        Kind = "thermal_slowdown"
	KindPower          Kind = "power_slowdown"
	KindMPSDown        Kind = "mps_down"
	// KindFlapping: it broke again and again after it had recovered; only an operator ends it.
	KindFlapping Kind = "flapping"
)

// XIDKind is the kind of an XID, "xid_79".
func XIDKind(code int) Kind { return Kind(fmt.Sprintf("xid_%d", code)) }

// IncidentKind is the kind of what DCGM's health checks found in a system, "dcgm_mem".
func IncidentKind(system gpu.HealthSystem) Kind {
	return Kind("dcgm_" + strings.ToLower(string(system)))
}

// Subject is what a condition is about: a physical GPU, or a part of one.
type Subject struct {
	GPU gpu.UUID `json:"gpu"`
	// GPUInstance and ComputeInstance are NVML's ids, gpu.NoInstance for the whole card
	// and for a whole GPU instance.
	GPUInstance     int `json:"gpuInstance"`
	ComputeInstance int `json:"computeInstance"`
	// Placement is where the GPU instance lies in the card's memory, zero where that is not
	// known. It outlives the instance: another one in the same place has the same memory.
	Placement gpu.Placement `json:"placement,omitzero"`
}

// WholeCard is the subject of all of a physical GPU.
func WholeCard(card gpu.UUID) Subject {
	return Subject{GPU: card, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}
}

// Condition is one fault with its evidence. There is one for each subject and kind.
type Condition struct {
	Subject
	Kind Kind `json:"kind"`
	// Class is what the condition asks for now: its own class, raised by repetition, raised or
	// lowered by the driver's recovery action.
	Class Class `json:"class"`
	// Since and Last are when it was first and last seen, Count how often.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	Count uint64    `json:"count"`
	// BootID is the kernel's boot id when it was last seen.
	BootID string `json:"bootID"`
	// XID is the driver's code where the condition is one, else 0.
	XID int `json:"xid,omitempty"`
	// Evidence says in words what was seen: "XID 79: fell off the bus".
	Evidence string `json:"evidence"`
	// Recovery is the evidence of its end, empty for none; RecoveringSince is from when that
	// has stood. The condition ends when it has stood for the hold-down.
	Recovery        string    `json:"recovery,omitempty"`
	RecoveringSince time.Time `json:"recoveringSince,omitzero"`
}

// Withdraws says whether the condition makes its devices Unhealthy.
func (c Condition) Withdraws() bool { return c.Class >= ClassReset }

// Verdict is what is known of one device's health.
type Verdict struct {
	// Device is a physical GPU or a MIG device; Card is its physical GPU.
	Device gpu.UUID `json:"device"`
	Card   gpu.UUID `json:"card"`
	Status Status   `json:"status"`
	// Since is from when the status has stood.
	Since time.Time `json:"since"`
	// Avoid says that the device works, and that others are to be taken first if they are
	// free: something is pending, to be watched, or held back.
	Avoid bool `json:"avoid"`
	// Reason says why in one line; empty for a device without conditions.
	Reason string `json:"reason,omitempty"`
	// Conditions are those that cover the device, its own and its card's, the worst first.
	Conditions []Condition `json:"conditions,omitempty"`
}

// Avoided says that the device works, and that others are to be taken first. Of one that is
// Unhealthy there is nothing to avoid any more.
func (v *Verdict) Avoided() bool { return v.Avoid && v.Status != Unhealthy }

// Clearing is an operator's word that a device is good.
type Clearing struct {
	// Device is a physical GPU, or a MIG device to clear its own conditions only.
	Device gpu.UUID `json:"device"`
	// Reason and By are the operator's words, By who it was as the node knows it.
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Time   time.Time `json:"time"`
	// Ended are the conditions that the word ended.
	Ended []Condition `json:"ended"`
	// Standing are those that it could not end, because the GPU still says so: a failed row
	// remap, a recovery action, a GPU that is lost; or because they are not the MIG device's alone.
	Standing []Condition `json:"standing,omitempty"`
}

// Record is what is counted of one device, for as long as the state is kept.
type Record struct {
	Device gpu.UUID `json:"device"`
	// Transitions count how often each status began.
	Transitions map[string]uint64 `json:"transitions"`
	// Unhealthy is the time for which the device was Unhealthy and watched.
	Unhealthy time.Duration `json:"unhealthyNanoseconds"`
	// Clearings count the words of operators.
	Clearings uint64 `json:"clearings"`
}

// Report is the health of a node at one instant: all of it, never a difference. It is never
// modified once made.
type Report struct {
	Time   time.Time `json:"time"`
	BootID string    `json:"bootID"`
	// Version grows with each change of a status, a condition's kind, class or recovery, of
	// what has ended, or the list of devices, also over restarts where the state is kept. Times and counts alone
	// do not change it.
	Version uint64 `json:"version"`
	// Verdicts are in the order of the reading's devices: each physical GPU, then its MIG devices.
	// A GPU that was there, and is not listed any more, follows at the end.
	Verdicts []Verdict `json:"verdicts"`
	// Records are ordered by device.
	Records []Record `json:"records"`
	// Clearings are the latest words of operators, oldest first, 64 at most.
	Clearings []Clearing `json:"clearings"`
	// Ended are withdrawing conditions that evidence ended within the last day, or longer ago.
	Ended []Ending `json:"ended,omitempty"`
	// Repartition is how far dividing the node's GPUs anew is.
	Repartition Repartition `json:"repartition,omitzero"`
}

// Verdict is the one about a device; false where there is none.
func (r *Report) Verdict(device gpu.UUID) (Verdict, bool) {
	for i := range r.Verdicts {
		if r.Verdicts[i].Device == device {
			return r.Verdicts[i], true
		}
	}
	return Verdict{}, false
}

// Fact is a fault that somebody beside the driver knows of, such as a dead MPS daemon. It stands
// from one report of its reporter to the next.
type Fact struct {
	GPU gpu.UUID `json:"gpu"`
	// Kind is the reporter's own word, in lower-case letters, digits and _, 64 at most. A fact
	// of a kind that Fold finds by itself (an XID, a level, a lost GPU) is left out.
	Kind Kind `json:"kind"`
	// Class is what it asks for; of class app or info it is no condition.
	Class Class  `json:"class"`
	Text  string `json:"text"`
}

// Evidence is what one tick has to say about health.
type Evidence struct {
	// Time is the wall clock, BootID the kernel's boot id.
	Time   time.Time
	BootID string
	// Reading is the last good one. Its levels and events count if Fresh: an event is heard once.
	Reading gpu.Reading
	Fresh   bool
	// Silent says that the source has not answered for longer than is normal: what is not
	// known to be Unhealthy is Unknown.
	Silent bool
	// MIGState is the word of the node's MIG manager.
	MIGState MIGState
	// Facts are by reporter. A reporter that is missing has said nothing, and what it said
	// before stands; one that is there with no facts takes back what it said.
	Facts map[string][]Fact
	// Witnessed are withdrawing conditions of XIDs that others heard themselves, by who did. What is not
	// known of here is taken over; the rest changes nothing, so that they can say it as often as they like.
	Witnessed map[string][]Condition
}
