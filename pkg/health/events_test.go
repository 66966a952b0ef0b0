// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestAGPUThatAnswersAndHasNothingIsHealthy(t *testing.T) {
	m := aNode(t, 2, Config{})
	for _, c := range m.cards {
		if v := m.is(c.id, Healthy); v.Reason != "" || v.Avoid || v.Conditions != nil || !v.Since.Equal(m.now) || v.Card != c.id {
			t.Errorf("%+v", v)
		}
	}
	r := m.state.Report()
	if r.BootID != "boot-1" || !r.Time.Equal(m.now) || r.Version == 0 || len(r.Records) != 2 {
		t.Errorf("the report is %+v", r)
	}
}

func TestXID79WithdrawsAllOfItsGPUAndNoOther(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].cut(0, 1, 2)
	m.tick()
	m.xid(m.cards[0], 79)
	m.tick()
	v := m.is("GPU-a", Unhealthy, "xid_79")
	for _, p := range m.cards[0].parts {
		m.is(p.UUID, Unhealthy, "xid_79")
	}
	m.is("GPU-b", Healthy)
	q := v.Conditions[0]
	if q.Class != ClassNode || q.XID != 79 || q.Count != 1 || q.BootID != "boot-1" || q.Subject != WholeCard("GPU-a") || q.Since.Before(noon) {
		t.Errorf("%+v", q)
	}
	if want := "XID 79: fell off the bus (node), since 2026-12-01T12:00:02Z"; v.Reason != want {
		t.Errorf("the reason is %q, want %q", v.Reason, want)
	}
}

func TestProgramsAndInformationAreNoConditions(t *testing.T) {
	m := aNode(t, 1, Config{})
	before := m.state.Report().Version
	for _, code := range []int{13, 31, 43, 68, 63, 141} {
		m.xid(m.cards[0], code)
		m.tick()
		m.is("GPU-a", Healthy)
	}
	if got := m.state.Report().Version; got != before {
		t.Errorf("version %d, want %d still", got, before)
	}
}

func TestACodeThatNobodyKnowsIsWatchedForADay(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.xid(m.cards[0], 999)
	m.tick()
	if v := m.is("GPU-a", Healthy, "xid_999"); !v.Avoid || v.Conditions[0].Class != ClassWatch {
		t.Errorf("%+v", v)
	}
	m.run(23*time.Hour + 50*time.Minute)
	m.is("GPU-a", Healthy, "xid_999")
	m.xid(m.cards[0], 999)
	m.tick()
	m.run(23 * time.Hour)
	if q := m.is("GPU-a", Healthy, "xid_999").Conditions[0]; q.Count != 2 {
		t.Errorf("count %d, want 2", q.Count)
	}
	m.run(2 * time.Hour)
	m.is("GPU-a", Healthy)
}

func TestABenignEventNeverLowersWhatThereIs(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	m.xid(a, 94)
	m.tick()
	m.is("GPU-a", Healthy, "xid_94")
	m.xid(a, 95)
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_95", "xid_94")
	for _, code := range []int{13, 63, 92, 45, 94} {
		m.xid(a, code)
		a.set(fieldRemapPending, 1)
		m.tick()
		m.is("GPU-a", Unhealthy, m.kinds("GPU-a")...)
	}
	m.run(48 * time.Hour)
	m.is("GPU-a", Unhealthy, "xid_95", KindRemapPending)
}

func (m *machine) kinds(id gpu.UUID) []Kind {
	var out []Kind
	for _, q := range m.verdict(id).Conditions {
		out = append(out, q.Kind)
	}
	return out
}

