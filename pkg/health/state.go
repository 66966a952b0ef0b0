// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// State is all that is known of a node's health. It is a value: nothing modifies it, and it may
// be kept, read by any number of goroutines, saved and taken up again. The zero State knows nothing.
type State struct{ data *data }

// Report is the node's health as the state has it. It was made with the state, and is never nil.
func (s State) Report() *Report {
	if s.data == nil {
		return &Report{Verdicts: []Verdict{}, Records: []Record{}, Clearings: []Clearing{}}
	}
	return s.data.report
}

// Durable grows with whatever must survive a restart: a condition, its class, count and recovery,
// a status, an operator's word, what the recovery of a card goes by. The running seconds of a
// Record and when a standing level was last seen do not count; they need saving now and then.
func (s State) Durable() uint64 {
	if s.data == nil {
		return 0
	}
	return s.data.Durable
}

// The bounds of a state, far beyond what a node has.
const (
	mostCards      = 256
	mostParts      = 64
	mostConditions = 128
	mostPast       = 64
	mostRecent     = 64
	mostClearings  = 64
	mostRecords    = 1024
	mostReporters  = 32
	mostFacts      = 256
	mostText       = 512
	mostWord       = 128
)

// data is a State's content. What of it is exported to JSON is what a restart needs.
type data struct {
	Version uint64    `json:"version"`
	Durable uint64    `json:"durable"`
	Time    time.Time `json:"time"`
	// Heard is when the last fresh reading was folded.
	Heard  time.Time `json:"heard"`
	BootID string    `json:"bootID"`
	// Silent is Evidence.Silent as of the last fold, until a reading is fresh.
	Silent bool `json:"silent,omitempty"`
	// Repartition is what the MIG manager said last.
	Repartition repartition `json:"repartition,omitzero"`
	// Cards are in the order of the reading; those that it does not list follow.
	Cards     []card            `json:"cards"`
	Facts     map[string][]Fact `json:"facts,omitempty"`
	Clearings []Clearing        `json:"clearings,omitempty"`
	// Records are ordered by device.
	Records []Record `json:"records,omitempty"`

	report *Report
	// restored: no reading was folded since the state was taken up.
	restored bool
	// places are the devices of the last reading; nil after a restart.
	places []place
}

// card is a physical GPU with its MIG devices.
type card struct {
	device
	// Parts are its MIG devices as last listed.
	Parts  []device `json:"parts,omitempty"`
	Listed bool     `json:"listed,omitempty"`
	// Met says that it was ever listed, Lost that it is known to be out of reach now.
	Met  bool `json:"met,omitempty"`
	Lost bool `json:"lost,omitempty"`
	// Away is the first of the readings in a row that lack it or call it lost, zero where the last
	// one has it. Gone says that a later one, awayFor after it, bore that out.
	Away time.Time `json:"away,omitzero"`
	Gone bool      `json:"gone,omitempty"`
	// Bus is where it is, or was, on the PCI bus.
	Bus string `json:"bus,omitempty"`
	// MIG says that it is in MIG mode.
	MIG bool `json:"mig,omitempty"`

	Conditions []condition `json:"conditions,omitempty"`
	Past       []past      `json:"past,omitempty"`

	// Sampled is the source's time of its last values, Answered when they were folded: each
	// values that are new is an answer. Mute is from when there was none, zero while it answers.
	Sampled  time.Time `json:"sampled,omitzero"`
	Answered time.Time `json:"answered,omitzero"`
	Mute     time.Time `json:"mute,omitzero"`
	// Settled is when an operator or evidence last ended a condition.
	Settled time.Time `json:"settled,omitzero"`

	// Action is the driver's recovery action as last told, unknownAction before.
	Action int64 `json:"action"`
	// ActionBoot is the boot id at that time.
	ActionBoot string `json:"actionBoot,omitempty"`
	// Remaps says that it can remap rows of its memory.
	Remaps bool `json:"remaps,omitempty"`
	// DoubleBit is the volatile count of double-bit errors as last read, unknownCount before.
	DoubleBit int64 `json:"doubleBit"`
	// Links are the NVLinks that were up once, a bit for each.
	Links uint64 `json:"links,omitempty"`
	// Checked is the time of the last round of health checks that looked at it.
	Checked time.Time `json:"checked,omitzero"`

	// noneAt is the fold that last read the recovery action as none.
	noneAt time.Time
}

const (
	unknownAction = -1
	unknownCount  = -1
)

// device is a physical GPU or a MIG device with its status.
type device struct {
	UUID            gpu.UUID      `json:"uuid"`
	GPUInstance     int           `json:"gpuInstance"`
	ComputeInstance int           `json:"computeInstance"`
	Placement       gpu.Placement `json:"placement,omitzero"`
	Status          Status        `json:"status"`
	Since           time.Time     `json:"since,omitzero"`
	// Note says why the status is Unknown.
	Note string `json:"note,omitempty"`
}

