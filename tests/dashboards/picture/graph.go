// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"cmp"
	"image/color"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// axes are where a graph's values stand.
type axes struct {
	box       box
	from, to  time.Time
	low, high float64
	unit      grafana.Field
}

func (a axes) x(at time.Time) float64 {
	return a.box.x + a.box.w*float64(at.Sub(a.from))/float64(a.to.Sub(a.from))
}

func (a axes) y(v float64) float64 {
	return a.box.y + a.box.h - a.box.h*min(1.02, max(-0.02, (v-a.low)/(a.high-a.low)))
}

// curve is one line of a graph.
type curve struct {
	value
	color color.RGBA
	// stack names what is piled up with it, empty for nothing; fill is how strong the area below is, 0 to 1.
	stack  string
	fill   float64
	points []point
}

// point is a value at a time, and where its area begins.
type point struct {
	at      time.Time
	v, base float64
	gap     bool
}

// timeseries draws lines or bars over time.
func (p *panel) timeseries(b box) error {
	values, err := p.values()
	if err != nil {
		return err
	}
	curves := p.curves(values)
	plot := p.legend(b, curves)
	a := p.scale(plot, curves)
	p.grid(a)
	for _, c := range curves {
		p.area(a, c)
	}
	for _, c := range curves {
		p.trace(a, c)
	}
	p.limits(a)
	return nil
}

// curves gives each series its colour and piles up those that are stacked.
func (p *panel) curves(values []value) []curve {
	var out []curve
	piles := map[string]map[time.Time]float64{}
	for i, v := range values {
		last, _ := v.Last()
		c := curve{value: v, color: seriesColor(v.field, i, last), fill: v.field.Custom.Number("fillOpacity") / 100}
		if mode := v.field.Custom.Text("stacking", "mode"); mode != "" && mode != "none" {
			c.stack = cmp.Or(v.field.Custom.Text("stacking", "group"), "A")
		}
		pile := piles[c.stack]
		if pile == nil {
			pile = map[time.Time]float64{}
			piles[c.stack] = pile
		}
		var before time.Time
		for j, x := range v.Values {
			n, ok := x.(float64)
			at, timed := v.times[j].(time.Time)
			if !ok || !timed || math.IsNaN(n) || math.IsInf(n, 0) {
				continue
			}
			one := point{at: at, v: n, gap: !before.IsZero() && at.Sub(before) > p.step*3/2}
			before = at
			if c.stack != "" {
				one.base = pile[at]
				one.v += one.base
				pile[at] = one.v
			}
			c.points = append(c.points, one)
		}
		out = append(out, c)
	}
	return out
}

// scale fits the axes to what is drawn.
func (p *panel) scale(b box, curves []curve) axes {
	a := axes{box: b, from: p.from, to: p.now, low: math.Inf(1), high: math.Inf(-1), unit: p.FieldConfig.Defaults}
	for _, c := range curves {
		for _, one := range c.points {
			a.low, a.high = min(a.low, one.v, one.base), max(a.high, one.v)
			if c.stack == "" && c.fill == 0 {
				continue
			}
			a.low = min(a.low, one.base)
		}
	}
	if len(curves) > 0 {
		a.unit = curves[0].field
	}
	if a.low > a.high {
		a.low, a.high = 0, 1
	}
	if f := p.FieldConfig.Defaults; f.Min != nil {
		a.low = *f.Min
	}
	if f := p.FieldConfig.Defaults; f.Max != nil {
		a.high = *f.Max
	} else if soft := f.Custom.Number("axisSoftMax"); soft > a.high {
		a.high = soft
	}
	if a.high <= a.low {
		a.high = a.low + max(1, math.Abs(a.low)*0.1)
	}
	ticks := nice(a.low, a.high)
	if p.FieldConfig.Defaults.Max == nil {
		a.high = max(a.high, ticks[len(ticks)-1])
	}
	widest := 0.0
	for _, v := range ticks {
		widest = max(widest, p.width(letters{size: 10.5}, p.tick(a, v)))
	}
	a.box.x, a.box.w = b.x+widest+8, b.w-widest-14
	a.box.y, a.box.h = b.y+6, b.h-26
	return a
}

func (p *panel) tick(a axes, v float64) string {
	unit := a.unit
	unit.Decimals = nil
	if mapped(unit) {
		text, _ := unit.Shown(v, p.now)
		return text
	}
	return grafana.Format(unit.Unit, nil, v, p.now)
}

