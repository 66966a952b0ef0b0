// SPDX-License-Identifier: Apache-2.0

// Package mps keeps the control daemons of CUDA MPS that a node's shared GPUs need: it starts
// them, sets their limits, notices when one is dead or hangs, and starts it again. What is wrong
// is told as health.Facts about the GPUs that are concerned, since a container that is put on
// a GPU without its daemon fails at its first CUDA call.
package mps

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// The kinds of fact beside health.KindMPSDown. Both are of class watch: containers run, and are
// not held to what they should be.
const (
	// KindComputeMode: the GPU could not be set to EXCLUSIVE_PROCESS, so that a program beside MPS
	// can use it too.
	KindComputeMode health.Kind = "mps_compute_mode"
	// KindLimits: the daemon did not take its limits.
	KindLimits health.Kind = "mps_limits"
)

// Plan is all that a node should have.
type Plan struct {
	// Root is the folder of MPS as this process sees it.
	Root string
	// Daemons have resource names that differ, and no GPU in common.
	Daemons []Daemon
}

// Daemon is one control daemon, that of one resource.
type Daemon struct {
	// Resource is the full name, "nvidia.com/gpu.shared"; the daemon's folder has it too.
	Resource string
	// Devices are the GPUs that its clients can see, in the order by which MPS counts them.
	Devices []Device
	// ThreadPercent is the share of a GPU's threads that a client has unless it asks for less, 1 to 100.
	ThreadPercent int
}

// Device is a GPU of a daemon.
type Device struct {
	UUID gpu.UUID
	// MemoryMiB is the device memory that a client has unless it asks for less, 0 to leave it as it is.
	MemoryMiB uint64
}

func (d Daemon) uuids() []gpu.UUID {
	out := make([]gpu.UUID, len(d.Devices))
	for i, each := range d.Devices {
		out[i] = each.UUID
	}
	return out
}

// sameProcess says whether a running daemon can become the other one by being told its limits.
func (d Daemon) sameProcess(o Daemon) bool {
	return d.Resource == o.Resource && slices.Equal(d.uuids(), o.uuids())
}

// place is where a daemon lives.
type place struct{ root, resource string }

func (p place) folder() string { return filepath.Join(p.root, p.resource) }

// pipe is where clients and the control program find the daemon.
func (p place) pipe() string { return filepath.Join(p.folder(), "pipe") }
func (p place) log() string  { return filepath.Join(p.folder(), "log") }

// record names the GPUs of a daemon that was started here.
func (p place) record() string { return filepath.Join(p.folder(), "gpumeter-devices") }

// shm is the /dev/shm that all daemons and clients share.
func (p place) shm() string { return filepath.Join(p.root, "shm") }

// Config is what a Supervisor works with.
type Config struct {
	// External says that somebody else starts the daemons: they are only watched, and nothing
	// on the node is changed.
	External bool
	// Find is the path of nvidia-cuda-mps-control. It is asked before each start; its error
	// says what to install.
	Find func() (string, error)
	// Environ is the environment for the programs, without what MPS itself needs.
	Environ []string
	// SetExclusive puts a GPU into the compute mode EXCLUSIVE_PROCESS, or back into DEFAULT. nil
	// leaves the mode alone.
	SetExclusive func(ctx context.Context, gpu gpu.UUID, exclusive bool) error
	// Report takes all facts whenever they change, none when all is well. It is called by one
	// goroutine at a time and must not block. nil for nobody.
	Report func([]health.Fact)
	// Log may be nil.
	Log *slog.Logger

	pace pace
}

// pace is how long things take.
type pace struct {
	// start is how long a daemon may take to its first answer, quit how long to its end.
	start, quit time.Duration
	// ask is the time between two questions to a daemon and answer the time it has for one. After
	// so many unanswered in a row, it is taken for dead.
	ask, answer time.Duration
	misses      int
	// again is the pause before a new start, twice as long each time up to againMost, until a
	// daemon has stood for stands.
	again, againMost, stands time.Duration
}

// usualPace takes a daemon for hung after about half a minute: killing one ends the work of all its
// clients, and a busy host can be slow for a while.
func usualPace() pace {
	return pace{
		start: 10 * time.Second, quit: 5 * time.Second,
		ask: 5 * time.Second, answer: 5 * time.Second, misses: 3,
		again: time.Second, againMost: 30 * time.Second, stands: time.Minute,
	}
}
