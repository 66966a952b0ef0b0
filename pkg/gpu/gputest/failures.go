// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// lostGPUStaysListed: a GPU that fell off the bus keeps its place in the inventory, has
// nothing to say, and the others go on; it comes back as it was.
func lostGPUStaysListed(s *subject) {
	s.needs(s.Lose != nil && s.Return != nil, "lose a GPU")
	before := s.settled()
	lost, _ := cardAt(before, 1)
	s.Lose(1)
	seen := func(r gpu.Reading) string {
		d, ok := cardAt(r, 1)
		if !ok || d.UUID != lost.UUID || len(r.Devices) != len(before.Devices) {
			s.Fatalf("a lost GPU left the inventory: %+v", r.Devices)
		}
		if !d.Lost {
			return "GPU 1 is not marked as lost"
		}
		return silent(r, d.UUID, gpu.ReasonLost)
	}
	first := s.until("GPU 1 is lost", counters(), seen)
	s.timeStands(lost.UUID, before, first)
	for range 3 {
		time.Sleep(s.Interval)
		r := s.read(counters())
		if why := seen(r); why != "" {
			s.Errorf("later: %s", why)
		}
		s.othersAnswer(r, 1)
		s.timeStands(lost.UUID, first, r)
	}
	s.Return(1)
	after := s.timeGoesOn(lost.UUID, first)
	if d, _ := cardAt(after, 1); d.UUID != lost.UUID || d.Lost {
		s.Errorf("GPU 1 was %+v and came back as %+v", lost, d)
	}
}

// silent says what of a card is not absent for the reason, or that its trouble is not told.
func silent(r gpu.Reading, card gpu.UUID, reason gpu.Reason) string {
	if !slices.ContainsFunc(r.Troubles, func(t gpu.Trouble) bool { return t.GPU == card && t.Reason == reason }) {
		return fmt.Sprintf("no trouble says %q: %+v", reason, r.Troubles)
	}
	for _, sample := range r.Samples {
		if sample.Entity.GPU != card {
			continue
		}
		for i, v := range sample.Values {
			field, _ := gpu.FieldByID(r.Fields[i])
			own := field.Scope == gpu.ScopeGPU || field.Scope == gpu.ScopeGPUInstance
			if own && v.Reason() != reason && v.Reason() != gpu.ReasonScope && v.Reason() != gpu.ReasonNotSupported {
				return fmt.Sprintf("field %d is %+v for %q, want it absent for %q", field.ID, v, v.Reason(), reason)
			}
			if field.ID == fieldPower && sample.Entity.Kind == gpu.KindGPU && v.Reason() != reason {
				return fmt.Sprintf("power is %+v for %q, want it absent for %q", v, v.Reason(), reason)
			}
		}
	}
	return ""
}

// timeOf is when a card's values in a reading were read.
func timeOf(r gpu.Reading, card gpu.UUID) time.Time {
	for _, sample := range r.Samples {
		if sample.Entity == cardEntity(card) {
			return sample.Time
		}
	}
	return time.Time{}
}

// timeStands: the time of a silent GPU is that of its last values. It is held against a reading
// before: the last in which the GPU answered, after which it may have answered once more unseen,
// or an earlier one in which it was silent.
func (s *subject) timeStands(card gpu.UUID, before, r gpu.Reading) {
	s.Helper()
	was, is := timeOf(before, card), timeOf(r, card)
	switch wasSilent := !values(before, cardEntity(card))[fieldPower].Present(); {
	case is.IsZero():
		s.Errorf("%s is silent, and its values of %s have no time", card, was)
	case wasSilent && !is.Equal(was):
		s.Errorf("%s is silent, and the time of its values goes from %s to %s", card, was, is)
	case is.Before(was) || !is.Before(r.Time):
		s.Errorf("%s answered at %s, is silent in a reading at %s, and its values are of %s", card, was, r.Time, is)
	}
}

