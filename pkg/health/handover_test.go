// SPDX-License-Identifier: Apache-2.0

package health

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// handsOver folds a tick in which these conditions are handed over.
func (m *machine) handsOver(conditions ...Condition) *Report {
	m.now = m.now.Add(time.Second)
	e := m.evidence()
	e.Witnessed = map[string][]Condition{"the plugin": conditions}
	m.state = m.rules.Fold(m.state, e)
	return m.state.Report()
}

// heard is the one condition that another machine, like m, has of a GPU after an XID there.
func (m *machine) heard(t *testing.T, card gpu.UUID, codes ...int) Condition {
	t.Helper()
	other := &machine{t: m.t, rules: m.rules, now: m.now, boot: m.boot, cards: m.cards}
	other.tick()
	for _, code := range codes {
		for _, c := range m.cards {
			if c.id == card {
				other.xid(c, code)
			}
		}
		other.tick()
	}
	m.now = other.now
	v := other.verdict(card)
	if len(v.Conditions) != 1 || !v.Conditions[0].Withdraws() {
		t.Fatalf("the other has %+v", v)
	}
	return v.Conditions[0]
}

func TestWhatOthersHeardWithdrawsUntilEvidence(t *testing.T) {
	m := aNode(t, 2, Config{})
	heard := m.heard(t, "GPU-b", 79)
	m.run(time.Minute)
	m.handsOver(heard)
	m.is("GPU-a", Healthy)
	v := m.is("GPU-b", Unhealthy, "xid_79")
	if q := v.Conditions[0]; !q.Since.Equal(heard.Since) || !q.Last.Equal(heard.Last) || q.Count != heard.Count || q.BootID != m.boot || q.XID != 79 {
		t.Errorf("taken over as %+v, was %+v", q, heard)
	}
	version := m.state.Report().Version
	for range 5 {
		m.handsOver(heard)
	}
	if q := m.is("GPU-b", Unhealthy, "xid_79").Conditions[0]; q.Count != heard.Count || m.state.Report().Version != version {
		t.Errorf("said again it counts anew: %+v", q)
	}
	m.run(time.Hour)
	m.restart()
	m.run(time.Hour)
	m.is("GPU-b", Unhealthy, "xid_79")
	m.away(m.cards[1])
	m.handsOver(heard)
	m.run(2 * time.Minute)
	m.is("GPU-b", Healthy)
	if over := m.state.Report().Ended; !slices.ContainsFunc(over, func(e Ending) bool { return e.Covers(heard) }) {
		t.Fatalf("ended: %+v", over)
	}
	for range 20 {
		m.run(time.Hour)
		m.handsOver(heard)
		m.is("GPU-b", Healthy)
	}
	later := heard
	later.Last = m.now
	m.handsOver(later)
	m.is("GPU-b", Unhealthy, "xid_79")
}

func TestWhatOthersHeardInAnotherBootEndsWithIt(t *testing.T) {
	m := aNode(t, 1, Config{})
	heard := m.heard(t, "GPU-a", 79)
	m.reboot()
	m.tick()
	m.handsOver(heard)
	m.is("GPU-a", Unhealthy, "xid_79")
	m.run(2 * time.Minute)
	m.is("GPU-a", Healthy)
}

func TestAnOperatorsWordStandsAgainstWhatOthersHeardBefore(t *testing.T) {
	m := aNode(t, 1, Config{})
	heard := m.heard(t, "GPU-a", 95)
	m.state, _, _ = m.rules.Clear(m.state, Clearing{Device: "GPU-a", Reason: "looked at", Time: m.now.Add(time.Second)})
	m.run(time.Minute)
	m.handsOver(heard)
	m.is("GPU-a", Healthy)
}

func TestTheTableHereSaysWhatAnXIDOfOthersMeans(t *testing.T) {
	for _, c := range []struct {
		name   string
		heard  func(*Condition)
		status Status
		kinds  []Kind
		// ended says that the one who handed it over is told that it is none here.
		ended bool
	}{
		{"its class is this table's", func(q *Condition) { q.XID, q.Kind = 94, "xid_94" }, Unhealthy, []Kind{"xid_94"}, false},
		{"one of a program withdraws nothing", func(q *Condition) { q.XID, q.Kind = 31, "xid_31" }, Healthy, nil, true},
		{"a kind that is not its code's", func(q *Condition) { q.Kind = "xid_31" }, Healthy, nil, false},
		{"a GPU that nobody has", func(q *Condition) { q.GPU = "GPU-z" }, Healthy, nil, false},
		{"a fault of no time is one of now", func(q *Condition) { q.Last, q.Since = time.Time{}, time.Time{} }, Unhealthy, []Kind{"xid_95"}, false},
		{"a fault of later is one of now", func(q *Condition) { q.Last = q.Last.Add(time.Hour) }, Unhealthy, []Kind{"xid_95"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := aNode(t, 1, Config{})
			q := m.heard(t, "GPU-a", 95)
			c.heard(&q)
			m.handsOver(q)
			m.is("GPU-a", c.status, c.kinds...)
			if over := m.state.Report().Ended; (len(over) > 0) != c.ended {
				t.Errorf("ended: %+v", over)
			}
			if len(m.state.Report().Verdicts) != 1 {
				t.Errorf("verdicts: %+v", m.state.Report().Verdicts)
			}
		})
	}
}

func TestARepetitionThatOthersHeardIsOneHere(t *testing.T) {
	m := aNode(t, 1, Config{})
	q := Condition{
		Subject: WholeCard("GPU-a"), Kind: "xid_109", XID: 109, Class: ClassReset, Count: 7, Since: m.now.Add(-time.Minute), Last: m.now, BootID: m.boot,
	}
	m.handsOver(q)
	m.is("GPU-a", Unhealthy, "xid_109")
	m = aNode(t, 1, Config{})
	q.Class = ClassWatch
	m.handsOver(q)
	m.is("GPU-a", Healthy, "xid_109")
}

func TestReleaseEndsWhatEvidenceElsewhereEnded(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.xid(m.cards[0], 79)
	m.xid(m.cards[1], 79)
	m.cards[1].set(fieldRemapFailed, 1)
	m.tick()
	at := m.verdict("GPU-a").Conditions[0].Last
	old := m.state
	early := Ending{WholeCard("GPU-a"), "xid_79", at.Add(-time.Second)}
	if s := m.rules.Release(m.state, []Ending{early}); !reflect.DeepEqual(s, m.state) {
		t.Error("an end before the fault ended it")
	}
	m.state = m.rules.Release(m.state, []Ending{
		{WholeCard("GPU-a"), "xid_79", at}, {WholeCard("GPU-b"), KindRemapFailed, m.now.Add(time.Hour)}, {WholeCard("GPU-z"), "xid_79", m.now},
	})
	m.is("GPU-a", Healthy)
	m.is("GPU-b", Unhealthy, KindRemapFailed, "xid_79")
	if v, _ := old.Report().Verdict("GPU-a"); v.Status != Unhealthy {
		t.Error("the state before was modified")
	}
	m.restart()
	m.run(time.Minute)
	m.is("GPU-a", Healthy)
}
