// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// The names of the sources, as they stand in Fault.Source and in label values.
const (
	SourceTelemetry   = "telemetry"
	SourceAllocations = "allocations"
	// SourceAttribution is no input: it names a division that does not add up.
	SourceAttribution = "attribution"
	// SourceConditions is no input either: it names what keeps the state of health on disk.
	SourceConditions = "conditions"
	// SourceInventory neither: it names what keeps the devices and their replicas on disk.
	SourceInventory = "inventory"
	// SourceLedger neither: it names the book of charges.
	SourceLedger = "ledger"
	// SourceRepartition neither: it names a repartition of GPUs that takes too long.
	SourceRepartition = "repartition"
)

// Snapshot is the node at one instant. It is complete, and it is never modified
// once published: any number of readers may keep it as long as they like.
type Snapshot struct {
	// Seq counts ticks since the start; 0 is the empty snapshot before the first.
	Seq uint64
	// Time is the meter's wall clock when the snapshot was published.
	Time time.Time
	// Interval is the time between ticks, Took the duration of this one, Late how
	// long after its planned moment it began. The tick after missed moments is late by them.
	Interval, Took, Late time.Duration

	// Reading is the last good answer of the telemetry source, the zero Reading when
	// there is none. Its events are in the first snapshot that has it, and in no later one.
	// Of a reading older than its limit the devices and the origin are left.
	Reading gpu.Reading
	// Gone are devices that the Reading does not list any more and that the Division has, since somebody is
	// listed on their card and there is a verdict on it: as they were last, marked as lost where it says that.
	Gone []gpu.Device
	// Recent are the events of all readings within Config.EventWindow before Reading.Time,
	// oldest first; the latest 4096 where there were more. An event of a GPU that is not
	// listed, or not any more, stays under its UUID.
	Recent []gpu.Event
	// RecentClocks says for each GPU what held its clocks back within Config.ClockWindow
	// before Reading.Time. A GPU without a value in the window is missing, as are all unless
	// gpu.FieldClockReasons is among the fields, and where the reading is older than its limit.
	RecentClocks map[gpu.UUID]ClockWindow
	// Listing is the last good answer about allocations, no older than its limit; the
	// zero Listing when there is none.
	Listing sharing.Listing
	// Observed says that Listing is one.
	Observed bool
	// Division is who holds how much; its parts add up to one per physical GPU of Divided.
	Division sharing.Division
	// Seats are the replicas of each device that the division reckons with.
	Seats sharing.Seats
	// Weights are the part of its card that each device counts as: one for a physical
	// GPU, the policy's weight for a MIG device. One whose weight is not known is missing.
	Weights map[gpu.UUID]sharing.Fraction

	// Pods are what more is known of the pods that hold something; those of which no more is known are missing.
	Pods []ledger.Pod
	// Jobs are the batch scheduler's, by GPU and instance; nil where nobody is asked.
	Jobs []sharing.Job

	// Health is what is known of the devices' health after this tick, never nil. A meter without
	// rules has no verdicts; so has one before its first tick. With a Store, its Records are as they
	// were last saved, so that what is counted does not fall when the process is killed; once nothing
	// could be saved for two minutes they are the latest all the same, and a fault says so.
	Health *health.Report
	// HealthStore says whether it is on disk.
	HealthStore StoreState

	// Ledger is what may be shown of the Book, nil without one. Its totals are on disk; see Committed.
	Ledger *ledger.View
	// XIDs count like Totals.XIDs, over restarts where there is a Book: as they are on disk, or all that are known
	// while the disk is of no use. Nil while it is not known what was counted before.
	XIDs map[XIDKey]uint64

	// Sources are the states of the configured sources, in a fixed order.
	Sources []SourceState
	// Faults are what went wrong in this tick.
	Faults []Fault
	// Totals only grow.
	Totals Totals
}

// Divided are the devices that the Division divides: those of the Reading and, behind them, those that
// are gone. It must not be modified.
func (s *Snapshot) Divided() []gpu.Device { return joined(s.Reading.Devices, s.Gone) }

// SourceState is how one source fares.
type SourceState struct {
	Name string
	// LastSuccess is when the last good answer was complete; zero before the first.
	LastSuccess time.Time
	// Age is the snapshot's time less LastSuccess; negative one before the first.
	Age time.Duration
	// Took is how long the last finished call lasted.
	Took time.Duration
	// Outstanding is how long a call that has not come back has been running; 0 for none.
	Outstanding time.Duration
	// Up says that the source answered in this tick.
	Up bool
}

// Fault is one thing that went wrong in a tick. It costs what it concerns, never the scrape.
type Fault struct {
	// Source is where: SourceTelemetry, SourceAllocations, SourceAttribution, SourceConditions, SourceInventory, SourceLedger, SourceRepartition.
	Source string
	// Subject is the device it concerns, empty for the whole source.
	Subject gpu.UUID
	// Kind is a short word for a label: "timeout", "error", "lost", …
	Kind string
	// Text is for people.
	Text string
}

// FaultKey is what faults are counted by.
type FaultKey struct{ Source, Kind string }

// Totals are counts since the meter began. The maps are read-only, new for each
// snapshot that changes them.
type Totals struct {
	// LateTicks are those of Ticks that began more than half an interval late; one that
	// follows missed moments counts once. Alarmed are those of Ticks that came beside the grid, because
	// of an alarm of the telemetry, of new facts, or to look again for a card that a reading lacked.
	Ticks, LateTicks, Alarmed uint64
	// Faults count in each tick in which they are present.
	Faults map[FaultKey]uint64
	// Conflicts by kind and allocations tied to no device by reason count when they appear.
	Conflicts, NotCharged map[string]uint64
	// XIDs count once per event, also of devices that have left since.
	XIDs map[XIDKey]uint64
	// Clocks count how often each reason began to hold the clocks back between two samples,
	// for every GPU that ever answered gpu.FieldClockReasons; all zero after its first one.
	Clocks map[gpu.UUID]ClockReasons
}
