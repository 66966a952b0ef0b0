// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Instant is a moment on a node's two clocks, in whole milliseconds. Durations are differences of Boot,
// which no clock step and no daylight saving touches; Wall is a stamp, and says in which hour something was.
type Instant struct {
	// BootID is the kernel's boot id; Boot of two instants can be compared only where it is the same.
	BootID string
	// Boot is the time since the machine was started, suspended time included (CLOCK_BOOTTIME).
	Boot int64
	// Wall is Unix time.
	Wall int64
}

// Card is a physical GPU as the book knows it.
type Card struct {
	UUID  gpu.UUID `json:"uuid"`
	Index int      `json:"index"`
	Model string   `json:"model"`
	// Memory is the card's frame buffer in MiB, 0 where it is not known.
	Memory int64 `json:"memory,omitempty"`
}

// Line is one part of one card, as it stands for a while: what somebody holds, or why nobody does. The
// lines of a card add up to one, in Part as in Memory.
type Line struct {
	// Card is the physical GPU; Device what is held of it: the card itself or a MIG device. Device is empty for
	// an unallocated part of the card itself.
	Card, Device gpu.UUID
	// GPUInstance is the MIG device's, else gpu.NoInstance; Profile its name, else empty.
	GPUInstance int
	Profile     string
	// Cause is why nobody is charged; empty where Holder is.
	Cause sharing.Cause
	// Holder is who holds it; with a Cause, who holds what is booked to it, if anybody.
	Holder   sharing.Holder
	Resource string
	Mode     sharing.Mode
	// Seats of Of are held; 1 of 1 for a whole device, 0 of 0 with a Cause.
	Seats, Of int
	// Weight is the device's part of the card, Part the line's, Memory the line's part of the card's memory.
	Weight, Part, Memory sharing.Fraction
}

// Pod is what the API server says of a pod that holds something.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// WorkloadKind and Workload are its owner at the top as far as it can be told: "Deployment", "trainer".
	WorkloadKind string            `json:"kind,omitempty"`
	Workload     string            `json:"workload,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// XID is what XIDs are counted by; the instances are gpu.NoInstance where an error concerns the whole card.
type XID struct {
	GPU                          gpu.UUID
	GPUInstance, ComputeInstance int
	Code                         int
}

// Fact is something to be known beside the charges that changes none: a transition of health, a conflict.
type Fact struct {
	// What is one of FactHealth, FactConflict, FactRefused.
	What string `json:"what"`
	// Device is the card or MIG device that it concerns.
	Device gpu.UUID `json:"device,omitempty"`
	// Text is for people; Detail for programs.
	Text   string            `json:"text"`
	Detail map[string]string `json:"detail,omitempty"`
}

// The kinds of Fact.
const (
	FactHealth   = "health"
	FactConflict = "conflict"
	// FactRefused: the account did not take a record that it made of an Observation; a fault of the program.
	FactRefused = "refused"
)

// Observation is what one tick of the meter saw, complete. The lines hold from At until the next Observation.
type Observation struct {
	At Instant
	// Cards are those that are there now. One without lines is a card of which nothing is known: it is unattributed.
	Cards []Card
	Lines []Line
	// Energy is each card's energy counter in millijoules, which begins anew with the driver; a card that does
	// not tell is missing.
	Energy map[gpu.UUID]int64
	// Busy is the part of time that each card or MIG device was busy, in millionths, as of At; one that does not
	// tell is missing. Basis says what measured it.
	Busy  map[gpu.UUID]int64
	Basis Basis
	// XIDs are those since the last Observation.
	XIDs map[XID]uint64
	// Facts are those since the last Observation.
	Facts []Fact
	// Pods are those of the holders that the API server tells of.
	Pods []Pod
	// NodeLabels are the node's where they are known.
	NodeLabels map[string]string
	// watched says that it stands for others as well, which saw the same and leave no gap to the Observation before.
	watched bool
}

// Basis is what a measured quantity rests on.
type Basis string

// The bases.
const (
	// BasisEngine: the graphics or compute engine's activity (DCGM field 1001), of a device that one holder has whole.
	BasisEngine Basis = "gr_engine"
	// BasisUtil: the time in which any kernel ran (DCGM field 203), of a device that one holder has whole.
	BasisUtil Basis = "gpu_util"
	// BasisEqual: measured on a shared device and split among its holders by seats: an estimate.
	BasisEqual Basis = "equal"
	// BasisDevice: energy measured on a card that one holder has whole.
	BasisDevice Basis = "device"
	// BasisShare: energy measured on a card and split by parts of it: an estimate.
	BasisShare Basis = "share"
)

// Kind is what a Record says.
type Kind string

// The kinds of Record.
const (
	KindCarry      Kind = "carry"
	KindBegin      Kind = "begin"
	KindCard       Kind = "card"
	KindOpen       Kind = "open"
	KindClose      Kind = "close"
	KindBeat       Kind = "beat"
	KindUse        Kind = "use"
	KindGap        Kind = "gap"
	KindCorrection Kind = "correction"
	KindFact       Kind = "fact"
	KindXID        Kind = "xid"
	KindPod        Kind = "pod"
	KindNode       Kind = "node"
)

// Record is one entry of the log. Time passes with every record: what is open is charged up to its At.
type Record struct {
	Seq  uint64
	At   Instant
	Body Body
}

// Body is what a record says beside when: one of the types below.
type Body interface{ Kind() Kind }

// Carry begins a segment of the log: all that the records before it came to.
type Carry struct {
	// State is Account's after the record before this one, as Account.MarshalJSON wrote it.
	State json.RawMessage `json:"state"`
}

// Begin says that a meter took the book up, or that the machine is another boot's. It charges nothing: a Gap follows
// where there were cards before.
type Begin struct {
	LedgerID string `json:"ledger_id"`
	Node     string `json:"node,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	BootID   string `json:"boot_id"`
	Version  string `json:"version,omitempty"`
	// Policy is how MIG devices are weighed from here on.
	Policy string `json:"policy,omitempty"`
}

