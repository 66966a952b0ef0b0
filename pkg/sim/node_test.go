// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

// defaultFields are the 26 fields of dcgm-exporter's default counters.
var defaultFields = []gpu.FieldID{
	1, 100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251, 252, 253,
	393, 394, 395, 449, 526, 1001, 1004, 1005, 1009, 1010,
}

var story = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

func newNode(t testing.TB, name string, o Options) *Node {
	t.Helper()
	s, err := LoadShipped(name)
	if err != nil {
		t.Fatal(err)
	}
	if o.Start.IsZero() {
		o.Start = story
	}
	n, err := NewNode(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func parsed(t testing.TB, yaml string) *Node {
	t.Helper()
	s, err := Parse("test.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNode(s, Options{Start: story})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// value is one field of one entity at a time; entity -1 is the card, else the GPU instance.
func value(t testing.TB, n *Node, at time.Duration, card, instance int, id gpu.FieldID) gpu.Value {
	t.Helper()
	for _, s := range n.ReadingAt(at, []gpu.FieldID{id}).Samples {
		if s.Entity.GPU != n.cards[card].uuid {
			continue
		}
		if instance < 0 && s.Entity.Kind == gpu.KindGPU || s.Entity.Kind == gpu.KindGPUInstance && s.Entity.ID == instance {
			return s.Values[0]
		}
	}
	t.Fatalf("no sample of card %d instance %d", card, instance)
	return gpu.Value{}
}

func number(t testing.TB, v gpu.Value) float64 {
	t.Helper()
	f, ok := v.AsFloat()
	if !ok {
		t.Fatalf("no number but %v", v.Reason())
	}
	return f
}

// Each shipped scenario runs through half an hour; what a reading must be, it is at
// every tick.
func TestShippedScenariosRun(t *testing.T) {
	for _, name := range Shipped() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, name, Options{})
				for n.Elapsed() < 30*time.Minute {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					r, err := n.Read(ctx, append([]gpu.FieldID{250}, defaultFields...))
					if err != nil {
						t.Fatal(err)
					}
					checkReading(t, n, r)
					l, err := n.List(ctx)
					down := n.line.at(n.Elapsed()).state.kubeletDown
					if (err != nil) != down {
						t.Fatalf("at %s: kubelet down %v, list says %v", n.Elapsed(), down, err)
					}
					if err == nil && len(l.Allocations) != len(n.Truth(n.Elapsed())) {
						t.Fatalf("at %s: %d allocations listed, %d true", n.Elapsed(), len(l.Allocations), len(n.Truth(n.Elapsed())))
					}
					cancel()
					time.Sleep(7 * time.Second)
				}
			})
		})
	}
}

// checkReading holds a reading of field 250 and the default fields against the contract.
func checkReading(t *testing.T, n *Node, r gpu.Reading) {
	t.Helper()
	column := map[gpu.FieldID]int{}
	for i, id := range r.Fields {
		column[id] = i
	}
	number := func(s gpu.Sample, id gpu.FieldID) float64 {
		v, ok := s.Values[column[id]].AsFloat()
		if !ok {
			return math.NaN()
		}
		return v
	}
	if len(r.Samples) != len(r.Devices) {
		t.Fatalf("%d samples of %d devices", len(r.Samples), len(r.Devices))
	}
	for i, s := range r.Samples {
		d := r.Devices[i]
		if s.Entity.GPU != d.Card() || len(s.Values) != len(r.Fields) || d.IsMIG() != (s.Entity.Kind == gpu.KindGPUInstance) {
			t.Fatalf("sample %+v does not belong to device %+v", s.Entity, d)
		}
		if d.IsMIG() && s.Entity.ID != d.GPUInstance {
			t.Fatalf("sample of instance %d beside device of instance %d", s.Entity.ID, d.GPUInstance)
		}
		for j, v := range s.Values {
			field, _ := gpu.FieldByID(r.Fields[j])
			if _, isInt := v.AsInt(); v.Present() && isInt != (field.Type == gpu.FieldInt) {
				t.Fatalf("%s is %v, its type is %d", field.Name, v, field.Type)
			}
		}
		if total := number(s, 250); !math.IsNaN(total) {
			if sum := number(s, 251) + number(s, 252) + number(s, 253); sum != total {
				t.Fatalf("%s: free, used and reserved are %v of %v MiB", d.UUID, sum, total)
			}
			if number(s, 251) < 0 {
				t.Fatalf("%s: %v MiB free", d.UUID, number(s, 251))
			}
		}
		for _, id := range []gpu.FieldID{1001, 1004, 1005} {
			if v := number(s, id); v < 0 || v > 1 {
				t.Fatalf("%s: ratio %d is %v", d.UUID, id, v)
			}
		}
		if v := number(s, fieldPower); v < 0 || v > n.cards[d.Index].model.powerLimit {
			t.Fatalf("%s: %v W", d.UUID, v)
		}
		if v := number(s, 150); v < 20 || v > 90 {
			t.Fatalf("%s: %v C", d.UUID, v)
		}
	}
}

