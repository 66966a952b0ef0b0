// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/gpu/gputest"
)

var broken = flag.Bool("broken-machines", false, "run the contract suite on machines that break it, which fails")

// fault is one way to break the contract, and the story that must notice.
type fault struct {
	name, story string
	make        func(s *staged, m *gputest.Machine)
}

// spoil is a fault in what a reading says.
func spoil(name, story string, change func(r *gpu.Reading)) fault {
	return fault{name, story, func(_ *staged, m *gputest.Machine) {
		read := m.Read
		m.Read = func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
			r, err := read(ctx, fields)
			if err == nil {
				r.Devices = slices.Clone(r.Devices)
				change(&r)
			}
			return r, err
		}
	}}
}

// saying is a fault in one field of the entities of a kind.
func saying(name, story string, kind gpu.Kind, id gpu.FieldID, v gpu.Value) fault {
	return spoil(name, story, func(r *gpu.Reading) {
		column := slices.Index(r.Fields, id)
		for i := range r.Samples {
			if column >= 0 && r.Samples[i].Entity.Kind == kind {
				r.Samples[i].Values[column] = v
			}
		}
	})
}

// device is a fault in one device of the inventory.
func device(name string, n int, change func(d *gpu.Device)) fault {
	return spoil(name, "TheInventoryIsWhole", func(r *gpu.Reading) { change(&r.Devices[n]) })
}