// CardSeen introduces a card, or says that what is known of it has changed. N is its number in the book, from 1 on, never
// reused.
type CardSeen struct {
	N int `json:"n"`
	Card
}

// Open says that a line stands from here on. ID is never reused.
type Open struct {
	ID          uint64        `json:"id"`
	Card        int           `json:"card"`
	Device      gpu.UUID      `json:"device,omitempty"`
	GPUInstance int           `json:"gi"`
	Profile     string        `json:"profile,omitempty"`
	Cause       sharing.Cause `json:"cause,omitempty"`
	Namespace   string        `json:"namespace,omitempty"`
	Pod         string        `json:"pod,omitempty"`
	PodUID      string        `json:"uid,omitempty"`
	Container   string        `json:"container,omitempty"`
	Resource    string        `json:"resource,omitempty"`
	Mode        sharing.Mode  `json:"mode,omitempty"`
	Seats       int           `json:"seats,omitempty"`
	Of          int           `json:"of,omitempty"`
	Weight      string        `json:"weight,omitempty"`
	Part        string        `json:"part"`
	Memory      string        `json:"memory"`
	Policy      string        `json:"policy,omitempty"`
}

// Close says that a line does not stand any more.
type Close struct {
	ID uint64 `json:"id"`
	// Why is one of CloseEnded, CloseChanged, CloseUnseen, CloseGap, CloseReboot.
	Why string `json:"why"`
}

// The reasons why a line ends. The last two are the ends that a Gap makes; no Close says them.
const (
	CloseEnded   = "ended"
	CloseChanged = "changed"
	// CloseUnseen: nobody can see any more who holds the card. Who is found there again with the same UID had it all the while, and
	// a Correction says so.
	CloseUnseen = "unseen"
	CloseGap    = "gap"
	CloseReboot = "reboot"
)

// Beat says that all that is open still stands.
type Beat struct{}

// Use is what was measured since the last Use, or since the lines of a card changed: nothing of a card's lines
// has changed within.
type Use struct {
	// Energy is in millijoules by number of card.
	Energy map[int]int64 `json:"energy,omitempty"`
	// Busy is in milliseconds by device.
	Busy  map[gpu.UUID]int64 `json:"busy,omitempty"`
	Basis Basis              `json:"basis,omitempty"`
	// Counters are what the cards' energy counters showed, in millijoules by number of card: what a later reading is
	// compared with.
	Counters map[int]int64 `json:"counters,omitempty"`
}

