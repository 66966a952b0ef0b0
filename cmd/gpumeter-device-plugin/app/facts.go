// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

const (
	// tellPatience bounds telling the exporter of facts, tellPause is until the next attempt.
	tellPatience = 5 * time.Second
	tellPause    = 5 * time.Second
)

// factsRead are all facts of one reporter.
type factsRead struct {
	reporter string
	facts    []health.Fact
}

// factBoard has the facts that the plugin's parts know of GPUs beside the driver, such as a dead
// MPS daemon. They go to the plugin's own engine, and to the exporter whenever they change and
// after each time that its stream came up. It is safe for concurrent use.
type factBoard struct {
	mu      sync.Mutex
	facts   map[string][]health.Fact
	changed chan struct{}
}

func newFactBoard() *factBoard {
	return &factBoard{facts: map[string][]health.Fact{}, changed: make(chan struct{})}
}

// report replaces what a reporter has said; no facts take back what it said.
func (b *factBoard) report(reporter string, facts []health.Fact) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.facts[reporter] = facts
	close(b.changed)
	b.changed = make(chan struct{})
}

// all are the facts now, and a channel that closes when there may be others.
func (b *factBoard) all() ([]factsRead, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []factsRead
	for reporter, facts := range b.facts {
		out = append(out, factsRead{reporter, facts})
	}
	return out, b.changed
}

// exporterLine is what telling the exporter takes of a health stream's client.
type exporterLine interface {
	Watch() (healthstream.ClientState, <-chan struct{})
	ReportFacts(ctx context.Context, reporter string, facts []health.Fact) error
}

// watchable is what waiting for news takes of a health stream's client.
type watchable interface {
	Watch() (healthstream.ClientState, <-chan struct{})
}

// tell tells the exporter until ctx ends, and returns nil then.
func (b *factBoard) tell(ctx context.Context, line exporterLine, log *slog.Logger) error {
	said := false
	for ctx.Err() == nil {
		facts, changed := b.all()
		state, moved := line.Watch()
		var again <-chan time.Time
		if state.Up {
			err := tellAll(ctx, line, facts)
			if err != nil {
				again = time.After(tellPause)
				if !said && ctx.Err() == nil {
					log.Warn("the exporter was not told what the device plugin knows of GPUs", "error", err, "again_in", tellPause)
				}
			}
			said = err != nil
		}
		if !awaitNews(ctx, line, state, changed, moved, again) {
			return nil
		}
	}
	return nil
}

// awaitNews waits until there is something to tell: other facts, a stream that came up again, or a
// time; false when ctx ended. A list that comes is no reason.
func awaitNews(ctx context.Context, line watchable, state healthstream.ClientState, changed, moved <-chan struct{}, again <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-changed:
			return true
		case <-again:
			return true
		case <-moved:
		}
		var now healthstream.ClientState
		now, moved = line.Watch()
		if now.Up != state.Up || !now.Since.Equal(state.Since) {
			return true
		}
	}
}

func tellAll(ctx context.Context, line exporterLine, facts []factsRead) error {
	for _, f := range facts {
		bounded, cancel := context.WithTimeout(ctx, tellPatience)
		err := line.ReportFacts(bounded, f.reporter, f.facts)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
