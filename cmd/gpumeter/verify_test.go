// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/promusage"
)

func TestVerifyGolden(t *testing.T) {
	dir := shift(t)
	out, noise, code := ask(t, "verify", "--ledger", dir)
	golden(t, "verify.txt", settled(out, dir, idOf(t, dir)))
	if code != 0 || noise != "" {
		t.Errorf("exit code %d, and it says %q", code, noise)
	}
}

func TestVerifyEndsWithTheWorstThatItFound(t *testing.T) {
	for _, tt := range []struct {
		name string
		harm func(t *testing.T, dir string)
		want int
		says []string
	}{
		{"nothing", func(*testing.T, string) {}, 0, []string{"PROVEN"}},
		{"a changed part", func(t *testing.T, dir string) {
			rewrite(t, newestSegment(t, dir), func(s string) string { return strings.Replace(s, `"part":"1/4"`, `"part":"1/5"`, 1) })
		}, exitUnbalanced, []string{"CONTRADICTED", "damage", ".gml:"}},
		{"a line taken out", func(t *testing.T, dir string) {
			rewrite(t, newestSegment(t, dir), func(s string) string {
				lines := strings.SplitAfter(s, "\n")
				return strings.Join(append(lines[:5:5], lines[6:]...), "")
			})
		}, exitUnbalanced, []string{"CONTRADICTED", "chain"}},
		{"the end cut off", func(t *testing.T, dir string) {
			rewrite(t, newestSegment(t, dir), func(s string) string {
				lines := strings.SplitAfter(s, "\n")
				return strings.Join(lines[:len(lines)-3], "")
			})
		}, exitUnbalanced, []string{"CONTRADICTED", "2 records at the end are missing"}},
		{"no totals", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "book", "totals.db")); err != nil {
				t.Fatal(err)
			}
		}, exitIncomplete, []string{"INCOMPLETE", "nothing can say"}},
		{"a ledger put aside", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "book.corrupt-20261101T000000Z"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, exitIncomplete, []string{"INCOMPLETE", "put aside"}},
		{"a line being written", func(t *testing.T, dir string) {
			rewrite(t, newestSegment(t, dir), func(s string) string { return s + "0123abcd" })
		}, 0, []string{"PROVEN", "not whole"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := shift(t)
			tt.harm(t, dir)
			out, noise, code := ask(t, "verify", "--ledger", dir)
			if code != tt.want || noise != "" {
				t.Errorf("exit code %d, want %d; it says %q", code, tt.want, noise)
			}
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestVerifyInJSON(t *testing.T) {
	dir := shift(t)
	out, _, code := ask(t, "verify", "--json", "--ledger", dir)
	var v verification
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v in %s", code, err, out)
	}
	if l := v.Ledgers; len(l) != 1 || l[0].Verdict != verdictProven || l[0].Node != "node-1" || l[0].GPUs != 1 || l[0].Problems == nil || l[0].Proven < 2 {
		t.Errorf("ledgers %+v", l)
	}
}

func TestVerifyTakesAFolderOfLedgers(t *testing.T) {
	parent := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.CopyFS(parent+"/"+name, os.DirFS(shift(t))); err != nil {
			t.Fatal(err)
		}
	}
	out, _, code := ask(t, "verify", "--ledger", parent, "--ledger", parent+"/a")
	if code != 0 || strings.Count(out, "PROVEN") != 2 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestVerifySaysWhatItCannotLookAt(t *testing.T) {
	dir := shift(t)
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"verify"}, "--ledger DIR or --prometheus URL"},
		{[]string{"verify", "--ledger", t.TempDir()}, "--ledger-dir"},
		{[]string{"verify", "--ledger", dir + "/none"}, "no such file"},
		{[]string{"verify", "--ledger", dir, "--month", "last"}, "verified whole"},
		{[]string{"verify", "--ledger", dir, "--step", "1ms"}, "--step"},
		{[]string{"verify", "--prometheus", "prometheus:9090"}, "http://"},
		{[]string{"verify", "--prometheus", "http://u:secret@x y"}, "no URL"},
		{[]string{"verify", "--prometheus", down.URL, "--from", "-1h"}, "404"},
		{[]string{"verify", dir}, "is no flag"},
	} {
		_, noise, code := ask(t, tt.args...)
		if code != 1 || !strings.Contains(noise, tt.want) || strings.Contains(noise, "secret") {
			t.Errorf("%v: exit code %d, and it says %q", tt.args, code, noise)
		}
	}
}

func TestWhatPrometheusLacksIsNoContradiction(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		v    promusage.Verification
		want int
		says string
	}{
		{"nothing there", promusage.Verification{}, exitIncomplete, "nothing to prove"},
		{"what was not looked for", promusage.Verification{GPUs: 1, Checked: 1, Notes: []string{"nobody looked for falls"}}, 0, "note: nobody looked for falls"},
		{"all well", promusage.Verification{GPUs: 1, Checked: 1234, Worst: 2, Allowed: 7}, 0, "1,234 readings"},
		{"a violation", promusage.Verification{Checked: 2, Failed: 2, Violations: []promusage.Violation{{Node: "n", Card: "GPU-0", At: at, Difference: 99}}}, exitUnbalanced, "99 µs too much"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := verification{Prometheus: serverProofOf(&tt.v)}
			var out strings.Builder
			if err := v.write(&out); err != nil || v.exitCode() != tt.want || !strings.Contains(out.String(), tt.says) {
				t.Errorf("exit code %d, %v:\n%s", v.exitCode(), err, &out)
			}
		})
	}
}

func TestVerifySaysFromWhichRecordOnItProved(t *testing.T) {
	k := newBookkeeper(t, "node-1")
	for range 2 {
		k.stand(time.Hour, nil, replica("ml", "train-0"), rest(3))
		k.pass(24 * time.Hour)
	}
	k.stand(time.Hour, nil, rest(4))
	k.close()
	names, err := filepath.Glob(filepath.Join(k.dir, "book", "log-*.gml"))
	if err != nil || len(names) < 2 {
		t.Fatal(names, err)
	}
	if err := os.Remove(names[0]); err != nil {
		t.Fatal(err)
	}
	out, _, code := ask(t, "verify", "--ledger", k.dir)
	first, _, _ := strings.Cut(out, "\n")
	if code != 0 || !strings.Contains(first, "PROVEN from record ") || !strings.Contains(first, "not here") || !strings.Contains(out, "no record from there on was changed") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
