// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

// drawMachine is a node of up to three GPUs, some in MIG mode.
func drawMachine(t *rapid.T, cfg Config) *machine {
	m := aNode(t, rapid.IntRange(1, 3).Draw(t, "cards"), cfg)
	for _, c := range m.cards {
		if rapid.Bool().Draw(t, "mig") {
			c.cut([]int{0, 1, 3, 6}[:rapid.IntRange(0, 4).Draw(t, "parts")]...)
			for i := range c.parts {
				if rapid.IntRange(0, 5).Draw(t, "blank") == 0 {
					c.parts[i].Placement = gpu.Placement{}
				}
			}
		}
	}
	m.tick()
	return m
}

// worsen breaks something, or nothing: what can happen without evidence of recovery.
func worsen(t *rapid.T, m *machine) {
	c := rapid.SampledFrom(m.cards).Draw(t, "card")
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0, 1:
		code := rapid.SampledFrom([]int{13, 31, 45, 48, 54, 63, 79, 94, 94, 95, 109, 109, 119, 999}).Draw(t, "xid")
		gi, ci := rapid.IntRange(-1, 4).Draw(t, "gi"), rapid.IntRange(-1, 1).Draw(t, "ci")
		for range rapid.SampledFrom([]int{1, 1, 1, 6}).Draw(t, "times") {
			m.xidOf(c, code, gi, ci)
		}
	case 2:
		m.events = append(m.events, gpu.Event{Kind: gpu.EventECCDoubleBit, Time: m.now, GPU: c.id, GPUInstance: rapid.IntRange(-1, 4).Draw(t, "gi"), ComputeInstance: gpu.NoInstance})
	case 3:
		f := rapid.SampledFrom([]gpu.FieldID{fieldRemapFailed, fieldRemapPending, fieldRetiredPending, fieldSRAM, fieldUnrepairable, fieldDBE, fieldRetiredDBE}).Draw(t, "field")
		old, _ := c.values[f].AsInt()
		c.set(f, old+rapid.Int64Range(1, 40).Draw(t, "value"))
	case 4:
		c.values[gpu.FieldClockReasons] = gpu.Int(rapid.Int64Range(0, 255).Draw(t, "reasons"))
	case 5:
		delete(c.values, rapid.SampledFrom(Fields()).Draw(t, "absent"))
	case 6:
		c.hangs = !c.hangs
	case 7:
		c.links = rapid.SliceOfN(rapid.Int64Range(0, 2), 0, 5).Draw(t, "links")
	case 8:
		m.facts = map[string][]Fact{"plugin": {{GPU: c.id, Kind: KindMPSDown, Class: rapid.SampledFrom(Classes()).Draw(t, "class"), Text: "down"}}}
	case 9:
		q := Condition{
			Subject: Subject{GPU: c.id, GPUInstance: rapid.IntRange(-1, 4).Draw(t, "gi"), ComputeInstance: rapid.IntRange(-1, 1).Draw(t, "ci")},
			XID:     rapid.SampledFrom([]int{31, 48, 79, 94, 95, 109, 119}).Draw(t, "xid"), Class: rapid.SampledFrom(Classes()).Draw(t, "class"),
			Last: m.now.Add(time.Duration(rapid.IntRange(-4000, 10).Draw(t, "last")) * time.Second), Count: rapid.Uint64().Draw(t, "count"), BootID: m.boot,
		}
		q.Kind, q.Since = XIDKind(q.XID), q.Last.Add(time.Duration(rapid.IntRange(-4000, 10).Draw(t, "since"))*time.Second)
		m.witnessed = map[string][]Condition{"other": {q}}
	}
}

