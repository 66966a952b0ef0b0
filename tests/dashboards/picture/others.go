// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"image/color"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// timeline draws states over time as bars, a row for each series.
func (p *panel) timeline(b box) error {
	values, err := p.values()
	if err != nil {
		return err
	}
	const most, least = 26.0, 13.0
	names := 0.0
	l := letters{size: 11, color: textColor}
	for _, v := range values {
		names = max(names, p.width(l, v.name))
	}
	names = min(names+10, b.w*0.3)
	states := p.states(values)
	bottom := 22.0
	if p.Options.Flag("legend", "showLegend") && len(states) > 0 {
		bottom += 18
	}
	rows := values
	h := min(most, max(least, (b.h-bottom)/float64(len(rows))))
	if room := int((b.h - bottom) / h); len(rows) > room {
		rows = rows[:max(1, room-1)]
	}
	a := axes{box: box{b.x + names, b.y, b.w - names - 4, h * float64(len(rows))}, from: p.from, to: p.now}
	p.hours(a)
	for i, v := range rows {
		y := b.y + float64(i)*h
		p.write(l, b.x, y+h/2, left, p.fit(l, v.name, names-8))
		p.bars(a, v, i, y+1.5, h-3)
	}
	if len(rows) < len(values) {
		p.write(letters{size: 11, color: faintColor}, b.x, b.y+h*float64(len(rows))+8, left, "and "+strconv.Itoa(len(values)-len(rows))+" more")
	}
	if bottom > 22 {
		x := b.x + names
		for _, s := range states {
			p.fill(box{x, b.y + b.h - 13, 11, 11}, s.color)
			p.write(l, x+16, b.y+b.h-7, left, s.name)
			x += p.width(l, s.name) + 34
		}
	}
	return nil
}

// bars are one row of a timeline: what is the same is one bar.
func (p *panel) bars(a axes, v value, index int, y, h float64) {
	for i := 0; i < len(v.Values); {
		n, ok := v.Values[i].(float64)
		if !ok || math.IsNaN(n) {
			i++
			continue
		}
		text, c := v.field.Shown(n, p.now)
		j := i + 1
		for j < len(v.Values) && v.Values[j] == v.Values[i] && v.times[j].(time.Time).Sub(v.times[j-1].(time.Time)) <= p.step*3/2 {
			j++
		}
		from, to := v.times[i].(time.Time), v.times[j-1].(time.Time).Add(p.step)
		if to.After(a.to) {
			to = a.to
		}
		fill := seriesColor(v.field, index, n)
		if c != "" {
			fill = paint(c)
		}
		x := max(a.x(from), a.box.x)
		w := a.x(to) - x
		p.fill(box{x, y, w, h}, fill)
		if show := p.Options.Text("showValue"); show != "never" {
			l := letters{size: 10.5, color: on(fill)}
			if tw := p.width(l, text); tw < w-8 {
				p.write(l, x+w/2, y+h/2, middle, text)
			}
		}
		i = j
	}
}

// state is a word and its colour.
type state struct {
	name  string
	color color.RGBA
}

// states are what a timeline shows, once each.
func (p *panel) states(values []value) []state {
	var out []state
	for _, v := range values {
		for _, x := range v.Values {
			n, ok := x.(float64)
			if !ok {
				continue
			}
			text, c := v.field.Shown(n, p.now)
			if c == "" || text == "" || slices.ContainsFunc(out, func(s state) bool { return s.name == text }) {
				continue
			}
			out = append(out, state{text, paint(c)})
		}
	}
	if len(out) > 8 {
		return nil
	}
	return out
}

// pie draws parts of a whole.
func (p *panel) pie(b box) error {
	values, err := p.singles()
	if err != nil {
		return err
	}
	sum := 0.0
	var entries []entry
	var parts []float64
	for i, v := range values {
		n, ok := p.calc(v)
		if !ok || n < 0 {
			continue
		}
		text, _ := v.field.Shown(n, p.now)
		entries = append(entries, entry{name: v.name, color: seriesColor(v.field, i, n), cells: []string{text}})
		parts = append(parts, n)
		sum += n
	}
	for i := range entries {
		entries[i].cells = append(entries[i].cells, strconv.Itoa(int(parts[i]/max(sum, 1e-12)*100+0.5))+"%")
	}
	room := box{b.x, b.y, b.w, b.h}
	if p.Options.Text("legend", "placement") == "right" || b.w > 2*b.h {
		room = p.legendRight(b, entries, []string{"value", "%"})
	} else {
		h := min(legendLine*float64(len(entries)+1)+4, b.h*0.45)
		p.legendTable(box{b.x + 8, b.y + b.h - h, b.w - 16, h}, entries, []string{"value", "%"})
		room.h -= h + 4
	}
	radius := min(room.w, room.h)/2 - 4
	inner := 0.0
	if p.Options.Text("pieType") == "donut" {
		inner = radius * 0.58
	}
	x, y, at := room.x+room.w/2, room.y+room.h/2, 0.0
	for i, n := range parts {
		to := at + 2*math.Pi*n/max(sum, 1e-12)
		if n > 0 {
			p.arc(entries[i].color, x, y, inner, radius, at, to)
		}
		at = to
	}
	return nil
}

// barchart draws a bar for each row of a table, parts piled up where the panel stacks them.
func (p *panel) barchart(b box) error {
	values, err := p.values()
	if err != nil {
		return err
	}
	names := p.rowNames()
	if len(names) == 0 {
		for _, v := range values {
			names = append(names, v.name)
		}
	}
	largest := 0.0
	at := func(v value, row int) float64 {
		if row < len(v.Values) {
			n, _ := v.Values[row].(float64)
			return n
		}
		return 0
	}
	for row := range names {
		sum := 0.0
		for _, v := range values {
			sum += at(v, row)
		}
		largest = max(largest, sum)
	}
	var curves []curve
	for i, v := range values {
		curves = append(curves, curve{value: v, color: seriesColor(v.field, i, 0)})
	}
	plot := b
	if len(values) > 1 {
		plot = p.legend(b, curves)
	}
	wide := 0.0
	l := letters{size: 11, color: textColor}
	for _, n := range names {
		wide = max(wide, p.width(l, n))
	}
	wide = min(wide+10, plot.w*0.35)
	h := min(26, max(14, plot.h/float64(len(names))))
	for row, name := range names[:p.room(plot, h, len(names))] {
		y := plot.y + float64(row)*h
		p.write(l, plot.x, y+h/2, left, p.fit(l, name, wide-8))
		x, sum := plot.x+wide, 0.0
		for i, v := range values {
			n := at(v, row)
			w := (plot.w - wide - 70) * n / max(largest, 1e-12)
			p.fill(box{x, y + 2, w, h - 4}, curves[i].color)
			x, sum = x+w, sum+n
		}
		if len(values) > 0 {
			p.write(letters{size: 11, color: faintColor}, x+6, y+h/2, left, grafana.Format(values[0].field.Unit, values[0].field.Decimals, sum, p.now))
		}
	}
	return nil
}

// rowNames are the words of the first column of words.
func (p *panel) rowNames() []string {
	for _, f := range p.frames {
		for _, c := range f.Fields {
			if _, ok := c.Last(); ok || c.Name == grafana.TimeColumn {
				continue
			}
			var out []string
			for _, v := range c.Values {
				s, _ := v.(string)
				out = append(out, s)
			}
			return out
		}
	}
	return nil
}
