// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// fakeLine is an exporter that can be told facts.
type fakeLine struct {
	mu      sync.Mutex
	state   healthstream.ClientState
	changed chan struct{}
	deaf    bool
	told    []string
}

func newFakeLine() *fakeLine { return &fakeLine{changed: make(chan struct{})} }

func (l *fakeLine) Watch() (healthstream.ClientState, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.changed
}

func (l *fakeLine) ReportFacts(_ context.Context, reporter string, facts []health.Fact) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf {
		return errors.New("deaf")
	}
	l.told = append(l.told, fmt.Sprintf("%s:%d", reporter, len(facts)))
	return nil
}

func (l *fakeLine) change(with func(*fakeLine)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	with(l)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *fakeLine) heard() string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.told, " ")
}

func TestTheExporterIsToldFactsWhenTheyChangeAndWhenItComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		board, line := newFactBoard(), newFakeLine()
		done := make(chan error)
		go func() { done <- board.tell(ctx, line, slog.New(slog.DiscardHandler)) }()
		up := func(up bool) {
			line.change(func(l *fakeLine) { l.state.Up, l.state.Since = up, time.Now() })
		}
		fact := []health.Fact{{GPU: "GPU-0", Kind: health.KindMPSDown}}
		board.report("mps", fact)
		if got := line.heard(); got != "" {
			t.Fatalf("told an exporter that is away: %s", got)
		}
		up(true)
		if got := line.heard(); got != "mps:1" {
			t.Fatalf("when it came: %s", got)
		}
		line.change(func(l *fakeLine) { l.state.List = &healthstream.Received{} })
		time.Sleep(time.Minute)
		if got := line.heard(); got != "mps:1" {
			t.Fatalf("without a change: %s", got)
		}
		board.report("mps", nil)
		if got := line.heard(); got != "mps:1 mps:0" {
			t.Fatalf("when all was well again: %s", got)
		}
		up(false)
		time.Sleep(time.Second)
		line.change(func(l *fakeLine) { l.deaf = true })
		up(true)
		if got := line.heard(); got != "mps:1 mps:0" {
			t.Fatalf("a deaf one heard: %s", got)
		}
		line.change(func(l *fakeLine) { l.deaf = false })
		time.Sleep(tellPause)
		if got := line.heard(); got != "mps:1"+strings.Repeat(" mps:0", 2) {
			t.Fatalf("when it could hear again: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
