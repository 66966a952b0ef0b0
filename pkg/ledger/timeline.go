// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
)

const (
	// clockSlack is by how many milliseconds two clocks may part between two records and still be said to go alike.
	clockSlack = 1000
	// longSlack is what part of a segment's length they may part over it: a clock that is being slewed.
	longSlack = 2000
	// farAhead is how many milliseconds a clock has to come back for that it was plainly wrong before.
	farAhead = 24 * 3600 * 1000
)

// head is when a record was, without what it says.
type head struct {
	seq  uint64
	kind Kind
	// boot and wall are in milliseconds, as in Instant.
	boot, wall int64
}

// alike reports whether the wall clock went as the boot clock did from h to next.
func (h head) alike(next head, slack int64) bool {
	boot, wall := next.boot-h.boot, next.wall-h.wall
	return boot >= 0 && wall-boot <= slack && boot-wall <= slack
}

// headOf reads a line's head. It looks at nothing else of the line.
func headOf(line []byte) (head, bool) {
	const start = lineSumLen + 1 + lineLinkLen + 1
	if len(line) < start {
		return head{}, false
	}
	var r Record
	kind, _, err := parseHead(line[start:], &r)
	return head{r.Seq, kind, r.At.Boot, r.At.Wall}, err == nil
}

// rawLines are the lines of a file with their newline, each until the next; one that ends without a newline is
// left out. A file that is not there any more has none.
func rawLines(path string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		in, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return
		} else if err != nil {
			yield(nil, fmt.Errorf("read the log: %w", err))
			return
		}
		defer in.Close()
		lines := bufio.NewReaderSize(in, 1<<16)
		var long []byte
		for {
			line, err := readLine(lines, &long)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(nil, fmt.Errorf("read the log: %s: %w", path, err))
				return
			case !yield(line, nil):
				return
			}
		}
	}
}

// raw are the lines of a segment that count, like rawLines.
func (s segment) raw() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for line, err := range rawLines(s.path) {
			if h, ok := headOf(line); ok && s.until > 0 && h.seq > s.until && intact(line) || !yield(line, err) {
				return
			}
		}
	}
}

// intact reports whether a line with its newline has the sum that it says.
func intact(line []byte) bool {
	if len(line) < lineSumLen+2 || line[len(line)-1] != '\n' {
		return false
	}
	want := lineSum(line[lineSumLen+1 : len(line)-1])
	return bytes.Equal(line[:lineSumLen], want[:])
}

// piece is a run of records of one segment in which both clocks went alike.
type piece struct {
	// segment is its position in the list of segments.
	segment int
	// start is its first record; last the sequence of its last one, and end when the next would have been by this piece's clock.
	start head
	last  uint64
	end   int64
	// run is the same for pieces of which each goes on where the one before ended.
	run int
	// wrong: the clock was far ahead, as what came after it shows.
	wrong bool
}

// timeline says which records were when by the wall clock, though that may have been set.
type timeline []piece

// readTimeline reads as little of the segments as it takes: the first line of each, and the whole of those within which
// the clocks parted.
func readTimeline(segments []segment) (timeline, error) {
	heads := make([]head, len(segments))
	for i, s := range segments {
		for line, err := range s.raw() {
			if err != nil {
				return nil, err
			}
			if intact(line) {
				heads[i], _ = headOf(line)
				break
			}
		}
	}
	var t timeline
	for i := range segments {
		if heads[i].seq == 0 {
			continue
		}
		if i+1 < len(segments) && heads[i+1].seq > heads[i].seq &&
			heads[i].alike(heads[i+1], clockSlack+(heads[i+1].boot-heads[i].boot)/longSlack) {
			t = append(t, piece{segment: i, start: heads[i], last: heads[i+1].seq - 1, end: heads[i+1].wall})
			continue
		}
		inside, err := readPieces(segments[i], i)
		if err != nil {
			return nil, err
		}
		t = append(t, inside...)
	}
	t.join()
	t.judge()
	return t, nil
}

// readPieces cuts a segment where the clocks part.
func readPieces(s segment, position int) (timeline, error) {
	var t timeline
	var before head
	for line, err := range s.raw() {
		if err != nil {
			return nil, err
		}
		h, ok := headOf(line)
		if !ok || !intact(line) {
			continue
		}
		if len(t) == 0 || !before.alike(h, clockSlack) {
			t = append(t, piece{segment: position, start: h})
		}
		p := &t[len(t)-1]
		p.last, p.end, before = h.seq, h.wall, h
	}
	return t, nil
}

// join numbers the runs.
func (t timeline) join() {
	for i := 1; i < len(t); i++ {
		before, p := &t[i-1], &t[i]
		p.run = before.run
		end := head{boot: before.start.boot + before.end - before.start.wall, wall: before.end}
		if !end.alike(p.start, clockSlack+(p.start.boot-before.start.boot)/longSlack) {
			p.run++
		}
	}
}

// judge finds the runs whose clock was far ahead: those after which it came back by more than a day and stayed
// there for longer than they were.
func (t timeline) judge() {
	if len(t) == 0 {
		return
	}
	runs := make([]struct{ start, end, length int64 }, t[len(t)-1].run+1)
	for i := range t {
		p := &t[i]
		r := &runs[p.run]
		if r.length == 0 && r.end == 0 {
			r.start = p.start.wall
		}
		r.end = p.end
		r.length += p.end - p.start.wall
	}
	for i := range t {
		r, after := &runs[t[i].run], int64(0)
		for _, later := range runs[t[i].run+1:] {
			if later.start < r.start-farAhead {
				after += later.length
			}
		}
		t[i].wrong = after > r.length
	}
}

// place is where in the log a moment of the wall clock is: at the last record of the segment that is not after
// the moment, of those from start up to last.
type place struct {
	segment int
	start   head
	last    uint64
}

// locate finds a moment. A moment that the clock showed twice is where it was first, one that it skipped is before
// the skip. False where it is before all records.
func (t timeline) locate(wall int64) (place, bool) {
	found, ok := place{}, false
	for i := range t {
		p := &t[i]
		goesOn := i+1 < len(t) && t[i+1].run == p.run
		switch {
		case p.wrong:
		case wall < p.start.wall:
			return found, ok
		case wall < p.end, wall == p.end && !goesOn:
			return place{p.segment, p.start, p.last}, true
		default:
			// All of it is before the moment, so its last record is what counts.
			found, ok = place{p.segment, head{seq: p.last}, p.last}, true
		}
	}
	return found, ok
}
