// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestAListThatLacksAGPUForOnceIsNoFaultAndNoEvidence(t *testing.T) {
	m := aNode(t, 3, Config{})
	a, b := m.cards[0], m.cards[1]
	b.cut(0, 1)
	m.xid(a, 119)
	m.tick()
	a.gone, b.gone = true, true
	parts := b.parts
	b.parts = nil
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_119")
	for _, id := range []gpu.UUID{"GPU-b", parts[0].UUID, parts[1].UUID} {
		if v := m.is(id, Unknown); v.Reason != "it is not listed any more" {
			t.Errorf("%q", v.Reason)
		}
	}
	m.is("GPU-c", Healthy)
	a.gone, b.gone, b.parts = false, false, parts
	m.tick()
	m.is("GPU-b", Healthy)
	m.is(parts[1].UUID, Healthy)
	m.run(time.Hour)
	m.is("GPU-a", Unhealthy, "xid_119")
}

func TestAGPUThatStaysAwayIsLost(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 4 * time.Minute} {
		m := aNode(t, 2, Config{})
		m.cards[0].gone = true
		readings := 0
		for since := m.now; m.now.Sub(since) < max(every, 10*time.Second)+every; readings++ {
			if readings > 0 {
				m.is("GPU-a", Unknown)
			}
			m.now = m.now.Add(every - time.Second)
			m.tick()
		}
		m.is("GPU-a", Unhealthy, KindLost)
		if readings < 2 {
			t.Errorf("every %v: lost after %d readings", every, readings)
		}
	}
	// Two readings with nobody looking in between are no absence that was seen.
	m := aNode(t, 2, Config{})
	m.cards[0].gone = true
	m.tick()
	m.restart()
	m.now = m.now.Add(time.Hour)
	m.tick()
	m.is("GPU-a", Unknown)
	m.run(20 * time.Second)
	m.is("GPU-a", Unhealthy, KindLost)
}

func TestAListOfNoGPUAtAllBlamesNoneAndHealsNone(t *testing.T) {
	m := aNode(t, 3, Config{})
	m.xid(m.cards[0], 79)
	m.cards[1].gone = true
	m.run(30 * time.Second)
	m.is("GPU-b", Unhealthy, KindLost)
	for _, c := range m.cards {
		c.gone = true
	}
	for range 5 {
		m.run(time.Hour)
		m.is("GPU-a", Unhealthy, "xid_79")
		m.is("GPU-b", Unhealthy, KindLost)
		m.is("GPU-c", Unknown)
		m.restart()
	}
	for _, c := range m.cards {
		c.gone = false
	}
	m.tick()
	m.is("GPU-c", Healthy)
	m.run(time.Hour)
	m.is("GPU-a", Unhealthy, "xid_79")
	m.is("GPU-b", Healthy)
}

// A GPU that hangs from the source's start on has never said its name: its source lists it without one.
func TestAnAbsenceIsNoEvidenceWhileTheSourceWaitsForAGPUWithoutAName(t *testing.T) {
	m := aNode(t, 3, Config{})
	m.cards[1].gone = true
	m.run(time.Minute)
	m.is("GPU-b", Unhealthy, KindLost)
	m.restart()
	m.cards[0].gone, m.cards[0].hangs = true, true
	m.run(time.Hour)
	m.is("GPU-a", Unknown)
	m.is("GPU-b", Unhealthy, KindLost)
	// Once it has answered, and goes, it is lost like any other.
	m.cards[0].gone, m.cards[0].hangs = false, false
	m.tick()
	m.is("GPU-a", Healthy)
	m.cards[0].gone = true
	m.run(time.Minute)
	m.is("GPU-a", Unhealthy, KindLost)
}

func TestTheOnlyGPUThatIsNotListedIsUnknown(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].gone = true
	m.run(time.Hour)
	m.is("GPU-a", Unknown)
	// Its driver's own word is another thing.
	m.cards[0].gone, m.cards[0].lost = false, true
	m.tick()
	m.is("GPU-a", Unhealthy, KindLost)
}

func TestAGPUThatIsLostForAMomentIsWithdrawnAndHealsNothingElse(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	m.xid(a, 119)
	m.tick()
	a.lost = true
	m.tick()
	m.is("GPU-a", Unhealthy, KindLost, "xid_119")
	a.lost = false
	m.run(2 * time.Minute)
	m.is("GPU-a", Unhealthy, "xid_119")
}

func TestALostGPUThatLeavesTheListIsLostStill(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].lost = true
	m.tick()
	m.cards[0].lost, m.cards[0].gone = false, true
	m.tick()
	m.is("GPU-a", Unhealthy, KindLost)
}

func TestACardWhosePlaceAnotherHasTakenIsForgotten(t *testing.T) {
	for name, story := range map[string]struct {
		old, other, its string
		forgotten       bool
	}{
		"the same place":     {"0000:17:00.0", "0000:65:00.0", "0000:17:00.0", true},
		"another place":      {"0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", false},
		"no place":           {"", "", "", false},
		"all have one place": {"0000:00:00.0", "0000:00:00.0", "0000:00:00.0", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 2, Config{})
			a, b := m.cards[0], m.cards[1]
			a.bus, b.bus = story.old, story.other
			a.set(fieldRemapFailed, 1)
			m.xid(a, 79)
			m.tick()
			a.gone = true
			m.run(time.Minute)
			m.is("GPU-a", Unhealthy, KindRemapFailed, "xid_79", KindLost)
			m.reboot()
			m.cards = append(m.cards, &fakeCard{id: "GPU-new", bus: story.its, values: map[gpu.FieldID]gpu.Value{}})
			m.run(time.Minute)
			m.is("GPU-new", Healthy)
			if _, known := m.state.Report().Verdict("GPU-a"); known == story.forgotten {
				t.Errorf("the old one is known: %v", known)
			}
			m.restart()
		})
	}
}

func TestAGPUThatMayNotBeReadIsUnknownAndNotStuck(t *testing.T) {
	for name, shut := range map[string]func(c *fakeCard){
		"not permitted": func(c *fakeCard) { c.refused = gpu.ReasonNotPermitted },
		"not supported": func(c *fakeCard) { c.refused = gpu.ReasonNotSupported },
		"not asked":     func(c *fakeCard) { c.unasked = true },
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 2, Config{})
			shut(m.cards[0])
			m.run(40 * time.Second)
			m.is("GPU-a", Unknown)
			m.run(time.Hour)
			m.is("GPU-a", Unknown)
			m.is("GPU-b", Healthy)
		})
	}
}
