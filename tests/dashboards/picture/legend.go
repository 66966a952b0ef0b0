// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"image/color"
	"strconv"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// entry is one line of a legend.
type entry struct {
	name  string
	color color.RGBA
	cells []string
}

// legend draws a panel's legend and gives what is left for the graph.
func (p *panel) legend(b box, curves []curve) box {
	if !p.Options.Flag("legend", "showLegend") || p.Options.Text("legend", "displayMode") == "hidden" {
		return b
	}
	calcs := p.Options.Texts("legend", "calcs")
	var entries []entry
	for _, c := range curves {
		e := entry{name: c.name, color: c.color}
		for _, name := range calcs {
			text := ""
			if n, ok := grafana.Calc(name, c.Column); ok {
				text, _ = c.field.Shown(n, p.now)
			}
			e.cells = append(e.cells, text)
		}
		entries = append(entries, e)
	}
	if p.Options.Text("legend", "placement") == "right" {
		return p.legendRight(b, entries, calcs)
	}
	return p.legendBelow(b, entries, calcs)
}

// heading is what a calculation is called above its column.
func heading(calc string) string {
	words := map[string]string{"lastNotNull": "last", "last": "last", "mean": "mean", "max": "max", "min": "min", "sum": "total"}
	if w, ok := words[calc]; ok {
		return w
	}
	return calc
}

const (
	legendLine = 16.0
	legendCell = 62.0
)

// legendTable draws entries as lines with columns.
func (p *panel) legendTable(b box, entries []entry, calcs []string) {
	l := letters{size: 11, color: textColor}
	y := b.y
	if len(calcs) > 0 {
		for i, name := range calcs {
			p.write(letters{size: 10.5, bold: true, color: paint("dark-blue")}, b.x+b.w-legendCell*float64(len(calcs)-1-i), y+legendLine/2, right, heading(name))
		}
		y += legendLine
	}
	for i, e := range entries {
		if y+legendLine*1.9 > b.y+b.h && i < len(entries)-1 {
			p.write(letters{size: 10.5, color: faintColor}, b.x, y+legendLine/2, left, "and "+strconv.Itoa(len(entries)-i)+" more")
			return
		}
		p.fill(box{b.x, y + 6, 12, 4}, e.color)
		p.write(l, b.x+17, y+legendLine/2, left, p.fit(l, e.name, b.w-20-legendCell*float64(len(calcs))))
		for j, text := range e.cells {
			p.write(l, b.x+b.w-legendCell*float64(len(calcs)-1-j), y+legendLine/2, right, p.fit(l, text, legendCell-3))
		}
		y += legendLine
	}
}

func (p *panel) legendRight(b box, entries []entry, calcs []string) box {
	widest := 0.0
	for _, e := range entries {
		widest = max(widest, p.width(letters{size: 11}, e.name))
	}
	w := min(widest+26+legendCell*float64(len(calcs)), b.w*0.45)
	p.legendTable(box{b.x + b.w - w, b.y, w, b.h}, entries, calcs)
	return box{b.x, b.y, b.w - w - 14, b.h}
}

func (p *panel) legendBelow(b box, entries []entry, calcs []string) box {
	if p.Options.Text("legend", "displayMode") == "table" {
		h := min(legendLine*float64(len(entries)+1)+6, b.h*0.4)
		p.legendTable(box{b.x + 8, b.y + b.h - h + 6, b.w - 12, h - 4}, entries, calcs)
		return box{b.x, b.y, b.w, b.h - h}
	}
	l := letters{size: 11, color: textColor}
	type placed struct {
		x    float64
		line int
		text string
	}
	var where []placed
	x, line := 0.0, 0
	for _, e := range entries {
		text := e.name
		for i, c := range e.cells {
			text += "  " + heading(calcs[i]) + " " + c
		}
		text = p.fit(l, text, b.w-24)
		w := p.width(l, text) + 34
		if x > 0 && x+w > b.w {
			x, line = 0, line+1
		}
		where = append(where, placed{x, line, text})
		x += w
	}
	lines := min(line+1, max(1, int(b.h*0.35/legendLine)))
	top := b.y + b.h - legendLine*float64(lines) + 2
	for i, e := range entries {
		at := where[i]
		if at.line >= lines-1 && line >= lines && (at.line >= lines || at.x > 0) {
			if at.line == lines-1 || i == 0 || where[i-1].line < lines {
				p.write(letters{size: 11, color: faintColor}, b.x+at.x*boolean(at.line < lines)+4, top+legendLine*(float64(min(at.line, lines-1))+0.5), left, "and "+strconv.Itoa(len(entries)-i)+" more")
			}
			break
		}
		p.fill(box{b.x + at.x + 4, top + legendLine*float64(at.line) + 6, 12, 4}, e.color)
		p.write(l, b.x+at.x+21, top+legendLine*(float64(at.line)+0.5), left, at.text)
	}
	return box{b.x, b.y, b.w, b.h - legendLine*float64(lines) - 2}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
