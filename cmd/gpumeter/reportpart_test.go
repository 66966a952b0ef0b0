// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	spreadPrices = "format: 1\nname: spread\ncurrency: USD\nidle: spread\nprices:\n  - {name: all, model: \"*\", price: 2.99}\n"
	quotaPrices  = "format: 1\nname: quota\ncurrency: USD\nprices:\n  - {name: all, model: \"*\", price: 2.99}\nquotas:\n  - {name: pot, namespace: \"*\", gpu_hours: 0.3, shared: true}\n"
	tenantPrices = "format: 1\nname: tenant\ncurrency: USD\nidle: sole-tenant\nprices:\n  - {name: all, model: \"*\", price: 2.99}\n"
)

// twoNodes are two ledgers in one folder: a morning of two pods, and one of a third that is alone.
func twoNodes(t *testing.T) string {
	t.Helper()
	other := newBookkeeper(t, "node-2")
	other.card = "GPU-1"
	other.stand(2*time.Hour+2*time.Minute, nil, replica("web", "batch-0"), rest(3))
	other.close()
	both := t.TempDir()
	for name, dir := range map[string]string{"a": shift(t), "b": other.dir} {
		if err := os.Symlink(dir, filepath.Join(both, name)); err != nil {
			t.Fatal(err)
		}
	}
	return both
}

func TestARowIsTheSameWhateverElseIsShown(t *testing.T) {
	dir := twoNodes(t)
	rows := func(prices string, more ...string) map[string]map[string]string {
		out, noise, code := evening().report(t, shiftFlags(dir, append(more, "--format", "csv", "--group-by", "namespace,pod,node", "--prices", saved(t, prices))...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, and it says %q", more, code, noise)
		}
		found := map[string]map[string]string{}
		for _, row := range rowsOf(t, out) {
			found[row["row_id"]] = row
		}
		return found
	}
	for _, prices := range []string{spreadPrices, quotaPrices, tenantPrices, flatPrices} {
		whole := rows(prices)
		for flags, n := range map[string]int{"--namespace ml": 1, "--namespace web": 2, "--pod serve-0": 1, "--node node-1": 4, "--node node-2 --namespace web": 1} {
			part := rows(prices, strings.Fields(flags)...)
			if len(part) != n {
				t.Errorf("%s: %d rows, want %d", flags, len(part), n)
			}
			for id, row := range part {
				for _, column := range []string{"namespace", "pod", "node", "unit_price"} {
					if row[column] != whole[id][column] {
						t.Errorf("%.40q, %s: %s is %s, in the whole report it is %s", prices, flags, column, row[column], whole[id][column])
					}
				}
				for _, column := range []string{"billed_gpu_hours", "list_cost", "net_cost", "idle_share_cost", "total_cost"} {
					if got, want := row[column], whole[id][column]; apart(t, got, want) {
						t.Errorf("%.40q, %s: %s is %s, in the whole report it is %s", prices, flags, column, got, want)
					}
				}
			}
		}
	}
}

// apart reports whether two amounts differ by more than a cent: each report rounds so that its own rows add up.
func apart(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := sharing.ParseFraction(a)
	y, err2 := sharing.ParseFraction(b)
	if err != nil || err2 != nil {
		t.Fatalf("%q and %q are no amounts", a, b)
	}
	cent := sharing.NewFraction(1, 100)
	return x.Sub(y).Cmp(cent) > 0 || y.Sub(x).Cmp(cent) > 0
}

func TestExplainTellsTheShareThatTheReportShows(t *testing.T) {
	dir, prices := twoNodes(t), saved(t, spreadPrices)
	whole := madeOf(t, shiftFlags(dir, "--prices", prices, "--group-by", "namespace,node"))
	x, code := explained(t, shiftFlags(dir, "--prices", prices, "--namespace", "ml", "--group-by", "namespace,node")...)
	if code != 0 || !x.Agrees {
		t.Fatalf("exit code %d, agrees: %t", code, x.Agrees)
	}
	for _, r := range whole.Rows {
		if r.Keys[0] == "ml" && apart(t, r.IdleCost.String(), x.Costs.Idle) {
			t.Errorf("the share of idle cost is %s, and alone it is %s", r.IdleCost, x.Costs.Idle)
		}
	}
}

func TestADatasetOfANamespaceIsRefused(t *testing.T) {
	for _, filter := range []string{"--namespace", "--pod"} {
		out, noise, code := evening().report(t, shiftFlags(shift(t), "--format", "focus", "--prices", saved(t, flatPrices), filter, "ml")...)
		if code != 1 || out != "" || !strings.Contains(noise, "--namespace and --pod keep parts") {
			t.Errorf("%s: exit code %d, %q, and it says %q", filter, code, out, noise)
		}
	}
	if out, noise, code := evening().report(t, shiftFlags(shift(t), "--format", "focus", "--prices", saved(t, flatPrices), "--node", "node-1")...); code != 0 || out == "" {
		t.Errorf("a node has whole GPUs: exit code %d, and it says %q", code, noise)
	}
}

func TestAPeriodThatGoesOnIsBilledUpToNow(t *testing.T) {
	dir := shift(t)
	d := &desk{now: bookStart.Add(2 * time.Hour)}
	out, noise, code := d.report(t, "--ledger", dir, "--from", "2026-11-10T08:00", "--to", "2026-12-01")
	if code != 0 || noise != "" || !strings.Contains(out, "2026-11-10 08:00 – 2026-11-10 10:00") || !strings.Contains(out, "until now: the period ends at 2026-12-01T00:00:00Z") {
		t.Errorf("exit code %d, it says %q and\n%s", code, noise, out)
	}
}

func TestAMissingTimeOfPrometheusNamesItsNode(t *testing.T) {
	v := promusage.Verification{Checked: 1, Nodes: []ledger.NodeUsage{
		{Node: "node-7", LedgerID: "l7", Missing: []ledger.Missing{{From: bookStart, To: bookStart.Add(time.Hour), Reason: "no_reading", Text: "no sample"}}},
		{LedgerID: "l8", Missing: []ledger.Missing{{From: bookStart, To: bookStart.Add(time.Hour), Reason: "no_reading", Text: "no sample"}}},
	}}
	var out strings.Builder
	proof := verification{Prometheus: serverProofOf(&v)}
	if err := proof.write(&out); err != nil || !strings.Contains(out.String(), "missing of node-7 from") || !strings.Contains(out.String(), "missing of l8 from") {
		t.Errorf("%v in\n%s", err, out.String())
	}
}

func TestPodsOfOneNameAreToldApartInAnExplanation(t *testing.T) {
	x := explanation{Intervals: []explainedInterval{{Holder: "a/p/c", PodUID: "uid-1"}, {Holder: "a/p/c", PodUID: "uid-2"}, {Holder: "a/q/c", PodUID: "uid-3"}}}
	var out strings.Builder
	if err := x.write(&out); err != nil {
		t.Fatal(err)
	}
	for uid, shown := range map[string]bool{"uid-1": true, "uid-2": true, "uid-3": false} {
		if strings.Contains(out.String(), uid) != shown {
			t.Errorf("%s shown: %t in\n%s", uid, !shown, out.String())
		}
	}
}
