// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// firstPause and longestPause are the least and the most time between two tries to reach
	// an engine.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// connectPatience is how long DCGM itself waits for a host engine.
	connectPatience = 5 * time.Second
)

// The kinds of outage beside those of DCGM's own errors.
const (
	kindReleased = "released"
	kindClosed   = "closed"
)

// outage is why there is no reading at all.
type outage struct {
	kind, text string
	err        error
}

func closedOutage() *outage { return &outage{kind: kindClosed, text: "the DCGM source was closed"} }

// Error says since when there is none, why, and when it is tried again.
func (o *outage) Error() string {
	if o.err == nil {
		return o.text
	}
	return o.text + ": " + o.err.Error()
}

// Unwrap is the error that began it.
func (o *outage) Unwrap() error { return o.err }

// Kind is the word that the outage is counted by.
func (o *outage) Kind() string { return o.kind }

// connection keeps a session with the engine: it starts or connects, and does so again when
// the engine is gone, less and less often. One goroutine makes the calls, which can take long
// or for ever; the methods only look at what it has come to. Safe for concurrent use.
type connection struct {
	library  *library
	version  string
	endpoint Endpoint
	embedded embedded
	log      *slog.Logger

	orders chan order
	done   chan struct{}

	mu      sync.Mutex
	session *session
	// trying closes when the try under way is over; nil while none is.
	trying chan struct{}
	// since is when the session was lost or first wanted, next when it is tried again, err why
	// the last try failed.
	since, next time.Time
	err         error
	pause       time.Duration
	released    bool
	// detached says that the driver was detached, and is to be attached by the next engine.
	detached bool
	closed   bool
	// left is closed from Release to Resume, leftAt is when it was; overdue says that the
	// goroutine has not been told yet, because it was busy.
	left    chan struct{}
	leftAt  time.Time
	overdue bool
	// ended is what letting go of the engine for good came to, valid once done is closed.
	ended error
}

// order asks the goroutine to let go of the engine, or to take it again.
type order struct {
	release bool
	// detach has the engine let go of the driver before it is stopped: not while calls hang,
	// or this one would too.
	detach bool
	answer chan error
}

func newConnection(l *library, version string, cfg *Config, severity int) *connection {
	return &connection{
		library: l, version: version, endpoint: cfg.Endpoint, log: cfg.Log,
		embedded: embedded{LogFile: cfg.LogFile, Severity: severity},
		orders:   make(chan order), done: make(chan struct{}), left: make(chan struct{}), pause: firstPause, since: time.Now(),
	}
}

// run keeps the session until ctx ends.
func (c *connection) run(ctx context.Context) {
	defer close(c.done)
	for {
		c.mu.Lock()
		var broken <-chan struct{}
		var wake <-chan time.Time
		if c.overdue {
			c.overdue = false
			c.mu.Unlock()
			_ = c.obey(order{release: true})
			continue
		}
		switch {
		case c.released:
		case c.session != nil:
			broken = c.session.broken
		default:
			wake = time.After(time.Until(c.next))
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			c.end()
			return
		case o := <-c.orders:
			o.answer <- c.obey(o)
		case <-broken:
			c.lose()
		case <-wake:
			c.try()
		}
	}
}

// try starts the engine, or connects to it.
func (c *connection) try() {
	c.mu.Lock()
	if c.trying == nil {
		c.trying = make(chan struct{})
	}
	c.mu.Unlock()
	ss, err := c.open()
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.trying)
	c.trying, c.err = nil, err
	if err == nil {
		c.session, c.pause = ss, firstPause
		c.log.Info("DCGM answers", "endpoint", c.endpoint.String(), "engine", ss.engine)
		return
	}
	// Not all the exporters of a cluster at once.
	c.next = time.Now().Add(c.pause/2 + rand.N(c.pause/2+1))
	c.pause = min(2*c.pause, longestPause)
}

func (c *connection) open() (*session, error) {
	var h *handle
	var err error
	if c.endpoint.Embedded() {
		h, err = c.library.startEmbedded(c.embedded)
	} else {
		h, err = c.library.connect(c.endpoint.address, c.endpoint.unix, connectPatience)
	}
	if err != nil {
		return nil, err
	}
	if c.detached {
		// An engine that was stopped while detached may begin so.
		if err := h.attachDriver(); err == nil {
			c.detached = false
		} else {
			c.log.Warn("DCGM does not attach the driver", "error", err)
		}
	}
	ss, err := newSession(h, c.version)
	if err != nil {
		return nil, both(err, h.close())
	}
	return ss, nil
}