// A card that nobody holds is idle; one that is held works.
func TestUtilisationFollowsTheHolders(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80}]
pods: [{name: a, start: 1m, stop: 3m, load: steady}]
`)
	for _, tc := range []struct {
		at                          time.Duration
		util, clock, used, tempLess float64
	}{
		{30 * time.Second, 0, 345, 0, 35},
		{2 * time.Minute, 100, 1920, 56705, 80},
		{5 * time.Minute, 0, 345, 0, 35},
	} {
		got := []float64{
			number(t, value(t, n, tc.at, 0, -1, 203)), number(t, value(t, n, tc.at, 0, -1, 100)), number(t, value(t, n, tc.at, 0, -1, 252)),
		}
		if want := []float64{tc.util, tc.clock, tc.used}; !cmp.Equal(got, want) {
			t.Errorf("at %s: utilisation, clock, memory are %v, want %v", tc.at, got, want)
		}
		if temp := number(t, value(t, n, tc.at, 0, -1, 150)); temp > tc.tempLess {
			t.Errorf("at %s: %v C", tc.at, temp)
		}
	}
	hot, cooling := number(t, value(t, n, 3*time.Minute, 0, -1, 150)), number(t, value(t, n, 3*time.Minute+10*time.Second, 0, -1, 150))
	if cold := number(t, value(t, n, 4*time.Minute, 0, -1, 150)); hot <= cooling || cooling <= cold {
		t.Errorf("temperature follows power slowly: %v, %v, %v", hot, cooling, cold)
	}
}

// On a card in MIG mode each field stands where it belongs.
func TestMIGScopes(t *testing.T) {
	n := newNode(t, "a100x8-mig-mixed", Options{})
	for _, tc := range []struct {
		what           string
		card, instance int
		field          gpu.FieldID
		want           gpu.Reason
	}{
		{"power of a card", 1, -1, fieldPower, gpu.ReasonNone},
		{"power of an instance", 1, 2, fieldPower, gpu.ReasonScope},
		{"XID of an instance", 1, 2, gpu.FieldXID, gpu.ReasonScope},
		{"engine of an instance", 1, 2, 1001, gpu.ReasonNone},
		{"engine of a card with instances", 1, -1, 1001, gpu.ReasonScope},
		{"engine of a card in MIG mode without instances", 6, -1, 1001, gpu.ReasonNone},
		{"engine of a card without MIG", 7, -1, 1001, gpu.ReasonNone},
		{"PCIe traffic of an instance", 1, 2, 1009, gpu.ReasonScope},
		{"PCIe traffic of a card with instances", 1, -1, 1009, gpu.ReasonNone},
		{"memory of an instance", 1, 2, 252, gpu.ReasonNone},
		{"utilisation of a card with instances", 1, -1, 203, gpu.ReasonNotSupported},
		{"utilisation of an empty card in MIG mode", 6, -1, 203, gpu.ReasonNotSupported},
		{"utilisation of a card without MIG", 7, -1, 203, gpu.ReasonNone},
		{"driver version", 1, 2, 1, gpu.ReasonNone},
		{"an unknown number", 7, -1, 64999, gpu.ReasonNotSupported},
	} {
		if got := value(t, n, time.Minute, tc.card, tc.instance, tc.field).Reason(); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.what, got, tc.want)
		}
	}
	devices := n.ReadingAt(0, nil).Devices
	if devices[0].Minor != 2 || devices[0].PCIBusID != "00000000:18:00.0" {
		t.Errorf("first card is %+v", devices[0])
	}
}

// A field that the scenario dictates follows its function.
func TestOverrides(t *testing.T) {
	n := parsed(t, `
gpus:
  - {model: H100-80, fields: {DCGM_FI_DEV_GPU_TEMP: {ramp: {from: 40, to: 90, over: 100s}}, DCGM_FI_DEV_FB_USED: blank}}
  - {model: H100-80}
fields:
  DCGM_FI_DEV_GPU_TEMP: 33
  DCGM_FI_DEV_POWER_USAGE: {saw: {from: 100, to: 300, period: 10s}}
  DCGM_FI_DEV_PCIE_REPLAY_COUNTER: {counter: {start: 5, rate: 0.5}}
  DCGM_FI_DRIVER_VERSION: {text: "999.1"}
  DCGM_FI_DEV_ENC_UTIL: not_supported
