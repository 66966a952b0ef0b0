// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// xid is an event as a story expects it.
type xid struct {
	gpu      gpu.UUID
	instance int
	code     int
}

func (s *subject) heardXIDs() []xid {
	var out []xid
	for _, e := range s.events {
		if e.Kind == gpu.EventXID {
			out = append(out, xid{e.GPU, e.GPUInstance, e.Code})
		}
	}
	return out
}

// awaitEvents reads until so many XIDs have been heard in all.
func (s *subject) awaitEvents(n int) {
	s.Helper()
	s.until(fmt.Sprintf("%d XIDs", n), counters(), func(gpu.Reading) string {
		if heard := s.heardXIDs(); len(heard) < n {
			return fmt.Sprintf("heard %+v", heard)
		}
		return ""
	})
}

// told sees that the XIDs heard are these, in this order, and that no more come.
func (s *subject) told(want ...xid) {
	s.Helper()
	s.awaitEvents(len(want))
	s.more()
	if got := s.heardXIDs(); fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("the XIDs told are %+v, want %+v", got, want)
	}
}

// everyXIDIsToldOnce: the same code twice is two events, at once or one after the other, of
// the right GPU, whatever fields are asked for; and the last code stands in its field.
func everyXIDIsToldOnce(s *subject) {
	s.needs(s.XID != nil, "have an XID")
	r := s.settled()
	zero, _ := cardAt(r, 0)
	one, _ := cardAt(r, 1)
	if len(s.events) > 0 {
		s.Fatalf("events before anything happened: %+v", s.events)
	}
	s.XID(0, gpu.NoInstance, 43)
	s.XID(0, gpu.NoInstance, 43)
	want := []xid{{zero.UUID, gpu.NoInstance, 43}, {zero.UUID, gpu.NoInstance, 43}}
	s.told(want...)
	s.XID(0, gpu.NoInstance, 43)
	want = append(want, xid{zero.UUID, gpu.NoInstance, 43})
	s.told(want...)
	s.XID(1, gpu.NoInstance, 94)
	want = append(want, xid{one.UUID, gpu.NoInstance, 94})
	s.awaitEvents(len(want))
	s.XID(0, gpu.NoInstance, 79)
	want = append(want, xid{zero.UUID, gpu.NoInstance, 79})
	s.told(want...)
	s.until("the last codes in field 230", counters(), func(r gpu.Reading) string {
		a, _ := values(r, cardEntity(zero.UUID))[gpu.FieldXID].AsInt()
		b, _ := values(r, cardEntity(one.UUID))[gpu.FieldXID].AsInt()
		if a != 79 || b != 94 {
			return fmt.Sprintf("they are %d and %d, want 79 and 94", a, b)
		}
		return ""
	})
	s.XID(1, gpu.NoInstance, 94)
	s.until("an XID while no field is asked for", nil, func(gpu.Reading) string {
		if n := len(s.heardXIDs()); n <= len(want) {
			return fmt.Sprintf("%d XIDs", n)
		}
		return ""
	})
	s.told(append(want, xid{one.UUID, gpu.NoInstance, 94})...)
	for _, e := range s.events {
		if e.ComputeInstance != gpu.NoInstance || e.Time.After(s.last.Time) {
			s.Errorf("an odd event of a whole card: %+v", e)
		}
	}
}

// xidOfAnInstanceNamesIt: an XID of a part of the card is told once, not for the card too.
func xidOfAnInstanceNamesIt(s *subject) {
	s.needs(s.XID != nil, "have an XID")
	r := s.settled()
	c := s.split(r)
	var want []xid
	for _, d := range parts(r, c.UUID)[:2] {
		for range 2 {
			s.XID(c.Index, d.GPUInstance, 45)
			want = append(want, xid{c.UUID, d.GPUInstance, 45})
			s.awaitEvents(len(want))
		}
	}
	s.told(want...)
	for _, e := range s.events {
		if e.ComputeInstance < gpu.NoInstance {
			s.Errorf("an odd compute instance: %+v", e)
		}
	}
}

// failedReadLosesNoEvent: an event waits for a reading that comes to its asker.
func failedReadLosesNoEvent(s *subject) {
	s.needs(s.XID != nil, "have an XID")
	r := s.settled()
	c, _ := cardAt(r, 0)
	over, cancel := context.WithCancel(s.Context())
	cancel()
	s.XID(0, gpu.NoInstance, 43)
	for range 3 {
		s.returns(over, "a reading whose context is over")
	}
	s.told(xid{c.UUID, gpu.NoInstance, 43})
}

// xidRaisesTheAlarm: somebody who reads rarely hears at once that there is an XID, and has it in the
// next reading, once. While there is no news there is no alarm.
func xidRaisesTheAlarm(s *subject) {
	s.needs(s.XID != nil && s.Alarms != nil, "raise an alarm")
	r := s.settled()
	one, _ := cardAt(r, 1)
	var want []xid
	for _, code := range []int{79, 79, 48} {
		s.XID(1, gpu.NoInstance, code)
		want = append(want, xid{one.UUID, gpu.NoInstance, code})
		select {
		case <-s.Alarms:
		case <-time.After(s.Patience):
			s.Fatalf("no alarm within %v of XID %d", s.Patience, code)
		}
		s.read(counters())
		if got := s.heardXIDs(); fmt.Sprint(got) != fmt.Sprint(want) {
			s.Errorf("the reading after the alarm has told %+v, want %+v", got, want)
		}
	}
	s.quiet()
	s.told(want...)
}

// quiet sees that nothing raises an alarm any more. What was under way at the last reading may have
// raised one that it knew already.
func (s *subject) quiet() {
	s.Helper()
	const looks = 1100 * time.Millisecond
	time.Sleep(looks)
	select {
	case <-s.Alarms:
	default:
	}
	s.read(counters())
	time.Sleep(looks)
	select {
	case <-s.Alarms:
		s.Error("an alarm for nothing")
	default:
	}
}
