// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	metaLine   = regexp.MustCompile(`^# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)$`)
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (-?[0-9][0-9.]*(?:e[+-][0-9]+)?)$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"`)
	helpText   = regexp.MustCompile(`^(?:[^"\\\n]|\\["\\n])+$`)
)

// checkOpenMetrics is a strict reader of the part of OpenMetrics 1.0.0 that a page
// uses: each family once and in one piece, its metadata before its samples, names
// that follow from the type, no label and no series twice, # EOF at the end.
func checkOpenMetrics(page []byte) error {
	if !utf8.Valid(page) || bytes.IndexByte(page, 0) >= 0 {
		return fmt.Errorf("page is not clean UTF-8")
	}
	body, ok := strings.CutSuffix(string(page), "# EOF\n")
	if !ok || body != "" && !strings.HasSuffix(body, "\n") {
		return fmt.Errorf("page does not end with # EOF")
	}
	var family, typ, help string
	seen, series := make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if m := metaLine.FindStringSubmatch(line); m != nil {
			word, name, text := m[1], m[2], m[3]
			switch {
			case word == "HELP" && !helpText.MatchString(text):
				return fmt.Errorf("bad help: %q", line)
			case word == "HELP":
				help = name
				continue
			case help != "" && help != name:
				return fmt.Errorf("help of %s before type of %s", help, name)
			case seen[name]:
				return fmt.Errorf("family %s twice", name)
			case text != "gauge" && text != "counter" && text != "unknown":
				return fmt.Errorf("bad type: %q", line)
			}
			seen[name] = true
			family, typ, help = name, text, ""
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			return fmt.Errorf("bad line: %q", line)
		}
		if want := map[string]string{"counter": family + "_total"}[typ]; m[1] != want && (want != "" || m[1] != family) {
			return fmt.Errorf("sample %s in family %s of type %s", m[1], family, typ)
		}
		names := make(map[string]bool)
		for _, pair := range labelPair.FindAllStringSubmatch(m[2], -1) {
			if names[pair[1]] || pair[1] == "__name__" || pair[2] == "" {
				return fmt.Errorf("bad label %s: %q", pair[1], line)
			}
			names[pair[1]] = true
		}
		key := m[1] + "{" + m[2]
		if series[key] {
			return fmt.Errorf("series twice: %q", line)
		}
		series[key] = true
	}
	return nil
}

func TestOpenMetricsCheckerIsStrict(t *testing.T) {
	const good = "# HELP a help \\\\ \\n \\\"\n# TYPE a counter\na_total{b=\"c\\\"\\n\\\\\",d=\"\u00fc\"} 1\na_total 2.5e-07\n# TYPE x gauge\nx 0\n# EOF\n"
	if err := checkOpenMetrics([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct{ old, new string }{
		{"# EOF\n", ""},
		{"# EOF\n", "# EOF\nx 1\n"},
		{"a_total 2", "a 2"},
		{"x 0", "x_total 0"},
		{"x 0", "x NaN"},
		{"x 0", "x 0\nx 1"},
		{"x 0", "x{__name__=\"y\"} 0"},
		{"x 0", "x{y=\"1\",y=\"2\"} 0"},
		{"x 0", "x{y=\"\"} 0"},
		{"x 0", "x{y=\"\\t\"} 0"},
		{"x 0", "x{y=\"\x00\"} 0"},
		{"x 0", "x{y=\"\xff\"} 0"},
		{"x 0", "x{y=\"\"z\"} 0"},
		{"TYPE x gauge", "TYPE a gauge"},
		{"TYPE x gauge", "TYPE x histogram"},
		{"help \\\\", "help \\x"},
		{"HELP a", "HELP b"},
	} {
		if page := strings.Replace(good, bad.old, bad.new, 1); checkOpenMetrics([]byte(page)) == nil {
			t.Errorf("%q for %q passes", bad.new, bad.old)
		}
	}
}
