// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func drawFunction(t *rapid.T) function {
	f := function{
		shape:  shape(rapid.IntRange(0, int(shapeCounter)).Draw(t, "shape")),
		a:      rapid.Float64Range(-50, 50).Draw(t, "a"),
		b:      rapid.Float64Range(-50, 50).Draw(t, "b"),
		period: rapid.Float64Range(1, 300).Draw(t, "period"),
		duty:   rapid.Float64Range(0.05, 0.95).Draw(t, "duty"),
		seed:   rapid.Uint64().Draw(t, "seed"),
	}
	if f.shape != shapeRamp && f.shape != shapeCounter {
		f.phase = f.period * rapid.Float64Range(0, 0.999).Draw(t, "phase")
	}
	return f
}

// The closed form of the integral is the area under the function: between any two
// instants it equals the sum of small strips.
func TestIntegralIsTheArea(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFunction(t)
		from := rapid.Float64Range(0, 1000).Draw(t, "from")
		width := rapid.Float64Range(0.1, 400).Draw(t, "width")
		const strips = 40000
		h, sum := width/strips, 0.0
		for i := range strips {
			sum += f.at(from+(float64(i)+0.5)*h) * h
		}
		got := f.integral(from+width) - f.integral(from)
		// A jump of saw or square falls inside one strip, once per period.
		tolerance := 1e-3*width + (width/f.period+2)*h*math.Abs(f.a-f.b)
		if math.Abs(got-sum) > tolerance {
			t.Fatalf("area of %+v over [%v, +%v]: closed form %v, strips %v", f, from, width, got, sum)
		}
	})
}

// A load is a utilisation: never below 0, never above its stated peak.
func TestLoadsStayWithinTheirPeak(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := loadKinds()
		kind := &kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]
		l := newLoad(kind, rapid.Float64Range(0, 1).Draw(t, "level"), rapid.Uint64().Draw(t, "seed"))
		x := rapid.Float64Range(0, 1e6).Draw(t, "age")
		if v := l.at(x); v < 0 || v > l.peak()+1e-9 {
			t.Fatalf("%s is %v at %v, its peak is %v", kind.name, v, x, l.peak())
		}
		if kind.peak > 1 {
			t.Fatalf("%s peaks at %v", kind.name, kind.peak)
		}
	})
}
