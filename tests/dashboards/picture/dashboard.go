// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"fmt"
	"io"
	"time"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

const (
	// Width is a picture's, in pixels.
	Width = 1600
	// unit is the height of a row of the grid, gap what is left between panels, head the height of the page's title.
	unit, gap, head, foot = 36.0, 8.0, 54.0, 26.0
)

// Page is a dashboard with what its panels show.
type Page struct {
	Dashboard *grafana.Dashboard
	// Frames are what each panel has after its transformations, by the panel's id.
	Frames map[int][]grafana.Frame
	// Steps are the times between two moments of each panel's graph, by the panel's id.
	Steps map[int]time.Duration
	// Subtitle says what the values are of, Note what the picture is.
	Subtitle, Note string
	From, Now      time.Time
}

// panel is one panel while it is drawn.
type panel struct {
	*canvas
	grafana.Panel
	frames    []grafana.Frame
	box       box
	from, now time.Time
	step      time.Duration
}

// Draw draws a page as PNG. The error names a kind of panel that cannot be drawn.
func Draw(w io.Writer, p Page) error {
	rows := 0
	for _, one := range p.Dashboard.All() {
		rows = max(rows, one.GridPos.Y+one.GridPos.H)
	}
	height := head + float64(rows)*unit + foot
	c := newCanvas(Width, int(height), pageColor)
	c.write(letters{size: 21, bold: true, color: textColor}, 14, head/2-2, left, p.Dashboard.Title)
	title := c.width(letters{size: 21, bold: true, color: textColor}, p.Dashboard.Title)
	c.write(letters{size: 12.5, color: faintColor}, 14+title+18, head/2, left, p.Subtitle)
	c.write(letters{size: 12.5, color: faintColor}, Width-14, height-foot/2, right, p.Note)
	const column = float64(Width) / 24
	for _, one := range p.Dashboard.All() {
		g := one.GridPos
		b := box{float64(g.X)*column + gap/2, head + float64(g.Y)*unit, float64(g.W)*column - gap, float64(g.H)*unit - gap}
		d := &panel{canvas: c, Panel: one, frames: p.Frames[one.ID], box: b, from: p.From, now: p.Now, step: p.Steps[one.ID]}
		if err := d.draw(); err != nil {
			return fmt.Errorf("panel %q: %w", one.Title, err)
		}
	}
	return c.encode(w)
}

// draw draws the panel: its frame, its title, and what it shows.
func (p *panel) draw() error {
	if p.Type == "row" {
		p.write(letters{size: 14, bold: true, color: textColor}, p.box.x+6, p.box.y+p.box.h/2, left, p.Title)
		return nil
	}
	p.fill(p.box, panelColor)
	p.frame(p.box, borderColor)
	inner := p.box.inset(8)
	if p.Title != "" {
		l := letters{size: 12.5, bold: true, color: textColor}
		p.write(l, inner.x, inner.y+8, left, p.fit(l, p.Title, inner.w))
		inner.y, inner.h = inner.y+22, inner.h-22
	}
	draws := map[string]func(box) error{
		"stat": p.stat, "bargauge": p.bargauge, "table": p.table, "timeseries": p.timeseries, "state-timeline": p.timeline, "piechart": p.pie, "barchart": p.barchart,
	}
	f, ok := draws[p.Type]
	if !ok {
		return fmt.Errorf("kind %s cannot be drawn", p.Type)
	}
	if p.rows() == 0 {
		word := p.FieldConfig.Defaults.NoValue
		if word == "" {
			word = "No data"
		}
		p.write(letters{size: 13, color: faintColor}, inner.x+inner.w/2, inner.y+inner.h/2, middle, word)
		return nil
	}
	return f(inner)
}

func (p *panel) rows() int {
	n := 0
	for _, f := range p.frames {
		n += f.Rows()
	}
	return n
}

// value is a column of numbers with how it is shown.
type value struct {
	grafana.Column
	field grafana.Field
	name  string
	times []any
}

// values are all columns of numbers that are shown, with their names.
func (p *panel) values() ([]value, error) {
	var out []value
	for _, f := range p.frames {
		var times []any
		for _, c := range f.Fields {
			if c.Name == grafana.TimeColumn {
				times = c.Values
			}
		}
		for _, c := range f.Fields {
			if c.Name == grafana.TimeColumn || !c.Numeric() {
				continue
			}
			field, err := p.Field(c, f.RefID)
			if err != nil {
				return nil, err
			}
			if field.Hidden {
				continue
			}
			v := value{Column: c, field: field, name: c.Title(), times: times}
			if field.DisplayName != "" {
				v.name = displayed(field.DisplayName, c)
			}
			out = append(out, v)
		}
	}
	return out, nil
}
