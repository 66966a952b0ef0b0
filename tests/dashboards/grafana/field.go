// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Field is how a column of a frame is shown: the panel's defaults and what its overrides change. The error names a property that is
// not known here.
func (p Panel) Field(c Column, refID string) (Field, error) {
	f := p.FieldConfig.Defaults
	f.Custom = maps.Clone(f.Custom)
	for _, o := range p.FieldConfig.Overrides {
		hit, err := o.matches(c, refID)
		if err != nil {
			return f, err
		}
		if !hit {
			continue
		}
		for _, property := range o.Properties {
			if err := f.set(property.ID, property.Value); err != nil {
				return f, fmt.Errorf("override %s: %w", property.ID, err)
			}
		}
	}
	f.Hidden = f.Custom.Flag("hidden") || f.Custom.Flag("hideFrom", "viz")
	return f, nil
}

func (o Override) matches(c Column, refID string) (bool, error) {
	text, _ := o.Matcher.Options.(string)
	switch o.Matcher.ID {
	case "byName":
		return c.Title() == text || c.Name == text, nil
	case "byRegexp":
		return regexp.MatchString(expression(text), c.Title())
	case "byFrameRefID":
		return refID == text, nil
	case "byType":
		return (text == "number") == c.Numeric(), nil
	default:
		return false, fmt.Errorf("matcher %s is not known", o.Matcher.ID)
	}
}

// expression is one of JavaScript's, /text/flags or the text alone, as Go has it.
func expression(text string) string {
	end := strings.LastIndex(text, "/")
	if !strings.HasPrefix(text, "/") || end == 0 {
		return text
	}
	if flags := text[end+1:]; flags != "" {
		return "(?" + flags + ")" + text[1:end]
	}
	return text[1:end]
}

// Numeric says whether a column has numbers.
func (c Column) Numeric() bool {
	return slices.ContainsFunc(c.Values, func(v any) bool { _, ok := v.(float64); return ok })
}

func (f *Field) set(id string, value json.RawMessage) error {
	if custom, ok := strings.CutPrefix(id, "custom."); ok {
		var v any
		if err := json.Unmarshal(value, &v); err != nil {
			return err
		}
		if f.Custom == nil {
			f.Custom = Options{}
		}
		f.Custom[custom] = v
		return nil
	}
	into := map[string]any{
		"unit": &f.Unit, "displayName": &f.DisplayName, "decimals": &f.Decimals, "min": &f.Min, "max": &f.Max, "noValue": &f.NoValue,
		"mappings": &f.Mappings, "thresholds": &f.Thresholds, "color": &f.Color,
	}
	switch id {
	case "links", "description", "filterable":
		return nil
	}
	target, ok := into[id]
	if !ok {
		return fmt.Errorf("the property is not known")
	}
	if id == "mappings" {
		f.Mappings = nil
	}
	return json.Unmarshal(value, target)
}

// Shown is a value in words and the colour that mappings or thresholds give it, empty for none.
func (f Field) Shown(v any, now time.Time) (text, color string) {
	mapped, color, ok := f.mapped(v)
	if n, numeric := v.(float64); numeric {
		if color == "" {
			color = f.ThresholdColor(n)
		}
		if !ok || mapped == "" {
			mapped = Format(f.Unit, f.Decimals, n, now)
		}
		return mapped, color
	}
	if ok && mapped != "" {
		return mapped, color
	}
	switch v := v.(type) {
	case nil:
		return f.NoValue, color
	case time.Time:
		return v.Format("2006-01-02 15:04:05"), color
	default:
		return fmt.Sprint(v), color
	}
}

// ThresholdColor is the colour of a number by the field's thresholds.
func (f Field) ThresholdColor(v float64) string {
	low, high := 0.0, 100.0
	if f.Min != nil {
		low = *f.Min
	}
	if f.Max != nil {
		high = *f.Max
	}
	if f.Thresholds.Mode == "percentage" && high > low {
		v = (v - low) / (high - low) * 100
	}
	color := ""
	for _, s := range f.Thresholds.Steps {
		if s.Value == nil || v >= *s.Value {
			color = s.Color
		}
	}
	return color
}

// result is what a mapping makes of a value.
type result struct {
	Text  string `json:"text"`
	Color string `json:"color"`
}

func (f Field) mapped(v any) (text, color string, ok bool) {
	for _, m := range f.Mappings {
		if r, hit := m.of(v); hit {
			return r.Text, r.Color, true
		}
	}
	return "", "", false
}

func (m Mapping) of(v any) (result, bool) {
	switch m.Type {
	case "value":
		var o map[string]result
		if json.Unmarshal(m.Options, &o) != nil {
			return result{}, false
		}
		key := fmt.Sprint(v)
		if n, ok := v.(float64); ok {
			key = strconv.FormatFloat(n, 'f', -1, 64)
		}
		r, ok := o[key]
		return r, ok
	case "range":
		var o struct {
			From, To *float64
			Result   result
		}
		n, numeric := v.(float64)
		if json.Unmarshal(m.Options, &o) != nil || !numeric {
			return result{}, false
		}
		return o.Result, (o.From == nil || n >= *o.From) && (o.To == nil || n <= *o.To)
	case "regex":
		var o struct {
			Pattern string
			Result  result
		}
		s, text := v.(string)
		if json.Unmarshal(m.Options, &o) != nil || !text {
			return result{}, false
		}
		re, err := regexp.Compile(strings.Trim(o.Pattern, "/"))
		if err != nil || !re.MatchString(s) {
			return result{}, false
		}
		r := o.Result
		if r.Text != "" {
			r.Text = re.ReplaceAllString(s, r.Text)
		}
		return r, true
	case "special":
		var o struct {
			Match  string
			Result result
		}
		if json.Unmarshal(m.Options, &o) != nil {
			return result{}, false
		}
		n, numeric := v.(float64)
		nan := numeric && math.IsNaN(n)
		switch o.Match {
		case "null":
			return o.Result, v == nil
		case "nan":
			return o.Result, nan
		case "null+nan":
			return o.Result, v == nil || nan
		case "empty":
			return o.Result, v == ""
		}
	}
	return result{}, false
}
