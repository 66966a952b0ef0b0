// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// What a GPU does, in DCGM's numbers.
const (
	fieldSMClock            = gpu.FieldID(100)
	fieldMemClock           = gpu.FieldID(101)
	fieldVideoClock         = gpu.FieldID(102)
	fieldAppSMClock         = gpu.FieldID(110)
	fieldAppMemClock        = gpu.FieldID(111)
	fieldMaxSMClock         = gpu.FieldID(113)
	fieldMaxMemClock        = gpu.FieldID(114)
	fieldMaxVideoClock      = gpu.FieldID(115)
	fieldAutoboost          = gpu.FieldID(120)
	fieldGPUTemp            = gpu.FieldID(150)
	fieldMemoryMaxTemp      = gpu.FieldID(151)
	fieldGPUMaxTemp         = gpu.FieldID(152)
	fieldTempMargin         = gpu.FieldID(153)
	fieldPower              = gpu.FieldID(155)
	fieldSlowdownTemp       = gpu.FieldID(158)
	fieldShutdownTemp       = gpu.FieldID(159)
	fieldPowerLimit         = gpu.FieldID(160)
	fieldPowerLimitMin      = gpu.FieldID(161)
	fieldPowerLimitMax      = gpu.FieldID(162)
	fieldPowerLimitDefault  = gpu.FieldID(163)
	fieldPowerLimitEnforced = gpu.FieldID(164)
	fieldPState             = gpu.FieldID(190)
	fieldFanSpeed           = gpu.FieldID(191)
	fieldPCIeTx             = gpu.FieldID(200)
	fieldPCIeRx             = gpu.FieldID(201)
	fieldPCIeReplay         = gpu.FieldID(202)
	fieldGPUUtil            = gpu.FieldID(203)
	fieldMemCopyUtil        = gpu.FieldID(204)
	fieldEncUtil            = gpu.FieldID(206)
	fieldDecUtil            = gpu.FieldID(207)
	fieldPCIeMaxGen         = gpu.FieldID(235)
	fieldPCIeMaxWidth       = gpu.FieldID(236)
	fieldPCIeGen            = gpu.FieldID(237)
	fieldPCIeWidth          = gpu.FieldID(238)
)

// clockQueries are in MHz.
func clockQueries() []*query {
	now := func(t nvml.ClockType) func(nvml.Device) (uint32, nvml.Return) {
		return func(d nvml.Device) (uint32, nvml.Return) { return d.GetClockInfo(t) }
	}
	most := func(t nvml.ClockType) func(nvml.Device) (uint32, nvml.Return) {
		return func(d nvml.Device) (uint32, nvml.Return) { return d.GetMaxClockInfo(t) }
	}
	application := func(t nvml.ClockType) func(nvml.Device) (uint32, nvml.Return) {
		return func(d nvml.Device) (uint32, nvml.Return) {
			return d.GetApplicationsClock(t)
		}
	}
	mhz := upTo[uint32](mostMHz)
	return []*query{
		single(fieldSMClock, "nvmlDeviceGetClockInfo", now(nvml.CLOCK_SM), mhz),
		single(fieldMemClock, "nvmlDeviceGetClockInfo", now(nvml.CLOCK_MEM), mhz),
		single(fieldVideoClock, "nvmlDeviceGetClockInfo", now(nvml.CLOCK_VIDEO), mhz),
		single(fieldAppSMClock, "nvmlDeviceGetApplicationsClock", application(nvml.CLOCK_GRAPHICS), mhz),
		single(fieldAppMemClock, "nvmlDeviceGetApplicationsClock", application(nvml.CLOCK_MEM), mhz),
		fixed(fieldMaxSMClock, "nvmlDeviceGetMaxClockInfo", most(nvml.CLOCK_SM), mhz),
		fixed(fieldMaxMemClock, "nvmlDeviceGetMaxClockInfo", most(nvml.CLOCK_MEM), mhz),
		fixed(fieldMaxVideoClock, "nvmlDeviceGetMaxClockInfo", most(nvml.CLOCK_VIDEO), mhz),
		// The bits are DCGM's. Drivers before R535 know the function by its old name only.
		single(gpu.FieldClockReasons, "nvmlDeviceGetCurrentClocksEventReasons",
			nvml.Device.GetCurrentClocksEventReasons, number[uint64]),
		single(gpu.FieldClockReasons, "nvmlDeviceGetCurrentClocksThrottleReasons", func(d nvml.Device) (uint64, nvml.Return) {
			return d.GetCurrentClocksThrottleReasons()
		}, number),
		{
			fields: []gpu.FieldID{fieldAutoboost}, needs: []string{"nvmlDeviceGetAutoBoostedClocksEnabled"},
			read: func(p *probe) {
				on, _, ret := p.device.GetAutoBoostedClocksEnabled()
				give(p, fieldAutoboost, on, ret, enabled)
			},
		},
		single(fieldPState, "nvmlDeviceGetPerformanceState", nvml.Device.GetPerformanceState, func(s nvml.Pstates) gpu.Value {
			if s == nvml.PSTATE_UNKNOWN {
				return gpu.Absent(gpu.ReasonBlank)
			}
			return upTo[nvml.Pstates](15)(s)
		}),
	}
}

