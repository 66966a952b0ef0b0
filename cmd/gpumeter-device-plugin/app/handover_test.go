// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// allHealthy is what two cards are handed over as.
const allHealthy = "healthy" + " healthy"

// fallen is an XID 79 of a card, last seen at a time.
func fallen(card gpu.UUID, at time.Time) health.Condition {
	return health.Condition{Subject: health.WholeCard(card), Kind: "xid_79", XID: 79, Class: health.ClassNode, Since: at, Last: at, Count: 1, BootID: "boot", Evidence: "XID 79"}
}

// answering is a list of healthy cards with a change.
func answering(n int, change func(*health.Report)) *healthstream.List {
	l := listOf(slices.Repeat([]health.Status{healthy}, n)...)
	if change != nil {
		change(&l.Report)
	}
	return l
}

func TestAnExporterThatKnowsNothingHealsNothing(t *testing.T) {
	at := noon
	ended := func(e time.Time) func(*health.Report) {
		return func(r *health.Report) {
			r.Ended = []health.Ending{{Subject: health.WholeCard("GPU-1"), Kind: "xid_79", Ended: e}}
		}
	}
	cleared := func(e time.Time) func(*health.Report) {
		return func(r *health.Report) {
			r.Clearings = []health.Clearing{{Device: "GPU-1", Reason: "reseated", By: "ops", Time: e}}
		}
	}
	shown := func(class health.Class) func(*health.Report) {
		return func(r *health.Report) {
			q := fallen("GPU-1", at.Add(-time.Hour))
			q.Class = class
			r.Verdicts[1].Conditions = []health.Condition{q}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*health.Report)
		want   string
		// open are the conditions that the exporter is still to answer for.
		open int
	}{
		{"a list without a word of it", nil, "healthy unhealthy", 1},
		{"an end before it", ended(at.Add(-time.Second)), "healthy unhealthy", 1},
		{"an end after it", ended(at.Add(time.Second)), allHealthy, 0},
		{"a word before it", cleared(at.Add(-time.Second)), "healthy unhealthy", 1},
		{"a word after it", cleared(at.Add(time.Second)), allHealthy, 0},
		{"the exporter has it, and makes less of it", shown(health.ClassWatch), allHealthy, 0},
		{"another fault", func(r *health.Report) { shown(health.ClassNode)(r); r.Verdicts[1].Conditions[0].Kind = "xid_95" }, "healthy unhealthy", 1},
		{"another card's", func(r *health.Report) { shown(health.ClassNode)(r); r.Verdicts[1].Conditions[0].GPU = "GPU-0" }, "healthy unhealthy", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, nil)
			var open []health.Condition
			s.director.handOver = func(q []health.Condition) { open = q }
			s.config("").look(2, xidOn("GPU-1", 79, at)).pass(2 * verdictPatience)
			if got := s.handed(2); got != "healthy unhealthy" {
				t.Fatalf("alone: %s", got)
			}
			s.list(answering(2, c.change))
			if got := s.handed(2); got != c.want || len(open) != c.open {
				t.Errorf("with the exporter: %s, %d open, want %s, %d", got, len(open), c.want, c.open)
			}
			// What is over is over, also when the exporter is gone again.
			s.pass(time.Second).look(2).list(answering(2, nil)).lose().look(2)
			want := "healthy unhealthy"
			if c.want == allHealthy && !strings.Contains(c.name, "less") {
				want = c.want
			}
			if got := s.handed(2); got != want {
				t.Errorf("without it again: %s, want %s", got, want)
			}
		})
	}
}

func TestOwnFactsWaitForNobody(t *testing.T) {
	dead := factsRead{"mps", []health.Fact{{GPU: "GPU-1", Kind: health.KindMPSDown, Class: health.ClassReset, Text: "the daemon is down"}}}
	for _, source := range []string{sourceAuto, sourceStream} {
		s := newStage(t, func(c *config) { c.source = source }).config("").list(answering(2, nil))
		s.takeFacts(dead)
		if got := s.settle().handed(2); got != "healthy unhealthy" {
			t.Errorf("%s: with a dead daemon: %s", source, got)
		}
		s.takeFacts(factsRead{"mps", nil})
		if got := s.settle().handed(2); got != allHealthy {
			t.Errorf("%s: when it is back: %s", source, got)
		}
	}
}

func (l *fakeLine) HandOver(_ context.Context, reporter string, seen []health.Condition) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf {
		return errors.New("deaf")
	}
	l.told = append(l.told, fmt.Sprintf("%s:%d", reporter, len(seen)))
	return nil
}

func TestWhatThePluginHeardIsHandedOverUntilItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h, line := newHandOver(), newFakeLine()
		done := make(chan error)
		var log strings.Builder
		go func() { done <- h.run(ctx, line, slog.New(slog.NewTextHandler(&log, nil))) }()
		expect := func(what string, times int) {
			t.Helper()
			if got := strings.Count(line.heard(), reporterOwn+":1"); got != times {
				t.Errorf("%s: told %d times, want %d", what, got, times)
			}
		}
		open := []health.Condition{fallen("GPU-1", noon), {Subject: health.WholeCard("GPU-1"), Kind: health.KindRemapFailed, Class: health.ClassHardware}}
		h.set(open)
		expect("an exporter that is away", 0)
		line.change(func(l *fakeLine) { l.state.Up, l.state.Since = true, time.Now() })
		expect("when it came", 1)
		h.set(open)
		expect("nothing new", 1)
		time.Sleep(tellPause)
		expect("without an answer", 2)
		line.change(func(l *fakeLine) { l.deaf = true })
		time.Sleep(tellPause + tellPause/2)
		line.change(func(l *fakeLine) { l.deaf = false })
		time.Sleep(tellPause)
		expect("when it hears again", 3)
		h.set(nil)
		time.Sleep(time.Hour)
		expect("when it has answered", 3)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// Twice it was said without an answer, and again after the trouble.
		for text, times := range map[string]int{"was told of faults": 2, "does not take over": 1} {
			if got := strings.Count(log.String(), text); got != times {
				t.Errorf("the log has %q %d times, want %d:\n%s", text, got, times, log.String())
			}
		}
	})
}
