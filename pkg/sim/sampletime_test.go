// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const silences = `
loop: 10m
gpus:
  - {model: H100-80}
  - {model: H100-80, mig: [3g.40gb, 1g.10gb]}
  - {model: H100-80, lost: true}
  - {model: H100-80, lost: true}
  - {model: H100-80, lost: true}
pods: [{name: batch, repeat: {every: 1m, lifetime: 20s..40s}}]
events:
  - {at: 2m, do: hang, gpu: 1, for: 2m}
  - {at: 3m, do: hang, gpu: 1, for: 2m}
  - {at: 5m, do: gpu_lost, gpu: 0}
  - {at: 6m, do: gpu_back, gpu: 4}
  - {at: 7m, do: gpu_back, gpu: 2}
  - {at: 7m, do: gpu_lost, gpu: 4}
  - {at: 8m, do: hang, gpu: 0, for: 1m}
`

func TestASilentCardHasTheTimeOfItsLastValues(t *testing.T) {
	n := parsed(t, silences)
	const never = time.Duration(-1)
	for _, tc := range []struct {
		at    time.Duration
		heard []time.Duration
	}{
		{0, []time.Duration{0, 0, never, never, never}},
		{2*time.Minute + 30*time.Second, []time.Duration{150 * time.Second, 2 * time.Minute, never, never, never}},
		{4*time.Minute + 59*time.Second, []time.Duration{299 * time.Second, 2 * time.Minute, never, never, never}},
		{5 * time.Minute, []time.Duration{5 * time.Minute, 5 * time.Minute, never, never, never}},
		{9*time.Minute + 30*time.Second, []time.Duration{5 * time.Minute, 570 * time.Second, 570 * time.Second, never, 7 * time.Minute}},
		// At the end of a round a card that was lost in it is back, and one that was found is lost.
		{11 * time.Minute, []time.Duration{11 * time.Minute, 11 * time.Minute, 10 * time.Minute, never, 7 * time.Minute}},
		{33 * time.Minute, []time.Duration{33 * time.Minute, 32 * time.Minute, 30 * time.Minute, never, 27 * time.Minute}},
	} {
		for _, sample := range n.ReadingAt(tc.at, defaultFields).Samples {
			for i, heard := range tc.heard {
				want := n.start.Add(heard)
				if heard == never {
					want = time.Time{}
				}
				if sample.Entity.GPU == n.cards[i].uuid && !sample.Time.Equal(want) {
					t.Errorf("at %s %+v has values of %s, want %s", tc.at, sample.Entity, sample.Time.Sub(n.start), heard)
				}
			}
		}
	}
}

// The time of a sample never goes back, and is the reading's if and only if the card answers.
func TestSampleTimesOnlyGoOn(t *testing.T) {
	for _, yaml := range []string{silences, troubled} {
		n := parsed(t, yaml)
		rapid.Check(t, func(t *rapid.T) {
			a := instant(t, "at", time.Hour)
			b := a + instant(t, "later", 20*time.Minute)
			before := map[gpu.Entity]time.Time{}
			for _, s := range n.ReadingAt(a, nil).Samples {
				before[s.Entity] = s.Time
			}
			r := n.ReadingAt(b, nil)
			for _, s := range r.Samples {
				ill := false
				for _, trouble := range r.Troubles {
					ill = ill || trouble.GPU == s.Entity.GPU
				}
				if s.Time.Before(before[s.Entity]) || s.Time.After(r.Time) || !ill && !s.Time.Equal(r.Time) {
					t.Fatalf("%+v: %s at %s, %s at %s, ill %t", s.Entity, before[s.Entity], a, s.Time, b, ill)
				}
			}
		})
	}
}

func TestACardThatIsLateHasTheTimeOfItsLastReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := parsed(t, "gpus: [{model: H100-80, count: 2}]\nevents: [{at: 1m, do: slow, gpu: 1, delay: 3s, for: 10m}]\n")
		read := func(patience time.Duration) gpu.Reading {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r, err := n.Read(ctx, defaultFields)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		time.Sleep(time.Minute)
		if r := read(time.Second); !r.Samples[1].Time.IsZero() || !r.Samples[0].Time.Equal(r.Time) {
			t.Errorf("before its first answer: %s and %s at %s", r.Samples[0].Time, r.Samples[1].Time, r.Time)
		}
		last := read(time.Minute).Time
		for range 3 {
			time.Sleep(time.Second)
			if r := read(time.Second); !r.Samples[1].Time.Equal(last) || !r.Samples[0].Time.Equal(r.Time) {
				t.Errorf("late: %s and %s at %s, want %s", r.Samples[0].Time, r.Samples[1].Time, r.Time, last)
			}
		}
		if r := read(time.Minute); !r.Samples[1].Time.Equal(r.Time) {
			t.Errorf("in time again: %s at %s", r.Samples[1].Time, r.Time)
		}
	})
}
