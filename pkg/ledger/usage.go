// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Detail is how finely a Query asks.
type Detail int

// The details.
const (
	// DetailSeries: by namespace, resource, mode, model and profile.
	DetailSeries Detail = iota
	// DetailPods: by container and device too.
	DetailPods
)

// Query asks what was consumed between moments. Every source of Usage answers it alike: as an electricity meter
// is read, by the difference of what its registers showed at the last reading at or before each moment.
type Query struct {
	// Boundaries are two or more moments, ascending: each with the next is a window.
	Boundaries []time.Time
	Detail     Detail
	// Nodes, Namespaces, Pods keep only what they name, where they name anything. What nobody held
	// is always whole.
	Nodes, Namespaces, Pods []string
	// Progress is told how much of the work is done, 0 to 1; it may be nil.
	Progress func(done float64, what string)
}

// Held is one series' consumption in one window.
type Held struct {
	// Node is an index into Usage.Nodes, Window one into the windows.
	Node, Window int
	Series
	// The following are empty or gpu.NoInstance unless pods were asked for.
	Pod, PodUID, Container string
	Card                   gpu.UUID
	GPUInstance            int
	WorkloadKind, Workload string
	Labels                 map[string]string
	Quantity
	// Used is in GPU-microseconds, by what it rests on.
	Used map[Basis]int64
}

// KnownUse is what is known of the use of a holding of so many GPU-microseconds, given how its registers of use grew, which it
// changes. Nothing used of something held is an answer, and not the same as nobody having measured it; nothing by one
// measure beside something by another is none.
func KnownUse(used map[Basis]int64, held int64) map[Basis]int64 {
	some := false
	for _, n := range used {
		some = some || n != 0
	}
	maps.DeleteFunc(used, func(_ Basis, n int64) bool { return n == 0 && (some || held == 0) })
	if len(used) == 0 {
		return nil
	}
	return used
}

// Rest is what was not held of one card in one window, by cause; the whole card's capacity where Cause is empty,
// and what of an earlier window was found to be held after all where Corrected is set.
type Rest struct {
	Node, Window int
	Card         gpu.UUID
	Index        int
	Model        string
	Cause        sharing.Cause
	Corrected    bool
	Quantity
}

// Quantity is a consumption in integers: the difference of two showings of a register.
type Quantity struct {
	// GPU is in GPU-microseconds, Energy in microjoules.
	GPU, Energy int64
	// Memory is in GiB-seconds. It is for looking at, and not billed by.
	Memory float64
}

// NodeUsage is one ledger, which is one node as long as its disk lasts.
type NodeUsage struct {
	Cluster, Node, LedgerID string
	Created                 time.Time
	Labels                  map[string]string
	// Policies are how MIG devices were weighed in that time, in the order of their names: one unless it was changed.
	Policies []string
	// Readings are for each boundary when its reading was really taken: the last one at or before it. Zero
	// where there is none: the ledger is younger, or nothing that old is kept.
	Readings []time.Time
	// Missing say where what this ledger consumed is not, or not surely, all in the answer.
	Missing []Missing
	// Gaps are when nobody looked; their time is in the answer, as unobserved or bridged by proof.
	Gaps []Missing
}

// Missing is a time of one node that the answer lacks, or in which it was not looked.
type Missing struct {
	From, To time.Time
	// Reason is a short word: "no_reading", "node_vanished", "retention", "reset", "cloned", "log_lost", "unreadable", or a reason
	// of Gap.
	Reason string
	// Text is for people, and says what to do.
	Text string
}

// Usage answers a Query. For every card and window, capacity + corrected = allocated + the rest, up to one
// millionth of a second per register.
type Usage struct {
	// Source names where it is from: "ledger", "prometheus".
	Source     string
	Boundaries []time.Time
	Nodes      []NodeUsage
	Held       []Held
	Rest       []Rest
	// Corrections are what was charged late, within the window in which it was booked.
	Corrections []Corrected
	// Notes are for people: what was found on the way and changes no number, such as duplicates.
	Notes []string
}

// Corrected is one correction.
type Corrected struct {
	Node, Window int
	Held         Held
	From         sharing.Cause
	FromTime     time.Time
	ToTime       time.Time
	Reason       string
	Refers       uint64
}
