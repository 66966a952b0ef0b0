// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Interval is a time in which one line of a card stood, and was charged evenly.
type Interval struct {
	// Line is what stood; its Part and Memory are what was charged, which within a gap may be less than before.
	Line
	// Index and Model are the card's, MiB is its memory.
	Index int
	Model string
	MiB   int64
	// Policy is how its weight came about.
	Policy string
	// From and To are the wall clock's stamps, Span is the length in milliseconds by the boot clock.
	From, To time.Time
	Span     int64
	// Opened and Closed are the records that began and ended it, 0 where that is not within what was asked for. For a
	// correction Closed is its record, and Opened the one that it refers to.
	Opened, Closed uint64
	// Began and Ended say why: "opened" and the reasons of Close; "asked" where it is cut by what was asked for, "open"
	// where it goes on, "correction", and "lost" where records are missing. What began and ended with "gap" or "reboot" is what a gap
	// charged: to its holder, who is proven to have held it all the while, or to nobody.
	Began, Ended string
	// Corrects is the cause that a correction took it from.
	Corrects sharing.Cause
}

// Amount is what was charged.
func (i *Interval) Amount() Amount {
	return Amount{GPU: times(i.Part, i.Span), Memory: times(times(i.Memory, i.MiB), i.Span)}
}

// The words of Interval.Began and Ended beside the reasons of Close.
const (
	IntervalOpened     = "opened"
	IntervalAsked      = "asked"
	IntervalOpen       = "open"
	IntervalCorrection = "correction"
	IntervalLost       = "lost"
)

// Intervals are the times between two moments in which lines stood that keep keeps, nil for all, in the order in which
// they ended. What they come to is what Usage says of the same time, exactly. Errors tell of damage; the intervals go on after it.
func (r *Reader) Intervals(ctx context.Context, keep func(*Line) bool, from, to time.Time) iter.Seq2[Interval, error] {
	return func(yield func(Interval, error) bool) {
		h := chronicle{keep: keep, yield: yield, account: NewAccount(), open: map[uint64]stand{}}
		if err := h.read(ctx, r, from, to); err != nil && !errors.Is(err, errEnough) {
			yield(Interval{}, fmt.Errorf("read the ledger in %s: %w", r.dir, err))
		}
	}
}

// errEnough says that nobody wants more.
var errEnough = errors.New("enough")

// stand is since when a line stands, as far as that is asked for.
type stand struct {
	boot, wall int64
	opened     uint64
	began      string
}

// chronicle follows lines through a log.
type chronicle struct {
	keep    func(*Line) bool
	yield   func(Interval, error) bool
	account *Account
	// moments are the two asked for; next is the first that is not passed. Waiting are those in a gap.
	moments []moment
	next    int
	waiting []moment
	// counting: the first moment is passed and the second is not.
	counting bool
	open     map[uint64]stand
	err      error
}

func (h *chronicle) read(ctx context.Context, r *Reader, from, to time.Time) error {
	extent, err := r.extent()
	if err != nil {
		return err
	}
	segments := extent.segments
	t, err := readTimeline(segments)
	if err != nil || len(t) == 0 {
		return err
	}
	moments, before := t.moments([]time.Time{from, to})
	if before == 0 {
		moments = moments[1:]
	}
	if h.moments = moments; len(moments) < 2 {
		return nil
	}
	var s scanner
	lost := true
	first := moments[0].segment
	for i, seg := range segments[first:] {
		for line, err := range s.lines(seg, first+i == len(segments)-1) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var d *damage
			if errors.As(err, &d) && d.What != damageTorn {
				h.fail(err)
				lost = true
			}
			if line.Body != nil {
				lost = !h.take(&line.Record, lost)
			}
			if h.err != nil || h.finished() {
				return h.err
			}
		}
	}
	h.end()
	return h.err
}

func (h *chronicle) finished() bool { return h.next == len(h.moments) && len(h.waiting) == 0 }

func (h *chronicle) fail(err error) {
	if h.err == nil && !h.yield(Interval{}, err) {
		h.err = errEnough
	}
}

