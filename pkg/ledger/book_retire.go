// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// agedAtOnce is how many segments may go for their age at a time. One day needs one; a wall clock that is wrong by
// years must not cost the whole log.
const agedAtOnce = 2

// retire removes the segments that are over the retention, oldest first and never the last, and notes what is left. What
// cannot be removed is tried again with the next segment.
func (b *Book) retire() {
	all, err := listSegments(b.dir)
	if err == nil {
		all, err = b.retireFrom(all)
	}
	if err != nil {
		b.log.Error("segments of the ledger's log cannot be retired", "dir", b.dir, "error", err)
		b.setState(func(s *BookState) { s.Errors[operationRetain]++ })
	}
	var before int64
	for _, seg := range all[:max(len(all)-1, 0)] {
		before += sizeOf(seg.path)
	}
	oldest := time.Time{}
	if len(all) > 0 {
		if at, err := firstAt(all[0].path); err == nil {
			oldest = time.UnixMilli(at.Wall)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view, b.closedSize, b.state.Oldest = nil, before, oldest
	b.state.Size = before + b.writer.size
}

// retireFrom removes what is over the retention, and returns what is left.
func (b *Book) retireFrom(all []segment) ([]segment, error) {
	var sum int64
	for _, seg := range all {
		sum += sizeOf(seg.path)
	}
	b.mu.Lock()
	now := b.account.at.Wall
	b.mu.Unlock()
	for aged := 0; len(all) > 1; all = all[1:] {
		// A segment's last record is before the first of the next.
		next, err := firstAt(all[1].path)
		old := err == nil && now-next.Wall > b.cfg.Retention.Milliseconds()
		switch {
		case sum > b.cfg.MaxBytes:
		case old && aged < agedAtOnce:
			aged++
		default:
			return all, nil
		}
		size := sizeOf(all[0].path)
		if err := b.disk.Remove(all[0].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return all, fmt.Errorf("remove %s: %w", filepath.Base(all[0].path), err)
		}
		b.log.Info("a segment of the ledger's log was retired; its totals are kept", "file", all[0].path, "bytes", size)
		sum -= size
	}
	return all, nil
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// firstAt is the instant of a segment's first record; its boot is not looked for.
func firstAt(path string) (Instant, error) {
	in, err := os.Open(path)
	if err != nil {
		return Instant{}, err
	}
	defer in.Close()
	// The head of a line is far shorter than that; its body need not be read.
	start := make([]byte, 256)
	n, err := io.ReadFull(in, start)
	if n <= lineSumLen+1+lineLinkLen+1 {
		return Instant{}, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	var r Record
	_, _, err = parseHead(start[lineSumLen+1+lineLinkLen+1:n], &r)
	return r.At, err
}
