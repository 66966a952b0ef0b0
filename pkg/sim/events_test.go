// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// What happens to cards, seen through the readings and the truth.
func TestEvents(t *testing.T) {
	n := parsed(t, `
loop: 10m
gpus:
  - {model: H100-80, count: 3}
  - {model: H100-80, mig: [3g.40gb, 1g.10gb]}
pods:
  - {name: whole, copies: 2}
  - {name: big, resource: nvidia.com/mig-3g.40gb}
  - {name: small, resource: nvidia.com/mig-1g.10gb}
  - {name: late, count: 2, start: 1m}
events:
  - {at: 1m, do: xid, gpu: 0, code: 43}
  - {at: 2m, do: ecc_dbe, gpu: 1, count: 2}
  - {at: 3m, do: gpu_lost, gpu: 0, for: 1m}
  - {at: 5m, do: hang, gpu: 2, for: 30s}
  - {at: 6m, do: repartition, gpu: 3, layout: [1g.10gb@0, 2g.20gb]}
  - {at: 7m, do: ecc_dbe, gpu: 0}
`)
	xid := func(at time.Duration, card int) float64 { return number(t, value(t, n, at, card, -1, gpu.FieldXID)) }
	for _, tc := range []struct {
		at   time.Duration
		card int
		want float64
	}{
		{59 * time.Second, 0, 0}, {time.Minute, 0, 43}, {5 * time.Minute, 0, 0}, {3 * time.Minute, 1, 48},
		{10*time.Minute + 59*time.Second, 1, 48}, {10 * time.Minute, 0, 48}, {15 * time.Minute, 0, 0},
	} {
		if got := xid(tc.at, tc.card); got != tc.want {
			t.Errorf("XID of GPU %d at %s is %v, want %v", tc.card, tc.at, got, tc.want)
		}
	}
	if got := number(t, value(t, n, 25*time.Minute, 1, -1, 313)); got != 6 {
		t.Errorf("%v double-bit errors in three rounds, want 6", got)
	}
	for _, tc := range []struct {
		at   time.Duration
		card int
		want float64
	}{
		// GPU 0 is reset by its coming back at 4m, GPU 1 never.
		{8 * time.Minute, 0, 1}, {11 * time.Minute, 0, 1}, {14 * time.Minute, 0, 0}, {18 * time.Minute, 0, 1},
		{time.Minute, 1, 0}, {8 * time.Minute, 1, 2}, {11 * time.Minute, 1, 2}, {25 * time.Minute, 1, 6},
	} {
		if got := number(t, value(t, n, tc.at, tc.card, -1, 311)); got != tc.want {
			t.Errorf("%v volatile errors of GPU %d at %s, want %v", got, tc.card, tc.at, tc.want)
		}
	}
	lost := n.ReadingAt(3*time.Minute+time.Second, defaultFields)
	if !lost.Devices[0].Lost || len(lost.Troubles) != 1 || lost.Troubles[0].Reason != gpu.ReasonLost || lost.Samples[0].Values[5].Reason() != gpu.ReasonLost {
		t.Errorf("a lost GPU reads %+v, %+v", lost.Devices[0], lost.Troubles)
	}
	stuck := n.ReadingAt(5*time.Minute, defaultFields)
	if len(stuck.Troubles) != 1 || stuck.Troubles[0].GPU != n.cards[2].uuid || stuck.Samples[2].Values[5].Reason() != gpu.ReasonTimeout || !stuck.Samples[1].Values[5].Present() {
		t.Errorf("a stuck driver reads %+v", stuck.Troubles)
	}
	for at, want := range map[time.Duration]string{
		0:                               "big small whole-0 whole-1",
		5 * time.Minute:                 "big small whole-0 whole-1",
		6 * time.Minute:                 "whole-0 whole-1",
		10*time.Minute - 1:              "whole-0 whole-1",
		10 * time.Minute:                "big small whole-0 whole-1",
		15 * time.Minute:                "big small whole-0 whole-1",
		36*time.Minute + 10*time.Second: "whole-0 whole-1",
	} {
		if got := podNames(n.Truth(at)); got != want {
			t.Errorf("at %s hold %s, want %s", at, got, want)
		}
	}
}

