// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// migManager says what a node's label does.
type migManager struct{ word atomic.Value }

func (m *migManager) say(s health.MIGState) { m.word.Store(s) }

func (m *migManager) state() health.MIGState {
	s, _ := m.word.Load().(health.MIGState)
	return s
}

// unlist takes GPU-a off the list.
func unlist(m *machine) {
	m.set(func(m *machine) { m.reading.Devices, m.reading.Samples = m.reading.Devices[1:], m.reading.Samples[1:] })
}

func TestAGPUThatIsResetForARepartitionIsNotLost(t *testing.T) {
	m, manager := newMachine(), &migManager{}
	rules, whole := someRules(t), m.reading
	var log bytes.Buffer
	turning(t, m, func(c *Config) {
		c.Health, c.MIGState, c.Log = rules, manager.state, slog.New(slog.NewTextHandler(&log, nil))
	}, func(t *testing.T, mt *Meter) {
		manager.say(health.MIGPending)
		after(10 * time.Second)
		unlist(m)
		after(2 * time.Minute)
		s := mt.Latest()
		if got := statusOf(t, s, "GPU-a"); got != health.Unknown || !s.Health.Repartition.Paused {
			t.Errorf("while it is reset: %v, %+v", got, s.Health.Repartition)
		}
		if cause := causeOf(s, "GPU-a"); cause != "" || len(s.Division.Shares) != 1 {
			t.Errorf("who holds it is charged: %+v %q", s.Division.Shares, cause)
		}
		m.set(func(m *machine) { m.reading = whole })
		manager.say(health.MIGSuccess)
		after(10 * time.Second)
		s = mt.Latest()
		if got := statusOf(t, s, "GPU-a"); got != health.Healthy || s.Health.Repartition.Paused {
			t.Errorf("afterwards: %v, %+v", got, s.Health.Repartition)
		}
		if n := s.Totals.Faults[FaultKey{SourceRepartition, kindOverdue}]; n != 0 {
			t.Errorf("%d overdue ticks", n)
		}
	})
	for _, line := range []string{`"judging of GPUs is paused: they are divided anew" mig_state=pending`, `"judging of GPUs goes on" mig_state=success`} {
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("the log lacks %s:\n%s", line, &log)
		}
	}
}

func TestARepartitionThatNeverEndsIsAFaultAndJudgingGoesOn(t *testing.T) {
	m, manager := newMachine(), &migManager{}
	manager.say(health.MIGRebooting)
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.MIGState = rules, manager.state }, func(t *testing.T, mt *Meter) {
		if n, told := mt.Latest().Totals.Faults[FaultKey{SourceRepartition, kindOverdue}]; !told || n != 0 {
			t.Errorf("counted from %d, %v", n, told)
		}
		unlist(m)
		after(health.DefaultRepartitionFor - time.Minute)
		if _, late := faultOf(mt.Latest(), SourceRepartition); late {
			t.Error("a fault before the limit")
		}
		after(2 * time.Minute)
		s := mt.Latest()
		if f, late := faultOf(s, SourceRepartition); !late || f.Kind != kindOverdue || !strings.Contains(f.Text, "the MIG manager has said rebooting since ") {
			t.Errorf("the fault: %+v", f)
		}
		if got := statusOf(t, s, "GPU-a"); got != health.Unhealthy || causeOf(s, "GPU-a") != sharing.CauseUnhealthy {
			t.Errorf("after the limit: %v, %s", got, causeOf(s, "GPU-a"))
		}
		manager.say(health.MIGSuccess)
		after(10 * time.Second)
		if _, late := faultOf(mt.Latest(), SourceRepartition); late {
			t.Error("the fault outlives the repartition")
		}
	})
}

func TestXIDsAreHeardInARepartition(t *testing.T) {
	m, manager := newMachine(), &migManager{}
	manager.say(health.MIGPending)
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.MIGState = rules, manager.state }, func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-b", 79))
		if got := statusOf(t, mt.Latest(), "GPU-b"); got != health.Unhealthy {
			t.Errorf("%v", got)
		}
	})
}
