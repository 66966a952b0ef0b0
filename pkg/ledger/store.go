// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// checkpoint is all that the log came to, as of one of its records. It stands beside the log so that a log that
// loses its end does not make a counter fall.
type checkpoint struct {
	LedgerID string `json:"ledger_id"`
	// Seq, Link and BootID are the record's.
	Seq    uint64 `json:"seq"`
	Link   string `json:"link"`
	BootID string `json:"boot_id"`
	// State is Account's.
	State json.RawMessage `json:"state"`
}

// linked is the link of the record.
func (c *checkpoint) linked() (link, error) {
	var l link
	if n, err := hex.Decode(l[:], []byte(c.Link)); err != nil || n != len(l) {
		return l, fmt.Errorf("%w: the link %.40q", errCorrupt, c.Link)
	}
	return l, nil
}

const (
	// storeName is the file of the checkpoint, in the folder of the log.
	storeName = "totals.db"
	// storeWord begins the checkpoint within it: bbolt's own sums cover only what finds it.
	storeWord   = "gpumeter-totals"
	storeBucket = "book"
	storeKey    = "totals"
	// storeWait is how long a lock that another process has on it is waited for.
	storeWait = time.Second
)

// store keeps a checkpoint in a file. It is not safe for concurrent use.
type store struct{ db *bbolt.DB }

// openStore opens the store at path and reads it. The error is fs.ErrNotExist where there is none, errCorrupt or
// errNewer where there is one that is of no use.
func (d osDisk) openStore(path string) (*store, *checkpoint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open the totals: %w", err)
	}
	s := &store{}
	c := &checkpoint{}
	err = shielded(func() error {
		if s.db, err = d.bolt(path); err != nil {
			return err
		}
		return s.load(info.Size(), c)
	})
	if err == nil {
		return s, c, nil
	}
	var errno syscall.Errno
	if !errors.Is(err, errNewer) && !errors.Is(err, bolterrors.ErrTimeout) && !errors.As(err, &errno) {
		// It is not the disk that complains, and not another process.
		err = fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return nil, nil, errors.Join(fmt.Errorf("open %s: %w", path, err), s.Close())
}

// createStore makes the store at path with its first checkpoint, in place of whatever is there. A crash within
// leaves what was.
func (d osDisk) createStore(path string, c *checkpoint) (*store, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the totals: %w", err)
	}
	s := &store{}
	err := shielded(func() error {
		var err error
		if s.db, err = d.bolt(fresh); err != nil {
			return err
		}
		return s.put(c)
	})
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = d.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the totals %s: %w", path, err), s.Close())
	}
	return s, nil
}

func (d osDisk) bolt(path string) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o644, &bbolt.Options{Timeout: storeWait, NoSync: d.hasty, NoGrowSync: d.hasty})
}

// load reads the checkpoint of a database whose file has so many bytes.
func (s *store) load(size int64, c *checkpoint) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		// What is mapped behind the end of a file kills the program that reads it.
		if tx.Size() > size {
			return fmt.Errorf("%d bytes where %d were written", size, tx.Size())
		}
		bucket := tx.Bucket([]byte(storeBucket))
		if bucket == nil {
			return errors.New("it has no checkpoint")
		}
		payload, err := unseal(storeWord, bucket.Get([]byte(storeKey)))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(payload, c); err != nil {
			return fmt.Errorf("%w: %w", errNewer, err)
		}
		_, err = c.linked()
		return err
	})
}

// Save replaces the checkpoint and waits until the disk has it. After an error it is the one before or the new one,
// and the store must be opened again.
func (s *store) Save(c *checkpoint) error {
	return shielded(func() error { return s.put(c) })
}

func (s *store) put(c *checkpoint) error {
	payload, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte(storeBucket))
		if err != nil {
			return err
		}
		return bucket.Put([]byte(storeKey), seal(storeWord, payload))
	})
}

func (s *store) Close() error {
	if s == nil || s.db == nil {
		return nil
	}
	return shielded(s.db.Close)
}

// OpenStore is openStore, which never gives a store that is nil in the coat of one that is not.
func (d osDisk) OpenStore(path string) (checkpoints, *checkpoint, error) {
	s, c, err := d.openStore(path)
	if err != nil {
		return nil, nil, err
	}
	return s, c, nil
}

// CreateStore is createStore.
func (d osDisk) CreateStore(path string, c *checkpoint) (checkpoints, error) {
	s, err := d.createStore(path, c)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// shielded turns a panic within f into an error: bbolt panics where a page is not what it should be, and reading a
// file that somebody cut is a fault of memory.
func shielded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errCorrupt, p)
		}
	}()
	return f()
}
