// SPDX-License-Identifier: Apache-2.0

package prices

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"
	"go.yaml.in/yaml/v3"
)

// Problem is what is wrong, or strange, in one line of a file.
type Problem struct {
	File string
	// Line is 0 where it concerns the whole file.
	Line int
	Text string
}

// String is the problem with its place, as compilers write it.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
}

// ProblemError is a Problem for which a file cannot be used.
type ProblemError struct{ Problem }

// Error is the problem with its place.
func (e *ProblemError) Error() string { return e.String() }

const (
	// maxSize bounds a file: thousands of entries.
	maxSize = 1 << 20
	// maxProblems are told at once.
	maxProblems = 50
	// maxEntries bounds a list, since each entry is held against each.
	maxEntries = 2000
)

// reader walks a YAML document and collects all that is wrong.
type reader struct {
	file     string
	problems []Problem
}

func (r *reader) fault(line int, format string, args ...any) {
	r.problems = append(r.problems, Problem{File: r.file, Line: line, Text: fmt.Sprintf(format, args...)})
}

// err is all problems in the order of lines.
func (r *reader) err() error {
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
	r.problems = slices.Compact(r.problems)
	var errs []error
	for i, p := range r.problems {
		if i == maxProblems {
			errs = append(errs, fmt.Errorf("%s: %d problems more", r.file, len(r.problems)-i))
			break
		}
		errs = append(errs, &ProblemError{p})
	}
	return errors.Join(errs...)
}

// document is the one document of data, nil where there is a problem.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > maxSize {
		r.fault(0, "it has %d bytes, and may have %d", len(data), maxSize)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := decoder.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		r.fault(0, "it is empty")
		return nil
	case err != nil:
		r.fault(0, "it is no YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		r.fault(0, "it has more than one document: split the file")
	}
	if len(doc.Content) != 1 {
		r.fault(0, "it is empty")
		return nil
	}
	return doc.Content[0]
}

// fields calls the function of each key of a mapping; a key without one is a problem.
func (r *reader) fields(n *yaml.Node, what string, known map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fault(n.Line, "%s is to be a mapping of keys to values, and is %s", what, kindOf(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			r.fault(key.Line, "%s has no key %q: known are %s", what, key.Value, strings.Join(sortedKeys(known), ", "))
		case seen[key.Value]:
			r.fault(key.Line, "%s has the key %q twice", what, key.Value)
		default:
			read(value)
		}
		seen[key.Value] = true
	}
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which is not read here: write it out"
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "empty"
		}
		return fmt.Sprintf("%q", n.Value)
	case yaml.DocumentNode:
	}
	return "something else"
}

func (r *reader) list(n *yaml.Node, what string, item func(*yaml.Node)) {
	switch {
	case n.Kind != yaml.SequenceNode:
		r.fault(n.Line, "%s is to be a list, and is %s", what, kindOf(n))
	case len(n.Content) > maxEntries:
		r.fault(n.Line, "%s has %d entries, and may have %d", what, len(n.Content), maxEntries)
	default:
		for _, each := range n.Content {
			item(each)
		}
	}
}

// text is a scalar that is not empty, as it is written: 007 stays 007. Empty where there is a problem.
func (r *reader) text(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || strings.TrimSpace(n.Value) == "" {
		r.fault(n.Line, "%s is to be a text, and is %s: give one, or leave the key out", what, kindOf(n))
		return ""
	}
	return n.Value
}

func (r *reader) flag(n *yaml.Node, what string) bool {
	if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" {
		r.fault(n.Line, "%s is to be true or false, and is %s", what, kindOf(n))
	}
	return n.Value == "true"
}

// oneOf is a word out of a few.
func (r *reader) oneOf(n *yaml.Node, what string, words ...string) string {
	if n.Kind != yaml.ScalarNode || !slices.Contains(words, n.Value) {
		r.fault(n.Line, "%s is to be one of %s, and is %s", what, strings.Join(words, ", "), kindOf(n))
		return words[0]
	}
	return n.Value
}

// labels is a mapping of label names to values.
func (r *reader) labels(n *yaml.Node, what string) map[string]string {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		r.fault(n.Line, "%s is to be a mapping of labels to their values, and is %s", what, kindOf(n))
		return nil
	}
	labels := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if _, twice := labels[key.Value]; twice {
			r.fault(key.Line, "%s has the label %q twice", what, key.Value)
		}
		if value.Kind != yaml.ScalarNode || key.Kind != yaml.ScalarNode || key.Value == "" {
			r.fault(value.Line, "%s: label %q is to be a text, and is %s", what, key.Value, kindOf(value))
			continue
		}
		labels[key.Value] = value.Value
	}
	return labels
}

// plainNumber is what numbers look like here. YAML's own go through floating point, and money must not.
var plainNumber = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,12})?$`)

// number is a decimal from the text itself, never below 0.
func (r *reader) number(n *yaml.Node, what string) decimal.Decimal {
	if n.Kind != yaml.ScalarNode || !plainNumber.MatchString(n.Value) {
		r.fault(n.Line, "%s is to be a number such as 2.50, of at most 12 digits before and after the point, and is %s", what, kindOf(n))
		return decimal.Zero
	}
	d, err := decimal.NewFromString(n.Value)
	if err != nil {
		r.fault(n.Line, "%s is no number: %v", what, err)
		return decimal.Zero
	}
	return d
}

// moment is a date, which begins at midnight in the zone, or an instant with its offset. No year is left out.
func (r *reader) moment(n *yaml.Node, what string, zone *time.Location) time.Time {
	if n.Kind == yaml.ScalarNode {
		if day, err := time.Parse(time.DateOnly, n.Value); err == nil {
			return StartOfDay(day.Year(), day.Month(), day.Day(), zone)
		}
		if t, err := time.Parse(time.RFC3339, n.Value); err == nil {
			return t
		}
	}
	r.fault(n.Line, "%s is to be a date such as 2026-01-31 or an instant such as 2026-01-31T12:00:00Z, and is %s", what, kindOf(n))
	return time.Time{}
}

// StartOfDay is the first instant of a calendar day in the zone: midnight, or where the clock jumps over midnight the
// instant of the jump, or the first of two midnights. Days out of range are those of the neighbouring month.
func StartOfDay(year int, month time.Month, day int, zone *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	noon := time.Date(year, month, day, 12, 0, 0, 0, zone)
	if t.Day() != noon.Day() || t.Hour() != 0 {
		// Midnight does not exist: the day begins where the zone changes.
		if t.Day() == noon.Day() {
			start, _ := t.ZoneBounds()
			return start.In(zone)
		}
		_, end := t.ZoneBounds()
		return end.In(zone)
	}
	start, _ := t.ZoneBounds()
	if start.IsZero() {
		return t
	}
	_, before := start.Add(-1).Zone()
	_, offset := t.Zone()
	if earlier := t.Add(-time.Duration(before-offset) * time.Second); before > offset && earlier.Before(start) {
		return earlier
	}
	return t
}
