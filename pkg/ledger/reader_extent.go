// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// totalsTries is how often totals are read that an exporter may be writing, totalsPause what is waited between.
	totalsTries = 5
	totalsPause = 20 * time.Millisecond
)

// extent is what there is of a ledger, and how much of it counts: what was committed, which the totals beside the log say.
type extent struct {
	// segments end with the last committed record; all do not.
	segments, all []segment
	// totals are nil where they are not to be had, which unread says why. At is when they are of.
	totals *checkpoint
	at     Instant
	unread error
	// end is the log's last whole record that the totals have; cut is how many they have behind it.
	end head
	cut uint64
	// foreign: the log's record of the totals' number is not the one that they are of.
	foreign bool
	// pending is how many records the log has behind the totals.
	pending uint64
}

// extent looks at the totals before the log, which is always written first: so the log has what they are of.
func (r *Reader) extent() (extent, error) {
	var e extent
	e.totals, e.at, e.unread = readTotals(filepath.Join(r.dir, storeName))
	var err error
	if e.all, err = listSegments(r.dir); err != nil {
		return e, err
	}
	e.segments = e.all
	if e.totals == nil {
		return e, nil
	}
	seq := e.totals.Seq
	there, same, newest := e.find()
	// Totals that are older than all that is kept are a copy that was put back.
	e.foreign = there && !same || len(e.all) > 0 && seq+1 < e.all[0].first
	if e.foreign {
		return e, nil
	}
	e.cut = seq - e.end.seq
	if newest > seq {
		e.pending = newest - seq
		e.segments = nil
		for _, s := range e.all {
			if s.first <= seq {
				s.until = seq
				e.segments = append(e.segments, s)
			}
		}
	}
	return e, nil
}

// carry is what the totals say as a record that begins a segment says it; nil where they are not to be had.
func (e *extent) carry() *Record {
	if e.totals == nil || e.foreign || e.totals.Seq == 0 {
		return nil
	}
	return &Record{Seq: e.totals.Seq + 1, At: e.at, Body: &Carry{State: e.totals.State}}
}

// find looks for the totals' record in the log, and for the end before it. There says that it was found, same that it is theirs;
// newest is the last record of all.
func (e *extent) find() (there, same bool, newest uint64) {
	for _, s := range slices.Backward(e.all) {
		for line, err := range s.raw() {
			if err != nil {
				break
			}
			h, ok := headOf(line)
			if !ok || !intact(line) {
				continue
			}
			newest = max(newest, h.seq)
			if h.seq > e.end.seq && h.seq <= e.totals.Seq {
				e.end = h
			}
			if h.seq == e.totals.Seq {
				there, same = true, linkOf(line).String() == e.totals.Link
			}
		}
		if s.first <= e.totals.Seq && e.end.seq > 0 {
			break
		}
	}
	return there, same, newest
}

// readTotals reads a copy of the totals at path: an exporter has them open, and may be writing them.
func readTotals(path string) (*checkpoint, Instant, error) {
	var err error
	for try := range totalsTries {
		if try > 0 {
			time.Sleep(totalsPause)
		}
		var c *checkpoint
		var a *Account
		if c, err = copyOfTotals(path); err == nil {
			a, err = restored(c)
		}
		if err == nil {
			return c, a.at, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return nil, Instant{}, err
}

func copyOfTotals(path string) (_ *checkpoint, err error) {
	data, there, err := read(path)
	if err == nil && !there {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("read the totals %s: %w", path, err)
	}
	out, err := os.CreateTemp("", "gpumeter-totals-")
	if err != nil {
		return nil, fmt.Errorf("copy the totals %s: %w; want a folder for temporary files ($TMPDIR)", path, err)
	}
	defer func() { err = errors.Join(err, os.Remove(out.Name())) }()
	_, err = out.Write(data)
	if err = errors.Join(err, out.Close()); err != nil {
		return nil, fmt.Errorf("copy the totals %s: %w; want room for temporary files ($TMPDIR)", path, err)
	}
	s, c, err := osDisk{hasty: true}.openStore(out.Name())
	if err != nil {
		return nil, fmt.Errorf("read the totals %s: %w", path, err)
	}
	return c, s.Close()
}
