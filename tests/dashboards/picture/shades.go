// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"image/color"
	"math"
)

// Shades are the colours that Grafana gives series in the mode shades, in the order of the series; the twelfth has the first again. It
// turns the hue a little and makes every other one brighter and every other one darker.
func Shades(name string) []color.RGBA {
	const steps, spin, light = 6, 10.0, 0.35
	base := paint(name)
	out := []color.RGBA{base}
	for i := 1; i < steps; i++ {
		part := float64(i) / steps
		h, s, l := hsl(base)
		brighter := rgb(h+part*spin, s, l)
		up := func(v uint8) uint8 { return uint8(min(255, float64(v)+math.Round(255*part*light))) }
		out = append(out,
			color.RGBA{up(brighter.R), up(brighter.G), up(brighter.B), 0xff},
			rgb(h-part*spin, s, max(0, l-part*light)))
	}
	return out
}

// hsl is a colour's hue in degrees, its saturation and its lightness, 0 to 1.
func hsl(c color.RGBA) (h, s, l float64) {
	r, g, b := float64(c.R)/255, float64(c.G)/255, float64(c.B)/255
	high, low := max(r, g, b), min(r, g, b)
	l = (high + low) / 2
	d := high - low
	if d == 0 {
		return 0, 0, l
	}
	s = d / (1 - math.Abs(2*l-1))
	switch high {
	case r:
		h = (g - b) / d
	case g:
		h = (b-r)/d + 2
	default:
		h = (r-g)/d + 4
	}
	return h * 60, s, l
}

// rgb is the colour of a hue in degrees, a saturation and a lightness.
func rgb(h, s, l float64) color.RGBA {
	part := func(n float64) uint8 {
		k := math.Mod(n+math.Mod(h+360, 360)/30, 12)
		return uint8(math.Round(255 * (l - s*min(l, 1-l)*max(-1, min(k-3, 9-k, 1)))))
	}
	return color.RGBA{part(0), part(8), part(4), 0xff}
}
