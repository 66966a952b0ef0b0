// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Amount is a quantity of GPU, exact. GPU is in GPU-milliseconds, Memory in MiB-milliseconds, Energy in
// millijoules.
type Amount struct {
	GPU, Memory, Energy sharing.Fraction
}

// Series is what a register of held time is kept by, in the way of the billing counter.
type Series struct {
	Namespace, Resource string
	Mode                sharing.Mode
	Model, Profile      string
}

// PodSeries is what a register of one container's time on one device is kept by.
type PodSeries struct {
	Series
	Pod, PodUID, Container string
	Card                   gpu.UUID
	// GPUInstance is gpu.NoInstance for a physical GPU.
	GPUInstance int
}

// CardTotal is what one card came to.
type CardTotal struct {
	Card
	// Present says that the card has lines now.
	Present bool
	// Capacity is all of it, Allocated what was held and charged.
	Capacity, Allocated Amount
	// Unallocated is the rest by cause, every cause that the card ever had.
	Unallocated map[sharing.Cause]Amount
	// AllocatedEnergy is Allocated.Energy by what it rests on, as EnergyBasis has it.
	AllocatedEnergy map[Basis]sharing.Fraction
	// Corrected is what was booked to a cause first and to a holder later: in Allocated as well as in
	// Unallocated. Capacity + all of Corrected = Allocated + all of Unallocated, exactly.
	Corrected map[sharing.Cause]Amount
}

// SeriesTotal is what one Series came to.
type SeriesTotal struct {
	Series
	Amount
	// Used is the busy time in GPU-milliseconds, by what it rests on.
	Used map[Basis]sharing.Fraction
}

// PodTotal is what one PodSeries came to.
type PodTotal struct {
	PodSeries
	Amount
	Used map[Basis]sharing.Fraction
	// Ended is when it was last open, Unix milliseconds; 0 while it is, or may be because nobody can see who holds the card.
	Ended int64
	// Pod is what is known of the pod beside its names.
	Pod Pod
}

// Totals are the registers of a ledger at one instant. They are immutable, their lists ordered: cards by index
// and UUID, series and pods by their fields.
type Totals struct {
	LedgerID string
	// Node, Cluster and Policy are as of the last Begin.
	Node, Cluster, Policy string
	// Created is the wall clock's stamp of the ledger's beginning.
	Created time.Time
	// Sequence is the number of the last record within.
	Sequence uint64
	// At is when that was.
	At         Instant
	Cards      []CardTotal
	Series     []SeriesTotal
	Pods       []PodTotal
	Gaps       map[string]int64 // milliseconds by reason, all of GapReasons
	XIDs       map[XID]uint64
	NodeLabels map[string]string
}

// BookState is how a book fares.
type BookState struct {
	// Durable says that there is a disk to keep it on; false for a book of memory.
	Durable bool
	// Degraded says that what is newer than the last commit is in memory only: the last attempt failed, or one takes
	// five seconds already.
	Degraded bool
	// Err is what went wrong at last, empty since it went well.
	Err string
	// Committed is the wall clock of the last commit; zero before the first.
	Committed time.Time
	// Pending are records that wait for a commit. Size is that of the log in bytes.
	Pending int
	Size    int64
	// Oldest is the wall clock's stamp of the oldest record in the log.
	Oldest time.Time
	// Errors count what failed by what was being done: all of BookErrors.
	Errors map[string]uint64
	// Restored is what was found at the start.
	Restored Restored
}

// EnergyBasis is what the energy of a holder rests on that holds in a mode: the card's own counter where the holder
// has it whole, else a part of it.
func EnergyBasis(m sharing.Mode) Basis {
	if m == sharing.ModeExclusive {
		return BasisDevice
	}
	return BasisShare
}

// BookErrors are the keys of BookState.Errors.
func BookErrors() []string { return []string{"open", "commit", "recover", "retain"} }

// View is what may be shown of a book now. It is immutable.
type View struct {
	// Totals are those of the last commit; zero before there was one. Pods that ended long ago are left out.
	Totals *Totals
	// Cards, Series and Pods that have come since: they are shown at 0, so that no series is born with a step.
	NewCards  []Card
	NewCauses map[gpu.UUID][]sharing.Cause
	NewSeries []Series
	NewPods   []PodTotal
	State     BookState
	// Unbalanced is for each card what its lines lack to one, in parts of the card; every known card, zero where
	// all is well.
	Unbalanced map[gpu.UUID]sharing.Fraction
}

// TombstoneFor is how long a pod's counters are shown after its end.
const TombstoneFor = 15 * time.Minute

// Micro is a total of GPU time in whole millionths: GPU-microseconds of GPU-milliseconds. It is
// rounded down, so that a register shows no more than was consumed, and the difference of two showings
// is the same whoever computes it.
func Micro(total sharing.Fraction) int64 { return total.Scale(1000, 1).Floor() }

// Microjoules is a total of energy as registers show it, to the whole millijoule: a float of joules, which is what a
// scrape carries, keeps millijoules for decades of a node, and microjoules for some months of a GPU.
func Microjoules(total sharing.Fraction) int64 { return total.Floor() * 1000 }