// Gap says that nobody looked before At. Every card that had lines counts Span of capacity: bridged lines are
// charged theirs and stay open, the rest is unobserved, and the other lines end at what was charged last, which is
// the last record before it that is no Begin. There are no Closes of these. Time between that record and the Gap
// is charged by the Gap and at its At, by nothing else. A Gap of GapLost ends nothing and charges nothing: another Gap follows.
type Gap struct {
	// Reason is one of GapReasons.
	Reason string `json:"reason"`
	// Span is how long, in milliseconds on the boot clock: since the last record where the boot is the same, else
	// since the machine was started; 0 where that cannot be told. Wall is the same by the wall clock, since the last
	// record.
	Span int64 `json:"span"`
	Wall int64 `json:"wall"`
	// Bridged are the lines that are proven to have stood all the while.
	Bridged []Bridge `json:"bridged,omitempty"`
	// Cards are the cards that count Span after another boot.
	Cards []int `json:"cards,omitempty"`
	// Energy is what the cards took within, in millijoules by number of card, and Counters what their counters showed at
	// the end. It goes to the bridged lines by their part, the rest to unobserved.
	Energy   map[int]int64 `json:"energy,omitempty"`
	Counters map[int]int64 `json:"counters,omitempty"`
}

// Bridge is a line that a gap does not end, and its part within the gap.
type Bridge struct {
	ID   uint64 `json:"id"`
	Part string `json:"part"`
	// Memory is its part of the memory.
	Memory string `json:"memory"`
}

// The reasons of Gap. They are label values.
const (
	// GapRestart: the meter was away.
	GapRestart = "restart"
	// GapReboot: the machine was.
	GapReboot = "reboot"
	// GapStall: the meter ran and did not tick for long.
	GapStall = "stall"
	// GapLost: records of the log are missing.
	GapLost = "lost"
)

// GapReasons are all of them.
func GapReasons() []string { return []string{GapRestart, GapReboot, GapStall, GapLost} }

// Correction books time of the past elsewhere, because something came to be known late. What it takes off a
// cause is counted apart, so that no counter falls.
type Correction struct {
	// Line is the open or closed line that is charged now, described by itself, Card its card.
	Card int `json:"card"`
	// To is whom it is charged to.
	To Open `json:"to"`
	// From is the cause that it was booked to.
	From sharing.Cause `json:"from"`
	// Span is in milliseconds of the boot clock, Part and Memory what is charged of it.
	Span   int64  `json:"span"`
	Part   string `json:"part"`
	Memory string `json:"memory"`
	// Refers is the record that booked it first. FromWall to ToWall is when it was.
	Refers   uint64 `json:"refers"`
	FromWall int64  `json:"from_wall"`
	ToWall   int64  `json:"to_wall"`
	// Reason is CorrectionProof.
	Reason string `json:"reason"`
}

// CorrectionProof is the reason of a Correction that charges late for a gap, or for a time in which nobody could see who
// holds a card: what a pod held was known before, and that it is the same pod became known after.
const CorrectionProof = "late_proof"

// FactSeen is a Fact.
type FactSeen struct{ Fact }

// XIDSeen counts XIDs: Count more of them.
type XIDSeen struct {
	GPU             gpu.UUID `json:"gpu"`
	GPUInstance     int      `json:"gi"`
	ComputeInstance int      `json:"ci"`
	Code            int      `json:"code"`
	Count           uint64   `json:"count"`
}

// PodSeen is what became known of a pod.
type PodSeen struct{ Pod }

// NodeSeen are the node's labels from here on.
type NodeSeen struct {
	Labels map[string]string `json:"labels"`
}

// Kind says what it is.
func (*Carry) Kind() Kind { return KindCarry }

// Kind says what it is.
func (*Begin) Kind() Kind { return KindBegin }

// Kind says what it is.
func (*CardSeen) Kind() Kind { return KindCard }

// Kind says what it is.
func (*Open) Kind() Kind { return KindOpen }

// Kind says what it is.
func (*Close) Kind() Kind { return KindClose }

// Kind says what it is.
func (*Beat) Kind() Kind { return KindBeat }

// Kind says what it is.
func (*Use) Kind() Kind { return KindUse }

// Kind says what it is.
func (*Gap) Kind() Kind { return KindGap }

// Kind says what it is.
func (*Correction) Kind() Kind { return KindCorrection }

// Kind says what it is.
func (*FactSeen) Kind() Kind { return KindFact }

// Kind says what it is.
func (*XIDSeen) Kind() Kind { return KindXID }

// Kind says what it is.
func (*PodSeen) Kind() Kind { return KindPod }

// Kind says what it is.
func (*NodeSeen) Kind() Kind { return KindNode }
