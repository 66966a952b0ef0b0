// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// MaxConnections is how many connections a guarded server keeps at once.
	MaxConnections = 256
	// MaxHeaderBytes is how long the head of a request may be; a longer one is refused with 431.
	MaxHeaderBytes = 32 << 10

	// sendBuffer and receiveBuffer are what the kernel keeps of a connection that its client does not read, or that we do not. It would take
	// megabytes of each, and they count against the memory of the container.
	sendBuffer    = 64 << 10
	receiveBuffer = 16 << 10

	// maxStreams is how many requests one connection of HTTP/2 has at once. Prometheus has one.
	maxStreams = 8
	// idleTimeout is how long a connection without a request is kept: longer than nearly all scrape intervals.
	idleTimeout = 2 * time.Minute
	// tellDropped is how often a line says that connections are dropped.
	tellDropped = time.Minute
)

// Guard bounds what clients can take of server, and must be called before it serves: the length of heads, the streams of HTTP/2, what the kernel
// keeps for a connection, and the number of connections, MaxConnections. The one that comes beyond that is served, and another one is closed for it: of the client address
// that has most of them one that has waited longest, those without a request first. So whoever opens many connections loses its own.
// How long a request may take is the caller's to set. Dropped connections are told to log, once a minute.
func Guard(server *http.Server, log *slog.Logger) {
	server.MaxHeaderBytes = MaxHeaderBytes
	server.IdleTimeout = idleTimeout
	server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: server.WriteTimeout}
	c := &connections{limit: MaxConnections, log: log, open: make(map[net.Conn]*connection)}
	server.ConnState = c.note
}

// connections are those of one server.
type connections struct {
	limit int
	log   *slog.Logger

	mu   sync.Mutex
	open map[net.Conn]*connection
	// dropped counts since told, when the log was last told.
	dropped int
	told    time.Time
}

type connection struct {
	client string
	state  http.ConnState
	since  time.Time
}

// note is an http.Server's ConnState.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	if tcp, ok := plainConn(conn).(*net.TCPConn); ok && state == http.StateNew {
		// One that has ended already needs none.
		_, _ = tcp.SetWriteBuffer(sendBuffer), tcp.SetReadBuffer(receiveBuffer)
	}
	if victim := c.admit(conn, state); victim != nil {
		_ = victim.Close()
	}
}

// admit keeps the account, and names the connection to close where there is one too many.
func (c *connections) admit(conn net.Conn, state http.ConnState) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
		return nil
	case http.StateNew:
		c.open[conn] = &connection{client: clientOf(conn), state: state, since: time.Now()}
	default:
		if known := c.open[conn]; known != nil {
			known.state, known.since = state, time.Now()
		}
		return nil
	}
	if len(c.open) <= c.limit {
		return nil
	}
	victim, its := c.victim(conn)
	delete(c.open, victim)
	c.tell(its)
	return plainConn(victim)
}

// victim is the connection that is closed for the newest one.
func (c *connections) victim(newest net.Conn) (net.Conn, *connection) {
	of := make(map[string]int)
	for _, known := range c.open {
		of[known.client]++
	}
	var victim net.Conn
	var its *connection
	for conn, known := range c.open {
		if conn != newest && (its == nil || before(known, its, of)) {
			victim, its = conn, known
		}
	}
	return victim, its
}

// before reports whether a goes rather than b. A connection without a request costs its client nothing to lose.
func before(a, b *connection, of map[string]int) bool {
	return cmp.Or(-cmp.Compare(of[a.client], of[b.client]), cmp.Compare(worth(a.state), worth(b.state)), a.since.Compare(b.since)) < 0
}

func worth(s http.ConnState) int {
	if s == http.StateIdle {
		return 0
	}
	return 1
}

// tell logs that connections are dropped, but not each.
func (c *connections) tell(last *connection) {
	c.dropped++
	if now := time.Now(); now.Sub(c.told) >= tellDropped {
		c.log.Warn("too many connections: the longest waiting of the client with most of them are closed",
			"limit", c.limit, "closed", c.dropped, "client", last.client)
		c.dropped, c.told = 0, now
	}
}

// clientOf is the address without the port.
func clientOf(conn net.Conn) string {
	address := conn.RemoteAddr()
	if address == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	return host
}

// plainConn is what is below TLS: closing TLS would wait for a client that does not read.
func plainConn(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}
