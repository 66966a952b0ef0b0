// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestOneBadSampleCostsOneSample(t *testing.T) {
	m := newMachine()
	m.reading.Samples[1].Values = nil
	m.reading.Devices = append(m.reading.Devices, gpu.Device{UUID: "GPU-a", Index: 7}, gpu.Device{UUID: "MIG-x", Parent: "GPU-z"}, gpu.Device{})
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if len(s.Reading.Samples) != 1 || s.Reading.Samples[0].Entity.GPU != "GPU-a" {
			t.Errorf("samples %+v, want GPU-a's alone", s.Reading.Samples)
		}
		if len(s.Reading.Devices) != 2 {
			t.Errorf("devices %+v, want the two sound ones", s.Reading.Devices)
		}
		if got := s.Totals.Faults[FaultKey{SourceTelemetry, "malformed"}]; got != 4 {
			t.Errorf("%d malformed, want 4: %v", got, s.Faults)
		}
	})
	if len(m.reading.Samples) != 2 || len(m.reading.Devices) != 5 {
		t.Error("the source's own answer was written to")
	}
}

func TestPodUIDThatBecomesKnownIsNoNewPod(t *testing.T) {
	m := newMachine()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		first := mt.Latest().Listing.Allocations[0].Since
		for _, step := range []struct {
			uid  string
			same bool
		}{{"u-1", true}, {"", true}, {"u-1", true}, {"u-2", false}} {
			m.set(func(m *machine) {
				l := m.listing
				l.Allocations = slices.Clone(l.Allocations)
				l.Allocations[0].Holder.PodUID = step.uid
				m.listing = l
			})
			after(10 * time.Second)
			if got := mt.Latest().Listing.Allocations[0].Since; got.Equal(first) != step.same {
				t.Errorf("UID %q: since %v, first %v, want the same: %v", step.uid, got, first, step.same)
			}
		}
	})
}

func TestAllocationKeepsTheMomentItWasFirstSeen(t *testing.T) {
	m := newMachine()
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		first := mt.Latest().Listing.Allocations[0].Since
		m.set(func(m *machine) {
			l := m.listing
			l.Allocations = append([]sharing.Allocation{{Holder: sharing.Holder{Namespace: "ml", Pod: "late", Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: "GPU-b"}}, l.Allocations...)
			m.listing = l
		})
		after(10 * time.Second)
		a := mt.Latest().Listing.Allocations
		if !a[1].Since.Equal(first) || a[0].Since.Sub(first) != 10*time.Second {
			t.Errorf("since %v and %v, want %v and ten seconds later", a[1].Since, a[0].Since, first)
		}
	})
}

func TestConflictsAndStrangersAreCountedOnceEach(t *testing.T) {
	m := newMachine()
	h := func(pod, id string) sharing.Allocation {
		return sharing.Allocation{Holder: sharing.Holder{Namespace: "ml", Pod: pod, Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: id}
	}
	m.listing.Allocations = append(m.listing.Allocations, h("other", "GPU-a"), h("x", "what is this"), h("y", "GPU-nowhere"))
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		after(time.Minute)
		s := mt.Latest()
		if got := s.Totals.Conflicts["exclusive"]; got != 1 {
			t.Errorf("conflicts %v, want one", s.Totals.Conflicts)
		}
		var n uint64
		for _, v := range s.Totals.NotCharged {
			n += v
		}
		if n != 2 || len(s.Totals.NotCharged) != 2 {
			t.Errorf("not charged %v, want two of different reasons", s.Totals.NotCharged)
		}
	})
}

// One old listing, looked at in every tick, is still one observation of a smaller set.
func TestListingThatStandsInDoesNotAgeTheMemoryOfReplicas(t *testing.T) {
	m := newMachine()
	four := []sharing.Advertised{{DeviceID: "GPU-a::0"}, {DeviceID: "GPU-a::1"}, {DeviceID: "GPU-a::2"}, {DeviceID: "GPU-a::3"}}
	m.listing.Allocations[0].DeviceID = "GPU-a::0"
	m.listing.Advertised = four
	turning(t, m, func(c *Config) { c.ListingMaxAge = time.Hour }, func(t *testing.T, mt *Meter) {
		part := func(when string, want sharing.Fraction) {
			t.Helper()
			if s := mt.Latest().Division.Shares; len(s) != 1 || !s[0].Part.Equal(want) {
				t.Errorf("%s: shares %+v, want %s", when, s, want)
			}
		}
		m.set(func(m *machine) { m.listing.Advertised = four[:2] })
		after(10 * time.Second)
		m.set(func(m *machine) { m.listErr = errors.New("gone") })
		after(2 * sharing.SeatsHold)
		part("one listing with half the replicas, and a silent kubelet", sharing.NewFraction(1, 4))
		m.set(func(m *machine) { m.listErr, m.listing.Advertised = nil, four })
		after(10 * time.Second)
		m.set(func(m *machine) { m.listing.Advertised = four[:2] })
		after(sharing.SeatsHold)
		part("half the replicas, not yet for the hold", sharing.NewFraction(1, 4))
		after(10 * time.Second)
		part("half the replicas, for the hold", sharing.NewFraction(1, 2))
	})
}

