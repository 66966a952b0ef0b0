// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// amounts are the exact items of a bill as texts, of those that are kept.
func amounts(b *Bill, keep func(node string, i *Item) bool) []string {
	var all []string
	for r := range b.Rows {
		for i := range b.Rows[r].Items {
			item := &b.Rows[r].Items[i]
			if node := b.Nodes[item.Node].Node; keep(node, item) {
				all = append(all, fmt.Sprintf("%s %s %s %d %s %s %s %s %q %d %d %s %s %s %v", node, item.Kind, item.Cause, item.Start.Unix(), item.Namespace,
					item.Pod, item.Mode, item.Model, item.Card, item.GPU, item.Free, item.List, item.Net, item.Idle, item.Used))
			}
		}
	}
	slices.Sort(all)
	return all
}

// micro is two millionths: each of two sums is rounded by less than one.
var micro = decimal.New(2, -quantityDecimals)

func everything(string, *Item) bool { return true }

func TestABillOfAPartIsAPartOfTheWholeBill(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := drawOptions(rt, t)
		f := drawFleet(rt, o)
		whole := bill(t, f, o)
		pick := func(from ...string) []string {
			return rapid.Permutation(from).Draw(rt, "names")[:rapid.IntRange(0, 2).Draw(rt, "how many")]
		}
		o.Namespaces, o.Pods, o.Nodes = pick("a", "b", "late", "nobody"), pick("pod-a", "pod-b", "late"), pick("node-0", "node-1", "node-2")
		part := bill(t, f, o)
		holders := len(o.Namespaces)+len(o.Pods) > 0
		want := amounts(whole, func(node string, i *Item) bool {
			return (len(o.Nodes) == 0 || slices.Contains(o.Nodes, node)) && (len(o.Namespaces) == 0 || slices.Contains(o.Namespaces, i.Namespace)) &&
				(len(o.Pods) == 0 || slices.Contains(o.Pods, i.Pod))
		})
		if got := amounts(part, everything); !slices.Equal(got, want) {
			rt.Fatalf("nodes %q, namespaces %q, pods %q: the part is\n%s\nand in the whole it is\n%s", o.Nodes, o.Namespaces, o.Pods, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if part.Difference != 0 || holders != part.Capacity.IsZero() && len(want) > 0 {
			rt.Fatalf("difference %d, capacity %s", part.Difference, part.Capacity)
		}
		if !holders && !part.Capacity.Equal(part.Total.GPUHours) {
			rt.Fatalf("capacity %s, rows %s", part.Capacity, part.Total.GPUHours)
		}
	})
}

// A namespace that held a tenth does not pay for all that was idle.
func TestWhoAsksForItselfAlonePaysNoMoreThanItsShareOfIdle(t *testing.T) {
	f := newFleet(day(1), day(2))
	other := f.node("node-2", nil)
	f.held(0, "search", 3600)
	f.held(0, "train", 9*3600, func(h *ledger.Held) { h.Node = other })
	f.rest(0, sharing.CauseFree, 10*3600)
	o := Options{GroupBy: byNamespace, Prices: book(t, "idle: spread\nprices: [{model: \"*\", price: 1}]")}
	wantLines(t, bill(t, f, o), "search: 1 h, 2", "train: 9 h, 18", " [free]: 10 h, 0")
	o.Namespaces = []string{"search"}
	wantLines(t, bill(t, f, o), "search: 1 h, 2")
	o.Namespaces, o.Nodes = nil, []string{"node-1"}
	wantLines(t, bill(t, f, o), "search: 1 h, 2", " [free]: 10 h, 0")
}

func TestAPartSaysThatItIsOneAndWhoseTheTotalIs(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600)
	f.held(0, "b", 3600)
	b := bill(t, f, Options{GroupBy: byNamespace, Namespaces: []string{"a"}, Prices: flat(t, "2")})
	wantLines(t, b, "a: 1 h, 2")
	if got := b.Total.TotalCost.String(); got != "2" || !b.OfHolders {
		t.Errorf("the total is %s, of holders alone: %t", got, b.OfHolders)
	}
	if !slices.ContainsFunc(b.Notes, func(n string) bool {
		return strings.Contains(n, "only a part is shown") && strings.Contains(n, "namespace a")
	}) {
		t.Errorf("notes %q", b.Notes)
	}
	if whole := bill(t, f, Options{GroupBy: byNamespace, Prices: flat(t, "2")}); whole.ID == b.ID || whole.Rows[0].ID != b.Rows[0].ID {
		t.Errorf("bills %s and %s, rows %s and %s", whole.ID, b.ID, whole.Rows[0].ID, b.Rows[0].ID)
	}
}

func TestThePartOfAContradictingBillSaysSo(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600)
	f.held(0, "b", 7200)
	f.rest(0, "", 3600)
	if b := bill(t, f, Options{GroupBy: byNamespace, Namespaces: []string{"a"}}); b.Difference == 0 {
		t.Error("b held more than there is, and the bill of a says nothing")
	}
}

