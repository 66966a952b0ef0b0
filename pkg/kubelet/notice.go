// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// remindEvery is the least time from the last line about something to one that says it is
// lost: how often a loss that lasts is said again, and how often one that comes and goes is
// said at all.
const remindEvery = time.Minute

// notice writes a line when something is lost and one when it is back, and at most one a
// minute while it lasts. A loss that follows the last line by less than a minute is said
// when the minute is over, if it is not by then, and so is a change of its kind. What is
// not a warning is said once. Times are differences of time.Now, so of the monotonic clock.
type notice struct {
	log *slog.Logger
	// begins, lasts and ends are what the lines say.
	begins, lasts, ends string

	mu sync.Mutex
	// lasting is while it is lost; told says that a line of this loss has been written.
	lasting, told bool
	// kind is the present one, told of is saidKind.
	kind, saidKind string
	since, said    time.Time
}

// lossOf is a notice of something that can be lost.
func lossOf(log *slog.Logger, what string) *notice {
	return &notice{log: log, begins: what + " lost", lasts: what + " still lost", ends: what + " back"}
}

// lost notes that it is lost in some kind, which may be empty.
func (n *notice) lost(level slog.Level, kind string, attrs ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if !n.lasting {
		n.lasting, n.told, n.since = true, false, now
	}
	n.kind = kind
	if !n.said.IsZero() && now.Sub(n.said) < remindEvery {
		return
	}
	text := n.begins
	if n.told {
		if level < slog.LevelWarn && kind == n.saidKind {
			return
		}
		text = n.lasts
	}
	n.say(level, text, now, attrs)
	n.told = true
}

// back notes that it is no longer lost.
func (n *notice) back(attrs ...any) { n.end(slog.LevelInfo, n.ends, attrs...) }

// end is back in other words.
func (n *notice) end(level slog.Level, text string, attrs ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lasting && n.told {
		n.say(level, text, time.Now(), attrs)
	}
	n.lasting = false
}

// say puts the kind and the time that it lasts before the attributes.
func (n *notice) say(level slog.Level, text string, now time.Time, attrs []any) {
	var first []any
	if n.kind != "" {
		first = append(first, "kind", n.kind)
	}
	if lasted := now.Sub(n.since).Round(time.Millisecond); lasted > 0 {
		first = append(first, "lasted", lasted)
	}
	n.log.Log(context.Background(), level, text, append(first, attrs...)...)
	n.said, n.saidKind = now, n.kind
}
