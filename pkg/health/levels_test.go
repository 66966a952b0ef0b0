// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestLevelsSayWhatIsWrong(t *testing.T) {
	for _, story := range []struct {
		field  gpu.FieldID
		value  int64
		status Status
		kind   Kind
		class  Class
	}{
		{fieldRemapFailed, 1, Unhealthy, KindRemapFailed, ClassHardware},
		{fieldRemapPending, 1, Healthy, KindRemapPending, ClassWatch},
		{fieldRetiredPending, 1, Healthy, KindRetiredPending, ClassWatch},
		{fieldSRAM, 1, Unhealthy, KindSRAM, ClassHardware},
		{fieldUnrepairable, 1, Unhealthy, KindUnrepairable, ClassHardware},
		{fieldRetiredDBE, 63, Unhealthy, KindRetiredPages, ClassHardware},
		{fieldRetiredDBE, 62, Healthy, "", 0},
		{fieldDBE, 1, Unhealthy, KindECC, ClassReset},
		{fieldAction, 0, Healthy, "", 0},
		{fieldAction, 1, Unhealthy, KindRecoveryAction, ClassReset},
		{fieldAction, 2, Unhealthy, KindRecoveryAction, ClassNode},
		{fieldAction, 3, Healthy, KindRecoveryAction, ClassWatch},
		{fieldAction, 4, Unhealthy, KindRecoveryAction, ClassReset},
		{fieldAction, 5, Healthy, KindRecoveryAction, ClassWatch},
		{fieldAction, 6, Unhealthy, KindRecoveryAction, ClassReset},
		{fieldAction, 7, Unhealthy, KindRecoveryAction, ClassNode},
		{fieldAction, 8, Healthy, KindRecoveryAction, ClassWatch},
		{gpu.FieldClockReasons, 0x1, Healthy, "", 0},
		{gpu.FieldClockReasons, 0x4, Healthy, "", 0},
		{gpu.FieldClockReasons, 0x20, Healthy, KindThermal, ClassWatch},
		{gpu.FieldClockReasons, 0x48, Healthy, KindThermal, ClassWatch},
		{gpu.FieldClockReasons, 0x80, Healthy, KindPower, ClassWatch},
		{gpu.FieldClockReasons, 0x8, Healthy, KindPower, ClassWatch},
	} {
		m := aNode(t, 2, Config{})
		m.cards[0].set(story.field, story.value)
		m.tick()
		m.is("GPU-b", Healthy)
		if story.kind == "" {
			m.is("GPU-a", Healthy)
			continue
		}
		v := m.is("GPU-a", story.status, story.kind)
		if q := v.Conditions[0]; q.Class != story.class || v.Avoid != (story.class <= ClassContained) || q.Evidence == "" {
			t.Errorf("field %d at %d: %v, avoid %v, %q", story.field, story.value, q.Class, v.Avoid, q.Evidence)
		}
	}
}

func TestRetiredPagesOfBothKindsCountTogether(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].set(fieldRetiredSBE, 40)
	m.cards[0].set(fieldRetiredDBE, 23)
	m.tick()
	m.is("GPU-a", Unhealthy, KindRetiredPages)
}

func TestAnAbsentLevelChangesNothing(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.set(fieldRemapFailed, 1)
	a.set(fieldRemapPending, 1)
	m.tick()
	m.is("GPU-a", Unhealthy, KindRemapFailed, KindRemapPending)
	clear(a.values)
	m.run(10 * time.Minute)
	m.is("GPU-a", Unhealthy, KindRemapFailed, KindRemapPending)

	// Half a recovery, a gap in the values, and the other half are no whole one.
	a.set(fieldRemapFailed, 0)
	m.run(40 * time.Second)
	if q := m.verdict("GPU-a").Conditions[0]; q.Recovery == "" || !m.verdict("GPU-a").Avoid {
		t.Errorf("%+v does not recover", q)
	}
	clear(a.values)
	m.tick()
	a.set(fieldRemapFailed, 0)
	m.run(40 * time.Second)
	m.is("GPU-a", Unhealthy, KindRemapFailed, KindRemapPending)
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy, KindRemapPending)
	a.set(fieldRemapPending, 0)
	m.tick()
	m.is("GPU-a", Healthy)
}

