// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/kubelet"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// crowded is a scenario of n H100 by 4 replicas, each seat held, and 60 other pods;
// with MIG, each card is cut into seven and each instance has the replicas.
func crowded(n int, mig bool) string {
	layout, resource, seats := "", "nvidia.com/gpu", n*4
	if mig {
		layout, resource, seats = ", mig: ["+strings.TrimSuffix(strings.Repeat("1g.10gb, ", 7), ", ")+"]", "nvidia.com/mig-1g.10gb", n*28
	}
	return fmt.Sprintf(`description: a crowded node
node: bench
gpus:
  - {model: H100-80, count: %d%s}
sharing:
  - {resource: %s, replicas: 4}
pods:
  - {name: chat, namespace: inference, resource: %s, copies: %d, load: inference}
background_pods: 60
`, n, layout, resource, resource, seats)
}

// bench is a crowded node with everything on it that the exporter has.
type bench struct {
	node    *sim.Node
	kubelet *kubelet.Client
	meter   *meter.Meter
	fields  []gpu.FieldID
}

func newBench(b *testing.B, scenario string) bench {
	b.Helper()
	sc, err := sim.Parse("bench.yaml", []byte(scenario))
	if err != nil {
		b.Fatal(err)
	}
	node, err := sim.NewNode(sc, sim.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	socket := filepath.Join(b.TempDir(), "k.sock")
	served := make(chan error, 1)
	go func() { served <- node.ServeKubelet(ctx, socket) }()
	resources, err := sharing.NewResources(sharing.DefaultResourcePatterns()...)
	if err != nil {
		b.Fatal(err)
	}
	client, err := kubelet.New(kubelet.Config{Socket: socket, Resources: resources})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = client.Close()
		cancel()
		<-served
	})
	for range 500 {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	data, err := etc.ReadFile("default-counters.csv")
	if err != nil {
		b.Fatal(err)
	}
	counters, _ := exporter.ParseCounters("default-counters.csv", data)
	policy, err := sharing.ParsePolicy("blend")
	if err != nil {
		b.Fatal(err)
	}
	rules, err := health.NewRules(health.Config{})
	if err != nil {
		b.Fatal(err)
	}
	m, err := meter.New(meter.Config{
		Telemetry: node, Allocations: client, Fields: counters.Fields(), Policy: policy, Interval: 10 * time.Second, Health: rules,
		Book: ledger.OpenBook(ledger.BookConfig{}),
	})
	if err != nil {
		b.Fatal(err)
	}
	m.Tick(ctx)
	if s := m.Latest(); len(s.Faults) > 0 || len(s.Division.Shares) == 0 {
		b.Fatalf("faults %v, %d shares", s.Faults, len(s.Division.Shares))
	}
	return bench{node, client, m, counters.Fields()}
}

// breathe keeps a benchmark under the kubelet's rate limit of 100 requests/s, of
// which a tick takes two, without measuring the pause.
func breathe(b *testing.B) {
	b.StopTimer()
	time.Sleep(25 * time.Millisecond)
	b.StartTimer()
}

// shape is a node to measure on.
type shape struct{ name, scenario string }

func shapes() []shape {
	var out []shape
	for _, n := range []int{1, 2, 4, 8, 16} {
		out = append(out, shape{fmt.Sprintf("gpus=%d/replicas=4", n), crowded(n, false)})
	}
	return append(out, shape{"gpus=8/mig=7/replicas=4", crowded(8, true)})
}

// BenchmarkTick is a whole tick: read the simulated GPUs, list over the real gRPC socket, attribute, publish.
func BenchmarkTick(b *testing.B) {
	for _, sh := range shapes() {
		b.Run(sh.name, func(b *testing.B) {
			s := newBench(b, sh.scenario)
			b.ReportAllocs()
			for b.Loop() {
				breathe(b)
				s.meter.Tick(b.Context())
			}
		})
	}
}

// BenchmarkSources is what a tick waits for: the two sources alone.
func BenchmarkSources(b *testing.B) {
	for _, sh := range shapes() {
		s := newBench(b, sh.scenario)
		b.Run(sh.name+"/read", func(b *testing.B) {
			for b.Loop() {
				if _, err := s.node.Read(b.Context(), s.fields); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(sh.name+"/list", func(b *testing.B) {
			for b.Loop() {
				breathe(b)
				if _, err := s.kubelet.List(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScrapeHTTP is a scrape as Prometheus does it, over a kept connection on the loopback, and beside it the same
// bytes served from memory by the same kind of server. cpu-µs/op is of the whole process: server, client and kernel's share.
func BenchmarkScrapeHTTP(b *testing.B) {
	for _, copies := range []bool{false, true} {
		s := newBench(b, crowded(8, false))
		data, err := etc.ReadFile("default-counters.csv")
		if err != nil {
			b.Fatal(err)
		}
		counters, _ := exporter.ParseCounters("default-counters.csv", data)
		e, err := exporter.New(s.meter, counters, exporter.Config{Hostname: "bench", VirtualGPUs: copies})
		if err != nil {
			b.Fatal(err)
		}
		for _, encoding := range []string{"identity", "gzip"} {
			req := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
			req.Header.Set("Accept-Encoding", encoding)
			w := httptest.NewRecorder()
			e.Handler().ServeHTTP(w, req)
			page := w.Body.Bytes()
			bytesOnly := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(len(page)))
				_, _ = w.Write(page)
			})
			for name, h := range map[string]http.Handler{"exporter": e.Handler(), "bytes": bytesOnly} {
				b.Run(fmt.Sprintf("copies=%v/%s/%s", copies, encoding, name), func(b *testing.B) { overHTTP(b, h, encoding) })
			}
		}
	}
}

func overHTTP(b *testing.B, h http.Handler, encoding string) {
	server := httptest.NewServer(h)
	defer server.Close()
	client := server.Client()
	size := 0
	get := func() {
		req, err := http.NewRequest(http.MethodGet, server.URL+"/metrics", http.NoBody)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", encoding)
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
		size = int(n)
	}
	get()
	before, ops := cpuTime(b), 0
	for b.Loop() {
		get()
		ops++
	}
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(ops), "cpu-µs/op")
	b.ReportMetric(float64(size), "bytes")
}

// cpuTime is what this process has used so far, in user and kernel mode.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