func faults() []fault {
	// The nodes' devices are: GPU 0, GPU 1, GPU 2, its four instances, GPU 3, GPU 4 and its own.
	const inventory, present, scope = "TheInventoryIsWhole", "DefaultCountersArePresent", "MIGQuantitiesStandWhereTheyBelong"
	var last gpu.Reading
	var energy int64
	return slices.Concat([]fault{
		spoil("cards out of order", inventory, func(r *gpu.Reading) { r.Devices[0], r.Devices[1] = r.Devices[1], r.Devices[0] }),
		spoil("instances out of order", inventory, func(r *gpu.Reading) { r.Devices[3], r.Devices[4] = r.Devices[4], r.Devices[3] }),
		spoil("no origin", inventory, func(r *gpu.Reading) { r.Origin = gpu.Origin{} }),
		spoil("an inventory that depends on the fields", inventory, func(r *gpu.Reading) {
			if len(r.Fields) == 0 {
				r.Devices[0].Model = "?"
			}
		}),
		device("a UUID twice", 1, func(d *gpu.Device) { d.UUID = "GPU-122fd57c-63c0-4a2a-9518-3c891130136d" }),
		device("a card with instance 0", 0, func(d *gpu.Device) { d.GPUInstance = 0 }),
		device("a card with a profile", 0, func(d *gpu.Device) { d.Profile.Name = "7g" }),
		device("a card without a model", 0, func(d *gpu.Device) { d.Model = "" }),
		device("a MIG device of another card", 3, func(d *gpu.Device) { d.Parent = "GPU-other" }),
		device("a MIG device without an instance", 3, func(d *gpu.Device) { d.GPUInstance = gpu.NoInstance }),
		device("a MIG device larger than its card", 3, func(d *gpu.Device) { d.Profile.Memory = 9 }),
		device("a MIG device beside its card", 3, func(d *gpu.Device) { d.Placement.Start = 6 }),
		device("overlapping MIG devices", 4, func(d *gpu.Device) { d.Placement.Start++ }),
		device("an entity number twice", 3, func(d *gpu.Device) { d.InstanceEntity = 14 }),
		device("an entity number of another card", 9, func(d *gpu.Device) { d.InstanceEntity = 2 }),
		spoil("columns in an order of their own", "FieldsChangeBetweenReadings", func(r *gpu.Reading) { slices.Sort(r.Fields) }),
		spoil("a sample too few", present, func(r *gpu.Reading) { r.Samples = r.Samples[1:] }),
		spoil("values too few", inventory, func(r *gpu.Reading) { r.Samples[0].Values = r.Samples[0].Values[:3] }),
		spoil("a sample of tomorrow", present, func(r *gpu.Reading) { r.Samples[0].Time = r.Time.Add(time.Hour) }),
		spoil("time goes back", present, func(r *gpu.Reading) { energy++; r.Time = r.Time.Add(-time.Duration(energy) * time.Minute) }),
		spoil("another driver", present, func(r *gpu.Reading) { r.Origin.Driver = "1" }),
		spoil("trouble without a reason", present, func(r *gpu.Reading) { r.Troubles = append(r.Troubles, gpu.Trouble{Text: "?"}) }),
		saying("power in mW", present, gpu.KindGPU, 155, gpu.Float(71000)),
		saying("power is whole", present, gpu.KindGPU, 155, gpu.Int(71)),
		saying("no power", present, gpu.KindGPU, 155, gpu.Absent(gpu.ReasonBlank)),
		saying("temperature in F", present, gpu.KindGPU, 150, gpu.Int(150)),
		saying("utilisation above all", present, gpu.KindGPU, 203, gpu.Int(101)),
		saying("a ratio in percent", present, gpu.KindGPUInstance, 1001, gpu.Float(50)),
		saying("more memory used than there is", present, gpu.KindGPU, 252, gpu.Int(90000)),
		saying("energy stands still", present, gpu.KindGPU, 156, gpu.Int(1000)),
		spoil("energy falls", present, func(r *gpu.Reading) {
			if column := slices.Index(r.Fields, fieldEnergy); column >= 0 {
				energy++
				r.Samples[0].Values[column] = gpu.Int(1e12 - energy)
			}
		}),
		saying("what is not supported is 0", "AbsentIsNotZero", gpu.KindGPU, 171, gpu.Int(0)),
		saying("what is unknown is blank", "AbsentIsNotZero", gpu.KindGPU, 64999, gpu.Absent(gpu.ReasonBlank)),
		saying("computed metrics are 0", "ComputedMetricsHaveNoColumn", gpu.KindGPU, gpu.FieldXIDErrorsCount, gpu.Int(0)),
		saying("power of an instance", scope, gpu.KindGPUInstance, 155, gpu.Float(71)),
		saying("a card's memory in an instance", scope, gpu.KindGPUInstance, 250, gpu.Int(81559)),
		saying("memory of a split card", scope, gpu.KindGPU, 252, gpu.Int(1)),
		spoil("health unasked", present, func(r *gpu.Reading) { r.Health.Time = r.Time }),
		spoil("no health", "HealthIsReportedWhenAsked", func(r *gpu.Reading) { r.Health = gpu.HealthReport{} }),
		spoil("health of some", "HealthIsReportedWhenAsked", func(r *gpu.Reading) {
			r.Health.Checked = r.Health.Checked[:min(2, len(r.Health.Checked))]
		}),
		spoil("peers unasked", present, func(r *gpu.Reading) { r.Peers = []gpu.Peer{{}} }),
		spoil("peers of itself", "PeersAreReportedWhenAsked", func(r *gpu.Reading) {
			for i := range r.Peers {
				r.Peers[i].To = r.Peers[i].From
			}
		}),
		spoil("a selection that cuts the inventory", "TheSelectionChoosesSamples", func(r *gpu.Reading) {
			r.Devices = slices.DeleteFunc(r.Devices, func(d gpu.Device) bool {
				return !slices.ContainsFunc(r.Samples, func(s gpu.Sample) bool { return s.Entity.GPU == d.Card() })
			})
		}),
		spoil("a card that does not speak for its instances", "TheSelectionChoosesSamples", func(r *gpu.Reading) {
			split, column := r.Devices[2].UUID, slices.Index(r.Fields, 252)
			for i, s := range r.Samples {
				if column >= 0 && s.Entity.GPU == split && s.Entity.Kind == gpu.KindGPU {
					r.Samples[i].Values[column] = gpu.Absent(gpu.ReasonScope)
				}
			}
		}),
		spoil("a card that speaks for one of its instances", "TheSelectionChoosesSamples", func(r *gpu.Reading) {
			if len(r.Samples) != 5 {
				return
			}
			for id, mib := range map[gpu.FieldID]int64{250: 9984, 251: 9000, 252: 100, 253: 100} {
				if column := slices.Index(r.Fields, id); column >= 0 {
					r.Samples[2].Values[column] = gpu.Int(mib)
				}
			}
		}),
		{"a selection that is not heeded", "TheSelectionChoosesSamples", func(s *staged, _ *gputest.Machine) { s.n.gpus = gpu.Selection{} }},
		spoil("a reading that changes", "AReadingNeverChanges", func(r *gpu.Reading) {
			if len(last.Samples) > 0 && len(r.Samples) > 0 && len(r.Fields) == len(last.Fields) {
				copy(last.Samples[0].Values, r.Samples[0].Values)
			}
			last = *r
		}),
	}, failing(), telling())
}

