// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

const (
	defaultMinBackoff = 100 * time.Millisecond
	defaultMaxBackoff = 5 * time.Second
	// A server's heartbeat is believed within bounds: a stream is lost after so many of them.
	heartbeatsMissed = 3
	minSilence       = time.Second
	maxSilence       = 10 * time.Minute
)

// ClientConfig is what a Client needs. Only Socket is necessary.
type ClientConfig struct {
	// Socket is where the exporter serves, DefaultSocket if it is empty.
	Socket string
	// MinBackoff and MaxBackoff are the times between two attempts to connect, 100 ms and 5 s
	// if they are 0. A socket file that is new is tried within MinBackoff.
	MinBackoff, MaxBackoff time.Duration
	// SilentAfter is how long a stream may be silent before it is taken for lost; 0 is three
	// times the heartbeat that the server announces.
	SilentAfter time.Duration
	// Now is the wall clock, time.Now if it is nil.
	Now func() time.Time
	// Log gets when the stream is lost and back; nil for none.
	Log *slog.Logger
}

// ClientState is what a client knows. What it points to is never modified.
type ClientState struct {
	// List is the last one that came, nil before the first. It stays when the stream is lost.
	List *Received
	// Up says that the stream is open and has brought the present list; Since is from when Up
	// has been as it is.
	Up    bool
	Since time.Time
	// Err is why the stream is not up, nil while it is or was not tried yet.
	Err error
	// Reconnects are how often the stream came up again.
	Reconnects uint64
}

// Client hears a node's verdicts. It is safe for concurrent use.
type Client struct {
	cfg ClientConfig

	mu      sync.Mutex
	state   ClientState
	changed chan struct{}
	ups     uint64
}

// NewClient makes a Client and touches nothing: a server that is away is found when it comes.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.MinBackoff <= 0 {
		cfg.MinBackoff = defaultMinBackoff
	}
	if cfg.MaxBackoff <= 0 {
		cfg.MaxBackoff = defaultMaxBackoff
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: cfg, state: ClientState{Since: cfg.Now()}, changed: make(chan struct{})}
}

// Watch is the state now and a channel that closes when there may be a newer one. Heartbeats,
// which move only List.At and List.Report.Time, do not close it.
func (c *Client) Watch() (ClientState, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.changed
}

// Run hears the stream until ctx ends, and returns nil then. A stream that is lost is opened
// anew for as long as it takes.
func (c *Client) Run(ctx context.Context) error {
	wait := c.cfg.MinBackoff
	for {
		before := c.socketFile()
		wasUp, err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.lost(err)
		if wasUp {
			wait = c.cfg.MinBackoff
		}
		if !c.pause(ctx, wait, before) {
			return nil
		}
		wait = min(2*wait, c.cfg.MaxBackoff)
	}
}

// errSilent says that the stream is open and nothing comes.
var errSilent = errors.New("the health stream is silent")

// follow hears one stream to its end. wasUp says that it brought a list.
func (c *Client) follow(parent context.Context) (wasUp bool, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	silence := c.silence(defaultHeartbeat)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	w, err := c.dial()
	if err != nil {
		return false, err
	}
	defer w.close()
	stream, err := w.api.Watch(ctx, &healthv1.WatchRequest{})
	if err != nil {
		return false, w.explain(ctx, err)
	}
	for {
		message, err := stream.Recv()
		if errors.Is(context.Cause(ctx), errSilent) {
			return wasUp, fmt.Errorf("%w for %v", errSilent, silence)
		}
		if err != nil {
			return wasUp, w.explain(ctx, err)
		}
		if announced := message.GetHeartbeatInterval(); announced != nil {
			silence = c.silence(announced.AsDuration())
		}
		watchdog.Reset(silence)
		switch m := message.GetMessage().(type) {
		case *healthv1.WatchResponse_Health:
			c.take(decode(m.Health))
			wasUp = true
		case *healthv1.WatchResponse_Heartbeat:
			c.beat(m.Heartbeat, wasUp)
		default:
			// A newer server's: it lives, and that is all that is to be known of it.
		}
	}
}

// silence is how long a stream with such a heartbeat may be silent.
func (c *Client) silence(heartbeat time.Duration) time.Duration {
	if c.cfg.SilentAfter > 0 {
		return c.cfg.SilentAfter
	}
	return min(max(heartbeatsMissed*min(heartbeat, maxSilence), minSilence), maxSilence)
}

// change publishes another state.
func (c *Client) change(with func(*ClientState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	with(&c.state)
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Client) take(list *List) {
	now := c.cfg.Now()
	c.change(func(s *ClientState) {
		s.List, s.Err = &Received{List: *list, At: now}, nil
		if s.Up {
			return
		}
		s.Up, s.Since = true, now
		if c.ups++; c.ups > 1 {
			s.Reconnects++
		}
		c.cfg.Log.Info("the health stream is up", "socket", c.cfg.Socket, "epoch", list.Epoch, "version", list.Report.Version)
	})
}

var errNoList = errors.New("the exporter has no verdicts yet")

// beat notes a heartbeat; hasList says whether this stream has brought a list.
func (c *Client) beat(b *healthv1.Heartbeat, hasList bool) {
	if !hasList {
		c.lost(errNoList)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := *c.state.List
	fresh.At = c.cfg.Now()
	if at := timeOf(b.GetEvaluated()); !at.IsZero() && b.GetEpoch() == fresh.Epoch && b.GetVersion() == fresh.Report.Version {
		fresh.Report.Time = at
	}
	c.state.List = &fresh
}

// lost notes why the stream is not up. The list stays.
func (c *Client) lost(err error) {
	state, _ := c.Watch()
	if !state.Up && state.Err != nil && state.Err.Error() == err.Error() {
		return
	}
	c.cfg.Log.Warn("the health stream is not up; the last verdicts stand", "socket", c.cfg.Socket, "error", err)
	c.change(func(s *ClientState) {
		if s.Up {
			s.Up, s.Since = false, c.cfg.Now()
		}
		s.Err = err
	})
}

// pause waits before the next attempt, and no longer once the socket file is another one than
// before the last attempt; false when ctx ended.
func (c *Client) pause(ctx context.Context, wait time.Duration, before os.FileInfo) bool {
	over := time.NewTimer(wait)
	defer over.Stop()
	look := time.NewTicker(c.cfg.MinBackoff)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over.C:
			return true
		case <-look.C:
		}
		now := c.socketFile()
		if now != nil && (before == nil || !sameFile(before, now)) {
			return true
		}
	}
}

// socketFile is the file at the socket's path, nil where there is none.
func (c *Client) socketFile() os.FileInfo {
	info, err := os.Lstat(c.cfg.Socket)
	if err != nil {
		return nil
	}
	return info
}
