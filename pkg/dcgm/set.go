// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// set is a DCGM group with its watches. It belongs to one goroutine.
type set struct {
	ss   *session
	plan setPlan
	id   groupID
	// watched are the field groups of each kind of watch, failed why the watch was refused.
	watched [kindsOfWatch][]*fieldList
	failed  [kindsOfWatch]error
	// read are the field groups that readings ask for. They are lists only: what is in them
	// is watched through the others.
	read []*fieldList
	// listen are those that are looked at between readings.
	listen []*fieldList
	// fresh says that something is watched which was not before, until somebody takes note.
	fresh bool
}

// openSet makes the group and its watches. That a watch is refused is no error: what it was to
// watch is absent.
func openSet(ss *session, plan setPlan, interval time.Duration) (*set, error) {
	id, err := ss.createGroup(plan.name, plan.members)
	if err != nil {
		return nil, ss.fail(err)
	}
	s := &set{ss: ss, id: id, plan: setPlan{name: plan.name, members: plan.members, parted: plan.parted}}
	if err := s.follow(plan, interval); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// follow changes what is watched and read to what the plan says; the members are the same.
// A field that was watched and still is has no gap: the new watch takes over the old one, and
// only what nobody wants any more is let go.
func (s *set) follow(plan setPlan, interval time.Duration) error {
	for kind := range kindsOfWatch {
		if slices.Equal(s.plan.watches[kind], plan.watches[kind]) && s.failed[kind] == nil {
			continue
		}
		if err := s.rewatch(kind, plan.watches[kind], interval); err != nil {
			return err
		}
	}
	if !slices.Equal(s.plan.read, plan.read) {
		read, err := s.ss.lists.acquire(plan.read)
		if err != nil {
			return s.ss.fail(fmt.Errorf("reading %s: %w", plan.name, err))
		}
		s.ss.lists.release(s.read)
		s.read = read
	}
	if !slices.Equal(s.plan.listen, plan.listen) {
		listen, err := s.ss.lists.acquire(plan.listen)
		if err != nil {
			return s.ss.fail(fmt.Errorf("listening to %s: %w", plan.name, err))
		}
		s.ss.lists.release(s.listen)
		s.listen = listen
	}
	s.plan = plan
	return nil
}

func (s *set) rewatch(kind kindOfWatch, ids []gpu.FieldID, interval time.Duration) error {
	lists, err := s.ss.lists.acquire(ids)
	if err != nil {
		return s.ss.fail(fmt.Errorf("watching %s of %s: %w", kind, s.plan.name, err))
	}
	// First, because DCGM's modules end all watches of a group, or of a client, at once.
	if len(s.watched[kind]) > 0 {
		s.unwatch(slices.DeleteFunc(slices.Clone(s.plan.watches[kind]), func(id gpu.FieldID) bool { return slices.Contains(ids, id) }))
	}
	period, keep, samples := s.plan.watchOf(kind, interval)
	s.failed[kind] = nil
	s.fresh = s.fresh || len(lists) > 0
	for _, list := range lists {
		if err := s.ss.watch(s.id, list.id, period, keep, samples); err != nil {
			s.failed[kind] = fmt.Errorf("watching %s of %s: %w", kind, s.plan.name, s.ss.fail(err))
		}
	}
	s.ss.lists.release(s.watched[kind])
	s.watched[kind] = lists
	s.plan.watches[kind] = ids
	if s.ss.over() {
		return s.failed[kind]
	}
	return nil
}

// unwatch ends the watches of fields. Where that fails they go with the group's entities or
// with the session.
func (s *set) unwatch(ids []gpu.FieldID) {
	lists, err := s.ss.lists.acquire(ids)
	if err != nil {
		return
	}
	for _, list := range lists {
		_ = s.ss.unwatch(s.id, list.id)
	}
	s.ss.lists.release(lists)
}

// close ends the watches and the group. Its errors do no harm: what is not there need not be
// ended, and what stays ends with the session.
func (s *set) close() {
	if s.ss.over() {
		return
	}
	for kind := range kindsOfWatch {
		for _, list := range s.watched[kind] {
			_ = s.ss.unwatch(s.id, list.id)
		}
		s.ss.lists.release(s.watched[kind])
	}
	s.ss.lists.release(s.read)
	s.ss.lists.release(s.listen)
	_ = s.ss.destroyGroup(s.id)
}

// complaint is why some of what was to be watched is not, other than that the hardware does
// not have it.
func (s *set) complaint() error {
	var all error
	for _, err := range s.failed {
		if err != nil && !notSupported(err) {
			all = both(all, err)
		}
	}
	return all
}

// both is two errors in one line, or the one that there is.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return fmt.Errorf("%w; %w", a, b)
	}
}

// unwatchedReason is why a field that is not watched is not.
func (s *set) unwatchedReason(id gpu.FieldID) gpu.Reason {
	for kind, ids := range s.plan.watches {
		if s.failed[kind] != nil && slices.Contains(ids, id) {
			return reasonOf(returned(s.failed[kind]))
		}
	}
	return gpu.ReasonBlank
}
