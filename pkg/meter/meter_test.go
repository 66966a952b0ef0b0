// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// machine is a node of two GPUs whose moods the tests set.
type machine struct {
	mu sync.Mutex
	// slow delays the next reads, deaf makes them ignore their context.
	slow     time.Duration
	deaf     bool
	err      error
	reading  gpu.Reading
	listErr  error
	listSlow time.Duration
	listing  sharing.Listing
	calls    int
	fields   []gpu.FieldID
}

func newMachine() *machine {
	return &machine{
		reading: gpu.Reading{
			Source: "fake",
			Fields: []gpu.FieldID{150},
			Devices: []gpu.Device{
				{UUID: "GPU-a", Index: 0, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance},
				{UUID: "GPU-b", Index: 1, Minor: 1, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance},
			},
			Samples: []gpu.Sample{
				{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-a"}, Values: []gpu.Value{gpu.Int(40)}},
				{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-b"}, Values: []gpu.Value{gpu.Int(41)}},
			},
		},
		listing: sharing.Listing{
			Allocations: []sharing.Allocation{{Holder: sharing.Holder{Namespace: "ml", Pod: "train", Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: "GPU-a"}},
			Advertised:  []sharing.Advertised{{Resource: "nvidia.com/gpu", DeviceID: "GPU-a"}, {Resource: "nvidia.com/gpu", DeviceID: "GPU-b"}},
			Pods:        1,
		},
	}
}

func (m *machine) set(f func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

func pause(ctx context.Context, d time.Duration, deaf bool) error {
	if deaf {
		time.Sleep(d)
		return nil
	}
	if d <= 0 {
		// No timer: two that are due at once in one bubble run on two threads with one context
		// of the race detector, which can crash in there (Go 1.26).
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (m *machine) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	m.mu.Lock()
	slow, deaf, r, err := m.slow, m.deaf, m.reading, m.err
	m.calls++
	m.fields = fields
	m.mu.Unlock()
	if e := pause(ctx, slow, deaf); e != nil {
		return gpu.Reading{}, fmt.Errorf("read GPUs: %w", e)
	}
	r.Time = time.Now()
	r.Samples = slices.Clone(r.Samples)
	for i := range r.Samples {
		r.Samples[i].Time = r.Time
	}
	return r, err
}

func (m *machine) List(ctx context.Context) (sharing.Listing, error) {
	m.mu.Lock()
	slow, l, err := m.listSlow, m.listing, m.listErr
	m.mu.Unlock()
	if e := pause(ctx, slow, false); e != nil {
		return sharing.Listing{}, fmt.Errorf("list pods: %w", e)
	}
	l.Time = time.Now()
	return l, err
}

// turning runs a Meter over m in a bubble of virtual time and lets story read it.
func turning(t *testing.T, m *machine, change func(*Config), story func(t *testing.T, mt *Meter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Telemetry: m, Allocations: m, Fields: []gpu.FieldID{150}, Interval: 10 * time.Second, Policy: blend(t)}
		if change != nil {
			change(&cfg)
		}
		mt, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- mt.Run(ctx) }()
		synctest.Wait()
		story(t, mt)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v, want nil", err)
		}
	})
}

func blend(t *testing.T) sharing.Policy {
	t.Helper()
	p, err := sharing.ParsePolicy("blend")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// after lets virtual time pass, and everything due in it happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func faultOf(s *Snapshot, source string) (Fault, bool) {
	for _, f := range s.Faults {
		if f.Source == source {
			return f, true
		}
	}
	return Fault{}, false
}

func TestLatestIsNeverNil(t *testing.T) {
	mt, err := New(Config{Telemetry: newMachine(), Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if s := mt.Latest(); s == nil || s.Seq != 0 || len(s.Reading.Devices) != 0 {
		t.Errorf("before the first tick: %+v, want an empty snapshot with Seq 0", s)
	}
}

func TestIntervalBelowTheFloorIsRefused(t *testing.T) {
	_, err := New(Config{Telemetry: newMachine(), Interval: 30 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "100ms") {
		t.Errorf("interval of 30 ms: error %v, want one that names the floor", err)
	}
}

func TestTickPublishesWhoHoldsWhat(t *testing.T) {
	turning(t, newMachine(), nil, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if s.Seq != 1 || !s.Observed || len(s.Faults) != 0 {
			t.Fatalf("first snapshot: seq %d observed %v faults %v", s.Seq, s.Observed, s.Faults)
		}
		if len(s.Division.Shares) != 1 || s.Division.Shares[0].Card != "GPU-a" || !s.Division.Shares[0].Part.IsOne() {
			t.Errorf("shares %+v, want all of GPU-a", s.Division.Shares)
		}
		if !s.Weights["GPU-a"].IsOne() || len(s.Weights) != 2 {
			t.Errorf("weights %v, want one for each whole GPU", s.Weights)
		}
		if u := s.Division.Unallocated; len(u) != 1 || u[0].Card != "GPU-b" || u[0].Cause != sharing.CauseFree {
			t.Errorf("unallocated %+v, want GPU-b free", u)
		}
		after(20 * time.Second)
		if got := mt.Latest(); got.Seq != 3 || got.Totals.Ticks != 3 || got.Totals.LateTicks != 0 {
			t.Errorf("after two more intervals: seq %d, ticks %d, late %d", got.Seq, got.Totals.Ticks, got.Totals.LateTicks)
		}
	})
}

func TestPublishedSnapshotIsNeverModified(t *testing.T) {
	m := newMachine()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		before := fmt.Sprintf("%+v", *s)
		m.set(func(m *machine) { m.err = errors.New("driver gone"); m.listErr = errors.New("kubelet gone") })
		after(10 * time.Minute)
		if now := fmt.Sprintf("%+v", *s); now != before {
			t.Errorf("a published snapshot changed\nwas %s\nis  %s", before, now)
		}
	})
}

func TestWatchTellsEveryReaderOfEveryChange(t *testing.T) {
	turning(t, newMachine(), nil, func(t *testing.T, mt *Meter) {
		var wg sync.WaitGroup
		seen := make([][]uint64, 2)
		for r := range seen {
			wg.Go(func() {
				for range 5 {
					s, stale := mt.Watch()
					seen[r] = append(seen[r], s.Seq)
					<-stale
				}
			})
		}
		wg.Wait()
		for r := range seen {
			if want := []uint64{1, 2, 3, 4, 5}; !reflect.DeepEqual(seen[r], want) {
				t.Errorf("reader %d saw %v, want %v", r, seen[r], want)
			}
		}
	})
}

func TestKubeletFailureCostsNothingUntilTheListingIsTooOld(t *testing.T) {
	m := newMachine()
	turning(t, m, func(c *Config) { c.ListingMaxAge = time.Minute }, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.listErr = kindly{errors.New("no such socket")} })
		after(30 * time.Second)
		s := mt.Latest()
		if f, ok := faultOf(s, SourceAllocations); !ok || f.Kind != "socket_missing" {
			t.Fatalf("faults %v, want the kubelet's with its own kind", s.Faults)
		}
		if !s.Observed || len(s.Division.Shares) != 1 {
			t.Errorf("after 30 s of a silent kubelet: observed %v, shares %v, want the last good listing", s.Observed, s.Division.Shares)
		}
		if len(s.Reading.Samples) != 2 {
			t.Errorf("a silent kubelet cost %d samples", 2-len(s.Reading.Samples))
		}
		if got := s.Sources[1].Age; got != 30*time.Second {
			t.Errorf("age of the listing %v, want 30s", got)
		}
		after(40 * time.Second)
		s = mt.Latest()
		if s.Observed || len(s.Division.Shares) != 0 {
			t.Errorf("after 70 s: observed %v, shares %v, want nobody charged", s.Observed, s.Division.Shares)
		}
		for _, u := range s.Division.Unallocated {
			if u.Cause != sharing.CauseUnobserved {
				t.Errorf("%s is %s, want unobserved", u.Card, u.Cause)
			}
		}
		if got := s.Totals.Faults[FaultKey{SourceAllocations, "socket_missing"}]; got != 7 {
			t.Errorf("%d faults counted, want 7", got)
		}
		m.set(func(m *machine) { m.listErr = nil })
		after(10 * time.Second)
		if s = mt.Latest(); !s.Observed || len(s.Division.Shares) != 1 || len(s.Faults) != 0 {
			t.Errorf("after the kubelet is back: observed %v, shares %v, faults %v", s.Observed, s.Division.Shares, s.Faults)
		}
	})
}

