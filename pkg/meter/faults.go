// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// logPause is the least time between two lines about the same fault, so that one
// that comes and goes with each tick does not turn the log into a second /metrics.
const logPause = time.Minute

// faultLog gives the log a line when something breaks and a line when it heals,
// and none between.
type faultLog struct {
	log  *slog.Logger
	open map[faultID]*openFault
}

type faultID struct {
	source  string
	subject gpu.UUID
	kind    string
}

type openFault struct {
	since, told time.Time
	level       slog.Level
	// over is when it healed, zero while it lasts; it is remembered until it may be told of again.
	over   time.Time
	silent bool
}

func newFaultLog(log *slog.Logger) *faultLog {
	return &faultLog{log: log, open: map[faultID]*openFault{}}
}

// report takes the faults of a tick.
func (l *faultLog) report(faults []Fault, now time.Time) {
	here := make(map[faultID]bool, len(faults))
	for _, f := range faults {
		id := faultID{f.Source, f.Subject, f.Kind}
		here[id] = true
		o := l.open[id]
		if o != nil && o.over.IsZero() {
			continue
		}
		next := &openFault{since: now, told: now, level: slog.LevelWarn}
		if f.said {
			next.level = slog.LevelDebug
		}
		if o != nil && now.Sub(o.told) < logPause {
			next.told, next.silent = o.told, true
		}
		l.open[id] = next
		if !next.silent {
			l.log.Log(context.Background(), next.level, "fault", attrs(id, "error", f.Text)...)
		}
	}
	for id, o := range l.open {
		switch {
		case here[id]:
		case !o.over.IsZero():
			if now.Sub(o.told) >= logPause {
				delete(l.open, id)
			}
		default:
			o.over = now
			if !o.silent {
				l.log.Log(context.Background(), min(o.level, slog.LevelInfo), "fault is over", attrs(id, "lasted", now.Sub(o.since).Round(time.Millisecond))...)
			}
		}
	}
}

func attrs(id faultID, more ...any) []any {
	out := []any{"source", id.source, "kind", id.kind}
	if id.subject != "" {
		out = append(out, "gpu", string(id.subject))
	}
	return append(out, more...)
}
