// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Transform does a panel's transformations, one after the other. The error names one that is not known here.
func Transform(frames []Frame, steps []Transformation) ([]Frame, error) {
	for _, s := range steps {
		if s.Disabled {
			continue
		}
		var err error
		if frames, err = step(frames, s); err != nil {
			return nil, fmt.Errorf("transformation %s: %w", s.ID, err)
		}
	}
	return frames, nil
}

func step(frames []Frame, s Transformation) ([]Frame, error) {
	switch s.ID {
	case "merge":
		return merge(frames), nil
	case "organize":
		return organize(frames, s.Options)
	case "sortBy":
		return sortBy(frames, s.Options)
	case "groupingToMatrix":
		return matrix(frames, s.Options)
	default:
		return nil, fmt.Errorf("not known")
	}
}

// merge makes one frame of all: rows that have the same in each column that all frames have become one, unless they differ elsewhere.
func merge(frames []Frame) []Frame {
	frames = slices.DeleteFunc(slices.Clone(frames), func(f Frame) bool { return f.Rows() == 0 })
	if len(frames) < 2 {
		return frames
	}
	var names []string
	in := map[string]int{}
	for _, f := range frames {
		for _, c := range f.Fields {
			if in[c.Title()]++; in[c.Title()] == 1 {
				names = append(names, c.Title())
			}
		}
	}
	var rows []map[string]any
	byKey := map[string][]int{}
	for _, f := range frames {
		for i := range f.Rows() {
			row := map[string]any{}
			for _, c := range f.Fields {
				if c.Values[i] != nil {
					row[c.Title()] = c.Values[i]
				}
			}
			var key []string
			for _, n := range names {
				if in[n] == len(frames) {
					key = append(key, fmt.Sprint(row[n]))
				}
			}
			k := strings.Join(key, "\x00")
			if !mergeInto(rows, byKey[k], row) {
				byKey[k] = append(byKey[k], len(rows))
				rows = append(rows, row)
			}
		}
	}
	out := Frame{}
	for _, n := range names {
		c := Column{Name: n}
		for _, row := range rows {
			c.Values = append(c.Values, row[n])
		}
		out.Fields = append(out.Fields, c)
	}
	return []Frame{out}
}

// mergeInto adds a row to the first of the candidates that says nothing else.
func mergeInto(rows []map[string]any, candidates []int, row map[string]any) bool {
	for _, i := range candidates {
		fits := true
		for n, v := range row {
			if had, ok := rows[i][n]; ok && had != v {
				fits = false
			}
		}
		if fits {
			maps.Copy(rows[i], row)
			return true
		}
	}
	return false
}

func decode(options json.RawMessage, into any) error {
	if len(options) == 0 {
		return nil
	}
	return json.Unmarshal(options, into)
}

// organize hides, orders and renames columns.
func organize(frames []Frame, options json.RawMessage) ([]Frame, error) {
	var o struct {
		ExcludeByName map[string]bool    `json:"excludeByName"`
		IncludeByName map[string]bool    `json:"includeByName"`
		IndexByName   map[string]float64 `json:"indexByName"`
		RenameByName  map[string]string  `json:"renameByName"`
	}
	if err := decode(options, &o); err != nil {
		return nil, err
	}
	var out []Frame
	for _, f := range frames {
		g := Frame{RefID: f.RefID}
		for _, c := range f.Fields {
			if o.ExcludeByName[c.Title()] || len(o.IncludeByName) > 0 && !o.IncludeByName[c.Title()] {
				continue
			}
			g.Fields = append(g.Fields, c)
		}
		rank := func(c Column) float64 {
			if i, ok := o.IndexByName[c.Title()]; ok {
				return i
			}
			return math.Inf(1)
		}
		slices.SortStableFunc(g.Fields, func(a, b Column) int { return cmp.Compare(rank(a), rank(b)) })
		for i := range g.Fields {
			c := &g.Fields[i]
			if name := o.RenameByName[c.Title()]; name != "" {
				c.Name, c.Display = name, name
			}
		}
		out = append(out, g)
	}
	return out, nil
}

func less(a, b any) int {
	if a == nil || b == nil {
		// What is not there comes before all that is.
		return cmp.Compare(boolean(a != nil), boolean(b != nil))
	}
	switch a := a.(type) {
	case float64:
		if b, ok := b.(float64); ok {
			return cmp.Compare(a, b)
		}
	case time.Time:
		if b, ok := b.(time.Time); ok {
			return a.Compare(b)
		}
	case string:
		if b, ok := b.(string); ok {
			return cmp.Compare(a, b)
		}
	}
	return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

func sortBy(frames []Frame, options json.RawMessage) ([]Frame, error) {
	var o struct {
		Sort []struct {
			Field string `json:"field"`
			Desc  bool   `json:"desc"`
		} `json:"sort"`
	}
	if err := decode(options, &o); err != nil {
		return nil, err
	}
	if len(o.Sort) == 0 {
		return frames, nil
	}
	var out []Frame
	for _, f := range frames {
		i := slices.IndexFunc(f.Fields, func(c Column) bool { return c.Title() == o.Sort[0].Field })
		if i < 0 {
			return nil, fmt.Errorf("no column %q to sort by", o.Sort[0].Field)
		}
		out = append(out, f.Sorted(i, o.Sort[0].Desc))
	}
	return out, nil
}

// Sorted is the frame in the order of one column.
func (f Frame) Sorted(by int, desc bool) Frame {
	order := make([]int, f.Rows())
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		n := less(f.Fields[by].Values[a], f.Fields[by].Values[b])
		if desc {
			return -n
		}
		return n
	})
	out := Frame{RefID: f.RefID}
	for _, c := range f.Fields {
		s := c
		s.Values = make([]any, len(order))
		for i, j := range order {
			s.Values[i] = c.Values[j]
		}
		out.Fields = append(out.Fields, s)
	}
	return out
}

// Calc is one number for all of a column, as a legend or a stat shows it; false where there is none.
func Calc(name string, c Column) (float64, bool) {
	var values []float64
	for _, v := range c.Values {
		if f, ok := v.(float64); ok && !math.IsNaN(f) {
			values = append(values, f)
		}
	}
	if len(values) == 0 {
		return 0, false
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	switch name {
	case "max":
		return slices.Max(values), true
	case "min":
		return slices.Min(values), true
	case "mean":
		return sum / float64(len(values)), true
	case "sum":
		return sum, true
	case "count":
		return float64(len(values)), true
	case "first", "firstNotNull":
		return values[0], true
	case "range":
		return slices.Max(values) - slices.Min(values), true
	case "diff":
		return values[len(values)-1] - values[0], true
	default:
		return values[len(values)-1], true
	}
}

// Renamed is what a transformation calls a column, where it calls it something else.
func Renamed(s Transformation, name string) (string, bool) {
	if s.ID != "organize" || s.Disabled {
		return "", false
	}
	var o struct {
		RenameByName map[string]string `json:"renameByName"`
	}
	if err := decode(s.Options, &o); err != nil || o.RenameByName[name] == "" {
		return "", false
	}
	return o.RenameByName[name], true
}
