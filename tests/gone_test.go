// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// TestACardThatIsGoneStaysOnThePageWhileItIsHeld plays a card that leaves the node under two pods.
func TestACardThatIsGoneStaysOnThePageWhileItIsHeld(t *testing.T) {
	story := filepath.Join(t.TempDir(), "story.yaml")
	if err := os.WriteFile(story, []byte(`description: a card goes and comes back
node: n1
gpus: [{model: H100-80, count: 3}]
sharing: [{resource: nvidia.com/gpu, replicas: 4, rename: true, gpus: 0-1}]
pods:
  - {name: slice, namespace: ml, resource: nvidia.com/gpu.shared, copies: 8}
events:
  - {at: 1m, do: gpu_gone, gpu: 0, for: 10m}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	playing(t, story, 10*time.Second, exporter.Config{}, func(t *testing.T, s station) {
		var before map[string]float64
		for _, step := range []struct {
			name      string
			after     time.Duration
			unhealthy float64
		}{
			{"all is well", 30 * time.Second, 0},
			{"it is gone", time.Minute, 1},
			{"it is gone still", 8 * time.Minute, 1},
			{"it is back", 5 * time.Minute, 0},
		} {
			pass(step.after)
			page := parsePage(t, s.page())
			if err := addsUp(page, 3); err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
			held, unhealthy := map[string]float64{}, 0.0
			for _, family := range []string{"gpumeter_allocation_share", "gpumeter_uncharged_share"} {
				for _, m := range page[family].GetMetric() {
					held[labelsOf(m)["pod"]] += valueOf(m)
				}
			}
			for _, m := range page["gpumeter_unallocated_share"].GetMetric() {
				if labelsOf(m)["reason"] == "unhealthy" {
					unhealthy += valueOf(m)
				}
			}
			if before == nil {
				before = held
			}
			if len(held) != 8 || !maps.Equal(held, before) || unhealthy != step.unhealthy {
				t.Errorf("%s: %v held, %v unhealthy", step.name, held, unhealthy)
			}
		}
	})
}

// oneHolder lists one container that holds one device.
type oneHolder string

func (h oneHolder) List(context.Context) (sharing.Listing, error) {
	return sharing.Listing{Allocations: []sharing.Allocation{{
		Holder: sharing.Holder{Namespace: "ml", Pod: "train", Container: "main"}, Resource: "nvidia.com/gpu", DeviceID: string(h),
	}}}, nil
}

// TestACardThatDCGMDetachesKeepsItsHolder: an engine takes a card off its list, and gives it back.
func TestACardThatDCGMDetachesKeepsItsHolder(t *testing.T) {
	pretend, err := dcgmsim.New(t.TempDir(), "gpus 2 h100\n")
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	source, err := dcgm.Open(dcgm.Config{Library: pretend.Path, Interval: meter.MinInterval})
	if err != nil {
		t.Fatal(errors.Join(err, pretend.Err()))
	}
	defer source.Close()
	rules, err := health.NewRules(health.Config{HoldDown: meter.MinInterval})
	if err != nil {
		t.Fatal(err)
	}
	first, err := source.Read(t.Context(), nil)
	if err != nil || len(first.Devices) != 2 {
		t.Fatalf("%d devices, %v", len(first.Devices), err)
	}
	card := first.Devices[1].UUID
	m, err := meter.New(meter.Config{Telemetry: source, Allocations: oneHolder(card), Interval: meter.MinInterval, Health: rules})
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, listed int, ok func(*meter.Snapshot) bool) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for ; ; time.Sleep(meter.MinInterval) {
			m.Tick(t.Context())
			s := m.Latest()
			if err := s.Division.Check(s.Divided()); err != nil || len(s.Divided()) != 2 {
				t.Fatalf("%s: %d cards are divided, %v", what, len(s.Divided()), err)
			}
			if len(s.Reading.Devices) == listed && ok(s) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("never: %s; %d listed, %+v", what, len(s.Reading.Devices), s.Division)
			}
		}
	}
	charged := func(s *meter.Snapshot) bool {
		return len(s.Division.Shares) == 1 && s.Division.Shares[0].Card == card && s.Division.Shares[0].Part.IsOne()
	}
	until("it is held", 2, charged)
	if err := pretend.Do("detach 1"); err != nil {
		t.Fatal(err)
	}
	until("it is gone, and its holder is named", 1, func(s *meter.Snapshot) bool {
		for _, u := range s.Division.Unallocated {
			if u.Card == card {
				return u.Cause == sharing.CauseUnhealthy && u.Holder.Pod == "train" && u.Part.IsOne()
			}
		}
		return false
	})
	if err := pretend.Do("attach 1"); err != nil {
		t.Fatal(err)
	}
	until("it is back", 2, charged)
}
