// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"image/color"
	"math"
	"strconv"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// calc is the number that a panel makes of a column.
func (p *panel) calc(v value) (float64, bool) {
	name := "lastNotNull"
	if list := p.Options.Texts("reduceOptions", "calcs"); len(list) > 0 {
		name = list[0]
	}
	return grafana.Calc(name, v.Column)
}

// singles are the numbers of a panel that shows one of each column, or one of each row where it asks for all values.
func (p *panel) singles() ([]value, error) {
	values, err := p.values()
	if err != nil || !p.Options.Flag("reduceOptions", "values") {
		return values, err
	}
	var out []value
	for _, f := range p.frames {
		for _, v := range values {
			for row := range f.Rows() {
				one := v
				one.Values = v.Values[row : row+1]
				for _, c := range f.Fields {
					if s, ok := c.Values[row].(string); ok {
						one.name = s
					}
				}
				out = append(out, one)
			}
		}
	}
	return out, nil
}

// stat shows numbers as large as they fit.
func (p *panel) stat(b box) error {
	values, err := p.singles()
	if err != nil {
		return err
	}
	columns := len(values)
	if p.Options.Text("orientation") == "horizontal" || b.w/float64(len(values)) < 70 {
		columns = max(1, min(len(values), int(b.w/110)))
	}
	lines := (len(values) + columns - 1) / columns
	w, h := b.w/float64(columns), b.h/float64(lines)
	for i, v := range values {
		cell := box{b.x + float64(i%columns)*w, b.y + float64(i/columns)*h, w - 4, h - 3}
		p.number(v, cell, len(values) > 1)
	}
	return nil
}

// number is one number of a stat.
func (p *panel) number(v value, b box, named bool) {
	n, ok := p.calc(v)
	text, name := cmp.Or(v.field.NoValue, "–"), ""
	tint := textColor
	if ok {
		var s string
		text, s = v.field.Shown(n, p.now)
		if s != "" && v.field.Color.Mode != "fixed" {
			tint = paint(s)
		}
		if v.field.Color.Mode == "fixed" && v.field.Color.FixedColor != "" {
			tint = paint(v.field.Color.FixedColor)
		}
	}
	mode := p.Options.Text("textMode")
	if named && mode != "value" || mode == "name" || mode == "value_and_name" {
		name = v.name
	}
	letter, small := tint, faintColor
	switch p.Options.Text("colorMode") {
	case "background", "background_solid":
		p.fill(b, tint)
		letter = on(tint)
		small = letter
	case "none":
		letter = textColor
	}
	if p.Options.Text("graphMode") == "area" && len(v.Values) > 2 {
		p.spark(v, box{b.x, b.y + b.h*0.62, b.w, b.h * 0.38}, tint)
	}
	if mode == "name" {
		text, name = v.name, ""
	}
	l := letters{bold: true, color: letter}
	room := b.h
	if name != "" {
		room -= 16
	}
	l.size = p.largest(l, text, b.w-12, min(34, room*0.62))
	y := b.y + b.h/2
	if name != "" {
		nl := letters{size: 11.5, color: small}
		p.write(nl, b.x+b.w/2, b.y+b.h/2+l.size*0.62, middle, p.fit(nl, name, b.w-6))
		y -= 9
	}
	p.write(l, b.x+b.w/2, y, middle, text)
}

// spark is the small graph behind a number.
func (p *panel) spark(v value, b box, tint color.RGBA) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, x := range v.Values {
		if f, ok := x.(float64); ok {
			low, high = min(low, f), max(high, f)
		}
	}
	if high <= low {
		return
	}
	var points [][2]float64
	for i, x := range v.Values {
		if f, ok := x.(float64); ok {
			points = append(points, [2]float64{b.x + b.w*float64(i)/float64(len(v.Values)-1), b.y + b.h - b.h*(f-low)/(high-low)})
		}
	}
	area := append([][2]float64{{points[0][0], b.y + b.h}}, points...)
	p.polygon(pale(tint, 0.18), append(area, [2]float64{points[len(points)-1][0], b.y + b.h}))
	p.line(pale(tint, 0.7), 1, points)
}

// bounds are the ends of a scale for one number.
func bounds(f grafana.Field, largest float64) (low, high float64) {
	low, high = 0, largest
	if f.Min != nil {
		low = *f.Min
	}
	switch {
	case f.Max != nil:
		high = *f.Max
	case f.Unit == "percentunit":
		high = 1
	case f.Unit == "percent":
		high = 100
	}
	if high <= low {
		high = low + 1
	}
	return low, high
}

func part(v, low, high float64) float64 { return min(1, max(0, (v-low)/(high-low))) }

// bargauge shows numbers as bars beside each other.
func (p *panel) bargauge(b box) error {
	values, err := p.singles()
	if err != nil {
		return err
	}
	largest := 0.0
	for _, v := range values {
		if n, ok := p.calc(v); ok {
			largest = max(largest, n)
		}
	}
	h := min(30, max(15, b.h/float64(len(values))))
	names := 0.0
	l := letters{size: 11.5, color: textColor}
	for _, v := range values {
		names = max(names, p.width(l, v.name))
	}
	names = min(names+10, b.w*0.45)
	shown := p.room(b, h, len(values))
	for i, v := range values[:shown] {
		y := b.y + float64(i)*h
		p.write(l, b.x, y+h/2, left, p.fit(l, v.name, names-8))
		n, ok := p.calc(v)
		if !ok {
			continue
		}
		text, tint := v.field.Shown(n, p.now)
		low, high := bounds(v.field, largest)
		bar := box{b.x + names, y + 2, b.w - names - 72, h - 5}
		c := seriesColor(v.field, i, n)
		if v.field.Color.Mode != "fixed" && tint != "" {
			c = paint(tint)
		}
		p.fill(bar, gridColor)
		bar.w *= part(n, low, high)
		p.fill(bar, c)
		p.write(letters{size: 12, bold: true, color: textColor}, b.x+b.w, y+h/2, right, text)
	}
	return nil
}

// room is how many lines of a height are shown. Where not all are, the panel says at its bottom how many it scrolls to.
func (p *panel) room(b box, line float64, lines int) int {
	const note = 16
	if line*float64(lines) <= b.h+1 {
		return lines
	}
	shown := max(0, int((b.h-note)/line))
	p.write(letters{size: 11, color: faintColor}, b.x, b.y+b.h-6, left, "and "+strconv.Itoa(lines-shown)+" more, which the panel scrolls to")
	return shown
}
