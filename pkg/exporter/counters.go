// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// CounterType is what a row of a counter file makes of its field.
type CounterType uint8

// The types of row.
const (
	TypeGauge CounterType = iota
	TypeCounter
	TypeUntyped
	// TypeLabel: the value is a label on every series of the same entity.
	TypeLabel

	counterTypeCount
)

// String is the type as it is written in a counter file.
func (t CounterType) String() string {
	if t >= counterTypeCount {
		return "unknown"
	}
	return [...]string{"gauge", "counter", "untyped", "label"}[t]
}

// Counter is one row of a counter file.
type Counter struct {
	// Name is the field's name as the user wrote it, which is the name of the metric
	// or of the label. For a field given by number it is dcgm-exporter's name of it.
	Name string
	// Field is what is exported.
	Field gpu.Field
	Type  CounterType
	// Help is the help text, unescaped, often empty.
	Help string
	// Line is where the row stands in its file, from 1.
	Line int
}

// Counters are the usable rows of one counter file. They are immutable, so any
// number of readers may share them.
type Counters struct {
	rows   []Counter
	fields []gpu.FieldID
}

// Rows are the rows in the order of the file, the caller's own copy. No two
// metrics have one name, nor do two labels; every name is valid in the
// exposition. Aliases of a row's field are shared and must not be modified.
func (c *Counters) Rows() []Counter { return slices.Clone(c.rows) }

// Fields are the fields to ask a telemetry source for, in ascending order, each once, the
// caller's own copy: those of all rows, computed ones as wishes, and the clock event
// reasons where a row counts them.
func (c *Counters) Fields() []gpu.FieldID { return slices.Clone(c.fields) }

// Severity is what a Problem costs.
type Severity uint8

const (
	// SeverityWarning: the row is exported nevertheless.
	SeverityWarning Severity = iota
	// SeverityError: the row, or the whole file, is not exported.
	SeverityError
)

// String is the severity as a label value.
func (s Severity) String() string {
	if s == SeverityError {
		return "error"
	}
	return "warning"
}

// Problem is something in a counter file that its author should look at.
type Problem struct {
	// File is the name that was given to ParseCounters.
	File string
	// Line and Column are where, from 1. The column counts bytes; a byte order mark
	// is not counted. What concerns the whole file stands at 1:1.
	Line, Column int
	Severity     Severity
	// Text says what is wrong, Hint what to do; Hint may be empty.
	Text, Hint string
}

// String is the problem on one line: "file:line:column: text (hint)".
func (p Problem) String() string {
	if p.Hint == "" {
		return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Text)
	}
	return fmt.Sprintf("%s:%d:%d: %s (%s)", p.File, p.Line, p.Column, p.Text, p.Hint)
}

// MaxCounterFile is how many bytes a counter file may have.
const MaxCounterFile = 1 << 20

const (
	// maxProblems bounds the answer about a file that is no counter file at all.
	maxProblems = 100

	rowForm = "a row is: field, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature"
)

// ParseCounters reads a counter file in dcgm-exporter's form, rows of field, type
// and help, and is more lenient: comments may be indented, cells may be quoted
// after spaces, the help may be missing, a trailing comma, a byte order mark and
// either line ending are taken. A row that cannot be used costs that row only,
// and is a Problem. The Counters are never nil; a file with no usable row gives
// Counters without rows and a Problem. file is for the problems only.
func ParseCounters(file string, data []byte) (*Counters, []Problem) {
	p := counterParser{file: file, names: make(map[counterName]int), fields: make(map[gpu.FieldID]Counter)}
	switch {
	case len(data) > MaxCounterFile:
		p.reject(1, 1, fmt.Sprintf("file is larger than the %d bytes that a counter file can have", MaxCounterFile), "is this the right file?")
		return p.finish()
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}), bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		p.reject(1, 1, "file is UTF-16", "save it as UTF-8")
		return p.finish()
	}
	text := strings.TrimPrefix(string(data), "\ufeff")
	line := 0
	for row := range strings.SplitSeq(text, "\n") {
		line++
		p.line(line, strings.TrimSuffix(row, "\r"))
	}
	if len(p.rows) == 0 {
		p.reject(1, 1, "file has no usable row", rowForm)
	}
	return p.finish()
}

