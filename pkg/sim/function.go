// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

type shape uint8

const (
	shapeConstant shape = iota
	shapeSine
	shapeRamp
	shapeSaw
	shapeSquare
	shapeNoise
	shapeCounter
	shapeText
	shapeAbsent
)

// function is a quantity over time whose integral has a closed form, so that a
// counter can be read at any instant without having been read before.
type function struct {
	shape shape
	// a and b are: the value (constant); mean and amplitude (sine, noise); from and
	// to (ramp, saw); high and low (square); start and rate per second (counter).
	a, b float64
	// period and phase are in seconds; duty is the part of a square's period that is high.
	period, phase, duty float64
	seed                uint64
	text                string
	reason              gpu.Reason
}

// numeric reports whether the function has values at all.
func (f *function) numeric() bool { return f.shape < shapeText }

// at is the value at x seconds, x >= 0.
func (f *function) at(x float64) float64 {
	switch f.shape {
	case shapeSine:
		return f.a + f.b*math.Sin(2*math.Pi*(x+f.phase)/f.period)
	case shapeRamp:
		return f.a + (f.b-f.a)*min(x/f.period, 1)
	case shapeSaw:
		_, r := f.split(x)
		return f.a + (f.b-f.a)*r/f.period
	case shapeSquare:
		if _, r := f.split(x); r < f.duty*f.period {
			return f.a
		}
		return f.b
	case shapeNoise:
		k, r := f.split(x)
		return f.a + f.b*f.swing(k)*math.Sin(2*math.Pi*r/f.period)
	case shapeCounter:
		return f.a + f.b*x
	default:
		return f.a
	}
}

// integral is the area under the function from 0 to x seconds.
func (f *function) integral(x float64) float64 {
	switch f.shape {
	case shapeSine, shapeSaw, shapeSquare, shapeNoise:
		return f.area(x) - f.area(0)
	case shapeRamp:
		if x <= f.period {
			return f.a*x + (f.b-f.a)*x*x/(2*f.period)
		}
		return (f.a+f.b)/2*f.period + f.b*(x-f.period)
	case shapeCounter:
		return f.a*x + f.b*x*x/2
	default:
		return f.a * x
	}
}

// area is an antiderivative at x of the shapes that repeat.
func (f *function) area(x float64) float64 {
	k, r := f.split(x)
	p := f.period
	switch f.shape {
	case shapeSine:
		return f.a*x - f.b*p/(2*math.Pi)*math.Cos(2*math.Pi*r/p)
	case shapeSaw:
		return k*(f.a+f.b)/2*p + f.a*r + (f.b-f.a)*r*r/(2*p)
	case shapeSquare:
		high := f.duty * p
		whole := k * (f.a*high + f.b*(p-high))
		if r < high {
			return whole + f.a*r
		}
		return whole + f.a*high + f.b*(r-high)
	default:
		// Each wave of noise has a mean of zero, so only the present one adds to the area.
		return f.a*x + f.b*f.swing(k)*p/(2*math.Pi)*(1-math.Cos(2*math.Pi*r/p))
	}
}

// split is the number of the period that x lies in and how far.
func (f *function) split(x float64) (k, r float64) {
	y := x + f.phase
	k = math.Floor(y / f.period)
	return k, max(y-k*f.period, 0)
}

// swing is the height of the k-th wave of noise, -1..1.
func (f *function) swing(k float64) float64 {
	return 2*unit01(mix(f.seed, uint64(int64(k)))) - 1
}

// value is the function's value at x seconds in the type of a field.
func (f *function) value(x float64, t gpu.FieldType) gpu.Value {
	switch {
	case f.shape == shapeAbsent:
		return gpu.Absent(f.reason)
	case f.shape == shapeText:
		return gpu.Text(f.text)
	case t == gpu.FieldFloat:
		return gpu.Float(f.at(x))
	case f.shape == shapeCounter:
		return gpu.Int(int64(math.Floor(f.at(x))))
	default:
		return gpu.Int(int64(math.Round(f.at(x))))
	}
}
