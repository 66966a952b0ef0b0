// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strings"
	"testing"
)

func TestASelectionSaysWhatIsRead(t *testing.T) {
	for _, c := range []struct {
		text         string
		major, minor []int
	}{
		{"f", []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{" g ", []int{0, 1, 2, 3}, nil},
		{"i", nil, []int{0, 1, 2, 3}},
		{"g:1", []int{1}, nil},
		{"g:0,2-3", []int{0, 2, 3}, nil},
		{"i:3,0", nil, []int{0, 3}},
		{"g+i", []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{"g:2,3+i:0", []int{2, 3}, []int{0}},
		{"i:1 + g", []int{0, 1, 2, 3}, []int{1}},
	} {
		s, err := ParseSelection(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var major, minor []int
		for n := range 4 {
			if s.Major(n) {
				major = append(major, n)
			}
			if s.Minor(n) {
				minor = append(minor, n)
			}
		}
		if s.Any("g") != (c.major != nil) || s.Any("i") != (c.minor != nil) {
			t.Errorf("%q has majors: %v, minors: %v", c.text, s.Any("g"), s.Any("i"))
		}
		if !slices.Equal(major, c.major) || !slices.Equal(minor, c.minor) {
			t.Errorf("%q reads majors %v and minors %v, want %v and %v", c.text, major, minor, c.major, c.minor)
		}
		if again, err := ParseSelection(s.String()); err != nil || again.String() != s.String() {
			t.Errorf("%q is written %q, which is not read back: %v", c.text, s, err)
		}
	}
	if s := (Selection{}); !s.Major(9) || !s.Minor(9) || s.String() != "f" {
		t.Errorf("the zero Selection is %v", s)
	}
}

func TestASelectionThatIsWrongIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"":         "nothing is selected",
		"x":        "none of f, g and i",
		"g:4-2":    "did you mean 2-4?",
		"g:":       "no number or range",
		"g:1,":     "no number or range",
		"g:1-2-3":  "no number or range",
		"g:-1":     "no number or range",
		"g:999999": "no number or range",
		"f:1":      "takes neither numbers",
		"f+i":      "takes neither numbers",
		"g:1+g:2":  "has g twice",
		"g+":       "none of f, g and i",
	} {
		if _, err := ParseSelection(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSelection(%q): %v, want %q in it", text, err, want)
		}
	}
}

func TestASelectionKnowsWhatIsNotThere(t *testing.T) {
	s, err := ParseSelection("g:0,5-6+i:7")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Missing("g", []int{0, 1, 5}); !slices.Equal(got, []int{6}) {
		t.Errorf("missing GPUs are %v", got)
	}
	if got := s.Missing("i", nil); !slices.Equal(got, []int{7}) {
		t.Errorf("missing instances are %v", got)
	}
	if got := (Selection{}).Missing("g", nil); got != nil {
		t.Errorf("everything misses %v", got)
	}
}

func FuzzParseSelection(f *testing.F) {
	for _, seed := range []string{"f", "g", "i", "g:0,2-3+i:7", "g:4-2", "+", "g:1+"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelection(text)
		if err != nil {
			return
		}
		again, err := ParseSelection(s.String())
		if err != nil {
			t.Fatalf("%q is written %q, which is wrong: %v", text, s, err)
		}
		for _, n := range []int{0, 1, 7, 65535} {
			if s.Major(n) != again.Major(n) || s.Minor(n) != again.Minor(n) {
				t.Fatalf("%q and %q differ at %d", text, again, n)
			}
		}
	})
}
