// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	span     = regexp.MustCompile("`([^`]+)`")
	longFlag = regexp.MustCompile(`^--[a-z0-9][a-z0-9.-]*`)
	family   = regexp.MustCompile(`gpumeter_[a-z][a-z0-9_]+`)
)

// foreignFlags are those of other programs, and what stands for several of ours.
var foreignFlags = map[string]bool{"--set": true, "--build-arg": true, "--previous": true, "--root-dir": true, "--version": true, "--tls-": true}

// spans calls f with each piece of code that stands within a sentence.
func spans(t *testing.T, f func(where, text string)) {
	t.Helper()
	for _, p := range pages(t) {
		_, prose := p.blocks()
		for i, line := range prose {
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				f(statement{block: block{page: p}, line: i + 1}.where(), m[1])
			}
		}
	}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	must(t, err)
	return string(data)
}

// TestEveryFlagAndTargetInTheTextIsThere holds flags to docs/configuration.md, which is generated, and targets to the Makefile.
func TestEveryFlagAndTargetInTheTextIsThere(t *testing.T) {
	reference := read(t, "docs", "configuration.md")
	count := 0
	spans(t, func(where, text string) {
		command, _, _ := strings.Cut(text, ">")
		words := strings.Fields(command)
		if len(words) == 0 {
			return
		}
		if words[0] == "make" {
			count++
			t.Run(where, func(t *testing.T) { checkMake(t, words[1:]) })
		}
		if !strings.HasPrefix(words[0], "--") && !strings.HasPrefix(words[0], "gpumeter") {
			return
		}
		for _, w := range words {
			name := longFlag.FindString(w)
			if name == "" || foreignFlags[name] {
				continue
			}
			count++
			if !strings.Contains(reference, "`"+name+"`") {
				t.Errorf("%s: no program of ours has %s", where, name)
			}
		}
	})
	if count < 300 {
		t.Errorf("%d flags and targets were found", count)
	}
	t.Logf("%d flags and targets", count)
}

// TestEveryFamilyInTheTextIsThere holds names of metrics to the generated reference and to a page of the device plugin.
func TestEveryFamilyInTheTextIsThere(t *testing.T) {
	known := map[string]bool{}
	for _, text := range []string{read(t, "docs", "metrics.md"), read(t, "cmd", "gpumeter-device-plugin", "app", "testdata", "metrics.prom")} {
		for _, name := range family.FindAllString(text, -1) {
			known[name] = true
		}
	}
	count := 0
	spans(t, func(where, text string) {
		if strings.Contains(text, "*") || strings.HasSuffix(text, "_") {
			return
		}
		for _, name := range family.FindAllString(text, -1) {
			count++
			if !known[name] {
				t.Errorf("%s: there is no family %s", where, name)
			}
		}
	})
	if count < 100 {
		t.Errorf("%d names of families were found", count)
	}
	t.Logf("%d names of families", count)
}