// failing are faults in how a source bears what goes wrong.
func failing() []fault {
	const lost, hung = "ALostGPUStaysListed", "AHungGPUHangsAlone"
	instead := func(of, by gpu.Reason) func(*gpu.Reading) {
		return func(r *gpu.Reading) {
			for _, s := range r.Samples {
				for i, v := range s.Values {
					if v.Reason() == of {
						s.Values[i] = gpu.Absent(by)
					}
				}
			}
		}
	}
	ill := func(r *gpu.Reading) bool { return len(r.Troubles) > 0 }
	var last gpu.Reading
	timed := func(at func(r *gpu.Reading) time.Time) func(*gpu.Reading) {
		return func(r *gpu.Reading) {
			if ill(r) {
				r.Samples[1].Time = at(r)
			}
			last = *r
		}
	}
	now := timed(func(r *gpu.Reading) time.Time { return r.Time })
	never := timed(func(*gpu.Reading) time.Time { return time.Time{} })
	reading := timed(func(*gpu.Reading) time.Time { return last.Time })
	var silence time.Time
	forever := func(r *gpu.Reading) {
		if ill(r) {
			silence = r.Samples[1].Time
		} else if !silence.IsZero() {
			r.Samples[1].Time = silence
		}
	}
	return []fault{
		spoil("a lost GPU's values are of now", lost, now),
		spoil("a lost GPU's values have no time", lost, never),
		spoil("a lost GPU's values are of the reading before", lost, reading),
		spoil("the time of a lost GPU's values stands forever", lost, forever),
		spoil("a hung GPU's values are of now", hung, now),
		spoil("a hung GPU's values have no time", hung, never),
		spoil("a hung GPU's values are of the reading before", hung, reading),
		spoil("the time of a hung GPU's values stands forever", hung, forever),
		{"a repartition unseen", "ARepartitionIsSeen", func(_ *staged, m *gputest.Machine) { m.Repartition = func(int) {} }},
		{"a repartition that takes a UUID over", "ARepartitionIsSeen", func(s *staged, m *gputest.Machine) {
			gone, change := s.n.ReadingAt(0, nil).Devices[6].UUID, m.Repartition
			m.Repartition = func(index int) {
				change(index)
				for _, state := range s.n.line.states[1:] {
					state.devices = slices.Clone(state.devices)
					state.devices[3].UUID = gone
				}
			}
		}},
		spoil("a lost GPU leaves", lost, func(r *gpu.Reading) {
			r.Devices = slices.DeleteFunc(r.Devices, func(d gpu.Device) bool { return d.Lost })
		}),
		spoil("a lost GPU is not marked", lost, func(r *gpu.Reading) { r.Devices[1].Lost = false }),
		spoil("a lost GPU is only blank", lost, instead(gpu.ReasonLost, gpu.ReasonBlank)),
		spoil("a lost GPU is no trouble", lost, func(r *gpu.Reading) { r.Troubles = nil }),
		spoil("a lost GPU takes another along", lost, func(r *gpu.Reading) {
			if ill(r) {
				r.Samples[0].Values[6] = gpu.Absent(gpu.ReasonLost)
			}
		}),
		{"a lost GPU never comes back", lost, func(_ *staged, m *gputest.Machine) { m.Return = func(int) {} }},
		{"a detached GPU stays", "ADetachedGPULeaves", func(_ *staged, m *gputest.Machine) { m.Detach = func(int) {} }},
		{"a detached GPU never comes back", "ADetachedGPULeaves", func(_ *staged, m *gputest.Machine) { m.Attach = func(int) {} }},
		spoil("a hung GPU is only blank", hung, instead(gpu.ReasonTimeout, gpu.ReasonBlank)),
		spoil("a hung GPU takes another along", hung, func(r *gpu.Reading) {
			if ill(r) {
				r.Samples[2].Values[6] = gpu.Absent(gpu.ReasonTimeout)
			}
		}),
		{"a hung GPU never comes back", hung, func(_ *staged, m *gputest.Machine) { m.Unhang = func(int) {} }},
		{"a hung GPU holds the reading up", hung, func(s *staged, m *gputest.Machine) {
			m.Read = func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
				if r := s.n.ReadingAt(s.n.Elapsed(), nil); ill(&r) {
					<-ctx.Done()
				}
				return s.n.ReadingAt(s.n.Elapsed(), fields), nil
			}
		}},
		{"a slow GPU is given up", "ASlowGPUIsWaitedFor", func(_ *staged, m *gputest.Machine) {
			hang, unhang := m.Hang, m.Unhang
			m.Slow = func(index int, delay time.Duration) {
				if delay > 0 {
					hang(index)
				} else {
					unhang(index)
				}
			}
		}},
		{"a cancelled reading stays away", "ACancelledReadReturns", func(s *staged, m *gputest.Machine) {
			m.Read = func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
				if ctx.Err() != nil {
					<-s.t.Context().Done()
				}
				return s.n.Read(context.WithoutCancel(ctx), fields)
			}
		}},
		{"a connection breaks unnoticed", "ABrokenConnectionIsAnError", func(_ *staged, m *gputest.Machine) { m.Break = func() {} }},
		{"a connection never comes back", "ABrokenConnectionIsAnError", func(_ *staged, m *gputest.Machine) { m.Mend = func() {} }},
		{"an error without a kind", "ABrokenConnectionIsAnError", func(_ *staged, m *gputest.Machine) {
			read := m.Read
			m.Read = func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
				r, err := read(ctx, fields)
				if err != nil {
					err = fmt.Errorf("read: %v", err) //nolint:errorlint // the kind is hidden on purpose
				}
				return r, err
			}
		}},
		{"a connection tells anew what it told", "ABrokenConnectionIsAnError", func(s *staged, m *gputest.Machine) {
			m.Mend = func() { s.cut, s.n.told = false, 0 }
		}},
	}
}

