// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestTheZeroValueIsBlankAndNotZero(t *testing.T) {
	var v Value
	if v.Present() {
		t.Error("the zero Value is present")
	}
	if v.Reason() != ReasonBlank {
		t.Errorf("the zero Value is absent because of %q, want blank", v.Reason())
	}
	if n, ok := v.AsInt(); ok {
		t.Errorf("the zero Value is the whole number %d", n)
	}
	if f, ok := v.AsFloat(); ok {
		t.Errorf("the zero Value is the number %v", f)
	}
	if s, ok := v.AsText(); ok {
		t.Errorf("the zero Value is the text %q", s)
	}
}

func TestAnAbsentValueSaysWhy(t *testing.T) {
	for r := range reasonCount {
		v := Absent(r)
		want := r
		if r == ReasonNone {
			want = ReasonBlank
		}
		if v.Present() || v.Reason() != want {
			t.Errorf("Absent(%q): present %v, reason %q", r, v.Present(), v.Reason())
		}
		if _, ok := v.AsFloat(); ok {
			t.Errorf("Absent(%q) is a number", r)
		}
	}
}

func TestPresentValuesHaveNoReason(t *testing.T) {
	for _, v := range []Value{Int(0), Int(-1), Float(0), Float(-0.5), Text(""), Text("550.90.07")} {
		if !v.Present() || v.Reason() != ReasonNone {
			t.Errorf("%+v: present %v, reason %q", v, v.Present(), v.Reason())
		}
	}
}

func TestNumbersThatAreNoneAreImplausible(t *testing.T) {
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if v := Float(f); v.Present() || v.Reason() != ReasonImplausible {
			t.Errorf("Float(%v): present %v, reason %q", f, v.Present(), v.Reason())
		}
	}
}

func TestWhatGoesIntoAValueComesOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64().Draw(t, "whole")
		if got, ok := Int(n).AsInt(); !ok || got != n {
			t.Fatalf("Int(%d).AsInt() = %d, %v", n, got, ok)
		}
		if got, ok := Int(n).AsFloat(); !ok || got != float64(n) {
			t.Fatalf("Int(%d).AsFloat() = %v, %v", n, got, ok)
		}
		f := rapid.Float64().Draw(t, "real")
		if got, ok := Float(f).AsFloat(); !ok || got != f {
			t.Fatalf("Float(%v).AsFloat() = %v, %v", f, got, ok)
		}
		if got, ok := Float(f).AsInt(); ok {
			t.Fatalf("Float(%v) is the whole number %d", f, got)
		}
		s := rapid.String().Draw(t, "text")
		if got, ok := Text(s).AsText(); !ok || got != s {
			t.Fatalf("Text(%q).AsText() = %q, %v", s, got, ok)
		}
		if got, ok := Text(s).AsFloat(); ok {
			t.Fatalf("Text(%q) is the number %v", s, got)
		}
	})
}

func TestReasonsHaveDifferentNames(t *testing.T) {
	seen := make(map[string]Reason)
	for r := range reasonCount {
		name := r.String()
		if name == "" || name == "unknown" {
			t.Errorf("reason %d has no name", r)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("reasons %d and %d are both %q", other, r, name)
		}
		seen[name] = r
	}
	if got := reasonCount.String(); got != "unknown" {
		t.Errorf("a reason out of range is %q, want unknown", got)
	}
}

func TestReasonNamesAreStable(t *testing.T) {
	// They are label values: dashboards and alerts name them.
	for r, want := range map[Reason]string{
		ReasonScope: "scope", ReasonNotSupported: "not_supported", ReasonNotPermitted: "not_permitted", ReasonNotFound: "not_found",
		ReasonBlank: "blank", ReasonStale: "stale", ReasonLost: "lost", ReasonTimeout: "timeout", ReasonError: "error",
		ReasonImplausible: "implausible", ReasonType: "type",
	} {
		if r.String() != want {
			t.Errorf("reason %d is %q, want %q", r, r, want)
		}
	}
}
