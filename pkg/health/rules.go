// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Repeat says from how many occurrences within how long on a condition asks for more.
type Repeat struct {
	Count  int
	Within time.Duration
	// Class is what the condition asks for from then on, until it ends.
	Class Class
}

// IsZero reports whether repetition changes nothing.
func (r Repeat) IsZero() bool { return r == Repeat{} }

// Validate says what is wrong with r, if anything is. The zero Repeat is valid.
func (r Repeat) Validate() error {
	switch {
	case r.IsZero():
		return nil
	case r.Count < 2 || r.Count > mostRecent:
		return fmt.Errorf("a count of %d repeats (write 2 to %d)", r.Count, mostRecent)
	case r.Within <= 0:
		return fmt.Errorf("repeats within %v (write a time such as 10m)", r.Within)
	case r.Class < ClassWatch || r.Class > ClassHardware:
		return fmt.Errorf("repeats of class %v (write watch, contained, reset, node or hardware)", r.Class)
	default:
		return nil
	}
}

// The defaults of a Config.
const (
	DefaultHoldDown   = time.Minute
	DefaultFlapLimit  = 3
	DefaultFlapWindow = time.Hour
	DefaultStuckAfter = 2 * time.Minute
	DefaultWatchFor   = 24 * time.Hour
	// DefaultRepartitionFor is more than dividing eight GPUs anew takes, with a restart of the node.
	DefaultRepartitionFor = 30 * time.Minute
)

// DefaultContained is from how many contained errors on a card is to be reset.
func DefaultContained() Repeat { return Repeat{Count: 5, Within: time.Hour, Class: ClassReset} }

// Config is what an operator may choose about verdicts.
type Config struct {
	// XIDs are the classes of the driver's errors; with nil each is one to watch.
	XIDs *XIDTable
	// HoldDown is for how long evidence of recovery must stand before a withdrawing condition
	// ends, and how long the driver must ask for nothing before it lowers one; 0 is DefaultHoldDown.
	HoldDown time.Duration
	// FlapLimit is how often a withdrawing condition may come back within FlapWindow after it
	// had ended by evidence; at that many the card is KindFlapping until an operator clears it.
	// 0 is DefaultFlapLimit, negative is without limit. FlapWindow 0 is DefaultFlapWindow.
	FlapLimit  int
	FlapWindow time.Duration
	// Contained is from how many errors of class contained on one subject the class rises; the zero
	// Repeat is DefaultContained. An XID's own Repeat goes before it.
	Contained Repeat
	// StuckAfter is for how long a card may leave its source without an answer, while other cards
	// answer, before it is KindStuck; 0 is DefaultStuckAfter.
	StuckAfter time.Duration
	// WatchFor is how long a condition that an event made and that does not withdraw stands
	// after the last one; 0 is DefaultWatchFor.
	WatchFor time.Duration
	// RepartitionFor is how long judging is paused at most for a repartition of the node's GPUs; 0 is
	// DefaultRepartitionFor, negative is not at all.
	RepartitionFor time.Duration
	// IgnoreDriver keeps the driver's recovery action from lowering a class. It still raises one.
	IgnoreDriver bool
}

// Rules turn evidence into verdicts. They are immutable, and safe for concurrent use.
type Rules struct{ cfg Config }

// NewRules makes rules. The error names every setting that cannot be.
func NewRules(cfg Config) (*Rules, error) {
	var errs []error
	for _, d := range []struct {
		name string
		of   *time.Duration
		or   time.Duration
	}{
		{"hold-down", &cfg.HoldDown, DefaultHoldDown}, {"flap window", &cfg.FlapWindow, DefaultFlapWindow},
		{"time until a GPU is stuck", &cfg.StuckAfter, DefaultStuckAfter}, {"time to watch", &cfg.WatchFor, DefaultWatchFor},
	} {
		if *d.of < 0 {
			errs = append(errs, fmt.Errorf("the %s is %v (write a time such as %v, or 0 for that)", d.name, *d.of, d.or))
		}
		*d.of = cmp.Or(*d.of, d.or)
	}
	cfg.RepartitionFor = cmp.Or(cfg.RepartitionFor, DefaultRepartitionFor)
	cfg.FlapLimit = cmp.Or(cfg.FlapLimit, DefaultFlapLimit)
	if cfg.FlapLimit > mostRecent {
		errs = append(errs, fmt.Errorf("the flap limit is %d (write at most %d, or -1 for none)", cfg.FlapLimit, mostRecent))
	}
	if cfg.Contained.IsZero() {
		cfg.Contained = DefaultContained()
	}
	if err := cfg.Contained.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("contained errors: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("health rules: %w", err)
	}
	return &Rules{cfg: cfg}, nil
}

// The levels that Fold reads.
const (
	fieldDBE            = gpu.FieldID(311)
	fieldSRAM           = gpu.FieldID(346)
	fieldRetiredSBE     = gpu.FieldID(390)
	fieldRetiredDBE     = gpu.FieldID(391)
	fieldRetiredPending = gpu.FieldID(392)
	fieldRemapFailed    = gpu.FieldID(395)
	fieldRemapPending   = gpu.FieldID(396)
	fieldUnrepairable   = gpu.FieldID(1507)
	fieldLinkState      = gpu.FieldID(1508)
	fieldAction         = gpu.FieldID(1523)
)

// Fields are the levels that Fold reads, and the wish for health checks, ascending. What a
// source does not have of them is not known, and changes no verdict.
func Fields() []gpu.FieldID {
	return []gpu.FieldID{
		gpu.FieldClockReasons, fieldDBE, fieldSRAM, fieldRetiredSBE, fieldRetiredDBE, fieldRetiredPending,
		fieldRemapFailed, fieldRemapPending, fieldUnrepairable, fieldLinkState, fieldAction, gpu.FieldHealthStatus,
	}
}
