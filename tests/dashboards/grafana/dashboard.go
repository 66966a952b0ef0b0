// SPDX-License-Identifier: Apache-2.0

// Package grafana reads a dashboard's JSON as Grafana does: what it asks of Prometheus, and what it makes of the answers.
// It knows the parts that our dashboards use, and says so where it meets another.
package grafana

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Dashboard is a dashboard in the classic schema.
type Dashboard struct {
	UID           string   `json:"uid"`
	Title         string   `json:"title"`
	Tags          []string `json:"tags"`
	Panels        []Panel  `json:"panels"`
	SchemaVersion int      `json:"schemaVersion"`
	Time          struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"time"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Name   string `json:"name"`
			Expr   string `json:"expr"`
			Target struct {
				Expr string `json:"expr"`
			} `json:"target"`
		} `json:"list"`
	} `json:"annotations"`
}

// Panel is one panel, or a row with the panels that it hides while it is collapsed.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description"`
	GridPos         GridPos          `json:"gridPos"`
	Targets         []Target         `json:"targets"`
	FieldConfig     FieldConfig      `json:"fieldConfig"`
	Options         Options          `json:"options"`
	Transformations []Transformation `json:"transformations"`
	Panels          []Panel          `json:"panels"`
	Interval        string           `json:"interval"`
	MaxDataPoints   float64          `json:"maxDataPoints"`
	TimeFrom        string           `json:"timeFrom"`
	Repeat          string           `json:"repeat"`
}

// GridPos is where a panel stands: the page has 24 columns.
type GridPos struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

// Target is one query of a panel.
type Target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
	Format       string `json:"format"`
	Instant      bool   `json:"instant"`
	Range        bool   `json:"range"`
	Hide         bool   `json:"hide"`
	Interval     string `json:"interval"`
}

// Asks is whether a target is an instant query, and whether it is a range query: a range one where it says neither.
func (t Target) Asks() (instant, ranged bool) { return t.Instant, t.Range || !t.Instant }

// FieldConfig is how values are shown.
type FieldConfig struct {
	Defaults  Field      `json:"defaults"`
	Overrides []Override `json:"overrides"`
}

// Field is how one value is shown.
type Field struct {
	Unit        string     `json:"unit"`
	DisplayName string     `json:"displayName"`
	Decimals    *int       `json:"decimals"`
	Min         *float64   `json:"min"`
	Max         *float64   `json:"max"`
	NoValue     string     `json:"noValue"`
	Mappings    []Mapping  `json:"mappings"`
	Thresholds  Thresholds `json:"thresholds"`
	Color       Color      `json:"color"`
	Custom      Options    `json:"custom"`
	// Hidden is custom.hidden or custom.hideFrom.viz.
	Hidden bool `json:"-"`
}

// Color is how a field gets its colour.
type Color struct {
	Mode       string `json:"mode"`
	FixedColor string `json:"fixedColor"`
}

// Thresholds are the values from which on another colour holds.
type Thresholds struct {
	Mode  string `json:"mode"`
	Steps []struct {
		Color string   `json:"color"`
		Value *float64 `json:"value"`
	} `json:"steps"`
}

// Mapping gives values words and colours.
type Mapping struct {
	Type    string          `json:"type"`
	Options json.RawMessage `json:"options"`
}

// Override changes how some fields are shown.
type Override struct {
	Matcher struct {
		ID      string `json:"id"`
		Options any    `json:"options"`
	} `json:"matcher"`
	Properties []struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	} `json:"properties"`
}

// Transformation is a step from answers to what is shown.
type Transformation struct {
	ID       string          `json:"id"`
	Disabled bool            `json:"disabled"`
	Options  json.RawMessage `json:"options"`
}

// Options are those of a panel's kind.
type Options map[string]any

// Text is an option that is a word, along a path of names.
func (o Options) Text(path ...string) string {
	v, _ := o.at(path).(string)
	return v
}

// Flag is an option that is true or false.
func (o Options) Flag(path ...string) bool {
	v, _ := o.at(path).(bool)
	return v
}

// Number is an option that is a number, 0 where it is not there.
func (o Options) Number(path ...string) float64 {
	v, _ := o.at(path).(float64)
	return v
}

// Texts is an option that is a list of words.
func (o Options) Texts(path ...string) []string {
	list, _ := o.at(path).([]any)
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func (o Options) at(path []string) any {
	var v any = map[string]any(o)
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}

// Variable is one of the dashboard's variables.
type Variable struct {
	Name       string          `json:"name"`
	Label      string          `json:"label"`
	Type       string          `json:"type"`
	Query      json.RawMessage `json:"query"`
	Definition string          `json:"definition"`
	Regex      string          `json:"regex"`
	Multi      bool            `json:"multi"`
	IncludeAll bool            `json:"includeAll"`
	AllValue   string          `json:"allValue"`
	Hide       int             `json:"hide"`
	Current    struct {
		Value any `json:"value"`
	} `json:"current"`
}

// Text is a variable's query, which stands for itself or in an object.
func (v Variable) Text() string {
	var s string
	if json.Unmarshal(v.Query, &s) == nil {
		return s
	}
	var o struct {
		Query string `json:"query"`
	}
	_ = json.Unmarshal(v.Query, &o)
	return cmp.Or(o.Query, v.Definition)
}

// Load reads a dashboard from a file.
func Load(file string) (*Dashboard, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read a dashboard: %w", err)
	}
	var d Dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%s is no dashboard: %w", file, err)
	}
	return &d, nil
}

// All are the dashboard's panels from top to bottom, those of rows after the row.
func (d *Dashboard) All() []Panel {
	var out []Panel
	for _, p := range d.Panels {
		out = append(out, p)
		out = append(out, p.Panels...)
	}
	slices.SortStableFunc(out, func(a, b Panel) int {
		return cmp.Or(cmp.Compare(a.GridPos.Y, b.GridPos.Y), cmp.Compare(a.GridPos.X, b.GridPos.X))
	})
	return out
}

// Variable is the variable of that name.
func (d *Dashboard) Variable(name string) (Variable, bool) {
	i := slices.IndexFunc(d.Templating.List, func(v Variable) bool { return v.Name == name })
	if i < 0 {
		return Variable{}, false
	}
	return d.Templating.List[i], true
}

// Name is the part of the title behind the slash.
func (d *Dashboard) Name() string {
	_, name, ok := strings.Cut(d.Title, "/")
	if !ok {
		return d.Title
	}
	return strings.TrimSpace(name)
}
