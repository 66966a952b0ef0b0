// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/exporter"
)

// victim is an exporter on a pretend node, in this process, and a client of it that means well.
type victim struct {
	t       *testing.T
	address string
	url     string
	http    *http.Client
	logs    *quiet
}

// quiet keeps what the exporter logs for when a test fails.
type quiet struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (q *quiet) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.buf.Write(p)
}

// attacked starts an exporter, changed as the test wants it, and waits for its first page.
func attacked(t *testing.T, change func(*app.Config)) *victim {
	t.Helper()
	return attackedBy(t, &http.Transport{DisableKeepAlives: true}, "http://", change)
}

// attackedBy is attacked with a client of the test's choice.
func attackedBy(t *testing.T, client http.RoundTripper, scheme string, change func(*app.Config)) *victim {
	t.Helper()
	c := app.Defaults()
	c.Source, c.Kubernetes, c.Address, c.Interval = "sim", true, "127.0.0.1:0", "100ms"
	c.Health.LedgerDir, c.Health.Socket = "", ""
	if change != nil {
		change(&c)
	}
	v := &victim{t: t, logs: &quiet{}}
	a, err := app.New(c, v.logs)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the exporter ended with %v", err)
		}
		if t.Failed() {
			t.Logf("its log:\n%s", v.logs.buf.String())
		}
	})
	address, err := a.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	v.address, v.url = address.String(), scheme+address.String()
	v.http = &http.Client{Timeout: 20 * time.Second, Transport: client}
	v.ticks()
	return v
}

