// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Stats is what a Manager did and has, at one instant. It is never modified once made. Counts
// are since the manager was made and never fall, also those of a resource that is gone.
type Stats struct {
	// Resources are ordered by name: those handed out now, and those that once were.
	Resources []ResourceStats
	// Problems are what keeps the newest NodeState from being handed out as its settings ask,
	// each a *Problem.
	Problems []error
	// Revision is that of the NodeState whose settings Allocate goes by, empty before the first.
	Revision string
	// Prepares counts what Prepare did; PrepareError is what it last failed with, empty once
	// it has succeeded again.
	Prepares, PrepareFailures uint64
	PrepareError              string
	// Watched says that the kernel tells of changes in the kubelet's folder. Without, they are
	// seen by looking, half a second later.
	Watched bool
}

// ResourceStats are those of one resource.
type ResourceStats struct {
	Name string
	// Served says that the resource is handed out now; Registered, that the kubelet took the
	// registration of the present socket.
	Served, Registered bool
	// Socket is the path of the present socket, empty for none.
	Socket string
	// Healthy and Unhealthy are the seats in the newest list.
	Healthy, Unhealthy int
	// Streams are the open ListAndWatch calls, Lists the messages sent on any.
	Streams int
	Lists   uint64
	// Registrations counts those that the kubelet took, RegistrationFailures the others.
	Registrations, RegistrationFailures uint64
	// Preferences counts the answers to GetPreferredAllocation.
	Preferences uint64
	// Allocations has the time that each Allocate call took, refused ones too.
	Allocations Histogram
	// AllocateErrors counts refused Allocate calls by reason.
	AllocateErrors map[string]uint64
	// LastError is the newest trouble with the socket or the kubelet, empty once all is well.
	LastError   string
	LastErrorAt time.Time
}

// Histogram counts durations.
type Histogram struct {
	// Bounds are the upper, inclusive ends of the buckets.
	Bounds []time.Duration
	// Counts are those of each bucket alone; one more than Bounds, for all that is longer.
	Counts []uint64
	Sum    time.Duration
}

// Count is how many durations there are.
func (h Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// allocateBounds are chosen for an answer from memory: anything above a millisecond is a
// machine without time, anything above a second is what people notice.
func allocateBounds() []time.Duration {
	return []time.Duration{
		100 * time.Microsecond, 250 * time.Microsecond, time.Millisecond, 5 * time.Millisecond,
		25 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second,
	}
}

// tally counts what happens to one resource. It outlives the endpoint, so that a resource which
// comes back goes on where it was. Safe for concurrent use.
type tally struct {
	mu sync.Mutex
	s  ResourceStats
	// sockets is the number in the name of the last socket made: no name is used twice.
	sockets int
}

func newTally(resource string) *tally {
	bounds := allocateBounds()
	return &tally{s: ResourceStats{
		Name:           resource,
		AllocateErrors: map[string]uint64{},
		Allocations:    Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)},
	}}
}

func (t *tally) update(change func(*ResourceStats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.s)
}

func (t *tally) socketsMade() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sockets
}

func (t *tally) socketMade(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sockets = n
}

// failed notes a trouble, and reports whether it is another one than before.
func (t *tally) failed(now time.Time, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	isNew := t.s.LastError != err.Error()
	t.s.LastError, t.s.LastErrorAt = err.Error(), now
	return isNew
}

func (t *tally) allocated(took time.Duration, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := &t.s.Allocations
	bucket, _ := slices.BinarySearch(h.Bounds, took)
	h.Counts[bucket]++
	h.Sum += took
	if reason != "" {
		t.s.AllocateErrors[reason]++
	}
}

func (t *tally) stats() ResourceStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.s
	s.AllocateErrors = maps.Clone(s.AllocateErrors)
	s.Allocations.Counts = slices.Clone(s.Allocations.Counts)
	s.Allocations.Bounds = slices.Clone(s.Allocations.Bounds)
	return s
}
