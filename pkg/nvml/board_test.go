// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// fieldOf is one of a board's field values.
type fieldOf func(b *board, scope uint32) (nvml.ValueType, uint64, nvml.Return)

// board is one GPU of a machine. Its state is guarded by the machine's lock.
type board struct {
	nvml.Device
	m     *machine
	of    model
	uuid  string
	bus   int
	minor int
	began time.Time

	hung chan struct{}
	slow time.Duration
	// lostInEvents: only the events say that it is lost.
	lostInEvents bool
	lost         bool
	// refused is what single functions return.
	refused map[string]nvml.Return
	fields  map[uint32]fieldOf
	// untouched are field values that the driver leaves as it gets them.
	untouched []uint32
	gpm       map[nvml.GpmMetricId]float64
	// strictGPM refuses a whole request for a metric that this driver does not know.
	strictGPM bool

	mig   bool
	parts []*migDevice
	// partitions counts layouts, so that no UUID is used again; sameUUIDs lets them be.
	partitions int
	sameUUIDs  bool

	events uint64
	// refusedEvents cannot be registered for, though the driver says to have them.
	refusedEvents uint64
	refusal       nvml.Return
	sets          []*eventSet
	usedMiB       uint64
	processes     []nvml.ProcessInfo
	samples       []nvml.ProcessUtilizationSample
	action        uint64
	licence       nvml.GridLicensableFeatures
	calls         map[string]int
}

// watts is the power that the board draws.
func (b *board) watts() int64 { return 200 + int64(b.minor) }

// call is how a call about the board begins: it hangs, fails, or goes on.
func (b *board) call(function string) nvml.Return {
	b.m.mu.Lock()
	hung := b.hung
	if b.calls == nil {
		b.calls = make(map[string]int)
	}
	b.calls[function]++
	b.m.mu.Unlock()
	if hung != nil {
		<-hung
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	switch {
	case b.m.away != nvml.SUCCESS:
		return b.m.away
	case b.lost:
		return nvml.ERROR_GPU_IS_LOST
	}
	return b.refused[function]
}

// told is a value, unless the call fails.
func told[T any](b *board, function string, v T) (T, nvml.Return) {
	if ret := b.call(function); ret != nvml.SUCCESS {
		var none T
		return none, ret
	}
	return v, nvml.SUCCESS
}

func (b *board) GetUUID() (string, nvml.Return) { return told(b, "nvmlDeviceGetUUID", b.uuid) }
func (b *board) GetName() (string, nvml.Return) { return told(b, "nvmlDeviceGetName", b.of.product) }
func (b *board) GetMinorNumber() (int, nvml.Return) {
	return told(b, "nvmlDeviceGetMinorNumber", b.minor)
}
func (b *board) GetSerial() (string, nvml.Return) {
	return told(b, "nvmlDeviceGetSerial", "1650922012345")
}
func (b *board) GetVbiosVersion() (string, nvml.Return) {
	return told(b, "nvmlDeviceGetVbiosVersion", "96.00.89.00.01")
}

func (b *board) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	info := nvml.PciInfo{PciDeviceId: 0x233010DE, PciSubSystemId: 0x16C110DE}
	for i, c := range []byte(fmt.Sprintf("00000000:%02X:00.0", b.bus)) {
		info.BusId[i] = int8(c)
	}
	return told(b, "nvmlDeviceGetPciInfo", info)
}

func (b *board) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return told(b, "nvmlDeviceGetMemoryInfo", nvml.Memory{
		Total: b.of.mib << 20, Used: (b.usedMiB + reservedMiB) << 20, Free: (b.of.mib - b.usedMiB - reservedMiB) << 20,
	})
}

// reservedMiB is what the driver keeps for itself.
const reservedMiB = 500

func (b *board) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return told(b, "nvmlDeviceGetMemoryInfo_v2", nvml.Memory_v2{
		Total: b.of.mib << 20, Reserved: reservedMiB << 20, Used: b.usedMiB << 20, Free: (b.of.mib - b.usedMiB - reservedMiB) << 20,
	})
}

func (b *board) GetEccMode() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	now, ret := told(b, "nvmlDeviceGetEccMode", nvml.FEATURE_ENABLED)
	return now, nvml.FEATURE_DISABLED, ret
}

func (b *board) GetRetiredPages(cause nvml.PageRetirementCause) ([]uint64, nvml.Return) {
	return told(b, "nvmlDeviceGetRetiredPages", make([]uint64, 21+cause))
}

func (b *board) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return told(b, "nvmlDeviceGetComputeMode", nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
}

func (b *board) GetApplicationsClock(t nvml.ClockType) (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetApplicationsClock", 3000+uint32(t))
}

