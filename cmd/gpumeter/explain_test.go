// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/bill"
)

// shiftFlags ask for the day of a shift.
func shiftFlags(dir string, more ...string) []string {
	return append([]string{"--ledger", dir, "--from", "2026-11-10T08:00", "--to", "2026-11-10T10:02"}, more...)
}

func explained(t *testing.T, args ...string) (explanation, int) {
	t.Helper()
	out, noise, code := ask(t, append([]string{"explain", "--json"}, args...)...)
	var x explanation
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		t.Fatalf("exit code %d, %v in %q, and it says %q", code, err, out, noise)
	}
	return x, code
}

func TestExplainGolden(t *testing.T) {
	dir := shift(t)
	out, noise, code := ask(t, append([]string{"explain"}, shiftFlags(dir, "--namespace", "ml")...)...)
	golden(t, "explain.txt", settled(out, dir, idOf(t, dir)))
	if code != 0 || noise != "" {
		t.Errorf("exit code %d, and it says %q", code, noise)
	}
}

// Every row of a report is what its intervals come to, and each interval is behind one row.
func TestEveryRowIsExplainedByItsIntervals(t *testing.T) {
	dir := shift(t)
	for _, by := range []string{"namespace", "pod", "model", "hour", "node"} {
		t.Run(by, func(t *testing.T) {
			made := madeOf(t, shiftFlags(dir, "--group-by", by))
			all := int64(0)
			for _, row := range made.Rows {
				x, code := explained(t, append(shiftFlags(dir, "--group-by", by), row.ID)...)
				if code != 0 || !x.Agrees || len(x.Intervals) == 0 || x.Row != row.ID {
					t.Errorf("row %s %v: exit code %d, %d µs in %d intervals for %d µs", row.ID, row.Keys, code, x.Sum, len(x.Intervals), x.GPUMicros)
				}
				all += x.Sum
			}
			if want := int64(122 * 60 * 1e6); all < want-10 || all > want {
				t.Errorf("all rows come to %d µs, want %d", all, want)
			}
		})
	}
}

// madeOf is the report that flags ask for.
func madeOf(t *testing.T, flags []string) *bill.Bill {
	t.Helper()
	e := &explainer{}
	cmd := &cli.Command{Name: "explain", Flags: e.bill.flags(), Action: func(context.Context, *cli.Command) error { return nil }}
	if err := cmd.Run(t.Context(), append([]string{"explain"}, flags...)); err != nil {
		t.Fatal(err)
	}
	b, err := e.bill.open(bookStart.AddDate(0, 0, 1), strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	b.pods = true
	made, err := b.make(t.Context(), b.source(), false, newProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestARowIsFoundByTheBeginningOfItsID(t *testing.T) {
	dir := shift(t)
	id := madeOf(t, shiftFlags(dir)).Rows[0].ID
	if x, _ := explained(t, append(shiftFlags(dir), id[:len(id)-2])...); x.Row != id {
		t.Errorf("row %q, want %q", x.Row, id)
	}
	if _, noise, code := ask(t, append([]string{"explain"}, shiftFlags(dir, "nothing")...)...); code != 1 || !strings.Contains(noise, "no such row") {
		t.Errorf("exit code %d, and it says %q", code, noise)
	}
}

func TestExplainSaysWhatHappenedMeanwhile(t *testing.T) {
	x, _ := explained(t, shiftFlags(shift(t), "--pod", "train-0")...)
	text := ""
	for _, e := range x.Events {
		text += e.Text + "\n"
	}
	for _, want := range []string{"an exporter began", "the exporter was away", "healthy again"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestExplainNeedsToKnowWhat(t *testing.T) {
	dir := shift(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "--ledger DIR or --prometheus URL"},
		{shiftFlags(dir), "--node, --namespace or --pod"},
		{shiftFlags(dir, "--namespace", "nobody"), "nothing was held"},
		{shiftFlags(dir, "--prometheus", "http://localhost:1", "x"), "Give one"},
		{shiftFlags(dir, "a", "b"), "one row"},
	} {
		if _, noise, code := ask(t, append([]string{"explain"}, tt.args...)...); code != 1 || !strings.Contains(noise, tt.want) {
			t.Errorf("%v: exit code %d, and it says %q", tt.args, code, noise)
		}
	}
}

// What came to be known late is explained in the period that it belongs to, and as an adjustment where that was billed before.
func TestCorrectionsAreExplained(t *testing.T) {
	k := newBookkeeper(t, "node-1")
	k.stand(time.Hour, nil, replica("ml", "train-0"), rest(3))
	k.close()
	k.pass(2 * time.Minute)
	k.open("node-1")
	nameless := replica("ml", "train-0")
	nameless.Holder.PodUID = ""
	k.stand(10*time.Minute, nil, nameless, rest(3))
	k.stand(10*time.Minute, nil, replica("ml", "train-0"), rest(3))
	k.close()
	for _, from := range []string{"2026-11-10T08:00", "2026-11-10T09:05"} {
		flags := []string{"--ledger", k.dir, "--from", from, "--to", "2026-11-10T09:22"}
		kinds := map[bill.RowKind]int{}
		for _, row := range madeOf(t, flags).Rows {
			kinds[row.Kind]++
			x, code := explained(t, append(flags, row.ID)...)
			if code != 0 || !x.Agrees || len(x.Intervals) == 0 {
				t.Errorf("from %s: row %v %s %v: exit code %d, %d µs in %+v for %d µs", from, row.Kind, row.Cause, row.Keys, code, x.Sum, x.Intervals, x.GPUMicros)
			}
		}
		if kinds[bill.KindHeld] != 1 || (kinds[bill.KindAdjustment] > 0) != (from == "2026-11-10T09:05") {
			t.Errorf("from %s: rows %v", from, kinds)
		}
	}
}
