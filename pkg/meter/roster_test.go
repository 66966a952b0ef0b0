// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// shelf is an InventoryStore with moods.
type shelf struct {
	mu    sync.Mutex
	err   error
	slow  time.Duration
	saved []sharing.Inventory
}

func (s *shelf) set(f func(*shelf)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *shelf) Save(v sharing.Inventory) error {
	s.mu.Lock()
	err, slow := s.err, s.slow
	s.mu.Unlock()
	time.Sleep(slow)
	if err == nil {
		s.set(func(s *shelf) { s.saved = append(s.saved, v) })
	}
	return err
}

func (s *shelf) last() (v sharing.Inventory, saves int) {
	s.set(func(s *shelf) {
		if saves = len(s.saved); saves > 0 {
			v = s.saved[saves-1]
		}
	})
	return v, saves
}

// sliced is a machine whose GPU-a has four replicas, of which two pods have one each.
func sliced() *machine {
	m := newMachine()
	m.listing = sharing.Listing{}
	for i := range 4 {
		id := fmt.Sprintf("GPU-a::%d", i)
		m.listing.Advertised = append(m.listing.Advertised, sharing.Advertised{Resource: "nvidia.com/gpu.shared", DeviceID: id})
		if i < 2 {
			m.listing.Allocations = append(m.listing.Allocations, sharing.Allocation{
				Holder: sharing.Holder{Namespace: "ml", Pod: fmt.Sprint("pod-", i), Container: "main"}, Resource: "nvidia.com/gpu.shared", DeviceID: id,
			})
		}
	}
	return m
}

// lists has the machine list these devices and advertise none of GPU-a's replicas.
func lists(m *machine, devices ...gpu.Device) {
	list(m, devices...)
	after(10 * time.Second)
}

func list(m *machine, devices ...gpu.Device) {
	m.set(func(m *machine) {
		m.reading.Devices = devices
		m.reading.Samples = nil
		for _, d := range devices {
			m.reading.Samples = append(m.reading.Samples, gpu.Sample{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID}, Values: []gpu.Value{gpu.Int(40)}})
		}
		m.listing.Advertised = nil
	})
	after(10 * time.Second)
}

const charged = "pod-0 holds 1/4, pod-1 holds 1/4, unrequested 1/2"

// booked is what is booked of a card, one line each.
func booked(s *Snapshot, card gpu.UUID) string {
	var lines []string
	for _, h := range s.Division.Shares {
		if h.Card == card {
			lines = append(lines, fmt.Sprintf("%s holds %s", h.Holder.Pod, h.Part))
		}
	}
	for _, u := range s.Division.Unallocated {
		if u.Card == card {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", u.Cause, u.Part, u.Holder.Pod)))
		}
	}
	return strings.Join(lines, ", ")
}

const brokenShares = "unhealthy 1/2, unhealthy 1/4 pod-0, unhealthy 1/4 pod-1"

func TestACardThatIsHeldAndGoneStaysInTheDivision(t *testing.T) {
	m := sliced()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		both := mt.Latest().Reading.Devices
		list(m, both[1])
		s := mt.Latest()
		if f, ok := faultOf(s, SourceTelemetry); booked(s, "GPU-a") != charged || statusOf(t, s, "GPU-a") != health.Unknown || !ok || f.Kind != "not_found" {
			t.Errorf("missing for a moment: %s, faults %v", booked(s, "GPU-a"), s.Faults)
		}
		after(10 * time.Second)
		s = mt.Latest()
		if got := booked(s, "GPU-a"); got != brokenShares {
			t.Errorf("booked: %s", got)
		}
		if len(s.Reading.Devices) != 1 || len(s.Gone) != 1 || !s.Gone[0].Lost || len(s.Divided()) != 2 {
			t.Errorf("listed %d, gone %+v", len(s.Reading.Devices), s.Gone)
		}
		if err := s.Division.Check(s.Divided()); err != nil {
			t.Error(err)
		}
		if f, ok := faultOf(s, SourceTelemetry); !ok || f.Subject != "GPU-a" || f.Kind != "lost" || !strings.Contains(f.Text, "not listed any more") {
			t.Errorf("nothing says why: %v", s.Faults)
		}
		if got := booked(s, "GPU-b"); got != "free 1" {
			t.Errorf("the other card: %s", got)
		}
		// A kubelet that is silent takes nobody away.
		m.set(func(m *machine) { m.listErr = errors.New("away") })
		after(10 * time.Minute)
		if got := booked(mt.Latest(), "GPU-a"); got != "unobserved 1" {
			t.Errorf("while the kubelet is silent: %s", got)
		}
		m.set(func(m *machine) { m.listErr, m.listing.Allocations = nil, slices.Clone(m.listing.Allocations[1:]) })
		after(10 * time.Second)
		if got := booked(mt.Latest(), "GPU-a"); got != "unhealthy 3/4, unhealthy 1/4 pod-1" {
			t.Errorf("one pod left: %s", got)
		}
		m.set(func(m *machine) {
			m.listing.Allocations = slices.Clone(m.listing.Allocations)
			m.listing.Allocations[0].Terminal = true
		})
		after(10 * time.Second)
		if s := mt.Latest(); booked(s, "GPU-a") != "" || len(s.Gone) != 0 || len(s.Faults) != 0 || statusOf(t, s, "GPU-a") != health.Unhealthy {
			t.Errorf("nobody is left: %s, gone %v, faults %v", booked(s, "GPU-a"), s.Gone, s.Faults)
		}
	})
}