func (h *chronicle) emit(i Interval) {
	if h.err != nil || i.Span == 0 && i.Part.IsZero() || h.keep != nil && !h.keep(&i.Line) {
		return
	}
	if !h.yield(i, nil) {
		h.err = errEnough
	}
}

// take folds a record in; false where that cannot be.
func (h *chronicle) take(record *Record, lost bool) bool {
	if lost && !startsAnew(record) {
		return false
	}
	if h.account.seq > 0 {
		h.pass(record)
	}
	if lost {
		h.endAll(h.account.charged, 0, IntervalLost)
		h.account = NewAccount()
	}
	gap, isGap := record.Body.(*Gap)
	if isGap && gap.Reason != GapLost {
		h.gap(record, gap)
	}
	if c, ok := record.Body.(*Close); ok && h.counting {
		h.close(h.account.lines[c.ID], record.At, record.Seq, c.Why)
	}
	if err := h.account.Apply(*record); err != nil {
		h.fail(err)
		if lost || !startsAnew(record) {
			return false
		}
		// What a carry says counts, whatever the records before it come to.
		return h.take(record, true)
	}
	if !h.account.away && len(h.waiting) > 0 {
		// A meter began that had no cards before: there is no gap to tell of.
		for range h.waiting {
			h.reach(h.account.charged)
		}
		h.waiting = nil
	}
	if h.counting {
		h.follow(record, lost)
	}
	return true
}

// follow notes what a record that was folded in began.
func (h *chronicle) follow(record *Record, lost bool) {
	switch body := record.Body.(type) {
	case *Open:
		h.open[body.ID] = stand{boot: record.At.Boot, wall: record.At.Wall, opened: record.Seq, began: IntervalOpened}
	case *Gap:
		if body.Reason != GapLost {
			h.standAll(record.At, CloseGap)
		}
	case *Correction:
		h.correct(record, body)
	case *Carry:
		if lost {
			h.standAll(h.account.charged, IntervalLost)
		}
	}
}

// pass notes which moments are before a record.
func (h *chronicle) pass(record *Record) {
	for h.next < len(h.moments) && h.moments[h.next].passed(headOfRecord(record)) {
		m := h.moments[h.next]
		h.next++
		boot, how := h.account.before(record, m.wall)
		if how == beforeGap {
			h.waiting = append(h.waiting, m)
			continue
		}
		h.reach(Instant{Boot: boot, Wall: min(m.wall, h.account.charged.Wall+boot-h.account.charged.Boot)})
	}
}

// reach is at a moment that was asked for: the first or the second.
func (h *chronicle) reach(at Instant) {
	if h.counting {
		h.endAll(at, 0, IntervalAsked)
		h.counting = false
		return
	}
	h.counting = true
	h.standAll(at, IntervalAsked)
}

// standAll lets all open lines count from an instant on.
func (h *chronicle) standAll(at Instant, why string) {
	for id := range h.account.lines {
		h.open[id] = stand{boot: at.Boot, wall: at.Wall, began: why}
	}
}

// endAll ends all open lines.
func (h *chronicle) endAll(at Instant, seq uint64, why string) {
	if !h.counting {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(h.account.lines)) {
		h.close(h.account.lines[id], at, seq, why)
	}
}

// close ends a line at an instant.
func (h *chronicle) close(l *openLine, at Instant, seq uint64, why string) {
	if l == nil {
		return
	}
	s := h.open[l.id]
	delete(h.open, l.id)
	i := intervalOf(l)
	i.From, i.To, i.Span = time.UnixMilli(s.wall).UTC(), time.UnixMilli(at.Wall).UTC(), at.Boot-s.boot
	i.Opened, i.Closed, i.Began, i.Ended = s.opened, seq, s.began, why
	if i.Span > 0 {
		h.emit(i)
	}
}

func intervalOf(l *openLine) Interval {
	return Interval{Line: l.line, Index: l.card.card.Index, Model: l.card.card.Model, MiB: l.card.card.Memory, Policy: l.said.Policy}
}

