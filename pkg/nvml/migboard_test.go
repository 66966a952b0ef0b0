// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/uuid"
)

func (b *board) inMIG() bool {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	return b.mig
}

func (b *board) GetMigMode() (int, int, nvml.Return) {
	mode := 0
	if b.inMIG() {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	mode, ret := told(b, "nvmlDeviceGetMigMode", mode)
	return mode, mode, ret
}

func (b *board) GetMaxMigDeviceCount() (int, nvml.Return) {
	return told(b, "nvmlDeviceGetMaxMigDeviceCount", 7)
}

func (b *board) GetGpuInstanceProfileInfo(rank int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	for _, g := range b.of.geometry {
		if g.rank == rank {
			info := b.profile(g)
			info.Id, info.MultiprocessorCount, info.MemorySizeMB, info.InstanceCount = profileID(rank), g.sms, g.mib, g.count
			return told(b, "nvmlDeviceGetGpuInstanceProfileInfo", info)
		}
	}
	if rank >= nvml.GPU_INSTANCE_PROFILE_COUNT+4 {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
}

// profile is a profile as the mock has it, or as its smallest one where the mock has none.
func (b *board) profile(g geometry) nvml.GpuInstanceProfileInfo {
	if g.slices == 0 {
		info, _ := b.Device.GetGpuInstanceProfileInfo(g.rank)
		return info
	}
	info, _ := b.Device.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	info.SliceCount = g.slices
	return info
}

// profileID is what NVML calls a profile on the GPU instance, which is not its index.
func profileID(rank int) uint32 { return 19 - uint32(rank) }

func (b *board) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	var out []nvml.GpuInstancePlacement
	for _, g := range b.of.geometry {
		if profileID(g.rank) == info.Id {
			for _, start := range g.starts {
				out = append(out, nvml.GpuInstancePlacement{Start: start, Size: g.size})
			}
		}
	}
	return told(b, "nvmlDeviceGetGpuInstancePossiblePlacements", out)
}

func (b *board) GetMigDeviceHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if ret := b.call("nvmlDeviceGetMigDeviceHandleByIndex"); ret != nvml.SUCCESS {
		return nil, ret
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	// As on real hardware, the indices are not those of the instances.
	if i = len(b.parts) - 1 - i; i < 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return b.parts[i], nvml.SUCCESS
}

func (b *board) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	if ret := b.call("nvmlDeviceGetGpuInstanceById"); ret != nvml.SUCCESS {
		return nil, ret
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	for _, p := range b.parts {
		if p.gi == id {
			return server.NewGpuInstanceFromInfo(nvml.GpuInstanceInfo{
				Device: b, Id: uint32(id), ProfileId: profileID(p.g.rank),
				Placement: nvml.GpuInstancePlacement{Start: p.start, Size: p.g.size},
			}, b.Device.(*server.Device).Config.MIGProfiles), nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// seat is a GPU instance of a layout: a profile at a memory slice, with compute instances of
// so many slices each; none is one over all of it.
type seat struct {
	rank    int
	start   uint32
	compute []int
}

// partition puts the board in MIG mode with a layout.
func (b *board) partition(seats ...seat) {
	b.mig, b.parts = true, nil
	b.partitions++
	for _, s := range seats {
		for _, g := range b.of.geometry {
			if g.rank != s.rank {
				continue
			}
			info := b.profile(g)
			compute := s.compute
			if len(compute) == 0 {
				compute = []int{int(info.SliceCount)}
			}
			gi := int(8/g.size - 1 + s.start/g.size)
			for ci, slices := range compute {
				name := fmt.Sprint(b.uuid, gi, ci)
				if !b.sameUUIDs {
					name += fmt.Sprint(b.partitions)
				}
				b.parts = append(b.parts, &migDevice{
					b: b, g: g, gi: gi, ci: ci, start: s.start, slices: slices, of: int(info.SliceCount), info: info,
					uuid: "MIG-" + uuid.NewSHA1(uuid.Nil, []byte(name)).String(),
				})
			}
		}
	}
}

// migDevice is one MIG device of a board.
type migDevice struct {
	nvml.Device
	b          *board
	g          geometry
	info       nvml.GpuInstanceProfileInfo
	gi, ci     int
	start      uint32
	slices, of int
	uuid       string
	// says is the profile in its name.
	says      string
	processes []nvml.ProcessInfo
}

// GetName has the profile, as the driver writes it.
func (d *migDevice) GetName() (string, nvml.Return) {
	return told(d.b, "nvmlDeviceGetName", d.b.of.product+" MIG "+cmp.Or(d.says, "1g.profile"))
}

func (d *migDevice) GetUUID() (string, nvml.Return) { return told(d.b, "nvmlDeviceGetUUID", d.uuid) }

func (d *migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return told(d.b, "nvmlDeviceGetGpuInstanceId", d.gi)
}

func (d *migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return told(d.b, "nvmlDeviceGetComputeInstanceId", d.ci)
}

func (d *migDevice) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return told(d.b, "nvmlDeviceGetAttributes", nvml.DeviceAttributes{
		MultiprocessorCount:   d.g.sms * uint32(d.slices) / uint32(d.of),
		GpuInstanceSliceCount: uint32(d.of), ComputeInstanceSliceCount: uint32(d.slices), MemorySizeMB: d.g.mib,
		SharedJpegCount: d.info.JpegCount, SharedOfaCount: d.info.OfaCount,
	})
}

func (d *migDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return told(d.b, "nvmlDeviceGetMemoryInfo", nvml.Memory{
		Total: d.g.mib << 20, Used: uint64(d.gi+1) << 20, Free: (d.g.mib - uint64(d.gi+1)) << 20,
	})
}

func (d *migDevice) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return told(d.b, "nvmlDeviceGetMemoryInfo_v2", nvml.Memory_v2{
		Total: d.g.mib << 20, Used: uint64(d.gi+1) << 20, Free: (d.g.mib - uint64(d.gi+1)) << 20,
	})
}

func (d *migDevice) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return told(d.b, "nvmlDeviceGetBAR1MemoryInfo", nvml.BAR1Memory{Bar1Total: 1 << 30})
}

func (d *migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return told(d.b, "nvmlDeviceGetComputeRunningProcesses of a part", d.processes)
}

func (d *migDevice) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (d *migDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}
