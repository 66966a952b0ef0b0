// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var errPowerCut = errors.New("the power is cut")

// faultyDisk lets the calls of a book go through until one of them, counted from 1, fails or is the last. It
// remembers what a disk surely has: what was not waited for can be lost when the power is cut, in part and in any order.
type faultyDisk struct {
	real osDisk
	// calls is how many there were; from at to until they fail with err. 0 is never.
	calls, at, until int
	err              error
	// half: a write that fails has written half.
	half bool
	// called are the calls in words.
	called []string
	names  map[string]*faultyFile
	// synced are the names that the disk surely has, the folder's changes since are in renames.
	synced  map[string]*faultyFile
	changes []map[string]*faultyFile
	// storeBefore and storeAfter are the totals' file around its last save.
	storeBefore, storeAfter []byte
}

// faultyFile is a file's content: what is synced, and what was since, each write as the content after it.
type faultyFile struct {
	now, synced []byte
	since       [][]byte
}

// newFaultyDisk knows what is in dir, all of it synced.
func newFaultyDisk(t testing.TB, dir string) *faultyDisk {
	t.Helper()
	d := &faultyDisk{real: osDisk{hasty: true}, names: map[string]*faultyFile{}}
	segments, err := listSegments(filepath.Join(dir, bookFolder))
	if err != nil {
		t.Fatal(err)
	}
	for _, seg := range segments {
		data, err := os.ReadFile(seg.path)
		if err != nil {
			t.Fatal(err)
		}
		d.names[seg.path] = &faultyFile{now: data, synced: data}
	}
	d.synced = maps.Clone(d.names)
	return d
}

// call counts one, and is the error that it fails with.
func (d *faultyDisk) call(what, path string) error {
	d.calls++
	d.called = append(d.called, what+" "+filepath.Base(path))
	if d.at > 0 && d.calls >= d.at && d.calls < d.until {
		return &fs.PathError{Op: what, Path: path, Err: d.err}
	}
	return nil
}

func (d *faultyDisk) changed() { d.changes = append(d.changes, maps.Clone(d.names)) }

func (d *faultyDisk) MkdirAll(dir string) error {
	if err := d.call("mkdir", dir); err != nil {
		return err
	}
	return d.real.MkdirAll(dir)
}

func (d *faultyDisk) Create(path string) (diskFile, error) {
	if err := d.call("create", path); err != nil {
		return nil, err
	}
	f, err := d.real.Create(path)
	if d.names[path] == nil {
		d.names[path] = &faultyFile{}
		d.changed()
	}
	d.names[path].become(nil)
	return &faultyHandle{d, d.names[path], path, f}, err
}

func (d *faultyDisk) Append(path string) (diskFile, error) {
	if err := d.call("open", path); err != nil {
		return nil, err
	}
	f, err := d.real.Append(path)
	return &faultyHandle{d, d.names[path], path, f}, err
}

