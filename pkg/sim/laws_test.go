// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// instant draws a time below a limit, all alike: rapid's own numbers crowd at zero.
func instant(t *rapid.T, label string, limit time.Duration) time.Duration {
	return time.Duration(mix(1, rapid.Uint64().Draw(t, label)) % uint64(limit))
}

// Two nodes with one seed answer alike at one instant, whatever they were asked before.
func TestReadingsDependOnNothingButTime(t *testing.T) {
	for _, name := range Shipped() {
		t.Run(name, func(t *testing.T) {
			asked, fresh := newNode(t, name, Options{}), newNode(t, name, Options{})
			rapid.Check(t, func(t *rapid.T) {
				for range rapid.IntRange(0, 3).Draw(t, "distractions") {
					asked.ReadingAt(instant(t, "other", 50*time.Hour), defaultFields)
				}
				at := instant(t, "at", 50*time.Hour)
				want, got := fresh.ReadingAt(at, defaultFields), asked.ReadingAt(at, defaultFields)
				if !reflect.DeepEqual(want, got) {
					t.Fatalf("at %s: %s", at, cmp.Diff(want, got, cmp.AllowUnexported(gpu.Value{})))
				}
				if want, got := fresh.Truth(at), asked.Truth(at); !slices.Equal(want, got) {
					t.Fatalf("at %s: %s", at, cmp.Diff(want, got))
				}
			})
		})
	}
}

func TestSeedsDiffer(t *testing.T) {
	seed := uint64(99)
	a, b := newNode(t, "default", Options{}), newNode(t, "default", Options{Seed: &seed})
	if a.cards[0].uuid == b.cards[0].uuid {
		t.Error("the same UUID under two seeds")
	}
	if cmp.Equal(a.Truth(5*time.Minute), b.Truth(5*time.Minute)) {
		t.Error("the same allocations under two seeds")
	}
}

// The ledger of energy is the integral of power, over events, pods and rounds.
func TestEnergyIsTheIntegralOfPower(t *testing.T) {
	for _, name := range []string{"default", "bad-day", "bad-health", "a100x8-mig-mixed"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name, Options{})
			const from, to, step = 16 * time.Minute, 23 * time.Minute, 20 * time.Millisecond
			sums := make([]float64, len(n.cards))
			for at := from; at < to; at += step {
				m := n.line.at(at + step/2)
				for i := range n.cards {
					sums[i] += n.look(m, m, i).power * step.Seconds()
				}
			}
			for i := range n.cards {
				got := (number(t, value(t, n, to, i, -1, fieldEnergy)) - number(t, value(t, n, from, i, -1, fieldEnergy))) / 1000
				if math.Abs(got-sums[i]) > 0.002*sums[i] {
					t.Errorf("GPU %d: energy rose by %.1f J, power adds up to %.1f J", i, got, sums[i])
				}
			}
		})
	}
}

// Counters never fall, at any cadence, beyond the end of a round too.
func TestCountersNeverFall(t *testing.T) {
	counters := []gpu.FieldID{fieldEnergy, 1091, 1092, 313, 393, 202}
	for _, name := range Shipped() {
		n := newNode(t, name, Options{})
		rapid.Check(t, func(t *rapid.T) {
			at := instant(t, "at", 3*time.Hour)
			later := at + instant(t, "later", time.Hour)
			before, after := n.ReadingAt(at, counters), n.ReadingAt(later, counters)
			for i := range n.cards {
				a, b := sampleOf(before, n.cards[i].uuid), sampleOf(after, n.cards[i].uuid)
				if a.Values == nil || b.Values == nil {
					// The card is not listed.
					continue
				}
				for j := range counters {
					x, okX := a.Values[j].AsInt()
					y, okY := b.Values[j].AsInt()
					if okX && okY && y < x {
						t.Fatalf("%s GPU %d: field %d fell from %d at %s to %d at %s", name, i, counters[j], x, at, y, later)
					}
				}
			}
		})
	}
}

func sampleOf(r gpu.Reading, card gpu.UUID) gpu.Sample {
	for _, s := range r.Samples {
		if s.Entity.GPU == card && s.Entity.Kind == gpu.KindGPU {
			return s
		}
	}
	return gpu.Sample{}
}

// No id is held twice at any instant, and a pod keeps its ids while it lives.
func TestDeviceIDsAreConserved(t *testing.T) {
	for _, name := range Shipped() {
		n := newNode(t, name, Options{})
		rapid.Check(t, func(t *rapid.T) {
			at := instant(t, "at", 40*time.Hour)
			now := holdings(t, n, at)
			next := holdings(t, n, at+instant(t, "step", 2*time.Minute))
			for pod, ids := range now {
				if later, still := next[pod]; still && later != ids {
					t.Fatalf("%s: pod %s held %s at %s and %s later", name, pod, ids, at, later)
				}
			}
		})
	}
}

func holdings(t *rapid.T, n *Node, at time.Duration) map[string]string {
	held, pods := map[string]string{}, map[string]string{}
	for _, a := range n.Truth(at) {
		if other, twice := held[a.DeviceID]; twice {
			t.Fatalf("at %s both %s and %s hold %s", at, other, a.Holder.Pod, a.DeviceID)
		}
		held[a.DeviceID] = a.Holder.Pod
		if a.Holder.PodUID == "" || a.Since.After(n.start.Add(at)) {
			t.Fatalf("at %s: odd allocation %+v", at, a)
		}
		pods[a.Holder.PodUID] += a.DeviceID + " "
	}
	return pods
}

// Every round of a story is like the first: what is not a counter repeats.
func TestRoundsAreAlike(t *testing.T) {
	n := newNode(t, "default", Options{})
	gauges := []gpu.FieldID{100, fieldPower, 203, 252, 1001, 1004, 1009}
	rapid.Check(t, func(t *rapid.T) {
		at := instant(t, "at", 20*time.Minute)
		round := time.Duration(rapid.IntRange(1, 1000).Draw(t, "round"))
		first, later := n.ReadingAt(at, gauges), n.ReadingAt(at+round*20*time.Minute, gauges)
		for i := range first.Samples {
			if !slices.Equal(first.Samples[i].Values, later.Samples[i].Values) {
				t.Fatalf("sample %d at %s: %v, %d rounds later %v", i, at, first.Samples[i].Values, round, later.Samples[i].Values)
			}
		}
		ids := func(held []sharing.Allocation) (out []string) {
			for _, a := range held {
				out = append(out, a.DeviceID)
			}
			return out
		}
		if !slices.Equal(ids(n.Truth(at)), ids(n.Truth(at+round*20*time.Minute))) {
			t.Fatalf("other ids are held at %s in round %d", at, round)
		}
	})
}

// A pod that runs through is the same pod in every round; one that comes and goes is not.
func TestPodsAcrossRounds(t *testing.T) {
	n := newNode(t, "default", Options{})
	uids := func(at time.Duration) map[string]string {
		out := map[string]string{}
		for _, a := range n.Truth(at) {
			out[a.Holder.PodUID] = a.Holder.Pod
		}
		return out
	}
	first, second := uids(5*time.Minute), uids(25*time.Minute)
	for uid, pod := range first {
		_, same := second[uid]
		lasting := strings.HasPrefix(pod, "chat") || strings.HasPrefix(pod, "embed") || pod == "llm-pretrain" || pod == "rerank"
		if same != lasting {
			t.Errorf("pod %s is the same a round later: %v, want %v", pod, same, lasting)
		}
	}
}
