// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
)

// moment is one that registers are to be read at.
type moment struct {
	// index is the caller's number, wall the moment in Unix milliseconds.
	index int
	wall  int64
	place
}

// passed reports whether a record is later than the moment. A clock that was wrong for a while and then right again
// is not believed meanwhile.
func (m *moment) passed(h head) bool {
	return h.seq > m.last || h.seq >= m.start.seq && h.wall > m.wall && m.start.alike(h, clockSlack+(h.boot-m.start.boot)/longSlack)
}

// headOfRecord is when a record was.
func headOfRecord(r *Record) head {
	return head{seq: r.Seq, kind: r.Body.Kind(), boot: r.At.Boot, wall: r.At.Wall}
}

// reading replays a log and notes what its registers showed at moments.
type reading struct {
	account *Account
	// moments are in their order; next is the first that is not passed.
	moments []moment
	next    int
	// waiting are those within a gap whose end was not read yet, before what was shown at its beginning, and from when that was.
	waiting []moment
	before  showing
	from    Instant
	// hole: what they are in is no gap, but records that are missing.
	hole  bool
	pods  bool
	gone  map[PodSeries]heldShowing
	facts map[PodSeries]Pod
	done  func(index int, s showing)
}

// manner is how registers are read.
type manner struct {
	// pods: those of pods too.
	pods bool
	// carries are the segments of which only the first record counts.
	carries map[string]bool
	// totals say what the log came to, for where that cannot be read to its end; nil where nothing does. Cut says that records
	// before them are missing.
	totals *Record
	cut    bool
}

// readMoments replays segments, which begin with the one that the first moment is in, until every moment is
// read. What is damaged is told to wrong and left out: what registers showed within it is between what they showed before it and
// with the next carry.
func readMoments(ctx context.Context, segments []segment, moments []moment, how manner, done func(int, showing), wrong func(error)) error {
	r := reading{account: NewAccount(), moments: moments, pods: how.pods, done: done}
	r.hear()
	var s scanner
	lost := true
	for i, seg := range segments {
		for line, err := range s.lines(seg, i == len(segments)-1) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var d *damage
			if errors.As(err, &d) && d.What != damageTorn {
				wrong(err)
				lost = true
			}
			if line.Body == nil {
				continue
			}
			lost = lost || how.carries[seg.path] && !startsAnew(&line.Record)
			if lost = !r.take(line.Record, lost, wrong); !lost && r.finished() {
				return nil
			}
		}
	}
	if how.totals != nil && (lost || how.cut) {
		r.take(*how.totals, true, wrong)
	}
	r.end()
	return nil
}

// lines are those of one segment.
func (s *scanner) lines(seg segment, last bool) func(func(scanned, error) bool) {
	s.until = seg.until
	return func(yield func(scanned, error) bool) { s.scan(seg.path, last, yield) }
}

// hear lets the account tell which pods it drops.
func (r *reading) hear() {
	if !r.pods {
		return
	}
	r.account.dropped = func(p PodTotal) {
		if r.gone == nil {
			r.gone, r.facts = map[PodSeries]heldShowing{}, map[PodSeries]Pod{}
		}
		r.gone[p.PodSeries] = r.gone[p.PodSeries].plus(heldShowing{shownAmount(p.Amount), shownUsed(p.Used)})
		r.facts[p.PodSeries] = p.Pod
	}
}

// take folds a record in; false where that cannot be, as long as no carry says anew what was before.
func (r *reading) take(record Record, lost bool, wrong func(error)) bool {
	if lost && !startsAnew(&record) {
		return false
	}
	if r.account.seq > 0 {
		r.pass(&record, lost)
	}
	if lost {
		r.account = NewAccount()
		r.hear()
	}
	err := r.account.Apply(record)
	if err != nil {
		wrong(err)
		if lost || !startsAnew(&record) {
			return false
		}
		// What a carry says counts, whatever the records before it come to.
		return r.take(record, true, wrong)
	}
	if !r.account.away {
		r.leaveGap(&record)
	}
	return true
}

// startsAnew reports whether a record can be understood without those before it.
func startsAnew(record *Record) bool {
	_, carry := record.Body.(*Carry)
	return carry || record.Seq == 1
}

