// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryClassHasAWordThatLeadsBackToIt(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Classes() {
		back, err := ParseClass(c.String())
		if err != nil || back != c || c.String() == "none" || seen[c.String()] {
			t.Errorf("class %d is %q, which leads to %d (%v)", c, c, back, err)
		}
		seen[c.String()] = true
	}
	for _, word := range []string{"", "none", "rma", "App", "reset "} {
		if c, err := ParseClass(word); err == nil || !strings.Contains(err.Error(), "contained") {
			t.Errorf("%q is class %v, error %v; want an error with the known words", word, c, err)
		}
	}
	for _, c := range []Class{0, ClassHardware + 1, 255} {
		if c.String() != "none" {
			t.Errorf("class %d is %q, want none", uint8(c), c)
		}
	}
}

func TestABadRowIsNamedAndThereIsNoTable(t *testing.T) {
	good := XID{Code: 79, Name: "fell off the bus", Class: ClassNode, Source: "catalogue", Alert: true}
	for _, story := range []struct {
		rows []XID
		want []string
	}{
		{[]XID{good, {Code: 79, Name: "again", Class: ClassApp}}, []string{"XID 79 is there twice", `"fell off the bus" and "again"`}},
		{[]XID{good, {Code: 8, Name: "no class"}}, []string{"XID 8 has no class", "hardware"}},
		{[]XID{good, {Code: 8, Name: "wrong class", Class: 99}}, []string{"XID 8 has no class"}},
		{[]XID{good, {Code: 8, Class: ClassApp}}, []string{"XID 8 has no name"}},
		{[]XID{good, {Code: 0, Name: "zero", Class: ClassApp}}, []string{"XID 0 is out of range"}},
		{[]XID{good, {Code: -7, Name: "negative", Class: ClassApp}, {Code: 1000, Name: "far", Class: ClassApp}}, []string{"XID -7 is out", "XID 1000 is out"}},
	} {
		table, err := NewXIDTable(story.rows)
		if err == nil || table != nil {
			t.Errorf("%+v: table %v, error %v; want an error alone", story.rows[1:], table, err)
			continue
		}
		for _, want := range story.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", story.rows[1:], err, want)
			}
		}
	}
}

func TestACodeThatNobodyKnowsIsOneToWatch(t *testing.T) {
	table, err := NewXIDTable([]XID{{Code: 1, Name: "lowest", Class: ClassApp}, {Code: MaxXID, Name: "highest", Class: ClassInfo}})
	if err != nil {
		t.Fatal(err)
	}
	var none *XIDTable
	for _, from := range []*XIDTable{table, {}, none} {
		for _, code := range []int{-1, 0, 500, 1 << 40} {
			if x, want := from.Lookup(code), (XID{Code: code, Name: "unknown", Class: ClassWatch}); x != want {
				t.Errorf("code %d is %+v, want %+v", code, x, want)
			}
		}
	}
	if table.Lookup(1).Name != "lowest" || table.Lookup(MaxXID).Name != "highest" {
		t.Error("the codes at the borders are not known")
	}
	if none.Lookup(1).Name != "unknown" || none.Alerted() != nil {
		t.Error("no table knows something")
	}
}

// Whatever rows a table is made of and in whatever order, each comes back by its code, and the
// alerted ones are all there and ascending; nobody can change the table from outside.
func TestATableGivesBackWhatItWasMadeOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) XID {
			return XID{
				Code: rapid.IntRange(1, MaxXID).Draw(t, "code"), Name: rapid.StringN(1, 9, 20).Draw(t, "name"),
				Class: rapid.SampledFrom(Classes()).Draw(t, "class"), Alert: rapid.Bool().Draw(t, "alert"),
			}
		}), 0, 30, func(x XID) int { return x.Code }).Draw(t, "rows")
		given := slices.Clone(rows)
		table, err := NewXIDTable(given)
		if err != nil {
			t.Fatal(err)
		}
		for i := range given {
			given[i] = XID{}
		}
		var alerted []XID
		for _, x := range rows {
			if got := table.Lookup(x.Code); got != x {
				t.Fatalf("%+v came back as %+v", x, got)
			}
			if x.Alert {
				alerted = append(alerted, x)
			}
		}
		slices.SortFunc(alerted, func(a, b XID) int { return a.Code - b.Code })
		for range 2 {
			got := table.Alerted()
			if !slices.Equal(got, alerted) {
				t.Fatalf("alerted are %+v, want %+v", got, alerted)
			}
			for i := range got {
				got[i].Code = -1
			}
		}
	})
}
