// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func said(processes []gpu.Process) []string {
	var out []string
	for _, p := range processes {
		out = append(out, fmt.Sprintf("%d on %d: %s bytes, %s", p.PID, p.GPUInstance, show(p.MemoryBytes), show(p.SMUtil)))
	}
	return out
}

func TestProcessesAreThoseOnTheGPU(t *testing.T) {
	m := newMachine(modelH100())
	m.change(0, func(b *board) {
		b.processes = []nvml.ProcessInfo{
			{Pid: 300, UsedGpuMemory: 2 << 30, GpuInstanceId: noInstance},
			{Pid: 100, UsedGpuMemory: memoryUnknown, GpuInstanceId: noInstance},
			{Pid: 300, UsedGpuMemory: 5, GpuInstanceId: noInstance},
		}
		b.samples = []nvml.ProcessUtilizationSample{
			{Pid: 300, TimeStamp: 10, SmUtil: 40}, {Pid: 300, TimeStamp: 20, SmUtil: 60}, {Pid: 300, TimeStamp: 30, SmUtil: 4294967295},
		}
	})
	s := m.source(t, Config{})
	want := []string{"100 on -1: not_supported bytes, blank", "300 on -1: 2147483648 bytes, 0.5"}
	r := read(t, s, 155)
	if got := said(r.Processes); !slices.Equal(got, want) || r.Processes[0].GPU != r.Devices[0].UUID {
		t.Errorf("they are %v, want %v", got, want)
	}
	want[1] = "300 on -1: 2147483648 bytes, blank"
	if got := said(read(t, s, 155).Processes); !slices.Equal(got, want) {
		t.Errorf("without a new sample they are %v, want %v", got, want)
	}
}

func TestProcessesOfGPUInstancesAreToldWhateverIsPermitted(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	m.change(0, func(b *board) {
		b.processes = []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 1, GpuInstanceId: 4}}
		b.parts[0].processes = []nvml.ProcessInfo{{Pid: 9, UsedGpuMemory: 2, GpuInstanceId: noInstance}}
	})
	s := m.source(t, Config{})
	if got, want := said(read(t, s).Processes), []string{"7 on 4: 1 bytes, not_supported"}; !slices.Equal(got, want) {
		t.Errorf("they are %v, want %v", got, want)
	}
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetComputeRunningProcesses"] = nvml.ERROR_NO_PERMISSION })
	if got, want := said(read(t, s).Processes), []string{"9 on 2: 2 bytes, not_supported"}; !slices.Equal(got, want) {
		t.Errorf("without permission for the card they are %v, want %v", got, want)
	}
}

func TestProcessesThatCannotBeListedCostNothing(t *testing.T) {
	m := newMachine(modelH100())
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetComputeRunningProcesses"] = nvml.ERROR_UNKNOWN })
	r := read(t, m.source(t, Config{}), 155)
	if len(r.Processes) != 0 || len(r.Troubles) != 0 || !valueOf(t, r, 0, 155).Present() {
		t.Errorf("%v, %+v", said(r.Processes), r.Troubles)
	}
}
