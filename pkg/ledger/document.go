// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// document is a file with one value in it. It is safe for concurrent use; saves wait for each other.
type document[V any] struct {
	// word begins the file, what names the value for people, and loss says what it costs to be without.
	word, what, loss string

	mu   sync.Mutex
	file file
	// found is what open made of what there was.
	found Restored
	// unread is why the file on disk could not be read while it was not possible to put it aside
	// either: until it is, nothing may be written over it.
	unread *unreadError
}

// open claims the file and reads what was saved last, the zero V where nothing was. Where that is damaged or
// gone and what was saved before it is there, it is that. The errors say what is wrong, and what that costs.
func (d *document[V]) open() (V, []error) {
	var errs []error
	if err := d.file.claim(); err != nil {
		errs = append(errs, fmt.Errorf("%s cannot be saved in %s, so a restart forgets them: %w", d.what, d.file.dir, err))
	}
	value, there, err := d.load(d.file.path())
	if err == nil && there {
		d.found = RestoredLast
		return value, errs
	}
	before, had, worse := d.load(d.file.previous())
	had = had && worse == nil
	switch {
	case err == nil && had:
		d.found = RestoredPrevious
		return before, append(errs, fmt.Errorf("%s is gone; %s is used, which may lack what changed last", d.file.path(), d.file.previous()))
	case err == nil:
		d.found = RestoredNew
		return value, errs
	case !errors.As(err, &d.unread):
		d.found = RestoredUnread
		return value, append(errs, err)
	}
	d.found = Restored(d.unread.word)
	// What a newer version left behind as the one before is of unknown age.
	loss := d.loss
	if had && d.found != RestoredNewer {
		d.found, value = RestoredPrevious, before
		loss = d.file.previous() + " is used, which may lack what changed last"
	}
	aside, failed := d.putAside()
	if failed != nil {
		return value, append(errs, fmt.Errorf("%w; it cannot be put aside either, and stays: %w; %s", err, failed, loss))
	}
	return value, append(errs, fmt.Errorf("%w; it is kept as %s, and %s", err, aside, loss))
}

// load reads a file, and says whether there is one. An *unreadError says that there is one which cannot be
// used.
func (d *document[V]) load(path string) (V, bool, error) {
	var zero V
	unread := func(word string, err error) (V, bool, error) {
		return zero, true, &unreadError{path: path, word: word, err: err}
	}
	data, there, err := read(path)
	if err != nil {
		return unread(wordUnread, err)
	}
	if !there {
		return zero, false, nil
	}
	payload, err := unseal(d.word, data)
	if errors.Is(err, errNewer) {
		return unread(wordNewer, err)
	} else if err != nil {
		return unread(wordCorrupt, err)
	}
	var value V
	if err := json.Unmarshal(payload, &value); err != nil {
		// Its sum is right, so this is what some version wrote.
		return unread(wordNewer, err)
	}
	return value, true, nil
}

// putAside renames the file that could not be read, and says to what.
func (d *document[V]) putAside() (string, error) {
	if err := d.file.claim(); err != nil {
		return "", err
	}
	aside, err := d.file.putAside(d.unread.word)
	if err != nil {
		return "", err
	}
	d.unread = nil
	return aside, nil
}

func (d *document[V]) save(value V) error {
	payload, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write down %s: %w", d.what, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unread != nil {
		if _, err := d.putAside(); err != nil {
			return fmt.Errorf("save %s: %s cannot be read and is not written over: %w", d.what, d.file.path(), err)
		}
	}
	if err := d.file.replace(seal(d.word, payload)); err != nil {
		return fmt.Errorf("save %s: %w", d.what, err)
	}
	return nil
}

func (d *document[V]) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.file.release()
}

// Restored is what became at the start of what was saved before.
type Restored string

// What can have become of it.
const (
	// RestoredNew: nothing was saved yet.
	RestoredNew Restored = "new"
	// RestoredLast: all of it is known.
	RestoredLast Restored = "restored"
	// RestoredPrevious: the last save is damaged or gone, the one before it is used.
	RestoredPrevious Restored = "previous"
	// RestoredCorrupt, RestoredNewer and RestoredUnread: nothing is known, because the file is damaged, a
	// newer version's, or cannot be read.
	RestoredCorrupt Restored = wordCorrupt
	RestoredNewer   Restored = wordNewer
	RestoredUnread  Restored = wordUnread
)

// AllRestored are all of them.
func AllRestored() []Restored {
	return []Restored{RestoredNew, RestoredLast, RestoredPrevious, RestoredCorrupt, RestoredNewer, RestoredUnread}
}

// The words in the name of a file that is put aside.
const (
	wordCorrupt = "corrupt"
	wordNewer   = "newer"
	wordUnread  = "unread"
)

// unreadError says that the file is there and cannot be used.
type unreadError struct {
	path, word string
	err        error
}

func (e *unreadError) Error() string { return fmt.Sprintf("read %s: %v", e.path, e.err) }
func (e *unreadError) Unwrap() error { return e.err }