// heatQueries are temperatures in degrees Celsius and power in watts.
func heatQueries() []*query {
	threshold := func(id gpu.FieldID, t nvml.TemperatureThresholds) *query {
		return fixed(id, "nvmlDeviceGetTemperatureThreshold", func(d nvml.Device) (uint32, nvml.Return) {
			return d.GetTemperatureThreshold(t)
		}, upTo[uint32](mostCelsius))
	}
	return []*query{
		single(fieldGPUTemp, "nvmlDeviceGetTemperature", func(d nvml.Device) (uint32, nvml.Return) {
			return d.GetTemperature(nvml.TEMPERATURE_GPU)
		}, upTo[uint32](mostCelsius)),
		threshold(fieldMemoryMaxTemp, nvml.TEMPERATURE_THRESHOLD_MEM_MAX),
		threshold(fieldGPUMaxTemp, nvml.TEMPERATURE_THRESHOLD_GPU_MAX),
		threshold(fieldSlowdownTemp, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN),
		threshold(fieldShutdownTemp, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN),
		single(fieldTempMargin, "nvmlDeviceGetMarginTemperature", nvml.Device.GetMarginTemperature,
			func(m nvml.MarginTemperature) gpu.Value { return gpu.Int(int64(m.MarginTemperature)) }),
		single(fieldPower, "nvmlDeviceGetPowerUsage", nvml.Device.GetPowerUsage, watts[uint32]),
		single(fieldPowerLimit, "nvmlDeviceGetPowerManagementLimit", nvml.Device.GetPowerManagementLimit, watts[uint32]),
		{
			fields: []gpu.FieldID{fieldPowerLimitMin, fieldPowerLimitMax}, static: true,
			needs: []string{"nvmlDeviceGetPowerManagementLimitConstraints"},
			read: func(p *probe) {
				least, most, ret := p.device.GetPowerManagementLimitConstraints()
				give(p, fieldPowerLimitMin, least, ret, watts)
				give(p, fieldPowerLimitMax, most, ret, watts)
			},
		},
		fixed(fieldPowerLimitDefault, "nvmlDeviceGetPowerManagementDefaultLimit",
			nvml.Device.GetPowerManagementDefaultLimit, watts[uint32]),
		single(fieldPowerLimitEnforced, "nvmlDeviceGetEnforcedPowerLimit", nvml.Device.GetEnforcedPowerLimit, watts[uint32]),
		single(fieldFanSpeed, "nvmlDeviceGetFanSpeed", nvml.Device.GetFanSpeed, upTo[uint32](2*mostPercent)),
	}
}

