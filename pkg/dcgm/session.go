// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// session is one engine for as long as it answers: from its start, or from connecting to
// it, until the first call that says it is gone. All that was made in it goes with it.
// Safe for concurrent use.
type session struct {
	*handle
	lists *fieldLists
	// engine is the engine's version.
	engine string
	// bind says that there is a bind event, links that links are numbered as link.entity does.
	bind, links bool

	began  time.Time
	once   sync.Once
	broken chan struct{}
	cause  error
}

// newSession begins with an engine that answers.
func newSession(h *handle, library string) (*session, error) {
	engine, err := h.engineVersion()
	if err != nil {
		return nil, fmt.Errorf("asking for the engine's version: %w", err)
	}
	_, bind := h.library.field(gpu.FieldBindEvent)
	return &session{
		handle: h, lists: newFieldLists(h), engine: engine, began: time.Now(), broken: make(chan struct{}),
		bind:  bind,
		links: !older(library, "4.3.1") && !older(engine, "4.3.1"),
	}, nil
}

// older reports whether a version is older than another, number by number. One that cannot be
// read is not.
func older(version, than string) bool {
	var a, b [3]int
	if n, err := fmt.Sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2]); n < len(a) || err != nil {
		return false
	}
	if n, err := fmt.Sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2]); n < len(b) || err != nil {
		return false
	}
	return slices.Compare(a[:], b[:]) < 0
}

// fail ends the session if err says that its engine is gone, and returns err.
func (ss *session) fail(err error) error {
	if code := returned(err); code == stConnectionNotValid || code == stUninitialized {
		ss.renew(err)
	}
	return err
}

// renew ends the session so that its engine is started again.
func (ss *session) renew(why error) {
	ss.once.Do(func() {
		ss.cause = why
		close(ss.broken)
	})
}

// over reports whether the session has ended; its cause says why then.
func (ss *session) over() bool {
	select {
	case <-ss.broken:
		return true
	default:
		return false
	}
}

// fieldLists are the session's field groups. An engine has 64 of them for all its clients,
// so that GPUs of which the same is wanted share theirs. Safe for concurrent use.
type fieldLists struct {
	handle *handle
	// name begins the names of the field groups, which must be unique in the engine.
	name string

	mu    sync.Mutex
	made  int
	lists map[string]*fieldList
}

// fieldList is one field group, of at most maxFields fields.
type fieldList struct {
	id   fieldGroupID
	ids  []gpu.FieldID
	key  string
	refs int
	// ready closes when the field group is made, or err says why not.
	ready chan struct{}
	err   error
}

func newFieldLists(h *handle) *fieldLists {
	return &fieldLists{handle: h, name: fmt.Sprintf("gpumeter-%016x", rand.Uint64()), lists: map[string]*fieldList{}}
}

// acquire has the fields in as many field groups as they need. Each of them must be released.
func (l *fieldLists) acquire(ids []gpu.FieldID) ([]*fieldList, error) {
	var out []*fieldList
	for chunk := range slices.Chunk(ids, maxFields) {
		list, err := l.acquireOne(chunk)
		if err != nil {
			l.release(out)
			return nil, err
		}
		out = append(out, list)
	}
	return out, nil
}

func (l *fieldLists) acquireOne(ids []gpu.FieldID) (*fieldList, error) {
	key := fmt.Sprint(ids)
	l.mu.Lock()
	list, found := l.lists[key]
	if !found {
		list = &fieldList{ids: slices.Clone(ids), key: key, ready: make(chan struct{})}
		l.lists[key] = list
		l.made++
	}
	list.refs++
	name := fmt.Sprintf("%s-%d", l.name, l.made)
	l.mu.Unlock()

	if !found {
		list.id, list.err = l.handle.createFieldGroup(name, list.ids)
		if list.err != nil {
			l.mu.Lock()
			delete(l.lists, key)
			l.mu.Unlock()
		}
		close(list.ready)
	}
	<-list.ready
	if list.err != nil {
		return nil, list.err
	}
	return list, nil
}

// release gives lists back; the last one to do so ends a field group. What it does not end
// ends with the session.
func (l *fieldLists) release(lists []*fieldList) {
	for _, list := range lists {
		l.mu.Lock()
		list.refs--
		last := list.refs == 0
		if last {
			delete(l.lists, list.key)
		}
		l.mu.Unlock()
		if last {
			_ = l.handle.destroyFieldGroup(list.id)
		}
	}
}