func TestAGoneCardIsBackAsItWas(t *testing.T) {
	m := sliced()
	rules := someRules(t)
	advertised := m.listing.Advertised
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		both := mt.Latest().Reading.Devices
		lists(m, both[1])
		lists(m, both...)
		if s := mt.Latest(); booked(s, "GPU-a") != brokenShares || len(s.Gone) != 0 {
			t.Errorf("back for a moment: %s, gone %v", booked(s, "GPU-a"), s.Gone)
		}
		m.set(func(m *machine) { m.listing.Advertised = advertised })
		after(2 * time.Minute)
		if got := booked(mt.Latest(), "GPU-a"); got != charged {
			t.Errorf("back: %s", got)
		}
	})
}

// A driver that lists no card at all is ill itself, and nobody's card is known to be lost.
func TestANodeThatListsNoCardKeepsItsDivision(t *testing.T) {
	m := sliced()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		lists(m)
		after(time.Hour)
		if s := mt.Latest(); booked(s, "GPU-a") != charged || booked(s, "GPU-b") != "" || len(s.Reading.Devices) != 0 {
			t.Errorf("%s; %s", booked(s, "GPU-a"), booked(s, "GPU-b"))
		}
	})
}

func TestAnOperatorEndsWhatIsBookedOfAGoneCard(t *testing.T) {
	m := sliced()
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		both := mt.Latest().Reading.Devices
		// The card in its place has its number and its address.
		other := both[0]
		other.UUID = "GPU-new"
		lists(m, other, both[1])
		if s := mt.Latest(); booked(s, "GPU-a") != brokenShares || booked(s, "GPU-new") != "free 1" {
			t.Errorf("exchanged: %s; %s", booked(s, "GPU-a"), booked(s, "GPU-new"))
		}
		m.set(func(m *machine) {
			m.listing.Allocations = append(slices.Clone(m.listing.Allocations), sharing.Allocation{
				Holder: sharing.Holder{Namespace: "ml", Pod: "by-number", Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: "nvidia0",
			})
		})
		after(10 * time.Second)
		if got := booked(mt.Latest(), "GPU-new"); got != "by-number holds 1" {
			t.Errorf("a number is the new card's: %s", got)
		}
		if _, err := mt.Clear(t.Context(), health.Clearing{Device: "GPU-a", Reason: "exchanged", By: "me"}); err != nil {
			t.Fatal(err)
		}
		if s := mt.Latest(); booked(s, "GPU-a") != "" || len(s.Division.Unmatched) != 2 {
			t.Errorf("cleared: %s, %v", booked(s, "GPU-a"), s.Division.Unmatched)
		}
	})
}

func TestAMIGDeviceOfAGoneCardKeepsItsPart(t *testing.T) {
	m := newMachine()
	rules := someRules(t)
	mig := gpu.Device{
		UUID: "MIG-a", Parent: "GPU-a", GPUInstance: 7, ComputeInstance: 0,
		Profile: gpu.Profile{Name: "1g.10gb", Slices: gpu.Slices{Compute: 1, Memory: 1}, ComputeInstanceSlices: 1},
	}
	m.reading.Devices[0].MIGEnabled, m.reading.Devices[0].Capacity = true, gpu.Slices{Compute: 7, Memory: 8, SMs: 132}
	m.reading.Devices = slices.Insert(m.reading.Devices, 1, mig)
	m.listing.Allocations[0].DeviceID = "MIG-a"
	turning(t, m, func(c *Config) { c.Health = rules }, func(t *testing.T, mt *Meter) {
		before := mt.Latest().Weights["MIG-a"]
		lists(m, mt.Latest().Reading.Devices[2])
		s := mt.Latest()
		if got := booked(s, "GPU-a"); got != "unhealthy 97/112, unhealthy 15/112 train" || s.Weights["MIG-a"] != before {
			t.Errorf("booked %s, weight %v, before %v", got, s.Weights["MIG-a"], before)
		}
	})
}