// utilizationQueries are in percent; a GPU in MIG mode has none.
func utilizationQueries() []*query {
	percent := upTo[uint32](mostPercent)
	return []*query{
		{
			fields: []gpu.FieldID{fieldGPUUtil, fieldMemCopyUtil}, needs: []string{"nvmlDeviceGetUtilizationRates"},
			read: func(p *probe) {
				rates, ret := p.device.GetUtilizationRates()
				give(p, fieldGPUUtil, rates.Gpu, ret, percent)
				give(p, fieldMemCopyUtil, rates.Memory, ret, percent)
			},
		},
		{
			fields: []gpu.FieldID{fieldEncUtil}, needs: []string{"nvmlDeviceGetEncoderUtilization"},
			read: func(p *probe) {
				used, _, ret := p.device.GetEncoderUtilization()
				give(p, fieldEncUtil, used, ret, percent)
			},
		},
		{
			fields: []gpu.FieldID{fieldDecUtil}, needs: []string{"nvmlDeviceGetDecoderUtilization"},
			read: func(p *probe) {
				used, _, ret := p.device.GetDecoderUtilization()
				give(p, fieldDecUtil, used, ret, percent)
			},
		},
	}
}

// pcieQueries have throughputs in KB/s; NVML takes 20 ms to measure one.
func pcieQueries() []*query {
	throughput := func(id gpu.FieldID, counter nvml.PcieUtilCounter) *query {
		return single(id, "nvmlDeviceGetPcieThroughput", func(d nvml.Device) (uint32, nvml.Return) {
			return d.GetPcieThroughput(counter)
		}, number)
	}
	return []*query{
		throughput(fieldPCIeTx, nvml.PCIE_UTIL_TX_BYTES),
		throughput(fieldPCIeRx, nvml.PCIE_UTIL_RX_BYTES),
		single(fieldPCIeReplay, "nvmlDeviceGetPcieReplayCounter", nvml.Device.GetPcieReplayCounter, number[int]),
		fixed(fieldPCIeMaxGen, "nvmlDeviceGetMaxPcieLinkGeneration", nvml.Device.GetMaxPcieLinkGeneration, upTo[int](mostPCIeGen)),
		fixed(fieldPCIeMaxWidth, "nvmlDeviceGetMaxPcieLinkWidth", nvml.Device.GetMaxPcieLinkWidth, upTo[int](mostPCIeLane)),
		single(fieldPCIeGen, "nvmlDeviceGetCurrPcieLinkGeneration", nvml.Device.GetCurrPcieLinkGeneration, upTo[int](mostPCIeGen)),
		single(fieldPCIeWidth, "nvmlDeviceGetCurrPcieLinkWidth", nvml.Device.GetCurrPcieLinkWidth, upTo[int](mostPCIeLane)),
	}
}

// DCGM's words for the state of the fabric that are not NVML's.
const (
	fabricSuccess      = 3
	fabricFailure      = 4
	fabricUnrecognised = 5
)

// fabric answers how far the GPU has come in joining its NVLink fabric. The call's newer forms
// take a struct that only the binding itself can fill.
func (p *probe) fabric() {
	info, ret := p.device.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		p.fail(ret, fieldFabricStatus, fieldFabricCluster, fieldFabricClique)
		return
	}
	status := int64(fabricUnrecognised)
	switch info.State {
	case nvml.GPU_FABRIC_STATE_NOT_SUPPORTED, nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		status = int64(info.State)
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		status = fabricSuccess
		if info.Status != uint32(nvml.SUCCESS) {
			status = fabricFailure
		}
	}
	p.put(fieldFabricStatus, gpu.Int(status))
	u := info.ClusterUuid
	p.put(fieldFabricCluster, text(fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])))
	p.put(fieldFabricClique, number(info.CliqueId))
}
