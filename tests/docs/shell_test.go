// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// statement is a command line of a page, or several that belong together, such as a loop.
type statement struct {
	block block
	line  int
	text  string
	// settings are the assignments that stand before it in its block, one a line.
	settings string
	// calls are the programs that it runs with their words, outermost first. A word that the
	// shell would put together is its text.
	calls [][]string
}

func (s statement) where() string { return fmt.Sprintf("%s:%d", s.block.page.name, s.line) }

// programs are the names of the programs that it runs.
func (s statement) programs() []string {
	var names []string
	for _, c := range s.calls {
		names = append(names, path.Base(c[0]))
	}
	return names
}

// call is the first call of one of these programs, or nil.
func (s statement) call(programs ...string) []string {
	for _, c := range s.calls {
		if slices.Contains(programs, path.Base(c[0])) {
			return c
		}
	}
	return nil
}

// typed is what is typed in a block that shows a prompt and what is answered.
func typed(text string) string {
	if !strings.HasPrefix(text, "$ ") {
		return text
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, "$ "); ok {
			lines = append(lines, rest)
		} else {
			lines = append(lines, "")
		}
	}
	return strings.Join(lines, "\n")
}

// statements are those of a block in the shell's language.
func statements(b block) ([]statement, error) {
	text := typed(b.text)
	parsed, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, err
	}
	var found []statement
	var settings []string
	for _, stmt := range parsed.Stmts {
		from, to := stmt.Pos().Offset(), stmt.End().Offset()
		s := statement{
			block: b, line: b.line + int(stmt.Pos().Line()) - 1, text: text[from:to],
			settings: strings.Join(settings, "\n"), calls: calls(stmt, text),
		}
		if call, ok := stmt.Cmd.(*syntax.CallExpr); ok && len(call.Args) == 0 && !placeholder(call) {
			settings = append(settings, s.text)
		}
		found = append(found, s)
	}
	return found, nil
}

// placeholder reports whether an assignment is for the reader to fill in: NODE=...
func placeholder(call *syntax.CallExpr) bool {
	return slices.ContainsFunc(call.Assigns, func(a *syntax.Assign) bool {
		return a.Value != nil && strings.HasSuffix(a.Value.Lit(), "...")
	})
}

// calls are the programs below a node of the shell's syntax.
func calls(node syntax.Node, text string) [][]string {
	var found [][]string
	syntax.Walk(node, func(n syntax.Node) bool {
		if call, ok := n.(*syntax.CallExpr); ok && len(call.Args) > 0 {
			var words []string
			for _, w := range call.Args {
				words = append(words, word(w, text))
			}
			words = bare(words)
			found = append(found, words)
			// What a container or another machine is to run.
			if i := slices.Index(words, "--"); i >= 0 && i+1 < len(words) && words[0] == "kubectl" {
				found = append(found, words[i+1:])
			}
		}
		return true
	})
	return found
}

// bare is a call of ours without who runs it, or for how long: that makes no difference to what it is told.
func bare(words []string) []string {
	for wrapper, n := range map[string]int{"sudo": 1, "timeout": 2} {
		if words[0] == wrapper && len(words) > n && slices.Contains(ours, path.Base(words[n])) {
			return words[n:]
		}
	}
	return words
}

// word is a word without its quotes.
func word(w *syntax.Word, text string) string {
	if lit := w.Lit(); lit != "" {
		return lit
	}
	if len(w.Parts) == 1 {
		switch p := w.Parts[0].(type) {
		case *syntax.SglQuoted:
			return p.Value
		case *syntax.DblQuoted:
			return text[p.Pos().Offset()+1 : p.End().Offset()-1]
		}
	}
	return text[w.Pos().Offset():w.End().Offset()]
}
