// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// xidProblemLimit bounds what one look at a hopeless file prints.
const xidProblemLimit = 20

// parseXIDs reads a table of XIDs, a YAML file like etc/xid.yaml. Whatever is wrong costs the
// row that it stands in and is one of the problems, each with file, line and remedy. The table
// is never nil; it is empty where the file as a whole cannot be read.
func parseXIDs(file string, data []byte) (*health.XIDTable, []error) {
	p := xidParser{file: file, lines: map[int]int{}}
	p.document(data)
	if p.unsaid > 0 {
		p.problems = append(p.problems, fmt.Errorf("%s: and %d more", file, p.unsaid))
	}
	table, err := health.NewXIDTable(p.rows)
	if err != nil {
		return &health.XIDTable{}, append(p.problems, fmt.Errorf("%s: %w", file, err))
	}
	return table, p.problems
}

type xidParser struct {
	file string
	rows []health.XID
	// lines has the line of each code's row.
	lines    map[int]int
	problems []error
	unsaid   int
}

// at records a problem at a line.
func (p *xidParser) at(line int, format string, args ...any) {
	if len(p.problems) == xidProblemLimit {
		p.unsaid++
		return
	}
	p.problems = append(p.problems, fmt.Errorf("%s:%d: "+format, append([]any{p.file, max(line, 1)}, args...)...))
}

func (p *xidParser) document(data []byte) {
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
func (p *xidParser) mapping(n *yaml.Node, what string, known map[string]func(*yaml.Node)) bool {
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
func (p *xidParser) text(to *string, key string, good *bool) func(*yaml.Node) {
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
func (p *xidParser) repeat(n *yaml.Node) (health.Repeat, bool) {
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

func (p *xidParser) row(n *yaml.Node) {
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