// timeGoesOn is a reading in which every GPU answers, and one that was silent has newer values.
func (s *subject) timeGoesOn(card gpu.UUID, silent gpu.Reading) gpu.Reading {
	s.Helper()
	r := s.settled()
	if was, is := timeOf(silent, card), timeOf(r, card); !is.After(was) {
		s.Errorf("%s answers again, and its values are still of %s: %s", card, was, is)
	}
	return r
}

// othersAnswer: one bad thing costs one thing.
func (s *subject) othersAnswer(r gpu.Reading, but int) {
	s.Helper()
	for _, c := range cards(r) {
		if c.Index == but {
			continue
		}
		if why := answers(r, c.Index); why != "" {
			s.Errorf("because of GPU %d: %s", but, why)
		}
	}
}

// detachedGPULeaves: a GPU that the driver no longer has leaves the inventory, and comes back
// when it is attached; the others keep their indices.
func detachedGPULeaves(s *subject) {
	s.needs(s.Detach != nil && s.Attach != nil, "detach a GPU")
	before := s.settled()
	s.Detach(1)
	s.until("GPU 1 has left", counters(), func(r gpu.Reading) string {
		if _, ok := cardAt(r, 1); ok {
			return "it is still listed"
		}
		return answers(r, 0)
	})
	s.more()
	for _, c := range cards(before) {
		if d, ok := cardAt(s.last, c.Index); c.Index != 1 && (!ok || d.UUID != c.UUID) {
			s.Errorf("GPU %d was %s and is %s", c.Index, c.UUID, d.UUID)
		}
	}
	s.othersAnswer(s.last, 1)
	s.Attach(1)
	after := s.settled()
	if why := differs(before.Devices, after.Devices); why != "" {
		s.Error(why)
	}
}

// hungGPUHangsAlone: while calls for one GPU do not come back, readings come in time with the
// others' values, which go on changing, and the GPU recovers with its driver.
func hungGPUHangsAlone(s *subject) {
	s.needs(s.Hang != nil && s.Unhang != nil, "hang")
	before := s.settled()
	stuck, _ := cardAt(before, 1)
	s.Hang(1)
	unhung := false
	s.Cleanup(func() {
		if !unhung {
			s.Unhang(1)
		}
	})
	first := s.until("GPU 1 hangs", counters(), func(r gpu.Reading) string { return silent(r, stuck.UUID, gpu.ReasonTimeout) })
	s.timeStands(stuck.UUID, before, first)
	for range 3 {
		time.Sleep(s.Interval)
		r := s.read(counters())
		if why := silent(r, stuck.UUID, gpu.ReasonTimeout); why != "" {
			s.Errorf("later: %s", why)
		}
		if d, ok := cardAt(r, 1); !ok || d.UUID != stuck.UUID || d.Lost {
			s.Errorf("a GPU that hangs is listed as %+v", d)
		}
		s.othersAnswer(r, 1)
		s.timeStands(stuck.UUID, first, r)
	}
	hung := s.last
	other, _ := cardAt(hung, 0)
	s.until("GPU 0 is fresh", counters(), func(r gpu.Reading) string {
		was, _ := values(hung, cardEntity(other.UUID))[fieldEnergy].AsInt()
		if is, ok := values(r, cardEntity(other.UUID))[fieldEnergy].AsInt(); !ok || is <= was {
			return fmt.Sprintf("its energy stands at %d mJ", was)
		}
		return ""
	})
	s.Unhang(1)
	unhung = true
	after := s.timeGoesOn(stuck.UUID, first)
	if why := differs(before.Devices, after.Devices); why != "" {
		s.Error(why)
	}
}

// slowGPUIsWaitedFor: a GPU that is slow but in time is not in trouble.
func slowGPUIsWaitedFor(s *subject) {
	s.needs(s.Slow != nil, "be slow")
	s.settled()
	s.Slow(1, s.Timeout/20)
	for range 3 {
		time.Sleep(s.Interval)
		if why := answers(s.read(counters()), 1); why != "" {
			s.Error(why)
		}
	}
	s.Slow(1, 0)
	s.settled()
}

