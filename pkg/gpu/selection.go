// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// Selection is which entities of a kind are read, in dcgm-exporter's grammar. A major
// entity is a GPU, a switch or a CPU; its minor ones are GPU instances, links or cores.
// The zero Selection is "f", everything.
type Selection struct {
	text         string
	major, minor *span
}

// span is a set of numbers; without ranges it is all of them.
type span struct{ ranges [][2]int }

func (s *span) has(n int) bool {
	if s == nil {
		return false
	}
	for _, r := range s.ranges {
		if r[0] <= n && n <= r[1] {
			return true
		}
	}
	return len(s.ranges) == 0
}

// maxSelected bounds the numbers of a selection: no node has as many entities.
const maxSelected = 1 << 16

// ParseSelection reads "f" (everything), "g" (majors), "i" (minors), each of the latter
// two with an optional list of numbers and ranges ("g:0,2-3"), and both of them joined by
// "+" ("g:0-3+i"). An error says which part is wrong; a range that selects nothing is one.
func ParseSelection(text string) (Selection, error) {
	s := Selection{text: strings.TrimSpace(text)}
	if s.text == "f" {
		return Selection{}, nil
	}
	if s.text == "" {
		return Selection{}, fmt.Errorf(`nothing is selected; "f" is everything`)
	}
	for part := range strings.SplitSeq(s.text, "+") {
		letter, list, ranged := strings.Cut(strings.TrimSpace(part), ":")
		var into **span
		switch letter {
		case "g":
			into = &s.major
		case "i":
			into = &s.minor
		case "f":
			return Selection{}, fmt.Errorf(`%q: "f" is everything and takes neither numbers nor a second part`, text)
		default:
			return Selection{}, fmt.Errorf(`%q: %q is none of f, g and i, such as "g:0-3+i"`, text, letter)
		}
		if *into != nil {
			return Selection{}, fmt.Errorf("%q has %s twice; join its numbers by commas", text, letter)
		}
		*into = &span{}
		if !ranged {
			continue
		}
		for item := range strings.SplitSeq(list, ",") {
			r, err := parseRange(strings.TrimSpace(item))
			if err != nil {
				return Selection{}, fmt.Errorf("%q: %w", text, err)
			}
			(*into).ranges = append((*into).ranges, r)
		}
	}
	return s, nil
}

func parseRange(item string) ([2]int, error) {
	first, last, ranged := strings.Cut(item, "-")
	if !ranged {
		last = first
	}
	var r [2]int
	for i, n := range []string{first, last} {
		v, err := strconv.ParseUint(strings.TrimSpace(n), 10, 32)
		if err != nil || v >= maxSelected {
			return r, fmt.Errorf(`%q is no number or range, such as "3" or "0-3"`, item)
		}
		r[i] = int(v)
	}
	if r[1] < r[0] {
		return r, fmt.Errorf("the range %q selects nothing; did you mean %d-%d?", item, r[1], r[0])
	}
	return r, nil
}

// String is the selection as it was written.
func (s Selection) String() string {
	if s.major == nil && s.minor == nil {
		return "f"
	}
	return s.text
}

// Major reports whether the GPU, switch or CPU with this number is read.
func (s Selection) Major(n int) bool { return s.major == nil && s.minor == nil || s.major.has(n) }

// Minor reports whether the instance, link or core with this number is read. DCGM numbers
// GPU instances through all GPUs; see Device.InstanceEntity.
func (s Selection) Minor(n int) bool { return s.major == nil && s.minor == nil || s.minor.has(n) }

// Any reports whether the selection has majors ("g") or minors ("i") at all.
func (s Selection) Any(kind string) bool {
	if s.major == nil && s.minor == nil {
		return true
	}
	if kind == "i" {
		return s.minor != nil
	}
	return s.major != nil
}

// Missing are the numbers that the selection names singly or as the end of a range and that
// are not among those present, so that a selection of nothing can be told. kind is "g" or "i".
func (s Selection) Missing(kind string, present []int) []int {
	which := s.major
	if kind == "i" {
		which = s.minor
	}
	if which == nil {
		return nil
	}
	have := make(map[int]bool, len(present))
	for _, n := range present {
		have[n] = true
	}
	var missing []int
	for _, r := range which.ranges {
		for _, n := range r {
			if !have[n] && (len(missing) == 0 || missing[len(missing)-1] != n) {
				missing = append(missing, n)
			}
		}
	}
	return missing
}