// mend is what may be evidence, or not.
func mend(t *rapid.T, m *machine) {
	c := rapid.SampledFrom(m.cards).Draw(t, "card")
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 9:
		divide(t, m)
	case 0:
		m.boot = rapid.SampledFrom([]string{"", "boot-1", "boot-2", "boot-3"}).Draw(t, "boot")
	case 1:
		c.gone = !c.gone
	case 2:
		c.lost = !c.lost
	case 3:
		c.set(fieldAction, rapid.Int64Range(0, 8).Draw(t, "action"))
	case 4:
		clear(c.values)
	case 5:
		for f := range c.values {
			c.set(f, 0)
		}
	case 6:
		m.facts = map[string][]Fact{"plugin": {}}
	case 7:
		if v := m.state.Report().Verdicts; len(v) > 0 {
			m.clear(rapid.SampledFrom(v).Draw(t, "cleared").Device)
		}
	case 8:
		if c.mig = !c.mig; c.mig {
			c.cut(rapid.SliceOfNDistinct(rapid.IntRange(0, 6), 0, 7, rapid.ID[int]).Draw(t, "layout")...)
		} else {
			c.parts = nil
		}
	}
}

// pass lets time go by, more often little than much.
func pass(t *rapid.T, m *machine) {
	switch rapid.IntRange(0, 9).Draw(t, "time") {
	case 0:
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 48).Draw(t, "hours")) * time.Hour)
	case 1, 2:
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
	case 3:
		m.silent = !m.silent
	}
}

// Law 6: whatever happens, if nothing of it is evidence of recovery, a device that was
// withdrawn once stays so; time, answers, silence and restarts are none.
func TestNoSequenceWithoutEvidenceHeals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, Config{IgnoreDriver: rapid.Bool().Draw(t, "ignore"), StuckAfter: 1 << 60})
		for _, c := range m.cards {
			if m.rules.cfg.IgnoreDriver && rapid.Bool().Draw(t, "satisfied") {
				c.set(fieldAction, 0)
			}
		}
		withdrawn := map[gpu.UUID]string{}
		t.Repeat(map[string]func(*rapid.T){
			"worsen":  func(t *rapid.T) { worsen(t, m); keepLevels(m) },
			"doubt":   func(t *rapid.T) { doubt(t, m) },
			"pass":    func(t *rapid.T) { pass(t, m) },
			"restart": func(*rapid.T) { m.restart() },
			"divide":  func(t *rapid.T) { divide(t, m) },
			"": func(t *rapid.T) {
				for _, v := range m.tick().Verdicts {
					if why := withdrawn[v.Device]; why != "" && v.Status != Unhealthy {
						t.Fatalf("%s was Unhealthy because of %q and is %v with %+v", v.Device, why, v.Status, v.Conditions)
					}
					if v.Status == Unhealthy {
						withdrawn[v.Device] = v.Reason
					}
				}
			},
		})
	})
}

// doubt is what looks like evidence of something and is none.
func doubt(t *rapid.T, m *machine) {
	c := rapid.SampledFrom(m.cards).Draw(t, "doubted")
	switch rapid.IntRange(0, 5).Draw(t, "doubt") {
	case 0:
		c.gone = true
		m.tick()
		c.gone = false
	case 1:
		for _, c := range m.cards {
			c.gone = true
		}
		for range rapid.IntRange(1, 3).Draw(t, "readings") {
			m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "apart")) * time.Second)
			m.tick()
		}
		for _, c := range m.cards {
			c.gone = false
		}
	case 2:
		if m.boot == "" {
			m.boot = "boot-1"
		} else {
			m.boot = ""
		}
	case 3:
		m.now = m.now.Add(-time.Duration(rapid.IntRange(1, 100_000).Draw(t, "back")) * time.Second)
	case 4:
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 100_000).Draw(t, "forward")) * time.Second)
	case 5:
		c.unasked = !c.unasked
	}
}