func TestRepeatedErrorsAskForMore(t *testing.T) {
	for _, story := range []struct {
		code, times int
		apart       time.Duration
		want        Status
		class       Class
	}{
		{109, 1, time.Minute, Healthy, ClassWatch},
		{109, 2, time.Minute, Healthy, ClassWatch},
		{109, 3, time.Minute, Unhealthy, ClassReset},
		{109, 9, 6 * time.Minute, Healthy, ClassWatch},
		{94, 4, 10 * time.Minute, Healthy, ClassContained},
		{94, 5, 10 * time.Minute, Unhealthy, ClassReset},
		{94, 9, 20 * time.Minute, Healthy, ClassContained},
		{45, 60, time.Second, Healthy, ClassWatch},
	} {
		t.Run(fmt.Sprintf("XID %d %d times every %v", story.code, story.times, story.apart), func(t *testing.T) {
			m := aNode(t, 1, Config{})
			m.cards[0].set(fieldAction, 0)
			for i := range story.times {
				if i > 0 {
					m.run(story.apart - time.Second)
				}
				m.xid(m.cards[0], story.code)
				m.tick()
			}
			q := m.is("GPU-a", story.want, XIDKind(story.code)).Conditions[0]
			if q.Class != story.class || q.Count != uint64(story.times) {
				t.Errorf("class %v after %d, want %v", q.Class, q.Count, story.class)
			}
			// The driver, who asks for nothing, does not know of repetition.
			m.run(time.Hour)
			m.is("GPU-a", story.want, XIDKind(story.code))
		})
	}
}

func TestAnEventOfAPartConcernsThatPart(t *testing.T) {
	m := aNode(t, 2, Config{})
	a := m.cards[0]
	a.cut(0, 1)
	a.parts = append(a.parts, a.parts[1])
	a.parts[2].UUID, a.parts[2].ComputeInstance = "MIG-GPU-a-1-ci1", 1
	m.tick()
	part := func(i int) gpu.UUID { return a.parts[i].UUID }

	m.xidOf(a, 95, 1, 0)
	m.tick()
	m.is(part(0), Unhealthy, "xid_95")
	m.is(part(1), Healthy)
	m.is("GPU-a", Healthy)

	m.xidOf(a, 48, 2, 1)
	m.tick()
	m.is(part(1), Healthy)
	m.is(part(2), Unhealthy, "xid_48")

	m.xidOf(a, 119, 2, gpu.NoInstance)
	m.tick()
	m.is(part(1), Unhealthy, "xid_119")
	m.is(part(2), Unhealthy, "xid_48", "xid_119")

	// What asks for the node concerns all of the card, wherever it was seen.
	m.xidOf(a, 79, 1, 0)
	m.tick()
	if q := m.is("GPU-a", Unhealthy, "xid_79").Conditions[0]; q.Subject != WholeCard("GPU-a") {
		t.Errorf("%+v", q.Subject)
	}
	m.is(part(1), Unhealthy, "xid_79", "xid_119")
	m.is("GPU-b", Healthy)
}

func TestAConditionStaysWhereTheMemoryIs(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.cut(0, 4)
	m.tick()
	m.xidOf(a, 95, 2, 0)
	m.tick()
	m.is("MIG-GPU-a-4", Unhealthy, "xid_95")

	// Another layout: ids and names are new, and the bad memory is in the middle one.
	a.cut(0, 3, 6)
	a.parts[1].Placement.Size = 2
	m.tick()
	m.is("MIG-GPU-a-0", Healthy)
	m.is("MIG-GPU-a-3", Unhealthy, "xid_95")
	m.is("MIG-GPU-a-6", Healthy)

	// No instance has it: it is the card's to tell, and withdraws nothing.
	a.cut(0, 6)
	m.tick()
	m.is("MIG-GPU-a-0", Healthy)
	m.is("MIG-GPU-a-6", Healthy)
	m.is("GPU-a", Healthy, "xid_95")

	a.parts, a.mig = nil, false
	m.tick()
	m.is("GPU-a", Unhealthy, "xid_95")
}

func TestAnEventOfAPartThatIsGoneIsKnownByItsPlace(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.cut(5)
	a.parts[0].GPUInstance = 9
	m.tick()
	m.xidOf(a, 95, 9, gpu.NoInstance)
	a.cut(0, 1)
	m.tick()
	m.is("MIG-GPU-a-0", Healthy)
	if q := m.is("GPU-a", Healthy, "xid_95").Conditions[0]; q.Placement.Start != 5 {
		t.Errorf("%+v", q)
	}
}

