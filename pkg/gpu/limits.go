// SPDX-License-Identifier: Apache-2.0

package gpu

// Limits are the lowest and the highest value that a field can have on any hardware, in
// its unit, and whether there are such. They are wide: what is outside of them is a driver's
// word for nothing (4294967295 for a utilisation) or garbage, never a measurement.
func Limits(id FieldID) (low, high float64, known bool) {
	switch {
	case id >= 203 && id <= 207 && id != 205:
		return 0, 100, true // percent
	case id >= 1001 && id <= 1034 && (id < 1009 || id > 1012):
		// The ratio of two counters that are not read in the same instant can be a little over 1.
		return 0, 1.1, true
	case id == 254:
		return 0, 1, true
	case id >= 250 && id <= 253, id == 90, id == 92, id == 93:
		return 0, 1 << 28, true // MiB
	case id == 140, id == 150:
		return -100, 300, true // degrees Celsius
	case id == 155, id == 157, id >= 160 && id <= 164:
		return 0, 1e5, true // W
	case id == 100, id == 101, id == 102:
		return 0, 1e5, true // MHz
	case id == 156, id == 202, id >= 310 && id <= 313, id >= 390 && id <= 395, id == FieldXID:
		return 0, 1 << 62, true
	}
	return 0, 0, false
}

// Plausible is v, or Absent(ReasonImplausible) for a number outside of the field's Limits.
func Plausible(id FieldID, v Value) Value {
	n, ok := v.AsFloat()
	if !ok {
		return v
	}
	if low, high, known := Limits(id); known && (n < low || n > high) {
		return Absent(ReasonImplausible)
	}
	return v
}
