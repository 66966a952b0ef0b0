// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"image/color"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// The picture's own colours, of a light page.
var (
	pageColor   = color.RGBA{0xf4, 0xf5, 0xf5, 0xff}
	panelColor  = color.RGBA{0xff, 0xff, 0xff, 0xff}
	borderColor = color.RGBA{0xdc, 0xde, 0xe1, 0xff}
	gridColor   = color.RGBA{0xea, 0xeb, 0xed, 0xff}
	textColor   = color.RGBA{0x24, 0x29, 0x2e, 0xff}
	faintColor  = color.RGBA{0x6b, 0x70, 0x7a, 0xff}
)

// named are Grafana's colours of the light theme, as plain as a picture needs them.
func named() map[string]string {
	return map[string]string{
		"green": "#73BF69", "dark-green": "#37872D", "semi-dark-green": "#56A64B", "light-green": "#96D98D", "super-light-green": "#C8F2C2",
		"yellow": "#F2CC0C", "dark-yellow": "#E0B400", "semi-dark-yellow": "#F2CC0C", "light-yellow": "#FFEE52", "super-light-yellow": "#FFF899",
		"red": "#F2495C", "dark-red": "#C4162A", "semi-dark-red": "#E02F44", "light-red": "#FF7383", "super-light-red": "#FFA6B0",
		"blue": "#5794F2", "dark-blue": "#1F60C4", "semi-dark-blue": "#3274D9", "light-blue": "#8AB8FF", "super-light-blue": "#C0D8FF",
		"orange": "#FF9830", "dark-orange": "#FA6400", "semi-dark-orange": "#FF780A", "light-orange": "#FFB357", "super-light-orange": "#FFCB7D",
		"purple": "#B877D9", "dark-purple": "#8F3BB8", "semi-dark-purple": "#A352CC", "light-purple": "#CA95E5", "super-light-purple": "#DEB6F2",
		"gray": "#9AA0A6", "grey": "#9AA0A6", "dark-gray": "#6B707A", "black": "#24292E", "white": "#FFFFFF", "text": "#24292E", "transparent": "#FFFFFF",
	}
}

// palette are the colours of series that have none of their own.
func palette() []string {
	return []string{
		"#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0", "#37872D", "#FADE2A", "#447EBC", "#C15C17", "#890F02", "#0A437C",
		"#6D1F62", "#584477", "#B7DBAB", "#F4D598", "#70DBED", "#F9BA8F", "#F29191", "#82B5D8", "#E5A8E2", "#AEA2E0",
	}
}

// paint is a colour by Grafana's name for it, or black.
func paint(name string) color.RGBA {
	if hex, ok := named()[name]; ok {
		name = hex
	}
	hex := strings.TrimPrefix(name, "#")
	if len(hex) < 6 {
		return textColor
	}
	n, err := strconv.ParseUint(hex[:6], 16, 32)
	if err != nil {
		return textColor
	}
	return color.RGBA{uint8(n >> 16), uint8(n >> 8), uint8(n), 0xff}
}

// pale is a colour mixed with white; part is how much of it stays.
func pale(c color.RGBA, part float64) color.RGBA {
	mix := func(v uint8) uint8 { return uint8(255 - part*(255-float64(v)) + 0.5) }
	return color.RGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

// on is the colour of letters on a background.
func on(background color.RGBA) color.RGBA {
	if 299*int(background.R)+587*int(background.G)+114*int(background.B) > 150_000 {
		return textColor
	}
	return color.RGBA{0xff, 0xff, 0xff, 0xff}
}

// seriesColor is what a field of a graph is drawn in: its own colour, by its value, or the n-th of the palette.
func seriesColor(f grafana.Field, n int, last float64) color.RGBA {
	switch f.Color.Mode {
	case "fixed":
		if f.Color.FixedColor != "" {
			return paint(f.Color.FixedColor)
		}
	case "shades":
		all := Shades(f.Color.FixedColor)
		return all[n%len(all)]
	case "thresholds":
		if c := f.ThresholdColor(last); c != "" {
			return paint(c)
		}
	}
	p := palette()
	return paint(p[n%len(p)])
}

// mostFrequent are the colours that come most often, always in the same order.
func mostFrequent(count map[color.RGBA]int, most int) color.Palette {
	all := slices.Collect(maps.Keys(count))
	number := func(c color.RGBA) int { return int(c.R)<<16 | int(c.G)<<8 | int(c.B) }
	slices.SortFunc(all, func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(number(a), number(b)))
	})
	var out color.Palette
	for _, c := range all[:min(most, len(all))] {
		out = append(out, c)
	}
	return out
}