// origin is what a condition comes from, and so what ends it.
type origin uint8

const (
	// ofEvent: something happened. Evidence of recovery ends it, or time if it does not withdraw.
	ofEvent origin = iota + 1
	// ofLevel: something is so. It ends when it is read not to be so.
	ofLevel
	// ofCheck: a health check found it. It ends when a later one does not.
	ofCheck
	// ofFact: a reporter says so. It ends when the reporter does not any more.
	ofFact
	// ofFlapping: recoveries that did not last. An operator ends it.
	ofFlapping
)

// condition is a Condition with what ends and what raises it.
type condition struct {
	Condition
	Origin origin `json:"origin"`
	// Own is the class by itself, before repetition and the driver.
	Own Class `json:"own"`
	// Set says that the level, check or fact still stood when it was last looked at.
	Set bool `json:"set,omitempty"`
	// Cause is the evidence without what was added to it.
	Cause string `json:"cause,omitempty"`
	// Recent are the latest occurrences, for repetition.
	Recent []time.Time `json:"recent,omitempty"`
	Raised bool        `json:"raised,omitempty"`
	// Freed: the recovery action went back to none since it was last seen. Returned: the card
	// was gone or lost, and came back since.
	Freed    bool `json:"freed,omitempty"`
	Returned bool `json:"returned,omitempty"`
	// Lowered says that the driver lowered the class, Asks from when it has asked for nothing.
	Lowered bool      `json:"lowered,omitempty"`
	Asks    time.Time `json:"asks,omitzero"`

	// told is the fold that last saw it happen.
	told time.Time
}

// past is a withdrawing condition that evidence ended.
type past struct {
	Subject
	Kind  Kind      `json:"kind"`
	Ended time.Time `json:"ended"`
	// Returns are when it came back since.
	Returns []time.Time `json:"returns,omitempty"`
}

// place is what of a device its readers go by beside its health.
type place struct {
	uuid, parent gpu.UUID
	index, minor int
	bus, profile string
	mig          bool
	gi, ci       int
	placement    gpu.Placement
}

func placeOf(d *gpu.Device) place {
	return place{
		d.UUID, d.Parent, d.Index, d.Minor, d.PCIBusID, d.Profile.Name, d.MIGEnabled,
		d.GPUInstance, d.ComputeInstance, d.Placement,
	}
}

func newCard(id gpu.UUID) card {
	return card{
		device: device{UUID: id, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance},
		Action: unknownAction, DoubleBit: unknownCount,
	}
}

// find is the place of the condition of a subject and kind, -1 for none.
func (c *card) find(s Subject, k Kind) int {
	return slices.IndexFunc(c.Conditions, func(has condition) bool { return has.Kind == k && has.Subject == s })
}

// overlaps says whether two ranges of memory slices, both known, have one in common.
func overlaps(a, b gpu.Placement) bool { return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size }

// near says whether a condition of an instance lies where the MIG device d is: in the same
// memory where both places are known, else in the instance of the same id.
func near(s *Subject, d *device) bool {
	if s.Placement.Size > 0 && d.Placement.Size > 0 {
		return overlaps(s.Placement, d.Placement)
	}
	return s.GPUInstance == d.GPUInstance
}

// whole says whether a condition concerns all of its card.
func whole(q *condition) bool {
	return q.GPUInstance == gpu.NoInstance || q.Class >= ClassNode
}

// covers says whether a condition of the card concerns its MIG device d. That of a compute instance
// concerns this one alone for as long as there is one like it, and then all of the GPU instance.
func (c *card) covers(q *condition, d *device) bool {
	if whole(q) {
		return true
	}
	if !near(&q.Subject, d) {
		return false
	}
	if q.ComputeInstance == gpu.NoInstance || q.ComputeInstance == d.ComputeInstance {
		return true
	}
	return !slices.ContainsFunc(c.Parts, func(other device) bool {
		return near(&q.Subject, &other) && other.ComputeInstance == q.ComputeInstance
	})
}

// stray says whether a condition of an instance concerns no MIG device that there is.
func (c *card) stray(q *condition) bool {
	return !slices.ContainsFunc(c.Parts, func(d device) bool { return c.covers(q, &d) })
}

// withdraws says whether a condition of the card makes the physical GPU itself Unhealthy. What
// is wrong with an instance concerns the GPU only when it is in MIG mode no more.
func (c *card) withdraws(q *condition) bool { return q.Withdraws() && (whole(q) || !c.MIG) }
