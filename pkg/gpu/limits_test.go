// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"math"
	"testing"
)

func TestWhatNoHardwareHasIsImplausible(t *testing.T) {
	for _, c := range []struct {
		id   FieldID
		v    Value
		want bool
	}{
		{203, Int(0), true},
		{203, Int(100), true},
		{203, Int(math.MaxUint32), false},
		{203, Int(808334905), false},
		{204, Int(-1), false},
		{205, Int(math.MaxUint32), true}, // accounting data is no percentage
		{1001, Float(1), true},
		{1001, Float(1.02), true},
		{1001, Float(1.5), false},
		{1009, Float(5e10), true}, // bytes per second
		{252, Int(-5), false},
		{252, Int(183359), true},
		{155, Float(-0.1), false},
		{155, Float(1200), true},
		{150, Int(-20), true},
		{150, Int(2147483632), false},
		{156, Int(math.MaxInt64), false},
		{394, Int(0), true},
		{FieldXID, Int(-1), false},
		{1, Text("580.95.05"), true},
		{449, Int(-7), true}, // nothing is known of it
	} {
		got := Plausible(c.id, c.v)
		if got.Present() != c.want || !c.want && got.Reason() != ReasonImplausible || c.want && got != c.v {
			t.Errorf("field %d with %+v: %+v, want it kept: %v", c.id, c.v, got, c.want)
		}
	}
	if v := Plausible(203, Absent(ReasonLost)); v.Reason() != ReasonLost {
		t.Errorf("an absent value lost its reason: %+v", v)
	}
}
