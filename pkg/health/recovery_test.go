// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strings"
	"testing"
	"time"
)

func TestTimeAndAnsweringAreNoEvidence(t *testing.T) {
	for _, code := range []int{48, 79, 95, 119, 54} {
		m := aNode(t, 1, Config{})
		m.xid(m.cards[0], code)
		m.tick()
		for range 5 {
			m.run(10 * time.Hour)
			m.restart()
			m.tick()
			m.is("GPU-a", Unhealthy, XIDKind(code))
		}
	}
}

func TestARebootWithACleanGPUIsEvidence(t *testing.T) {
	for name, story := range map[string]struct {
		after func(c *fakeCard)
		want  Status
	}{
		"clean":                      {func(*fakeCard) {}, Healthy},
		"asks for nothing":           {func(c *fakeCard) { c.set(fieldAction, 0) }, Healthy},
		"asks for a reset":           {func(c *fakeCard) { c.set(fieldAction, 1) }, Unhealthy},
		"asks for a drain of P2P":    {func(c *fakeCard) { c.set(fieldAction, 3) }, Unhealthy},
		"a remap is pending":         {func(c *fakeCard) { c.set(fieldRemapPending, 1) }, Unhealthy},
		"a page waits to be retired": {func(c *fakeCard) { c.set(fieldRetiredPending, 1) }, Unhealthy},
		"is not there":               {func(c *fakeCard) { c.gone = true }, Unhealthy},
		"is lost":                    {func(c *fakeCard) { c.lost = true }, Unhealthy},
		"hangs":                      {func(c *fakeCard) { c.hangs = true }, Unhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 2, Config{})
			m.xid(m.cards[0], 79)
			m.tick()
			m.reboot()
			story.after(m.cards[0])
			m.run(58 * time.Second)
			m.is("GPU-a", Unhealthy, m.kinds("GPU-a")...)
			m.run(time.Hour)
			if v := m.verdict("GPU-a"); v.Status != story.want {
				t.Errorf("%v because of %q, want %v", v.Status, v.Reason, story.want)
			}
			m.is("GPU-b", Healthy)
		})
	}
}

func TestABootIDThatNobodyKnowsIsNoEvidence(t *testing.T) {
	for _, boots := range [][2]string{{"", "boot-2"}, {"boot-1", ""}, {"", ""}, {"boot-1", "boot-1"}} {
		m := aNode(t, 1, Config{})
		m.state, m.boot = State{}, boots[0]
		m.tick()
		m.xid(m.cards[0], 95)
		m.tick()
		m.restart()
		m.boot = boots[1]
		m.run(time.Hour)
		m.is("GPU-a", Unhealthy, "xid_95")
	}
}

func TestTheReasonSaysThatItRecoversAndWhy(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.xid(m.cards[0], 79)
	m.tick()
	m.reboot()
	version := m.state.Report().Version
	m.tick()
	v := m.is("GPU-a", Unhealthy, "xid_79")
	want := "XID 79: fell off the bus (node), since 2026-12-01T12:00:01Z; recovering since 2026-12-01T12:02:03Z: the node was restarted"
	if v.Reason != want || !v.Avoid || m.state.Report().Version <= version {
		t.Errorf("%q at version %d after %d, want %q", v.Reason, m.state.Report().Version, version, want)
	}
}

func TestAFaultDuringRecoveryVoidsIt(t *testing.T) {
	for name, mended := range map[string]func(m *machine){
		"restart": func(m *machine) { m.reboot() },
		"gone":    func(m *machine) { m.away(m.cards[0]) },
		"action":  func(m *machine) { m.cards[0].set(fieldAction, 1); m.tick(); m.cards[0].set(fieldAction, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 2, Config{IgnoreDriver: true})
			m.xid(m.cards[0], 95)
			m.tick()
			mended(m)
			m.run(40 * time.Second)
			if !m.verdict("GPU-a").Avoid {
				t.Errorf("it does not recover: %+v", m.verdict("GPU-a"))
			}
			m.xid(m.cards[0], 95)
			m.run(time.Hour)
			if q := m.is("GPU-a", Unhealthy, "xid_95").Conditions[0]; q.Recovery != "" || q.Count != 2 {
				t.Errorf("%+v", q)
			}
		})
	}
}

