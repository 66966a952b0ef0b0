// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// memoryUnknown is NVML's word for memory that it cannot tell.
const memoryUnknown = ^uint64(0)

// processLists are the ways a process can be on a GPU: computing, drawing, or through MPS.
func processLists() []struct {
	function string
	list     func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
} {
	return []struct {
		function string
		list     func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
	}{
		{
			"nvmlDeviceGetComputeRunningProcesses_v3|nvmlDeviceGetComputeRunningProcesses_v2|nvmlDeviceGetComputeRunningProcesses",
			nvml.Device.GetComputeRunningProcesses,
		},
		{
			"nvmlDeviceGetGraphicsRunningProcesses_v3|nvmlDeviceGetGraphicsRunningProcesses_v2|nvmlDeviceGetGraphicsRunningProcesses",
			nvml.Device.GetGraphicsRunningProcesses,
		},
		{
			"nvmlDeviceGetMPSComputeRunningProcesses_v3|nvmlDeviceGetMPSComputeRunningProcesses_v2|nvmlDeviceGetMPSComputeRunningProcesses",
			nvml.Device.GetMPSComputeRunningProcesses,
		},
	}
}

type processKey struct {
	pid      uint32
	instance int
}

// processes are those on the card. What cannot be told is left out: nobody's reading fails for it.
func (c *card) processes() []gpu.Process {
	found := make(map[processKey]gpu.Process)
	for _, l := range processLists() {
		if c.lost || !c.lib.has(l.function) {
			continue
		}
		c.calling(l.function)
		list, ret := l.list(c.handle)
		c.note(ret)
		for _, p := range list {
			c.addProcess(found, p, instanceID(p.GpuInstanceId))
		}
		if ret == nvml.SUCCESS || len(c.parts) == 0 {
			continue
		}
		// Not everybody may see all instances at once.
		for i := range c.parts {
			list, _ := l.list(c.parts[i].handle)
			for _, p := range list {
				c.addProcess(found, p, c.parts[i].device.GPUInstance)
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	if len(c.parts) == 0 {
		c.addUtilization(found)
	}
	out := make([]gpu.Process, 0, len(found))
	for _, p := range found {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b gpu.Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPUInstance, b.GPUInstance))
	})
	return out
}

// addProcess adds a process, which can be in more lists than one.
func (c *card) addProcess(found map[processKey]gpu.Process, p nvml.ProcessInfo, instance int) {
	key := processKey{p.Pid, instance}
	process, known := found[key]
	if !known {
		process = gpu.Process{
			PID: p.Pid, GPU: c.device.UUID, GPUInstance: instance,
			MemoryBytes: gpu.Absent(gpu.ReasonNotSupported), SMUtil: gpu.Absent(gpu.ReasonNotSupported),
		}
	}
	if p.UsedGpuMemory != memoryUnknown && !process.MemoryBytes.Present() {
		process.MemoryBytes = number(p.UsedGpuMemory)
	}
	found[key] = process
}

// utilAhead is how far a sample's clock may be ahead of this one.
const utilAhead = time.Minute

// addUtilization says how busy each process kept the multiprocessors since the reading before:
// the mean of NVML's samples. NVML has it for whole GPUs only.
func (c *card) addUtilization(found map[processKey]gpu.Process) {
	if !c.lib.has("nvmlDeviceGetProcessUtilization") {
		return
	}
	c.calling("nvmlDeviceGetProcessUtilization")
	samples, ret := c.handle.GetProcessUtilization(c.utilSince)
	c.note(ret)
	reason := reasonOf(ret)
	if ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE {
		// A process without a sample has not run since.
		reason = gpu.ReasonBlank
	}
	sums, counts := make(map[uint32]float64), make(map[uint32]float64)
	soon := uint64(time.Now().Add(utilAhead).UnixMicro())
	for _, s := range samples {
		// Some drivers hand over samples that nobody filled.
		if s.SmUtil > mostPercent || s.TimeStamp > soon {
			continue
		}
		c.utilSince = max(c.utilSince, s.TimeStamp)
		sums[s.Pid] += float64(s.SmUtil)
		counts[s.Pid]++
	}
	for key, p := range found {
		p.SMUtil = gpu.Absent(reason)
		if n := counts[key.pid]; n > 0 {
			p.SMUtil = gpu.Float(sums[key.pid] / n / 100)
		}
		found[key] = p
	}
}
