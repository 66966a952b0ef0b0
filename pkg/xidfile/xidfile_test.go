// SPDX-License-Identifier: Apache-2.0

package xidfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/health"
)

func TestTheShippedXIDsHaveNoProblem(t *testing.T) {
	table, problems := Parse("etc/xid.yaml", etc.XIDs())
	for _, err := range problems {
		t.Error(err)
	}
	for code, want := range map[int]health.Class{
		13: health.ClassApp, 14: health.ClassInfo, 31: health.ClassApp, 43: health.ClassApp, 45: health.ClassWatch,
		48: health.ClassReset, 54: health.ClassHardware, 63: health.ClassInfo, 64: health.ClassReset, 68: health.ClassApp,
		74: health.ClassReset, 78: health.ClassWatch, 79: health.ClassNode, 94: health.ClassContained, 95: health.ClassReset,
		109: health.ClassWatch, 119: health.ClassReset, 120: health.ClassReset, 128: health.ClassApp, 140: health.ClassReset,
		147: health.ClassWatch, 151: health.ClassNode, 154: health.ClassWatch, 167: health.ClassNode, 176: health.ClassInfo,
	} {
		if x := table.Lookup(code); x.Class != want || x.Source == "" {
			t.Errorf("XID %d %q is %v, of source %q, want %v and a source", code, x.Name, x.Class, x.Source, want)
		}
	}
	if got, want := table.Lookup(109).Repeat, (health.Repeat{Count: 3, Within: 10 * time.Minute, Class: health.ClassReset}); got != want {
		t.Errorf("XID 109 repeated is %+v, want %+v", got, want)
	}
	if x := table.Lookup(998); x.Name != "unknown" {
		t.Errorf("XID 998 is %q", x.Name)
	}
}

// What asks for somebody's hands is worth an alert, and what is a program's own fault is not.
func TestTheShippedAlertsAreThoseThatAskForHands(t *testing.T) {
	table, _ := Parse("etc/xid.yaml", etc.XIDs())
	also := map[int]bool{63: true, 92: true, 109: true, 154: true, 157: true}
	known := 0
	for code := 1; code <= health.MaxXID; code++ {
		x := table.Lookup(code)
		if x.Source != "" {
			known++
		}
		hands := x.Class == health.ClassReset || x.Class == health.ClassNode || x.Class == health.ClassHardware || x.Class == health.ClassContained
		if x.Alert != (hands || also[code]) {
			t.Errorf("XID %d %q of class %v: alert is %v", code, x.Name, x.Class, x.Alert)
		}
	}
	if known != 151 {
		t.Errorf("%d codes are known, want 151", known)
	}
}

func TestABadRowOfXIDsCostsThatRow(t *testing.T) {
	const good = "  - {code: 79, name: gone, class: node, alert: true, source: me}\n"
	for _, row := range []struct{ text, problem string }{
		{"{name: a, class: app}", `the code is ""`},
		{"{code: x, name: a, class: app}", `the code is "x"`},
		{"{code: 013, name: a, class: app}", `the code is "013"`},
		{"{code: 7.5, name: a, class: app}", `the code is "7.5"`},
		{"{code: 0, name: a, class: app}", "out of range"},
		{"{code: -1, name: a, class: app}", "out of range"},
		{"{code: 1190, name: a, class: app}", "out of range (write 1 to 999)"},
		{"{code: 99999999999999999999, name: a, class: app}", "the code is"},
		{"{code: 8, class: app}", "no name"},
		{"{code: 8, name: a}", `unknown class ""`},
		{"{code: 8, name: a, class: rma}", `unknown class "rma" (known: app, info, watch, contained, reset, node, hardware)`},
		{"{code: 8, name: a, class: app, alert: maybe}", `alert is "maybe"`},
		{"{code: 8, name: a, class: app, alarm: true}", `unknown key "alarm" in the row (known: alert, class, code, name, repeat, source)`},
		{"{code: 8, code: 9, name: a, class: app}", `key "code" twice`},
		{"{code: 8, name: [a], class: app}", "name must be text"},
		{"{code: 8, name: , class: app}", "name must be text"},
		{"{code: 8, name: *n, class: app}", "name must be text"},
		{"{<<: *n, code: 8}", `unknown key "<<"`},
		{"{[8]: a}", `unknown key ""`},
		{"{name: &code a, *code : 8, class: app}", `unknown key "code"`},
		{"{code: 8, name: a, class: watch, repeat: 3}", "repeat must be a mapping"},
		{"{code: 8, name: a, class: watch, repeat: {}}", `repeat has the count ""`},
		{"{code: 8, name: a, class: watch, repeat: {count: 3, within: 10, class: reset}}", `repeat is within "10" (write a time such as 10m)`},
		{"{code: 8, name: a, class: watch, repeat: {count: 3, within: -1m, class: reset}}", "repeat: repeats within -1m0s"},
		{"{code: 8, name: a, class: watch, repeat: {count: 1, within: 10m, class: reset}}", "repeat: a count of 1 repeats (write 2 to 64)"},
		{"{code: 8, name: a, class: watch, repeat: {count: 3, within: 10m, class: rma}}", `repeat: unknown class "rma"`},
		{"{code: 8, name: a, class: watch, repeat: {count: 3, within: 10m, class: app}}", "repeat: repeats of class app"},
		{"{code: 8, name: a, class: watch, repeat: {count: 3, within: 10m}}", `repeat: unknown class ""`},
		{"{code: 8, name: a, class: watch, repeat: {count: [3], within: 10m, class: reset}}", "count must be text"},
		{"{code: 8, name: a, class: watch, repeat: {count: 3, in: 10m, class: reset}}", `unknown key "in" in repeat (known: class, count, within)`},
		{"{code: 8, name: a, class: node, repeat: {count: 3, within: 10m, class: reset}}", "XID 8 of class node cannot rise to reset"},
		{"{code: 8, name: a, class: app, repeat: {count: 3, within: 10m, class: reset}}", "XID 8 of class app cannot rise to reset"},
		{"8", "the row must be a mapping"},
		{"*n", "the row must be a mapping"},
		{"{code: 79, name: a, class: app}", "there already, in line 2 (keep one)"},
	} {
		text := "xids:\n" + good + "  - " + row.text + "\n  - &n {code: 31, name: fault, class: app}\n"
		if strings.Contains(row.text, "*n") {
			text = "xids:\n" + strings.Replace(good, "{", "&n {", 1) + "  - " + row.text + "\n  - {code: 31, name: fault, class: app}\n"
		}
		table, problems := Parse("my.yaml", []byte(text))
		if len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), "my.yaml:3: ") || !strings.Contains(problems[0].Error(), row.problem) {
			t.Errorf("%s: problems %v, want one in line 3 with %q", row.text, problems, row.problem)
		}
		if table.Lookup(79).Class != health.ClassNode || table.Lookup(31).Name != "fault" || table.Lookup(8).Name != "unknown" {
			t.Errorf("%s: the rows around it are gone, or it is there: %+v, %+v, %+v", row.text, table.Lookup(79), table.Lookup(31), table.Lookup(8))
		}
	}
}