// A restart in each moment of a card that is withdrawn, goes away and comes back gives the division that
// a meter without one has.
func TestARestartGivesTheSameDivision(t *testing.T) {
	type step struct {
		name string
		do   func(*machine, []gpu.Device)
	}
	steps := []step{
		{"withdrawn", func(m *machine, both []gpu.Device) { lists(m, both...) }},
		{"gone", func(m *machine, both []gpu.Device) { lists(m, both[1]) }},
		{"gone for long", func(*machine, []gpu.Device) { after(time.Hour) }},
		{"back", func(m *machine, both []gpu.Device) { lists(m, both...) }},
	}
	rules := someRules(t)
	for restart := range steps {
		t.Run(steps[restart].name, func(t *testing.T) {
			m, d, s := sliced(), &disk{}, &shelf{}
			both := m.reading.Devices
			keep := func(c *Config) {
				c.Health, c.Conditions, c.Inventory = rules, d, s
				c.HealthState, _ = d.last()
				c.Known, _ = s.last()
			}
			turning(t, m, keep, func(t *testing.T, mt *Meter) {
				happen(m, xid("GPU-a", 79))
				for _, step := range steps[:restart] {
					step.do(m, both)
				}
			})
			turning(t, m, keep, func(t *testing.T, mt *Meter) {
				for _, step := range steps[restart:] {
					step.do(m, both)
					if got := booked(mt.Latest(), "GPU-a"); got != brokenShares {
						t.Errorf("%s: %s, want %s", step.name, got, brokenShares)
					}
				}
			})
		})
	}
}

func TestTheInventoryIsOnDiskBeforeItIsPublished(t *testing.T) {
	m, s := sliced(), &shelf{}
	turning(t, m, func(c *Config) { c.Inventory = s }, func(t *testing.T, mt *Meter) {
		saved, n := s.last()
		if n != 1 || saved.Seats.Of("GPU-a") != 4 || len(saved.Devices) != 2 {
			t.Errorf("after the first tick %d saves: %+v", n, saved)
		}
		after(time.Hour)
		if _, now := s.last(); now != n {
			t.Errorf("%d saves of nothing new", now-n)
		}
		m.set(func(m *machine) {
			m.listing.Advertised = append(slices.Clone(m.listing.Advertised), sharing.Advertised{Resource: "nvidia.com/gpu.shared", DeviceID: "GPU-a::4"})
		})
		after(10 * time.Second)
		if saved, now := s.last(); now != n+1 || saved.Seats.Of("GPU-a") != 5 {
			t.Errorf("%d saves, %d replicas on disk", now-n, saved.Seats.Of("GPU-a"))
		}
	})
}

func TestADiskThatCannotKeepTheInventoryIsAFaultAndStopsNothing(t *testing.T) {
	m, s := sliced(), &shelf{err: errors.New("no space left on device")}
	turning(t, m, func(c *Config) { c.Inventory = s }, func(t *testing.T, mt *Meter) {
		if n, there := mt.Latest().Totals.Faults[FaultKey{SourceInventory, "timeout"}]; !there || n != 0 {
			t.Errorf("the fault is not counted from zero on: %d, %v", n, there)
		}
		after(10 * time.Second)
		if f, ok := faultOf(mt.Latest(), SourceInventory); !ok || f.Kind != "error" || !strings.Contains(f.Text, "no space left") {
			t.Errorf("faults %v", mt.Latest().Faults)
		}
		s.set(func(s *shelf) { s.err, s.slow = nil, 33*time.Second })
		after(9 * time.Second)
		before := mt.Latest()
		after(time.Second + savePatience)
		first := mt.Latest()
		if first.Seq != before.Seq+1 || first.Took < savePatience {
			t.Errorf("seq %d after %d, took %v", first.Seq, before.Seq, first.Took)
		}
		after(10*time.Second - savePatience)
		if f, ok := faultOf(mt.Latest(), SourceInventory); !ok || f.Kind != "timeout" || booked(mt.Latest(), "GPU-a") == "" || mt.Latest().Took >= savePatience {
			t.Errorf("it hangs, took %v: faults %v", mt.Latest().Took, mt.Latest().Faults)
		}
		after(30 * time.Second)
		if _, n := s.last(); n == 0 || len(mt.Latest().Faults) != 0 {
			t.Errorf("%d saves, faults %v", n, mt.Latest().Faults)
		}
	})
}
