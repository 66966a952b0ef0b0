// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

// described is what git describes a commit as: a tag, the commits since, the commit, and whether the tree has changes.
var described = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-(rc\.\d+))?(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// packageVersion is a version that dpkg and rpm order as it was meant: a candidate before its release, later commits
// behind it, and what has no tag before everything.
func packageVersion(version string) string {
	m := described.FindStringSubmatch(version)
	if m == nil {
		word := strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
				return r
			}
			return '.'
		}, version)
		return "0.0.0~" + strings.Trim(word, ".")
	}
	out := m[1]
	if m[2] != "" {
		out += "~" + m[2]
	}
	if m[3] != "" {
		out += "+" + m[3] + ".g" + m[4]
	}
	if m[5] != "" {
		out += "+dirty"
	}
	return out
}
