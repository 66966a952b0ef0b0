// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// profile is a kind of GPU instance with what tells NVML's apart.
type profile struct {
	gpu.MIGProfile
	// rank is NVML's index of the profile, by which DCGM numbers instances; id is what a GPU
	// instance says of itself.
	rank int
	id   uint32
	info nvml.GpuInstanceProfileInfo
}

// partKey is what a MIG device says of itself in every reading. Its UUID comes from its ids, and
// another profile in the same place can have the same ones.
type partKey struct {
	uuid         string
	instance, ci int
	attributes   nvml.DeviceAttributes
}

// partFunctions are what a MIG device is known by.
func partFunctions() []string {
	return []string{
		"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2|nvmlDeviceGetAttributes",
	}
}

// lookForParts brings the MIG devices up to date.
func (c *card) lookForParts() []gpu.Trouble {
	if !c.lib.has(partFunctions()...) {
		return nil
	}
	c.calling("nvmlDeviceGetMigMode")
	mode, _, ret := c.handle.GetMigMode()
	c.note(ret)
	switch {
	case ret == nvml.SUCCESS:
		if on := mode == nvml.DEVICE_MIG_ENABLE; on != c.device.MIGEnabled {
			c.device.MIGEnabled, c.profilesKnown = on, false
		}
	case reasonOf(ret) == gpu.ReasonNotSupported:
		c.device.MIGEnabled = false
	default:
		return []gpu.Trouble{c.trouble(reasonOf(ret), "its MIG mode cannot be read: "+returned(ret).Error())}
	}
	if !c.device.MIGEnabled {
		c.parts, c.mostInstances = nil, 0
	}
	if !c.profilesKnown {
		c.readProfiles()
	}
	if !c.device.MIGEnabled {
		return nil
	}
	return c.listParts()
}

// listParts asks for each MIG device, and describes those that are new or have changed.
func (c *card) listParts() []gpu.Trouble {
	c.calling("nvmlDeviceGetMigDeviceHandleByIndex")
	most, ret := c.handle.GetMaxMigDeviceCount()
	c.note(ret)
	if ret != nvml.SUCCESS {
		return []gpu.Trouble{c.trouble(reasonOf(ret), "its MIG devices cannot be counted: "+returned(ret).Error())}
	}
	c.mostInstances = most
	var troubles []gpu.Trouble
	found := make([]part, 0, most)
	for i := range most {
		handle, ret := c.handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		key, ret := c.keyOf(handle, ret)
		switch {
		case c.lost || c.gone != nvml.SUCCESS:
			// What is known of its parts stands.
			return nil
		case ret == nvml.ERROR_NOT_FOUND:
			// None is there, or it has just been destroyed.
			continue
		case ret != nvml.SUCCESS:
			troubles = append(troubles, c.trouble(reasonOf(ret), fmt.Sprintf("its MIG device %d cannot be read: %v", i, returned(ret))))
			continue
		}
		var p part
		if known := slices.IndexFunc(c.parts, func(p part) bool { return p.key == key }); known >= 0 {
			p = c.parts[known]
		} else {
			p = c.describe(key, handle)
			// The driver uses the ids of GPU instances again, and another one's counters start anew.
			c.endMonitor(key.instance)
		}
		p.handle = handle
		found = append(found, p)
	}
	c.number(found)
	c.parts = found
	return troubles
}

// part is one MIG device.
type part struct {
	key    partKey
	handle nvml.Device
	device gpu.Device
	// rank is that of its profile.
	rank int
}

// keyOf asks a MIG device for what it is known by, where its handle could be had.
func (c *card) keyOf(handle nvml.Device, ret nvml.Return) (partKey, nvml.Return) {
	var key partKey
	for _, ask := range []func() nvml.Return{
		func() nvml.Return { return ret },
		func() (ret nvml.Return) { key.uuid, ret = handle.GetUUID(); return },
		func() (ret nvml.Return) { key.instance, ret = handle.GetGpuInstanceId(); return },
		func() (ret nvml.Return) { key.ci, ret = handle.GetComputeInstanceId(); return },
		func() (ret nvml.Return) { key.attributes, ret = handle.GetAttributes(); return },
	} {
		if ret := ask(); ret != nvml.SUCCESS {
			c.note(ret)
			return key, ret
		}
	}
	return key, nvml.SUCCESS
}

