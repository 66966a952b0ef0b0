// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

func TestWhatARepartitionDoesToAGPUIsHeldAgainstNobody(t *testing.T) {
	for _, c := range []struct {
		name   string
		happen func(*fakeCard)
		kind   Kind
	}{
		{"it is not listed", func(c *fakeCard) { c.gone = true }, KindLost},
		{"the driver cannot reach it", func(c *fakeCard) { c.lost = true }, KindLost},
		{"it does not answer", func(c *fakeCard) { c.hangs = true }, KindStuck},
	} {
		t.Run(c.name, func(t *testing.T) {
			judged := aNode(t, 2, Config{})
			c.happen(judged.cards[0])
			judged.run(5 * time.Minute)
			judged.is("GPU-a", Unhealthy, c.kind)

			m := aNode(t, 2, Config{})
			m.mig = MIGPending
			m.tick()
			was := *m.cards[0]
			c.happen(m.cards[0])
			m.run(5 * time.Minute)
			if v := m.is("GPU-a", Unknown); !strings.HasSuffix(v.Reason, "; the MIG manager divides the node's GPUs anew") {
				t.Errorf("the reason is %q", v.Reason)
			}
			*m.cards[0] = was
			m.mig = MIGSuccess
			m.run(5 * time.Minute)
			m.is("GPU-a", Healthy)
		})
	}
}

func TestAGPUThatIsStillAwayAfterARepartitionIsLost(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.mig = MIGPending
	m.tick()
	m.cards[0].gone = true
	m.run(5 * time.Minute)
	m.mig = MIGFailed
	m.tick()
	m.is("GPU-a", Unknown)
	m.run(20 * time.Second)
	m.is("GPU-a", Unhealthy, KindLost)
}

func TestAGPUThatHangsAfterARepartitionHasItsTimeToAnswer(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.mig = MIGPending
	m.tick()
	m.cards[0].hangs = true
	m.run(10 * time.Minute)
	m.mig = MIGSuccess
	m.run(DefaultStuckAfter - 10*time.Second)
	m.is("GPU-a", Unknown)
	m.run(20 * time.Second)
	m.is("GPU-a", Unhealthy, KindStuck)
}

func TestARepartitionNeitherHealsNorHidesWhatTheDriverSays(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.xid(m.cards[0], 95)
	m.tick()
	m.mig = MIGPending
	m.tick()
	m.away(m.cards[0])
	m.xid(m.cards[1], 54)
	m.run(10 * time.Minute)
	m.is("GPU-a", Unhealthy, "xid_95")
	m.is("GPU-b", Unhealthy, "xid_54")

	// What was seen of a reset counts once it is over, for the hold-down.
	m.mig = MIGSuccess
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_95")
	m.run(70 * time.Second)
	m.is("GPU-a", Healthy)
	m.is("GPU-b", Unhealthy, "xid_54")
}

func TestWhatALevelSaysEndsAfterTheRepartition(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].set(fieldAction, 1)
	m.tick()
	m.mig = MIGPending
	m.cards[0].set(fieldAction, 0)
	m.tick()
	m.tick()
	before := m.state.Durable()
	m.run(10 * time.Minute)
	if got := m.state.Durable(); got != before {
		t.Errorf("%d changes to save in a pause in which nothing happens", got-before)
	}
	if q := m.is("GPU-a", Unhealthy, KindRecoveryAction).Conditions[0]; q.Recovery != "" {
		t.Errorf("it recovers in the pause: %+v", q)
	}
	m.mig = MIGNone
	m.run(70 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestNVLinksAndHealthChecksAreNotHeardInTheMiddleOfARepartition(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.links = []int64{1, 1}
	m.tick()
	m.mig = MIGPending
	m.tick()
	a.links = []int64{0, 0}
	m.checks = gpu.HealthReport{Time: m.now, Checked: []gpu.UUID{"GPU-a"}, Incidents: []gpu.HealthIncident{
		{GPU: "GPU-a", GPUInstance: gpu.NoInstance, System: "NVLINK", Result: gpu.HealthFail, Code: incidentFabric, Text: "not in its fabric"},
	}}
	m.tick()
	m.is("GPU-a", Healthy)
	m.mig = MIGSuccess
	a.links = []int64{1, 1}
	m.tick()
	m.is("GPU-a", Healthy)
	m.checks.Time = m.now
	m.tick()
	if v := m.verdict("GPU-a"); v.Status != Unhealthy {
		t.Errorf("a round of checks after the repartition is not heard: %+v", v)
	}
}

func TestALabelThatIsStuckBlindsNobodyForLonger(t *testing.T) {
	m := aNode(t, 2, Config{RepartitionFor: 10 * time.Minute})
	m.mig = MIGPending
	m.tick()
	began := m.now
	m.cards[0].gone = true
	m.run(5 * time.Minute)
	m.restart()
	// Nobody knows the label right after a restart: what it was stands.
	m.mig = MIGUnsaid
	m.tick()
	if r := m.state.Report().Repartition; r.State != MIGPending || !r.Paused || r.Overdue || !r.Until.Equal(began.Add(10*time.Minute)) {
		t.Errorf("in the middle: %+v", r)
	}
	// One that is taken back and said again is the same.
	m.mig = MIGNone
	m.tick()
	m.mig = MIGRebooting
	m.cards[0].gone = true
	m.run(6 * time.Minute)
	if r := m.state.Report().Repartition; r.State != MIGRebooting || r.Paused || !r.Overdue || !r.Began.Equal(began) {
		t.Errorf("after the limit: %+v", r)
	}
	m.is("GPU-a", Unhealthy, KindLost)
	m.mig = MIGSuccess
	m.tick()
	if r := m.state.Report().Repartition; r.Paused || r.Overdue || !r.Began.IsZero() || !r.Since.Equal(m.now) {
		t.Errorf("at its end: %+v", r)
	}
	m.run(4 * time.Minute)
	m.mig = MIGPending
	m.tick()
	if r := m.state.Report().Repartition; !r.Paused || !r.Began.Equal(m.now) {
		t.Errorf("a new one: %+v", r)
	}
}

// A GPU that hangs can be why the MIG manager fails, and it tries again every minute or two.
func TestAMIGManagerThatTriesAgainAndAgainHidesNoGPUThatHangs(t *testing.T) {
	for _, between := range []time.Duration{20 * time.Second, 80 * time.Second, 110 * time.Second, 130 * time.Second} {
		m := aNode(t, 2, Config{})
		m.cards[0].hangs = true
		for range 40 {
			m.mig = MIGPending
			m.run(40 * time.Second)
			m.mig = MIGFailed
			m.run(between)
		}
		if v := m.verdict("GPU-a"); v.Status != Unhealthy {
			t.Errorf("with %v between two attempts: %+v", between, v)
		}
	}
}

func TestAGPUThatIsBackAsTheRepartitionEndsHasBeenGone(t *testing.T) {
	for name, end := range map[string]func(*machine){
		"in the same reading": func(m *machine) { m.cards[0].gone = false },
		"a little later": func(m *machine) {
			m.tick()
			m.cards[0].gone = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 2, Config{})
			m.xid(m.cards[0], 95)
			m.tick()
			m.mig = MIGPending
			m.tick()
			m.cards[0].gone = true
			m.run(time.Minute)
			m.mig = MIGSuccess
			end(m)
			m.tick()
			m.is("GPU-a", Unhealthy, "xid_95")
			m.run(70 * time.Second)
			m.is("GPU-a", Healthy)
		})
	}
}

