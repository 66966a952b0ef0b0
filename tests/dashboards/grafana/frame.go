// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"cmp"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// Frame is a table of values: what a query answers, and what transformations make of it.
type Frame struct {
	RefID  string
	Fields []Column
}

// Column is a field of a frame. Values are float64, string, time.Time, or nil where there is none.
type Column struct {
	Name string
	// Display is the name that the legend gives it.
	Display string
	Labels  map[string]string
	Values  []any
}

// Title is what a column is called where nobody says otherwise.
func (c Column) Title() string { return cmp.Or(c.Display, c.Name) }

// Rows is how many rows the frame has.
func (f Frame) Rows() int {
	if len(f.Fields) == 0 {
		return 0
	}
	return len(f.Fields[0].Values)
}

// Names of the columns that Grafana itself makes.
const (
	TimeColumn  = "Time"
	ValueColumn = "Value"
)

// Last is the last value of a column that is there.
func (c Column) Last() (float64, bool) {
	for _, v := range slices.Backward(c.Values) {
		if f, ok := v.(float64); ok && !math.IsNaN(f) {
			return f, true
		}
	}
	return 0, false
}

// Frames are the answer of a target as Grafana's data source for Prometheus makes it. In a panel with several targets alone says
// that this is the only one.
func Frames(t Target, v any, alone bool) []Frame {
	var m promql.Matrix
	switch v := v.(type) {
	case promql.Vector:
		for _, s := range v {
			m = append(m, promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{T: s.T, F: s.F}}})
		}
	case promql.Matrix:
		m = v
	case promql.Scalar:
		m = promql.Matrix{{Floats: []promql.FPoint{{T: v.T, F: v.V}}}}
	}
	if t.Format == "table" {
		return []Frame{table(t, m, alone)}
	}
	var out []Frame
	for _, s := range m {
		f := Frame{RefID: t.RefID, Fields: []Column{{Name: TimeColumn}, {Name: ValueColumn, Labels: s.Metric.Map(), Display: Legend(t.LegendFormat, s.Metric)}}}
		for _, p := range s.Floats {
			f.Fields[0].Values = append(f.Fields[0].Values, time.UnixMilli(p.T).UTC())
			f.Fields[1].Values = append(f.Fields[1].Values, p.F)
		}
		out = append(out, f)
	}
	return out
}

// table is all series in one frame: a column for each label.
func table(t Target, m promql.Matrix, alone bool) Frame {
	names := map[string]bool{}
	for _, s := range m {
		s.Metric.Range(func(l labels.Label) { names[l.Name] = true })
	}
	value := ValueColumn
	if !alone {
		value += " #" + t.RefID
	}
	f := Frame{RefID: t.RefID, Fields: []Column{{Name: TimeColumn}}}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f.Fields = append(f.Fields, Column{Name: name})
	}
	f.Fields = append(f.Fields, Column{Name: value})
	for _, s := range m {
		for _, p := range s.Floats {
			for i := range f.Fields {
				c := &f.Fields[i]
				switch {
				case i == 0:
					c.Values = append(c.Values, time.UnixMilli(p.T).UTC())
				case i == len(f.Fields)-1:
					c.Values = append(c.Values, p.F)
				case s.Metric.Has(c.Name):
					c.Values = append(c.Values, s.Metric.Get(c.Name))
				default:
					c.Values = append(c.Values, nil)
				}
			}
		}
	}
	return f
}

var legendLabel = regexp.MustCompile(`\{\{\s*(.+?)\s*\}\}`)

// LegendLabels are the labels that a legend shows.
func LegendLabels(format string) []string {
	var out []string
	for _, m := range legendLabel.FindAllStringSubmatch(format, -1) {
		out = append(out, m[1])
	}
	return out
}

// Legend is a series' name in a legend.
func Legend(format string, l labels.Labels) string {
	if format == "" || format == "__auto" {
		return auto(l)
	}
	return strings.TrimSpace(legendLabel.ReplaceAllStringFunc(format, func(ref string) string {
		return l.Get(legendLabel.FindStringSubmatch(ref)[1])
	}))
}

// auto is the name that Grafana gives a series by itself: the value of its only label, or all of them.
func auto(l labels.Labels) string {
	only, n := "", 0
	l.Range(func(l labels.Label) {
		if l.Name != model.MetricNameLabel {
			only, n = l.Value, n+1
		}
	})
	switch n {
	case 0:
		return cmp.Or(l.Get(model.MetricNameLabel), ValueColumn)
	case 1:
		return only
	default:
		return l.String()
	}
}

// Has says whether a frame has a label, or a column for it.
func (f Frame) Has(label string) bool {
	return slices.ContainsFunc(f.Fields, func(c Column) bool {
		_, ok := c.Labels[label]
		return ok || c.Name == label
	})
}
