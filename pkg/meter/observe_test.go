// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// lineOf is the first line of a card.
func lineOf(o ledger.Observation, card gpu.UUID) ledger.Line {
	for _, l := range o.Lines {
		if l.Card == card {
			return l
		}
	}
	return ledger.Line{}
}

// cutMachine is a node of a whole GPU and one in MIG mode: an instance of its own, and one that two share.
func cutMachine() *machine {
	m := newMachine()
	mig := func(uuid gpu.UUID, gi, ci, slices int) gpu.Device {
		return gpu.Device{
			UUID: uuid, Parent: "GPU-b", Index: 1, GPUInstance: gi, ComputeInstance: ci,
			Profile: gpu.Profile{Name: "3g.40gb", Slices: gpu.Slices{Compute: 3, Memory: 4}, ComputeInstanceSlices: slices},
		}
	}
	m.reading.Devices[1].MIGEnabled, m.reading.Devices[1].Capacity = true, gpu.Slices{Compute: 7, Memory: 8}
	m.reading.Devices = append(m.reading.Devices, mig("MIG-1", 1, 0, 3), mig("MIG-2", 2, 0, 1), mig("MIG-3", 2, 1, 1))
	m.reading.Fields = []gpu.FieldID{fieldEnergy, fieldGPUUtil, fieldFBTotal, fieldEngine}
	scope := gpu.Absent(gpu.ReasonScope)
	on := func(gi int, frame int64, engine gpu.Value) gpu.Sample {
		return gpu.Sample{Entity: gpu.Entity{Kind: gpu.KindGPUInstance, GPU: "GPU-b", ID: gi}, Values: []gpu.Value{scope, scope, gpu.Int(frame), engine}}
	}
	m.reading.Samples = []gpu.Sample{
		{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-a"}, Values: []gpu.Value{gpu.Int(1 << 40), gpu.Int(97), gpu.Int(81559), gpu.Float(0.5)}},
		{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-b"}, Values: []gpu.Value{gpu.Float(12.9), gpu.Int(3), scope, gpu.Float(0.25)}},
		on(1, 40448, gpu.Float(1.0000001)), on(2, 40192, gpu.Float(0.125)),
	}
	m.listing.Allocations = append(m.listing.Allocations, sharing.Allocation{
		Holder: sharing.Holder{Namespace: "ml", Pod: "serve", Container: "main"}, Resource: "nvidia.com/mig-3g.40gb", DeviceID: "MIG-1",
	})
	return m
}

func TestAnObservationHasWhatWasMeasuredOfEachDeviceAlone(t *testing.T) {
	m, n := cutMachine(), newNotebook()
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		o := n.last()
		want := []ledger.Card{{UUID: "GPU-a", Index: 0, Memory: 81559}, {UUID: "GPU-b", Index: 1, Memory: 2 * 40448}}
		if d := cmp.Diff(want, o.Cards); d != "" {
			t.Errorf("cards: %s", d)
		}
		if d := cmp.Diff(map[gpu.UUID]int64{"GPU-a": 1 << 40, "GPU-b": 12}, o.Energy); d != "" {
			t.Errorf("energy: %s", d)
		}
		if d := cmp.Diff(map[gpu.UUID]int64{"GPU-a": 500000, "MIG-1": 1000000}, o.Busy); d != "" || o.Basis != ledger.BasisEngine {
			t.Errorf("busy by %s: %s", o.Basis, d)
		}
		m.set(func(m *machine) {
			for i := range m.reading.Samples {
				m.reading.Samples[i].Values[3] = gpu.Absent(gpu.ReasonNotPermitted)
			}
		})
		after(10 * time.Second)
		o = n.last()
		if d := cmp.Diff(map[gpu.UUID]int64{"GPU-a": 970000}, o.Busy); d != "" || o.Basis != ledger.BasisUtil {
			t.Errorf("without the engine's activity, busy by %s: %s", o.Basis, d)
		}
	})
}

func TestMemoryIsDividedByMemorySlices(t *testing.T) {
	m, n := cutMachine(), newNotebook()
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		for _, l := range n.last().Lines {
			if l.Device != "MIG-1" {
				continue
			}
			if !l.Part.Equal(sharing.NewFraction(13, 28)) || !l.Memory.Equal(sharing.NewFraction(1, 2)) {
				t.Errorf("3g.40gb is %s of the card and %s of its memory, want 13/28 and 1/2", l.Part, l.Memory)
			}
			return
		}
		t.Errorf("no line of MIG-1 in %+v", n.last().Lines)
	})
}