func (b *board) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	return told(b, "nvmlDeviceGetBAR1MemoryInfo", nvml.BAR1Memory{Bar1Total: 128 << 30, Bar1Free: 127 << 30, Bar1Used: 1 << 30})
}

func (b *board) GetClockInfo(t nvml.ClockType) (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetClockInfo", 1000+uint32(t))
}

func (b *board) GetMaxClockInfo(t nvml.ClockType) (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetMaxClockInfo", 2000+uint32(t))
}

func (b *board) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return told(b, "nvmlDeviceGetCurrentClocksEventReasons", uint64(0x4))
}

func (b *board) GetCurrentClocksThrottleReasons() (uint64, nvml.Return) {
	return told(b, "nvmlDeviceGetCurrentClocksThrottleReasons", uint64(0x20))
}

func (b *board) GetTemperature(nvml.TemperatureSensors) (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetTemperature", 40+uint32(b.minor))
}

func (b *board) GetTemperatureThreshold(t nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetTemperatureThreshold", 90+uint32(t))
}

func (b *board) GetPowerUsage() (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetPowerUsage", uint32(b.watts()*1000+500))
}

func (b *board) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return told(b, "nvmlDeviceGetEnforcedPowerLimit", uint32(700_000))
}

func (b *board) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return told(b, "nvmlDeviceGetPerformanceState", nvml.PSTATE_0)
}

func (b *board) GetFanSpeed() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }

func (b *board) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	if b.inMIG() {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	return told(b, "nvmlDeviceGetUtilizationRates", nvml.Utilization{Gpu: 55, Memory: 33})
}

func (b *board) GetEncoderUtilization() (uint32, uint32, nvml.Return) {
	v, ret := told(b, "nvmlDeviceGetEncoderUtilization", uint32(7))
	return v, 167000, ret
}

func (b *board) GetDecoderUtilization() (uint32, uint32, nvml.Return) {
	v, ret := told(b, "nvmlDeviceGetDecoderUtilization", uint32(9))
	return v, 167000, ret
}

func (b *board) GetPcieReplayCounter() (int, nvml.Return) {
	return told(b, "nvmlDeviceGetPcieReplayCounter", 3)
}

func (b *board) GetGridLicensableFeatures() (nvml.GridLicensableFeatures, nvml.Return) {
	return told(b, "nvmlDeviceGetGridLicensableFeatures", b.licence)
}

func (b *board) GetMemoryErrorCounter(nvml.MemoryErrorType, nvml.EccCounterType, nvml.MemoryLocation) (uint64, nvml.Return) {
	return told(b, "nvmlDeviceGetMemoryErrorCounter", uint64(2))
}

func (b *board) GetNvLinkErrorCounter(link int, c nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	return told(b, "nvmlDeviceGetNvLinkErrorCounter", uint64(link*10)+uint64(c))
}

func (b *board) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	support := nvml.GpmSupport{}
	if b.of.gpm {
		support.IsSupportedDevice = 1
	}
	return told(b, "nvmlGpmQueryDeviceSupport", support)
}

func (b *board) GetSupportedEventTypes() (uint64, nvml.Return) {
	return told(b, "nvmlDeviceGetSupportedEventTypes", b.events)
}

func (b *board) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	if ret := b.call("nvmlDeviceRegisterEvents"); ret != nvml.SUCCESS {
		return ret
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	s := set.(*eventSet)
	if types&^b.events != 0 || s.freed || s.of != nil {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if types&b.refusedEvents != 0 {
		return b.refusal
	}
	s.of, s.types = b, types
	b.sets = append(b.sets, s)
	return nvml.SUCCESS
}

func (b *board) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return told(b, "nvmlDeviceGetComputeRunningProcesses", b.processes)
}

func (b *board) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return told(b, "nvmlDeviceGetGraphicsRunningProcesses", []nvml.ProcessInfo(nil))
}

func (b *board) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return told(b, "nvmlDeviceGetMPSComputeRunningProcesses", []nvml.ProcessInfo(nil))
}

