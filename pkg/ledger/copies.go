// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Distinct are the readers without those of copies: of the ledgers with one id that which goes on for longest, as a backup
// is a ledger at an earlier age. Of copies that went on apart from each other one of a node among nodes goes before the
// others. A ledger whose id cannot be read is kept.
func Distinct(ctx context.Context, readers []*Reader, nodes []string) ([]*Reader, error) {
	kept, err := distinct(ctx, readers, nodes)
	out := make([]*Reader, len(kept))
	for i := range kept {
		out[i] = kept[i].Reader
	}
	return out, err
}

// original is a ledger that stands for its copies too.
type original struct {
	*Reader
	// notes are about copies that are in it whole.
	notes []string
	// rivals went on apart from it.
	rivals []rival
}

// rival is a copy of a ledger that went on apart from it.
type rival struct {
	dir, node string
	// from is when the last record was that both have, by the wall clock; zero where that is not kept.
	from time.Time
}

// ending is the last record of a ledger.
type ending struct {
	*Reader
	node string
	seq  uint64
	wall int64
	link link
}

// distinct keeps the order of the readers.
func distinct(ctx context.Context, readers []*Reader, nodes []string) ([]original, error) {
	byID := map[string][]int{}
	if len(readers) > 1 {
		for i, r := range readers {
			if id, err := r.Identity(); err == nil {
				byID[id.LedgerID] = append(byID[id.LedgerID], i)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	all := make([]original, len(readers))
	for i, r := range readers {
		all[i].Reader = r
	}
	for _, same := range byID {
		if len(same) < 2 {
			continue
		}
		if err := settle(ctx, all, same, nodes); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(all, func(o original) bool { return o.Reader == nil }), nil
}

// settle keeps one of those of all that have the same id, and takes the readers of the others away.
func settle(ctx context.Context, all []original, same []int, nodes []string) error {
	ends := make([]ending, len(same))
	for i, at := range same {
		var err error
		if ends[i], err = all[at].ending(ctx); err != nil {
			return err
		}
	}
	first := 0
	for i := range ends {
		if ends[i].before(&ends[first], nodes) {
			first = i
		}
	}
	kept := &all[same[first]]
	for i := range ends {
		if i == first {
			continue
		}
		if ends[i].apart(&ends[first]) {
			from, err := parting(ctx, kept.Reader, ends[i].Reader)
			if err != nil {
				return err
			}
			kept.rivals = append(kept.rivals, rival{ends[i].dir, ends[i].node, from})
		} else {
			kept.notes = append(kept.notes, fmt.Sprintf("%s and %s are copies of one ledger, and all of the latter is in the former, which is counted", kept.dir, ends[i].dir))
		}
		all[same[i]].Reader = nil
	}
	return nil
}

// ending is the newest record of r that is whole.
func (r *Reader) ending(ctx context.Context) (ending, error) {
	e := ending{Reader: r}
	segments, err := listSegments(r.dir)
	if err != nil {
		return e, err
	}
	for _, s := range slices.Backward(segments) {
		for line, err := range scanSegment(s.path) {
			if ctx.Err() != nil {
				return e, ctx.Err()
			}
			if err != nil || line.Body == nil {
				continue
			}
			e.seq, e.wall, e.link = line.Seq, line.At.Wall, line.Link
			if b, ok := line.Body.(*Begin); ok {
				e.node = b.Node
			}
		}
		if e.seq > 0 {
			break
		}
	}
	if e.node == "" {
		id, err := r.Identity()
		if err != nil {
			return e, err
		}
		e.node = id.Node
	}
	return e, nil
}

// before reports whether e is to be counted rather than other.
func (e *ending) before(other *ending, nodes []string) bool {
	if !e.apart(other) {
		return e.seq > other.seq
	}
	if mine, theirs := slices.Contains(nodes, e.node), slices.Contains(nodes, other.node); mine != theirs {
		return mine
	}
	return e.wall > other.wall
}

// apart reports whether the two have another record each in the same place. Where the longer one does not keep that place any more it
// is taken for the same ledger.
func (e *ending) apart(other *ending) bool {
	if e.seq > other.seq {
		e, other = other, e
	}
	if e.seq == other.seq {
		return e.link != other.link
	}
	for _, l := range other.links(e.seq, e.seq) {
		return l.link != e.link
	}
	return false
}

// placed is the link of a record, and its wall clock.
type placed struct {
	link link
	wall int64
}

// links are those of the records from one sequence up to another, as far as they can be read.
func (r *Reader) links(from, to uint64) map[uint64]placed {
	found := map[uint64]placed{}
	segments, err := listSegments(r.dir)
	if err != nil {
		return found
	}
	for i, s := range segments {
		if s.first > to || i+1 < len(segments) && segments[i+1].first <= from {
			continue
		}
		for line, err := range rawLines(s.path) {
			if err != nil {
				break
			}
			if h, ok := headOf(line); ok && h.seq >= from && h.seq <= to {
				found[h.seq] = placed{linkOf(line), h.wall}
			}
		}
	}
	return found
}

// parting is when the last record was that both ledgers have; zero where neither keeps one.
func parting(ctx context.Context, one, other *Reader) (time.Time, error) {
	segments, err := listSegments(one.dir)
	if err != nil {
		return time.Time{}, err
	}
	to := ^uint64(0)
	for _, s := range slices.Backward(segments) {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		theirs := other.links(s.first, to)
		last, wall := uint64(0), int64(0)
		for seq, mine := range one.links(s.first, to) {
			if theirs[seq].link == mine.link && seq > last {
				last, wall = seq, mine.wall
			}
		}
		if last > 0 {
			return time.UnixMilli(wall).UTC(), nil
		}
		to = s.first - 1
	}
	return time.Time{}, nil
}

// miss says in an answer what it lacks because of rivals.
func (o *original) miss(a *nodeAnswer) {
	a.notes = append(a.notes, o.notes...)
	first, last := a.q.Boundaries[0], a.q.Boundaries[len(a.q.Boundaries)-1]
	for _, x := range o.rivals {
		if !x.from.Before(last) {
			a.notes = append(a.notes, fmt.Sprintf("%s and %s are copies of one ledger that are the same for this period: it is counted once", o.dir, x.dir))
			continue
		}
		a.miss(Missing{From: later(x.from, first).UTC(), To: last.UTC(), Reason: "cloned", Text: fmt.Sprintf(
			"the ledgers in %s (node %s) and %s (node %s) are copies of one ledger that both went on: the former is counted, and what the latter charged after that is not. "+
				"Remove the folder %q from the --ledger-dir of the copy and start its exporter anew, so that it begins a ledger of its own; ask for the latter alone to see what is in it",
			o.dir, a.node.Node, x.dir, x.node, bookFolder)})
	}
}