func TestAFileThatIsNoTableOfXIDsIsOneProblem(t *testing.T) {
	for _, file := range []struct{ text, problem string }{
		{"", "my.yaml:1: the file is empty"},
		{"# nothing\n", "my.yaml:1: the file is empty"},
		{"79\n", "my.yaml:1: the file must be a mapping"},
		{"xids: 79\n", "my.yaml:1: xids must be a list"},
		{"xids:\n  - {code: 79\n", "not YAML"},
		{"\nxids: []\nrules: []\n", `my.yaml:3: unknown key "rules" in the file (known: xids)`},
		{"xids: []\nxids: []\n", `my.yaml:2: key "xids" twice in the file`},
		{"xids: []\n---\nxids: []\n", "something follows the table"},
		{"\x00", "my.yaml:1: not YAML"},
	} {
		table, problems := Parse("my.yaml", []byte(file.text))
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), file.problem) {
			t.Errorf("%q: problems %v, want one with %q", file.text, problems, file.problem)
		}
		if table == nil || len(table.Alerted()) != 0 {
			t.Errorf("%q: table %v, want an empty one", file.text, table)
		}
	}
}

func TestAHopelessFileOfXIDsDoesNotFloodTheLog(t *testing.T) {
	_, problems := Parse("my.yaml", []byte("xids:\n"+strings.Repeat("  - {code: none}\n", 500)))
	if n := len(problems); n != problemLimit+1 || problems[n-1].Error() != "my.yaml: and 480 more" {
		t.Errorf("%d problems, the last %v; want 20 and the number of those left out", n, problems[n-1])
	}
}

func FuzzParse(f *testing.F) {
	// The whole file as a seed would keep the fuzzer busy with making it smaller.
	f.Add(string(etc.XIDs()[len(etc.XIDs())-300:]))
	f.Add("xids:\n  - {code: 79, name: gone, class: node, alert: true}\n  - &a {code: 8}\n  - *a\n---\n")
	f.Add("xids: &x [*x]\n")
	f.Add("? {a: b}\n: - 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, problems := Parse("f", []byte(text))
		if table == nil || len(problems) > problemLimit+1 {
			t.Fatalf("table %v with %d problems", table, len(problems))
		}
		for _, err := range problems {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("a problem without its file: %v", err)
			}
		}
		if len(problems) > 0 && strings.Contains(fmt.Sprint(problems), "XID table") {
			t.Errorf("a row went through that the table does not take: %v", problems)
		}
		last := 0
		for _, x := range table.Alerted() {
			if x.Code <= last || x.Validate() != nil {
				t.Errorf("row %+v after code %d", x, last)
			}
			last = x.Code
		}
	})
}

func TestAnOperatorsFileStandsInPlaceOfItsRowsOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "mine.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("xids:\n  - {code: 31, class: reset, name: ours}\n")
	table, err := Load(etc.XIDs(), name)
	if err != nil {
		t.Fatal(err)
	}
	if x := table.Lookup(31); x.Class != health.ClassReset || x.Name != "ours" {
		t.Errorf("XID 31 is %+v", x)
	}
	if x := table.Lookup(79); x.Class != health.ClassNode || x.Source == "" {
		t.Errorf("XID 79, which the file does not have, is %+v", x)
	}
	if table, err := Load(etc.XIDs(), ""); err != nil || table.Lookup(31).Class != health.ClassApp {
		t.Errorf("without a file: %v", err)
	}
	write("xids:\n  - {code: 31, class: reset, name: ours}\n  - {code: 79, class: fatal, name: x}\n")
	if _, err := Load(etc.XIDs(), name); err == nil || !strings.Contains(err.Error(), name+":3: ") {
		t.Errorf("with a bad row: %v, want its place", err)
	}
	write(strings.Repeat("#", fileLimit+1))
	if _, err := Load(etc.XIDs(), name); err == nil || !strings.Contains(err.Error(), "no table of XIDs") {
		t.Errorf("a huge file: %v", err)
	}
	for _, not := range []string{filepath.Dir(name), name + ".gone", os.DevNull} {
		if _, err := Load(etc.XIDs(), not); err == nil || !strings.Contains(err.Error(), "give a readable file") {
			t.Errorf("%s: %v", not, err)
		}
	}
	if _, err := Load([]byte("xids: 3"), ""); err == nil {
		t.Error("a built-in table that is none has no error")
	}
}