func TestAPartIsIncompleteWhereItsSharesRestOnWhatIsMissing(t *testing.T) {
	f := newFleet(day(1), day(2))
	other := f.node("node-2", nil)
	f.Nodes[other].Missing = []ledger.Missing{{From: day(1), To: day(2), Reason: "no_reading"}}
	f.held(0, "a", 3600)
	for policy, complete := range map[string]bool{"spread": false, "platform": true} {
		b := bill(t, f, Options{Nodes: []string{"node-1"}, Prices: book(t, "idle: "+policy+"\nprices: [{model: \"*\", price: 1}]")})
		if b.Complete != complete || len(b.Nodes) != 1 {
			t.Errorf("%s: complete %t, %d nodes; %q", policy, b.Complete, len(b.Nodes), b.Notes)
		}
	}
}

func TestAQuestionForAPartNamesNodesOnlyWhereOthersDoNotMatter(t *testing.T) {
	o := Options{From: day(1), To: day(2), Nodes: []string{"node-1"}, Namespaces: []string{"a"}, Pods: []string{"p"}}
	for text, nodes := range map[string]int{"idle: platform": 1, "idle: sole-tenant": 1, "idle: spread": 0, lawQuota: 0} {
		o.Prices = book(t, text+"\nprices: [{model: \"*\", price: 1}]")
		if q := Query(o); len(q.Nodes) != nodes || len(q.Namespaces)+len(q.Pods) != 0 || q.Detail != ledger.DetailPods || len(q.Boundaries) < 2 {
			t.Errorf("%s: %+v", text, q)
		}
	}
}

// Read by pods or by series, in days or at once: what was wasted is the same.
func TestWasteIsTheSameHoweverFinelyItIsRead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fine, coarse := newFleet(day(1), day(2), day(3)), newFleet(day(1), day(3))
		sums := map[string]ledger.Held{}
		for range rapid.IntRange(1, 8).Draw(rt, "holdings") {
			ns := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "namespace")
			held := rapid.Int64Range(1, 80_000).Draw(rt, "held")
			fine.held(rapid.IntRange(0, 1).Draw(rt, "day"), ns, held, func(h *ledger.Held) {
				// Use is written down once a minute: a window may have some that was made before it.
				h.Used = map[ledger.Basis]int64{ledger.BasisEqual: rapid.Int64Range(0, 2*h.GPU).Draw(rt, "used")}
			})
			h := fine.Held[len(fine.Held)-1]
			sum := sums[ns]
			sum.GPU += h.GPU
			sum.Used = map[ledger.Basis]int64{ledger.BasisEqual: sum.Used[ledger.BasisEqual] + h.Used[ledger.BasisEqual]}
			sums[ns] = sum
		}
		for ns, sum := range sums {
			coarse.held(0, ns, 0, func(h *ledger.Held) { h.GPU, h.Used = sum.GPU, sum.Used })
		}
		want := bill(t, coarse, Options{GroupBy: byNamespace})
		for _, by := range [][]Dimension{byNamespace, {ByNamespace, ByDay}, {ByDay}, nil} {
			got := bill(t, fine, Options{GroupBy: by})
			if !got.Total.WastedHours.Equal(want.Total.WastedHours) || !got.Total.UsedHours.Equal(want.Total.UsedHours) {
				rt.Fatalf("by %v: wasted %s of %s, want %s", by, got.Total.WastedHours, got.Total.GPUHours, want.Total.WastedHours)
			}
			if !got.Total.UsedHours.Add(got.Total.WastedHours).Sub(got.Total.GPUHours).Abs().LessThan(micro) {
				rt.Fatalf("used %s and wasted %s are not held %s", got.Total.UsedHours, got.Total.WastedHours, got.Total.GPUHours)
			}
		}
	})
}

func TestALabelThatNobodyHasIsNamed(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.node("node-2", map[string]string{"pool": "x"})
	f.held(0, "a", 3600, func(h *ledger.Held) { h.Labels, h.Node = map[string]string{"app": "x"}, 1 })
	for d, noted := range map[Dimension]bool{
		"label:app": false, "label:ap": true, "node-label:pool": false, "node-label:pol": true, "namespace-label:team": false, "namespace-label:taem": true,
	} {
		b := bill(t, f, Options{GroupBy: []Dimension{d}, NamespaceLabels: map[string]map[string]string{"a": {"team": "x"}}})
		if got := slices.ContainsFunc(b.Notes, func(n string) bool { return strings.Contains(n, string(d)) }); got != noted {
			t.Errorf("%s: noted %t, want %t: %q", d, got, noted, b.Notes)
		}
	}
}

func TestALedgerIsNotToldThatALedgerWouldSayIt(t *testing.T) {
	for source, want := range map[string][2]bool{"ledger": {true, false}, "prometheus": {true, true}} {
		f := newFleet(day(1), day(2))
		f.Source = source
		f.held(0, "a", 3600)
		f.rest(0, sharing.CauseUnobserved, 3600)
		f.rest(0, sharing.CauseUnobserved, 3600, func(r *ledger.Rest) { r.Corrected = true })
		text := strings.Join(bill(t, f, Options{}).Notes, "\n")
		if got := [2]bool{strings.Contains(text, "does not say when"), strings.Contains(text, "a ledger says it")}; got != want {
			t.Errorf("%s: %q", source, text)
		}
	}
}

func TestAMicrosecondOfRoundingIsNoUnexplainedCorrection(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600)
	f.rest(0, sharing.CauseUnobserved, 3600)
	f.rest(0, sharing.CauseUnobserved, 0, func(r *ledger.Rest) { r.Corrected, r.GPU = true, 1 })
	if b := bill(t, f, Options{}); len(b.Notes) != 0 {
		t.Errorf("%q", b.Notes)
	}
}
