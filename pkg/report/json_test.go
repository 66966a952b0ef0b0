// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// schema is as much of JSON Schema as etc/report.schema.json uses; an unknown word in it is an error.
type schema struct {
	root map[string]any
}

func readSchema(t *testing.T) schema {
	t.Helper()
	text, err := os.ReadFile("../../etc/report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s.root); err != nil {
		t.Fatal(err)
	}
	return s
}

// check lists how v breaks rule.
func (s schema) check(path string, rule map[string]any, v any) []string {
	var found []string
	say := func(format string, args ...any) { found = append(found, path+": "+fmt.Sprintf(format, args...)) }
	for word, arg := range rule {
		switch word {
		case "$schema", "$id", "$defs", "title", "description", "format":
		case "$ref":
			name, ok := strings.CutPrefix(arg.(string), "#/$defs/")
			def, known := s.root["$defs"].(map[string]any)[name].(map[string]any)
			if !ok || !known {
				say("no such definition: %v", arg)
				continue
			}
			found = append(found, s.check(path, def, v)...)
		case "const":
			if !reflect.DeepEqual(arg, v) {
				say("is %v, want %v", v, arg)
			}
		case "enum":
			if !slices.Contains(arg.([]any), v) {
				say("is %v, want one of %v", v, arg)
			}
		case "type":
			if !slices.ContainsFunc(listed(arg), func(want any) bool { return isOf(want.(string), v) }) {
				say("is %T, want %v", v, arg)
			}
		case "pattern":
			if text, ok := v.(string); ok && !regexp.MustCompile(arg.(string)).MatchString(text) {
				say("%q does not match %s", text, arg)
			}
		case "required", "properties", "additionalProperties", "items":
		default:
			say("the schema has the word %q, which this test does not know", word)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		found = append(found, s.members(path, rule, v)...)
	case []any:
		if items, ok := rule["items"].(map[string]any); ok {
			for i, element := range v {
				found = append(found, s.check(fmt.Sprintf("%s[%d]", path, i), items, element)...)
			}
		}
	}
	return found
}

func (s schema) members(path string, rule, v map[string]any) []string {
	var found []string
	required, _ := rule["required"].([]any)
	for _, name := range required {
		if _, there := v[name.(string)]; !there {
			found = append(found, fmt.Sprintf("%s: lacks %s", path, name))
		}
	}
	properties, _ := rule["properties"].(map[string]any)
	for name, member := range v {
		if of, ok := properties[name].(map[string]any); ok {
			found = append(found, s.check(path+"."+name, of, member)...)
			continue
		}
		switch more := rule["additionalProperties"].(type) {
		case bool:
			found = append(found, fmt.Sprintf("%s: has %s, which the schema does not", path, name))
		case map[string]any:
			found = append(found, s.check(path+"."+name, more, member)...)
		}
	}
	return found
}

func listed(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

func isOf(want string, v any) bool {
	switch v := v.(type) {
	case nil:
		return want == "null"
	case bool:
		return want == "boolean"
	case string:
		return want == "string"
	case float64:
		return want == "number" || want == "integer" && v == math.Trunc(v)
	case []any:
		return want == "array"
	case map[string]any:
		return want == "object"
	}
	return false
}

func TestTheJSONIsAsItsSchemaSays(t *testing.T) {
	s := readSchema(t)
	bare := brief(march(t))
	bare.Currency, bare.PolicyVersion, bare.Nodes[0].Cluster = "", "", ""
	bare.Nodes[0].Created = time.Time{}
	bare.Rows[0].Bases = nil
	for name, b := range map[string]func(io.Writer) error{
		"all":     func(w io.Writer) error { return JSON(w, brief(march(t)), Options{Items: true, Generator: "x"}) },
		"bare":    func(w io.Writer) error { return JSON(w, bare, Options{}) },
		"hostile": func(w io.Writer) error { return JSON(w, brief(hostile(t)), Options{Items: true}) },
	} {
		var v any
		if err := json.Unmarshal([]byte(written(t, b)), &v); err != nil {
			t.Fatal(err)
		}
		for i, broken := range s.check("", s.root, v) {
			if i == 10 {
				break
			}
			t.Errorf("%s: %s", name, broken)
		}
	}
}

func TestTheSchemaSeesWhatIsWrong(t *testing.T) {
	s := readSchema(t)
	var v map[string]any
	if err := json.Unmarshal([]byte(written(t, func(w io.Writer) error { return JSON(w, brief(march(t)), Options{}) })), &v); err != nil {
		t.Fatal(err)
	}
	v["capacity_gpu_hours"] = 5944.0
	v["surprise"] = true
	delete(v, "zone")
	v["rows"].([]any)[0].(map[string]any)["kind"] = "lent"
	if found := s.check("", s.root, v); len(found) != 4 {
		t.Errorf("4 mistakes were made, seen were %d: %s", len(found), strings.Join(found, "; "))
	}
}

func TestAmountsInJSONAreExact(t *testing.T) {
	var d struct {
		Total struct {
			TotalCost string `json:"total_cost"`
		} `json:"total"`
		Rows []struct {
			Items []struct {
				GPU int64 `json:"gpu_microseconds"`
			} `json:"items"`
		} `json:"rows"`
	}
	b := brief(march(t))
	if err := json.Unmarshal([]byte(written(t, func(w io.Writer) error { return JSON(w, b, Options{Items: true}) })), &d); err != nil {
		t.Fatal(err)
	}
	if d.Total.TotalCost != b.Total.TotalCost.String() {
		t.Errorf("the total is %q, want %s", d.Total.TotalCost, b.Total.TotalCost)
	}
	for i := range b.Rows {
		for j := range b.Rows[i].Items {
			if d.Rows[i].Items[j].GPU != b.Rows[i].Items[j].GPU {
				t.Errorf("item %d of row %d has %d GPU-microseconds, want %d", j, i, d.Rows[i].Items[j].GPU, b.Rows[i].Items[j].GPU)
			}
		}
	}
}
