// SPDX-License-Identifier: Apache-2.0

// Package xidfile reads tables of XIDs, YAML files like etc/xid.yaml: the shipped one, and an
// operator's, whose rows stand in place of the shipped ones of their codes.
package xidfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/pkg/health"
)

const (
	// problemLimit bounds what one look at a hopeless file prints.
	problemLimit = 20
	// fileLimit is many times what a table with every possible code has.
	fileLimit = 1 << 20
)

// Parse reads a table of XIDs. Whatever is wrong costs the row that it stands in and is one of
// the problems, each with file, line and remedy. The table is never nil; it is empty where the
// file as a whole cannot be read.
func Parse(file string, data []byte) (*health.XIDTable, []error) {
	rows, problems := parse(file, data)
	table, err := health.NewXIDTable(rows)
	if err != nil {
		return &health.XIDTable{}, append(problems, fmt.Errorf("%s: %w", file, err))
	}
	return table, problems
}

// Load is the built-in table, of which the text is given, with the rows of the operator's file in
// place of those of their codes. An empty name is no file. Other than with Parse, one bad row is
// an error: who classes XIDs in his own way must not be classed otherwise unawares.
func Load(builtIn []byte, name string) (*health.XIDTable, error) {
	table, problems := Parse("xid.yaml (built in)", builtIn)
	if len(problems) > 0 || name == "" {
		return table, errors.Join(problems...)
	}
	data, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("%w; give a readable file in the form of etc/xid.yaml", err)
	}
	rows, problems := parse(name, data)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if table, err = table.With(rows); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return table, nil
}

// read takes no more of a file than a table can be, and nothing that is no plain file: a pipe
// would block for as long as nobody writes to it.
func read(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, fileLimit+1))
	if err != nil {
		return nil, err
	}
	if len(data) > fileLimit {
		return nil, fmt.Errorf("%s has more than %d bytes and is no table of XIDs", name, fileLimit)
	}
	return data, nil
}

func parse(file string, data []byte) ([]health.XID, []error) {
	p := reader{file: file, lines: map[int]int{}}
	p.document(data)
	if p.unsaid > 0 {
		p.problems = append(p.problems, fmt.Errorf("%s: and %d more", file, p.unsaid))
	}
	return p.rows, p.problems
}

// reader goes through one file.
type reader struct {
	file string
	rows []health.XID
	// lines has the line of each code's row.
	lines    map[int]int
	problems []error
	unsaid   int
}

// at records a problem at a line.
func (p *reader) at(line int, format string, args ...any) {
	if len(p.problems) == problemLimit {
		p.unsaid++
		return
	}
	p.problems = append(p.problems, fmt.Errorf("%s:%d: "+format, append([]any{p.file, max(line, 1)}, args...)...))
}

func (p *reader) document(data []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) != 1 {
		p.at(1, "the file is empty (write xids: and a list of rows)")
		return
	} else if err != nil {
		line, text := yamlProblem(err)
		p.at(line, "not YAML: %s (check indentation and quotes)", text)
		return
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		p.at(more.Line, "something follows the table (one document per file)")
	}
	p.mapping(doc.Content[0], "the file", map[string]func(*yaml.Node){"xids": func(n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			p.at(n.Line, "xids must be a list (write rows that begin with -)")
			return
		}
		for _, row := range n.Content {
			p.row(row)
		}
	}})
}

// yamlProblem is the line and the text of a decoder's error, which has the line within its text.
func yamlProblem(err error) (line int, text string) {
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	number, rest, found := strings.Cut(strings.TrimPrefix(text, "line "), ": ")
	if n, err := strconv.Atoi(number); err == nil && found {
		return n, rest
	}
	return 1, text
}

// mapping calls the reader of each key, in the file's order, and says whether each key was known and there once.
func (p *reader) mapping(n *yaml.Node, what string, known map[string]func(*yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		p.at(n.Line, "%s must be a mapping (write key: value)", what)
		return false
	}
	good, seen := true, map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			names := slices.Sorted(maps.Keys(known))
			p.at(key.Line, "unknown key %q in %s (known: %s)", key.Value, what, strings.Join(names, ", "))
		case seen[key.Value]:
			p.at(key.Line, "key %q twice in %s (keep one)", key.Value, what)
		default:
			seen[key.Value] = true
			read(value)
			continue
		}
		good = false
	}
	return good
}

// text is the reader of a key whose value is plain text; good becomes false where it is not.
func (p *reader) text(to *string, key string, good *bool) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			p.at(n.Line, "%s must be text (quote it)", key)
			*good = false
			return
		}
		*to = n.Value
	}
}

// repeat reads what repetition makes of a code, and says whether it is well formed.
func (p *reader) repeat(n *yaml.Node) (health.Repeat, bool) {
	var r health.Repeat
	var count, within, class string
	good := true
	known := p.mapping(n, "repeat", map[string]func(*yaml.Node){
		"count": p.text(&count, "count", &good), "within": p.text(&within, "within", &good), "class": p.text(&class, "class", &good),
	})
	if !known || !good {
		return r, false
	}
	var err error
	if r.Count, err = strconv.Atoi(count); err != nil {
		p.at(n.Line, "repeat has the count %q (write a number such as 3)", count)
		return r, false
	}
	if r.Within, err = time.ParseDuration(within); err != nil {
		p.at(n.Line, "repeat is within %q (write a time such as 10m)", within)
		return r, false
	}
	if r.Class, err = health.ParseClass(class); err != nil {
		p.at(n.Line, "repeat: %w", err)
		return r, false
	}
	if r.IsZero() {
		err = errors.New("nothing is said")
	} else {
		err = r.Validate()
	}
	if err != nil {
		p.at(n.Line, "repeat: %w", err)
	}
	return r, err == nil
}

func (p *reader) row(n *yaml.Node) {
	var x health.XID
	good := true
	text := func(to *string, key string) func(*yaml.Node) { return p.text(to, key, &good) }
	var code, class, alert string
	known := p.mapping(n, "the row", map[string]func(*yaml.Node){
		"code": text(&code, "code"), "name": text(&x.Name, "name"), "class": text(&class, "class"),
		"alert": text(&alert, "alert"), "source": text(&x.Source, "source"),
		"repeat": func(n *yaml.Node) {
			repeat, ok := p.repeat(n)
			x.Repeat, good = repeat, good && ok
		},
	})
	if !known || !good {
		return
	}
	if err := fill(&x, code, class, alert); err != nil {
		p.at(n.Line, "%w", err)
		return
	}
	if first, twice := p.lines[x.Code]; twice {
		p.at(n.Line, "XID %d is there already, in line %d (keep one)", x.Code, first)
		return
	}
	p.lines[x.Code] = n.Line
	p.rows = append(p.rows, x)
}

// fill puts into x what is not plain text.
func fill(x *health.XID, code, class, alert string) error {
	var err error
	if x.Code, err = strconv.Atoi(code); err != nil || strconv.Itoa(x.Code) != code {
		return fmt.Errorf("the code is %q (write the driver's number, such as 79)", code)
	}
	if x.Class, err = health.ParseClass(class); err != nil {
		return fmt.Errorf("XID %d: %w", x.Code, err)
	}
	switch alert {
	case "true":
		x.Alert = true
	case "", "false":
	default:
		return fmt.Errorf("XID %d: alert is %q (write true or false)", x.Code, alert)
	}
	return x.Validate()
}
