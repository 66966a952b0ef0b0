// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// wire is a connection that nobody reads.
type wire struct {
	net.Conn

	name   string
	from   net.Addr
	closed bool
}

func (w *wire) RemoteAddr() net.Addr { return w.from }
func (w *wire) Close() error         { w.closed = true; return nil }

func wireFrom(host string, port int) *wire {
	return &wire{name: fmt.Sprintf("%s:%d", host, port), from: &net.TCPAddr{IP: net.ParseIP(host), Port: port}}
}

// guarded is the bookkeeping of a server that keeps few connections.
func guarded(limit int, log *slog.Logger) *connections {
	return &connections{limit: limit, log: log, open: make(map[net.Conn]*connection)}
}

func TestAConnectionTooManyCostsTheClientWithMostOfThem(t *testing.T) {
	for _, test := range []struct {
		name string
		// arrive are who comes, a second apart; "-x" is a request answered, "+x" one begun.
		arrive []string
		closed []string
	}{
		{"room for all", []string{"1.1", "2.1", "2.2", "3.1"}, nil},
		{"one floods and loses its own oldest", []string{"1.1", "2.1", "2.2", "2.3", "2.4", "2.5"}, []string{"2.1", "2.2"}},
		{"one floods, another comes", []string{"1.1", "2.1", "2.2", "2.3", "3.1"}, []string{"2.1"}},
		{"nobody has more than another: what waits without a request goes", []string{"1.1", "2.1", "3.1", "-3.1", "4.1", "5.1"}, []string{"3.1"}},
		{"nobody waits without a request: the oldest goes", []string{"1.1", "2.1", "3.1", "4.1", "5.1"}, []string{"1.1"}},
		{"of those without a request the one that waits longest goes", []string{"1.1", "2.1", "3.1", "-3.1", "4.1", "-1.1", "5.1"}, []string{"3.1"}},
		{"a new request is a new beginning", []string{"1.1", "2.1", "+1.1", "3.1", "4.1", "5.1"}, []string{"2.1"}},
		{"who left makes room", []string{"1.1", "2.1", "3.1", "4.1", "x1.1", "5.1"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, wires := guarded(4, slog.New(slog.DiscardHandler)), map[string]*wire{}
				for _, who := range test.arrive {
					name := strings.TrimLeft(who, "-+x")
					state := map[byte]http.ConnState{'-': http.StateIdle, '+': http.StateActive, 'x': http.StateClosed}[who[0]]
					if wires[name] == nil {
						host, port, _ := strings.Cut(name, ".")
						wires[name] = wireFrom("10.0.0."+host, int(port[0]))
					}
					c.note(wires[name], state)
					time.Sleep(time.Second)
				}
				var closed []string
				for name, w := range wires {
					if w.closed {
						closed = append(closed, name)
					}
				}
				slices.Sort(closed)
				if !slices.Equal(closed, test.closed) {
					t.Errorf("closed %v, want %v", closed, test.closed)
				}
			})
		})
	}
}

// TestNoHistoryKeepsMoreConnectionsThanTheLimit has clients come, ask, rest and go in any order: never are more open than the limit, the newest is never
// the one that is closed, and what is closed is told to have ended without harm.
func TestNoHistoryKeepsMoreConnectionsThanTheLimit(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		const limit = 5
		c, all := guarded(limit, slog.New(slog.DiscardHandler)), []*wire{}
		for step := range rapid.IntRange(1, 60).Draw(r, "steps") {
			if len(all) == 0 || rapid.Bool().Draw(r, "new") {
				w := wireFrom(fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 4).Draw(r, "host")), step)
				all = append(all, w)
				c.note(w, http.StateNew)
				if w.closed {
					r.Fatal("the newest was closed")
				}
			} else {
				w := rapid.SampledFrom(all).Draw(r, "one")
				c.note(w, rapid.SampledFrom([]http.ConnState{http.StateActive, http.StateIdle, http.StateClosed}).Draw(r, "state"))
			}
			if len(c.open) > limit {
				r.Fatalf("%d connections are kept", len(c.open))
			}
			for conn := range c.open {
				if w, ok := conn.(*wire); ok && w.closed {
					r.Fatalf("%s is closed and counted", w.name)
				}
			}
		}
	})
}

func TestDroppedConnectionsAreToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := guarded(1, slog.New(slog.NewTextHandler(&out, nil)))
		for i := range 181 {
			c.note(wireFrom("10.0.0.7", i), http.StateNew)
			time.Sleep(time.Second)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[1], "closed=60") || !strings.Contains(lines[1], "client=10.0.0.7") {
			t.Errorf("180 dropped connections in three minutes are told as\n%s", out.String())
		}
	})
}

func TestADroppedTLSConnectionIsNotAskedToSayGoodbye(t *testing.T) {
	below := wireFrom("10.0.0.1", 1)
	c := guarded(1, slog.New(slog.DiscardHandler))
	c.note(tls.Server(below, &tls.Config{MinVersion: tls.VersionTLS12}), http.StateNew)
	// The wire has no Write: an alert on it would panic.
	c.note(wireFrom("10.0.0.2", 2), http.StateNew)
	if !below.closed {
		t.Error("the connection below TLS is open")
	}
}

// TestAnAddressWithoutAPortIsAClientToo is for sockets that systemd hands over.
func TestAnAddressWithoutAPortIsAClientToo(t *testing.T) {
	for _, from := range []net.Addr{nil, &net.UnixAddr{Name: "@", Net: "unix"}} {
		c := guarded(1, slog.New(slog.DiscardHandler))
		first, second := &wire{from: from}, &wire{from: from}
		c.note(first, http.StateNew)
		c.note(second, http.StateNew)
		if !first.closed || second.closed {
			t.Errorf("from %v: closed %v and %v, want the first alone", from, first.closed, second.closed)
		}
	}
}

func TestOfTwoThatComeAtOnceTheSecondStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 20 {
			c := guarded(1, slog.New(slog.DiscardHandler))
			first, second := wireFrom("10.0.0.1", i), wireFrom("10.0.0.1", i)
			c.note(first, http.StateNew)
			c.note(second, http.StateNew)
			if second.closed || !first.closed {
				t.Fatal("the newest was closed")
			}
		}
	})
}

// TestTheKernelKeepsLittleForWhoeverDoesNotRead writes as much as it takes in either direction, while nobody reads.
func TestTheKernelKeepsLittleForWhoeverDoesNotRead(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	guarded(1, slog.New(slog.DiscardHandler)).note(server, http.StateNew)
	if tcp, ok := client.(*net.TCPConn); ok {
		// What the client's own side takes is not counted here.
		if err := cmp.Or(tcp.SetReadBuffer(4096), tcp.SetWriteBuffer(4096)); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []struct {
		of   string
		conn net.Conn
		most int
	}{{"answers", server, 5 * sendBuffer}, {"requests", client, 7 * receiveBuffer}} {
		if err := way.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := way.conn.Write(make([]byte, 32<<20))
		if err == nil || n > way.most {
			t.Errorf("the kernel took %d bytes of %s that nobody reads, want %d at most (%v)", n, way.of, way.most, err)
		}
	}
}