func TestAFailedRemapSurvivesEveryReboot(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].set(fieldRemapFailed, 1)
	m.state = State{}
	m.tick()
	m.is("GPU-a", Unhealthy, KindRemapFailed)
	for range 3 {
		m.reboot()
		m.run(5 * time.Minute)
		m.is("GPU-a", Unhealthy, KindRemapFailed)
	}
}

func TestDoubleBitErrorsAreContainedWhereRowsCanBeRemapped(t *testing.T) {
	for _, mig := range []bool{false, true} {
		m := aNode(t, 1, Config{})
		a := m.cards[0]
		if a.mig = mig; !mig {
			a.set(fieldRemapFailed, 0)
		}
		a.set(fieldDBE, 7)
		m.tick()
		// Seven errors of unknown times are one occurrence.
		if q := m.is("GPU-a", Healthy, KindECC).Conditions[0]; q.Class != ClassContained || q.Count != 1 {
			t.Errorf("%+v", q)
		}
		m.run(time.Minute)
		a.set(fieldDBE, 10)
		m.run(time.Minute)
		if q := m.is("GPU-a", Healthy, KindECC).Conditions[0]; q.Count != 4 {
			t.Errorf("%+v", q)
		}
		a.set(fieldDBE, 11)
		m.tick()
		m.is("GPU-a", Unhealthy, KindECC)

		// The count is of the time since the last reset.
		a.set(fieldDBE, 0)
		m.run(59 * time.Second)
		m.is("GPU-a", Unhealthy, KindECC)
		m.run(20 * time.Second)
		m.is("GPU-a", Healthy)
	}
}

func TestADoubleBitErrorThatNobodyCountsIsHeard(t *testing.T) {
	m := aNode(t, 2, Config{})
	hear := func(c *fakeCard) {
		m.events = append(m.events, gpu.Event{Kind: gpu.EventECCDoubleBit, Time: m.now, GPU: c.id, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance},
			gpu.Event{Kind: gpu.EventECCSingleBit, Time: m.now, GPU: c.id, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance})
	}
	m.cards[1].set(fieldDBE, 0)
	m.tick()
	hear(m.cards[0])
	hear(m.cards[1])
	m.cards[1].set(fieldDBE, 1)
	m.tick()
	m.is("GPU-a", Unhealthy, KindECC)
	if q := m.is("GPU-b", Unhealthy, KindECC).Conditions[0]; q.Count != 1 {
		t.Errorf("one error counts %d times", q.Count)
	}
}