// number puts the MIG devices in the order of their instances and gives them DCGM's entity
// ids: it goes through NVML's profiles in NVML's order, and through the instances of each.
func (c *card) number(found []part) {
	slices.SortFunc(found, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.key.instance, b.key.instance), cmp.Compare(a.key.ci, b.key.ci))
	})
	order := make([]int, len(found))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(found[a].rank, found[b].rank) })
	next := c.index * c.mostInstances
	for at, i := range order {
		if at > 0 && found[order[at-1]].key.instance == found[i].key.instance {
			found[i].device.InstanceEntity = next - 1
			continue
		}
		found[i].device.InstanceEntity = next
		next++
	}
	for i := range found {
		found[i].device.Index, found[i].device.Minor = c.device.Index, c.device.Minor
	}
}

// describe is a MIG device as its GPU instance, its profile and its own attributes have it.
func (c *card) describe(key partKey, handle nvml.Device) part {
	d := gpu.Device{
		UUID: gpu.UUID(key.uuid), Parent: c.device.UUID,
		Index: c.device.Index, Minor: c.device.Minor, PCIBusID: c.device.PCIBusID, Model: c.device.Model,
		GPUInstance: key.instance, ComputeInstance: key.ci, InstanceEntity: gpu.NoInstance,
	}
	attributes := &key.attributes
	giSlices, ciSlices := int(attributes.GpuInstanceSliceCount), int(attributes.ComputeInstanceSliceCount)
	of, placement := c.profileOf(key, handle)
	if of == nil {
		// The driver does not let everybody ask for the GPU instance.
		memory := memorySlices(attributes.MemorySizeMB, c.memory, c.wholeMemorySlices())
		of = &profile{rank: math.MaxInt, MIGProfile: gpu.MIGProfile{
			Name: profileName(giSlices, attributes.MemorySizeMB, c.memory, ""), Slices: gpu.Slices{Compute: giSlices, Memory: memory},
		}}
	}
	d.Placement = placement
	d.Profile = gpu.Profile{
		Name: of.Name, Slices: of.Slices,
		ComputeInstanceSlices: ciSlices, ComputeInstanceSMs: int(attributes.MultiprocessorCount),
	}
	if ciSlices < of.Compute {
		d.Profile.Name = fmt.Sprintf("%dc.%s", ciSlices, of.Name)
	}
	if c.memory == 0 {
		// Who may not see the whole card's memory cannot work the name out.
		d.Profile.Name = cmp.Or(c.saysOfItself(handle), d.Profile.Name)
	}
	return part{key: key, device: d, rank: of.rank}
}

// saysOfItself is the profile in a MIG device's name, empty where there is none.
func (c *card) saysOfItself(handle nvml.Device) string {
	if !c.lib.has("nvmlDeviceGetName") {
		return ""
	}
	name, _ := handle.GetName()
	_, profile, _ := strings.Cut(name, " MIG ")
	return profile
}

// profileOf is the profile and place of a MIG device's GPU instance: as the driver says, else
// the profile that looks like it.
func (c *card) profileOf(key partKey, handle nvml.Device) (*profile, gpu.Placement) {
	if c.lib.has("nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo") {
		if instance, ret := c.handle.GetGpuInstanceById(key.instance); ret == nvml.SUCCESS {
			info, ret := instance.GetInfo()
			for i := range c.profiles {
				if ret == nvml.SUCCESS && c.profiles[i].id == info.ProfileId {
					return &c.profiles[i], gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}
				}
			}
		}
	}
	var alike []*profile
	a := &key.attributes
	for i := range c.profiles {
		p := &c.profiles[i].info
		if p.SliceCount == a.GpuInstanceSliceCount && p.MemorySizeMB == a.MemorySizeMB &&
			p.JpegCount == a.SharedJpegCount && p.OfaCount == a.SharedOfaCount {
			alike = append(alike, &c.profiles[i])
		}
	}
	if len(alike) == 0 {
		return nil, gpu.Placement{}
	}
	if len(alike) > 1 {
		// What may draw differs from what may not in its name only.
		says := c.saysOfItself(handle)
		for _, p := range alike {
			if says == p.Name || strings.HasSuffix(says, "c."+p.Name) {
				return p, gpu.Placement{}
			}
		}
	}
	return alike[0], gpu.Placement{}
}

func (c *card) wholeMemorySlices() int { return max(c.device.Capacity.Memory, eighths) }

// mostProfiles bounds the kinds of GPU instance that are asked for, newer ones than the binding
// knows among them.
const mostProfiles = 2 * nvml.GPU_INSTANCE_PROFILE_COUNT

