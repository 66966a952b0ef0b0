// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strings"
	"testing"
	"time"
)

func TestSettingsThatCannotBeAreNamed(t *testing.T) {
	_, err := NewRules(Config{
		HoldDown: -1, FlapWindow: -1, StuckAfter: -1, WatchFor: -1, FlapLimit: 1000, Contained: Repeat{Count: 1, Within: time.Hour, Class: ClassReset},
	})
	for _, want := range []string{"hold-down", "flap window", "stuck", "watch", "flap limit is 1000", "contained errors: a count of 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, r := range []Repeat{{2, 0, ClassReset}, {65, time.Hour, ClassReset}, {2, time.Hour, ClassInfo}, {2, time.Hour, 99}} {
		if r.Validate() == nil {
			t.Errorf("%+v is valid", r)
		}
	}
}

func TestATableTakesOtherRows(t *testing.T) {
	table := testTable(t)
	over, err := table.With([]XID{{Code: 79, Name: "mine", Class: ClassInfo}, {Code: 998, Name: "new", Class: ClassReset, Alert: true}})
	if err != nil || over.Lookup(79).Name != "mine" || over.Lookup(998).Class != ClassReset || over.Lookup(13).Class != ClassApp || len(over.Alerted()) != 1 {
		t.Errorf("%+v, %v", over, err)
	}
	if table.Lookup(79).Class != ClassNode || table.Lookup(998).Name != "unknown" {
		t.Error("the first table was modified")
	}
	var none *XIDTable
	if over, err := none.With([]XID{{Code: 1, Name: "a", Class: ClassApp}}); err != nil || over.Lookup(1).Name != "a" {
		t.Errorf("%v", err)
	}
	if _, err := table.With([]XID{{Code: 1}}); err == nil {
		t.Error("a row without a name is taken")
	}
}