// gap tells what a gap that is about to be folded in charges. It ends what stood; what it bridges stands anew after it.
func (h *chronicle) gap(record *Record, g *Gap) {
	start, end := h.account.charged, record.At
	why := CloseGap
	if start.BootID != end.BootID {
		why = CloseReboot
	}
	h.endAll(start, record.Seq, why)
	// Moments within the gap cut what it charged, where that can be divided.
	from, even := int64(0), evenGap(start, end)
	for _, m := range h.waiting {
		cut := int64(0)
		if even {
			cut = min(max(0, m.wall-start.Wall), g.Span)
		}
		if h.counting {
			h.charge(record, g, from, cut, why)
		}
		h.counting, from = !h.counting, cut
	}
	h.waiting = nil
	if h.counting {
		h.charge(record, g, from, g.Span, why)
	}
}

// charge tells what a gap charged from one millisecond of it to another.
func (h *chronicle) charge(record *Record, g *Gap, from, to int64, why string) {
	if to <= from {
		return
	}
	begin := record.At.Wall - g.Span
	if why == CloseGap {
		begin = h.account.charged.Wall
	}
	common := Interval{
		From: time.UnixMilli(begin + from).UTC(), To: time.UnixMilli(begin + to).UTC(), Span: to - from,
		Closed: record.Seq, Began: why, Ended: why,
	}
	rest := map[*cardAccount]Line{}
	for _, c := range h.gapCards(g, why) {
		rest[c] = Line{Card: c.card.UUID, GPUInstance: noInstance, Cause: sharing.CauseUnobserved, Part: sharing.One(), Memory: sharing.One()}
	}
	for _, b := range g.Bridged {
		l := h.account.lines[b.ID]
		ofTime, errTime := part(b.Part)
		ofMemory, errMemory := part(b.Memory)
		if l == nil || errTime != nil || errMemory != nil {
			// Apply is about to say so.
			return
		}
		left := rest[l.card]
		left.Part, left.Memory = left.Part.Sub(ofTime), left.Memory.Sub(ofMemory)
		rest[l.card] = left
		i := intervalOf(l)
		i.Part, i.Memory = ofTime, ofMemory
		h.emit(i.at(&common))
	}
	for _, c := range h.gapCards(g, why) {
		i := Interval{Line: rest[c], Index: c.card.Index, Model: c.card.Model, MiB: c.card.Memory}
		h.emit(i.at(&common))
	}
}

// at is the interval at the time of another.
func (i Interval) at(o *Interval) Interval {
	i.From, i.To, i.Span, i.Opened, i.Closed, i.Began, i.Ended = o.From, o.To, o.Span, o.Opened, o.Closed, o.Began, o.Ended
	return i
}

// gapCards are the cards that count a gap, in the order of their numbers.
func (h *chronicle) gapCards(g *Gap, why string) []*cardAccount {
	var cards []*cardAccount
	for _, c := range h.account.cards {
		if len(c.lines) > 0 && (why == CloseGap || slices.Contains(g.Cards, c.n)) {
			cards = append(cards, c)
		}
	}
	return cards
}

// correct tells what was charged late.
func (h *chronicle) correct(record *Record, c *Correction) {
	card := h.account.card(c.Card)
	line, err := lineOf(&c.To, card.card)
	if err != nil {
		return
	}
	// Apply has read them before.
	line.Part, _ = part(c.Part)
	line.Memory, _ = part(c.Memory)
	h.emit(Interval{
		Line: line, Index: card.card.Index, Model: card.card.Model, MiB: card.card.Memory, Policy: c.To.Policy,
		From: time.UnixMilli(c.FromWall).UTC(), To: time.UnixMilli(c.ToWall).UTC(), Span: c.Span,
		Opened: c.Refers, Closed: record.Seq, Began: IntervalCorrection, Ended: IntervalCorrection, Corrects: c.From,
	})
}

// end is after the last record.
func (h *chronicle) end() { h.endAll(h.account.charged, 0, IntervalOpen) }