// counterName keys what must not be there twice: a label may be called like a metric.
type counterName struct {
	label bool
	name  string
}

type counterParser struct {
	file     string
	rows     []Counter
	names    map[counterName]int
	fields   map[gpu.FieldID]Counter
	problems []Problem
	// warnings are those of the row being read; they are dropped with the row.
	warnings []Problem
	unlisted int
	guesses  int
}

func (p *counterParser) problem(problem Problem) {
	if len(p.problems) == maxProblems {
		p.unlisted++
		return
	}
	p.problems = append(p.problems, problem)
}

// reject makes a problem of what costs the row, and warn of what does not.
func (p *counterParser) reject(line, column int, text, hint string) {
	p.problem(Problem{File: p.file, Line: line, Column: column, Severity: SeverityError, Text: text, Hint: hint})
}

func (p *counterParser) warn(line, column int, text, hint string) {
	p.warnings = append(p.warnings, Problem{File: p.file, Line: line, Column: column, Severity: SeverityWarning, Text: text, Hint: hint})
}

func (p *counterParser) finish() (*Counters, []Problem) {
	if p.unlisted > 0 {
		p.problems = append(p.problems, Problem{
			File: p.file, Line: 1, Column: 1, Severity: SeverityError,
			Text: fmt.Sprintf("%d more problems are not listed", p.unlisted),
		})
	}
	c := &Counters{rows: p.rows}
	for _, row := range p.rows {
		c.fields = append(c.fields, row.Field.ID)
		if id := row.Field.ID; id == gpu.FieldClockEventsCount || id == gpu.FieldClockEventsTotal {
			c.fields = append(c.fields, gpu.FieldClockReasons)
		}
	}
	slices.Sort(c.fields)
	c.fields = slices.Compact(c.fields)
	return c, p.problems
}

func (p *counterParser) line(line int, text string) {
	if start := strings.TrimLeft(text, " \t"); start == "" || start[0] == '#' {
		return
	}
	cells, bad := splitCells(text)
	if bad != nil {
		p.reject(line, bad.column, bad.text, bad.hint)
		return
	}
	if len(cells) > 3 {
		p.reject(line, cells[3].column, fmt.Sprintf("row has %d cells, more than field, type and help", len(cells)),
			"put a help text with commas in double quotes")
		return
	}
	p.warnings = p.warnings[:0]
	row := Counter{Line: line}
	if !p.field(&row, cells[0]) {
		return
	}
	if len(cells) == 1 {
		p.reject(line, cells[0].column, "row has no type", rowForm)
		return
	}
	if !p.counterType(&row, cells[1]) {
		return
	}
	if len(cells) == 3 {
		row.Help = cells[2].text
	}
	p.keep(row, cells[0].column)
}

// keep appends the row unless its name is taken.
func (p *counterParser) keep(row Counter, column int) {
	key := counterName{label: row.Type == TypeLabel, name: row.Name}
	if first, taken := p.names[key]; taken {
		p.reject(row.Line, column, fmt.Sprintf("%s is already exported", row.Name),
			fmt.Sprintf("remove this row, or the one on line %d", first))
		return
	}
	p.names[key] = row.Line
	if first, again := p.fields[row.Field.ID]; !again {
		p.fields[row.Field.ID] = row
	} else if first.Name != row.Name {
		p.warn(row.Line, column, fmt.Sprintf("%s is the same field as %s on line %d, and is exported under both names", row.Name, first.Name, first.Line),
			"remove one of the rows unless both names are in use")
	}
	p.rows = append(p.rows, row)
	for _, warning := range p.warnings {
		p.problem(warning)
	}
}