// page is a valid page over a new connection, or the end of the test.
func (v *victim) page() page {
	v.t.Helper()
	resp, err := v.http.Get(v.url + "/metrics")
	if err != nil {
		v.t.Fatalf("somebody who means well gets no page: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		v.t.Fatalf("somebody who means well gets %s, %v", resp.Status, err)
	}
	p, err := parse(body, resp.Header.Get("Content-Type"))
	if err != nil {
		v.t.Fatal(err)
	}
	if err := p.addsUp(); err != nil {
		v.t.Fatal(err)
	}
	return p
}

// ticks is how many there have been.
func (v *victim) ticks() float64 {
	v.t.Helper()
	return v.page()["gpumeter_ticks_total"][0].value
}

// goesOn scrapes until ten more ticks have been.
func (v *victim) goesOn() {
	v.t.Helper()
	for first := v.ticks(); v.ticks() < first+10; time.Sleep(50 * time.Millisecond) {
	}
}

// connect opens a connection and says something on it.
func (v *victim) connect(text string) *net.TCPConn {
	v.t.Helper()
	c, err := net.Dial("tcp", v.address)
	if err != nil {
		v.t.Fatal(err)
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		v.t.Fatalf("%T is no TCP connection", c)
	}
	v.t.Cleanup(func() { _ = tcp.Close() })
	// A client that reads slowly makes the server wait only when the kernel does not read for it.
	_ = tcp.SetReadBuffer(4096)
	_, _ = io.WriteString(tcp, text)
	return tcp
}

// cut reports whether the server ends a connection within a time.
func cut(c net.Conn, within time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

const scrape = "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"

// TestTwoHundredSlowScrapersCostNobodyElseAPage has them ask for a hundred pages each and read one byte now and then.
func TestTwoHundredSlowScrapersCostNobodyElseAPage(t *testing.T) {
	v := attacked(t, nil)
	before := descriptors(t)
	var slow []net.Conn
	for range 200 {
		slow = append(slow, v.connect(strings.Repeat(scrape, 100)))
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range slow {
		all.Go(func() {
			one := make([]byte, 1)
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					_, _ = c.Read(one)
				}
			}
		})
	}
	v.goesOn()
	close(stop)
	for _, c := range slow {
		_ = c.Close()
	}
	all.Wait()
	v.goesOn()
	v.settles(before)
}

// TestAClientThatNeverReadsIsCutOff has a write time that is short.
func TestAClientThatNeverReadsIsCutOff(t *testing.T) {
	v := attacked(t, func(c *app.Config) { c.WriteTimeout = 500 * time.Millisecond })
	c := v.connect(strings.Repeat(scrape, 1000))
	v.goesOn()
	if !cut(c, 20*time.Second) {
		t.Error("it is still connected")
	}
}

func TestWhoeverDoesNotFinishARequestIsCutOff(t *testing.T) {
	v := attacked(t, func(c *app.Config) { c.ReadTimeout = 500 * time.Millisecond })
	for name, text := range map[string]string{
		"who says nothing":                  "",
		"who stops in the first line":       "GET /met",
		"who stops in the head":             "GET /metrics HTTP/1.1\r\nHost: node\r\nX-",
		"who announces a body and has none": "POST /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 100000000\r\n\r\n",
	} {
		if c := v.connect(text); !cut(c, 20*time.Second) {
			t.Errorf("%s is still connected", name)
		}
	}
	// One byte now and then buys no time.
	c := v.connect("GET /metrics HTTP/1.1\r\n")
	go func() {
		for range 200 {
			if _, err := io.WriteString(c, "x"); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	if !cut(c, 20*time.Second) {
		t.Error("who sends a byte now and then is still connected")
	}
	v.goesOn()
}

// TestWhoOpensManyConnectionsLosesItsOwn opens three times as many as are kept, and says nothing on them.
func TestWhoOpensManyConnectionsLosesItsOwn(t *testing.T) {
	v := attacked(t, nil)
	before := descriptors(t)
	kept, _ := net.Dial("tcp", v.address)
	defer kept.Close()
	answer := bufio.NewReader(kept)
	var flood []*net.TCPConn
	for i := range 3 * exporter.MaxConnections {
		flood = append(flood, v.connect(""))
		if i%100 == 0 {
			v.page()
		}
	}
	if more := descriptors(t) - before - len(flood) - 1; more > exporter.MaxConnections+8 {
		t.Errorf("the exporter has %d descriptors for %d connections, and keeps %d", more, len(flood), exporter.MaxConnections)
	}
	v.goesOn()
	ended := 0
	for _, c := range flood {
		if cut(c, time.Millisecond) {
			ended++
		}
	}
	if ended < 2*exporter.MaxConnections {
		t.Errorf("%d of %d connections were closed, want all but %d", ended, len(flood), exporter.MaxConnections)
	}
	_ = kept.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(kept, scrape)
	if _, err := http.ReadResponse(answer, nil); err == nil {
		t.Error("all come from one address, so the oldest of all goes first")
	}
	if !strings.Contains(v.logs.buf.String(), "too many connections") {
		t.Error("nobody is told")
	}
}

// TestNoRequestIsTooStrange sends what no client should, each followed by one who means well.
func TestNoRequestIsTooStrange(t *testing.T) {
	v := attacked(t, func(c *app.Config) { c.ReadTimeout = 2 * time.Second })
	head := func(name, value string) string {
		return "GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n" + name + ": " + value + "\r\n\r\n"
	}
	for _, test := range []struct {
		name, request string
		want          []int
	}{
		{"a head of 1 MB", head("X-Long", strings.Repeat("x", 1<<20)), []int{431}},
		{"ten thousand heads", "GET /metrics HTTP/1.1\r\nHost: node\r\n" + strings.Repeat("A: b\r\n", 10000) + "\r\n", []int{431}},
		{"a path of 1 MB", "GET /" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: node\r\n\r\n", []int{414, 431}},
		{"a query of 20 kB", "GET /metrics?" + strings.Repeat("a=b&", 5000) + " HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", []int{200}},
		{"a body of 1 GB", "POST /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000000\r\n\r\n" + strings.Repeat("x", 1<<20), []int{405}},
		{"a GET with a body", "GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", []int{200}},
		{"chunks that lie", "POST /metrics HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", []int{400, 405}},
		{"two lengths", "GET /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", []int{400}},
		{"no host", "GET /metrics HTTP/1.1\r\n\r\n", []int{400}},
		{"HTTP/1.0", "GET /metrics HTTP/1.0\r\n\r\n", []int{200}},
		{"a part of the page", head("Range", "bytes=0-1,5-6,9-,-3"), []int{200}},
		{"a range without end", head("Range", "bytes="+strings.Repeat("0-,", 5000)), []int{200}},
		{"a format nobody has", head("Accept", "application/pdf;q=9, */*;q=nan, ;;;,"), []int{200}},
		{"20 kB of formats", head("Accept", strings.Repeat("text/plain;version=0.0.4;q=0.1,", 700)), []int{200}},
		{"a coding nobody has", head("Accept-Encoding", "br;q=1, *;q=0"), []int{406}},
		{"20 kB of codings", head("Accept-Encoding", strings.Repeat("gzip;q=0.5,", 1800)), []int{200}},
		{"a time to wait that is no number", head("X-Prometheus-Scrape-Timeout-Seconds", "1e309"), []int{200}},
		{"a way out of the folder", "GET /../../etc/passwd HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", []int{301, 307, 400, 404}},
		{"a proxy's request", "GET http://elsewhere/ HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n", []int{200, 400, 404}},
		{"CONNECT", "CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere:443\r\n\r\n", []int{400, 404, 405}},
		{"an upgrade to HTTP/2", head("Upgrade", "h2c"), []int{200}},
		{"HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400, 404, 505}},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", []int{400}},
		{"noise", "\x00\xff\x00\xff\r\n\r\n", []int{400}},
	} {
		if code := v.status(test.request); !slices.Contains(test.want, code) {
			t.Errorf("%s: answered %d, want one of %v", test.name, code, test.want)
		}
		v.page()
	}
}

// status is what a request is answered, 0 for nothing.
func (v *victim) status(request string) int {
	v.t.Helper()
	c, err := net.Dial("tcp", v.address)
	if err != nil {
		v.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	// The server may have answered and closed before it has read all.
	go func() { _, _ = io.WriteString(c, request) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestAHundredRequestsInOneWriteAreAnsweredInOrder is pipelining.
func TestAHundredRequestsInOneWriteAreAnsweredInOrder(t *testing.T) {
	v := attacked(t, nil)
	c, err := net.Dial("tcp", v.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, strings.Repeat(scrape, 50)+strings.Repeat("GET /nothing HTTP/1.1\r\nHost: node\r\n\r\n", 50))
	}()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(c)
	for i := range 100 {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		body, err := io.ReadAll(resp.Body)
		if want := map[bool]int{true: 200, false: 404}[i < 50]; err != nil || resp.StatusCode != want {
			t.Fatalf("answer %d: %s, %v", i, resp.Status, err)
		}
		if i < 50 {
			if _, err := parse(body, resp.Header.Get("Content-Type")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// settles waits until this process has hardly more descriptors than before.
func (v *victim) settles(before int) {
	v.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		now := descriptors(v.t)
		if now <= before+8 {
			return
		}
		if time.Now().After(end) {
			v.t.Fatalf("%d descriptors, %d before", now, before)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid()))
	if err != nil {
		t.Skip(err)
	}
	return len(files)
}
