// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// noInstance is gpu.NoInstance.
const noInstance = gpu.NoInstance

// eventReader goes over the log between the first boundary and the last, for what registers do not say.
type eventReader struct {
	answer  *nodeAnswer
	moments []moment
	// passed is how many of the moments are.
	passed int
	seq    uint64
	wall   int64
	cards  map[int]Card
	// hurt: the line before is damaged, of which others tell.
	hurt bool
}

// read goes over the segments. Before is how many boundaries are older than every record.
func (e *eventReader) read(ctx context.Context, segments []segment, before int) error {
	if len(e.moments) == 0 {
		return nil
	}
	first := 0
	if before == 0 {
		first = e.moments[0].segment
	}
	e.cards = e.answer.last.numbers
	for _, seg := range segments[first:] {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for line, err := range seg.raw() {
			if err != nil {
				e.answer.lost(err)
				break
			}
			if !e.take(line, before) {
				return nil
			}
		}
	}
	return nil
}

// take looks at one line; false after the last boundary.
func (e *eventReader) take(line []byte, before int) bool {
	h, ok := headOf(line)
	if !ok || !intact(line) {
		e.hurt = true
		return true
	}
	for e.passed < len(e.moments) && e.moments[e.passed].passed(h) {
		e.passed++
	}
	if e.passed == len(e.moments) {
		return false
	}
	window := before + e.passed - 1
	if e.seq > 0 && h.seq > e.seq+1 && window >= 0 && !e.hurt {
		e.hole(h)
	}
	e.seq, e.wall, e.hurt = h.seq, h.wall, false
	if window < 0 || h.kind != KindGap && h.kind != KindCorrection && h.kind != KindBegin {
		return true
	}
	record, _, err := parseLine(line[:len(line)-1], "")
	if err != nil {
		e.answer.lost(err)
		return true
	}
	switch body := record.Body.(type) {
	case *Begin:
		e.answer.weighed(body.Policy)
	case *Gap:
		e.gap(record.At, body)
	case *Correction:
		e.correct(window, body)
	}
	return true
}

// hole notes that records are missing. Registers go on with the next carry, so their sums are right but for where in
// the hole something was; what a pod held that came and went within is in no answer by pods.
func (e *eventReader) hole(next head) {
	from, to := time.UnixMilli(e.wall).UTC(), time.UnixMilli(next.wall).UTC()
	m := Missing{From: from, To: to, Reason: "log_lost", Text: fmt.Sprintf(
		"node %s: records %d to %d are missing. The totals are whole; what pods held in that time may be booked to other hours, or to no pod",
		e.answer.node.Node, e.seq+1, next.seq-1)}
	e.answer.miss(m)
}

func (e *eventReader) gap(at Instant, g *Gap) {
	m := Missing{
		From: time.UnixMilli(at.Wall - max(g.Wall, 0)).UTC(), To: time.UnixMilli(at.Wall).UTC(), Reason: g.Reason,
		Text: fmt.Sprintf("node %s: %s", e.answer.node.Node, gapWords(g.Reason)),
	}
	e.answer.node.Gaps = append(e.answer.node.Gaps, m)
}

func (e *eventReader) correct(window int, c *Correction) {
	if !e.answer.q.wants(c.To.Namespace, c.To.Pod) {
		return
	}
	card := e.cards[c.Card]
	line, err := lineOf(&c.To, card)
	if err != nil {
		e.answer.lost(err)
		return
	}
	ofTime, errTime := part(c.Part)
	ofMemory, errMemory := part(c.Memory)
	if errTime != nil || errMemory != nil {
		return
	}
	amount := Amount{GPU: times(ofTime, c.Span), Memory: times(times(ofMemory, card.Memory), c.Span)}
	key := podSeriesOf(&line, card.Model)
	held := Held{Window: window, Series: key.Series, GPUInstance: noInstance, Quantity: shownAmount(amount)}
	if e.answer.q.Detail == DetailPods {
		held.Pod, held.PodUID, held.Container = key.Pod, key.PodUID, key.Container
		held.Card, held.GPUInstance = key.Card, key.GPUInstance
	}
	e.answer.corrections = append(e.answer.corrections, Corrected{
		Window: window, Held: held, From: c.From, Reason: c.Reason, Refers: c.Refers,
		FromTime: time.UnixMilli(c.FromWall).UTC(), ToTime: time.UnixMilli(c.ToWall).UTC(),
	})
}
