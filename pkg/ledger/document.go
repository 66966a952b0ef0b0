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
	// unread is why the file on disk could not be read while it was not possible to put it aside
	// either: until it is, nothing may be written over it.
	unread *unreadError
}

// open claims the file and reads what was saved last, the zero V where nothing was. The errors say what
// is wrong, and what that costs.
func (d *document[V]) open() (V, []error) {
	var zero V
	var errs []error
	if err := d.file.claim(); err != nil {
		errs = append(errs, fmt.Errorf("%s cannot be saved in %s, so a restart forgets them: %w", d.what, d.file.dir, err))
	}
	value, err := d.load()
	if err == nil {
		return value, errs
	}
	if !errors.As(err, &d.unread) {
		return zero, append(errs, err)
	}
	aside, failed := d.putAside()
	if failed != nil {
		return zero, append(errs, fmt.Errorf("%w; it cannot be put aside either, and stays: %w", err, failed))
	}
	return zero, append(errs, fmt.Errorf("%w; it is kept as %s, and %s", err, aside, d.loss))
}

// load reads the file. An *unreadError says that there is one which cannot be used.
func (d *document[V]) load() (V, error) {
	var zero V
	unread := func(word string, err error) (V, error) {
		return zero, &unreadError{path: d.file.path(), word: word, err: err}
	}
	data, there, err := d.file.read()
	if err != nil {
		return unread(wordUnread, err)
	}
	if !there {
		return zero, nil
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
	return value, nil
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
