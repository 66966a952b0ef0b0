// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"

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
