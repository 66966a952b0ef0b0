// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository, seen from here.
const root = "../.."

// page is one Markdown file, with its name as seen from the repository's root.
type page struct {
	name  string
	lines []string
}

// block is a piece of a page that is set as it is: fenced, or indented by four.
type block struct {
	page *page
	// line is that of its first line of text, from 1.
	line int
	// lang is what stands behind the fence; empty for an indented block.
	lang string
	text string
}

// pages are all pages of the documentation, with the README files that lead to them.
func pages(t *testing.T) []*page {
	t.Helper()
	names := []string{"dashboards/README.md", "deployment/README.md"}
	top, err := fs.Glob(os.DirFS(root), "*.md")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, top...)
	err = fs.WalkDir(os.DirFS(root), "docs", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".md") {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []*page
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &page{name: name, lines: strings.Split(string(data), "\n")})
	}
	return all
}

var fence = regexp.MustCompile("^( *)```+ *([a-z]*)")

// blocks are the page's blocks, and the rest of it: its lines with those of blocks emptied.
func (p *page) blocks() (found []block, prose []string) {
	prose = slices.Clone(p.lines)
	for i := 0; i < len(p.lines); i++ {
		if m := fence.FindStringSubmatch(p.lines[i]); m != nil {
			end := i + 1
			for end < len(p.lines) && !strings.HasPrefix(strings.TrimSpace(p.lines[end]), "```") {
				end++
			}
			found = append(found, p.cut(i+1, end, len(m[1]), m[2]))
			clear(prose[i:min(end+1, len(prose))])
			i = end
			continue
		}
		if p.indented(i) && (i == 0 || strings.TrimSpace(p.lines[i-1]) == "") {
			end := i
			for end < len(p.lines) && (p.indented(end) || strings.TrimSpace(p.lines[end]) == "") {
				end++
			}
			for !p.indented(end - 1) {
				end--
			}
			found = append(found, p.cut(i, end, 4, ""))
			clear(prose[i:end])
			i = end - 1
		}
	}
	return found, prose
}

func (p *page) indented(i int) bool { return strings.HasPrefix(p.lines[i], "    ") }

// cut is the block of the lines [from, to), without their indentation.
func (p *page) cut(from, to, indent int, lang string) block {
	lines := slices.Clone(p.lines[from:to])
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(l, strings.Repeat(" ", min(indent, len(l)-len(strings.TrimLeft(l, " ")))))
	}
	return block{page: p, line: from + 1, lang: lang, text: strings.Join(lines, "\n")}
}

// firstLine is the block's first line with something on it.
func (b block) firstLine() string {
	line, _, _ := strings.Cut(strings.TrimLeft(b.text, "\n"), "\n")
	return line
}
