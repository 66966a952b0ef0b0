// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// failer is a test or a property's.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// fakeCard is a GPU that the tests break and mend.
type fakeCard struct {
	id    gpu.UUID
	parts []gpu.Device
	mig   bool
	gone  bool
	lost  bool
	bus   string
	// unasked: readings have no sample of it; refused is why nothing of it could be read.
	unasked bool
	refused gpu.Reason
	// hangs: its driver does not come back; still: its source hands out the same values again.
	hangs, still bool
	values       map[gpu.FieldID]gpu.Value
	links        []int64
	sampled      time.Time
}

// machine is a node with GPUs, a clock, and the state that Fold has of it.
type machine struct {
	t     failer
	rules *Rules
	state State
	now   time.Time
	boot  string
	cards []*fakeCard
	// silent: the source does not answer.
	silent bool
	events []gpu.Event
	checks gpu.HealthReport
	facts  map[string][]Fact
	// mig is what the MIG manager says.
	mig MIGState
	// witnessed are handed over in the next fold.
	witnessed map[string][]Condition
}

func testTable(t failer) *XIDTable {
	table, err := NewXIDTable([]XID{
		{Code: 13, Name: "engine exception", Class: ClassApp}, {Code: 31, Name: "MMU fault", Class: ClassApp}, {Code: 43, Name: "channel reset", Class: ClassApp},
		{Code: 68, Name: "video decoder", Class: ClassApp}, {Code: 45, Name: "cleaned up", Class: ClassWatch}, {Code: 48, Name: "double-bit ECC error", Class: ClassReset},
		{Code: 63, Name: "remap recorded", Class: ClassInfo}, {Code: 79, Name: "fell off the bus", Class: ClassNode}, {Code: 54, Name: "power cable", Class: ClassHardware},
		{Code: 94, Name: "contained error", Class: ClassContained}, {Code: 95, Name: "uncontained error", Class: ClassReset},
		{Code: 109, Name: "context switch", Class: ClassWatch, Repeat: Repeat{3, 10 * time.Minute, ClassReset}}, {Code: 119, Name: "GSP timeout", Class: ClassReset},
		{Code: 92, Name: "single-bit errors", Class: ClassWatch}, {Code: 141, Name: "fast path", Class: ClassInfo}, {Code: 154, Name: "other action", Class: ClassWatch},
	})
	if err != nil {
		t.Fatalf("the table: %v", err)
	}
	return table
}

// aNode is a machine of GPUs GPU-a, GPU-b, ... that has been read once.
func aNode(t failer, n int, cfg Config) *machine {
	t.Helper()
	cfg.XIDs = testTable(t)
	rules, err := NewRules(cfg)
	if err != nil {
		t.Fatalf("rules: %v", err)
	}
	m := &machine{t: t, rules: rules, now: noon, boot: "boot-1"}
	for i := range n {
		m.cards = append(m.cards, &fakeCard{id: gpu.UUID("GPU-" + string(rune('a'+i))), values: map[gpu.FieldID]gpu.Value{}})
	}
	m.tick()
	return m
}

// cut puts a card into MIG mode with instances at these memory slices, GPU instance i+1 each.
func (c *fakeCard) cut(starts ...int) {
	c.mig, c.parts = true, nil
	for i, start := range starts {
		c.parts = append(c.parts, gpu.Device{
			UUID: gpu.UUID(fmt.Sprintf("MIG-%s-%d", c.id, start)), Parent: c.id, GPUInstance: i + 1, ComputeInstance: 0,
			Placement: gpu.Placement{Start: start, Size: 1},
		})
	}
}

func (c *fakeCard) set(id gpu.FieldID, v int64) { c.values[id] = gpu.Int(v) }

