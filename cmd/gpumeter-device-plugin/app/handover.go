// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// reporterOwn is who hands over what the plugin's own engine has heard.
const reporterOwn = "gpumeter-device-plugin"

// unanswered are the withdrawing conditions of mine of which the exporter's list says nothing: neither are
// they among the device's conditions there, nor are they over by evidence that the exporter saw.
func unanswered(mine health.Verdict, told *health.Report) []health.Condition {
	var out []health.Condition
	theirs, _ := told.Verdict(mine.Device)
	card, _ := told.Verdict(mine.Card)
	for _, q := range mine.Conditions {
		shown := q.SameFault
		over := func(e health.Ending) bool { return e.Covers(q) }
		if q.Withdraws() && !slices.ContainsFunc(theirs.Conditions, shown) && !slices.ContainsFunc(card.Conditions, shown) && !slices.ContainsFunc(told.Ended, over) {
			out = append(out, q)
		}
	}
	return out
}

// handOver has what the exporter is to take over, until its list answers. It is safe for concurrent use.
type handOver struct {
	mu      sync.Mutex
	seen    []health.Condition
	changed chan struct{}
}

func newHandOver() *handOver { return &handOver{changed: make(chan struct{})} }

// set says what is still unanswered. XIDs alone are handed over: all else the exporter sees itself.
func (h *handOver) set(conditions []health.Condition) {
	var seen []health.Condition
	for _, q := range conditions {
		if q.XID > 0 && !slices.Contains(seen, q) {
			seen = append(seen, q)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if reflect.DeepEqual(seen, h.seen) {
		return
	}
	h.seen = seen
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *handOver) get() ([]health.Condition, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen, h.changed
}

// heirLine is what handing over takes of a health stream's client.
type heirLine interface {
	Watch() (healthstream.ClientState, <-chan struct{})
	HandOver(ctx context.Context, reporter string, seen []health.Condition) error
}

// run hands over until ctx ends, and returns nil then. What stays unanswered is said again.
func (h *handOver) run(ctx context.Context, line heirLine, log *slog.Logger) error {
	told := tale{log: log}
	for ctx.Err() == nil {
		seen, changed := h.get()
		state, moved := line.Watch()
		var again <-chan time.Time
		if state.Up && len(seen) > 0 {
			again = time.After(tellPause)
			bounded, cancel := context.WithTimeout(ctx, tellPatience)
			err := line.HandOver(bounded, reporterOwn, seen)
			cancel()
			told.of(ctx, seen, err)
		}
		if !awaitNews(ctx, line, state, changed, moved, again) {
			return nil
		}
	}
	return nil
}

// tale says for the log how handing over goes: each trouble once, and once what was handed over,
// however often it is said again to an exporter that does not read that GPU.
type tale struct {
	log     *slog.Logger
	told    []health.Condition
	trouble string
}

func (t *tale) of(ctx context.Context, seen []health.Condition, err error) {
	switch {
	case err != nil && (err.Error() == t.trouble || ctx.Err() != nil):
	case err != nil:
		t.told, t.trouble = nil, err.Error()
		t.log.Warn("the exporter does not take over faults that the device plugin heard; the plugin itself goes on withdrawing their GPUs", "error", err, "again_in", tellPause)
	case !slices.Equal(seen, t.told):
		t.told, t.trouble = seen, ""
		t.log.Info("the exporter was told of faults that the device plugin heard", "faults", len(seen), "first", seen[0].Evidence, "gpu", seen[0].GPU)
	}
}