// telling are faults in how events are told.
func telling() []fault {
	const once, instance = "EveryXIDIsToldOnce", "AnXIDOfAnInstanceNamesIt"
	var last gpu.Event
	events := func(name, story string, change func(events []gpu.Event) []gpu.Event) fault {
		return spoil(name, story, func(r *gpu.Reading) { r.Events = change(r.Events) })
	}
	each := func(change func(e *gpu.Event)) func([]gpu.Event) []gpu.Event {
		return func(events []gpu.Event) []gpu.Event {
			for i := range events {
				change(&events[i])
			}
			return events
		}
	}
	return []fault{
		events("the same code counts once", once, func(events []gpu.Event) []gpu.Event {
			return slices.CompactFunc(events, func(a, b gpu.Event) bool { return a.Code == b.Code })
		}),
		events("the same code later does not count", once, func(events []gpu.Event) []gpu.Event {
			return slices.DeleteFunc(events, func(e gpu.Event) bool {
				same := e.Code == last.Code && e.GPU == last.GPU && e.Time != last.Time
				last = e
				return same
			})
		}),
		events("events are told twice", once, func(events []gpu.Event) []gpu.Event { return append(events, events...) }),
		events("events are told again and again", once, func(events []gpu.Event) []gpu.Event {
			if len(events) > 0 {
				last = events[0]
			}
			if last.Kind == 0 {
				return events
			}
			return []gpu.Event{last}
		}),
		events("events of another GPU", once, each(func(e *gpu.Event) { e.GPU = "GPU-other" })),
		events("events of an instance that is none", once, each(func(e *gpu.Event) { e.GPUInstance = 0 })),
		events("events without a time", once, each(func(e *gpu.Event) { e.Time = time.Time{} })),
		saying("the last code is not kept", once, gpu.KindGPU, gpu.FieldXID, gpu.Int(0)),
		events("an instance's event is the card's", instance, each(func(e *gpu.Event) { e.GPUInstance = gpu.NoInstance })),
		events("an instance's event is the card's too", instance, func(events []gpu.Event) []gpu.Event {
			for _, e := range slices.Clone(events) {
				e.GPUInstance = gpu.NoInstance
				events = append(events, e)
			}
			return events
		}),
		{"events only while fields are asked for", once, func(s *staged, m *gputest.Machine) {
			m.Read = func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
				r, err := s.n.Read(ctx, fields)
				if len(fields) == 0 {
					r.Events = nil
				}
				return r, err
			}
		}},
		{"a failed reading takes events along", "AFailedReadLosesNoEvent", func(s *staged, m *gputest.Machine) {
			m.Read = func(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
				r, err := s.n.Read(context.WithoutCancel(ctx), fields)
				if ctx.Err() != nil {
					return gpu.Reading{}, ctx.Err()
				}
				return r, err
			}
		}},
	}
}

// TestBrokenMachines fails, each fault in its story; it is run by TestTheContractCanBeBroken.
func TestBrokenMachines(t *testing.T) {
	if !*broken {
		t.Skip("it fails by intent, and is run by TestTheContractCanBeBroken")
	}
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			gputest.Run(t, func(t *testing.T, gpus gpu.Selection) gputest.Machine {
				if !strings.HasSuffix(t.Name(), "/"+f.story) {
					t.SkipNow()
				}
				s := newStaged(t, gpus)
				m := s.machine()
				f.make(s, &m)
				m.Interval, m.Patience, m.Timeout = time.Millisecond, 50*time.Millisecond, 500*time.Millisecond
				return m
			})
		})
	}
}

// A suite that was never seen red may check nothing: every fault is noticed by its story.
func TestTheContractCanBeBroken(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), self, "-test.run=^TestBrokenMachines$", "-test.v", "-broken-machines").CombinedOutput()
	if err == nil {
		t.Fatal("machines that break the contract pass it")
	}
	for _, f := range faults() {
		want := fmt.Sprintf("--- FAIL: TestBrokenMachines/%s/%s ", strings.ReplaceAll(f.name, " ", "_"), f.story)
		if !strings.Contains(string(out), want) {
			t.Errorf("%s passes %s", f.name, f.story)
		}
	}
	if t.Failed() || strings.Contains(string(out), "panic:") {
		t.Errorf("the run:\n%s", out)
	}
}