// A month of a fleet that is well: drivers and host engines that are restarted, clocks that are set,
// programs that fail, cards that are slow, hot or cut anew. None of it withdraws anything.
func TestNothingHarmlessWithdraws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, Config{})
		m.cards = append(m.cards, &fakeCard{id: "GPU-well", values: map[gpu.FieldID]gpu.Value{}})
		t.Repeat(map[string]func(*rapid.T){
			"doubt":       func(t *rapid.T) { doubt(t, m) },
			"restart":     func(*rapid.T) { m.restart() },
			"reboot":      func(*rapid.T) { m.reboot() },
			"divide":      func(t *rapid.T) { divide(t, m) },
			"repartition": func(t *rapid.T) { reset(t, m) },
			"layout": func(t *rapid.T) {
				if c := rapid.SampledFrom(m.cards).Draw(t, "card"); c.mig {
					c.cut(rapid.SliceOfNDistinct(rapid.IntRange(0, 6), 0, 7, rapid.ID[int]).Draw(t, "layout")...)
				}
			},
			"silence": func(*rapid.T) { m.silent = !m.silent },
			"program": func(t *rapid.T) {
				m.xid(rapid.SampledFrom(m.cards).Draw(t, "card"), rapid.SampledFrom([]int{13, 31, 43, 45, 63, 68, 92, 999}).Draw(t, "xid"))
			},
			"level": func(t *rapid.T) {
				f := rapid.SampledFrom([]gpu.FieldID{gpu.FieldClockReasons, fieldRemapPending, fieldRetiredPending, fieldRetiredSBE}).Draw(t, "field")
				rapid.SampledFrom(m.cards).Draw(t, "card").set(f, rapid.Int64Range(0, 60).Draw(t, "value"))
			},
			"burst": func(t *rapid.T) {
				c := rapid.SampledFrom(m.cards).Draw(t, "card")
				for range rapid.IntRange(1, 40).Draw(t, "channels") {
					m.xid(c, 94)
				}
				m.tick()
				m.now = m.now.Add(time.Hour)
			},
			"hang": func(t *rapid.T) {
				c := rapid.SampledFrom(m.cards).Draw(t, "card")
				c.hangs = true
				m.run(100 * time.Second)
				c.hangs = false
				m.tick()
			},
			"": func(t *rapid.T) {
				for _, v := range m.tick().Verdicts {
					if v.Status == Unhealthy {
						t.Fatalf("%s is withdrawn because of %q", v.Device, v.Reason)
					}
				}
			},
		})
	})
}

// keepLevels takes care that facts, which their reporter could lower, only get worse.
func keepLevels(m *machine) {
	for i, f := range m.facts["plugin"] {
		if f.Class < ClassReset {
			m.facts["plugin"][i].Kind = "watched"
		}
	}
	if m.facts != nil {
		m.facts = map[string][]Fact{"plugin " + fmt.Sprint(m.state.Durable()): m.facts["plugin"]}
	}
}

// Two machines live the same life; one of them is restarted at every step.
func TestARestartAtAnyPointChangesNoVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, Config{FlapLimit: 2})
		never := m.state
		t.Repeat(map[string]func(*rapid.T){
			"worsen": func(t *rapid.T) { worsen(t, m) },
			"mend": func(t *rapid.T) {
				before := len(m.state.Report().Clearings)
				mend(t, m)
				if all := m.state.Report().Clearings; len(all) > before {
					never, _, _ = m.rules.Clear(never, all[len(all)-1])
				}
			},
			"pass": func(t *rapid.T) { pass(t, m) },
			"": func(t *rapid.T) {
				m.restart()
				m.now = m.now.Add(time.Second)
				e := m.evidence()
				m.state, never = m.rules.Fold(m.state, e), m.rules.Fold(never, e)
				got, want := *m.state.Report(), *never.Report()
				got.Version, want.Version = 0, 0
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("with restarts\n%+v\nwithout\n%+v", got, want)
				}
			},
		})
	})
}

// content is what Version speaks of.
func content(r *Report, devices []gpu.Device) string {
	var b strings.Builder
	for _, v := range r.Verdicts {
		fmt.Fprintln(&b, v.Device, v.Card, v.Status, v.Avoid)
		for _, q := range v.Conditions {
			fmt.Fprintln(&b, q.Subject, q.Kind, q.Class, q.Recovery)
		}
	}
	for _, e := range r.Ended {
		fmt.Fprintln(&b, e.Subject, e.Kind, e.Ended)
	}
	for _, d := range devices {
		fmt.Fprintln(&b, d.UUID, d.MIGEnabled, d.GPUInstance, d.ComputeInstance, d.Placement)
	}
	return b.String()
}

func asJSON(t failer, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(text)
}

