// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// BenchmarkRead is a tick of this side: eight GPUs, the default counters, a driver that takes no time.
func BenchmarkRead(b *testing.B) {
	for name, split := range map[string]bool{"Exclusive": false, "MIG": true} {
		b.Run(name, func(b *testing.B) {
			m := newMachine(modelH100())
			if split {
				for i := range m.boards {
					m.boards[i].partition(
						seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE},
						seat{rank: nvml.GPU_INSTANCE_PROFILE_2_SLICE, start: 4},
						seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: 6})
				}
			}
			s := m.source(b, Config{})
			fields := []gpu.FieldID{
				1, 100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251, 252, 253, 449, 526,
				393, 394, 395, 1001, 1004, 1005, 1009, 1010,
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Read(b.Context(), fields); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A call takes the driver some microseconds, and more while others call. So many a tick makes
// for one GPU, and for one with seven instances.
func TestATickAsksAGPUFewTimes(t *testing.T) {
	for instances, most := range map[uint32]int{0: 24, 7: 24 + 7*8} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(modelH100())
			var seats []seat
			for start := range instances {
				seats = append(seats, seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: start})
			}
			if instances > 0 {
				m.change(0, func(b *board) { b.partition(seats...) })
			}
			m.boards = m.boards[:1]
			s := m.source(t, Config{})
			for range 3 {
				read(t, s, defaultCounters()...)
				time.Sleep(time.Second)
			}
			// Apart from what each second costs beside the readings.
			time.Sleep(idleInterval / 2)
			m.change(0, func(b *board) { clear(b.calls); m.requests = 0 })
			read(t, s, defaultCounters()...)
			m.change(0, func(b *board) {
				n := m.requests
				for _, calls := range b.calls {
					n += calls
				}
				if n > most {
					t.Errorf("%d calls with %d instances, want no more than %d: %v", n, instances, most, b.calls)
				}
			})
		})
	}
}