func TestALevelIsNotReadCleanWhileItsGPUHangs(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.set(fieldRemapFailed, 1)
	m.tick()
	a.set(fieldRemapFailed, 0)
	m.run(50 * time.Second)
	a.hangs = true
	m.run(time.Minute)
	a.hangs = false
	m.run(50 * time.Second)
	m.is("GPU-a", Unhealthy, KindRemapFailed)
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestWhatIsToBeWatchedStaysWhileNobodyCanLook(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].set(fieldRemapPending, 1)
	m.tick()
	m.cards[0].still = true
	m.run(48 * time.Hour)
	m.is("GPU-a", Unknown, KindRemapPending)
}

func TestARecoveryThatNobodySeesDoesNotStand(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	m.xid(a, 79)
	m.tick()
	m.reboot()
	m.run(30 * time.Second)
	m.silent = true
	m.run(2 * time.Hour)
	if q := m.is("GPU-a", Unhealthy, "xid_79").Conditions[0]; q.Recovery != "" {
		t.Errorf("it recovers unseen: %+v", q)
	}
	m.silent = false
	m.run(50 * time.Second)
	m.is("GPU-a", Unhealthy, "xid_79")
	// Nor does it while the exporter is away.
	m.restart()
	m.now = m.now.Add(time.Hour)
	m.run(50 * time.Second)
	m.is("GPU-a", Unhealthy, "xid_79")
	// Nor while the card does not answer.
	a.hangs = true
	m.run(50 * time.Second)
	a.hangs = false
	m.run(50 * time.Second)
	m.is("GPU-a", Unhealthy, "xid_79")
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestADriverThatIsSatisfiedAgainIsEvidence(t *testing.T) {
	m := aNode(t, 1, Config{IgnoreDriver: true})
	a := m.cards[0]
	a.set(fieldAction, 0)
	m.tick()
	m.xid(a, 119)
	m.tick()
	a.set(fieldAction, 1)
	m.run(time.Minute)
	m.is("GPU-a", Unhealthy, "xid_119", KindRecoveryAction)
	a.set(fieldAction, 0)
	m.run(50 * time.Second)
	if v := m.is("GPU-a", Unhealthy, "xid_119", KindRecoveryAction); !strings.Contains(v.Reason, "recovering") {
		t.Errorf("%q", v.Reason)
	}
	m.run(30 * time.Second)
	m.is("GPU-a", Healthy)
}

func TestADriverThatWasSatisfiedAllTheTimeIsNoEvidence(t *testing.T) {
	m := aNode(t, 1, Config{IgnoreDriver: true})
	m.cards[0].set(fieldAction, 0)
	m.tick()
	m.xid(m.cards[0], 119)
	m.run(5 * time.Hour)
	m.is("GPU-a", Unhealthy, "xid_119")
}

func TestADriverThatAsksForNothingLowersAReset(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.set(fieldAction, 0)
	m.xid(a, 119)
	m.tick()
	m.run(55 * time.Second)
	m.is("GPU-a", Unhealthy, "xid_119")
	m.run(20 * time.Second)
	q := m.is("GPU-a", Healthy, "xid_119").Conditions[0]
	if q.Class != ClassWatch || q.Evidence != "XID 119: GSP timeout; the driver asks for nothing" {
		t.Errorf("%+v", q)
	}
	m.restart()
	m.tick()
	m.is("GPU-a", Healthy, "xid_119")
	m.xid(a, 119)
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_119")
}

func TestADriverLowersNoOtherClassAndNotUnasked(t *testing.T) {
	for name, story := range map[string]struct {
		code   int
		action int64
		cfg    Config
	}{
		"node":          {79, 0, Config{}},
		"hardware":      {54, 0, Config{}},
		"not said":      {119, -1, Config{}},
		"asks":          {119, 3, Config{}},
		"to be ignored": {119, 0, Config{IgnoreDriver: true}},
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 1, story.cfg)
			if story.action >= 0 {
				m.cards[0].set(fieldAction, story.action)
			}
			m.tick()
			m.xid(m.cards[0], story.code)
			m.run(3 * time.Hour)
			if v := m.verdict("GPU-a"); v.Status != Unhealthy {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestAGPUThatWasGoneAndIsBackIsEvidence(t *testing.T) {
	for name, away := range map[string]func(c *fakeCard, is bool){
		"not listed": func(c *fakeCard, is bool) { c.gone = is },
		"lost":       func(c *fakeCard, is bool) { c.lost = is },
	} {
		t.Run(name, func(t *testing.T) {
			m := aNode(t, 2, Config{})
			a := m.cards[0]
			a.cut(0, 1)
			m.tick()
			m.xid(a, 119)
			m.tick()
			away(a, true)
			m.run(time.Minute)
			m.is("GPU-a", Unhealthy, KindLost, "xid_119")
			m.is(a.parts[1].UUID, Unhealthy, KindLost, "xid_119")
			m.is("GPU-b", Healthy)
			m.restart()
			m.tick()
			m.is("GPU-a", Unhealthy, KindLost, "xid_119")
			away(a, false)
			m.run(50 * time.Second)
			m.is("GPU-a", Unhealthy, KindLost, "xid_119")
			m.run(30 * time.Second)
			m.is("GPU-a", Healthy)
			m.is(a.parts[1].UUID, Healthy)
		})
	}
}

func TestALostGPUStaysListed(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].gone = true
	m.run(20 * time.Second)
	r := m.state.Report()
	if len(r.Verdicts) != 2 || r.Verdicts[0].Device != "GPU-b" || r.Verdicts[1].Device != "GPU-a" {
		t.Fatalf("%+v", r.Verdicts)
	}
	m.is("GPU-a", Unhealthy, KindLost)
	// A board was exchanged: the old one is not there after the reboot either, and is an operator's to forget.
	m.reboot()
	m.run(24 * 10 * time.Hour)
	m.is("GPU-a", Unhealthy, KindLost)
	m.clear("GPU-a")
	m.run(time.Minute)
	if v, ok := m.state.Report().Verdict("GPU-a"); ok {
		t.Errorf("%+v", v)
	}
}

func TestAMIGDeviceThatIsGoneIsNoFault(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].cut(0, 1)
	m.tick()
	m.cards[0].cut(0)
	m.tick()
	m.is("GPU-a", Healthy)
	if n := len(m.state.Report().Verdicts); n != 2 {
		t.Errorf("%d verdicts, want 2", n)
	}
}

func TestAGPUThatBreaksAgainAndAgainIsFlapping(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	flap := func() {
		m.xid(a, 119)
		m.tick()
		m.away(a)
		m.run(2 * time.Minute)
	}
	for range 3 {
		flap()
		m.is("GPU-a", Healthy)
	}
	flap()
	v := m.is("GPU-a", Unhealthy, KindFlapping)
	if q := v.Conditions[0]; q.Class != ClassHardware || !strings.HasSuffix(q.Evidence, " came back 3 times within 1h0m0s after it had recovered") {
		t.Errorf("%+v", q)
	}
	m.reboot()
	m.run(50 * time.Minute)
	m.is("GPU-a", Unhealthy, KindFlapping)
	m.run(50 * time.Hour)
	m.is("GPU-a", Unhealthy, KindFlapping)
	m.clear("GPU-a")
	m.tick()
	m.is("GPU-a", Healthy)
	// What was before the word counts no more.
	for range 3 {
		flap()
		m.is("GPU-a", Healthy)
	}
	flap()
	m.clear("GPU-a")
	flap()
	m.is("GPU-a", Healthy)
}

func TestRecoveriesFarApartAreNoFlapping(t *testing.T) {
	for _, cfg := range []Config{{}, {FlapLimit: -1}} {
		m := aNode(t, 2, cfg)
		for range 9 {
			m.xid(m.cards[0], 119)
			m.tick()
			m.away(m.cards[0])
			m.run(3 * time.Minute)
			m.is("GPU-a", Healthy)
			if cfg.FlapLimit == 0 {
				m.run(30 * time.Minute)
			}
		}
	}
}

func TestAnOldRecoveryIsForgotten(t *testing.T) {
	m := aNode(t, 2, Config{FlapLimit: 1})
	for range 3 {
		m.xid(m.cards[0], 119)
		m.tick()
		m.away(m.cards[0])
		m.run(2 * time.Hour)
		m.is("GPU-a", Healthy)
	}
}

func TestAResetThatIsLoweredAgainAndAgainIsFlapping(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].set(fieldAction, 0)
	for range 4 {
		m.xid(m.cards[0], 119)
		m.run(2 * time.Minute)
	}
	m.is("GPU-a", Unhealthy, KindFlapping, "xid_119")
}

func TestAConditionOfAnotherBootGoesWithIt(t *testing.T) {
	// A recovery action that a driver told before the reboot, and none that tells after it.
	m := aNode(t, 1, Config{})
	m.cards[0].set(fieldAction, 2)
	m.tick()
	m.is("GPU-a", Unhealthy, KindRecoveryAction)
	clear(m.cards[0].values)
	m.run(time.Hour)
	m.is("GPU-a", Unhealthy, KindRecoveryAction)
	m.reboot()
	m.run(2 * time.Minute)
	m.is("GPU-a", Healthy)
}