type kindly struct{ error }

func (kindly) Kind() string { return "socket_missing" }

func TestTelemetryFailureKeepsTheInventoryAndDropsStaleValues(t *testing.T) {
	m := newMachine()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.err = errors.New("driver reset") })
		after(20 * time.Second)
		if s := mt.Latest(); len(s.Reading.Samples) != 2 {
			t.Errorf("values 20 s old, limit 25 s: %d samples, want 2", len(s.Reading.Samples))
		}
		after(10 * time.Second)
		s := mt.Latest()
		if len(s.Reading.Samples) != 0 {
			t.Errorf("values 30 s old, limit 25 s: %d samples, want none", len(s.Reading.Samples))
		}
		if len(s.Reading.Devices) != 2 || len(s.Division.Shares) != 1 {
			t.Errorf("devices %d shares %d: the cards are still there and still held", len(s.Reading.Devices), len(s.Division.Shares))
		}
	})
}

func TestLostGPUIsAFaultWithItsName(t *testing.T) {
	m := newMachine()
	m.reading.Devices[1].Lost = true
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if f, ok := faultOf(s, SourceTelemetry); !ok || f.Kind != "lost" || f.Subject != "GPU-b" {
			t.Errorf("faults %v, want GPU-b lost", s.Faults)
		}
		for _, u := range s.Division.Unallocated {
			if u.Card == "GPU-b" && u.Cause != sharing.CauseUnhealthy {
				t.Errorf("a lost GPU is %s, want unhealthy", u.Cause)
			}
		}
	})
}

