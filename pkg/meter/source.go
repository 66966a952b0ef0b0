// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// source calls one input with at most one call under way. A call that outlives its
// deadline is not abandoned to pile up: it stays outstanding, no further one is begun,
// and its answer counts when it comes.
//
// All methods are for the Meter's loop alone, and do nothing on a nil source.
type source[T any] struct {
	name string
	call func(context.Context) (T, error)

	answers chan answer[T]
	began   time.Time
	running bool

	last        answer[T]
	fresh       bool
	lastSuccess time.Time
	// asked is when the call for the last good answer began.
	asked time.Time
	took  time.Duration
}

type answer[T any] struct {
	value T
	err   error
	at    time.Time
}

func newSource[T any](name string, call func(context.Context) (T, error)) *source[T] {
	return &source[T]{name: name, call: call, answers: make(chan answer[T], 1)}
}

// start begins a call unless one is still under way.
func (s *source[T]) start(ctx context.Context, deadline time.Duration) {
	if s == nil {
		return
	}
	s.fresh = false
	if s.running && !s.collect() {
		return
	}
	s.running, s.began = true, time.Now()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	go func() {
		defer cancel()
		v, err := s.call(ctx)
		s.answers <- answer[T]{value: v, err: err, at: time.Now()}
	}()
}

// collect takes in a call that outlived its tick, and says whether another may begin:
// a late good answer is this tick's, or a source slower than its deadline would never
// be heard; a late error is about a tick that is over.
func (s *source[T]) collect() bool {
	select {
	case a := <-s.answers:
		s.take(a)
		s.fresh = a.err == nil
		return a.err != nil
	default:
		return false
	}
}

// outstanding reports whether a call is under way that has not come back.
func (s *source[T]) outstanding() bool { return s.running && len(s.answers) == 0 }

// wait takes the answer, if it comes before expired closes.
func (s *source[T]) wait(expired <-chan struct{}) {
	if s == nil || !s.running {
		return
	}
	select {
	case a := <-s.answers:
		s.take(a)
		return
	default:
	}
	select {
	case a := <-s.answers:
		s.take(a)
	case <-expired:
	}
}

func (s *source[T]) take(a answer[T]) {
	s.running, s.fresh, s.last = false, true, a
	s.took = a.at.Sub(s.began)
	if a.err == nil {
		s.lastSuccess, s.asked = a.at, s.began
	}
}

// good is the answer of this tick, if there is a good one.
func (s *source[T]) good() (T, bool) {
	if s == nil || !s.fresh || s.last.err != nil {
		var zero T
		return zero, false
	}
	return s.last.value, true
}

// fault is what went wrong in this tick, if anything did.
func (s *source[T]) fault(now time.Time) (Fault, bool) {
	switch {
	case s == nil, s.fresh && s.last.err == nil:
		return Fault{}, false
	case !s.fresh:
		return Fault{
			Source: s.name, Kind: "timeout",
			Text: fmt.Sprintf("no answer for %v; the call is still outstanding", now.Sub(s.began).Round(time.Millisecond)),
		}, true
	default:
		return Fault{Source: s.name, Kind: faultKind(s.last.err), Text: s.last.err.Error()}, true
	}
}

func (s *source[T]) state(now time.Time) SourceState {
	st := SourceState{Name: s.name, LastSuccess: s.lastSuccess, Took: s.took, Age: -time.Second}
	if !s.lastSuccess.IsZero() {
		st.Age = now.Sub(s.lastSuccess)
	}
	if s.running {
		st.Outstanding = now.Sub(s.began)
	}
	_, st.Up = s.good()
	return st
}

// faultKind is the word that an error is counted by. Sources may name their own.
func faultKind(err error) string {
	var k interface{ Kind() string }
	switch {
	case errors.As(err, &k):
		return k.Kind()
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return "error"
	}
}