func TestADriverThatIsSilentKeepsTheCardsAndMeasuresNothing(t *testing.T) {
	m, n := cutMachine(), newNotebook()
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.err = errors.New("the driver says nothing") })
		for range 6 {
			after(10 * time.Second)
			o := n.last()
			if len(o.Cards) != 2 || o.Cards[0].Memory != 81559 || lineOf(o, "GPU-a").Holder.Pod != "train" {
				t.Fatalf("cards %+v, lines %+v", o.Cards, o.Lines)
			}
			if len(o.Energy)+len(o.Busy) > 0 {
				t.Fatalf("measured of nothing: %v %v", o.Energy, o.Busy)
			}
		}
	})
}

func TestWhatABookMeasuresByIsAskedForAndNoMore(t *testing.T) {
	m := newMachine()
	turning(t, m, keeping(newNotebook()), func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) {
			if d := cmp.Diff([]gpu.FieldID{150, 156, 203, 250}, m.fields); d != "" {
				t.Errorf("fields: %s", d)
			}
		})
	})
}

func TestChangesOfHealthAndConflictsAreFactsOnce(t *testing.T) {
	m, n := newMachine(), newNotebook()
	rules := someRules(t)
	twice := m.listing.Allocations[0]
	twice.Holder.Pod = "other"
	turning(t, m, func(c *Config) { c.Book, c.Health = n, rules }, func(t *testing.T, mt *Meter) {
		if facts := n.last().Facts; len(facts) != 0 {
			t.Errorf("a node that is well has facts: %+v", facts)
		}
		m.set(func(m *machine) { m.listing.Allocations = append(m.listing.Allocations[:1:1], twice) })
		happen(m, xid("GPU-b", 79))
		facts := n.last().Facts
		if len(facts) != 2 || facts[0].What != ledger.FactHealth || facts[0].Device != "GPU-b" || facts[0].Detail["status"] != health.Unhealthy.String() || facts[0].Detail["was"] != health.Healthy.String() {
			t.Fatalf("facts %+v", facts)
		}
		if f := facts[1]; f.What != ledger.FactConflict || f.Device != "GPU-a" || f.Detail["kind"] != sharing.ConflictExclusive || f.Detail["loser"] == "" || f.Detail["winner"] == "" || f.Text == "" {
			t.Errorf("conflict %+v", f)
		}
		after(10 * time.Second)
		if facts := n.last().Facts; len(facts) != 0 {
			t.Errorf("the same again: %+v", facts)
		}
	})
}

func TestAVerdictFromBeforeTheRestartIsNoNews(t *testing.T) {
	m, n, d := newMachine(), newNotebook(), &disk{}
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.Conditions = rules, d }, func(t *testing.T, mt *Meter) { happen(m, xid("GPU-b", 79)) })
	saved, _ := d.last()
	turning(t, m, func(c *Config) { c.Book, c.Health, c.HealthState = n, rules, saved }, func(t *testing.T, mt *Meter) {
		if facts := n.last().Facts; len(facts) != 0 {
			t.Errorf("%+v", facts)
		}
	})
}

// knowing is a machine that knows more of the pods.
type knowing struct{ *machine }

func (knowing) Pods() []ledger.Pod {
	return []ledger.Pod{{Namespace: "ml", Name: "idle", UID: "1"}, {Namespace: "ml", Name: "train", UID: "2", Workload: "trainer"}, {Namespace: "x", Name: "train", UID: "3"}}
}

func TestThePodsOfAnObservationAreThoseThatHoldSomething(t *testing.T) {
	m, n := newMachine(), newNotebook()
	labels := map[string]string{"pool": "a"}
	change := func(c *Config) {
		c.Book, c.Allocations = n, knowing{m}
		c.NodeLabels = func() map[string]string { return labels }
		c.Clock = func() ledger.Instant { return ledger.Instant{BootID: "b", Boot: 7, Wall: 8} }
	}
	turning(t, m, change, func(t *testing.T, mt *Meter) {
		o := n.last()
		if len(o.Pods) != 1 || o.Pods[0].UID != "2" || o.NodeLabels["pool"] != "a" || o.At != (ledger.Instant{BootID: "b", Boot: 7, Wall: 8}) {
			t.Errorf("%+v %v %+v", o.Pods, o.NodeLabels, o.At)
		}
	})
}

func TestWithoutAClockTheTimeIsTheProcess(t *testing.T) {
	n := newNotebook()
	turning(t, newMachine(), keeping(n), func(t *testing.T, mt *Meter) {
		first := n.last().At
		after(20 * time.Second)
		if last := n.last().At; last.Boot-first.Boot != 20000 || last.Wall-first.Wall != 20000 || last.BootID != first.BootID {
			t.Errorf("from %+v to %+v", first, last)
		}
	})
}
