// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// BenchmarkScrapeAmongSlowClients is a scrape over a kept connection while so many others have each asked for a thousand pages and read next to nothing.
// The ratio of the two is what a slow client costs everybody else.
func BenchmarkScrapeAmongSlowClients(b *testing.B) {
	for _, slow := range []int{0, 200} {
		b.Run(fmt.Sprintf("slow=%d", slow), func(b *testing.B) {
			address := guardedServer(b)
			for range slow {
				c, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				if tcp, ok := c.(*net.TCPConn); ok {
					_ = tcp.SetReadBuffer(4096)
				}
				_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
				_, _ = io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n", 1000))
			}
			client := &http.Client{Transport: &http.Transport{}}
			for b.Loop() {
				resp, err := client.Get("http://" + address + "/metrics")
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

// guardedServer serves the page of 8 GPUs with 4 replicas as the program does.
func guardedServer(b *testing.B) (address string) {
	b.Helper()
	s, counters := busyNode(b, 8, 0, 4)
	server := &http.Server{
		Handler: exporterOf(b, s, counters, Config{Hostname: "node-7"}).Handler(), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute,
	}
	Guard(server, slog.New(slog.DiscardHandler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	b.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return listener.Addr().String()
}