// cancelledReadReturns: a reading whose time is over comes back, hung GPU or not.
func cancelledReadReturns(s *subject) {
	s.settled()
	over, cancel := context.WithCancel(s.Context())
	cancel()
	s.returns(over, "a reading whose context is over")
	switch {
	case s.Hang != nil && s.Unhang != nil:
		s.Hang(1)
		s.Cleanup(func() { s.Unhang(1) })
	case s.Slow != nil:
		s.Slow(1, time.Hour)
		s.Cleanup(func() { s.Slow(1, 0) })
	}
	s.returns(over, "a reading whose context is over while a GPU hangs")
	soon, cancel := context.WithCancel(s.Context())
	timer := time.AfterFunc(s.Interval, cancel)
	defer timer.Stop()
	defer cancel()
	s.returns(soon, "a reading that is cancelled while a GPU hangs")
}

// returns sees that a reading comes back at all: on a machine as slow as it may be, half of
// the suite's patience is not a matter of time.
func (s *subject) returns(ctx context.Context, what string) {
	s.Helper()
	done := make(chan gpu.Reading, 1)
	go func() {
		r, err := s.Read(ctx, counters())
		if err != nil {
			r = gpu.Reading{}
		}
		done <- r
	}()
	select {
	case r := <-done:
		if r.Source != "" {
			s.check(r, counters())
			s.events = append(s.events, r.Events...)
		}
	case <-time.After(s.Patience / 2):
		s.Fatalf("%s does not come back", what)
	}
}

// brokenConnectionIsAnError: without its engine a source has no reading but an error with a
// kind to count it by; once the engine is back, so are the readings, and no event is told anew.
func brokenConnectionIsAnError(s *subject) {
	s.needs(s.Break != nil && s.Mend != nil, "be cut off")
	before := s.settled()
	s.cutOff()
	s.Mend()
	after := s.settled()
	if why := differs(before.Devices, after.Devices); why != "" {
		s.Error(why)
	}
	if s.XID == nil {
		return
	}
	s.XID(0, gpu.NoInstance, 43)
	s.awaitEvents(1)
	s.cutOff()
	s.Mend()
	s.settled()
	s.more()
	if len(s.events) != 1 {
		s.Errorf("one XID before the connection broke is %d events after: %+v", len(s.events), s.events)
	}
}

// cutOff breaks the connection and reads until the source has noticed.
func (s *subject) cutOff() {
	s.Helper()
	s.Break()
	for end := time.Now().Add(s.Patience); ; time.Sleep(s.Interval) {
		_, err := s.tryRead(counters())
		if err != nil {
			if kindOf(err) == "" {
				s.Errorf("an error without a kind: %v", err)
			}
			return
		}
		if time.Now().After(end) {
			s.Fatal("cut off, and it goes on reading")
		}
	}
}

// readingNeverChanges: what a source has returned stays as it was, whatever happens later.
func readingNeverChanges(s *subject) {
	fields := append(counters(), gpu.FieldHealthStatus, gpu.FieldP2PStatus)
	s.settled()
	if s.XID != nil {
		s.XID(0, gpu.NoInstance, 43)
	}
	var kept []gpu.Reading
	var as []string
	keep := func() {
		for range 2 {
			time.Sleep(s.Interval)
			r := s.read(fields)
			kept, as = append(kept, r), append(as, fmt.Sprintf("%+v", r))
		}
	}
	keep()
	if s.Repartition != nil {
		for _, c := range cards(s.last) {
			if len(parts(s.last, c.UUID)) > 1 {
				s.Repartition(c.Index)
				keep()
				break
			}
		}
	}
	if s.Lose != nil {
		s.Lose(1)
		keep()
	}
	if s.XID != nil {
		s.XID(0, gpu.NoInstance, 31)
	}
	keep()
	for i, r := range kept {
		if is := fmt.Sprintf("%+v", r); is != as[i] {
			s.Errorf("reading %d has changed from\n%s\nto\n%s", i, as[i], is)
		}
	}
}