// What holds of every fold: it leaves the state before it alone, its version follows its content, a
// condition of the whole card is every device's, and each status follows from the conditions.
func TestEveryFoldIsPureAndItsReportIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, Config{FlapLimit: 2, StuckAfter: 10 * time.Second})
		listed := m.reading().Devices
		t.Repeat(map[string]func(*rapid.T){
			"worsen": func(t *rapid.T) { worsen(t, m) },
			"mend":   func(t *rapid.T) { mend(t, m) },
			"pass":   func(t *rapid.T) { pass(t, m) },
			"": func(t *rapid.T) {
				before, report := m.state, m.state.Report()
				state, words := asJSON(t, before), asJSON(t, report)
				was, durable := content(report, listed), before.Durable()
				now := m.tick()
				if !m.silent {
					listed = m.reading().Devices
				}
				if asJSON(t, before) != state || asJSON(t, report) != words {
					t.Fatalf("the state before was modified")
				}
				if is := content(now, listed); (is != was) != (now.Version != report.Version) || now.Version < report.Version {
					t.Fatalf("version %d after %d, and the content is\n%swas\n%s", now.Version, report.Version, is, was)
				}
				if now.Version != report.Version && m.state.Durable() <= durable {
					t.Fatalf("durable %d after %d at a new version", m.state.Durable(), durable)
				}
				checkReport(t, now)
			},
		})
	})
}

func checkReport(t *rapid.T, r *Report) {
	card := map[gpu.UUID]Verdict{}
	for _, v := range r.Verdicts {
		if v.Device == v.Card {
			card[v.Card] = v
		}
		withdrawn, avoid := false, false
		for i, q := range v.Conditions {
			withdrawn = withdrawn || q.Withdraws() && (q.GPUInstance == gpu.NoInstance || v.Device != v.Card || q.Class >= ClassNode)
			avoid = avoid || !q.Withdraws() || q.Recovery != ""
			if i > 0 && v.Conditions[i-1].Class < q.Class {
				t.Fatalf("%s: the worst is not first: %+v", v.Device, v.Conditions)
			}
			if q.Since.After(q.Last) || q.Last.After(r.Time) || q.Count == 0 || q.Evidence == "" {
				t.Fatalf("%s: %+v at %v", v.Device, q, r.Time)
			}
		}
		if withdrawn && v.Status != Unhealthy || avoid != v.Avoid || (v.Status != Healthy || len(v.Conditions) > 0) != (v.Reason != "") {
			t.Fatalf("%+v", v)
		}
		for _, q := range card[v.Card].Conditions {
			if q.GPUInstance != gpu.NoInstance {
				continue
			}
			found := false
			for _, own := range v.Conditions {
				found = found || reflect.DeepEqual(own, q)
			}
			if !found {
				t.Fatalf("%s does not have its card's %+v", v.Device, q)
			}
		}
	}
	for _, rec := range r.Records {
		v, ok := r.Verdict(rec.Device)
		if ok && rec.Transitions[v.Status.String()] == 0 {
			t.Fatalf("%s is %v and never became so: %+v", v.Device, v.Status, rec)
		}
	}
}

func FuzzUnmarshalState(f *testing.F) {
	m := aNode(f, 2, Config{})
	m.cards[0].cut(0, 1)
	m.facts = map[string][]Fact{"plugin": {{GPU: "GPU-b", Kind: KindMPSDown, Class: ClassReset, Text: "down"}}}
	m.xid(m.cards[0], 79)
	m.xidOf(m.cards[0], 94, 1, 0)
	m.tick()
	m.clear("GPU-b")
	text, err := json.Marshal(m.state)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`{"format":1}`)
	f.Add(`{"format":1,"version":1,"cards":[{"uuid":"GPU-a","conditions":[{"gpu":"GPU-a","kind":"x","class":6,"own":6,"origin":1}]}]}`)
	f.Add(`{"format":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		var s State
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			if s.data != nil {
				t.Fatal("an error and a state")
			}
			return
		}
		first := asJSON(t, s)
		var again State
		if err := json.Unmarshal([]byte(first), &again); err != nil {
			t.Fatalf("%v in what was written: %s", err, first)
		}
		if second := asJSON(t, again); second != first {
			t.Fatalf("%s\nbecame\n%s", first, second)
		}
		n := &machine{t: t, rules: m.rules, state: s, now: noon, boot: "boot-2", cards: m.cards}
		for range 3 {
			n.xid(m.cards[1], 95)
			n.tick()
		}
		n.restart()
	})
}
