// SPDX-License-Identifier: Apache-2.0

package exporter

import "testing"

func TestLabelSetsAreValidatedAsAWhole(t *testing.T) {
	var table labelTable
	table.ids = make(map[string]labelID)
	first := table.intern([]label{{"a", "1"}, {"b", "2"}})
	for name, set := range map[string][]label{
		"repeated name":  {{"a", "1"}, {"b", "2"}, {"a", "3"}},
		"reserved name":  {{"a", "1"}, {"__name__", "spoof"}},
		"invalid name":   {{"a", "1"}, {"b-c", "2"}},
		"no name":        {{"", "1"}},
		"leading digit":  {{"1a", "1"}},
		"UTF-8 in names": {{"ä", "1"}},
	} {
		if id := table.intern(set); id != noLabels {
			t.Errorf("%s: set %d", name, id)
		}
	}
	if again := table.intern([]label{{"a", "1"}, {"none", ""}, {"b", "2"}}); again != first {
		t.Errorf("an equal set is %d, was %d", again, first)
	}
	// A repeated name without a value is no label at all.
	if id := table.intern([]label{{"a", "1"}, {"a", ""}}); id == noLabels || id == first {
		t.Errorf("set %d", id)
	}
	if len(table.sets) != 2 || len(table.pairs) != 3 {
		t.Errorf("refused sets left traces: %d sets, %d pairs", len(table.sets), len(table.pairs))
	}
}

func TestEscaping(t *testing.T) {
	for in, want := range map[string]string{
		"plain": `plain`, `\`: `\\`, "\n": `\n`, `"`: `\"`, "a\\n\"\nü": `a\\n\"\nü`, "\\\\": `\\\\`, "\r\t": "\r\t",
	} {
		if got := string(appendEscaped(nil, in, true)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	if got := string(appendEscaped(nil, "say \"\\\"\n", false)); got != `say "\\"\n` {
		t.Errorf("help: %s", got)
	}
}
