// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestASourceThatIsSilentKeepsWhatIsBrokenAndKnowsNothingElse(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.xid(m.cards[0], 79)
	m.tick()
	m.silent = true
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_79")
	if v := m.is("GPU-b", Unknown); v.Reason != "the source of readings does not answer" {
		t.Errorf("%q", v.Reason)
	}
	m.restart()
	m.state = m.rules.Fold(m.state, Evidence{Time: m.now, BootID: m.boot})
	m.is("GPU-b", Unknown)
	m.silent = false
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_79")
	m.is("GPU-b", Healthy)
}

func TestOneReadingThatFailedChangesNothing(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.xid(m.cards[0], 79)
	m.tick()
	before := m.state.Report()
	m.xid(m.cards[1], 79)
	m.state = m.rules.Fold(m.state, Evidence{Time: m.now.Add(time.Second), BootID: m.boot, Reading: m.reading()})
	m.is("GPU-a", Unhealthy, "xid_79")
	m.is("GPU-b", Healthy)
	if got := m.state.Report(); got.Version != before.Version {
		t.Errorf("version %d, want %d", got.Version, before.Version)
	}
}

func TestAGPUThatHangsIsUnknownAndThenStuck(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.hangs = true
	m.tick()
	since := "it does not answer, since 2026-12-01T12:00:02Z"
	if v := m.is("GPU-a", Unknown); v.Reason != since {
		t.Errorf("%q, want %q", v.Reason, since)
	}
	m.run(115 * time.Second)
	m.is("GPU-a", Unknown)
	m.run(10 * time.Second)
	if q := m.is("GPU-a", Unhealthy, KindStuck).Conditions[0]; q.Class != ClassReset {
		t.Errorf("%+v", q)
	}
	m.is("GPU-b", Healthy)
	a.hangs = false
	m.run(50 * time.Second)
	m.is("GPU-a", Unhealthy, KindStuck)
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestAGPUThatHangsFromTheStartWasNeverReadAndIsStuck(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.state = State{}
	m.cards[0].hangs, m.cards[0].sampled = true, time.Time{}
	m.tick()
	if v := m.is("GPU-a", Unknown); v.Reason != "it was never read" {
		t.Errorf("%q", v.Reason)
	}
	m.run(130 * time.Second)
	m.is("GPU-a", Unhealthy, KindStuck)
}

func TestValuesThatStandStillAreNoAnswer(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.still = true
	m.run(25 * time.Second)
	m.is("GPU-a", Healthy)
	m.run(20 * time.Second)
	m.is("GPU-a", Unknown)
	m.run(3 * time.Minute)
	m.is("GPU-a", Unhealthy, KindStuck)
}

func TestWhenNoGPUAnswersNoneIsBlamed(t *testing.T) {
	m := aNode(t, 3, Config{})
	for _, c := range m.cards {
		c.hangs = true
	}
	m.run(2 * time.Hour)
	for _, c := range m.cards {
		m.is(c.id, Unknown)
	}
	m.cards[1].hangs = false
	m.tick()
	m.is("GPU-a", Unhealthy, KindStuck)
	m.is("GPU-b", Healthy)
}

func TestTheOnlyGPUIsStuckWhereItsDriverHangsAndNotWhereItsSourceRests(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].still = true
	m.run(time.Hour)
	m.is("GPU-a", Unknown)
	m.cards[0].hangs = true
	m.tick()
	m.is("GPU-a", Unhealthy, KindStuck)
}

func TestAGPUThatIsLostWhenItIsFirstSeenIsWithdrawn(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.state = State{}
	m.cards[0].lost = true
	m.tick()
	m.is("GPU-a", Unhealthy, KindLost)
	m.is("GPU-b", Healthy)
}

