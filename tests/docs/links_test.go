// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} +(.*?) *$`)
	code    = regexp.MustCompile("`[^`]+`")
	// file is the path of a page or of a picture of ours, as prose names it.
	file = regexp.MustCompile("(?:^|[^A-Za-z0-9_./-])((?:docs|etc|tests|pkg|deployment|dashboards|cmd)/[A-Za-z0-9_./-]*[A-Za-z0-9_])")
	// linkText is a link in a heading, of which its anchor has the text only.
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors are the names of the page's headings, as GitHub makes them.
func (p *page) anchors() map[string]bool {
	_, prose := p.blocks()
	found := map[string]bool{}
	for _, line := range prose {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		text := linkText.ReplaceAllString(m[1], "$1")
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)] = true
	}
	return found
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	byName := map[string]*page{}
	for _, p := range all {
		byName[p.name] = p
	}
	count := 0
	for _, p := range all {
		_, prose := p.blocks()
		for i, line := range prose {
			for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
				count++
				if text := dead(p, m[1], byName); text != "" {
					t.Errorf("%s:%d: %s", p.name, i+1, text)
				}
			}
		}
	}
	if count < 100 {
		t.Fatalf("%d links were found", count)
	}
	t.Logf("%d links", count)
}

// dead says what is wrong with a link on a page, if anything is. Addresses elsewhere are not asked.
func dead(p *page, target string, byName map[string]*page) string {
	if strings.Contains(target, "://") {
		return ""
	}
	name, anchor, _ := strings.Cut(target, "#")
	to := p
	if name != "" {
		full := path.Join(path.Dir(p.name), name)
		if _, err := os.Stat(filepath.Join(root, full)); err != nil {
			return "there is no " + full
		}
		to = byName[full]
	}
	if anchor != "" && (to == nil || !to.anchors()[anchor]) {
		return target + " has no such heading"
	}
	return ""
}

// TestEveryFileThatIsNamedIsThere looks at paths in running text, such as `docs/health.md`.
func TestEveryFileThatIsNamedIsThere(t *testing.T) {
	for _, p := range pages(t) {
		_, prose := p.blocks()
		for i, line := range prose {
			for _, m := range file.FindAllStringSubmatch(link.ReplaceAllString(line, ""), -1) {
				if _, err := os.Stat(filepath.Join(root, m[1])); err != nil && !made(m[1]) {
					t.Errorf("%s:%d names %s, which is not there", p.name, i+1, m[1])
				}
			}
		}
	}
}

// made reports whether a name is the beginning of a pattern, or of what is to come.
func made(name string) bool {
	found, err := filepath.Glob(filepath.Join(root, name) + "*")
	return err == nil && len(found) > 0 || name == "pkg/process"
}