// pass reads the moments that are before a record; lost says that records before it are missing.
func (r *reading) pass(record *Record, lost bool) {
	for r.next < len(r.moments) && r.moments[r.next].passed(headOfRecord(record)) {
		m := r.moments[r.next]
		r.next++
		last := r.account.charged
		boot, how := r.account.before(record, m.wall)
		if lost {
			how, r.hole = beforeGap, true
		}
		switch how {
		case beforeGap:
			if len(r.waiting) == 0 {
				r.before, r.from = r.show(last.Wall, nil), last
			}
			r.waiting = append(r.waiting, m)
		case beforeEven:
			r.done(m.index, r.show(m.wall, &boot))
		default:
			r.done(m.index, r.show(min(last.Wall, m.wall), nil))
		}
	}
}

// The ways in which a moment can be before a record.
const (
	// beforeStep: the clocks did not go alike up to the record, so the moment is at the record before.
	beforeStep = iota
	// beforeEven: what was open stood from the record before, past the moment, to the record.
	beforeEven
	// beforeGap: what was then, the end of a gap has to tell.
	beforeGap
)

// before is how a moment is before a record that is about to be applied, and the boot clock that it had.
func (a *Account) before(next *Record, wall int64) (boot int64, how int) {
	kind, last := next.Body.Kind(), a.charged
	switch {
	case a.away || kind == KindGap || kind == KindBegin:
		return last.Boot, beforeGap
	case wall > last.Wall && last.alike(next.At, clockSlack):
		return min(last.Boot+wall-last.Wall, next.At.Boot), beforeEven
	}
	return last.Boot, beforeStep
}

// alike reports whether both clocks went alike from one instant to a later one.
func (i Instant) alike(later Instant, slack int64) bool {
	return i.BootID == later.BootID && head{boot: i.Boot, wall: i.Wall}.alike(head{boot: later.Boot, wall: later.Wall}, slack)
}

// evenGap reports whether the time of a gap from one instant to another can be divided: registers grew evenly in it.
func evenGap(from, to Instant) bool {
	return to.Wall > from.Wall && from.alike(to, clockSlack+(to.Boot-from.Boot)/longSlack)
}

// leaveGap reads the moments within a gap that a record has just ended.
func (r *reading) leaveGap(record *Record) {
	if len(r.waiting) == 0 {
		return
	}
	at := record.At
	even, length := record.Body.Kind() == KindGap && evenGap(r.from, at), at.Boot-r.from.Boot
	if r.hole {
		// Not even the boots in it are known.
		even, length, r.hole = at.Wall > r.from.Wall, at.Wall-r.from.Wall, false
	}
	after := show(r.account.Totals(), at.Wall)
	if r.pods {
		after.showPods(r.account, nil)
	}
	for _, m := range r.waiting {
		s := r.before
		// What was dropped before the first of them is no news to the others.
		r.before.gone = nil
		if gone := min(m.wall-r.from.Wall, length); even && gone > 0 {
			s = share{gone, length}.within(s, after)
			s.at = m.wall
		}
		r.done(m.index, s)
	}
	r.waiting = nil
}

// end reads the moments after the last record.
func (r *reading) end() {
	if r.account.seq == 0 {
		return
	}
	last := r.account.charged
	if len(r.waiting) == 0 {
		r.before = r.show(last.Wall, nil)
	}
	r.waiting = append(r.waiting, r.moments[r.next:]...)
	r.next = len(r.moments)
	for _, m := range r.waiting {
		r.done(m.index, r.before)
		r.before.gone = nil
	}
	r.waiting = nil
}

func (r *reading) finished() bool { return r.next == len(r.moments) && len(r.waiting) == 0 }

// show is what is shown now, or at a later time of the boot clock while nothing changes.
func (r *reading) show(wall int64, boot *int64) showing {
	totals := r.account.Totals()
	if boot != nil {
		totals = r.account.TotalsAt(*boot)
	}
	s := show(totals, wall)
	if r.pods {
		s.showPods(r.account, boot)
	}
	s.gone = r.gone
	for key, pod := range r.facts {
		if _, known := s.facts[key]; !known {
			s.facts[key] = pod
		}
	}
	s.numbers = make(map[int]Card, len(r.account.cards))
	for _, c := range r.account.cards {
		s.numbers[c.n] = c.card
	}
	r.gone, r.facts = nil, nil
	return s
}