// lose lets go of a session whose engine is gone. What still hangs in it lets go later.
func (c *connection) lose() {
	c.mu.Lock()
	ss := c.session
	c.session, c.since, c.err = nil, time.Now(), ss.cause
	c.next = c.since.Add(rand.N(firstPause))
	c.mu.Unlock()
	_ = ss.close()
}

// obey carries out an order.
func (c *connection) obey(o order) error {
	c.mu.Lock()
	was := c.released
	ss := c.session
	c.released = o.release
	c.mu.Unlock()
	switch {
	case was == o.release:
		return nil
	case !o.release:
		c.mu.Lock()
		c.since, c.pause = time.Now(), firstPause
		c.mu.Unlock()
		c.try()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err
	}
	c.mu.Lock()
	c.session, c.since = nil, time.Now()
	c.mu.Unlock()
	if ss == nil {
		return nil
	}
	var err error
	// A host engine is not ours to take from its other clients.
	if c.endpoint.Embedded() && o.detach {
		switch err = ss.detachDriver(); {
		case err == nil:
			c.detached = true
		case errors.Is(err, errMissing):
			err = nil
		}
	}
	return both(err, ss.close())
}

func (c *connection) end() {
	c.mu.Lock()
	ss := c.session
	c.session, c.closed = nil, true
	c.mu.Unlock()
	if ss != nil {
		c.ended = ss.close()
	}
}

// leave has every reading err from now on that no session is to be had; arrive undoes it.
func (c *connection) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isClosed(c.left) {
		c.leftAt = time.Now()
		close(c.left)
	}
}

func (c *connection) arrive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overdue = false
	if isClosed(c.left) {
		c.left = make(chan struct{})
	}
}

// leaving closes with the next leave.
func (c *connection) leaving() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// order gives the goroutine an order and waits for it until ctx ends.
func (c *connection) order(ctx context.Context, o order) error {
	o.answer = make(chan error, 1)
	select {
	case c.orders <- o:
	case <-c.done:
		return c.outage()
	case <-ctx.Done():
		c.mu.Lock()
		c.overdue = o.release
		c.mu.Unlock()
		return fmt.Errorf("DCGM (%s) is busy with a call that does not come back: %w", c.endpoint, ctx.Err())
	}
	select {
	case err := <-o.answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("DCGM (%s) has not come back: %w", c.endpoint, ctx.Err())
	}
}

// current is the session, if need be after a try that is under way, or the outage.
func (c *connection) current(ctx context.Context) (*session, error) {
	for {
		c.mu.Lock()
		ss, trying, left := c.session, c.trying, c.left
		c.mu.Unlock()
		if isClosed(left) {
			return nil, c.outage()
		}
		if ss != nil {
			if !ss.over() {
				return ss, nil
			}
			return nil, c.outage()
		}
		if trying == nil {
			return nil, c.outage()
		}
		select {
		case <-trying:
		case <-left:
		case <-ctx.Done():
			return nil, c.outage()
		}
	}
}

// present is the session that there is now, nil for none, without waiting for one.
func (c *connection) present() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil || c.session.over() || isClosed(c.left) {
		return nil
	}
	return c.session
}

// outage is why there is no session.
func (c *connection) outage() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, again := c.since.Format(time.DateTime), "again at "+c.next.Format(time.TimeOnly)
	if c.trying != nil {
		again = "just now"
	}
	switch {
	case c.closed:
		return closedOutage()
	case c.released || isClosed(c.left):
		return &outage{kind: kindReleased, text: "DCGM was released at " + c.leftAt.Format(time.DateTime) +
			" so that the driver can be changed: read again after Resume (SIGUSR1 with --dcgm-release)"}
	case c.session != nil:
		return &outage{kind: kindConnection, text: fmt.Sprintf("DCGM (%s) was lost just now and is tried again", c.endpoint), err: c.session.cause}
	default:
		return &outage{
			kind: kindConnection, err: c.err,
			text: fmt.Sprintf("DCGM (%s) has not answered since %s and is tried %s", c.endpoint, since, again),
		}
	}
}