`)
	at := 50 * time.Second
	if got := number(t, value(t, n, at, 0, -1, 150)); got != 65 {
		t.Errorf("ramp is %v, want 65", got)
	}
	if got := number(t, value(t, n, at, 1, -1, 150)); got != 33 {
		t.Errorf("constant is %v, want 33", got)
	}
	if got := value(t, n, at, 0, -1, 252).Reason(); got != gpu.ReasonBlank {
		t.Errorf("blank is %v", got)
	}
	if got := value(t, n, at, 0, -1, 206).Reason(); got != gpu.ReasonNotSupported {
		t.Errorf("not_supported is %v", got)
	}
	if got, _ := value(t, n, at, 0, -1, 202).AsInt(); got != 30 {
		t.Errorf("counter is %v, want 30", got)
	}
	if got, _ := value(t, n, at, 0, -1, 1).AsText(); got != "999.1" {
		t.Errorf("text is %q", got)
	}
	rise := number(t, value(t, n, at, 0, -1, fieldEnergy)) - number(t, value(t, n, 0, 0, -1, fieldEnergy))
	if rise != 50*200*1000 {
		t.Errorf("energy rose by %v mJ, a mean of 200 W makes 10000000", rise)
	}
}

// Processes are the holders' on each device, ordered, with unique ids per pod.
func TestProcesses(t *testing.T) {
	n := newNode(t, "h100x8-mig-timeslice", Options{})
	r := n.ReadingAt(time.Minute, nil)
	if got, want := len(r.Processes), 208; got > want || got < 200 {
		t.Errorf("%d processes for %d held ids", got, want)
	}
	seen := map[string]bool{}
	for i, p := range r.Processes {
		key := fmt.Sprint(p.PID, p.GPU, p.GPUInstance)
		if seen[key] || p.GPUInstance == gpu.NoInstance || p.SMUtil.Present() || !p.MemoryBytes.Present() {
			t.Fatalf("odd process %+v", p)
		}
		seen[key] = true
		if i > 0 && p.GPU == r.Processes[i-1].GPU && p.PID < r.Processes[i-1].PID {
			t.Fatal("processes out of order")
		}
	}
}

// No two pods of an instant have one process id.
func TestProcessIDsAreUnique(t *testing.T) {
	n := newNode(t, "default", Options{})
	rapid.Check(t, func(t *rapid.T) {
		m := n.line.at(instant(t, "at", 100*time.Hour))
		pods := map[uint32]string{}
		for _, p := range m.state.active {
			pid, name := p.pid(n.line.placements, m.round), p.name(n.seed, m.round)
			if other, twice := pods[pid]; twice {
				t.Fatalf("%s and %s have pid %d", name, other, pid)
			}
			pods[pid] = name
		}
	})
}

// Pods of one kind do not move in step.
func TestLoadsHavePhasesOfTheirOwn(t *testing.T) {
	n := newNode(t, "h100x8-exclusive", Options{})
	dips := map[int]bool{}
	for at := time.Duration(0); at < 97*time.Second; at += time.Second {
		for i := range n.cards {
			if number(t, value(t, n, at, i, -1, 203)) < 60 {
				if at == 0 || number(t, value(t, n, at-time.Second, i, -1, 203)) >= 60 {
					dips[int(at.Seconds())] = true
				}
			}
		}
	}
	if len(dips) < 4 {
		t.Errorf("the dips of eight trainings begin at %d different seconds", len(dips))
	}
}

func TestNewNodeRefuses(t *testing.T) {
	s, err := LoadShipped("default")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewNode(nil, Options{}); err == nil {
		t.Error("a node without a scenario")
	}
	for _, speed := range []float64{-1, math.NaN(), math.Inf(1)} {
		if _, err := NewNode(s, Options{Speed: speed}); err == nil {
			t.Errorf("a node at speed %v", speed)
		}
	}
}

// Simulated time passes at the given speed.
func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "default", Options{Speed: 60})
		time.Sleep(10 * time.Second)
		if got := n.Now(); !got.Equal(story.Add(10 * time.Minute)) {
			t.Errorf("after 10 s at speed 60 it is %s", got)
		}
	})
	// Three hours at a million are more than a Duration can count.
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "default", Options{Speed: 1e6})
		time.Sleep(time.Hour)
		before := n.Elapsed()
		time.Sleep(2 * time.Hour)
		if after := n.Elapsed(); after < before || n.wall(after) <= 0 {
			t.Errorf("the clock went from %s back to %s", before, after)
		}
	})
}
