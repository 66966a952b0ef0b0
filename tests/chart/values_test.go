// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// value is one of the chart's values: a leaf, which is set as a whole, or the heading of several.
type value struct {
	path, comment, standard string
	heading                 bool
}

// documentedValues are the leaves of values.yaml in their order. A mapping whose keys have no comments is a leaf.
func documentedValues(t *testing.T) []value {
	t.Helper()
	data, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var out []value
	collect(&out, "", doc.Content[0])
	return out
}

func collect(out *[]value, prefix string, mapping *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, v := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		if v.Kind == yaml.MappingNode && hasSection(v) {
			if heading := words(key.HeadComment); heading != "" {
				*out = append(*out, value{path: path, comment: heading, heading: true})
			}
			collect(out, path+".", v)
			continue
		}
		*out = append(*out, value{path: path, comment: words(key.HeadComment), standard: flow(v)})
	}
}

// hasSection says whether a mapping is one of values with comments, or of such mappings.
func hasSection(mapping *yaml.Node) bool {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].HeadComment != "" || mapping.Content[i+1].Kind == yaml.MappingNode && hasSection(mapping.Content[i+1]) {
			return true
		}
	}
	return false
}

// words are a comment's last paragraph, on one line.
func words(comment string) string {
	paragraphs := strings.Split(comment, "\n\n")
	lines := strings.Split(paragraphs[len(paragraphs)-1], "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(lines[i]), "#"))
	}
	return strings.Join(lines, " ")
}

// flow is a value on one line.
func flow(v *yaml.Node) string {
	copied := *v
	var style func(n *yaml.Node)
	style = func(n *yaml.Node) {
		n.HeadComment = ""
		if n.Kind != yaml.ScalarNode {
			n.Style = yaml.FlowStyle
		}
		for _, c := range n.Content {
			style(c)
		}
	}
	style(&copied)
	text, err := yaml.Marshal(&copied)
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

func TestEveryValueHasAComment(t *testing.T) {
	for _, v := range documentedValues(t) {
		if v.comment == "" {
			t.Errorf("%s has none", v.path)
		}
	}
}

// usedValues are what the templates ask of the values, with the short names that they give to parts of them written out.
func usedValues(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chartDir + "/templates/*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	asked := regexp.MustCompile(`\.Values((?:\.\w+)+)`)
	var out []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(strings.ReplaceAll(string(data), "$v := .Values -", "-"), "$v.", ".Values.")
		for _, m := range regexp.MustCompile(`\$(\w+) := \.Values\.(\w+) -?\}\}`).FindAllStringSubmatch(text, -1) {
			text = strings.ReplaceAll(text, m[0], "")
			text = regexp.MustCompile(`\$`+m[1]+`\.`).ReplaceAllString(text, ".Values."+m[2]+".")
		}
		for _, m := range asked.FindAllStringSubmatch(text, -1) {
			out = append(out, strings.TrimPrefix(m[1], "."))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// covers says whether a part of the values is, or is within, or has, another.
func covers(path, other string) bool {
	return path == other || strings.HasPrefix(path, other+".")
}

func TestEveryValueIsUsedAndEveryUsedOneIsThere(t *testing.T) {
	used, there := usedValues(t), documentedValues(t)
	for _, v := range there {
		if !slices.ContainsFunc(used, func(u string) bool { return covers(v.path, u) || covers(u, v.path) }) {
			t.Errorf("no template uses %s", v.path)
		}
	}
	for _, u := range used {
		if !slices.ContainsFunc(there, func(v value) bool { return covers(u, v.path) || covers(v.path, u) }) {
			t.Errorf("a template uses %s, which values.yaml does not have", u)
		}
	}
}

func TestTheSchemaHasTheValuesAndNoOthers(t *testing.T) {
	data, err := os.ReadFile(chartDir + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	there := documentedValues(t)
	var walk func(prefix string, s map[string]any)
	walk = func(prefix string, s map[string]any) {
		if strict := s["additionalProperties"] == false; !strict {
			t.Errorf("%q takes keys that it does not know", prefix)
		}
		for key, p := range mapAt(s, "properties") {
			path := prefix + key
			inner := slices.ContainsFunc(there, func(v value) bool { return strings.HasPrefix(v.path, path+".") })
			leaf := slices.ContainsFunc(there, func(v value) bool { return v.path == path })
			switch {
			case path == "global" || path == "enabled": // a parent chart's
			case inner:
				walk(path+".", p.(map[string]any))
			case !leaf:
				t.Errorf("the schema has %s, values.yaml has not", path)
			}
		}
	}
	walk("", schema)
}

func TestTheTableOfValuesGolden(t *testing.T) {
	const file = top + "/docs/helm.md"
	const begin, end = "<!-- from values.yaml, by make update -->\n", "<!-- to here -->\n"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", file)
	}
	var table strings.Builder
	table.WriteString("| value | default | |\n|---|---|---|\n")
	for _, v := range documentedValues(t) {
		if v.heading {
			fmt.Fprintf(&table, "| **%s** | | %s |\n", v.path, v.comment)
			continue
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", v.path, v.standard, strings.ReplaceAll(v.comment, "|", "\\|"))
	}
	golden(t, file, before+begin+table.String()+end+after)
}
