// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// dcgmNodes are pretend machines behind libdcgm's interface.
func dcgmNodes() []shape {
	var out []shape
	for _, n := range []int{1, 2, 4, 8, 16} {
		out = append(out, shape{fmt.Sprintf("gpus=%d", n), fmt.Sprintf("gpus %d h100\n", n)})
	}
	var divided strings.Builder
	divided.WriteString("gpus 8 h100\n")
	for g := range 8 {
		fmt.Fprintf(&divided, "mig %d on\n", g)
		for i := range 7 {
			fmt.Fprintf(&divided, "gi %d profile 1g.10gb nvml %d placement %d ci\n", g, i+7, i)
		}
	}
	return append(out, shape{"gpus=8/mig=7", divided.String()})
}

// BenchmarkTickDCGM is a whole tick over libdcgm's interface with the default counters and nobody to ask who holds what: read,
// attribute, publish. The library is a pretend one that takes next to no time, so what is measured is gpumeter's own side;
// cpu-µs/op is the whole process' processor time, with the pretend engine's in it.
func BenchmarkTickDCGM(b *testing.B) {
	data, err := etc.ReadFile("default-counters.csv")
	if err != nil {
		b.Fatal(err)
	}
	counters, _ := exporter.ParseCounters("default-counters.csv", data)
	for _, node := range dcgmNodes() {
		b.Run(node.name, func(b *testing.B) {
			pretend, err := dcgmsim.New(b.TempDir(), node.scenario)
			if errors.Is(err, dcgmsim.ErrNoCompiler) {
				b.Skip(err)
			}
			if err != nil {
				b.Fatal(err)
			}
			source, err := dcgm.Open(dcgm.Config{Library: pretend.Path, Interval: time.Second})
			if err != nil {
				b.Fatal(errors.Join(err, pretend.Err()))
			}
			defer source.Close()
			rules, err := health.NewRules(health.Config{})
			if err != nil {
				b.Fatal(err)
			}
			m, err := meter.New(meter.Config{Telemetry: source, Fields: counters.Fields(), Interval: time.Second, Health: rules})
			if err != nil {
				b.Fatal(err)
			}
			for range 3 {
				m.Tick(b.Context())
			}
			if s := m.Latest(); len(s.Reading.Samples) == 0 || len(s.Faults) > 0 {
				b.Fatalf("%d samples, faults %v", len(s.Reading.Samples), s.Faults)
			}
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				m.Tick(b.Context())
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
