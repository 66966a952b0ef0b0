// SPDX-License-Identifier: Apache-2.0

// Package sharing says who holds how much of which GPU. It is arithmetic: no
// clock, no I/O, no state beside memoised geometry, exact rationals throughout.
//
// For every physical GPU the parts that it hands out (held shares and the
// unallocated remainder with its reasons) add up to exactly one, whatever the
// kubelet says.
package sharing

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Holder is who holds a device: a container of a pod.
type Holder struct {
	Namespace, Pod, Container string
	// PodUID is empty where the source does not know it; the kubelet's
	// PodResources API does not.
	PodUID string
}

// Allocation is one device id in one container, as the kubelet states it. A fact,
// not a calculation.
type Allocation struct {
	Holder Holder
	// Resource is the extended resource's name, "nvidia.com/gpu".
	Resource string
	// DeviceID is the kubelet's id, unparsed: foreign text.
	DeviceID string
	// Claim is "namespace/name" of the DRA claim where the device came from one;
	// Resource is then the DRA driver's name.
	Claim string
	// Since is when the meter first saw this allocation; zero when not known.
	Since time.Time
	// Terminal says that the pod has ended (Succeeded or Failed) although the
	// kubelet lists it. A terminal pod is not charged.
	Terminal bool
}

// Advertised is one device id that the kubelet could hand out.
type Advertised struct {
	Resource string
	DeviceID string
}

// Listing is one complete answer about the node's allocations. It is immutable
// from the moment it is returned.
type Listing struct {
	// Time is when the answer was complete, on the meter's wall clock.
	Time time.Time
	// Allocations are in the kubelet's order, entries of one container merged and
	// repeated ids removed. Resources that are not GPUs are left out by the source.
	Allocations []Allocation
	// Advertised are the ids the kubelet could hand out now: the healthy ones only,
	// none while the device plugin is away, each id once.
	Advertised []Advertised
	// Registered are the ids that the kubelet has on record for its plugins, those that
	// are away now among them; empty where the source has no record.
	Registered []Advertised
	// Pods and Containers count everything the source listed, GPU or not.
	Pods, Containers int
	// Skipped counts entries that could not be used, by reason.
	Skipped map[string]int
}

// Mode is how a holder came to its part.
type Mode string

// The modes. Time-slicing and MPS cannot be told apart by device id; both are ModeShared.
const (
	// ModeExclusive: a whole physical GPU.
	ModeExclusive Mode = "exclusive"
	// ModeMIG: a whole MIG device.
	ModeMIG Mode = "mig"
	// ModeShared: replicas of a physical GPU.
	ModeShared Mode = "shared"
	// ModeMIGShared: replicas of a MIG device.
	ModeMIGShared Mode = "mig-shared"
)

// Cause is why a part of a GPU is held by nobody, or by nobody who can be charged.
type Cause string

// The causes, after the charging rules.
const (
	// CauseFree: could be requested or created now.
	CauseFree Cause = "free"
	// CauseUnrequested: replica seats that nobody holds.
	CauseUnrequested Cause = "unrequested"
	// CauseStranded: no MIG profile that could still be created uses it.
	CauseStranded Cause = "stranded"
	// CauseUnhealthy: the GPU is out of service; a holder, where there is one, is named.
	CauseUnhealthy Cause = "unhealthy"
	// CauseUnobserved: nobody could see who held it.
	CauseUnobserved Cause = "unobserved"
	// CauseUnattributed: held, but the weight, the number of seats or the holder is unknown.
	CauseUnattributed Cause = "unattributed"
)

// Causes are all causes in the order they are shown.
func Causes() []Cause {
	return []Cause{CauseFree, CauseUnrequested, CauseStranded, CauseUnhealthy, CauseUnobserved, CauseUnattributed}
}

// Share is one holder's part of one physical GPU.
type Share struct {
	// Card is the physical GPU, Device what was held of it: the card itself or a MIG device.
	Card, Device gpu.UUID
	Holder       Holder
	Resource     string
	Mode         Mode
	// Seats of Of: replicas held and effective replicas; 1 of 1 for a whole device.
	Seats, Of int
	// SeatIDs are the replica numbers held, ascending; empty for a whole device.
	SeatIDs []int
	// Weight is the device's part of the card, Part the holder's: Weight × Seats / Of.
	Weight, Part Fraction
}

// Whole reports whether the holder has all of the device, so that what is measured
// on the device is the holder's alone.
func (s Share) Whole() bool { return s.Seats == s.Of }

// Unallocated is a part of a card that no holder is charged for.
type Unallocated struct {
	Card gpu.UUID
	// Device is the MIG device the part belongs to, or empty for the card's own.
	Device gpu.UUID
	Cause  Cause
	// Holder is named where a part is held but booked to a cause.
	Holder Holder
	Part   Fraction
}

// Conflict is an allocation that contradicts another and was not charged.
type Conflict struct {
	Card, Device gpu.UUID
	// Loser was not charged; Winner was. Some kinds have no winner.
	Loser, Winner Holder
	// Kind is one of ConflictExclusive, ConflictSeat, ….
	Kind string
}

// Unmatched is an allocation that could not be tied to a device of this node.
type Unmatched struct {
	Allocation Allocation
	// Reason is a short word for a label: "malformed_id", "unknown_device",
	// "claim_unresolved", …
	Reason string
}

// Division is how a node's GPUs are divided at one instant. Immutable once returned.
type Division struct {
	// Shares are ordered by card index, device, holder.
	Shares []Share
	// Unallocated are ordered by card index, device (the card's own parts before its
	// MIG devices'), cause, holder. Parts of zero are left out, but for those that name
	// the holder of a MIG device whose weight is not known.
	Unallocated []Unallocated
	// Conflicts are ordered by card index, device, kind, loser; each loser stands once
	// per device.
	Conflicts []Conflict
	// Unmatched are ordered by holder, resource, id.
	Unmatched []Unmatched
}

// Situation is what Attribute needs to know.
type Situation struct {
	// Devices is the node's inventory, physical GPUs before their MIG devices.
	Devices []gpu.Device
	// Allocations and Seats come from the allocation source. Observed false says
	// that nobody could see the allocations: every card is CauseUnobserved.
	Observed    bool
	Allocations []Allocation
	// Seats are the replicas advertised for each device, remembered.
	Seats Seats
	// Unhealthy are cards and MIG devices out of service.
	Unhealthy map[gpu.UUID]bool
	// Policy gives MIG devices their weight.
	Policy Policy
}

// JobResource is what jobs hold GPUs as: Slurm's generic resource. No device plugin advertises it.
const JobResource = "gres/gpu"

// Job is a batch scheduler's job on a GPU, or on one of its GPU instances.
type Job struct {
	// GPU is the GPU's index, Instance its GPU instance or gpu.NoInstance.
	GPU, Instance int
	// ID is the scheduler's. Account is who is charged for it.
	ID, Account string
}
