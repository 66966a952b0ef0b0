// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// lookAt is a good look at n cards with these events.
func lookAt(at time.Time, boot string, n int, events ...gpu.Event) look {
	r := gpu.Reading{Time: at, Source: "sim", Fields: readingFields(), Devices: cards(n), Events: events}
	for _, d := range r.Devices {
		values := make([]gpu.Value, len(r.Fields))
		for i := range values {
			values[i] = gpu.Absent(gpu.ReasonNotSupported)
		}
		r.Samples = append(r.Samples, gpu.Sample{Entity: entity(gpu.KindGPU, d.UUID, 0), Time: at, Values: values})
	}
	return look{reading: r, at: at, bootID: boot, opened: true}
}

func xidOn(card gpu.UUID, code int, at time.Time) gpu.Event {
	return gpu.Event{Time: at, Kind: gpu.EventXID, GPU: card, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: code}
}

func engineIn(t *testing.T, dir string) *engine {
	t.Helper()
	c := defaults()
	c.stateDir, c.env, c.source = dir, environ(nil), sourceNVML
	e, err := newEngine(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if e.store != nil {
		e.keep = func(s health.State, _ bool) {
			if err := e.store.Save(s); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(e.close)
	return e
}

func statusOf(r *health.Report, device gpu.UUID) health.Status {
	v, _ := verdictOf(r, device)
	return v.Status
}

func TestTheOwnEngineRemembersOverARestart(t *testing.T) {
	dir := t.TempDir()
	e := engineIn(t, dir)
	if e.look(look{at: noon, err: errors.New("no driver")}) != nil {
		t.Error("a verdict without a reading")
	}
	r := e.look(lookAt(noon, "boot", 2, xidOn("GPU-1", 79, noon)))
	if statusOf(r, "GPU-0") != healthy || statusOf(r, "GPU-1") != unhealthy {
		t.Fatalf("after XID 79: %v", r.Verdicts)
	}
	e.close()

	e = engineIn(t, dir)
	r = e.look(lookAt(noon.Add(time.Hour), "boot", 2))
	if statusOf(r, "GPU-0") != healthy || statusOf(r, "GPU-1") != unhealthy {
		t.Errorf("the restart healed: %v", r.Verdicts)
	}
}

func TestAnOperatorsWordToTheExporterIsTheOwnEnginesToo(t *testing.T) {
	e := engineIn(t, t.TempDir())
	e.look(lookAt(noon, "boot", 1, xidOn("GPU-0", 79, noon)))
	word := health.Clearing{Device: "GPU-0", Reason: "reseated", By: "ops", Time: noon.Add(time.Minute)}
	e.follow(&health.Report{Clearings: []health.Clearing{word}})
	if r := e.look(lookAt(noon.Add(2*time.Minute), "boot", 1)); statusOf(r, "GPU-0") != healthy {
		t.Fatalf("after the word: %v", r.Verdicts)
	}
	e.look(lookAt(noon.Add(3*time.Minute), "boot", 1, xidOn("GPU-0", 79, noon.Add(3*time.Minute))))
	e.follow(&health.Report{Clearings: []health.Clearing{word}})
	if r := e.look(lookAt(noon.Add(4*time.Minute), "boot", 1)); statusOf(r, "GPU-0") != unhealthy {
		t.Error("an old word ended a new fault")
	}
}

func TestConditionsAreSavedWhenTheyChangeAndOnceAMinute(t *testing.T) {
	e := engineIn(t, "")
	saves, urgent := 0, 0
	e.keep = func(_ health.State, isNew bool) {
		saves++
		if isNew {
			urgent++
		}
	}
	expect := func(what string, want, wantUrgent int) {
		t.Helper()
		if saves != want || urgent != wantUrgent {
			t.Errorf("%s: %d saves, %d with news, want %d, %d", what, saves, urgent, want, wantUrgent)
		}
		saves, urgent = 0, 0
	}
	e.look(lookAt(noon, "boot", 1))
	expect("the first look", 1, 1)
	for i := range 50 {
		e.look(lookAt(noon.Add(time.Duration(i)*time.Second), "boot", 1))
	}
	expect("without a change", 0, 0)
	e.look(lookAt(noon.Add(51*time.Second), "boot", 1, xidOn("GPU-0", 79, noon)))
	expect("a fault", 1, 1)
	e.look(lookAt(noon.Add(51*time.Second+saveEvery), "boot", 1))
	expect("after a minute", 1, 0)
}

func TestFactsOfOthersCount(t *testing.T) {
	e := engineIn(t, "")
	e.facts["mps"] = []health.Fact{{GPU: "GPU-0", Kind: health.KindMPSDown, Class: health.ClassReset, Text: "the daemon is down"}}
	if r := e.look(lookAt(noon, "boot", 2)); statusOf(r, "GPU-0") != unhealthy || statusOf(r, "GPU-1") != healthy {
		t.Errorf("with a dead daemon: %v", r.Verdicts)
	}
}