func (d *faultyDisk) Rename(from, to string) error {
	if err := d.call("rename", to); err != nil {
		return err
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	d.changed()
	return d.real.Rename(from, to)
}

func (d *faultyDisk) Remove(path string) error {
	if err := d.call("remove", path); err != nil {
		return err
	}
	delete(d.names, path)
	d.changed()
	return d.real.Remove(path)
}

func (d *faultyDisk) SyncDir(dir string) error {
	if err := d.call("syncdir", dir); err != nil {
		return err
	}
	d.synced, d.changes = maps.Clone(d.names), nil
	return nil
}

func (d *faultyDisk) OpenStore(path string) (checkpoints, *checkpoint, error) {
	if err := d.call("open", path); err != nil {
		return nil, nil, err
	}
	s, c, err := d.real.OpenStore(path)
	if err != nil {
		return nil, nil, err
	}
	d.storeBefore, _ = os.ReadFile(path)
	d.storeAfter = d.storeBefore
	return &faultyStore{d, s, path}, c, nil
}

func (d *faultyDisk) CreateStore(path string, c *checkpoint) (checkpoints, error) {
	if err := d.call("create", path); err != nil {
		return nil, err
	}
	s, err := d.real.CreateStore(path, c)
	if err != nil {
		return nil, err
	}
	d.storeAfter, _ = os.ReadFile(path)
	d.storeBefore = d.storeAfter
	return &faultyStore{d, s, path}, nil
}

type faultyStore struct {
	disk *faultyDisk
	real checkpoints
	path string
}

func (s *faultyStore) Save(c *checkpoint) error {
	d := s.disk
	d.storeBefore = d.storeAfter
	if err := d.call("save", s.path); err != nil && !d.half {
		return err
	} else if err != nil {
		// It fails, and was saved all the same.
		err = errors.Join(err, s.real.Save(c))
		d.storeAfter, _ = os.ReadFile(s.path)
		return err
	}
	if err := s.real.Save(c); err != nil {
		return err
	}
	d.storeAfter, _ = os.ReadFile(s.path)
	d.storeBefore = d.storeAfter
	return nil
}

func (s *faultyStore) Close() error { return s.real.Close() }

func (f *faultyFile) become(data []byte) {
	f.now = data
	f.since = append(f.since, data)
}

type faultyHandle struct {
	disk *faultyDisk
	file *faultyFile
	path string
	real diskFile
}

func (h *faultyHandle) Write(data []byte) (int, error) {
	err := h.disk.call("write", h.path)
	if err != nil && !h.disk.half {
		return 0, err
	}
	if err != nil {
		data = data[:len(data)/2]
	}
	h.file.become(slices.Concat(h.file.now, data))
	n, realErr := h.real.Write(data)
	return n, errors.Join(err, realErr)
}

func (h *faultyHandle) Truncate(size int64) error {
	if err := h.disk.call("truncate", h.path); err != nil {
		return err
	}
	h.file.become(h.file.now[:size])
	return h.real.Truncate(size)
}

func (h *faultyHandle) Sync() error {
	if err := h.disk.call("sync", h.path); err != nil {
		return err
	}
	h.file.synced, h.file.since = h.file.now, nil
	return nil
}

func (h *faultyHandle) Close() error {
	return errors.Join(h.disk.call("close", h.path), h.real.Close())
}

// afterPowerCut is a folder as it may be found when the power is back: with all that was waited for, and with any
// part of what was not.
func (d *faultyDisk) afterPowerCut(t testing.TB, from string, rnd *rand.Rand) string {
	t.Helper()
	to := t.TempDir()
	if err := os.MkdirAll(filepath.Join(to, bookFolder), 0o755); err != nil {
		t.Fatal(err)
	}
	names := d.synced
	if n := rnd.IntN(len(d.changes) + 1); n > 0 {
		names = d.changes[n-1]
	}
	write := func(path string, data []byte) {
		path = filepath.Join(to, strings.TrimPrefix(path, from))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, file := range names {
		write(path, file.found(rnd))
	}
	if d.storeAfter != nil {
		write(filepath.Join(from, bookFolder, storeName), foundStore(d.storeBefore, d.storeAfter, rnd))
	}
	return to
}

const sector = 512

// found is what may be of a file: its size and each sector as of any moment since it was synced.
func (f *faultyFile) found(rnd *rand.Rand) []byte {
	if len(f.since) == 0 {
		return f.synced
	}
	states := append([][]byte{f.synced}, f.since...)
	out := make([]byte, len(states[rnd.IntN(len(states))]))
	for at := 0; at < len(out); at += sector {
		end := min(at+sector, len(out))
		state := states[rnd.IntN(len(states))]
		if at < len(state) {
			copy(out[at:end], state[at:])
		}
	}
	// What was synced and never cut is there.
	if kept := commonStart(states); kept > len(out) {
		out = bytes.Clone(f.synced[:kept])
	} else {
		copy(out, f.synced[:kept])
	}
	return out
}

func commonStart(states [][]byte) int {
	n := len(states[0])
	for _, s := range states {
		n = min(n, len(s))
	}
	return n
}

// foundStore is what may be of a bbolt file whose save was cut: bbolt waits for the data pages before it writes the meta
// page that points at them.
func foundStore(before, after []byte, rnd *rand.Rand) []byte {
	const page, metas = 4096, 2 * 4096
	switch {
	case bytes.Equal(before, after):
		return after
	case bytes.HasPrefix(after, []byte(storeWord)), len(after) < metas, len(before) < metas:
		// A file that is replaced is the one or the other.
		return [][]byte{before, after}[rnd.IntN(2)]
	}
	out := bytes.Clone(after)
	copy(out[:metas], before[:metas])
	switch rnd.IntN(4) {
	case 0:
		// The data pages are on their way.
		for at := metas; at < len(out); at += sector {
			if rnd.IntN(2) == 0 && at < len(before) {
				copy(out[at:min(at+sector, len(out))], before[at:])
			}
		}
	case 1:
		// They are there, and the meta page is not.
	case 2:
		// The meta page is half there.
		at := 0
		if !bytes.Equal(before[page:metas], after[page:metas]) {
			at = page
		}
		copy(out[at:at+16+rnd.IntN(60)], after[at:])
	case 3:
		return after
	}
	return out
}
