// SPDX-License-Identifier: Apache-2.0

package gpu

import "math"

// Reason says why a value is absent. Absent is not zero: a value with a reason
// has no sample in the exposition, and the reason is counted.
type Reason uint8

// The reasons a value can be absent for.
const (
	// ReasonNone is the reason of a value that is there.
	ReasonNone Reason = iota
	// ReasonScope: the field is not a quantity of this entity (power of a GPU instance).
	ReasonScope
	// ReasonNotSupported: the hardware or driver does not have the field.
	ReasonNotSupported
	// ReasonNotPermitted: the process lacks a permission (SYS_ADMIN for profiling).
	ReasonNotPermitted
	// ReasonNotFound: the driver knows the field but has nothing under it.
	ReasonNotFound
	// ReasonBlank: the source has no value yet.
	ReasonBlank
	// ReasonStale: the last value is too old to be shown.
	ReasonStale
	// ReasonLost: the device is gone.
	ReasonLost
	// ReasonTimeout: the call did not come back in time.
	ReasonTimeout
	// ReasonError: the source failed otherwise.
	ReasonError
	// ReasonImplausible: the value is outside what the field can be.
	ReasonImplausible
	// ReasonType: text where a number was asked for.
	ReasonType

	reasonCount
)

var reasonNames = [reasonCount]string{
	"none", "scope", "not_supported", "not_permitted", "not_found", "blank", "stale",
	"lost", "timeout", "error", "implausible", "type",
}

// String is the reason as a label value.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

type valueKind uint8

const (
	valueAbsent valueKind = iota
	valueInt
	valueFloat
	valueText
)

// Value is one field's value, or the reason why there is none. The zero Value is
// absent with ReasonNone, which readers treat as ReasonBlank.
type Value struct {
	text   string
	bits   uint64
	kind   valueKind
	reason Reason
}

// Int is a whole number.
func Int(v int64) Value { return Value{kind: valueInt, bits: uint64(v)} }

// Float is a real number; NaN and infinities are ReasonImplausible.
func Float(v float64) Value {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Absent(ReasonImplausible)
	}
	return Value{kind: valueFloat, bits: math.Float64bits(v)}
}

// Text is foreign text, such as a driver version.
func Text(v string) Value { return Value{kind: valueText, text: v} }

// Absent is a value that is not there, for a reason.
func Absent(r Reason) Value {
	if r == ReasonNone {
		r = ReasonBlank
	}
	return Value{reason: r}
}

// Present reports whether there is a value.
func (v Value) Present() bool { return v.kind != valueAbsent }

// Reason is why the value is absent, or ReasonNone.
func (v Value) Reason() Reason {
	if v.kind == valueAbsent && v.reason == ReasonNone {
		return ReasonBlank
	}
	return v.reason
}

// AsInt is the value as a whole number, and whether it is one.
func (v Value) AsInt() (int64, bool) { return int64(v.bits), v.kind == valueInt }

// AsFloat is the value as a real number, and whether it is a number at all.
func (v Value) AsFloat() (float64, bool) {
	switch v.kind {
	case valueInt:
		return float64(int64(v.bits)), true
	case valueFloat:
		return math.Float64frombits(v.bits), true
	default:
		return 0, false
	}
}

// AsText is the value as text, and whether it is text.
func (v Value) AsText() (string, bool) { return v.text, v.kind == valueText }