// nice are round numbers from low to high.
func nice(low, high float64) []float64 {
	raw := (high - low) / 4
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	step := power * 10
	for _, m := range []float64{1, 2, 2.5, 5} {
		if raw <= m*power*1.0001 {
			step = m * power
			break
		}
	}
	var out []float64
	for v := math.Floor(low/step) * step; ; v += step {
		v = math.Round(v/step) * step
		if v >= low-step*0.01 {
			out = append(out, v)
		}
		if v >= high-step*0.01 {
			return out
		}
	}
}

// grid draws the axes.
func (p *panel) grid(a axes) {
	l := letters{size: 10.5, color: faintColor}
	for _, v := range nice(a.low, a.high) {
		if v > a.high+1e-9 {
			break
		}
		y := a.y(v)
		p.line(gridColor, 1, [][2]float64{{a.box.x, y}, {a.box.x + a.box.w, y}})
		p.write(l, a.box.x-6, y, right, p.tick(a, v))
	}
	p.hours(a)
}

// hours are the labels of the axis of time.
func (p *panel) hours(a axes) {
	span := a.to.Sub(a.from)
	room := max(2, int(a.box.w/90))
	steps := []time.Duration{
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		24 * time.Hour, 2 * 24 * time.Hour, 4 * 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour,
	}
	i := slices.IndexFunc(steps, func(s time.Duration) bool { return int(span/s) <= room })
	if i < 0 {
		i = len(steps) - 1
	}
	form := "15:04"
	if steps[i] >= 24*time.Hour {
		form = "2 Jan"
	} else if span > 24*time.Hour {
		form = "2 Jan 15:04"
	}
	l := letters{size: 10.5, color: faintColor}
	for at := a.from.Truncate(steps[i]).Add(steps[i]); !at.After(a.to); at = at.Add(steps[i]) {
		x := a.x(at)
		p.line(gridColor, 1, [][2]float64{{x, a.box.y}, {x, a.box.y + a.box.h}})
		if x < a.box.x+a.box.w-14 {
			p.write(l, x, a.box.y+a.box.h+11, middle, at.Format(form))
		}
	}
}

// area fills what is below a line, or between it and the one that it is piled on.
func (p *panel) area(a axes, c curve) {
	if c.fill == 0 || c.field.Custom.Text("drawStyle") == "bars" {
		return
	}
	for _, run := range c.runs() {
		var top, bottom [][2]float64
		for _, one := range run {
			top = append(top, [2]float64{a.x(one.at), a.y(one.v)})
			bottom = append(bottom, [2]float64{a.x(one.at), a.y(max(one.base, a.low))})
		}
		slices.Reverse(bottom)
		p.polygon(pale(c.color, c.fill), append(top, bottom...))
	}
}

// runs are a line's parts without gaps.
func (c curve) runs() [][]point {
	var out [][]point
	for _, one := range c.points {
		if len(out) == 0 || one.gap && !c.field.Custom.Flag("spanNulls") {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], one)
	}
	return out
}

// trace draws a line, or bars, or points.
func (p *panel) trace(a axes, c curve) {
	style := c.field.Custom.Text("drawStyle")
	if style == "bars" {
		w := max(1.5, a.box.w*float64(p.step)/float64(a.to.Sub(a.from))*0.7)
		for _, one := range c.points {
			y, base := a.y(one.v), a.y(max(one.base, a.low))
			from, to := max(a.box.x, a.x(one.at)-w/2), min(a.box.x+a.box.w, a.x(one.at)+w/2)
			p.fill(box{from, y, to - from, base - y}, c.color)
		}
		return
	}
	width := cmp.Or(c.field.Custom.Number("lineWidth"), 1)
	for _, run := range c.runs() {
		var line [][2]float64
		for i, one := range run {
			if c.field.Custom.Text("lineInterpolation") == "stepAfter" && i > 0 {
				line = append(line, [2]float64{a.x(one.at), a.y(run[i-1].v)})
			}
			line = append(line, [2]float64{a.x(one.at), a.y(one.v)})
		}
		if style == "points" || len(run) == 1 {
			for _, at := range line {
				p.dot(c.color, at[0], at[1], 2.2)
			}
			continue
		}
		p.line(c.color, width, line)
	}
}

// limits draws thresholds where a panel shows them as lines.
func (p *panel) limits(a axes) {
	f := p.FieldConfig.Defaults
	if mode := f.Custom.Text("thresholdsStyle", "mode"); mode == "" || mode == "off" {
		return
	}
	for _, s := range f.Thresholds.Steps {
		if s.Value == nil || *s.Value <= a.low || *s.Value >= a.high {
			continue
		}
		c := paint(s.Color)
		for x := a.box.x; x < a.box.x+a.box.w; x += 10 {
			p.line(c, 1, [][2]float64{{x, a.y(*s.Value)}, {x + 6, a.y(*s.Value)}})
		}
	}
}