func TestAGPUThatComesBackToNobodyIsNoRecovery(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.xid(m.cards[0], 95)
	m.tick()
	m.mig = MIGPending
	m.tick()
	m.cards[0].gone = true
	m.run(time.Minute)
	m.mig = MIGSuccess
	m.run(5 * time.Minute)
	m.is("GPU-a", Unhealthy, KindLost, "xid_95")
}

func TestARepartitionPausesNothingWhereThatIsNotWanted(t *testing.T) {
	m := aNode(t, 2, Config{RepartitionFor: -1})
	m.mig = MIGPending
	m.cards[0].gone = true
	m.run(time.Minute)
	m.is("GPU-a", Unhealthy, KindLost)
	if r := m.state.Report().Repartition; r.State != MIGPending || r.Paused || r.Overdue {
		t.Errorf("%+v", r)
	}
}

// Whatever a MIG manager says, a pause has an end, and the next one does not begin before GPUs have been judged.
func TestNoSequenceOfLabelsPausesForLongerThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 3 * time.Minute
		m := aNode(t, 1, Config{RepartitionFor: limit})
		var began, ended time.Time
		under := false
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "says") {
				divide(t, m)
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				m.restart()
			}
			m.now = m.now.Add(time.Duration(rapid.IntRange(0, 70).Draw(t, "seconds")) * time.Second)
			r := m.tick().Repartition
			if under && !r.State.UnderWay() {
				ended = m.now
			}
			under = r.State.UnderWay()
			if !r.Paused {
				continue
			}
			if !under || r.Overdue || !m.now.Before(r.Until) || r.Until.Sub(r.Began) != limit {
				t.Fatalf("at %v: %+v", m.now, r)
			}
			if !r.Began.Equal(began) && !ended.IsZero() && r.Began.Sub(ended) < DefaultHoldDown+DefaultStuckAfter {
				t.Fatalf("a pause from %v on, and the one before ended at %v", r.Began, ended)
			}
			began = r.Began
		}
	})
}

// divide has the MIG manager say something, or nobody know what it says.
func divide(t *rapid.T, m *machine) {
	m.mig = rapid.SampledFrom(append(MIGStates(), MIGUnsaid, MIGNone, "other")).Draw(t, "mig state")
}

// reset is a repartition that takes less time than is allowed: GPUs are reset, hang meanwhile, and are divided anew.
func reset(t *rapid.T, m *machine) {
	m.mig = MIGSuccess
	m.run(4 * time.Minute)
	m.mig = MIGPending
	m.tick()
	for _, c := range m.cards {
		was := *c
		switch rapid.IntRange(0, 3).Draw(t, "meanwhile") {
		case 0:
			c.gone = true
		case 1:
			c.lost = true
		case 2:
			c.hangs = true
		}
		m.run(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
		c.gone, c.lost, c.hangs = was.gone, was.lost, was.hangs
		if c.mig {
			c.cut(rapid.SliceOfNDistinct(rapid.IntRange(0, 6), 0, 7, rapid.ID[int]).Draw(t, "layout")...)
		}
	}
	m.mig = rapid.SampledFrom([]MIGState{MIGSuccess, MIGFailed, MIGNone}).Draw(t, "end")
	m.tick()
}