func podNames(held []sharing.Allocation) string {
	names := map[string]bool{}
	for _, a := range held {
		names[a.Holder.Pod] = true
	}
	var out []string
	for _, name := range []string{"big", "late", "small", "whole-0", "whole-1"} {
		if names[name] {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

// An instance that a repartition leaves where it was keeps its UUID and its pod.
func TestRepartitionKeepsWhatStays(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, mig: [1g.10gb@6, 3g.40gb@0]}]
pods: [{name: small, resource: nvidia.com/mig-1g.10gb}, {name: big, resource: nvidia.com/mig-3g.40gb}]
events: [{at: 1m, do: repartition, gpu: 0, layout: [1g.10gb@6, 2g.20gb@0, 2g.20gb@4]}]
`)
	if got := podNames(n.Truth(2 * time.Minute)); got != "small" {
		t.Errorf("hold after the repartition: %s, want small", got)
	}
	if util := number(t, value(t, n, 2*time.Minute, 0, 13, 1001)); util == 0 {
		t.Error("the instance that stayed is idle although its pod is there")
	}
	if util := number(t, value(t, n, 2*time.Minute, 0, 3, 1001)); util != 0 {
		t.Errorf("a new instance is at %v before anyone holds it", util)
	}
}

// The UUIDs of a known machine stand where the scenario says, an instance made again has
// its own again, and another profile in the same place is another device.
func TestGivenUUIDs(t *testing.T) {
	n := parsed(t, `
gpus:
  - {model: H100-80, uuid: GPU-known}
  - {model: H100-80}
  - model: H100-80
    uuid: GPU-mig
    mig: [1g.10gb@6, 2g.20gb, 2g.20gb@0]
    mig_uuids: [MIG-small, MIG-right, MIG-left]
pods:
  - {name: small, resource: nvidia.com/mig-1g.10gb}
  - {name: big, resource: nvidia.com/mig-2g.20gb, count: 2}
events:
  - {at: 1m, do: repartition, gpu: 2, layout: [1g.10gb@6, 1g.20gb@0]}
  - {at: 2m, do: repartition, gpu: 2, layout: [2g.20gb, 2g.20gb, 1g.10gb@6]}
`)
	uuids := func(at time.Duration) (out []string) {
		for _, d := range n.ReadingAt(at, nil).Devices {
			out = append(out, fmt.Sprintf("%s %s@%d", d.UUID, d.Profile.Name, d.Placement.Start))
		}
		return out
	}
	before := uuids(0)
	want := []string{
		"GPU-known @0", before[1], "GPU-mig @0", "MIG-left 2g.20gb@0", "MIG-right 2g.20gb@2", "MIG-small 1g.10gb@6",
	}
	if diff := cmp.Diff(want, before); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, uuids(2*time.Minute)); diff != "" {
		t.Errorf("after the way there and back (-want +got):\n%s", diff)
	}
	between := uuids(time.Minute)
	if strings.Contains(between[3], "MIG-left") || !slices.Contains(between, "MIG-small 1g.10gb@6") {
		t.Errorf("between: %q", between)
	}
	if got := podNames(n.Truth(90 * time.Second)); got != "small" {
		t.Errorf("after the first repartition hold %s, want small", got)
	}
	var ids []string
	for _, a := range n.Truth(0) {
		ids = append(ids, a.DeviceID)
	}
	slices.Sort(ids)
	if diff := cmp.Diff([]string{"MIG-left", "MIG-right", "MIG-small"}, ids); diff != "" {
		t.Errorf("held at first (-want +got):\n%s", diff)
	}
}

// Events of one kind that overlap count each for its own time.
func TestOverlappingDelays(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80}]
events:
  - {at: 1m, do: kubelet_slow, delay: 5s, for: 10m}
  - {at: 1m, do: slow, gpu: 0, delay: 5s, for: 10m}
  - {at: 1m, do: hang, gpu: 0, for: 10m}
  - {at: 2m, do: kubelet_slow, delay: 1s, for: 1m}
  - {at: 2m, do: slow, gpu: 0, delay: 7s, for: 1m}
  - {at: 2m, do: hang, gpu: 0, for: 1m}
`)
	for _, tc := range []struct {
		at            time.Duration
		kubelet, card time.Duration
		hangs         bool
	}{
		{0, 0, 0, false},
		{time.Minute, 5 * time.Second, 5 * time.Second, true},
		{2 * time.Minute, 5 * time.Second, 7 * time.Second, true},
		{3 * time.Minute, 5 * time.Second, 5 * time.Second, true},
		{11 * time.Minute, 0, 0, false},
	} {
		s := n.line.at(tc.at).state
		if s.kubeletDelay != tc.kubelet || s.cards[0].slow != tc.card {
			t.Errorf("at %s the kubelet is %s late and the card %s, want %s and %s", tc.at, s.kubeletDelay, s.cards[0].slow, tc.kubelet, tc.card)
		}
		if hangs := len(n.ReadingAt(tc.at, nil).Troubles) > 0; hangs != tc.hangs {
			t.Errorf("at %s the card hangs: %v", tc.at, hangs)
		}
	}
}