func (m *machine) reading() gpu.Reading {
	r := gpu.Reading{Time: m.now, Source: "fake", Fields: append(Fields(), 150), Events: m.events, Health: m.checks}
	for i, c := range m.cards {
		if c.gone {
			if c.hangs {
				r.Troubles = append(r.Troubles, gpu.Trouble{Reason: gpu.ReasonTimeout})
			}
			continue
		}
		r.Devices = append(r.Devices, gpu.Device{
			UUID: c.id, Index: i, PCIBusID: c.bus, MIGEnabled: c.mig, Lost: c.lost, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
		})
		r.Devices = append(r.Devices, c.parts...)
		switch {
		case c.lost:
			r.Troubles = append(r.Troubles, gpu.Trouble{GPU: c.id, Reason: gpu.ReasonLost})
		case c.refused != gpu.ReasonNone:
			r.Troubles = append(r.Troubles, gpu.Trouble{GPU: c.id, Reason: c.refused})
		case c.hangs:
			r.Troubles = append(r.Troubles, gpu.Trouble{GPU: c.id, Reason: gpu.ReasonTimeout})
		case !c.still:
			c.sampled = m.now
		}
		if c.unasked {
			continue
		}
		values := make([]gpu.Value, len(r.Fields))
		for k, id := range r.Fields {
			values[k] = gpu.Absent(gpu.ReasonNotSupported)
			if v, ok := c.values[id]; ok && !c.lost && !c.hangs {
				values[k] = v
			}
		}
		r.Samples = append(r.Samples, gpu.Sample{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: c.id}, Time: c.sampled, Values: values})
		for n, state := range c.links {
			links := make([]gpu.Value, len(r.Fields))
			links[slices.Index(r.Fields, fieldLinkState)] = gpu.Int(state)
			r.Samples = append(r.Samples, gpu.Sample{Entity: gpu.Entity{Kind: gpu.KindLink, GPU: c.id, ID: n}, Time: c.sampled, Values: links})
		}
	}
	return r
}

// evidence is what this moment says. What has happened is told once.
func (m *machine) evidence() Evidence {
	e := Evidence{Time: m.now, BootID: m.boot, Facts: maps.Clone(m.facts), Witnessed: m.witnessed, MIGState: m.mig}
	m.witnessed = nil
	if m.silent {
		e.Silent = true
		return e
	}
	e.Reading, e.Fresh = m.reading(), true
	m.events = nil
	return e
}

// tick folds the present moment, a second after the one before.
func (m *machine) tick() *Report {
	m.now = m.now.Add(time.Second)
	m.state = m.rules.Fold(m.state, m.evidence())
	return m.state.Report()
}

// run ticks every ten seconds for as long as d.
func (m *machine) run(d time.Duration) {
	for end := m.now.Add(d); m.now.Before(end); {
		m.now = m.now.Add(min(9*time.Second, end.Sub(m.now)-time.Second))
		m.tick()
	}
}

func (m *machine) xid(card *fakeCard, code int) {
	m.xidOf(card, code, gpu.NoInstance, gpu.NoInstance)
}

func (m *machine) xidOf(card *fakeCard, code, gi, ci int) {
	m.events = append(m.events, gpu.Event{Kind: gpu.EventXID, Time: m.now, GPU: card.id, Code: code, GPUInstance: gi, ComputeInstance: ci})
}

// away takes a card off the list for long enough to be seen, and puts it back.
func (m *machine) away(c *fakeCard) {
	c.gone = true
	m.run(20 * time.Second)
	c.gone = false
}

// restart saves the state and takes it up again, as another process would.
func (m *machine) restart() {
	m.t.Helper()
	text, err := json.Marshal(m.state)
	if err != nil {
		m.t.Fatalf("saving: %v", err)
	}
	before := m.state
	m.state = State{}
	if err := json.Unmarshal(text, &m.state); err != nil {
		m.t.Fatalf("taking up %s: %v", text, err)
	}
	if got, want := m.state.Report(), before.Report(); !reflect.DeepEqual(got, want) || m.state.Durable() != before.Durable() {
		m.t.Fatalf("after a restart the report is\n%+v\nwant\n%+v", got, want)
	}
}

// reboot restarts node and process.
func (m *machine) reboot() {
	m.t.Helper()
	m.restart()
	m.boot += "'"
	m.now = m.now.Add(2 * time.Minute)
}

func (m *machine) verdict(id gpu.UUID) Verdict {
	m.t.Helper()
	v, ok := m.state.Report().Verdict(id)
	if !ok {
		m.t.Fatalf("%s has no verdict", id)
	}
	return v
}

// is checks a status, and the kinds of the conditions, the worst first.
func (m *machine) is(id gpu.UUID, want Status, kinds ...Kind) Verdict {
	m.t.Helper()
	v := m.verdict(id)
	var has []Kind
	for _, q := range v.Conditions {
		has = append(has, q.Kind)
	}
	if v.Status != want || !slices.Equal(has, kinds) {
		m.t.Fatalf("%s at %s is %v with %v because of %q, want %v with %v", id, m.now.Format(time.TimeOnly), v.Status, has, v.Reason, want, kinds)
	}
	return v
}
