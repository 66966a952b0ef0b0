// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"image/color"
	"slices"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// cell is what stands in one place of a table.
type cell struct {
	text  string
	color string
	value float64
	is    bool
}

// column is one column of a table.
type column struct {
	title   string
	field   grafana.Field
	numeric bool
	cells   []cell
	width   float64
	largest float64
}

// table shows the first frame, or all where they are one under the other.
func (p *panel) table(b box) error {
	var frame grafana.Frame
	for _, f := range p.frames {
		if f.Rows() > 0 {
			frame = f
			break
		}
	}
	frame = p.ordered(frame)
	columns, err := p.tableColumns(frame)
	if err != nil {
		return err
	}
	const line = 21.0
	shown := p.room(box{b.x, b.y + line, b.w, b.h - line}, line, frame.Rows())
	p.widths(columns, b.w, shown)
	x := b.x
	head := letters{size: 11.5, bold: true, color: paint("dark-blue")}
	p.line(borderColor, 1, [][2]float64{{b.x, b.y + line - 2}, {b.x + b.w, b.y + line - 2}})
	for _, c := range columns {
		if c.numeric {
			p.write(head, x+c.width-8, b.y+line/2-1, right, p.fit(head, c.title, c.width-10))
		} else {
			p.write(head, x+4, b.y+line/2-1, left, p.fit(head, c.title, c.width-8))
		}
		for i := range shown {
			p.cell(c, c.cells[i], box{x, b.y + line*float64(i+1), c.width, line})
		}
		x += c.width
	}
	for i := range shown {
		y := b.y + line*float64(i+2) - 1
		p.line(gridColor, 1, [][2]float64{{b.x, y}, {b.x + b.w, y}})
	}
	return nil
}

// ordered is the frame in the order that the table begins with.
func (p *panel) ordered(f grafana.Frame) grafana.Frame {
	list, _ := p.Options["sortBy"].([]any)
	for _, one := range slices.Backward(list) {
		key, _ := one.(map[string]any)
		name, _ := key["displayName"].(string)
		desc, _ := key["desc"].(bool)
		if i := slices.IndexFunc(f.Fields, func(c grafana.Column) bool { return c.Title() == name }); i >= 0 {
			f = f.Sorted(i, desc)
		}
	}
	return f
}

func (p *panel) tableColumns(f grafana.Frame) ([]column, error) {
	var out []column
	for _, c := range f.Fields {
		field, err := p.Field(c, f.RefID)
		if err != nil {
			return nil, err
		}
		if field.Hidden {
			continue
		}
		col := column{title: c.Title(), field: field, numeric: c.Numeric()}
		if field.DisplayName != "" {
			col.title = displayed(field.DisplayName, c)
		}
		for _, v := range c.Values {
			one := cell{}
			one.text, one.color = field.Shown(v, p.now)
			one.value, one.is = v.(float64)
			col.largest = max(col.largest, one.value)
			col.cells = append(col.cells, one)
		}
		if mapped(field) {
			col.numeric = false
		}
		out = append(out, col)
	}
	return out, nil
}

// mapped says whether a column's numbers are shown as words.
func mapped(f grafana.Field) bool { return len(f.Mappings) > 0 }

// widths shares the width of the table by what the columns need.
func (p *panel) widths(columns []column, width float64, shown int) {
	l := letters{size: 11.5}
	sum := 0.0
	for i := range columns {
		c := &columns[i]
		c.width = p.width(letters{size: 11.5, bold: true}, c.title) + 16
		for _, one := range c.cells[:shown] {
			c.width = max(c.width, p.width(l, one.text)+18)
		}
		if style := c.cellType(); style == "gauge" {
			c.width = max(c.width, 150)
		}
		sum += c.width
	}
	for i := range columns {
		columns[i].width *= width / sum
	}
}

func (c column) cellType() string {
	if t := c.field.Custom.Text("cellOptions", "type"); t != "" {
		return t
	}
	return c.field.Custom.Text("displayMode")
}

func (p *panel) cell(c column, one cell, b box) {
	l := letters{size: 11.5, color: textColor}
	tint := color.RGBA{}
	if one.color != "" {
		tint = paint(one.color)
	}
	switch c.cellType() {
	case "color-background":
		if one.color != "" && one.color != "transparent" && one.text != "" {
			p.fill(box{b.x + 1, b.y, b.w - 2, b.h - 1}, tint)
			l.color = on(tint)
		}
	case "color-text":
		if one.color != "" && one.color != "transparent" {
			l.color = tint
		}
	case "gauge":
		if !one.is {
			return
		}
		low, high := bounds(c.field, c.largest)
		bar := box{b.x + 4, b.y + 4, b.w - 66, b.h - 9}
		p.fill(bar, gridColor)
		bar.w *= part(one.value, low, high)
		if one.color == "" {
			tint = paint("blue")
		}
		p.fill(bar, tint)
		p.write(l, b.x+b.w-8, b.y+b.h/2, right, one.text)
		return
	}
	text := p.fit(l, one.text, b.w-8)
	if c.numeric {
		p.write(l, b.x+b.w-8, b.y+b.h/2, right, text)
		return
	}
	p.write(l, b.x+4, b.y+b.h/2, left, text)
}