// The meter and the plugin are one pod and start together: until the plugin is heard, the kubelet's record has the seats.
func TestReplicasOnRecordCountWhileThePluginIsAway(t *testing.T) {
	m := newMachine()
	m.listing.Allocations[0].DeviceID = "GPU-a::0"
	m.listing.Advertised = nil
	m.listing.Registered = []sharing.Advertised{{DeviceID: "GPU-a::0"}, {DeviceID: "GPU-a::1"}, {DeviceID: "GPU-a::2"}, {DeviceID: "GPU-a::3"}}
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		if s := mt.Latest().Division.Shares; len(s) != 1 || !s[0].Part.Equal(sharing.NewFraction(1, 4)) {
			t.Errorf("shares %+v, want a quarter", s)
		}
	})
}

// The first listing can come before the first inventory that knows its devices.
func TestListingThatStandsInIsReadAgainstANewInventory(t *testing.T) {
	m := newMachine()
	m.err = errors.New("driver is loading")
	m.listing.Allocations[0].DeviceID = "GPU-a::0"
	m.listing.Advertised = []sharing.Advertised{{DeviceID: "GPU-a::0"}, {DeviceID: "GPU-a::1"}}
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.err, m.listErr = nil, errors.New("gone") })
		after(10 * time.Second)
		if s := mt.Latest().Division.Shares; len(s) != 1 || s[0].Of != 2 {
			t.Errorf("shares %+v, want one of two seats", s)
		}
	})
}

func TestOutageDoesNotChangeWhoWinsAConflict(t *testing.T) {
	m := newMachine()
	turning(t, m, func(c *Config) { c.ListingMaxAge = time.Minute }, func(t *testing.T, mt *Meter) {
		first := mt.Latest().Listing.Allocations[0]
		m.set(func(m *machine) {
			later := first
			later.Holder.Pod, later.Since = "zz-later", time.Time{}
			m.listing.Allocations = append(m.listing.Allocations[:1:1], later)
		})
		after(10 * time.Second)
		winner := func(when string) {
			t.Helper()
			if s := mt.Latest().Division.Shares; len(s) != 1 || s[0].Holder.Pod != "zz-later" {
				t.Errorf("%s: shares %+v, want the later pod's", when, s)
			}
		}
		winner("before the outage")
		m.set(func(m *machine) { m.listErr = errors.New("gone") })
		after(10 * time.Minute)
		if s := mt.Latest(); s.Observed || len(s.Listing.Allocations) != 0 || !s.Listing.Time.IsZero() {
			t.Errorf("observed %v, listing %+v: too old to be shown", s.Observed, s.Listing)
		}
		m.set(func(m *machine) { m.listErr = nil })
		after(10 * time.Second)
		winner("after the outage")
		if got := mt.Latest().Listing.Allocations[0].Since; !got.Equal(first.Since) {
			t.Errorf("first seen %v, want %v", got, first.Since)
		}
	})
}

func TestEveryExpectedFaultIsCountedFromZero(t *testing.T) {
	mt, err := New(Config{Telemetry: newMachine(), Allocations: wordy{newMachine()}, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	counts := mt.Latest().Totals.Faults
	for _, key := range []FaultKey{
		{SourceTelemetry, "lost"}, {SourceTelemetry, "timeout"}, {SourceTelemetry, "events_dropped"}, {SourceAllocations, "error"}, {SourceAllocations, "socket_missing"}, {SourceAttribution, "policy"},
	} {
		if n, there := counts[key]; !there || n != 0 {
			t.Errorf("%v: %d, there: %v", key, n, there)
		}
	}
}

// wordy is a source that says under which words its errors are counted.
type wordy struct{ *machine }

func (wordy) Kinds() []string { return []string{"socket_missing"} }

func TestAValueThatCannotBeIsAbsentAndTheSourcesAnswerIsNotWrittenTo(t *testing.T) {
	values := []gpu.Value{gpu.Int(1<<32 - 1), gpu.Int(40)}
	good := []gpu.Value{gpu.Int(7), gpu.Int(41)}
	in := []gpu.Sample{{Values: good}, {Values: values}}
	out := plausible(in, []gpu.FieldID{203, 150})
	if out[1].Values[0].Reason() != gpu.ReasonImplausible || out[1].Values[1] != gpu.Int(40) || &out[0].Values[0] != &good[0] {
		t.Errorf("%+v; want the one value out and the rest as it was", out)
	}
	if values[0] != gpu.Int(1<<32-1) || &in[1].Values[0] != &values[0] {
		t.Errorf("the source's answer was written to: %+v", in)
	}
	if same := plausible(in[:1], []gpu.FieldID{203, 150}); &same[0] != &in[0] {
		t.Error("samples without fault were copied")
	}
}
