// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// someRules are rules with a few XIDs and a hold-down of half a minute.
func someRules(t *testing.T) *health.Rules {
	t.Helper()
	table, err := health.NewXIDTable([]health.XID{
		{Code: 31, Name: "MMU fault", Class: health.ClassApp},
		{Code: 48, Name: "double-bit ECC error", Class: health.ClassReset},
		{Code: 79, Name: "GPU fell off the bus", Class: health.ClassNode},
	})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := health.NewRules(health.Config{XIDs: table, HoldDown: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func xid(card gpu.UUID, code int) gpu.Event {
	return gpu.Event{Kind: gpu.EventXID, GPU: card, Code: code, Time: time.Now(), GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}
}

// happen has the machine tell of events, once.
func happen(m *machine, events ...gpu.Event) {
	m.set(func(m *machine) { m.reading.Events = events })
	after(10 * time.Second)
	m.set(func(m *machine) { m.reading.Events = nil })
}

func statusOf(t *testing.T, s *Snapshot, device gpu.UUID) health.Status {
	t.Helper()
	v, ok := s.Health.Verdict(device)
	if !ok {
		t.Fatalf("no verdict about %s", device)
	}
	return v.Status
}

// causeOf is what the part of a card that nobody is charged for is booked to, empty where all of it is charged.
func causeOf(s *Snapshot, card gpu.UUID) sharing.Cause {
	for _, u := range s.Division.Unallocated {
		if u.Card == card {
			return u.Cause
		}
	}
	return ""
}

func TestAnXIDThatBreaksAGPUTakesItsShareInTheSameTick(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		for _, device := range []gpu.UUID{"GPU-a", "GPU-b"} {
			if got := statusOf(t, mt.Latest(), device); got != health.Healthy {
				t.Errorf("%s begins %v", device, got)
			}
		}
		happen(m, xid("GPU-a", 31))
		if s := mt.Latest(); statusOf(t, s, "GPU-a") != health.Healthy || causeOf(s, "GPU-a") != "" {
			t.Errorf("a program's own fault: %+v", s.Division.Unallocated)
		}
		happen(m, xid("GPU-a", 79))
		s := mt.Latest()
		if statusOf(t, s, "GPU-a") != health.Unhealthy || causeOf(s, "GPU-a") != sharing.CauseUnhealthy || len(s.Division.Shares) != 0 {
			t.Errorf("XID 79: %+v, shares %+v", s.Division.Unallocated, s.Division.Shares)
		}
		if statusOf(t, s, "GPU-b") != health.Healthy || causeOf(s, "GPU-b") != sharing.CauseFree {
			t.Errorf("the other GPU: %+v", s.Division.Unallocated)
		}
		after(time.Hour)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got != health.Unhealthy {
			t.Errorf("an hour without another error is no evidence, and it is %v", got)
		}
	})
}

func TestALostGPUThatIsBackIsHealthyAfterTheHoldDown(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		lost := func(is bool) {
			m.set(func(m *machine) {
				m.reading.Devices = slices.Clone(m.reading.Devices)
				m.reading.Devices[0].Lost = is
			})
			after(10 * time.Second)
		}
		lost(true)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got != health.Unhealthy {
			t.Fatalf("lost: %v", got)
		}
		lost(false)
		if s := mt.Latest(); statusOf(t, s, "GPU-a") != health.Unhealthy || causeOf(s, "GPU-a") != sharing.CauseUnhealthy {
			t.Errorf("back for a moment: %v", s.Health.Verdicts)
		}
		after(time.Minute)
		if s := mt.Latest(); statusOf(t, s, "GPU-a") != health.Healthy || causeOf(s, "GPU-a") != "" {
			t.Errorf("back for a minute: %v", s.Health.Verdicts)
		}
	})
}

func TestASilentSourceMakesHealthUnknownAndIsStillCharged(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-b", 79))
		m.set(func(m *machine) { m.err = errors.New("driver reset") })
		after(20 * time.Second)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got != health.Healthy {
			t.Errorf("silent for 20 s of 25: %v", got)
		}
		after(20 * time.Second)
		s := mt.Latest()
		if got := statusOf(t, s, "GPU-a"); got != health.Unknown {
			t.Errorf("silent for 40 s: %v", got)
		}
		if len(s.Division.Shares) != 1 || causeOf(s, "GPU-a") != "" {
			t.Errorf("nobody knows that it is broken, and it is not charged: %+v", s.Division.Unallocated)
		}
		if got := statusOf(t, s, "GPU-b"); got != health.Unhealthy {
			t.Errorf("silence healed a GPU: %v", got)
		}
		m.set(func(m *machine) { m.err = nil })
		after(10 * time.Second)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got != health.Healthy {
			t.Errorf("heard again: %v", got)
		}
	})
}

func TestARestartNeitherHealsNorHurts(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	boot := func() string { return "boot-1" }
	var version uint64
	turning(t, m, func(c *Config) { c.Health, c.Conditions, c.BootID = rules, d, boot }, func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 48))
		version = mt.Latest().Health.Version
	})
	saved, _ := d.last()
	m = newMachine()
	turning(t, m, func(c *Config) { c.Health, c.BootID, c.HealthState = rules, boot, saved }, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if statusOf(t, s, "GPU-a") != health.Unhealthy || causeOf(s, "GPU-a") != sharing.CauseUnhealthy || statusOf(t, s, "GPU-b") != health.Healthy {
			t.Errorf("after the first tick: %+v", s.Health.Verdicts)
		}
		if s.Health.Version < version {
			t.Errorf("version %d after %d", s.Health.Version, version)
		}
		after(time.Hour)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got != health.Unhealthy {
			t.Errorf("an hour later: %v", got)
		}
	})
}

