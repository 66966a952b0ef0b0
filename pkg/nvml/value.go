// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// integer is whatever NVML counts in.
type integer interface {
	~int | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// number is a whole number; one that does not fit a signed word is none.
func number[T integer](v T) gpu.Value {
	if v > 0 && uint64(v) > math.MaxInt64 {
		return gpu.Absent(gpu.ReasonImplausible)
	}
	return gpu.Int(int64(v))
}

// upTo is a whole number from 0 to limit; drivers have returned all ones for what they lack.
func upTo[T integer](limit int64) func(T) gpu.Value {
	return func(v T) gpu.Value {
		if v < 0 || uint64(v) > uint64(limit) {
			return gpu.Absent(gpu.ReasonImplausible)
		}
		return gpu.Int(int64(v))
	}
}

// Bounds of what can be, far from what is.
const (
	mostPercent  = 100
	mostCelsius  = 200
	mostMHz      = 100_000
	mostMilliW   = 10_000_000
	mostPCIeGen  = 32
	mostPCIeLane = 64
)

// watts is power that NVML has in milliwatts.
func watts[T integer](mW T) gpu.Value {
	if mW < 0 || uint64(mW) > mostMilliW {
		return gpu.Absent(gpu.ReasonImplausible)
	}
	return gpu.Float(float64(mW) / 1000)
}

// mebibytes is an amount of memory that NVML has in bytes.
func mebibytes(bytes uint64) gpu.Value { return number(bytes >> 20) }

// text is a driver's text; an empty one says nothing.
func text(s string) gpu.Value {
	if s == "" {
		return gpu.Absent(gpu.ReasonBlank)
	}
	return gpu.Text(s)
}

// enabled is 1 for a state that is on, 0 for off.
func enabled(s nvml.EnableState) gpu.Value { return upTo[nvml.EnableState](1)(s) }

// flag is 1 for yes, 0 for no.
func flag[T integer](v T) gpu.Value {
	if v != 0 {
		return gpu.Int(1)
	}
	return gpu.Int(0)
}

// cString is C's text up to its end.
func cString(chars []int8) string {
	out := make([]byte, 0, len(chars))
	for _, b := range chars {
		if b == 0 {
			break
		}
		out = append(out, byte(b))
	}
	return string(out)
}
