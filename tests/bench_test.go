// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/kubelet"
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
	m, err := meter.New(meter.Config{
		Telemetry: node, Allocations: client, Fields: counters.Fields(), Policy: policy, Interval: 10 * time.Second,
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

func shapes() map[string]string {
	return map[string]string{
		"gpus=8/replicas=4":       crowded(8, false),
		"gpus=8/mig=7/replicas=4": crowded(8, true),
	}
}

// BenchmarkTick is a whole tick: read the simulated GPUs, list over the real gRPC socket, attribute, publish.
func BenchmarkTick(b *testing.B) {
	for name, scenario := range shapes() {
		b.Run(name, func(b *testing.B) {
			s := newBench(b, scenario)
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
	for name, scenario := range shapes() {
		s := newBench(b, scenario)
		b.Run(name+"/read", func(b *testing.B) {
			for b.Loop() {
				if _, err := s.node.Read(b.Context(), s.fields); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/list", func(b *testing.B) {
			for b.Loop() {
				breathe(b)
				if _, err := s.kubelet.List(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
