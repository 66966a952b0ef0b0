// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// maxFile bounds what is read: a node's conditions are some kilobytes.
const maxFile = 64 << 20

// file is one that is replaced as a whole, by one process at a time. Beside it lie name.lock, which
// says who that is, name.previous, which is what it was before it was last replaced, and name.new while
// it is being replaced.
type file struct {
	dir, name string
	lock      *os.File
}

func (f *file) path() string { return filepath.Join(f.dir, f.name) }

// previous is where the content before the present one is.
func (f *file) previous() string { return f.path() + ".previous" }

// claim makes the folder and becomes the one who writes.
func (f *file) claim() error {
	if f.lock != nil {
		return nil
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	lock, err := os.OpenFile(f.path()+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("claim the file: %w", err)
	}
	// A file system without locks has nobody to guard against that could be told apart.
	switch err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		_ = lock.Close()
		return fmt.Errorf("another process writes %s; one program at a time may use the folder", f.path())
	case err != nil && !errors.Is(err, syscall.ENOSYS) && !errors.Is(err, syscall.ENOTSUP) && !errors.Is(err, syscall.ENOLCK):
		_ = lock.Close()
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	f.lock = lock
	return nil
}

// release lets somebody else be the one.
func (f *file) release() error {
	if f.lock == nil {
		return nil
	}
	err := f.lock.Close()
	f.lock = nil
	return err
}

// read is the content of the file at path, and whether there is one.
func read(path string) ([]byte, bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, true, fmt.Errorf("it is no file of ours (%v, %d bytes)", info.Mode(), info.Size())
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, true, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile))
	return data, true, err
}

// putAside gives the file another name that nothing has, and returns it.
func (f *file) putAside(word string) (string, error) {
	base := fmt.Sprintf("%s.%s-%s", f.path(), word, time.Now().UTC().Format("20060102T150405Z"))
	aside := base
	for n := 2; ; n++ {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
		aside = fmt.Sprintf("%s-%d", base, n)
	}
	if err := os.Rename(f.path(), aside); err != nil {
		return "", err
	}
	return aside, f.syncDir()
}

// replace puts data in the file's place: all of it, or nothing.
func (f *file) replace(data []byte) error {
	if err := f.claim(); err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	fresh := f.path() + ".new"
	if err := write(fresh, data); err != nil {
		_ = os.Remove(fresh)
		return err
	}
	f.keepPrevious()
	if err := os.Rename(fresh, f.path()); err != nil {
		_ = os.Remove(fresh)
		return err
	}
	return f.syncDir()
}

// keepPrevious gives what is about to be replaced its second name. Where the file system has no second
// names, or there is nothing yet, the previous one stays as it is: it is a net, and no reason not to save.
func (f *file) keepPrevious() {
	spare := f.previous() + ".new"
	_ = os.Remove(spare)
	if err := os.Link(f.path(), spare); err != nil {
		return
	}
	if err := os.Rename(spare, f.previous()); err != nil {
		_ = os.Remove(spare)
	}
}

// write makes a file and waits until the disk has it.
func write(path string, data []byte) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err = out.Write(data); err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// syncDir waits until the disk has the folder's names.
func (f *file) syncDir() error {
	dir, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
