// SPDX-License-Identifier: Apache-2.0

// Package gputest has the contract of a telemetry source as a test suite: whatever
// reads the GPUs of a node, through DCGM, NVML or a simulation, must pass it.
//
// A source's own test builds a pretend machine, opens the source on it, and calls Run.
// Each story has a machine of its own. What a reading must be whatever happens is held
// against every reading of every story.
package gputest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Machine is a source opened on a pretend node, and what can be done to that node.
//
// The node has at least three physical GPUs with the indices 0, 1 and up, of which 0 and 1
// are not in MIG mode. Where the source knows MIG, another one is in MIG mode and has at
// least two GPU instances. At first no GPU is lost and every one answers.
//
// An act returns when it is done to the node; the source may take Patience to notice. GPUs
// are named by their index. An act that is nil is one that the node cannot do, and its
// stories are skipped. Acts and calls of Read never overlap.
type Machine struct {
	// Read is the source's. Required.
	Read func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error)

	// Alarms is the source's channel of alarms; nil for a source that raises none.
	Alarms <-chan struct{}

	// Interval is the pause between readings, 20 ms if zero; Patience is how long an act
	// may take to show in the readings, 20 s if zero; Timeout is how long a reading may take
	// at most, 1 s if zero.
	Interval, Patience, Timeout time.Duration

	// Unsupported is a field of the catalogue with ScopeGPU that these GPUs do not have;
	// zero where there is none.
	Unsupported gpu.FieldID
	// Health says that the source checks the health of GPUs, Peers that it knows the ways
	// between them.
	Health, Peers bool

	// XID makes the driver report an error of a GPU, or of one of its GPU instances by
	// NVML's id where instance is not gpu.NoInstance.
	XID func(index, instance, code int)
	// Repartition gives a GPU in MIG mode another layout, in which at least one GPU
	// instance is gone and at least one is new.
	Repartition func(index int)
	// Lose lets a GPU fall off the bus, Return brings it back as it was.
	Lose, Return func(index int)
	// Detach takes a GPU from its driver, so that the driver no longer knows it; Attach
	// gives it back.
	Detach, Attach func(index int)
	// Hang makes all calls for a GPU block, Unhang lets them go.
	Hang, Unhang func(index int)
	// Slow makes the calls for a GPU take so long; zero is as before.
	Slow func(index int, delay time.Duration)
	// Break cuts the source off from its engine or driver; Mend lets it connect again.
	Break, Mend func()
}

// Start opens a source with a selection of GPUs (majors) and GPU instances (minors) on a
// machine, which is made anew and is the same each time. It closes both with t.Cleanup.
type Start func(t *testing.T, gpus gpu.Selection) Machine

// Run tells every story of the contract to a machine of its own.
func Run(t *testing.T, start Start) {
	for _, story := range []struct {
		name string
		tell func(*subject)
	}{
		{"TheInventoryIsWhole", inventoryIsWhole},
		{"DefaultCountersArePresent", defaultCountersArePresent},
		{"AbsentIsNotZero", absentIsNotZero},
		{"ComputedMetricsHaveNoColumn", computedMetricsHaveNoColumn},
		{"FieldsChangeBetweenReadings", fieldsChangeBetweenReadings},
		{"MIGQuantitiesStandWhereTheyBelong", migQuantitiesStandWhereTheyBelong},
		{"ARepartitionIsSeen", repartitionIsSeen},
		{"ALostGPUStaysListed", lostGPUStaysListed},
		{"ADetachedGPULeaves", detachedGPULeaves},
		{"AHungGPUHangsAlone", hungGPUHangsAlone},
		{"ASlowGPUIsWaitedFor", slowGPUIsWaitedFor},
		{"ACancelledReadReturns", cancelledReadReturns},
		{"EveryXIDIsToldOnce", everyXIDIsToldOnce},
		{"AnXIDOfAnInstanceNamesIt", xidOfAnInstanceNamesIt},
		{"AFailedReadLosesNoEvent", failedReadLosesNoEvent},
		{"AnXIDRaisesTheAlarm", xidRaisesTheAlarm},
		{"ABrokenConnectionIsAnError", brokenConnectionIsAnError},
		{"AReadingNeverChanges", readingNeverChanges},
		{"TheSelectionChoosesSamples", selectionChoosesSamples},
		{"HealthIsReportedWhenAsked", healthIsReportedWhenAsked},
		{"PeersAreReportedWhenAsked", peersAreReportedWhenAsked},
	} {
		t.Run(story.name, func(t *testing.T) {
			story.tell(newSubject(t, start, gpu.Selection{}))
		})
	}
}