func TestFactsStandUntilTheirReporterSaysOtherwise(t *testing.T) {
	m := aNode(t, 2, Config{})
	down := Fact{GPU: "GPU-a", Kind: KindMPSDown, Class: ClassReset, Text: "the MPS daemon\nis dead"}
	m.facts = map[string][]Fact{"plugin": {down, {GPU: "GPU-b", Kind: "xid_79", Class: ClassNode}, {GPU: "GPU-b", Kind: "Bad Word", Class: ClassNode},
		{GPU: "GPU-b", Kind: "only_told", Class: ClassInfo}, {GPU: "GPU-b", Kind: KindLost, Class: ClassNode}, {GPU: "GPU-nobody", Kind: KindMPSDown, Class: ClassReset}}}
	m.tick()
	if q := m.is("GPU-a", Unhealthy, KindMPSDown).Conditions[0]; q.Evidence != "the MPS daemon is dead" {
		t.Errorf("%+v", q)
	}
	m.is("GPU-b", Healthy)
	m.facts = nil
	m.run(time.Hour)
	m.restart()
	m.tick()
	m.is("GPU-a", Unhealthy, KindMPSDown)
	m.facts = map[string][]Fact{"other": {{GPU: "GPU-a", Kind: KindMPSDown, Class: ClassWatch}}, "another": {{GPU: "GPU-a", Kind: KindMPSDown, Class: ClassContained}}}
	for range 20 {
		m.tick()
		m.is("GPU-a", Unhealthy, KindMPSDown)
	}
	m.facts = map[string][]Fact{"another": {}, "plugin": {}}
	m.tick()
	// Two reporters, and the worse one has taken it back.
	m.is("GPU-a", Healthy, KindMPSDown)
	m.facts = map[string][]Fact{"other": nil}
	m.tick()
	m.is("GPU-a", Healthy)

	m.facts = map[string][]Fact{"plugin": {down}}
	m.tick()
	m.facts = map[string][]Fact{"plugin": {}}
	m.run(50 * time.Second)
	if v := m.is("GPU-a", Unhealthy, KindMPSDown); !strings.Contains(v.Reason, "its reporter says so no more") {
		t.Errorf("%q", v.Reason)
	}
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestAnOperatorsWordEndsAFactUntilItIsReportedAgain(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.facts = map[string][]Fact{"plugin": {{GPU: "GPU-a", Kind: KindMPSDown, Class: ClassReset, Text: "dead"}, {GPU: "GPU-b", Kind: KindMPSDown, Class: ClassReset, Text: "dead"}}}
	m.tick()
	if done := m.clear("GPU-a"); len(done.Ended) != 1 {
		t.Errorf("%+v", done)
	}
	again := m.facts
	m.facts = nil
	m.run(time.Minute)
	m.is("GPU-a", Healthy)
	m.is("GPU-b", Unhealthy, KindMPSDown)
	m.facts = again
	m.tick()
	m.is("GPU-a", Unhealthy, KindMPSDown)
}

func TestADeadDaemonIsNoFlappingGPU(t *testing.T) {
	m := aNode(t, 1, Config{})
	for range 9 {
		m.facts = map[string][]Fact{"plugin": {{GPU: "GPU-a", Kind: KindMPSDown, Class: ClassReset, Text: "dead"}}}
		m.tick()
		m.is("GPU-a", Unhealthy, KindMPSDown)
		m.facts = map[string][]Fact{"plugin": {}}
		m.run(90 * time.Second)
		m.is("GPU-a", Healthy)
	}
}

func TestAnOperatorsWordEndsWhatHasHappened(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.cut(0, 1)
	m.tick()
	m.xid(a, 79)
	m.xidOf(a, 95, 1, gpu.NoInstance)
	a.set(fieldRemapPending, 1)
	m.tick()
	version, durable := m.state.Report().Version, m.state.Durable()
	done := m.clear("GPU-a")
	m.is("GPU-a", Healthy, KindRemapPending)
	m.is(a.parts[0].UUID, Healthy, KindRemapPending)
	if len(done.Ended) != 2 || len(done.Standing) != 1 || done.Standing[0].Kind != KindRemapPending || done.By != "ops" {
		t.Errorf("%+v", done)
	}
	r := m.state.Report()
	if r.Version <= version || m.state.Durable() <= durable || len(r.Clearings) != 1 || r.Clearings[0].Reason != "looked at it" || !r.Clearings[0].Time.Equal(m.now) {
		t.Errorf("%+v", r)
	}
	m.tick()
	m.is("GPU-a", Healthy, KindRemapPending)
	if rec := m.record("GPU-a"); rec.Clearings != 1 || rec.Transitions["healthy"] != 2 || rec.Transitions["unhealthy"] != 1 {
		t.Errorf("%+v", rec)
	}
}

func (m *machine) record(id gpu.UUID) Record {
	for _, r := range m.state.Report().Records {
		if r.Device == id {
			return r
		}
	}
	return Record{}
}

func TestAWordDoesNotUndoWhatTheGPUSays(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.set(fieldRemapFailed, 1)
	a.set(fieldAction, 2)
	m.tick()
	if done := m.clear("GPU-a"); len(done.Standing) != 2 || len(done.Ended) != 0 {
		t.Errorf("%+v", done)
	}
	m.is("GPU-a", Unhealthy, KindRemapFailed, KindRecoveryAction)
	// Of what nobody can read any more the word is taken.
	delete(a.values, fieldRemapFailed)
	a.set(fieldAction, 0)
	m.tick()
	m.clear("GPU-a")
	m.is("GPU-a", Healthy)
	a.lost = true
	m.tick()
	m.clear("GPU-a")
	m.is("GPU-a", Unhealthy, KindLost)
}

func TestAWordTakesBackRepetition(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.set(fieldRemapFailed, 0)
	for n := range int64(7) {
		a.set(fieldDBE, n)
		m.tick()
	}
	m.is("GPU-a", Unhealthy, KindECC)
	m.clear("GPU-a")
	m.tick()
	if q := m.is("GPU-a", Healthy, KindECC).Conditions[0]; q.Class != ClassContained || strings.Contains(q.Evidence, "times") {
		t.Errorf("%+v", q)
	}
}

func TestAWordOfAMIGDeviceConcernsItsOwnInstance(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.cut(0, 1)
	m.tick()
	m.xidOf(a, 95, 1, gpu.NoInstance)
	m.xidOf(a, 95, 2, gpu.NoInstance)
	m.xid(a, 119)
	m.tick()
	if done := m.clear(a.parts[0].UUID); len(done.Ended) != 1 {
		t.Errorf("%+v", done)
	}
	m.is(a.parts[0].UUID, Unhealthy, "xid_119")
	m.is(a.parts[1].UUID, Unhealthy, "xid_119", "xid_95")
}

func TestAWordNeedsADeviceAndAReason(t *testing.T) {
	m := aNode(t, 1, Config{})
	before := m.state
	if _, _, err := m.rules.Clear(m.state, Clearing{Device: "GPU-z", Reason: "x"}); !errors.Is(err, ErrUnknownDevice) || !strings.Contains(err.Error(), "nvidia-smi -L") {
		t.Errorf("%v", err)
	}
	for _, reason := range []string{"", " \n"} {
		if s, _, err := m.rules.Clear(m.state, Clearing{Device: "GPU-a", Reason: reason}); err == nil || s != before {
			t.Errorf("%q: %v", reason, err)
		}
	}
	if _, _, err := m.rules.Clear(State{}, Clearing{Device: "GPU-a", Reason: "x"}); !errors.Is(err, ErrUnknownDevice) {
		t.Errorf("%v", err)
	}
	for range 3 * mostClearings {
		m.clear("GPU-a")
	}
	if n := len(m.state.Report().Clearings); n != mostClearings {
		t.Errorf("%d clearings are kept", n)
	}
}

func TestTimeUnhealthyCountsWhileItIsWatched(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.xid(m.cards[0], 79)
	m.tick()
	m.run(100 * time.Second)
	if got := m.record("GPU-a").Unhealthy; got != 100*time.Second {
		t.Errorf("%v, want 100 s", got)
	}
	m.restart()
	m.now = m.now.Add(10 * time.Hour)
	m.tick()
	if got := m.record("GPU-a").Unhealthy; got != 100*time.Second+longestGap {
		t.Errorf("%v, want %v more than 100 s", got, longestGap)
	}
	m.now = m.now.Add(-time.Hour)
	m.tick()
	if got := m.record("GPU-a").Unhealthy; got != 100*time.Second+longestGap {
		t.Errorf("a clock that was set back makes it %v", got)
	}
	if got := m.record("GPU-b"); got.Unhealthy != 0 || got.Transitions["healthy"] != 1 {
		t.Errorf("%+v", got)
	}
}

func TestWhatASourceTellsAgainAfterARestartIsNotNew(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	m.xid(a, 109)
	again := m.events
	m.tick()
	for range 4 {
		m.restart()
		m.events = again
		m.tick()
	}
	if q := m.is("GPU-a", Healthy, "xid_109").Conditions[0]; q.Count != 1 {
		t.Errorf("%+v", q)
	}
	m.clear("GPU-a")
	m.restart()
	m.events = again
	m.tick()
	m.is("GPU-a", Healthy)
	m.restart()
	m.xid(a, 109)
	m.tick()
	m.is("GPU-a", Healthy, "xid_109")
}

func TestWhatHappenedInSilenceIsHeardAfterARestart(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.silent = true
	m.tick()
	m.xid(m.cards[0], 79)
	m.tick()
	m.clear("GPU-a")
	m.restart()
	m.silent = false
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_79")
}