// field sets the row's field and name from its first cell.
func (p *counterParser) field(row *Counter, c cell) bool {
	if c.text == "" {
		p.reject(row.Line, c.column, "row has no field", rowForm)
		return false
	}
	field, ok := gpu.FieldByName(c.text)
	if !ok {
		hint := "names are DCGM's, such as DCGM_FI_DEV_GPU_TEMP, or a field's number"
		// Finding the nearest of all names is work; a file with many wrong names has
		// another fault than spelling.
		if p.guesses++; p.guesses <= maxGuesses {
			hint = cmp.Or(nearestNames(c.text), hint)
		}
		p.reject(row.Line, c.column, fmt.Sprintf("unknown field %s", quoted(c.text)), hint)
		return false
	}
	row.Field, row.Name = field, c.text
	if c.text[0] >= '0' && c.text[0] <= '9' {
		row.Name = usualName(field)
	}
	switch field.Type {
	case gpu.FieldBinary:
		p.reject(row.Line, c.column, fmt.Sprintf("%s is a binary structure, which has no place in a metric", row.Name), "remove the row")
		return false
	case gpu.FieldUnknown:
		p.warn(row.Line, c.column, fmt.Sprintf("DCGM's catalogue does not describe %s", row.Name), "it has samples only where the host's DCGM has the field")
	}
	return true
}

// counterType sets the row's type from its second cell and checks it against the field.
func (p *counterParser) counterType(row *Counter, c cell) bool {
	const choice = "use gauge, counter, untyped or label"
	written := strings.ToLower(c.text)
	switch written {
	case "gauge":
		row.Type = TypeGauge
	case "counter":
		row.Type = TypeCounter
	case "untyped":
		row.Type = TypeUntyped
	case "label":
		row.Type = TypeLabel
	case "histogram", "summary":
		row.Type = TypeUntyped
		p.warn(row.Line, c.column, fmt.Sprintf("%s is one value and no %s, and is exported as untyped", row.Name, written), choice)
	case "":
		p.reject(row.Line, c.column, "row has no type", choice)
		return false
	default:
		p.reject(row.Line, c.column, fmt.Sprintf("unknown type %s", quoted(c.text)), choice)
		return false
	}
	switch {
	case row.Type == TypeLabel && row.Field.ID.Computed():
		p.reject(row.Line, c.column, fmt.Sprintf("%s is several series of each GPU and cannot be a label", row.Name), "use gauge, or counter for a total")
		return false
	case row.Type != TypeLabel && row.Field.Type == gpu.FieldText:
		p.reject(row.Line, c.column, fmt.Sprintf("%s is text and cannot be a %s", row.Name, written), "use label")
		return false
	case row.Type == TypeCounter && falls(row.Field):
		p.warn(row.Line, c.column, fmt.Sprintf("%s goes up and down, and is exported as a counter as written", row.Name),
			"use gauge: rate() and increase() take each fall for a restart")
	case row.Type == TypeLabel && falls(row.Field):
		p.warn(row.Line, c.column, fmt.Sprintf("%s changes all the time, and each change begins new series of all that it labels", row.Name), "use gauge")
	}
	return true
}

// usualName is the name that dcgm-exporter's files and dashboards have for a
// field: the earlier one where DCGM renamed it. Some aliases are DCGM's marks of
// where a section begins.
func usualName(f gpu.Field) string {
	for _, alias := range f.Aliases {
		if !strings.HasSuffix(alias, "_FIELD_ID") {
			return alias
		}
	}
	return f.Name
}

// falls reports whether a field is a level or a rate rather than a count. DCGM
// does not say so; what it says of units and types tells most of them. It is
// meant for warnings: false is no promise.
func falls(f gpu.Field) bool {
	if f.ID.Computed() {
		return f.ID != gpu.FieldXIDErrorsTotal && f.ID != gpu.FieldClockEventsTotal
	}
	if f.Type == gpu.FieldFloat || f.Unit == "C" || f.Unit == "W" || strings.HasSuffix(f.Unit, "/s") {
		return true
	}
	for _, prefix := range []string{"DCGM_FI_DEV_FB_", "DCGM_FI_DEV_BAR1_"} {
		if strings.HasPrefix(f.Name, prefix) {
			return true
		}
	}
	for _, suffix := range []string{"_CELSIUS", "_RATIO", "_UTIL", "_CLOCK", "_XID_ERROR"} {
		if strings.HasSuffix(f.Name, suffix) {
			return true
		}
	}
	// Bytes per second, although their names do not say so; the totals do.
	return strings.HasPrefix(f.Name, "DCGM_FI_PROF_") && (strings.HasSuffix(f.Name, "_BYTES") || strings.HasSuffix(f.Name, "_BYTES_PER_LINK"))
}