func TestASlowdownIsRememberedForAMinute(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	for range 20 {
		a.set(gpu.FieldClockReasons, 0x40)
		m.tick()
		since := m.is("GPU-a", Healthy, KindThermal).Conditions[0].Since
		a.set(gpu.FieldClockReasons, 0)
		m.run(30 * time.Second)
		if q := m.is("GPU-a", Healthy, KindThermal).Conditions[0]; !q.Since.Equal(since) {
			t.Fatalf("it began anew at %v", q.Since)
		}
	}
	m.run(40 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestANVLinkThatWasUpAndIsDownIsWatched(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.links = []int64{1, 2, 0, 1}
	m.tick()
	m.is("GPU-a", Healthy)
	a.links = []int64{1, 0, 0, 0}
	m.tick()
	if v := m.is("GPU-a", Healthy, KindNVLinkDown); !v.Avoid || v.Conditions[0].Evidence != "2 of its 3 NVLinks are down: [1 3]" {
		t.Errorf("%+v", v)
	}
	m.restart()
	m.tick()
	m.is("GPU-a", Healthy, KindNVLinkDown)
	a.links = []int64{1, 1, 0, 1}
	m.tick()
	m.is("GPU-a", Healthy)

	// A bridge was taken out: the operator says that it is good so.
	a.links = []int64{1, 1, 0, 0}
	m.tick()
	m.is("GPU-a", Healthy, KindNVLinkDown)
	m.clear("GPU-a")
	m.is("GPU-a", Healthy)
	m.run(time.Minute)
	m.is("GPU-a", Healthy)
}

func (m *machine) clear(id gpu.UUID) Clearing {
	m.t.Helper()
	state, done, err := m.rules.Clear(m.state, Clearing{Device: id, Reason: "looked at it", By: "ops", Time: m.now})
	if err != nil {
		m.t.Fatalf("clearing %s: %v", id, err)
	}
	m.state = state
	return done
}

func TestHealthChecksAreToBeWatched(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.cut(0, 1)
	round := func(checked []gpu.UUID, in ...gpu.HealthIncident) {
		m.checks = gpu.HealthReport{Time: m.now, Checked: checked, Incidents: in}
		m.run(30 * time.Second)
	}
	both := []gpu.UUID{"GPU-a", "GPU-b"}
	of := func(gi int, system gpu.HealthSystem, result gpu.HealthResult, code int) gpu.HealthIncident {
		return gpu.HealthIncident{GPU: "GPU-a", GPUInstance: gi, System: system, Result: result, Code: code, Text: "text"}
	}
	// 79 as DCGM's XID error of a program, which it repeats until it is restarted.
	round(both, of(gpu.NoInstance, gpu.HealthMemory, gpu.HealthWarn, incidentXID), of(gpu.NoInstance, gpu.HealthPCIe, gpu.HealthPass, 0))
	m.is("GPU-a", Healthy)
	round(both, of(gpu.NoInstance, gpu.HealthMemory, gpu.HealthFail, 4), of(2, gpu.HealthNVLink, gpu.HealthWarn, 70))
	m.is("GPU-a", Healthy, "dcgm_mem")
	m.is(a.parts[0].UUID, Healthy, "dcgm_mem")
	m.is(a.parts[1].UUID, Healthy, "dcgm_mem", "dcgm_nvlink")
	m.is("GPU-b", Healthy)
	// A round that did not look at it says nothing of it.
	round([]gpu.UUID{"GPU-b"})
	m.is("GPU-a", Healthy, "dcgm_mem")
	round(both)
	m.is("GPU-a", Healthy)
	m.is(a.parts[1].UUID, Healthy)
}

func TestAGPUOutsideOfItsFabricIsWithdrawn(t *testing.T) {
	m := aNode(t, 1, Config{})
	for range 3 {
		m.checks = gpu.HealthReport{Time: m.now, Checked: []gpu.UUID{"GPU-a"}, Incidents: []gpu.HealthIncident{{
			GPU: "GPU-a", GPUInstance: gpu.NoInstance, System: gpu.HealthNVLink, Result: gpu.HealthFail, Code: incidentFabric, Text: "not trained",
		}}}
		m.run(30 * time.Second)
		m.is("GPU-a", Unhealthy, "dcgm_nvlink")
	}
	m.checks = gpu.HealthReport{Time: m.now, Checked: []gpu.UUID{"GPU-a"}}
	m.run(time.Hour)
	m.is("GPU-a", Unhealthy, "dcgm_nvlink")
	for range 3 {
		m.checks.Time = m.now
		m.run(30 * time.Second)
	}
	m.is("GPU-a", Healthy)
}

func TestALevelThatChangesItsClassIsTheSameCondition(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.set(fieldAction, 3)
	m.tick()
	since := m.is("GPU-a", Healthy, KindRecoveryAction).Conditions[0].Since
	a.set(fieldAction, 2)
	m.tick()
	if q := m.is("GPU-a", Unhealthy, KindRecoveryAction).Conditions[0]; !q.Since.Equal(since) {
		t.Errorf("since %v, want %v", q.Since, since)
	}
	a.set(fieldAction, 0)
	m.run(50 * time.Second)
	m.is("GPU-a", Unhealthy, KindRecoveryAction)
	m.run(25 * time.Second)
	m.is("GPU-a", Healthy)
}
