// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// defaultCounters are the 26 fields that etc/default-counters.csv has switched on.
func defaultCounters() []gpu.FieldID {
	return []gpu.FieldID{
		100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251, 252, 253, 449, 526, 393, 394, 395,
		1, 1001, 1004, 1005, 1009, 1010,
	}
}

// BenchmarkRead is one reading of the default counters, in steady state, against a library that
// takes next to no time: what is measured is this side of DCGM, and the calls themselves.
func BenchmarkRead(b *testing.B) {
	const linkState = 1508
	for _, node := range []struct {
		name     string
		scenario []string
		also     []gpu.FieldID
	}{
		{"8GPUs", []string{"gpus 8 h100", "clock frozen"}, nil},
		{"8GPUsDividedInto56", append([]string{"gpus 8 h100", "clock frozen"}, divided(8)...), nil},
		{"8GPUsWith144Links", []string{"gpus 8 h100", "clock frozen"}, []gpu.FieldID{linkState}},
	} {
		b.Run(node.name, func(b *testing.B) {
			sim := pretend(b, node.scenario...)
			s, err := Open(Config{Library: sim.Path, Interval: time.Second})
			if err != nil {
				b.Fatal(errors.Join(err, sim.Err()))
			}
			defer s.Close()
			fields := append(defaultCounters(), node.also...)
			ctx := context.Background()
			for range 3 {
				if _, err := s.Read(ctx, fields); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Read(ctx, fields); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
