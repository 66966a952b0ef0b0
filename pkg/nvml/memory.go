// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// What a GPU remembers with, in DCGM's numbers.
const (
	fieldBAR1Total          = gpu.FieldID(90)
	fieldBAR1Used           = gpu.FieldID(92)
	fieldBAR1Free           = gpu.FieldID(93)
	fieldFBTotal            = gpu.FieldID(250)
	fieldFBFree             = gpu.FieldID(251)
	fieldFBUsed             = gpu.FieldID(252)
	fieldFBReserved         = gpu.FieldID(253)
	fieldFBUsedRatio        = gpu.FieldID(254)
	fieldECCMode            = gpu.FieldID(300) // and, next to it, after the next reset
	fieldSRAMExceeded       = gpu.FieldID(346)
	fieldRemapAvailable     = gpu.FieldID(385) // max, high, partial, low, none
	fieldRetiredSingleBit   = gpu.FieldID(390)
	fieldMemoryUnrepairable = gpu.FieldID(1507)
)

// memoryQueries are in MiB, of the GPU or of the GPU instance.
func memoryQueries() []*query {
	fb := []gpu.FieldID{fieldFBTotal, fieldFBFree, fieldFBUsed, fieldFBReserved, fieldFBUsedRatio}
	return []*query{
		{fields: fb, needs: []string{"nvmlDeviceGetMemoryInfo_v2"}, read: func(p *probe) {
			m, ret := p.device.GetMemoryInfo_v2()
			reason := reasonOf(ret)
			fails := reason == gpu.ReasonNotSupported || reason == gpu.ReasonError
			if fails && !driverGone(ret) && p.lib.has("nvmlDeviceGetMemoryInfo") {
				// Some drivers have this for cards only, and not for MIG devices.
				p.olderFramebuffer()
				return
			}
			p.framebuffer(m.Total, m.Free, m.Used, m.Reserved, ret)
		}},
		{fields: fb, needs: []string{"nvmlDeviceGetMemoryInfo"}, read: (*probe).olderFramebuffer},
		{
			fields: []gpu.FieldID{fieldBAR1Total, fieldBAR1Used, fieldBAR1Free},
			needs:  []string{"nvmlDeviceGetBAR1MemoryInfo"},
			read: func(p *probe) {
				m, ret := p.device.GetBAR1MemoryInfo()
				give(p, fieldBAR1Total, m.Bar1Total, ret, mebibytes)
				give(p, fieldBAR1Used, m.Bar1Used, ret, mebibytes)
				give(p, fieldBAR1Free, m.Bar1Free, ret, mebibytes)
			},
		},
	}
}

// olderFramebuffer asks as drivers before R510 must be asked: what they reserve is among what is
// used.
func (p *probe) olderFramebuffer() {
	m, ret := p.device.GetMemoryInfo()
	p.framebuffer(m.Total, m.Free, m.Used, 0, ret)
	if ret == nvml.SUCCESS {
		p.put(fieldFBReserved, gpu.Absent(gpu.ReasonNotSupported))
	}
}

// framebuffer answers the amounts of device memory, given in bytes.
func (p *probe) framebuffer(total, free, used, reserved uint64, ret nvml.Return) {
	give(p, fieldFBTotal, total, ret, mebibytes)
	give(p, fieldFBFree, free, ret, mebibytes)
	give(p, fieldFBUsed, used, ret, mebibytes)
	give(p, fieldFBReserved, reserved, ret, mebibytes)
	give(p, fieldFBUsedRatio, used, ret, func(used uint64) gpu.Value {
		if total <= reserved || used > total-reserved {
			return gpu.Absent(gpu.ReasonImplausible)
		}
		return gpu.Float(float64(used) / float64(total-reserved))
	})
}

// faultQueries are what is known of the memory's faults beside the field values.
func faultQueries() []*query {
	queries := []*query{
		{
			fields: []gpu.FieldID{fieldECCMode, fieldECCMode + 1}, needs: []string{"nvmlDeviceGetEccMode"},
			read: func(p *probe) {
				now, next, ret := p.device.GetEccMode()
				give(p, fieldECCMode, now, ret, enabled)
				give(p, fieldECCMode+1, next, ret, enabled)
			},
		},
		single(fieldRetiredSingleBit, "nvmlDeviceGetRetiredPages", func(d nvml.Device) ([]uint64, nvml.Return) {
			return d.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
		}, func(pages []uint64) gpu.Value { return number(len(pages)) }),
		single(fieldSRAMExceeded, "nvmlDeviceGetSramEccErrorStatus", nvml.Device.GetSramEccErrorStatus,
			func(s nvml.EccSramErrorStatus) gpu.Value { return flag(s.BThresholdExceeded) }),
		single(fieldMemoryUnrepairable, "nvmlDeviceGetUnrepairableMemoryFlag_v1", nvml.Device.GetUnrepairableMemoryFlag_v1,
			func(s nvml.UnrepairableMemoryStatus_v1) gpu.Value { return flag(s.BUnrepairableMemory) }),
		{
			fields: []gpu.FieldID{
				fieldRemapAvailable, fieldRemapAvailable + 1, fieldRemapAvailable + 2, fieldRemapAvailable + 3, fieldRemapAvailable + 4,
			},
			needs: []string{"nvmlDeviceGetRowRemapperHistogram"},
			read: func(p *probe) {
				h, ret := p.device.GetRowRemapperHistogram()
				for i, banks := range []uint32{h.Max, h.High, h.Partial, h.Low, h.None} {
					give(p, fieldRemapAvailable+gpu.FieldID(i), banks, ret, number)
				}
			},
		},
	}
	for _, place := range []struct {
		location nvml.MemoryLocation
		// The fields of corrected errors; those of uncorrected ones are next to them.
		volatile, aggregate gpu.FieldID
	}{
		{nvml.MEMORY_LOCATION_L1_CACHE, 314, 324},
		{nvml.MEMORY_LOCATION_L2_CACHE, 316, 326},
		{nvml.MEMORY_LOCATION_DEVICE_MEMORY, 318, 328},
		{nvml.MEMORY_LOCATION_REGISTER_FILE, 320, 330},
		{nvml.MEMORY_LOCATION_TEXTURE_MEMORY, 322, 332},
		{nvml.MEMORY_LOCATION_TEXTURE_SHM, 334, 338},
		{nvml.MEMORY_LOCATION_CBU, 336, 340},
		{nvml.MEMORY_LOCATION_SRAM, 342, 344},
	} {
		counter := func(id gpu.FieldID, kind nvml.MemoryErrorType, life nvml.EccCounterType) *query {
			return single(id, "nvmlDeviceGetMemoryErrorCounter", func(d nvml.Device) (uint64, nvml.Return) {
				return d.GetMemoryErrorCounter(kind, life, place.location)
			}, number)
		}
		queries = append(queries,
			counter(place.volatile, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC),
			counter(place.volatile+1, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC),
			counter(place.aggregate, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC),
			counter(place.aggregate+1, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC),
		)
	}
	return queries
}
