// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const years = 10 * 365 * 24 * time.Hour

func TestWhatIsDatedInTheFutureIsNotRecentForEver(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	m.now = m.now.Add(years)
	for range 4 {
		m.xid(a, 94)
		m.xid(a, 45)
		m.tick()
	}
	m.now = m.now.Add(-years)
	m.run(2 * time.Hour)
	m.xid(a, 94)
	m.tick()
	if q := m.is("GPU-a", Healthy, "xid_94", "xid_45").Conditions[0]; q.Class != ClassContained {
		t.Errorf("%+v", q)
	}
	m.run(25 * time.Hour)
	m.is("GPU-a", Healthy)
}

func TestReturnsInTheFutureAreNoFlappingForEver(t *testing.T) {
	m := aNode(t, 2, Config{})
	flap := func() {
		m.xid(m.cards[0], 119)
		m.tick()
		m.away(m.cards[0])
		m.run(2 * time.Minute)
		m.is("GPU-a", Healthy)
	}
	m.now = m.now.Add(years)
	flap()
	flap()
	flap()
	m.now = m.now.Add(-years)
	m.run(2 * time.Hour)
	flap()
}

func TestAClockThatIsSetBackHidesNoStuckGPU(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].hangs = true
	m.tick()
	m.now = m.now.Add(-3 * time.Hour)
	m.run(110 * time.Second)
	m.is("GPU-a", Unknown)
	m.run(20 * time.Second)
	m.is("GPU-a", Unhealthy, KindStuck)
}

func TestAClockThatIsSetForwardMakesNoGPUStuckOrRecovered(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].hangs = true
	m.xid(m.cards[1], 79)
	m.tick()
	m.boot = "boot-2"
	m.tick()
	m.now = m.now.Add(3 * time.Hour)
	m.run(30 * time.Second)
	m.is("GPU-a", Unknown)
	m.is("GPU-b", Unhealthy, "xid_79")
}

func TestAClockThatIsNotSetYetDatesNothingAnew(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.xid(m.cards[0], 79)
	m.tick()
	since := m.is("GPU-a", Unhealthy, "xid_79").Conditions[0].Since
	now := m.now
	m.restart()
	m.now = time.Unix(60, 0).UTC()
	m.run(time.Minute)
	m.restart()
	m.now = now.Add(2 * time.Minute)
	m.run(time.Hour)
	if q := m.is("GPU-a", Unhealthy, "xid_79").Conditions[0]; !q.Since.Equal(since) {
		t.Errorf("since %v, want %v", q.Since, since)
	}
}

func TestAFaultIsHeardThoughTheClockWasSetBackOverARestart(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.xid(m.cards[0], 119)
	m.run(time.Hour)
	m.clear("GPU-a")
	m.tick()
	m.restart()
	m.now = m.now.Add(-5 * time.Hour)
	m.xid(m.cards[0], 119)
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_119")
}

func TestATimeThatNobodyCanWriteStopsNoSaving(t *testing.T) {
	m := aNode(t, 1, Config{})
	beyond := time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)
	m.cards[0].still, m.cards[0].sampled = true, beyond
	m.checks = gpu.HealthReport{Time: beyond, Checked: []gpu.UUID{"GPU-a"}}
	m.tick()
	m.restart()
}

func TestTheChannelsOfOneFaultAreOneOccurrence(t *testing.T) {
	for _, code := range []int{94, 109} {
		m := aNode(t, 1, Config{})
		for range 20 {
			m.xid(m.cards[0], code)
		}
		m.tick()
		if q := m.is("GPU-a", Healthy, XIDKind(code)).Conditions[0]; q.Count != 20 {
			t.Errorf("%+v", q)
		}
		for range 5 {
			m.run(time.Minute)
			m.xid(m.cards[0], code)
			m.tick()
		}
		m.is("GPU-a", Unhealthy, XIDKind(code))
	}
}

func TestErrorsThatNobodySawAreOneOccurrence(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.set(fieldRemapFailed, 0)
	a.set(fieldDBE, 0)
	m.tick()
	m.restart()
	m.now = m.now.Add(72 * time.Hour)
	a.set(fieldDBE, 9)
	m.tick()
	if q := m.is("GPU-a", Healthy, KindECC).Conditions[0]; q.Count != 9 {
		t.Errorf("%+v", q)
	}
	a.set(fieldDBE, 18)
	m.tick()
	m.is("GPU-a", Unhealthy, KindECC)
}
