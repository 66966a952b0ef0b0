// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"testing"

	"pgregory.net/rapid"
)

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

// TestAnExtendedSetIsTheSetOfAllItsLabels is the law that it does not matter how a set came
// to be: interned at once or label by label, it is the same or refused alike.
func TestAnExtendedSetIsTheSetOfAllItsLabels(t *testing.T) {
	labels := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) label {
		return label{
			rapid.SampledFrom([]string{"a", "b", "c", "__name__", "1", "d"}).Draw(t, "name"),
			rapid.SampledFrom([]string{"", "x", "y", "\"\n\\", "\x00"}).Draw(t, "value"),
		}
	}), 0, 4)
	rapid.Check(t, func(r *rapid.T) {
		var table labelTable
		table.ids = make(map[string]labelID)
		base, more := labels.Draw(r, "base"), labels.Draw(r, "more")
		first := table.intern(base)
		pairs, text, sets := len(table.pairs), len(table.text), len(table.sets)
		extended := table.extend(first, more...)
		switch at := table.intern(append(base[:len(base):len(base)], more...)); {
		case extended != at:
			r.Fatalf("extended is set %d, at once it is set %d", extended, at)
		case extended < 0 || extended == first:
			if len(table.pairs) != pairs || len(table.text) != text || len(table.sets) != sets {
				r.Fatal("a set that is refused or not new left traces")
			}
		default:
			set := table.sets[extended]
			want := string(appendLabels(nil, table.pairs[set.firstPair:set.endPair], '{'))
			if got := string(table.text[set.firstByte:set.endByte]); got != want {
				r.Fatalf("text %s, want %s", got, want)
			}
		}
	})
}
