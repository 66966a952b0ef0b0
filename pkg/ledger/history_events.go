// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Event is something that a ledger notes beside what is charged: a gap, a correction, a fact, an XID, a meter that began.
type Event struct {
	At     time.Time
	Record uint64
	Kind   Kind
	// Device is the card or MIG device that it is about, empty for the node.
	Device gpu.UUID
	// Namespace and Pod are whom a correction charges.
	Namespace, Pod string
	// Text is for people.
	Text string
	// Detail is a Fact's.
	Detail map[string]string
}

// Events are those between two moments, in the order of the log. Errors tell of lines that cannot be read.
func (r *Reader) Events(ctx context.Context, from, to time.Time) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		extent, err := r.extent()
		segments := extent.segments
		var t timeline
		if err == nil {
			t, err = readTimeline(segments)
		}
		if err != nil {
			yield(Event{}, fmt.Errorf("read the ledger in %s: %w", r.dir, err))
			return
		}
		if len(t) == 0 {
			return
		}
		moments, before := t.moments([]time.Time{from, to})
		if before == 0 {
			moments = moments[1:]
		}
		if len(moments) < 2 {
			return
		}
		passed := 0
		for _, s := range segments[moments[0].segment:] {
			for line, err := range s.raw() {
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					yield(Event{}, fmt.Errorf("read the ledger in %s: %w", r.dir, err))
					return
				}
				h, ok := headOf(line)
				for ok && passed < 2 && moments[passed].passed(h) {
					passed++
				}
				if passed == 2 {
					return
				}
				if passed == 0 || !ok || !eventful(h.kind) {
					continue
				}
				record, _, err := parseLine(line[:len(line)-1], "")
				if e := eventOf(&record); !yield(e, err) {
					return
				}
			}
		}
	}
}

// eventful reports whether records of a kind are events.
func eventful(k Kind) bool {
	return slices.Contains([]Kind{KindGap, KindCorrection, KindFact, KindXID, KindBegin}, k)
}

// eventOf is a record as an event.
func eventOf(r *Record) Event {
	if r.Body == nil {
		return Event{}
	}
	e := Event{At: time.UnixMilli(r.At.Wall).UTC(), Record: r.Seq, Kind: r.Body.Kind()}
	span := func(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
	switch body := r.Body.(type) {
	case *Begin:
		e.Text = fmt.Sprintf("an exporter began (version %s, MIG devices weighed by %s)", body.Version, body.Policy)
	case *Gap:
		e.Text = fmt.Sprintf("%s: nobody looked for %v; %d lines are proven to have stood all the while", gapWords(body.Reason), span(max(body.Span, body.Wall)), len(body.Bridged))
	case *Correction:
		e.Device, e.Namespace, e.Pod = body.To.Device, body.To.Namespace, body.To.Pod
		e.Text = fmt.Sprintf("%v from %s on, booked as %s by record %d, is charged to %s/%s (%s)", span(body.Span),
			time.UnixMilli(body.FromWall).UTC().Format(time.RFC3339), body.From, body.Refers, body.To.Namespace, body.To.Pod, body.Reason)
	case *FactSeen:
		e.Device, e.Text, e.Detail = body.Device, body.What+": "+body.Text, body.Detail
	case *XIDSeen:
		e.Device, e.Text = body.GPU, fmt.Sprintf("XID %d, %d times", body.Code, body.Count)
	}
	return e
}

// gapWords say why nobody looked.
func gapWords(reason string) string {
	switch reason {
	case GapRestart:
		return "the exporter was away"
	case GapReboot:
		return "the machine was started anew"
	case GapStall:
		return "the exporter did not look for long"
	case GapLost:
		return "records of the ledger were lost"
	}
	return reason
}
