// SPDX-License-Identifier: Apache-2.0

// Package picture draws a dashboard with the answers to its queries, for the documentation.
package picture

import (
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"strings"

	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// canvas draws in pixels from the top left.
type canvas struct {
	img    *vgimg.Canvas
	out    draw.Canvas
	height float64
	fonts  *font.Cache
}

// box is a part of the canvas.
type box struct{ x, y, w, h float64 }

// inset is a box within, by that many pixels on each side.
func (b box) inset(by float64) box { return box{b.x + by, b.y + by, b.w - 2*by, b.h - 2*by} }

func newCanvas(w, h int, background color.Color) *canvas {
	// At 72 dots per inch a point is a pixel.
	img := vgimg.NewWith(vgimg.UseWH(vg.Length(w), vg.Length(h)), vgimg.UseDPI(72), vgimg.UseBackgroundColor(background))
	return &canvas{img: img, out: draw.New(img), height: float64(h), fonts: font.NewCache(liberation.Collection())}
}

func (c *canvas) point(x, y float64) vg.Point {
	return vg.Point{X: vg.Length(x), Y: vg.Length(c.height - y)}
}

func (c *canvas) fill(b box, with color.Color) {
	if b.w <= 0 || b.h <= 0 {
		return
	}
	c.out.FillPolygon(with, []vg.Point{c.point(b.x, b.y), c.point(b.x+b.w, b.y), c.point(b.x+b.w, b.y+b.h), c.point(b.x, b.y+b.h)})
}

func (c *canvas) frame(b box, with color.Color) {
	c.line(with, 1, [][2]float64{{b.x, b.y}, {b.x + b.w, b.y}, {b.x + b.w, b.y + b.h}, {b.x, b.y + b.h}, {b.x, b.y}})
}

func (c *canvas) polygon(with color.Color, points [][2]float64) {
	if len(points) < 3 {
		return
	}
	out := make([]vg.Point, len(points))
	for i, p := range points {
		out[i] = c.point(p[0], p[1])
	}
	c.out.FillPolygon(with, out)
}

func (c *canvas) line(with color.Color, width float64, points [][2]float64) {
	if len(points) < 2 {
		return
	}
	out := make([]vg.Point, len(points))
	for i, p := range points {
		out[i] = c.point(p[0], p[1])
	}
	c.out.StrokeLines(draw.LineStyle{Color: with, Width: vg.Length(width)}, out)
}

// dot is a filled circle.
func (c *canvas) dot(with color.Color, x, y, radius float64) {
	c.out.DrawGlyph(draw.GlyphStyle{Color: with, Radius: vg.Length(radius), Shape: draw.CircleGlyph{}}, c.point(x, y))
}

// arc is a part of a ring, between angles in radians that count clockwise from the top.
func (c *canvas) arc(with color.Color, x, y, inner, outer, from, to float64) {
	const step = 0.03
	var points [][2]float64
	add := func(r, a float64) { points = append(points, [2]float64{x + r*math.Sin(a), y - r*math.Cos(a)}) }
	for a := from; a < to; a += step {
		add(outer, a)
	}
	add(outer, to)
	for a := to; a > from; a -= step {
		add(inner, a)
	}
	add(inner, from)
	c.polygon(with, points)
}

// type of the letters.
type letters struct {
	size  float64
	bold  bool
	color color.Color
}

func (c *canvas) style(l letters) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(l.size)}
	if l.bold {
		f.Weight = 3
	}
	return text.Style{Color: l.color, Font: f, Handler: text.Plain{Fonts: c.fonts}}
}

// pieces are what is drawn of a text at once, and what is left free after each. The font's own pairs of a letter and a blank, and
// of two ones, are too narrow to read.
func (l letters) pieces(s string, each func(piece string, gap float64)) {
	for i, word := range strings.Split(s, " ") {
		if i > 0 {
			each("", l.size*0.28)
		}
		for {
			cut := strings.Index(word, "11")
			if cut < 0 {
				break
			}
			each(word[:cut+1], 0)
			word = word[cut+1:]
		}
		each(word, 0)
	}
}

// width is how wide a text is.
func (c *canvas) width(l letters, s string) float64 {
	st, sum := c.style(l), 0.0
	l.pieces(s, func(piece string, gap float64) { sum += float64(st.Width(piece)) + gap })
	return sum
}

// Where a text stands at its point.
const (
	left   = 0.0
	middle = -0.5
	right  = -1.0
)

// write puts a text with its middle at the height y, and its left, middle or right end at x.
func (c *canvas) write(l letters, x, y, align float64, s string) {
	if s == "" {
		return
	}
	st := c.style(l)
	w := c.width(l, s)
	x += align * w
	l.pieces(s, func(piece string, gap float64) {
		if piece != "" {
			// Whole pixels keep letters crisp.
			c.out.FillText(st, c.point(math.Round(x), math.Round(y+l.size*0.36)), piece)
		}
		x += float64(st.Width(piece)) + gap
	})
}

// fit is a text cut to a width.
func (c *canvas) fit(l letters, s string, width float64) string {
	if c.width(l, s) <= width {
		return s
	}
	runes := []rune(s)
	for len(runes) > 1 {
		runes = runes[:len(runes)-1]
		if short := strings.TrimSpace(string(runes)) + "…"; c.width(l, short) <= width {
			return short
		}
	}
	return ""
}

// largest is the size at which a text fits a width, no larger than most.
func (c *canvas) largest(l letters, s string, width, most float64) float64 {
	l.size = most
	if w := c.width(l, s); w > width {
		return max(8, most*width/w)
	}
	return most
}

// encode writes the picture with the 256 colours that do it most justice.
func (c *canvas) encode(w io.Writer) error {
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return encoder.Encode(w, paletted(c.img.Image()))
}

// paletted gives a picture the 256 colours that are most frequent in it, and each other the nearest of them.
func paletted(img image.Image) *image.Paletted {
	const most = 256
	b := img.Bounds()
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA {
		c := color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)
		// Steps of four are seen by nobody and make far fewer colours.
		return color.RGBA{c.R | 3, c.G | 3, c.B | 3, 0xff}
	}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	p := image.NewPaletted(b, mostFrequent(count, most))
	index := map[color.RGBA]uint8{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := at(x, y)
			i, ok := index[c]
			if !ok {
				i = uint8(p.Palette.Index(c))
				index[c] = i
			}
			p.SetColorIndex(x, y, i)
		}
	}
	return p
}
