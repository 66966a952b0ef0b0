// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"io"
	"os"
)

// disk is what a book does to the files of its log, step by step; reading is not among it.
type disk interface {
	// MkdirAll makes a folder and those above it.
	MkdirAll(dir string) error
	// Create makes an empty file, or empties the one that is there.
	Create(path string) (diskFile, error)
	// Append opens a file that is there, to be written at its end.
	Append(path string) (diskFile, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir waits until the disk has the names of a folder.
	SyncDir(dir string) error
	// OpenStore opens the store at path and reads it. The error is fs.ErrNotExist where there is none, errCorrupt
	// or errNewer where there is one that is of no use.
	OpenStore(path string) (checkpoints, *checkpoint, error)
	// CreateStore makes one with its first checkpoint, in place of whatever is there: all of it or nothing.
	CreateStore(path string, c *checkpoint) (checkpoints, error)
}

// checkpoints is a store that is open. After an error of Save it must be opened again.
type checkpoints interface {
	// Save replaces the checkpoint and waits until the disk has it.
	Save(c *checkpoint) error
	Close() error
}

// diskFile is a file that is being written.
type diskFile interface {
	io.WriteCloser
	Truncate(size int64) error
	// Sync waits until the disk has what was written.
	Sync() error
}

// osDisk is the machine's.
type osDisk struct {
	// hasty leaves out every wait for the disk; it is for measuring what the rest takes.
	hasty bool
}

func (osDisk) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o755) }

func (d osDisk) Create(path string) (diskFile, error) {
	return d.file(os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644))
}

func (d osDisk) Append(path string) (diskFile, error) {
	return d.file(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o644))
}

// file keeps a nil file from becoming a diskFile that is not nil.
func (d osDisk) file(f *os.File, err error) (diskFile, error) {
	switch {
	case err != nil:
		return nil, err
	case d.hasty:
		return hastyFile{f}, nil
	}
	return f, nil
}

// hastyFile is one that nobody waits for.
type hastyFile struct{ *os.File }

// Sync waits for nothing.
func (hastyFile) Sync() error { return nil }

func (osDisk) Rename(from, to string) error { return os.Rename(from, to) }
func (osDisk) Remove(path string) error     { return os.Remove(path) }

func (d osDisk) SyncDir(dir string) error {
	if d.hasty {
		return nil
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