// subject is one machine under test, with what has been heard from it.
type subject struct {
	*testing.T
	Machine
	start Start
	gpus  gpu.Selection

	last   gpu.Reading
	energy map[gpu.UUID]int64
	events []gpu.Event
	// heard are the numbers of events in each reading.
	heard []int
}

func newSubject(t *testing.T, start Start, gpus gpu.Selection) *subject {
	t.Helper()
	s := &subject{T: t, Machine: start(t, gpus), start: start, gpus: gpus, energy: map[gpu.UUID]int64{}}
	if s.Interval <= 0 {
		s.Interval = 20 * time.Millisecond
	}
	if s.Patience <= 0 {
		s.Patience = 20 * time.Second
	}
	if s.Timeout <= 0 {
		s.Timeout = time.Second
	}
	return s
}

// needs skips the story where the machine cannot do what it is about.
func (s *subject) needs(able bool, what string) {
	s.Helper()
	if !able {
		s.Skipf("this machine cannot %s", what)
	}
}

// read is one good reading within its time, held against what every reading must be.
func (s *subject) read(fields []gpu.FieldID) gpu.Reading {
	s.Helper()
	r, err := s.tryRead(fields)
	if err != nil {
		s.Fatalf("read: %v", err)
	}
	return r
}

func (s *subject) tryRead(fields []gpu.FieldID) (gpu.Reading, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.Timeout)
	defer cancel()
	asked := slices.Clone(fields)
	r, err := s.Read(ctx, asked)
	if ctx.Err() != nil {
		s.Errorf("the reading outlived its time of %s (%v)", s.Timeout, err)
	}
	if !slices.Equal(asked, fields) {
		s.Errorf("the source changed the fields it was given to %v", asked)
	}
	if err != nil {
		return r, err
	}
	s.check(r, fields)
	s.last = r
	s.events = append(s.events, r.Events...)
	s.heard = append(s.heard, len(r.Events))
	return r, nil
}

// until reads on until a reading is as it should be; why says what is still wrong.
func (s *subject) until(what string, fields []gpu.FieldID, why func(gpu.Reading) string) gpu.Reading {
	s.Helper()
	for end := time.Now().Add(s.Patience); ; time.Sleep(s.Interval) {
		r, err := s.tryRead(fields)
		wrong := ""
		if err != nil {
			wrong = err.Error()
		} else {
			wrong = why(r)
		}
		if wrong == "" {
			return r
		}
		if s.Failed() || time.Now().After(end) {
			s.Fatalf("not yet after %s: %s: %s", s.Patience, what, wrong)
		}
	}
}

// settled is a reading of the default counters in which every GPU answers.
func (s *subject) settled() gpu.Reading {
	s.Helper()
	return s.until("every GPU answers", counters(), func(r gpu.Reading) string {
		if len(r.Devices) < 3 {
			return "fewer than three devices"
		}
		for _, c := range cards(r) {
			if why := answers(r, c.Index); why != "" {
				return why
			}
		}
		return ""
	})
}

// more reads a few more times, for what must not come.
func (s *subject) more() {
	s.Helper()
	for range 5 {
		time.Sleep(s.Interval)
		s.read(counters())
	}
}

// kindOf is the word by which an error is counted, empty for one without.
func kindOf(err error) string {
	var k interface{ Kind() string }
	if errors.As(err, &k) {
		return k.Kind()
	}
	return ""
}
