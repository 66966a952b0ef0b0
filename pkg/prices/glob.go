// SPDX-License-Identifier: Apache-2.0

package prices

import "strings"

// pattern is a name, or a pattern of names: * stands for any characters, ? for one. The zero value matches everything.
type pattern struct {
	text string
	glob bool
}

func newPattern(text string) pattern {
	return pattern{text: text, glob: strings.ContainsAny(text, "*?")}
}

func (p pattern) given() bool { return p.text != "" }

// exactRank is above the rank of every pattern: names are shorter.
const exactRank = 1 << 20

// rank says how specific p is: a name before patterns, a pattern of more characters before one of fewer.
func (p pattern) rank() int {
	switch {
	case !p.given():
		return 0
	case !p.glob:
		return exactRank
	}
	return 1 + len(p.text) - strings.Count(p.text, "*") - strings.Count(p.text, "?")
}

// matches reports whether name is p's. What has no name is matched by the zero value only: a price for "*" of a
// namespace is for what some namespace held.
func (p pattern) matches(name string) bool {
	switch {
	case !p.given():
		return true
	case name == "":
		return false
	case !p.glob:
		return p.text == name
	}
	return globMatches(p.text, name)
}

// globMatches goes back to the last * where it is stuck, so it is never worse than the product of the lengths.
func globMatches(glob, name string) bool {
	g, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, mark = g, n
			g++
		case g < len(glob) && (glob[g] == '?' || glob[g] == name[n]):
			g++
			n++
		case star >= 0:
			mark++
			g, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(glob[g:], "*") == ""
}

// meets reports whether some name is matched by both.
func (p pattern) meets(q pattern) bool {
	switch {
	case !p.given() || !q.given():
		return true
	case !p.glob:
		return q.matches(p.text)
	case !q.glob:
		return p.matches(q.text)
	}
	return globsMeet(p.text, q.text)
}

// globsMeet fills the table of which pairs of rests of a and b have a name in common, from the end.
func globsMeet(a, b string) bool {
	next := make([]bool, len(b)+1)
	row := make([]bool, len(b)+1)
	for i := len(a); i >= 0; i-- {
		for j := len(b); j >= 0; j-- {
			switch {
			case i == len(a) && j == len(b):
				row[j] = true
			case i < len(a) && a[i] == '*':
				row[j] = next[j] || j < len(b) && row[j+1]
			case j < len(b) && b[j] == '*':
				row[j] = row[j+1] || i < len(a) && next[j]
			default:
				row[j] = i < len(a) && j < len(b) && (a[i] == '?' || b[j] == '?' || a[i] == b[j]) && next[j+1]
			}
		}
		row, next = next, row
	}
	return next[0]
}
