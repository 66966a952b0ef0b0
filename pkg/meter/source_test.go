// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestDeafSourceIsCalledOnceAndTheTickGoesOn(t *testing.T) {
	m := newMachine()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.slow, m.deaf, m.calls = 95*time.Second, true, 0 })
		after(80 * time.Second)
		s := mt.Latest()
		if s.Seq != 8 {
			t.Errorf("seq %d after 80 s of a hung driver, want 8: the loop must turn", s.Seq)
		}
		m.set(func(m *machine) {
			if m.calls != 1 {
				t.Errorf("%d calls into a hung driver, want 1", m.calls)
			}
			m.slow = 0
		})
		f, ok := faultOf(s, SourceTelemetry)
		if !ok || f.Kind != "timeout" || s.Sources[0].Outstanding < 60*time.Second {
			t.Errorf("fault %+v, outstanding %v", f, s.Sources[0].Outstanding)
		}
		if s.Sources[1].Up != true {
			t.Error("the other source suffers")
		}
		after(40 * time.Second)
		if s = mt.Latest(); len(s.Faults) != 0 || len(s.Reading.Samples) != 2 {
			t.Errorf("after the driver came back: faults %v, samples %d", s.Faults, len(s.Reading.Samples))
		}
	})
}

func TestSourceSlowerThanItsDeadlineIsStillHeard(t *testing.T) {
	m := newMachine()
	m.slow, m.deaf = 9*time.Second, true
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		after(15 * time.Second)
		if s := mt.Latest(); !s.Sources[0].Up || len(s.Reading.Samples) != 2 {
			t.Errorf("up %v samples %d: an answer after 9 s must count in the tick at 10 s", s.Sources[0].Up, len(s.Reading.Samples))
		}
	})
}

func TestSlowSourceReportsItsOwnReason(t *testing.T) {
	m := newMachine()
	m.listSlow = time.Minute
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		after(9 * time.Second)
		f, ok := faultOf(mt.Latest(), SourceAllocations)
		if !ok || f.Kind != "timeout" || !strings.Contains(f.Text, "list pods") {
			t.Errorf("fault %+v, want the source's own words", f)
		}
	})
}

// A source that is cut off in each tick before it can answer would never be heard.
func TestSlowKubeletIsHeardBetweenCloseTicks(t *testing.T) {
	m := newMachine()
	m.listSlow = time.Second
	turning(t, m, func(c *Config) { c.Interval = MinInterval }, func(t *testing.T, mt *Meter) {
		after(500 * time.Millisecond)
		if f, ok := faultOf(mt.Latest(), SourceAllocations); !ok || f.Kind != "timeout" || mt.Latest().Observed {
			t.Errorf("fault %+v while the kubelet has not answered, want timeout", f)
		}
		after(time.Second)
		if s := mt.Latest(); !s.Observed || len(s.Division.Shares) != 1 {
			t.Errorf("observed %v, shares %v: a kubelet that takes a second is heard", s.Observed, s.Division.Shares)
		}
	})
}

// Telemetry answers for the GPUs that it has when time is up, so its time is the tick's.
func TestTelemetryIsToldWhenTheTickWantsItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := &deadlines{machine: newMachine()}
		mt, err := New(Config{Telemetry: asked, Allocations: asked, Interval: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		mt.Tick(t.Context())
		if asked.read >= mt.cfg.Deadline || asked.read <= 0 {
			t.Errorf("telemetry has %v of a deadline of %v", asked.read, mt.cfg.Deadline)
		}
	})
}

type deadlines struct {
	*machine
	read time.Duration
}

func (d *deadlines) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	if at, ok := ctx.Deadline(); ok {
		d.read = time.Until(at)
	}
	return d.machine.Read(ctx, fields)
}

func TestHungSourceDoesNotHoldUpTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		m.slow, m.deaf = time.Hour, true
		mt, err := New(Config{Telemetry: m, Allocations: m, Interval: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- mt.Run(ctx) }()
		for _, running := range []time.Duration{3 * time.Second, 30 * time.Second} {
			after(running)
		}
		stopped := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(stopped) != 0 {
			t.Errorf("Run ended with %v after %v, want nil at once", err, time.Since(stopped))
		}
		// The call that hung ends by itself, and nothing waits for its answer.
		after(2 * time.Hour)
	})
}
