// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestFieldValuesAreDecodedByTheirType(t *testing.T) {
	for _, c := range []struct {
		kind nvml.ValueType
		bits uint64
		want string
	}{
		{nvml.VALUE_TYPE_UNSIGNED_INT, 0xFFFF_FFFF_0000_0007, "7"},
		{nvml.VALUE_TYPE_UNSIGNED_LONG, 1 << 40, "1099511627776"},
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, math.MaxUint64, "implausible"},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, math.MaxUint64, "-1"},
		{nvml.VALUE_TYPE_SIGNED_INT, 0xFFFF_FFFE, "-2"},
		{nvml.VALUE_TYPE_UNSIGNED_SHORT, 0xFFFF_0003, "3"},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(12), "12"},
		{nvml.VALUE_TYPE_DOUBLE, 12, "12"},
		{nvml.VALUE_TYPE_DOUBLE, normal - 1, "4503599627370495"},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(1.5), "implausible"},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(math.NaN()), "implausible"},
		{77, 1, "error"},
	} {
		v := nvml.FieldValue{ValueType: uint32(c.kind)}
		binary.LittleEndian.PutUint64(v.Value[:], c.bits)
		if got := show(decoded(&v)); got != c.want {
			t.Errorf("%x of type %d is %s, want %s", c.bits, c.kind, got, c.want)
		}
	}
}

// Whatever a driver leaves in a field value, it is a whole number or absent.
func FuzzFieldValue(f *testing.F) {
	f.Add(uint32(0), uint64(0x7FF8_0000_0000_0000), uint32(0))
	f.Add(uint32(3), uint64(math.MaxUint64), uint32(999))
	f.Fuzz(func(t *testing.T, kind uint32, bits uint64, ret uint32) {
		v := nvml.FieldValue{ValueType: kind, NvmlReturn: ret}
		binary.LittleEndian.PutUint64(v.Value[:], bits)
		for _, field := range fieldValues() {
			got := field.as(&v)
			if _, isText := got.AsText(); isText || !got.Present() && got.Reason() == gpu.ReasonNone {
				t.Errorf("field %d is %s", field.id, show(got))
			}
		}
		if fieldReturn(nvml.ERROR_UNKNOWN, &v) == nvml.SUCCESS {
			t.Error("a call that failed has a field that did not")
		}
		if got := fieldReturn(nvml.SUCCESS, &v); (got == nvml.SUCCESS) != (ret == 0 && (kind != 0 || bits != 0)) {
			t.Errorf("a field of type %d with %x that returned %d is %d", kind, bits, ret, got)
		}
	})
}

func TestBitErrorRatiosAreAMantissaAndAnExponent(t *testing.T) {
	var v nvml.FieldValue
	binary.LittleEndian.PutUint64(v.Value[:], 3<<8|12)
	if got := show(bitErrorRatio(&v)); got != "3e-12" {
		t.Errorf("it is %s", got)
	}
}

func TestNoTwoWaysAnswerOneFieldButForOlderDrivers(t *testing.T) {
	seen := make(map[gpu.FieldID]int)
	for _, q := range allQueries() {
		for _, id := range q.fields {
			seen[id]++
			if f, known := gpu.FieldByID(id); !known || f.Type == gpu.FieldBinary {
				t.Errorf("field %d is not DCGM's, or no value", id)
			}
		}
	}
	for id, n := range seen {
		older := id == gpu.FieldClockReasons || id >= fieldFBTotal && id <= fieldFBUsedRatio
		if n > 1 && !older {
			t.Errorf("field %d is answered in %d ways", id, n)
		}
	}
}

func TestEveryReturnCodeHasWordsAndAReason(t *testing.T) {
	for ret := nvml.Return(1); ret < 40; ret++ {
		if reasonOf(ret) == gpu.ReasonNone {
			t.Errorf("%d has no reason", ret)
		}
		if errors.New(returned(ret).Error()).Error() == "" {
			t.Errorf("%d has no words", ret)
		}
	}
	if reasonOf(nvml.SUCCESS) != gpu.ReasonNone {
		t.Error("success has a reason")
	}
}

func TestNumbersKeepTheirSignAndSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.Uint64().Draw(t, "unsigned")
		got, ok := number(u).AsInt()
		if ok != (u <= math.MaxInt64) || ok && uint64(got) != u {
			t.Fatalf("%d is %s", u, show(number(u)))
		}
		limit := rapid.Int64Range(0, math.MaxInt64).Draw(t, "limit")
		if v := upTo[uint64](limit)(u); v.Present() != (u <= uint64(limit)) {
			t.Fatalf("%d up to %d is %s", u, limit, show(v))
		}
		i := rapid.Int64().Draw(t, "signed")
		if got, ok := number(i).AsInt(); !ok || got != i {
			t.Fatalf("%d is %d", i, got)
		}
		if v := upTo[int64](limit)(i); v.Present() != (i >= 0 && i <= limit) {
			t.Fatalf("%d up to %d is %s", i, limit, show(v))
		}
	})
}