func TestAnOperatorsWordIsDoneSoonAndAnsweredWhenPublished(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	change := func(c *Config) { c.Health, c.Conditions, c.Log, c.Interval = rules, d, log, time.Minute }
	turning(t, m, change, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.reading.Events = []gpu.Event{xid("GPU-a", 79)} })
		after(time.Minute)
		m.set(func(m *machine) { m.reading.Events = nil })
		after(20 * time.Second)
		asked := time.Now()
		done, err := mt.Clear(t.Context(), health.Clearing{Device: "GPU-a", Reason: "card was seated again", By: "uid 0"})
		if err != nil || len(done.Ended) != 1 || done.Ended[0].Kind != health.XIDKind(79) || done.Time.IsZero() {
			t.Fatalf("%+v, %v", done, err)
		}
		if took := time.Since(asked); took > time.Second {
			t.Errorf("answered after %v of an interval of a minute", took)
		}
		s := mt.Latest()
		if statusOf(t, s, "GPU-a") != health.Healthy || causeOf(s, "GPU-a") != "" || len(s.Health.Clearings) != 1 || !s.HealthStore.Saved {
			t.Errorf("when it is answered: %+v", s.Health)
		}
		grid := s.Seq
		after(40*time.Second - time.Since(asked))
		if s = mt.Latest(); s.Seq != grid+1 || s.Late != 0 {
			t.Errorf("the next tick on the grid: seq %d after %d, late %v", s.Seq, grid, s.Late)
		}
		for _, bad := range []health.Clearing{{Device: "GPU-z", Reason: "x"}, {Device: "GPU-a"}} {
			if _, err := mt.Clear(t.Context(), bad); err == nil {
				t.Errorf("%+v was done", bad)
			}
		}
	})
	if want := `msg="an operator cleared a device" device=GPU-a reason="card was seated again" by="uid 0" ended=[xid_79]`; strings.Count(buf.String(), want) != 1 {
		t.Errorf("the log lacks %s:\n%s", want, buf.String())
	}
}

func TestAWordThatNobodyWaitsForAnyMoreIsNotDone(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 79))
		m.set(func(m *machine) { m.slow = 5 * time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := mt.Clear(ctx, health.Clearing{Device: "GPU-a", Reason: "x", By: "y"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		after(time.Minute)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got != health.Unhealthy {
			t.Errorf("it was done all the same: %v", got)
		}
	})
}

func TestWithoutATickClearingsDoNotPileUp(t *testing.T) {
	rules := someRules(t)
	synctest.Test(t, func(t *testing.T) {
		mt, err := New(Config{Telemetry: newMachine(), Health: rules, Interval: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range clearingLimit {
			wg.Go(func() { _, _ = mt.Clear(ctx, health.Clearing{Device: "GPU-a", Reason: "x"}) })
		}
		synctest.Wait()
		if _, err := mt.Clear(ctx, health.Clearing{Device: "GPU-a", Reason: "x"}); err == nil || !strings.Contains(err.Error(), "wait for the next tick") {
			t.Errorf("one more: %v", err)
		}
		cancel()
		wg.Wait()
	})
	mt, err := New(Config{Telemetry: newMachine(), Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mt.Clear(t.Context(), health.Clearing{Device: "GPU-a", Reason: "x"}); err == nil {
		t.Error("a meter without rules cleared something")
	}
}

func TestWhatAReporterSaysStandsUntilItTakesItBack(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		facts := []health.Fact{{GPU: "GPU-b", Kind: health.KindMPSDown, Class: health.ClassReset, Text: "the MPS daemon ended"}}
		mt.Report("mps", facts)
		facts[0].GPU = "GPU-a"
		after(10 * time.Second)
		if s := mt.Latest(); statusOf(t, s, "GPU-b") != health.Unhealthy || statusOf(t, s, "GPU-a") != health.Healthy {
			t.Errorf("said: %+v", s.Health.Verdicts)
		}
		after(5 * time.Minute)
		if got := statusOf(t, mt.Latest(), "GPU-b"); got != health.Unhealthy {
			t.Errorf("not said again, and %v", got)
		}
		mt.Report("mps", nil)
		after(2 * time.Minute)
		if got := statusOf(t, mt.Latest(), "GPU-b"); got != health.Healthy {
			t.Errorf("taken back, and %v", got)
		}
		for i := range reporterLimit + 5 {
			mt.Report(strings.Repeat("x", i), nil)
		}
		after(10 * time.Second)
		facts[0].GPU = "GPU-b"
		mt.Report("one more, later", facts)
		after(10 * time.Second)
		if got := statusOf(t, mt.Latest(), "GPU-b"); got != health.Unhealthy {
			t.Errorf("there were many reporters once, and the next one is not heard: %v", got)
		}
	})
}

func TestTheMeterAsksForWhatVerdictsNeedBehindWhatIsWanted(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	change := func(c *Config) { c.Health, c.Also = rules, []gpu.FieldID{63, 150} }
	turning(t, m, change, func(t *testing.T, mt *Meter) {
		for _, wanted := range [][]gpu.FieldID{{150}, {155, gpu.FieldHealthStatus, 112}} {
			mt.Want(wanted)
			after(10 * time.Second)
			m.set(func(m *machine) {
				if !slices.Equal(m.fields[:len(wanted)], wanted) {
					t.Errorf("wanted %v, asked for %v", wanted, m.fields)
				}
				for _, id := range append(health.Fields(), 63, 150) {
					n := 0
					for _, asked := range m.fields {
						if asked == id {
							n++
						}
					}
					if n != 1 {
						t.Errorf("field %d is asked for %d times in %v", id, n, m.fields)
					}
				}
			})
		}
	})
}