// readProfiles asks which GPU instances the card can have. A driver may not tell while MIG is
// off.
func (c *card) readProfiles() {
	c.profiles, c.profilesKnown = nil, true
	c.device.Capacity, c.device.MIGProfiles = gpu.Slices{}, nil
	if !c.lib.has("nvmlDeviceGetGpuInstanceProfileInfo") {
		return
	}
	c.calling("nvmlDeviceGetGpuInstanceProfileInfo")
	complete := true
	for rank := range mostProfiles {
		info, ret := c.handle.GetGpuInstanceProfileInfo(rank)
		c.note(ret)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			// There are no more that this driver knows.
			break
		}
		if ret == nvml.ERROR_NO_PERMISSION {
			complete = false
			break
		}
		if ret != nvml.SUCCESS || info.SliceCount == 0 {
			complete = complete && (ret == nvml.SUCCESS || reasonOf(ret) == gpu.ReasonNotSupported)
			continue
		}
		suffix := suffixOf(rank)
		p := profile{rank: rank, id: info.Id, info: info, MIGProfile: gpu.MIGProfile{
			Name:   profileName(int(info.SliceCount), info.MemorySizeMB, c.memory, suffix),
			Slices: gpu.Slices{Compute: int(info.SliceCount), SMs: int(info.MultiprocessorCount)},
			Max:    int(info.InstanceCount),
		}}
		if strings.HasPrefix(suffix, "+me") {
			p.Exclusive = "me"
		}
		c.place(&p)
		c.profiles = append(c.profiles, p)
	}
	c.profilesKnown = complete
	whole := &c.device.Capacity
	for _, p := range c.profiles {
		if p.Compute > whole.Compute || p.Compute == whole.Compute && p.SMs > whole.SMs {
			whole.Compute, whole.SMs = p.Compute, p.SMs
		}
		for _, start := range p.Starts {
			whole.Memory = max(whole.Memory, start+p.Size)
		}
	}
	for i := range c.profiles {
		p := &c.profiles[i]
		if p.Memory == 0 {
			p.Memory = memorySlices(p.info.MemorySizeMB, c.memory, c.wholeMemorySlices())
			whole.Memory = max(whole.Memory, p.Memory)
		}
		c.device.MIGProfiles = append(c.device.MIGProfiles, p.MIGProfile)
	}
	slices.SortStableFunc(c.device.MIGProfiles, func(a, b gpu.MIGProfile) int {
		return cmp.Or(cmp.Compare(a.Compute, b.Compute), cmp.Compare(a.Memory, b.Memory))
	})
}

// place finds where instances of a profile can begin, and how many memory slices they cover.
func (c *card) place(p *profile) {
	if !c.lib.has("nvmlDeviceGetGpuInstancePossiblePlacements_v2|nvmlDeviceGetGpuInstancePossiblePlacements") {
		return
	}
	places, ret := c.handle.GetGpuInstancePossiblePlacements(&p.info)
	if ret != nvml.SUCCESS {
		return
	}
	for _, place := range places {
		p.Starts = append(p.Starts, int(place.Start))
		p.Size = int(place.Size)
	}
	slices.Sort(p.Starts)
	p.Memory = p.Size
}

// suffixOf is what tells profiles of one size apart, as the device plugin writes it.
func suffixOf(rank int) string {
	switch rank {
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return "+me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX,
		nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		return "+gfx"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		return "+me.all"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		return "-me"
	default:
		return ""
	}
}

// eighths are the parts of a card's memory by which the device plugin names profiles.
const eighths = 8

// profileName is the profile's name as the device plugin has it: the memory is the card's,
// rounded up to GB, times the eighths that the instance's part is rounded up to.
func profileName(computeSlices int, memoryMiB, cardBytes uint64, suffix string) string {
	if cardBytes == 0 {
		return fmt.Sprintf("%dg.%dgb%s", computeSlices, (memoryMiB+1023)>>10, suffix)
	}
	part := math.Ceil(float64(memoryMiB<<20)/float64(cardBytes)*eighths) / eighths
	whole := math.Ceil(float64(cardBytes) / (1 << 30))
	return fmt.Sprintf("%dg.%.0fgb%s", computeSlices, math.Round(part*whole), suffix)
}

// memorySlices is how many of a card's memory slices an amount is, at least one.
func memorySlices(memoryMiB, cardBytes uint64, whole int) int {
	if cardBytes == 0 {
		return 0
	}
	return max(int(math.Round(float64(memoryMiB<<20)/float64(cardBytes)*float64(whole))), 1)
}
