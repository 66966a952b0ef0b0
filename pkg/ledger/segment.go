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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A log is one or more segments, files that are only ever appended to. The first record of each is a Carry, so
// that each can be understood without those before it.
const (
	segmentPrefix = "log-"
	segmentSuffix = ".gml"
	segmentDigits = 12
	// segmentGlob matches the names of segments.
	segmentGlob = segmentPrefix + "*" + segmentSuffix
)

// segment is one file of the log.
type segment struct {
	path string
	// first is the sequence of its first record.
	first uint64
	// until is the last record of it that counts, 0 where all do.
	until uint64
}

func segmentName(first uint64) string {
	return fmt.Sprintf("%s%0*d%s", segmentPrefix, segmentDigits, first, segmentSuffix)
}

// segmentFirst is the sequence in a segment's name, and whether it is one.
func segmentFirst(name string) (uint64, bool) {
	digits, is := strings.CutPrefix(name, segmentPrefix)
	digits, also := strings.CutSuffix(digits, segmentSuffix)
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, is && also && err == nil && name == segmentName(first)
}

// listSegments are the segments in dir, oldest first; none where dir is not there.
func listSegments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the log: %w", err)
	}
	var all []segment
	for _, e := range entries {
		if first, ok := segmentFirst(e.Name()); ok && e.Type().IsRegular() {
			all = append(all, segment{path: filepath.Join(dir, e.Name()), first: first})
		}
	}
	// By number and not by name: a thirteenth digit would come too early.
	slices.SortFunc(all, func(a, b segment) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	return all, nil
}

// scanned is one line of the log.
type scanned struct {
	Record
	// Path, Offset and Size are where it is, its newline included.
	Path   string
	Offset int64
	Size   int
	// Prev is the link that it repeats, Link its own.
	Prev, Link link
}

// The kinds of damage.
const (
	// damageTorn: the end of the last segment is no whole line. A writer may be at it, or was killed there.
	damageTorn = "torn"
	// damageCorrupt: a line is not as it was written.
	damageCorrupt = "corrupt"
	// damageNewer: a later version wrote it.
	damageNewer = "newer"
	// damageChain: the line is whole, and not the one that was written after the line before it.
	damageChain = "chain"
	// damageOrder: the line's sequence is not above the one before.
	damageOrder = "order"
	// damageUnread: the file cannot be read.
	damageUnread = "unread"
)

// damage is what is wrong at one place of the log.
type damage struct {
	// What is one of the kinds of damage.
	What   string
	Path   string
	Offset int64
	// Size is of the bytes that are of no use, 0 where they are.
	Size int64
	// After is the sequence of the last good record before, 0 where there is none.
	After uint64
	Err   error
}

func (d *damage) Error() string {
	return fmt.Sprintf("%s at byte %d, after record %d: %v", d.Path, d.Offset, d.After, d.Err)
}

func (d *damage) Unwrap() error { return d.Err }

var (
	errTorn  = errors.New("the last line is not whole")
	errChain = errors.New("it does not follow the line before: one was changed, taken out or put in")
	errOrder = errors.New("its sequence does not follow")
)

// scanner goes over lines in their order.
type scanner struct {
	// seq, link and boot are of the last good line; known says that link is.
	seq   uint64
	link  link
	boot  string
	known bool
	// until is the last record that is wanted, 0 for all.
	until uint64
}

// scanSegments goes over the log in dir. Every error is a *damage, and the scan goes on after it, with the next
// whole line; for damageChain and damageOrder the line is told beside it. The sequences ascend. The
// first line's link is not checked: lines before it may have been retired.
func scanSegments(dir string) iter.Seq2[scanned, error] {
	return func(yield func(scanned, error) bool) {
		all, err := listSegments(dir)
		if err != nil {
			yield(scanned{}, &damage{What: damageUnread, Path: dir, Err: err})
			return
		}
		var s scanner
		for i, seg := range all {
			if !s.scan(seg.path, i == len(all)-1, yield) {
				return
			}
		}
	}
}

// scanSegment goes over one segment as the last one of a log, like scanSegments.
func scanSegment(path string) iter.Seq2[scanned, error] {
	return func(yield func(scanned, error) bool) {
		var s scanner
		s.scan(path, true, yield)
	}
}

// scan goes over one segment; false where yield wants no more.
func (s *scanner) scan(path string, last bool, yield func(scanned, error) bool) bool {
	in, err := os.Open(path)
	if err != nil {
		s.known = false
		// A segment that went with its age since the folder was listed is no damage.
		return errors.Is(err, fs.ErrNotExist) || yield(scanned{}, &damage{What: damageUnread, Path: path, After: s.seq, Err: err})
	}
	defer in.Close()
	lines := bufio.NewReaderSize(in, 1<<20)
	var long []byte
	for offset := int64(0); ; {
		line, err := readLine(lines, &long)
		size := int64(len(line))
		switch {
		case errors.Is(err, io.EOF) && size == 0:
			return true
		case errors.Is(err, io.EOF) && last:
			return yield(scanned{}, &damage{What: damageTorn, Path: path, Offset: offset, Size: size, After: s.seq, Err: errTorn})
		case err != nil && !errors.Is(err, io.EOF):
			s.known = false
			return yield(scanned{}, &damage{What: damageUnread, Path: path, Offset: offset, Size: size, After: s.seq, Err: err})
		}
		at := scanned{Path: path, Offset: offset, Size: len(line)}
		if !s.take(line, at, yield) {
			return false
		}
		offset += size
	}
}

// take hands one line on, its newline included where it has one.
func (s *scanner) take(line []byte, at scanned, yield func(scanned, error) bool) bool {
	after := s.seq
	wrong := func(what string, size int64, err error) *damage {
		return &damage{What: what, Path: at.Path, Offset: at.Offset, Size: size, After: after, Err: err}
	}
	text, whole := bytes.CutSuffix(line, []byte("\n"))
	r, prev, err := parseLine(text, s.boot)
	if err == nil && !whole {
		err = fmt.Errorf("%w: %w", errCorrupt, errTorn)
	}
	if err != nil {
		what := damageCorrupt
		if errors.Is(err, errNewer) {
			what = damageNewer
		}
		s.known = false
		return yield(scanned{}, wrong(what, int64(len(line)), err))
	}
	if s.until > 0 && r.Seq > s.until {
		return false
	}
	at.Record, at.Prev, at.Link = r, prev, linkOf(line)
	chained, ordered := !s.known || prev == s.link, r.Seq > s.seq
	s.seq, s.link, s.boot, s.known = r.Seq, at.Link, r.At.BootID, true
	switch {
	case !chained:
		return yield(at, wrong(damageChain, 0, errChain))
	case !ordered:
		return yield(at, wrong(damageOrder, 0, errOrder))
	}
	return yield(at, nil)
}

// readLine is the next line with its newline, which stands until the next call; io.EOF with what there is of the
// last one. A line that is longer than any is told in pieces.
func readLine(in *bufio.Reader, long *[]byte) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	*long = append((*long)[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) && len(*long) < maxLine {
		line, err = in.ReadSlice('\n')
		*long = append(*long, line...)
	}
	if errors.Is(err, bufio.ErrBufferFull) {
		err = nil
	}
	return *long, err
}