func TestWantTakesEffectWithTheNextTick(t *testing.T) {
	m := newMachine()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		mt.Want([]gpu.FieldID{155, 203})
		after(10 * time.Second)
		m.set(func(m *machine) {
			if !reflect.DeepEqual(m.fields, []gpu.FieldID{155, 203}) {
				t.Errorf("asked for %v, want 155 and 203", m.fields)
			}
		})
	})
}

func TestWithoutAllocationsNobodyIsFree(t *testing.T) {
	m := newMachine()
	turning(t, m, func(c *Config) { c.Allocations = nil }, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if s.Observed || len(s.Sources) != 1 || len(s.Division.Unallocated) != 2 || s.Division.Unallocated[0].Cause != sharing.CauseUnobserved {
			t.Errorf("observed %v sources %d unallocated %+v", s.Observed, len(s.Sources), s.Division.Unallocated)
		}
	})
}

func TestTableOfWeightsThatOverfillsACardIsAFault(t *testing.T) {
	policy, err := sharing.NewTablePolicy(map[string]sharing.Fraction{"1g.10gb": sharing.NewFraction(1, 6)})
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine()
	m.reading.Devices[0].Capacity = gpu.Slices{Compute: 7, Memory: 8, SMs: 132}
	m.reading.Devices[0].MIGProfiles = []gpu.MIGProfile{{
		Name: "1g.10gb", Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 16}, Max: 7, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Size: 1,
	}}
	for i, name := range []gpu.UUID{"MIG-0", "MIG-1", "MIG-2", "MIG-3", "MIG-4", "MIG-5", "MIG-6"} {
		m.reading.Devices = append(m.reading.Devices, gpu.Device{
			UUID: name, Parent: "GPU-a", GPUInstance: i + 7, Placement: gpu.Placement{Start: i, Size: 1},
			Profile: gpu.Profile{Name: "1g.10gb", Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 16}, ComputeInstanceSlices: 1, ComputeInstanceSMs: 16},
		})
	}
	turning(t, m, func(c *Config) { c.Policy = policy }, func(t *testing.T, mt *Meter) {
		if w := mt.Latest().Weights; len(w) != 2 || !w["GPU-b"].IsOne() {
			t.Errorf("weights %v, want those of the cards alone", w)
		}
		f, ok := faultOf(mt.Latest(), SourceAttribution)
		if !ok || f.Kind != "policy" || f.Subject != "GPU-a" || !strings.Contains(f.Text, "1g.10gb") {
			t.Errorf("faults %+v, want the layout that seven sixths of a card come from", mt.Latest().Faults)
		}
	})
}

func TestOverrunningTickIsCountedLateAndTheGridStands(t *testing.T) {
	m := newMachine()
	turning(t, m, func(c *Config) { c.Interval, c.Deadline = 10*time.Second, 27*time.Second }, func(t *testing.T, mt *Meter) {
		start := mt.Latest().Time
		m.set(func(m *machine) { m.slow, m.deaf = 20*time.Second, true })
		after(31 * time.Second)
		m.set(func(m *machine) { m.slow = 0 })
		after(60 * time.Second)
		s := mt.Latest()
		if off := s.Time.Sub(start) % (10 * time.Second); off != 0 {
			t.Errorf("the tick is %v off the grid", off)
		}
		if s.Seq >= 10 {
			t.Errorf("seq %d: missed moments must be skipped, not made up", s.Seq)
		}
		if s.Totals.LateTicks == 0 || s.Late != 0 {
			t.Errorf("%d late ticks, the last one %v late; want those after an overrun, and no more of them", s.Totals.LateTicks, s.Late)
		}
	})
}
