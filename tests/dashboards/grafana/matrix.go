// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"encoding/json"
	"fmt"
	"slices"
)

// matrix makes a row of each value of one column, and a column of each value of another.
func matrix(frames []Frame, options json.RawMessage) ([]Frame, error) {
	o := struct {
		ColumnField string `json:"columnField"`
		RowField    string `json:"rowField"`
		ValueField  string `json:"valueField"`
		EmptyValue  string `json:"emptyValue"`
	}{ColumnField: TimeColumn, RowField: TimeColumn, ValueField: ValueColumn}
	if err := decode(options, &o); err != nil {
		return nil, err
	}
	if len(frames) != 1 {
		return frames, nil
	}
	field := func(name string) (Column, error) {
		i := slices.IndexFunc(frames[0].Fields, func(c Column) bool { return c.Title() == name })
		if i < 0 {
			return Column{}, fmt.Errorf("no column %q", name)
		}
		return frames[0].Fields[i], nil
	}
	if frames[0].Rows() == 0 {
		return frames, nil
	}
	across, err := field(o.ColumnField)
	if err != nil {
		return nil, err
	}
	down, err := field(o.RowField)
	if err != nil {
		return nil, err
	}
	values, err := field(o.ValueField)
	if err != nil {
		return nil, err
	}
	out := Frame{RefID: frames[0].RefID, Fields: []Column{{Name: o.RowField + `\` + o.ColumnField}}}
	for i := range values.Values {
		row := slices.Index(out.Fields[0].Values, down.Values[i])
		if row < 0 {
			row = len(out.Fields[0].Values)
			out.Fields[0].Values = append(out.Fields[0].Values, down.Values[i])
			for j := 1; j < len(out.Fields); j++ {
				out.Fields[j].Values = append(out.Fields[j].Values, empty(o.EmptyValue))
			}
		}
		name := fmt.Sprint(across.Values[i])
		column := slices.IndexFunc(out.Fields, func(c Column) bool { return c.Name == name })
		if column < 0 {
			column = len(out.Fields)
			out.Fields = append(out.Fields, Column{Name: name, Values: slices.Repeat([]any{empty(o.EmptyValue)}, len(out.Fields[0].Values))})
		}
		out.Fields[column].Values[row] = values.Values[i]
	}
	return []Frame{out}, nil
}

func empty(word string) any {
	switch word {
	case "zero":
		return 0.0
	case "empty":
		return ""
	default:
		return nil
	}
}
