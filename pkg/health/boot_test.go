// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestWhatHappenedInABootThatNobodyNamedIsNotOverWithItsName(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.reboot()
	m.boot = ""
	m.tick()
	m.xid(m.cards[0], 79)
	m.cards[1].set(fieldAction, 2)
	m.tick()
	m.restart()
	m.boot = "boot-2"
	delete(m.cards[1].values, fieldAction)
	m.run(time.Hour)
	m.is("GPU-a", Unhealthy, "xid_79")
	m.is("GPU-b", Unhealthy, KindRecoveryAction)
}

func TestRecoveryStandsWithinOneBoot(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.xid(m.cards[0], 79)
	m.tick()
	// The machine goes down again and again before a minute is over.
	for range 9 {
		m.restart()
		m.boot += "'"
		m.run(40 * time.Second)
		m.is("GPU-a", Unhealthy, "xid_79")
	}
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestWhatTheDriverAskedForBeforeARestartDoesNotSpeakAgainstIt(t *testing.T) {
	for name, asks := range map[string]gpu.FieldID{"action": fieldAction, "remap": fieldRemapPending, "retirement": fieldRetiredPending} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 1, Config{})
			m.xid(m.cards[0], 95)
			m.cards[0].set(asks, 1)
			m.tick()
			// In MIG mode, or with another driver, nobody tells it any more.
			clear(m.cards[0].values)
			m.run(time.Hour)
			m.is("GPU-a", Unhealthy, m.kinds("GPU-a")...)
			m.reboot()
			m.run(2 * time.Minute)
			if v := m.verdict("GPU-a"); v.Status != Healthy {
				t.Errorf("%v because of %q", v.Status, v.Reason)
			}
		})
	}
}

func TestWhatIsPendingStaysSoThoughNobodyTellsIt(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	m.xid(a, 95)
	a.set(fieldRemapPending, 1)
	a.set(fieldRetiredPending, 0)
	m.tick()
	a.set(fieldAction, 1)
	m.tick()
	delete(a.values, fieldRemapPending)
	a.set(fieldAction, 0)
	m.run(48 * time.Hour)
	m.is("GPU-a", Unhealthy, "xid_95", KindRemapPending)
}

func TestTheEndOfADrainIsNoReset(t *testing.T) {
	for action, evidence := range map[int64]bool{1: true, 2: true, 4: true, 6: true, 7: true, 3: false, 5: false, 8: false} {
		m := aNode(t, 1, Config{IgnoreDriver: true})
		a := m.cards[0]
		m.xid(a, 95)
		m.tick()
		a.set(fieldAction, action)
		m.run(time.Minute)
		a.set(fieldAction, 0)
		m.run(time.Hour)
		if v := m.verdict("GPU-a"); (v.Status == Healthy) != evidence {
			t.Errorf("action %d and then none: %v because of %q", action, v.Status, v.Reason)
		}
	}
}

func TestWhatWasReportedOfAnotherBootIsOver(t *testing.T) {
	m := aNode(t, 2, Config{})
	dead := func(id gpu.UUID) []Fact { return []Fact{{GPU: id, Kind: KindMPSDown, Class: ClassReset, Text: "dead"}} }
	m.facts = map[string][]Fact{"removed since": dead("GPU-a"), "plugin": dead("GPU-b")}
	m.tick()
	m.facts = nil
	m.reboot()
	m.tick()
	m.is("GPU-a", Unhealthy, KindMPSDown)
	m.facts = map[string][]Fact{"plugin": dead("GPU-b")}
	m.run(2 * time.Minute)
	m.is("GPU-a", Healthy)
	m.is("GPU-b", Unhealthy, KindMPSDown)
}

func TestAWordOfOneMIGDeviceHealsNoOther(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.cut(0)
	a.parts[0].Placement.Size = 4
	m.tick()
	m.xidOf(a, 95, 1, gpu.NoInstance)
	m.tick()
	a.cut(0, 2)
	m.tick()
	if done := m.clear(a.parts[0].UUID); len(done.Standing) != 1 || len(done.Ended) != 0 {
		t.Errorf("%+v", done)
	}
	m.tick()
	m.is(a.parts[0].UUID, Unhealthy, "xid_95")
	m.is(a.parts[1].UUID, Unhealthy, "xid_95")
	m.clear("GPU-a")
	m.tick()
	m.is(a.parts[1].UUID, Healthy)
}
