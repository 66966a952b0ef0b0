// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Reader answers questions of a ledger's folder, whether an exporter writes it meanwhile or not. It
// neither locks nor writes anything. It is safe for concurrent use.
type Reader struct {
	// dir is the folder of the segments.
	dir string
	now func() time.Time
}

// FindLedgers are the folders of the ledgers at dir: dir itself where it is one, a book or an exporter's
// --ledger-dir, else those right below it. The error says what was looked for.
func FindLedgers(dir string) ([]string, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("look for a ledger in %s: %w; want the --ledger-dir of an exporter", dir, err)
	}
	if holdsSegments(filepath.Join(dir, bookFolder)) || holdsSegments(dir) {
		return []string{dir}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for ledgers in %s: %w", dir, err)
	}
	var found []string
	for _, e := range entries {
		one := filepath.Join(dir, e.Name())
		if holdsSegments(filepath.Join(one, bookFolder)) || holdsSegments(one) {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no ledger in %s, nor in a folder right below it: want the --ledger-dir of an exporter, in which there is %s/%s",
			dir, bookFolder, segmentGlob)
	}
	slices.Sort(found)
	return found, nil
}

// holdsSegments reports whether a book's log is there.
func holdsSegments(dir string) bool {
	segments, err := listSegments(dir)
	return err == nil && len(segments) > 0
}

// OpenReader reads the ledger in dir, an exporter's --ledger-dir or the book within it. The error says
// where there is none.
func OpenReader(dir string) (*Reader, error) {
	book := filepath.Join(dir, bookFolder)
	if !holdsSegments(book) {
		if _, err := os.ReadDir(dir); err != nil {
			return nil, fmt.Errorf("open the ledger in %s: %w", dir, err)
		}
		if !holdsSegments(dir) {
			return nil, fmt.Errorf("open the ledger in %s: %w: want the --ledger-dir of an exporter, in which there is %s/%s",
				dir, fs.ErrNotExist, bookFolder, segmentGlob)
		}
		book = dir
	}
	if real, err := filepath.EvalSymlinks(book); err == nil {
		book = real
	}
	if absolute, err := filepath.Abs(book); err == nil {
		book = absolute
	}
	return &Reader{dir: book, now: time.Now}, nil
}

// At is r with another clock than time.Now: it says until when a ledger that has nothing newer lacks something.
func (r *Reader) At(now func() time.Time) *Reader { return &Reader{dir: r.dir, now: now} }

// Dir is the folder of the book, absolute, links followed.
func (r *Reader) Dir() string { return r.dir }

// Identity is what the ledger's last page says of whose it is: its id, node and cluster, and how MIG devices are weighed.
func (r *Reader) Identity() (Begin, error) {
	segments, err := listSegments(r.dir)
	if err != nil {
		return Begin{}, err
	}
	for _, s := range slices.Backward(segments) {
		for line, err := range scanSegment(s.path) {
			if err != nil || !startsAnew(&line.Record) {
				break
			}
			a := NewAccount()
			if err := a.Apply(line.Record); err != nil {
				break
			}
			return a.begin, nil
		}
	}
	return Begin{}, fmt.Errorf("read the ledger in %s: no segment of it can be read; gpumeter verify says what is wrong", r.dir)
}
