// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

// desk is a reader of reports on the evening after a shift.
type desk struct {
	now   time.Time
	stdin string
}

func evening() *desk { return &desk{now: bookStart.AddDate(0, 0, 1)} }

// report runs gpumeter report as a command line does.
func (d *desk) report(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, noise bytes.Buffer
	r := &reporter{stdin: strings.NewReader(d.stdin), stdout: &out, stderr: &noise, now: func() time.Time { return d.now }}
	code = exitCode(r.command().Run(t.Context(), append([]string{"report"}, args...)), &noise)
	return out.String(), noise.String(), code
}

// rowsOf are the rows of a CSV by the names of its columns.
func rowsOf(t *testing.T, text string) []map[string]string {
	t.Helper()
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(lines) == 0 {
		t.Fatalf("%v in %q", err, text)
	}
	rows := make([]map[string]string, 0, len(lines)-1)
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, cell := range line {
			row[lines[0][i]] = cell
		}
		rows = append(rows, row)
	}
	return rows
}

func sumOf(t *testing.T, rows []map[string]string, column string) *big.Rat {
	t.Helper()
	sum := new(big.Rat)
	for _, row := range rows {
		d, ok := new(big.Rat).SetString(row[column])
		if !ok {
			t.Fatalf("%s is %q", column, row[column])
		}
		sum.Add(sum, d)
	}
	return sum
}

const flatPrices = "format: 1\nname: flat\ncurrency: USD\nprices:\n  - {name: all, model: \"*\", price: 2.99}\ndiscounts:\n  - {name: off, percent: 12.5}\n"

func TestAReportOfALedgerAddsUpToWhatTheGPUWasThereFor(t *testing.T) {
	dir, prices := shift(t), saved(t, flatPrices)
	for _, by := range []string{"namespace", "pod,mode", "hour", "day,namespace,resource", "node,cluster,model,profile", "label:app,node-label:pool,workload"} {
		out, noise, code := evening().report(t, shiftFlags(dir, "--format", "csv", "--group-by", by, "--prices", prices)...)
		if code != 0 || noise != "" {
			t.Fatalf("by %s: exit code %d, and it says %q", by, code, noise)
		}
		rows := rowsOf(t, out)
		if got := sumOf(t, rows, "billed_gpu_hours").FloatString(6); got != "2.033333" {
			t.Errorf("by %s: %s GPU-hours of two hours and two minutes", by, got)
		}
		if got := sumOf(t, rows, "total_cost").FloatString(4); got != "5.3200" {
			t.Errorf("by %s: %s USD, want 2.0333 h at 2.99 less 12.5 %%", by, got)
		}
		for _, row := range rows {
			if row["discount_percent"] != "12.5" && row["list_cost"] != "0.00" || row["policy_version"] != "mig-blend+replica-even@v1" || row["row_id"] == "" {
				t.Errorf("by %s: row %v", by, row)
			}
		}
	}
}

func TestAdjacentPeriodsAddUp(t *testing.T) {
	dir := shift(t)
	hours := func(from, to string) *big.Rat {
		out, _, _ := evening().report(t, "--ledger", dir, "--from", from, "--to", to, "--format", "csv", "--tz", "Europe/Berlin")
		return sumOf(t, rowsOf(t, out), "billed_gpu_hours")
	}
	whole := hours("2026-11-10T09:00", "2026-11-10T11:02")
	first, second := hours("2026-11-10T09:00", "2026-11-10T10:01:07"), hours("2026-11-10T10:01:07", "2026-11-10T11:02")
	if new(big.Rat).Add(first, second).Cmp(whole) != 0 {
		t.Errorf("%s and %s are not %s", first, second, whole)
	}
}