func (b *board) GetProcessUtilization(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	if ret := b.call("nvmlDeviceGetProcessUtilization"); ret != nvml.SUCCESS {
		return nil, ret
	}
	var out []nvml.ProcessUtilizationSample
	for _, s := range b.samples {
		if s.TimeStamp > since {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return out, nvml.SUCCESS
}

func (b *board) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	if ret := b.call("nvmlDeviceGetFieldValues"); ret != nvml.SUCCESS {
		return ret
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	for i := range values {
		v := &values[i]
		if slices.Contains(b.untouched, v.FieldId) {
			continue
		}
		v.Timestamp, v.NvmlReturn = time.Now().UnixMicro(), uint32(nvml.ERROR_NOT_SUPPORTED)
		if of := b.fields[v.FieldId]; of != nil {
			kind, bits, ret := of(b, v.ScopeId)
			v.ValueType, v.NvmlReturn = uint32(kind), uint32(ret)
			binary.LittleEndian.PutUint64(v.Value[:], bits)
		}
	}
	return nvml.SUCCESS
}

// counter is a field value that stands still.
func counter(n uint64) fieldOf {
	return func(*board, uint32) (nvml.ValueType, uint64, nvml.Return) {
		return nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, n, nvml.SUCCESS
	}
}

// wire gives the board its field values and profiling metrics.
func (b *board) wire() {
	b.fields[nvml.FI_DEV_MEMORY_TEMP] = func(b *board, _ uint32) (nvml.ValueType, uint64, nvml.Return) {
		// As R545 has it.
		return nvml.VALUE_TYPE_DOUBLE, uint64(50 + b.minor), nvml.SUCCESS
	}
	b.fields[nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION] = func(b *board, _ uint32) (nvml.ValueType, uint64, nvml.Return) {
		return nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 1_000_000 + uint64(time.Since(b.began).Microseconds()*b.watts()/1000), nvml.SUCCESS
	}
	b.fields[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION] = func(b *board, _ uint32) (nvml.ValueType, uint64, nvml.Return) {
		return nvml.VALUE_TYPE_UNSIGNED_INT, b.action, nvml.SUCCESS
	}
	b.fields[nvml.FI_DEV_NVLINK_LINK_COUNT] = func(*board, uint32) (nvml.ValueType, uint64, nvml.Return) {
		return nvml.VALUE_TYPE_UNSIGNED_INT, 4, nvml.SUCCESS
	}
	b.fields[nvml.FI_DEV_NVLINK_GET_STATE] = func(_ *board, link uint32) (nvml.ValueType, uint64, nvml.Return) {
		return nvml.VALUE_TYPE_UNSIGNED_INT, uint64(link % 2), nvml.SUCCESS
	}
	traffic := func(mbPerSecond uint64) fieldOf {
		return func(b *board, link uint32) (nvml.ValueType, uint64, nvml.Return) {
			if link == allLinks {
				link = 9
			}
			kib := uint64(time.Since(b.began).Microseconds()) * mbPerSecond * uint64(link+1) / 1000
			return nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, kib, nvml.SUCCESS
		}
	}
	b.fields[nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX] = traffic(1000)
	b.fields[nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX] = traffic(3000)
	for id, n := range map[uint32]uint64{
		nvml.FI_DEV_REMAPPED_COR: 11, nvml.FI_DEV_REMAPPED_UNC: 12, nvml.FI_DEV_REMAPPED_PENDING: 0, nvml.FI_DEV_REMAPPED_FAILURE: 1,
		nvml.FI_DEV_RETIRED_DBE: 22, nvml.FI_DEV_RETIRED_PENDING: 0,
		nvml.FI_DEV_ECC_SBE_VOL_TOTAL: 31, nvml.FI_DEV_ECC_DBE_VOL_TOTAL: 32, nvml.FI_DEV_ECC_SBE_AGG_TOTAL: 33, nvml.FI_DEV_ECC_DBE_AGG_TOTAL: 34,
		nvml.FI_DEV_PERF_POLICY_POWER: 1_000_000_000, nvml.FI_DEV_PERF_POLICY_THERMAL: 2_000_000_000,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 42, nvml.FI_DEV_POWER_INSTANT: 250_250,
	} {
		b.fields[id] = counter(n)
	}
	maps.Copy(b.gpm, map[nvml.GpmMetricId]float64{
		nvml.GPM_METRIC_GRAPHICS_UTIL: 90, nvml.GPM_METRIC_SM_UTIL: 80, nvml.GPM_METRIC_SM_OCCUPANCY: 40,
		nvml.GPM_METRIC_ANY_TENSOR_UTIL: 60, nvml.GPM_METRIC_DRAM_BW_UTIL: 50, nvml.GPM_METRIC_FP64_UTIL: 1,
		nvml.GPM_METRIC_FP32_UTIL: 20, nvml.GPM_METRIC_FP16_UTIL: 2, nvml.GPM_METRIC_PCIE_TX_PER_SEC: 1.5,
		nvml.GPM_METRIC_PCIE_RX_PER_SEC: 2.5, nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 1024, nvml.GPM_METRIC_NVDEC_0_UTIL: 12,
		nvml.GPM_METRIC_NVLINK_L0_TX_PER_SEC + 4: 3, nvml.GPM_METRIC_NVLINK_L0_RX_PER_SEC + 34: 5,
	})
}
