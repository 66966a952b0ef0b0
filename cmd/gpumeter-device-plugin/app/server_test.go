// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serving is the plugin's server on a port of the system's choice, until the test ends.
func serving(t *testing.T) (address string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	w, err := listenWeb(t.Context(), config{address: "127.0.0.1:0"}, handler(busy(), log), log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	return w.listener.Addr().String()
}

// TestClientsThatNeverReadCostNobodyElseThePage has two hundred of them ask for more than the kernel keeps for them.
func TestClientsThatNeverReadCostNobodyElseThePage(t *testing.T) {
	address := serving(t)
	for range 200 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(4096)
		}
		// In parts: one that does not read is not read from either.
		_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n", 500))
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 20 {
		resp, err := client.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "gpumeter_device_plugin_") {
			t.Fatalf("%s, %v: %.200s", resp.Status, err, body)
		}
	}
}

// TestAPageIsMadeOneAfterTheOtherAndSaysHowLongItIs holds a body and its head together.
func TestAPageIsMadeOneAfterTheOtherAndSaysHowLongItIs(t *testing.T) {
	making := make(chan struct{}, 1)
	h := buffered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case making <- struct{}{}:
		default:
			t.Error("two pages are made at once")
		}
		defer func() { <-making }()
		w.Header().Set("X-Kind", "page")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Repeat(r.URL.Path, 1000))
		time.Sleep(time.Millisecond)
	}))
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	answered := make(chan *http.Response, 8)
	for range cap(answered) {
		go func() {
			resp, err := http.Get("http://" + listener.Addr().String() + "/x")
			if err != nil {
				t.Error(err)
			}
			answered <- resp
		}()
	}
	for range cap(answered) {
		resp := <-answered
		if resp == nil {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusTeapot || resp.Header.Get("X-Kind") != "page" || len(body) != 2000 || resp.ContentLength != 2000 {
			t.Errorf("%s, kind %q, %d bytes of %d, %v", resp.Status, resp.Header.Get("X-Kind"), len(body), resp.ContentLength, err)
		}
	}
}
