// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// problemLimit bounds what one look at a hopeless file prints.
const problemLimit = 20

// decoder reads YAML nodes and collects problems, so that one look at a scenario
// shows all of them, each with its line.
type decoder struct {
	file string
	errs []error
}

// unknownWordError is a name that is not among the known ones.
type unknownWordError struct {
	what, word string
	known      []string
}

func (e *unknownWordError) Error() string {
	return fmt.Sprintf("unknown %s %q (%s)", e.what, e.word, suggest(e.word, e.known))
}

// at records a problem at a line.
func (d *decoder) at(line int, format string, args ...any) {
	if len(d.errs) < problemLimit {
		d.errs = append(d.errs, fmt.Errorf("%s:%d: "+format, append([]any{d.file, line}, args...)...))
	}
}

func (d *decoder) err() error { return errors.Join(d.errs...) }

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// document is the root of a one-document file.
func (d *decoder) document(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			d.at(1, "the scenario is empty (give at least gpus)")
			return nil
		}
		text, line := err.Error(), 1
		m := yamlLine.FindStringSubmatch(text)
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		d.at(line, "not YAML: %s (check indentation and quotes)", strings.TrimPrefix(text, m[0]))
		return nil
	}
	if len(doc.Content) != 1 {
		d.at(1, "the scenario is empty (give at least gpus)")
		return nil
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		d.at(max(more.Line, 1), "a second document (one scenario per file)")
		return nil
	}
	return doc.Content[0]
}

type keys map[string]func(*yaml.Node)

// mapping calls the function of each key, in the file's order.
func (d *decoder) mapping(n *yaml.Node, what string, known keys) {
	if n.Kind != yaml.MappingNode {
		d.at(n.Line, "%s must be a mapping, not %s (write key: value)", what, kindWord(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			d.at(key.Line, "unknown key %q in %s (%s)", key.Value, what, suggest(key.Value, names))
		case seen[key.Value]:
			d.at(key.Line, "key %q twice in %s (keep one)", key.Value, what)
		case value.Kind == yaml.AliasNode:
			d.at(value.Line, "an alias at %q (write the value out)", key.Value)
		default:
			seen[key.Value] = true
			read(value)
		}
	}
}

// list calls read for each element.
func (d *decoder) list(n *yaml.Node, what string, read func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		d.at(n.Line, "%s must be a list, not %s (write - item or [item, item])", what, kindWord(n))
		return
	}
	for _, c := range n.Content {
		if c.Kind == yaml.AliasNode {
			d.at(c.Line, "an alias in %s (write the value out)", what)
			continue
		}
		read(c)
	}
}

func kindWord(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	default:
		return strconv.Quote(n.Value)
	}
}

// text is a scalar's text; numbers count as text.
func (d *decoder) text(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.at(n.Line, "%s must be text, not %s", what, kindWord(n))
		return ""
	}
	return n.Value
}

func (d *decoder) texts(n *yaml.Node, what string) []string {
	out := []string{}
	d.list(n, what, func(c *yaml.Node) { out = append(out, d.text(c, what)) })
	return out
}

// word is a scalar that must be one of the known words.
func (d *decoder) word(n *yaml.Node, what string, known ...string) string {
	w := d.text(n, what)
	if w != "" && !slices.Contains(known, w) {
		d.at(n.Line, "%v", &unknownWordError{what: what, word: w, known: known})
		return ""
	}
	return w
}

func (d *decoder) boolean(n *yaml.Node, what string) bool {
	switch d.text(n, what) {
	case "true":
		return true
	case "false", "":
		return false
	}
	d.at(n.Line, "%s must be true or false, not %q", what, n.Value)
	return false
}

func (d *decoder) integer(n *yaml.Node, what string, low, high int) int {
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || v < low || v > high {
		d.at(n.Line, "%s must be a whole number from %d to %d, not %s", what, low, high, kindWord(n))
		return low
	}
	return v
}

func (d *decoder) number(n *yaml.Node, what string) float64 {
	v, err := strconv.ParseFloat(n.Value, 64)
	if n.Kind != yaml.ScalarNode || err != nil || math.IsNaN(v) || math.Abs(v) > 1e15 {
		d.at(n.Line, "%s must be a number, not %s", what, kindWord(n))
		return 0
	}
	return v
}

// longest is the longest time a scenario can name: a year.
const longest = 366 * 24 * time.Hour

func (d *decoder) duration(n *yaml.Node, what string) time.Duration {
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || v < 0 || v > longest {
		d.at(n.Line, "%s must be a time such as 90s or 5m, not %s", what, kindWord(n))
		return 0
	}
	return v
}

// durations is a time, or a range of times as "1m..4m".
func (d *decoder) durations(n *yaml.Node, what string) (low, high time.Duration) {
	from, to, isRange := strings.Cut(n.Value, "..")
	if !isRange {
		low = d.duration(n, what)
		return low, low
	}
	part := *n
	part.Value = from
	low = d.duration(&part, what)
	part.Value = to
	high = d.duration(&part, what)
	if high < low {
		d.at(n.Line, "%s goes from %s down to %s (write the shorter first)", what, low, high)
		return low, low
	}
	return low, high
}

// indices is a set of GPU numbers: 3, "2-5", or a list of either; ascending.
func (d *decoder) indices(n *yaml.Node, what string) []int {
	var out []int
	one := func(c *yaml.Node) {
		from, to, isRange := strings.Cut(d.text(c, what), "-")
		low, err := strconv.Atoi(from)
		high := low
		if err == nil && isRange {
			high, err = strconv.Atoi(to)
		}
		if err != nil || low < 0 || high < low || high > gpuLimit {
			d.at(c.Line, "%s must be GPU numbers such as 3 or 2-5, not %s", what, kindWord(c))
			return
		}
		for i := low; i <= high; i++ {
			out = append(out, i)
		}
	}
	if n.Kind == yaml.SequenceNode {
		d.list(n, what, one)
	} else {
		one(n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// suggest is a hint: the nearest known word, or all of them where they are few.
func suggest(word string, known []string) string {
	best, distance := "", len(word)/2+1
	for _, k := range known {
		if n := editDistance(strings.ToLower(word), strings.ToLower(k)); n < distance {
			best, distance = k, n
		}
	}
	switch {
	case best != "":
		return "did you mean " + best + "?"
	case len(known) == 0:
		return "there are none"
	case len(known) > 24:
		return "known: " + strings.Join(known[:24], ", ") + ", …"
	default:
		return "known: " + strings.Join(known, ", ")
	}
}

// editDistance is Levenshtein's; words beyond any name's length are not compared.
func editDistance(a, b string) int {
	if len(a) > 80 || len(b) > 80 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
