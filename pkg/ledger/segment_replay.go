// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// replayed is a segment as it was folded, as far as that goes.
type replayed struct {
	path    string
	account *Account
	// good is how many bytes could be folded, last the last line in them, first the first.
	good        int64
	first, last scanned
	// links are those of the lines, by sequence.
	links map[uint64]link
	// wrong is what the first bad thing is, nil where there is none; whole says that there are good lines behind it.
	wrong error
	whole bool
}

// replay folds a segment. What is behind the record covered may be the beginning of a write that was cut, so that its
// last observation may be half there: it is left out, unless covered is nil. The error says that the segment cannot be read.
func replay(path string, covered *uint64) (*replayed, error) {
	r := &replayed{path: path, account: NewAccount(), links: map[uint64]link{}}
	var lines []scanned
	for line, err := range scanSegment(path) {
		var d *damage
		switch {
		case errors.As(err, &d) && d.What == damageUnread && !errors.Is(err, syscall.EIO):
			return nil, fmt.Errorf("read the log: %w", err)
		case r.wrong != nil:
			r.whole = r.whole || line.Body != nil
		case err != nil:
			// What a later version wrote is no rest of a write that was cut.
			r.wrong, r.whole = err, line.Body != nil || errors.Is(err, errNewer)
		default:
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 && r.wrong == nil {
		r.wrong = fmt.Errorf("%w: %s is empty", errCorrupt, path)
	}
	if covered != nil {
		lines = withoutHalf(lines, *covered)
	}
	for _, line := range lines {
		if err := r.account.Apply(line.Record); err != nil {
			// The account refuses a record as a whole, so it is still as of the one before.
			r.wrong, r.whole = fmt.Errorf("%s at byte %d: %w: %w", line.Path, line.Offset, errCorrupt, err), true
			break
		}
		if r.last.Body == nil {
			r.first = line
		}
		r.good, r.last = line.Offset+int64(line.Size), line
		r.links[line.Seq] = line.Link
	}
	return r, nil
}

// withoutHalf is lines without those behind the record covered that are of the last instant. A Carry is
// only ever written behind a whole observation.
func withoutHalf(lines []scanned, covered uint64) []scanned {
	end := len(lines)
	for end > 0 {
		line := &lines[end-1]
		if line.Seq <= covered || line.Body.Kind() == KindCarry || line.At != lines[len(lines)-1].At {
			break
		}
		end--
	}
	return lines[:end]
}

// goesWith says whether a checkpoint is one of this log, as far as can be seen.
func (r *replayed) goesWith(c *checkpoint) bool {
	if at, there := r.links[c.Seq]; there && at.String() != c.Link {
		return false
	}
	id := r.account.begin.LedgerID
	return id == "" || c.LedgerID == "" || id == c.LedgerID
}

// seq is the sequence of the last good line, 0 where there is none.
func (r *replayed) seq() uint64 { return r.last.Seq }

// torn says that only the end is bad, as after a crash within a write.
func (r *replayed) torn() bool { return r.wrong != nil && !r.whole && r.last.Body != nil }

// word says what is wrong in one word.
func (r *replayed) word() string {
	if errors.Is(r.wrong, errNewer) {
		return wordNewer
	}
	return wordCorrupt
}

// writer goes on behind the last good line.
func (r *replayed) writer(d disk, dir string) *logWriter {
	return &logWriter{
		disk: d, dir: dir, path: r.path, size: r.good, started: r.first.At,
		seq: r.last.Seq, link: r.last.Link, boot: r.last.At.BootID,
	}
}

// readStart is the first size bytes of a file.
func readStart(path string, size int64) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data := make([]byte, size)
	_, err = io.ReadFull(in, data)
	return data, err
}