func TestTheExitCodeSaysHowGoodAReportIs(t *testing.T) {
	whole, young := shift(t), newBookkeeper(t, "node-2")
	young.stand(10*time.Minute, nil, rest(4))
	young.close()
	broken := shift(t)
	rewrite(t, newestSegment(t, broken), func(string) string { return "nonsense\n" })
	both := t.TempDir()
	for name, dir := range map[string]string{"a": whole, "b": broken} {
		if err := os.Symlink(dir, filepath.Join(both, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		flags []string
		now   time.Time
		code  int
		says  string
	}{
		{"it is all there", shiftFlags(whole), time.Time{}, 0, ""},
		{"the exporter is gone", []string{"--ledger", young.dir, "--from", "2026-11-10T08:00", "--to", "2026-11-10T10:00"}, time.Time{}, exitIncomplete, "incomplete"},
		{"the period goes on, and all is there until now", shiftFlags(whole), bookStart.Add(time.Hour), 0, ""},
		{"the period is yet to come", shiftFlags(whole), bookStart.Add(-time.Hour), 1, "has not come yet"},
		{"one of two ledgers cannot be read", shiftFlags(both), time.Time{}, exitIncomplete, "incomplete"},
		{"none can", shiftFlags(broken), time.Time{}, 1, "gpumeter verify"},
		{"nobody metered then", []string{"--ledger", whole, "--month", "2025-11"}, time.Time{}, 1, "nobody has metered anything in this period"},
		{"no such node", shiftFlags(whole, "--node", "node-9"), time.Time{}, 1, "do the filters name something"},
		{"it is not over, and has to be", []string{"--ledger", whole, "--month", "this", "--closed-only"}, time.Time{}, 1, "has not come yet"},
		{"no price", shiftFlags(whole, "--prices", saved(t, strings.Replace(flatPrices, `"*"`, "L4", 1))), time.Time{}, 1, "no price for it"},
		{
			"a price by labels that nobody told", shiftFlags(whole, "--prices", saved(t, strings.Replace(flatPrices, "prices:\n", "prices:\n  - {name: spot, model: \"*\", spot: true, price: 1}\n", 1))),
			time.Time{}, 1, "--node-labels",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := evening()
			if !tt.now.IsZero() {
				d.now = tt.now
			}
			out, noise, code := d.report(t, tt.flags...)
			if code != tt.code || !strings.Contains(noise, tt.says) || tt.says == "" && noise != "" {
				t.Errorf("exit code %d, want %d; it says %q\n%s", code, tt.code, noise, out)
			}
			if code == exitIncomplete && !strings.Contains(out, "INCOMPLETE") || code == 1 && out != "" {
				t.Errorf("exit code %d, and the report is\n%s", code, out)
			}
		})
	}
}

func TestContradictionsOutweighWhatIsMissing(t *testing.T) {
	for _, tt := range []struct {
		bill bill.Bill
		code int
	}{
		{bill.Bill{Complete: true}, 0},
		{bill.Bill{}, exitIncomplete},
		{bill.Bill{Difference: 1}, exitUnbalanced},
		{bill.Bill{Complete: true, Unbalanced: []string{"here"}}, exitUnbalanced},
	} {
		if code := exitCode(verdict(&tt.bill), &bytes.Buffer{}); code != tt.code {
			t.Errorf("difference %d, unbalanced %v, complete %t: exit code %d, want %d", tt.bill.Difference, tt.bill.Unbalanced, tt.bill.Complete, code, tt.code)
		}
	}
}

func TestTheEndingOfAFileSaysItsFormat(t *testing.T) {
	dir, to := shift(t), t.TempDir()
	begins := map[string]string{
		"a.csv": "period_start,", "a.json": "{\n", "a.HTML": "<!doctype html>", "a.htm": "<!doctype html>", "a.txt": "GPU bill for 2026-11-10 08:00",
		"a.focus.csv": "AllocatedMethodDetails,",
	}
	args := shiftFlags(dir, "--format", "none", "--prices", saved(t, flatPrices), "--items")
	for name := range begins {
		args = append(args, "-o", filepath.Join(to, name))
	}
	out, noise, code := evening().report(t, args...)
	if code != 0 || out != "" || strings.Count(noise, "written: ") != len(begins) {
		t.Fatalf("exit code %d, %q and %q", code, out, noise)
	}
	for name, begin := range begins {
		data, err := os.ReadFile(filepath.Join(to, name))
		if err != nil || !strings.HasPrefix(strings.ToLower(string(data)), strings.ToLower(begin)) {
			t.Errorf("%s begins with %.40q, %v", name, data, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(to, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	var document struct {
		Rows  []struct{ Items []struct{} }
		Hours []struct{}
	}
	data, _ := os.ReadFile(filepath.Join(to, "a.json"))
	if err := json.Unmarshal(data, &document); err != nil || len(document.Rows) == 0 || len(document.Rows[0].Items) == 0 || len(document.Hours) != 3 {
		t.Errorf("the JSON has %d rows, %d hours, %v", len(document.Rows), len(document.Hours), err)
	}
}

func TestAFileIsThereWholeOrNotAtAll(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.csv")
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(name, "full"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, noise, code := evening().report(t, shiftFlags(shift(t), "-o", name)...)
	if code != 1 || !strings.Contains(noise, "--output") {
		t.Errorf("a folder was in the way: exit code %d, %q", code, noise)
	}
	if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) != 1 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestFlagsThatCannotBeAreRefusedBeforeAnythingIsRead(t *testing.T) {
	for _, tt := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--format", "xml"}, "want table, csv, json, html, focus or none"},
		{[]string{"--view", "boss"}, "want finance or platform"},
		{[]string{"--focus-version", "1.1"}, "want 1.2 or 1.3"},
		{[]string{"-o", "a.pdf"}, "its ending says no format"},
		{[]string{"--format", "focus"}, "--prices"},
		{[]string{"-o", "a.focus.csv"}, "--prices"},
		{[]string{"--reconcile"}, "give --ledger and --prometheus"},
		{[]string{"--prometheus", "http://127.0.0.1:1"}, "Give one, or --reconcile"},
		{[]string{"--group-by", "colour"}, "known are cluster, node, namespace, pod"},
		{[]string{"--group-by", "pod, pod"}, "twice"},
		{[]string{"--group-by", "label:"}, "the label is missing"},
		{[]string{"--group-by", "team"}, "(--teams)"},
		{[]string{"--group-by", "cost-center"}, "(--teams)"},
		{[]string{"--group-by", "namespace-label:a"}, "(--namespaces)"},
		{[]string{"--teams", "/none"}, "--teams: open /none"},
		{[]string{"--prices", "/none"}, "--prices: open /none"},
		{[]string{"--prices", saved(t, "prices: 3")}, ":1: "},
		{[]string{"--namespaces", "/none"}, "--namespaces: open /none"},
		{[]string{"--namespaces", "-"}, "kubectl get namespaces -o json"},
		{[]string{"--from", "yesterday"}, "--from \"yesterday\": want a time"},
		{[]string{"--tz", "Mars"}, "--tz \"Mars\""},
		{[]string{"stray"}, "\"stray\" is no flag"},
		{[]string{"--nonsense"}, "-nonsense"},
	} {
		out, noise, code := evening().report(t, append([]string{"--ledger", "/there/is/no/ledger/here"}, tt.flags...)...)
		if code != 1 || out != "" || !strings.Contains(noise, tt.want) {
			t.Errorf("%v: exit code %d, %q, and it says %q", tt.flags, code, out, noise)
		}
	}
}

func TestANameThatNothingIsFoundForIsSaid(t *testing.T) {
	dir := shift(t)
	out, _, code := evening().report(t, shiftFlags(dir, "--namespace", "ml", "--namespace", "mll", "--pod", "train-1", "--node", "node-1", "--node", "node-7")...)
	for _, want := range []string{"--namespace mll: no such namespace", "--pod train-1: no such pod", "--node node-7: no node"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d; %q is not in\n%s", code, want, out)
		}
	}
	if strings.Contains(out, "node-1: no node") {
		t.Errorf("node-1 is there:\n%s", out)
	}
}

func TestTeamsAndLabelsComeFromWhatKubectlSays(t *testing.T) {
	d := evening()
	d.stdin = `{"apiVersion":"v1","kind":"List","items":[
		{"kind":"Namespace","metadata":{"name":"ml","labels":{"owner":"research","cc":"4711"}}},
		{"kind":"Namespace","metadata":{"name":"web"}}]}`
	teams := saved(t, "format: 1\nteams:\n  - {team: shop, cost_center: \"12\", namespaces: [\"we*\"]}\nlabel: owner\ncost_center_label: cc\n")
	out, noise, code := d.report(t, shiftFlags(shift(t), "--format", "csv", "--namespaces", "-", "--teams", teams, "--group-by", "team,cost-center,namespace-label:owner")...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, noise)
	}
	var got []string
	for _, row := range rowsOf(t, out) {
		got = append(got, fmt.Sprintf("%s %s %s %s %s", row["kind"], row["team"], row["cost_center"], row["namespace_label_owner"], row["billed_gpu_hours"]))
	}
	if want := []string{"held research 4711 research 0.383333", "held shop 12  0.250000"}; !slices.Equal(got[:2], want) {
		t.Errorf("rows %q", got)
	}
}

func TestListsOfNamespacesThatAreNoneAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "kubectl get namespaces",
		"[]":                          "kubectl get namespaces",
		`{}`:                          `its kind is ""`,
		"apiVersion":                  "kubectl get namespaces",
		`{"kind":"Table","items":[]}`: `its kind is "Table"`,
		`{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"p"}}]}`:   `a "Pod"`,
		`{"kind":"NamespaceList","items":[{"metadata":{}}]}`:                 "item 0",
		`{"kind":"List","items":[{"metadata":{"name":"a","labels":["b"]}}]}`: "kubectl get namespaces",
	} {
		if labels, err := namespaceLabels([]byte(text)); err == nil || labels != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, %v", text, labels, err)
		}
	}
}

