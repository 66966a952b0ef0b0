// SPDX-License-Identifier: Apache-2.0

package dcgm

// #include "binding.h"
import "C"

import (
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// maxTexts bounds the texts that records remember, so that foreign text which is new each
// time does not pile up.
const maxTexts = 4096

// records are what one call of latest or since answered. The zero value is ready to use. It
// lives on C's heap, grows as needed, keeps its memory from call to call and must be freed.
// It belongs to one goroutine at a time, and to a call that has not come back.
type records struct {
	kept *C.struct_records
	// texts has the strings that were handed out, so that a text which is the same at each
	// call is copied once.
	texts map[string]string
	// filling says that a call writes into kept.
	filling atomic.Bool
}

// fill makes the call that writes into the records.
func (r *records) fill(call func(*C.struct_records) C.int32_t) (C.int32_t, error) {
	if !r.filling.CompareAndSwap(false, true) {
		return 0, errors.New("the records are in use by a call that has not come back")
	}
	defer r.filling.Store(false)
	if r.kept == nil {
		if r.kept = C.new_records(); r.kept == nil {
			return C.int32_t(stMemory), nil
		}
	}
	return call(r.kept), nil
}

// len is how many records there are; 0 while a call fills them.
func (r *records) len() int {
	if r.filling.Load() || r.kept == nil {
		return 0
	}
	return int(r.kept.count)
}

// at is record i of len.
func (r *records) at(i int) record {
	kept := &unsafe.Slice(r.kept.at, r.kept.count)[i]
	out := record{
		entity: entity{group: entityGroup(kept.entity_group), id: uint32(kept.entity)},
		field:  gpu.FieldID(kept.field),
		kind:   fieldTypeOf(uint16(kept._type)),
		status: int32(kept.status),
		ts:     int64(kept.ts),
		bits:   uint64(kept.bits),
	}
	if kept.text_length > 0 {
		out.text = r.textAt(int(kept.text), int(kept.text_length))
	}
	return out
}

func (r *records) textAt(start, length int) string {
	all := unsafe.Slice((*byte)(unsafe.Pointer(r.kept.text)), r.kept.text_length)
	raw := all[start : start+length]
	if known, ok := r.texts[string(raw)]; ok {
		return known
	}
	if r.texts == nil || len(r.texts) >= maxTexts {
		r.texts = make(map[string]string)
	}
	text := string(raw)
	r.texts[text] = text
	return text
}

// reset forgets the records and keeps their memory.
func (r *records) reset() {
	if r.len() > 0 {
		r.kept.count, r.kept.text_length = 0, 0
	}
}

// free gives the memory back. Where a call that has not come back still writes there, it is
// leaked: it cannot be known when that call ends.
func (r *records) free() {
	if !r.filling.CompareAndSwap(false, true) {
		return
	}
	defer r.filling.Store(false)
	C.free_records(r.kept)
	r.kept, r.texts = nil, nil
}

// record is one sample of one field of one entity.
type record struct {
	entity entity
	field  gpu.FieldID
	kind   gpu.FieldType
	// status is DCGM's return code for this sample alone.
	status int32
	// ts is when it was taken, in microseconds since 1970; 0 where there is no sample.
	ts   int64
	bits uint64
	text string
}

// value is what the record says: a value, or the reason why there is none.
func (r record) value() gpu.Value { return decode(r.kind, r.status, r.bits, r.text) }

// decode reads a sample. DCGM says in two ways that there is no value, by the sample's status
// and by a sentinel in place of the value; either suffices. Where both do, the status tells
// why, unless it is a mere failure and the sentinel says more.
//
// The sentinels of 32-bit numbers (2147483632 and the three after it) are values here: fields
// are 64 bits wide and have sentinels of their own width, and a byte counter passes through
// those numbers.
func decode(kind gpu.FieldType, status int32, bits uint64, text string) gpu.Value {
	value := stored(kind, bits, text)
	if status == stOK {
		return value
	}
	why := reasonOf(status)
	if why == gpu.ReasonError {
		switch sentinel := value.Reason(); sentinel {
		case gpu.ReasonNotFound, gpu.ReasonNotSupported, gpu.ReasonNotPermitted:
			why = sentinel
		default:
		}
	}
	return gpu.Absent(why)
}

// stored is the value of a sample whose status is good.
func stored(kind gpu.FieldType, bits uint64, text string) gpu.Value {
	switch kind {
	case gpu.FieldInt:
		if v := int64(bits); v < int64Blank {
			return gpu.Int(v)
		}
		return gpu.Absent(sentinelReason(int64(bits) - int64Blank))
	case gpu.FieldFloat:
		v := math.Float64frombits(bits)
		if math.IsInf(v, 0) || !(v >= fp64Blank) {
			return gpu.Float(v)
		}
		return gpu.Absent(sentinelReason(int64(min(v-fp64Blank, sentinels))))
	case gpu.FieldText:
		return textValue(text)
	case gpu.FieldBinary:
		return gpu.Absent(gpu.ReasonNotSupported)
	default:
		return gpu.Absent(gpu.ReasonError)
	}
}

// The first sentinel of each width; not found, not supported and not permitted follow it.
const (
	int32Blank uint32  = 0x7ffffff0
	int64Blank int64   = 0x7ffffffffffffff0
	fp64Blank  float64 = 1 << 47
	sentinels          = 4
)

// sentinelReason is what the sentinel says that lies nth after the first.
func sentinelReason(nth int64) gpu.Reason {
	switch nth {
	case 1:
		return gpu.ReasonNotFound
	case 2:
		return gpu.ReasonNotSupported
	case 3:
		return gpu.ReasonNotPermitted
	default:
		return gpu.ReasonBlank
	}
}

func textValue(text string) gpu.Value {
	if !isBlank(text) {
		return gpu.Text(text)
	}
	switch {
	case strings.HasPrefix(text, "<<<NOT_FOUND>>>"):
		return gpu.Absent(gpu.ReasonNotFound)
	case strings.HasPrefix(text, "<<<NOT_SUPPORTED>>>"):
		return gpu.Absent(gpu.ReasonNotSupported)
	case strings.HasPrefix(text, "<<<NOT_PERM>>>"):
		return gpu.Absent(gpu.ReasonNotPermitted)
	}
	return gpu.Absent(gpu.ReasonBlank)
}

// isBlank reports whether text is one of DCGM's sentinels.
func isBlank(text string) bool {
	return strings.HasPrefix(text, "<<<") && strings.Contains(text, ">>>")
}

// reasonOf is why a sample with a bad status has no value.
func reasonOf(status int32) gpu.Reason {
	switch status {
	case stNoData:
		return gpu.ReasonBlank
	case stStaleData:
		return gpu.ReasonStale
	case stNotWatched:
		// Not blank: nothing will come, for DCGM does not sample the field there.
		return gpu.ReasonNotFound
	case stNoPermission, stRequiresRoot:
		return gpu.ReasonNotPermitted
	case stNotSupported, stUnknownField, stGPUNotSupported, stFieldUnsupportedByAPI,
		stModuleNotLoaded, stProfilingNotSupported, stInsufficientDriver:
		return gpu.ReasonNotSupported
	case stGPUIsLost, stGPUsDetached:
		return gpu.ReasonLost
	case stTimeout, stNVMLDriverTimeout:
		return gpu.ReasonTimeout
	default:
		return gpu.ReasonError
	}
}

// fieldTypeOf reads DCGM's letter for a type. Timestamps are numbers, of microseconds.
func fieldTypeOf(letter uint16) gpu.FieldType {
	switch letter {
	case 'i', 't':
		return gpu.FieldInt
	case 'd':
		return gpu.FieldFloat
	case 's':
		return gpu.FieldText
	case 'b':
		return gpu.FieldBinary
	default:
		return gpu.FieldUnknown
	}
}
