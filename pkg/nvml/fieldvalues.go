// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// fieldValue is one of the fields that NVML has by number, as many as one likes in a call.
type fieldValue struct {
	id gpu.FieldID
	// nvml is NVML's number. DCGM's 230 is an XID, NVML's 230 the recovery action.
	nvml uint32
	// scope is a link, or allLinks.
	scope uint32
	as    func(*nvml.FieldValue) gpu.Value
}

// allLinks is the scope of a field that is summed over the links.
const allLinks = math.MaxUint32

const (
	fieldRecoveryAction = gpu.FieldID(1523)
	fieldEnergy         = gpu.FieldID(156)
	fieldMemoryTemp     = gpu.FieldID(140)
)

// fieldValues are the fields that are NVML's own field values. DCGM reads them the same way.
func fieldValues() []fieldValue {
	values := []fieldValue{
		{fieldMemoryTemp, nvml.FI_DEV_MEMORY_TEMP, 0, func(v *nvml.FieldValue) gpu.Value {
			// R545 says that it is a real number, and it is not.
			return upTo[uint32](mostCelsius)(binary.LittleEndian.Uint32(v.Value[:]))
		}},
		{fieldEnergy, nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0, decoded},
		{157, nvml.FI_DEV_POWER_INSTANT, 0, func(v *nvml.FieldValue) gpu.Value {
			return watts(binary.LittleEndian.Uint32(v.Value[:]))
		}},
		{fieldRecoveryAction, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0, decoded},
		{285, nvml.FI_DEV_C2C_LINK_COUNT, 0, decoded},
		{286, nvml.FI_DEV_C2C_LINK_GET_STATUS, 0, decoded},
		{287, nvml.FI_DEV_C2C_LINK_GET_MAX_BW, 0, decoded},
		{497, nvml.FI_DEV_NVLINK_ERROR_DL_CRC, 0, decoded},
		{498, nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, 0, decoded},
		{499, nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, 0, decoded},
		{1220, nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, 0, decoded},
		{1501, nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 0, decoded},
	}
	run := func(first gpu.FieldID, scope uint32, numbers ...uint32) {
		for i, n := range numbers {
			values = append(values, fieldValue{first + gpu.FieldID(i), n, scope, decoded})
		}
	}
	series := func(first gpu.FieldID, scope, from, to uint32) {
		for n := from; n <= to; n++ {
			run(first+gpu.FieldID(n-from), scope, n)
		}
	}
	// Since the driver was loaded, then in the life of the board: single-bit, double-bit.
	series(310, 0, nvml.FI_DEV_ECC_SBE_VOL_TOTAL, nvml.FI_DEV_ECC_DBE_AGG_TOTAL)
	series(391, 0, nvml.FI_DEV_RETIRED_DBE, nvml.FI_DEV_RETIRED_PENDING)
	run(393, 0, nvml.FI_DEV_REMAPPED_UNC, nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_FAILURE, nvml.FI_DEV_REMAPPED_PENDING)
	// Time in which clocks were held down, in ns.
	series(240, 0, nvml.FI_DEV_PERF_POLICY_POWER, nvml.FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS)
	run(1420, 0, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
		nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
		nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN)
	// NVLink errors over all links; those of single links are in nvlinkQueries.
	run(409, 0, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL)
	run(419, 0, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL)
	run(429, 0, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL)
	run(439, 0, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)
	// NVLink 5, summed over all links.
	series(1200, allLinks, nvml.FI_DEV_NVLINK_COUNT_XMIT_PACKETS, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES)
	series(1204, allLinks, nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS)
	run(1214, allLinks, nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER)
	run(1217, allLinks, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER)
	run(1219, allLinks, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS)
	series(1404, allLinks, nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_15)
	series(1400, 0, nvml.FI_DEV_C2C_LINK_ERROR_INTR, nvml.FI_DEV_C2C_LINK_POWER_STATE)
	return append(values,
		fieldValue{1216, nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER, allLinks, bitErrorRatio},
		fieldValue{1218, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, allLinks, bitErrorRatio})
}

// fieldValueQuery asks for all of them that are wanted in one call.
func fieldValueQuery() *query {
	all := fieldValues()
	q := &query{needs: []string{"nvmlDeviceGetFieldValues"}}
	for _, v := range all {
		q.fields = append(q.fields, v.id)
	}
	q.read = func(p *probe) {
		var wanted []*fieldValue
		p.batch = p.batch[:0]
		for i := range all {
			if v := &all[i]; p.wants(v.id) {
				wanted = append(wanted, v)
				p.batch = append(p.batch, nvml.FieldValue{FieldId: v.nvml, ScopeId: v.scope})
			}
		}
		ret := p.device.GetFieldValues(p.batch)
		for i, v := range wanted {
			got := &p.batch[i]
			if one := fieldReturn(ret, got); one != nvml.SUCCESS {
				p.fail(one, v.id)
				continue
			}
			p.put(v.id, v.as(got))
		}
	}
	return q
}

// fieldReturn is what became of one field of a call that returned ret.
func fieldReturn(ret nvml.Return, v *nvml.FieldValue) nvml.Return {
	switch own := nvml.Return(int32(v.NvmlReturn)); {
	case own == nvml.ERROR_INVALID_ARGUMENT:
		// A number that this driver does not know yet.
		return nvml.ERROR_NOT_SUPPORTED
	case own != nvml.SUCCESS:
		return own
	case ret != nvml.SUCCESS:
		return ret
	case untouched(v):
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

// untouched reports whether the driver left a value as it got it. With ECC off drivers do so
// with what ECC counts, and say that it went well.
func untouched(v *nvml.FieldValue) bool {
	return v.Timestamp == 0 && v.LatencyUsec == 0 && v.ValueType == 0 && v.Value == [8]byte{}
}

// normal is the least bits of a real number that is not next to 0.
const normal = 1 << 52

// decoded is a field's value by the type that NVML says it has.
func decoded(v *nvml.FieldValue) gpu.Value {
	low, all := binary.LittleEndian.Uint32(v.Value[:]), binary.LittleEndian.Uint64(v.Value[:])
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return number(low)
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return number(all)
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return number(int64(all))
	case nvml.VALUE_TYPE_SIGNED_INT:
		return number(int32(low))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return number(binary.LittleEndian.Uint16(v.Value[:]))
	case nvml.VALUE_TYPE_DOUBLE:
		if all < normal {
			// The type of an error count is not set, and 0 means a real number.
			return number(all)
		}
		f := math.Float64frombits(all)
		if f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return gpu.Absent(gpu.ReasonImplausible)
		}
		return gpu.Int(int64(f))
	default:
		return gpu.Absent(gpu.ReasonError)
	}
}

// bitErrorRatio is a mantissa of four bits over a decimal exponent of eight.
func bitErrorRatio(v *nvml.FieldValue) gpu.Value {
	raw := binary.LittleEndian.Uint64(v.Value[:])
	return gpu.Float(float64(raw>>8&0xf) * math.Pow(10, -float64(raw&0xff)))
}