func FuzzListsOfNamespaces(f *testing.F) {
	f.Add([]byte(`{"kind":"List","items":[{"kind":"Namespace","metadata":{"name":"a","labels":{"b":"c"}}}]}`))
	f.Add([]byte(`{"kind":"NamespaceList","items":[{"metadata":{"name":"a"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		labels, err := namespaceLabels(data)
		if _, unnamed := labels[""]; unnamed || err != nil && labels != nil {
			t.Errorf("%q is %v, %v", data, labels, err)
		}
	})
}

func TestNamesOfOthersDoNothingInAReport(t *testing.T) {
	k := newBookkeeper(t, "node\x1b[2J")
	k.stand(10*time.Minute, nil, replica("=cmd|' /C calc'!A0", "<script>x</script>"), replica("+1", "\x1b]0;owned\a"), rest(2))
	k.close()
	for _, format := range []string{formatTable, formatCSV, formatJSON, formatHTML, formatFOCUS} {
		args := []string{"--ledger", k.dir, "--from", "2026-11-10T08:00", "--to", "2026-11-10T08:10", "--group-by", "namespace,pod,node", "--prices", saved(t, flatPrices)}
		out, noise, code := evening().report(t, append(args, "--format", format)...)
		if code != 0 || out == "" {
			t.Errorf("%s: exit code %d, %q", format, code, noise)
		}
		bad := map[string][]string{
			formatTable: {"\x1b", "\a"}, formatCSV: {",=cmd", ",+1", "\n=cmd"}, formatJSON: {"\x1b", "\a"}, formatHTML: {"\x1b", "\a", "<script>x"},
			formatFOCUS: {",=cmd", ",+1", "\n=cmd"},
		}
		for _, bad := range bad[format] {
			if strings.Contains(out, bad) {
				t.Errorf("%s has %q in it", format, bad)
			}
		}
	}
}

func TestProgressIsForTerminalsAlone(t *testing.T) {
	p := newProgress(&bytes.Buffer{})
	if p.w != nil || p.step("x") != nil {
		t.Error("progress is written where nobody looks")
	}
	p.say("x")
	p.clear()
	var screen bytes.Buffer
	seen := &progress{w: &screen}
	seen.step("reading")(1, "node-1")
	if got := screen.String(); !strings.Contains(got, "reading: 100 % node-1") {
		t.Errorf("a terminal shows %q", got)
	}
	seen.clear()
	if got := screen.String(); !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("what is left on a terminal is %q", got)
	}
}

func TestReadingsThatOneBoundaryLacksAreMovedApart(t *testing.T) {
	at := func(m int) time.Time { return bookStart.Add(time.Duration(m) * time.Minute) }
	got := readAt([]time.Time{at(0), at(10), at(20), at(30)}, []time.Time{{}, at(9), at(9), at(29)})
	want := []time.Time{at(0), at(9), at(9).Add(time.Millisecond), at(29)}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("read at %v, want %v", got, want)
	}
}

func TestAnErrorToldByAnExitCodeIsNotHidden(t *testing.T) {
	var noise bytes.Buffer
	if code := exitCode(&exitError{code: exitIncomplete, err: errors.New("half")}, &noise); code != exitIncomplete || noise.String() != "gpumeter: half\n" {
		t.Errorf("exit code %d, %q", code, noise.String())
	}
}

func TestAReportOverADamagedLedgerIsNotComplete(t *testing.T) {
	damaged := func(s string) string { return strings.Replace(s, `"part":"1/4"`, `"part":"1/5"`, 1) }
	for _, tt := range []struct {
		name string
		harm func(t *testing.T, dir string)
		want int
		says string
	}{
		{"a changed record", func(t *testing.T, dir string) { rewrite(t, newestSegment(t, dir), damaged) }, exitIncomplete, "damaged"},
		{"another line at the end", func(t *testing.T, dir string) {
			rewrite(t, newestSegment(t, dir), func(s string) string {
				lines := strings.SplitAfter(s, "\n")
				last := lines[len(lines)-2]
				text := strings.Replace(last[9:len(last)-1], "000 ", "001 ", 1)
				lines[len(lines)-2] = fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)), text)
				return strings.Join(lines, "")
			})
		}, exitUnbalanced, "contradicted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := shift(t)
			tt.harm(t, dir)
			out, noise, code := evening().report(t, shiftFlags(dir, "--format", "json")...)
			if code != tt.want || !strings.Contains(out, tt.says) {
				t.Errorf("exit code %d, want %d; %s\n%s", code, tt.want, noise, out)
			}
		})
	}
}
