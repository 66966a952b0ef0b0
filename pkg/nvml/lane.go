// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// lane does the calls for one thing, a GPU or the node, one after the other on a goroutine of
// its own. A call into the driver cannot be cancelled: who waits for it stops waiting, and
// until it is back nothing further is begun on its lane. So a GPU that hangs costs one thread,
// and itself.
type lane struct {
	name string
	log  *slog.Logger
	// jobs holds one that waits: the lane may be at its idle work, which is short. taken says
	// that there is a job, waiting or under way.
	jobs  chan *job
	taken atomic.Bool
	// idle is done each idleInterval while nothing else is, nil for none.
	idle func()

	// since is when the present work began, in nanoseconds since 1970, 0 between works.
	since atomic.Int64
	// doing is the function of NVML that is under way.
	doing atomic.Pointer[string]

	// quit ends the lane when its present work is done, however long that takes.
	quit <-chan struct{}
}

// idleInterval is how often a lane does its idle work: events are told to the second.
const idleInterval = time.Second

type job struct {
	run func()
	// over says that nobody waits any more, so that it need not be begun.
	over atomic.Bool
}

func newLane(name string, log *slog.Logger, quit <-chan struct{}, idle func()) *lane {
	l := &lane{name: name, log: log, idle: idle, jobs: make(chan *job, 1), quit: quit}
	go l.run()
	return l
}

func (l *lane) run() {
	var ticks <-chan time.Time
	if l.idle != nil {
		ticker := time.NewTicker(idleInterval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-l.quit:
			return
		case j := <-l.jobs:
			if j.over.Load() {
				l.taken.Store(false)
				continue
			}
			j.run()
		case <-ticks:
			survive(l, func() struct{} { l.idle(); return struct{}{} })
		}
	}
}

// survive works whatever the binding does to it: a panic costs this work only.
func survive[T any](l *lane, work func() T) (v T, ended bool) {
	l.since.Store(time.Now().UnixNano())
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("a call of NVML panicked", "lane", l.name, "function", l.at(), "panic", p)
		}
		l.doing.Store(nil)
		l.since.Store(0)
	}()
	return work(), true
}

// at is the function that is under way, empty where none is known.
func (l *lane) at() string {
	if p := l.doing.Load(); p != nil {
		return *p
	}
	return ""
}

// outstanding is for how long the present work has been under way, 0 for none.
func (l *lane) outstanding() time.Duration {
	since := l.since.Load()
	if since == 0 {
		return 0
	}
	return max(time.Since(time.Unix(0, since)), time.Nanosecond)
}

// call is work that was begun on a lane.
type call[T any] struct {
	job    *job
	answer chan T
}

// begin has a lane do work, or says that an earlier one is still outstanding.
func begin[T any](l *lane, work func() T) (call[T], bool) {
	if !l.taken.CompareAndSwap(false, true) {
		return call[T]{}, false
	}
	c := call[T]{job: &job{}, answer: make(chan T, 1)}
	c.job.run = func() {
		// Closed without an answer, it tells of a panic. The lane is free before the answer is
		// there, for who goes on at once.
		defer close(c.answer)
		v, ended := survive(l, work)
		l.taken.Store(false)
		if ended {
			c.answer <- v
		}
	}
	l.jobs <- c.job
	return c, true
}

// poll is the answer if it is there.
func (c call[T]) poll() (T, bool) {
	select {
	case v, ok := <-c.answer:
		return v, ok
	default:
		var none T
		return none, false
	}
}

// wait is the answer, unless expired closes before it is there. An answer that comes later is
// nobody's.
func (c call[T]) wait(expired <-chan struct{}) (T, bool) {
	if v, ok := c.poll(); ok {
		return v, true
	}
	select {
	case v, ok := <-c.answer:
		return v, ok
	case <-expired:
		c.job.over.Store(true)
		var none T
		return none, false
	}
}
