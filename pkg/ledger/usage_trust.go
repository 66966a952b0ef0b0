// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// The reasons of Missing that say that what is there is not to be trusted.
const (
	// MissingDamaged: lines of the log are not as they were written, or do not follow each other.
	MissingDamaged = "damaged"
	// MissingContradicted: the log is whole by its sums and does not come to what it says that it comes to.
	MissingContradicted = "contradicted"
)

// doubt is a time of a ledger that cannot be trusted.
type doubt struct {
	// from and to are of the wall clock; to is 0 where nothing later can be trusted either.
	from, to int64
	reason   string
	first    Problem
	segment  string
}

// trust is what was found out about segments before their registers are read.
type trust struct {
	doubts []doubt
	// carries are the segments of which only what they begin with counts: which of their records is wrong, nobody can say.
	carries map[string]bool
}

// examine proves segments, as Verify does.
func examine(ctx context.Context, segments []segment) (*trust, error) {
	t := &trust{carries: map[string]bool{}}
	v := &Verification{}
	j := joint{v: v}
	var before *proven
	err := proveEach(ctx, segments, func(_ int, p *proven) {
		v.Problems = nil
		j.join(p)
		t.settle(before, p)
		for _, problem := range v.Problems {
			t.doubt(problem, before, p)
		}
		before = p
	})
	// What is wrong with the last one no carry sets right, and so what can be read of it counts.
	if n := len(segments); n > 0 {
		delete(t.carries, segments[n-1].path)
	}
	return t, err
}

// settle ends the doubts about the segment before where p begins with what can be trusted.
func (t *trust) settle(before, p *proven) {
	if before == nil || p.start == nil {
		return
	}
	for i := range t.doubts {
		if d := &t.doubts[i]; d.to == 0 {
			d.to = p.first.At.Wall
		}
	}
}

// doubt notes what a problem puts in doubt; p is the segment that it was found in.
func (t *trust) doubt(problem Problem, before, p *proven) {
	d := doubt{reason: MissingDamaged, first: problem, segment: p.segment.path}
	joins := problem.Line == 1 && before != nil && p.records > 0
	switch problem.Kind {
	case ProblemMissing:
		return
	case ProblemCarry, ProblemChain, ProblemSequence:
		if problem.Kind == ProblemCarry {
			d.reason = MissingContradicted
		}
		if joins {
			// It is the one before that does not come to what p begins with.
			d.segment, d.from = before.segment.path, before.first.At.Wall
			d.to = p.first.At.Wall
		} else {
			d.from = p.first.At.Wall
		}
		t.carries[d.segment] = true
	case ProblemRecord, ProblemConservation:
		d.reason, d.from = MissingContradicted, p.first.At.Wall
		t.carries[d.segment] = p.start != nil
	default:
		d.from = p.hurt
		if d.from == 0 && before != nil {
			d.from = before.last.At.Wall
		}
	}
	for i := range t.doubts {
		if o := &t.doubts[i]; o.segment == d.segment && o.reason == d.reason {
			o.from = min(o.from, d.from)
			return
		}
	}
	t.doubts = append(t.doubts, d)
}

// begin is the segment that has to be read first for what is in one: the last that begins with what can be understood alone.
func begin(segments []segment, at int) int {
	for ; at > 0; at-- {
		for line, err := range scanSegment(segments[at].path) {
			if err == nil && startsAnew(&line.Record) {
				return at
			}
			break
		}
	}
	return 0
}

// distrust says in an answer what of it cannot be trusted.
func (a *nodeAnswer) distrust(t *trust, e *extent, now time.Time) {
	for _, d := range t.doubts {
		to := time.UnixMilli(d.to)
		switch {
		case d.to == 0 && e.carry() != nil:
			to = time.UnixMilli(e.at.Wall)
		case d.to == 0:
			to = later(now, a.q.Boundaries[len(a.q.Boundaries)-1])
		}
		what := "lines of the log are not as they were written"
		if d.reason == MissingContradicted {
			what = "the log does not come to what it says itself"
		}
		a.within(time.UnixMilli(d.from), to, d.reason, fmt.Sprintf(
			"node %s: %s (%s, line %d, record %d: %s). What was charged in this time rests on what stood before and after it, as far as that is there, and cannot be proven: "+
				"take a copy of the ledger from before the damage; gpumeter verify says more",
			a.node.Node, what, filepath.Base(d.segment), d.first.Line, d.first.Record, d.first.Text))
	}
}

// ends says what the answer lacks because the log's end is not there, or is not the one that was committed.
func (a *nodeAnswer) ends(e *extent) {
	first, last := a.q.Boundaries[0], a.q.Boundaries[len(a.q.Boundaries)-1]
	switch {
	case e.foreign:
		a.within(first, last, MissingContradicted, fmt.Sprintf(
			"node %s: the log is not the one that the totals beside it are of: one of them was changed or put back; gpumeter verify says more", a.node.Node))
	case e.cut > 0:
		a.within(time.UnixMilli(e.end.wall), time.UnixMilli(max(e.at.Wall, e.end.wall+1)), "log_lost", fmt.Sprintf(
			"node %s: %d records at the end of the log are missing: what was charged in them is known as totals only", a.node.Node, e.cut))
	case e.unread != nil:
		a.notes = append(a.notes, fmt.Sprintf("node %s: whether the end of its log is there nothing can say: %v", a.node.Node, e.unread))
	}
}

// within notes what is missing as far as it was asked for.
func (a *nodeAnswer) within(from, to time.Time, reason, text string) {
	first, last := a.q.Boundaries[0], a.q.Boundaries[len(a.q.Boundaries)-1]
	if !to.After(from) {
		to = from.Add(time.Millisecond)
	}
	if from, to = later(from, first), earlier(to, last); to.After(from) {
		a.miss(Missing{From: from.UTC(), To: to.UTC(), Reason: reason, Text: text})
	}
}