func TestWhereNoPlaceIsKnownTheInstanceGoesByItsID(t *testing.T) {
	m := aNode(t, 1, Config{})
	a := m.cards[0]
	a.cut(0, 1)
	for i := range a.parts {
		a.parts[i].Placement = gpu.Placement{}
	}
	m.tick()
	m.xidOf(a, 95, 2, gpu.NoInstance)
	m.tick()
	m.is("MIG-GPU-a-0", Healthy)
	m.is("MIG-GPU-a-1", Unhealthy, "xid_95")
}

func TestAnEventOfAGPUThatNobodyListedIsKept(t *testing.T) {
	m := aNode(t, 1, Config{})
	late := &fakeCard{id: "GPU-late", values: map[gpu.FieldID]gpu.Value{}}
	m.xid(late, 79)
	m.xid(&fakeCard{id: "GPU-fine"}, 31)
	m.xid(&fakeCard{}, 79)
	m.tick()
	m.is("GPU-late", Unhealthy, "xid_79")
	m.cards = append(m.cards, late)
	m.tick()
	m.is("GPU-late", Unhealthy, "xid_79")
	if n := len(m.state.Report().Verdicts); n != 2 {
		t.Errorf("%d verdicts, want 2", n)
	}
}

func TestForeignTextIsOneLine(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.checks = gpu.HealthReport{Time: m.now, Checked: []gpu.UUID{"GPU-a"}, Incidents: []gpu.HealthIncident{{
		GPU: "GPU-a", GPUInstance: gpu.NoInstance, System: "N\nO", Result: gpu.HealthFail, Code: 7, Text: "a\x00b\r\nc \xff" + strings.Repeat("ü", 9000),
	}}}
	m.tick()
	q := m.is("GPU-a", Healthy, "dcgm_all").Conditions[0]
	if len(q.Evidence) > mostText || !strings.HasPrefix(q.Evidence, "DCGM's check of ALL fails because of error 7: a b c ?ü") || !strings.HasSuffix(q.Evidence, "ü...") {
		t.Errorf("%q", q.Evidence)
	}
	m.restart()
}

func TestATimeThatCannotBeIsNow(t *testing.T) {
	for _, at := range []time.Time{{}, time.Unix(1<<40, 0), time.Unix(-1<<40, 0), noon.Add(time.Hour)} {
		m := aNode(t, 1, Config{})
		m.events = []gpu.Event{{Kind: gpu.EventXID, Time: at, GPU: "GPU-a", Code: 79, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}}
		m.tick()
		if q := m.is("GPU-a", Unhealthy, "xid_79").Conditions[0]; !q.Since.Equal(m.now) || !q.Last.Equal(m.now) {
			t.Errorf("%v became %v", at, q.Since)
		}
		m.restart()
	}
}

func TestAFloodOfWhatIsToBeWatchedHidesNothingWorse(t *testing.T) {
	m := aNode(t, 1, Config{})
	for code := range 600 {
		m.xid(m.cards[0], 200+code)
	}
	m.tick()
	m.xid(m.cards[0], 79)
	m.tick()
	v := m.verdict("GPU-a")
	if v.Status != Unhealthy || v.Conditions[0].Kind != "xid_79" || len(v.Conditions) > mostConditions {
		t.Errorf("%v with %d conditions", v.Status, len(v.Conditions))
	}
	m.restart()
}

func TestRepetitionThatAsksForTheNodeConcernsTheWholeCard(t *testing.T) {
	m := aNode(t, 1, Config{Contained: Repeat{Count: 2, Within: time.Hour, Class: ClassNode}})
	a := m.cards[0]
	a.cut(0, 1)
	m.tick()
	m.xidOf(a, 94, 1, gpu.NoInstance)
	m.tick()
	m.is(a.parts[1].UUID, Healthy)
	m.xidOf(a, 94, 1, gpu.NoInstance)
	m.tick()
	m.is(a.parts[1].UUID, Unhealthy, "xid_94")
	m.is("GPU-a", Unhealthy, "xid_94")
}
