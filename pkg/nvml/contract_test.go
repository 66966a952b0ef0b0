// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/gpu/gputest"
)

// A node with three cards of each model, the last in MIG mode, keeps the contract of a source.
func TestTheSourceKeepsTheContract(t *testing.T) {
	for _, of := range models() {
		t.Run(of.name, func(t *testing.T) {
			gputest.Run(t, func(t *testing.T, gpus gpu.Selection) gputest.Machine {
				m := newMachine(of)
				m.boards = m.boards[:3]
				layouts := [][]seat{
					{
						{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE, start: 4},
						{rank: nvml.GPU_INSTANCE_PROFILE_2_SLICE, start: 0},
						{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: 2},
					},
					{{rank: nvml.GPU_INSTANCE_PROFILE_4_SLICE, start: 0}, {rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: 4}},
				}
				turns := 0
				m.boards[2].partition(layouts[0]...)
				s := m.source(t, Config{GPUs: gpus})
				return gputest.Machine{
					Read: s.Read, Alarms: s.Alarms(), Peers: true, Unsupported: fieldFanSpeed,
					XID:    m.xid,
					Lose:   func(i int) { m.change(i, func(b *board) { b.lost = true }) },
					Return: func(i int) { m.change(i, func(b *board) { b.lost = false }) },
					Hang:   m.hang, Unhang: m.unhang,
					Slow:  func(i int, d time.Duration) { m.change(i, func(b *board) { b.slow = d }) },
					Break: m.cut, Mend: m.mend,
					Repartition: func(i int) {
						turns++
						m.change(i, func(b *board) { b.partition(layouts[turns%len(layouts)]...) })
					},
				}
			})
		})
	}
}