// Delays pass in real time whatever the speed, and a story's time does not.
func TestDelaysAtSpeed(t *testing.T) {
	s, err := Parse("test.yaml", []byte(`
gpus: [{model: H100-80}]
pods: [{name: a, start: 2m}]
events:
  - {at: 0s, do: slow, gpu: 0, delay: 3s, for: 1m}
  - {at: 1m, do: kubelet_slow, delay: 2s, for: 1m}
`))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		n, err := NewNode(s, Options{Start: story, Speed: 60})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		r, err := n.Read(t.Context(), nil)
		if took := time.Since(begun); err != nil || took != 3*time.Second || !r.Time.Equal(story.Add(3*time.Minute)) {
			t.Errorf("a slow card's reading took %s and is of %s (%v)", took, r.Time, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n, err := NewNode(s, Options{Start: story, Speed: 60})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a listing with less time than the kubelet takes: %v", err)
		}
		// The second that the first listing waited is a minute of the story: the kubelet
		// is no longer slow, and the pod is there.
		begun := time.Now()
		l, err := n.List(t.Context())
		if took := time.Since(begun); err != nil || took != 0 || len(l.Allocations) != 1 {
			t.Errorf("the next listing took %s and has %d allocations (%v)", took, len(l.Allocations), err)
		}
	})
}

// A pod that finds no free id waits until there is one.
func TestPodsWait(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, count: 2}]
pods:
  - {name: first, stop: 5m}
  - {name: wide, count: 2, start: 1m}
  - {name: narrow, start: 2m, stop: 8m}
`)
	for at, want := range map[time.Duration]int{time.Minute: 1, 2 * time.Minute: 2, 6 * time.Minute: 1, 8 * time.Minute: 2} {
		if got := len(n.Truth(at)); got != want {
			t.Errorf("at %s %d ids are held, want %d", at, got, want)
		}
	}
	last := n.Truth(9 * time.Minute)[0]
	if last.Holder.Pod != "wide" || !last.Since.Equal(story.Add(8*time.Minute)) {
		t.Errorf("at last holds %+v", last)
	}
}

// A slow card delays the reading, and is alone in trouble when time is up.
func TestSlowCard(t *testing.T) {
	yaml := "gpus: [{model: H100-80, count: 2}]\nevents: [{at: 0s, do: slow, gpu: 1, delay: 3s, for: 10m}]\n"
	synctest.Test(t, func(t *testing.T) {
		n := parsed(t, yaml)
		r, err := n.Read(t.Context(), defaultFields)
		if err != nil || n.Elapsed() != 3*time.Second || len(r.Troubles) != 0 || !r.Time.Equal(story.Add(3*time.Second)) {
			t.Errorf("without a deadline: %v after %s, %+v", err, n.Elapsed(), r.Troubles)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err = n.Read(ctx, defaultFields)
		if err != nil || ctx.Err() != nil || len(r.Troubles) != 1 || r.Troubles[0].GPU != n.cards[1].uuid || r.Troubles[0].Reason != gpu.ReasonTimeout {
			t.Errorf("with a deadline: %v, %+v", err, r.Troubles)
		}
		if !r.Samples[0].Values[5].Present() || r.Samples[1].Values[5].Reason() != gpu.ReasonTimeout {
			t.Error("the trouble of one card is not its own")
		}
		cancel()
		if _, err := n.Read(ctx, defaultFields); err == nil {
			t.Error("read after the context ended")
		}
	})
}
