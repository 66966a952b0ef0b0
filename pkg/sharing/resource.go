// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"slices"
	"strings"
)

// Resources says which extended resources are GPUs. It is immutable; the zero
// Resources matches nothing.
type Resources struct {
	patterns []string
}

// DefaultResourcePatterns are the names NVIDIA's device plugin gives by default.
func DefaultResourcePatterns() []string {
	return []string{"nvidia.com/gpu", "nvidia.com/*.shared", "nvidia.com/mig-*"}
}

// NewResources makes a matcher of patterns. A pattern is a resource's whole name,
// in which each `*` stands for any characters, none included; a name without `*`
// matches itself only. The error names the pattern that cannot be one.
func NewResources(patterns ...string) (Resources, error) {
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return Resources{}, fmt.Errorf("resource pattern %q: %w", p, err)
		}
	}
	return Resources{patterns: slices.Clone(patterns)}, nil
}

// A qualified name is a DNS subdomain of at most 253 characters, a slash, and at most 63.
const maxPatternLength = 253 + 1 + 63

func checkPattern(p string) error {
	if p == "" {
		return fmt.Errorf("is empty; want a name such as nvidia.com/gpu")
	}
	if len(p) > maxPatternLength {
		return fmt.Errorf("is longer than %d characters", maxPatternLength)
	}
	if strings.Count(p, "/") > 1 {
		return fmt.Errorf("has two slashes; want a name such as nvidia.com/gpu")
	}
	for _, c := range p {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune("-_./*", c):
		default:
			return fmt.Errorf("has %q, which no resource name has; only * is a wildcard", c)
		}
	}
	return nil
}

// Match reports whether the resource called name is a GPU.
func (r Resources) Match(name string) bool {
	for _, p := range r.patterns {
		if matchGlob(p, name) {
			return true
		}
	}
	return false
}

// matchGlob goes back to the last star only, which is enough for stars alone and
// takes at most len(pattern) × len(name) steps.
func matchGlob(pattern, name string) bool {
	p, n := 0, 0
	star, mark := -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// String lists the patterns, separated by commas.
func (r Resources) String() string { return strings.Join(r.patterns, ",") }
