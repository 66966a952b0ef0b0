// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"log/slog"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// logBurst is how many times a fault may begin before its lines have to wait for each
	// other, and logPause how long then, so that one that comes and goes with each tick does
	// not turn the log into a second /metrics, and a second outage soon after a first is told.
	logBurst = 3
	logPause = time.Minute
	// logRepeat is how often a fault that lasts is said again.
	logRepeat = 10 * time.Minute
)

// faultLog gives the log a line when something breaks and a line when it heals,
// and hardly any between.
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
	credit

	since, told time.Time
	// over is when it healed, zero while it lasts; it is remembered until it may be told of again.
	over time.Time
	// silent is set while it lasts and the log does not know.
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
		if o == nil {
			o = &openFault{since: now, silent: true, credit: newCredit(now)}
			l.open[id] = o
		} else if !o.over.IsZero() {
			o.since, o.over, o.silent = now, time.Time{}, true
		}
		switch quiet := now.Sub(o.told); {
		case o.silent && o.earned(now) >= 1:
			o.told, o.silent = now, false
			o.left--
			l.log.Warn("fault", attrs(id, "error", f.Text)...)
		case !o.silent && quiet >= logRepeat:
			o.told = now
			l.log.Warn("fault goes on", attrs(id, "lasted", now.Sub(o.since).Round(time.Millisecond), "error", f.Text)...)
		}
	}
	for id, o := range l.open {
		switch {
		case here[id]:
		case !o.over.IsZero():
			if o.earned(now) == logBurst {
				delete(l.open, id)
			}
		default:
			o.over = now
			if !o.silent {
				l.log.Info("fault is over", attrs(id, "lasted", now.Sub(o.since).Round(time.Millisecond))...)
			}
		}
	}
}

// credit is how many lines need not wait: logBurst at first and at most, one more in each logPause.
type credit struct {
	left float64
	asOf time.Time
}

func newCredit(now time.Time) credit { return credit{left: logBurst, asOf: now} }

// earned is the credit as it has become by now.
func (c *credit) earned(now time.Time) float64 {
	c.left = min(logBurst, c.left+now.Sub(c.asOf).Seconds()/logPause.Seconds())
	c.asOf = now
	return c.left
}

func attrs(id faultID, more ...any) []any {
	out := []any{"source", id.source, "kind", id.kind}
	if id.subject != "" {
		out = append(out, "gpu", string(id.subject))
	}
	return append(out, more...)
}
