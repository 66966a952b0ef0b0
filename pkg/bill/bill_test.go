// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

var byNamespace = []Dimension{ByNamespace}

func pod(name, uid string) func(*ledger.Held) {
	return func(h *ledger.Held) { h.Pod, h.PodUID, h.Container, h.Card = name, uid, "main", "GPU-0" }
}

func mode(m sharing.Mode, profile string) func(*ledger.Held) {
	return func(h *ledger.Held) { h.Mode, h.Profile = m, profile }
}

func model(name string) func(*ledger.Held) { return func(h *ledger.Held) { h.Model = name } }

func used(basis ledger.Basis, s int64) func(*ledger.Held) {
	return func(h *ledger.Held) { h.Used = map[ledger.Basis]int64{basis: s * second} }
}

// The inputs of bugs that other cost tools had, as far as they are about money and sums.
func TestReportedBugsOfOthersComeOutRight(t *testing.T) {
	for _, c := range []struct {
		bug, prices string
		groupBy     []Dimension
		fill        func(*fleet)
		boundaries  []time.Time
		want        []string
	}{
		{
			bug: "B03, B04, B05: with all prices at 1, an hour costs 1 on every node and model", prices: `prices: [{model: "*", price: 1}]`,
			groupBy: []Dimension{ByModel},
			fill: func(f *fleet) {
				f.held(0, "a", 3600, model("NVIDIA A40"))
				f.held(0, "a", 3600, model("NVIDIA RTX A6000"))
			},
			want: []string{"NVIDIA A40: 1 h, 1", "NVIDIA RTX A6000: 1 h, 1"},
		},
		{bug: "B06: without GPUs nothing is idle", prices: `prices: [{model: "*", price: 1}]`, fill: func(*fleet) {}},
		{
			bug: "B10: a node of eight GPUs is eight", prices: `prices: [{model: "*", price: 2}]`, groupBy: byNamespace,
			fill: func(f *fleet) { f.held(0, "a", 8*3600) }, want: []string{"a: 8 h, 16"},
		},
		{
			bug: "B13: what is idle has a reason", prices: `prices: [{model: "*", price: 1}]`, groupBy: byNamespace,
			fill: func(f *fleet) {
				f.held(0, "a", 3600)
				f.rest(0, sharing.CauseStranded, 1800)
				f.rest(0, sharing.CauseFree, 1800)
			},
			want: []string{"a: 1 h, 1", " [free]: 0.5 h, 0.5", " [stranded]: 0.5 h, 0.5"},
		},
		{
			bug: "B14: pods of one name in two namespaces are two", prices: `prices: [{model: "*", price: 1}]`, groupBy: []Dimension{ByPod},
			fill: func(f *fleet) {
				f.held(0, "team-a", 3600, pod("database-0", "1"))
				f.held(0, "team-b", 7200, pod("database-0", "2"))
			},
			want: []string{"team-a/database-0: 1 h, 1", "team-b/database-0: 2 h, 2"},
		},
		{
			bug: "B15: a pod that was made again is charged for its two lives only", prices: `prices: [{model: "*", price: 1}]`, groupBy: []Dimension{ByNamespace, ByPod},
			fill: func(f *fleet) {
				f.held(0, "a", 3600, pod("train", "1"))
				f.held(0, "a", 1800, pod("train", "2"))
				f.rest(0, sharing.CauseFree, 86400-5400)
			},
			want: []string{"a train: 1.5 h, 1.5", "  [free]: 22.5 h, 22.5"},
		},
		{
			bug: "B21, B23: four holders of a quarter are one GPU", prices: `prices: [{model: "*", price: 2.5}]`, groupBy: byNamespace,
			fill: func(f *fleet) {
				for _, ns := range []string{"a", "b", "c", "d"} {
					f.held(0, ns, 900, mode(sharing.ModeShared, ""))
				}
			},
			want: []string{"a: 0.25 h, 0.62", "b: 0.25 h, 0.62", "c: 0.25 h, 0.63", "d: 0.25 h, 0.63"},
		},
		{
			bug: "B24: a price changes within the period", groupBy: byNamespace, boundaries: []time.Time{day(1), day(23), day(31)},
			prices: `prices: [{name: old, model: "*", price: 90, valid_to: 2026-03-23}, {name: new, model: "*", price: 100, valid_from: 2026-03-23}]`,
			fill: func(f *fleet) {
				f.held(0, "a", 22*3600)
				f.held(1, "a", 8*3600)
			},
			want: []string{"a: 30 h, 2780"},
		},
		{
			bug: "B35: one of fifty replicas is a fiftieth", prices: `prices: [{model: "*", price: 1}]`, groupBy: byNamespace,
			fill: func(f *fleet) { f.held(0, "a", 72, mode(sharing.ModeShared, "")) }, want: []string{"a: 0.02 h, 0.02"},
		},
		{
			bug: "B46: 4.5 is not 4", prices: `prices: [{model: "*", price: 1}]`, groupBy: byNamespace,
			fill: func(f *fleet) { f.held(0, "a", 4*3600+1800) }, want: []string{"a: 4.5 h, 4.5"},
		},
	} {
		t.Run(c.bug, func(t *testing.T) {
			if c.boundaries == nil {
				c.boundaries = []time.Time{day(1), day(2)}
			}
			f := newFleet(c.boundaries...)
			c.fill(f)
			wantLines(t, bill(t, f, Options{GroupBy: c.groupBy, Prices: book(t, c.prices)}), c.want...)
		})
	}
}

// B22: what a GPU was used for changes no bill, and is shown beside it.
func TestUseIsShownAndNotBilled(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600, used(ledger.BasisEngine, 396))
	f.held(0, "b", 3600, used(ledger.BasisEqual, 5000))
	f.held(0, "c", 3600)
	b := bill(t, f, Options{GroupBy: byNamespace, Prices: flat(t, "2.50")})
	wantLines(t, b, "a: 1 h, 2.5", "b: 1 h, 2.5", "c: 1 h, 2.5")
	for i, want := range []struct{ used, wasted, cost string }{
		{"0.11", "0.89", "2.22"}, // 2.225 is nearer to neither
		// Used and wasted are what was held and measured, also where that contradicts itself.
		{"1.388889", "-0.388889", "0"},
		{"0", "0", "0"},
	} {
		r := b.Rows[i]
		if r.UsedHours.String() != want.used || r.WastedHours.String() != want.wasted || r.WastedCost.String() != want.cost {
			t.Errorf("%v: used %s, wasted %s, %s, want %+v", r.Keys, r.UsedHours, r.WastedHours, r.WastedCost, want)
		}
	}
	if got := b.Rows[2].Bases; len(got) != 0 {
		t.Errorf("what nobody measured has bases %v", got)
	}
}

// B07, B12: more is held than there is. Others show a negative idle, or 0.
func TestContradictingRegistersAreNamed(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 7200)
	f.rest(0, "", 3600)
	b := bill(t, f, Options{GroupBy: byNamespace, Prices: flat(t, "1")})
	if b.Difference <= 0 || len(b.Unbalanced) != 1 || !strings.Contains(b.Unbalanced[0], "node-1") {
		t.Errorf("difference %d, unbalanced %q, want an hour on node-1", b.Difference, b.Unbalanced)
	}
	if got := b.Capacity.String(); got != "1" {
		t.Errorf("capacity is %s, want 1", got)
	}
}

func TestWhatRegistersAreRoundedByIsNoContradiction(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 0, func(h *ledger.Held) { h.GPU = 1_799_999_999 })
	f.held(0, "b", 0, func(h *ledger.Held) { h.GPU = 1_799_999_999 })
	f.rest(0, "", 3600)
	b := bill(t, f, Options{})
	if b.Difference != 0 || len(b.Unbalanced) != 0 || !b.Capacity.Equal(b.Total.GPUHours) {
		t.Errorf("difference %d, unbalanced %q, capacity %s of %s", b.Difference, b.Unbalanced, b.Capacity, b.Total.GPUHours)
	}
	f.Held[0].GPU -= 100
	if b := bill(t, f, Options{}); b.Difference == 0 {
		t.Error("a hundred microseconds are lost, and nobody says so")
	}
	if b := bill(t, f, Options{Filtered: true}); b.Difference != 0 || !b.Capacity.IsZero() {
		t.Error("a part of what was held is held against the capacity")
	}
}

func TestAnUnpricedModelIsAnErrorThatNamesIt(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600)
	f.held(0, "a", 3600, model("NVIDIA B200"))
	f.held(0, "b", 3600, model("NVIDIA B200"))
	f.rest(0, sharing.CauseFree, 3600, func(r *ledger.Rest) { r.Model = "NVIDIA L4" })
	_, err := Make(f.Usage, Options{From: day(1), To: day(2), Prices: book(t, `prices: [{model: "*H100*", price: 1}]`)})
	if !errors.Is(err, prices.ErrNoPrice) || strings.Count(err.Error(), "B200") != 1 || !strings.Contains(err.Error(), "L4") {
		t.Errorf("error %v, want B200 once and L4", err)
	}
	f.Held = f.Held[:1]
	f.Rest = nil
	f.held(0, "z", 0, model("NVIDIA T4"))
	if _, err := Make(f.Usage, Options{From: day(1), To: day(2), Prices: book(t, `prices: [{model: "*H100*", price: 1}]`)}); err != nil {
		t.Errorf("a model of which nothing was consumed: %v", err)
	}
}

func TestDiscountsAreNamedAndTakenOff(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "research-1", 3600)
	f.held(0, "sales", 3600)
	f.rest(0, sharing.CauseFree, 3600)
	b := bill(t, f, Options{GroupBy: byNamespace, Prices: book(t, `
prices: [{model: "*", price: 10}]
namespaces: [{name: costly, namespace: sales, multiplier: 1.5}]
discounts:
- {name: committed, percent: 10}
- {name: research, percent: 50, namespace: "research-*"}`)})
	wantLines(t, b, "research-1: 1 h, 4.5", "sales: 1 h, 13.5", " [free]: 1 h, 9")
	if got := strings.Join(b.Rows[0].Discounts, " "); got != "committed research" {
		t.Errorf("discounts %q", got)
	}
	if r := b.Rows[1]; r.Discount.String() != "-3.5" || r.UnitPrice.Decimal.String() != "10" {
		t.Errorf("discount %s at %v, want -3.5 at 10", r.Discount, r.UnitPrice)
	}
}

func TestWhoPaysForWhatIsIdle(t *testing.T) {
	fill := func() *fleet {
		f := newFleet(Boundaries(Options{From: day(1), To: day(2)})...)
		f.held(0, "a", 2*3600, mode(sharing.ModeShared, ""), pod("p", "1"))
		f.held(0, "b", 3600, model("NVIDIA A40"), pod("q", "2"), func(h *ledger.Held) { h.Card = "GPU-1" })
		f.held(0, "c", 3600, model("NVIDIA A40"), pod("r", "3"), func(h *ledger.Held) { h.Card = "GPU-1" })
		f.rest(0, sharing.CauseUnrequested, 6*3600)
		f.rest(0, sharing.CauseFree, 3600, func(r *ledger.Rest) { r.Card, r.Model = "GPU-1", "NVIDIA A40" })
		return f
	}
	for _, c := range []struct {
		policy string
		want   []string
	}{
		{"platform", []string{"a: 2 h, 6", "b: 1 h, 3", "c: 1 h, 3", " [free]: 1 h, 3", " [unrequested]: 6 h, 18"}},
		{"spread", []string{"a: 2 h, 24", "b: 1 h, 4.5", "c: 1 h, 4.5", " [free]: 1 h, 0", " [unrequested]: 6 h, 0"}},
		{"sole-tenant", []string{"a: 2 h, 24", "b: 1 h, 3", "c: 1 h, 3", " [free]: 1 h, 3", " [unrequested]: 6 h, 0"}},
	} {
		b := bill(t, fill(), Options{GroupBy: byNamespace, Prices: book(t, "idle: "+c.policy+"\nprices: [{model: \"*\", price: 3}]")})
		wantLines(t, b, c.want...)
		if got := b.Total.TotalCost.String(); got != "33" || !b.Total.IdleCost.IsZero() {
			t.Errorf("%s: all of it costs %s and idle %s, want 33 and 0", c.policy, got, b.Total.IdleCost)
		}
	}
}

func TestTwoTenantsOfASharedGPULeaveItsReplicasToThePlatform(t *testing.T) {
	o := Options{From: day(1), To: day(3), GroupBy: byNamespace, Prices: book(t, "idle: sole-tenant\nprices: [{model: \"*\", price: 1}]")}
	f := newFleet(Boundaries(o)...)
	for _, ns := range []string{"a", "b"} {
		f.held(0, ns, 3600, mode(sharing.ModeShared, ""), pod("p", ns))
	}
	f.held(1, "a", 3600, mode(sharing.ModeMIGShared, "1g.10gb"), pod("p", "a"))
	f.rest(0, sharing.CauseUnrequested, 3600)
	f.rest(1, sharing.CauseUnrequested, 7200)
	wantLines(t, bill(t, f, o), "a: 2 h, 4", "b: 1 h, 1", " [unrequested]: 3 h, 1")
}

func TestWithNobodyToPayIdleCostStaysWithThePlatform(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600)
	f.rest(0, sharing.CauseFree, 3600)
	b := bill(t, f, Options{GroupBy: byNamespace, Prices: book(t, "idle: spread\nprices: [{model: \"*\", price: 3}]\nnamespaces: [{namespace: a, free: true}]")})
	wantLines(t, b, "a: 1 h, 0", " [free]: 1 h, 3")
	if len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "stays with the platform") {
		t.Errorf("notes %q", b.Notes)
	}
}

func TestFreeHoursTakeTheDearestOfThePeriodFirst(t *testing.T) {
	o := Options{From: day(1), To: day(3), GroupBy: []Dimension{ByNamespace, ByDay}, Prices: book(t, `
prices: [{model: "*", price: 1}, {model: "*H100*", price: 10}]
quotas:
- {name: starter, namespace: "team-*", gpu_hours: 2, per: month}
- {name: pot, namespace: "*", gpu_hours: 1, shared: true}`)}
	f := newFleet(Boundaries(o)...)
	f.held(0, "team-a", 3*3600, model("NVIDIA A40"))
	f.held(1, "team-a", 3600)
	f.held(1, "team-b", 3600)
	f.held(0, "other", 3600)
	b := bill(t, f, o)
	// team-a's two hours are the one of the H100 and one of the A40; the pot is used by the dearest that is left.
	wantLines(t, b, "other 2026-03-01: 1 h, 0", "team-a 2026-03-01: 3 h, 2", "team-a 2026-03-02: 1 h, 0", "team-b 2026-03-02: 1 h, 0")
	if got := b.Rows[0].Discounts; len(got) != 1 || got[0] != "pot" {
		t.Errorf("discounts %q", got)
	}
	if len(b.Notes) != 2 || !strings.Contains(b.Notes[0], "quota") {
		t.Errorf("a part of a month is billed, and the notes are %q", b.Notes)
	}
}

// lateProof is a period in whose last window an hour is found to have been held that was booked as unobserved.
func lateProof(from time.Time, boundaries ...time.Time) *fleet {
	f := newFleet(boundaries...)
	last := len(boundaries) - 2
	f.held(last, "a", 3*3600)
	f.rest(last, "", 2*3600)
	f.rest(last, sharing.CauseUnobserved, 3600, func(r *ledger.Rest) { r.Corrected = true })
	h := f.Held[0]
	h.Quantity = gpuSeconds(3600)
	h.Card = "GPU-0"
	f.Corrections = []ledger.Corrected{{
		Window: last, Held: h, From: sharing.CauseUnobserved, FromTime: from, ToTime: from.Add(time.Hour), Reason: "pod_uid", Refers: 7,
	}}
	return f
}

func TestALateProofOfAnEarlierPeriodIsAnAdjustment(t *testing.T) {
	f := lateProof(day(1).Add(-time.Hour), day(1), day(2))
	b := bill(t, f, Options{GroupBy: byNamespace, Prices: book(t, `prices: [{name: old, model: "*", price: 2, valid_to: 2026-03-01}, {name: new, model: "*", price: 4, valid_from: 2026-03-01}]
namespaces: [{namespace: a, multiplier: 0.5}]`)})
	wantLines(t, b, "a: 2 h, 4", " [unobserved] adjusted: -1 h, -2", "a adjusted: 1 h, 1")
	if b.Difference != 0 || b.Capacity.String() != "2" || b.Total.Adjustment.String() != "-1" {
		t.Errorf("difference %d, capacity %s, adjustments %s", b.Difference, b.Capacity, b.Total.Adjustment)
	}
	if c := b.Rows[2].Items[0].Correction; c == nil || c.Refers != 7 {
		t.Errorf("the adjustment refers to %+v", c)
	}
}

func TestALateProofWithinThePeriodIsBookedWhereItBelongs(t *testing.T) {
	f := lateProof(day(1).Add(time.Hour), day(1), day(2), day(3))
	f.rest(0, "", 3600)
	f.rest(0, sharing.CauseUnobserved, 3600)
	b := bill(t, f, Options{GroupBy: []Dimension{ByDay, ByNamespace}, Prices: flat(t, "1")})
	wantLines(t, b, "2026-03-01 a: 1 h, 1", "2026-03-02 a: 2 h, 2")
	if b.Difference != 0 || b.Capacity.String() != "3" {
		t.Errorf("difference %d, capacity %s", b.Difference, b.Capacity)
	}
}

// Prometheus tells how much was corrected, and not what.
func TestACorrectionThatNobodyExplainsIsTakenFromItsCauseAndElseCredited(t *testing.T) {
	f := lateProof(day(1).Add(time.Hour), day(1), day(2), day(3))
	f.Corrections = nil
	f.rest(0, "", 1800)
	f.rest(0, sharing.CauseUnobserved, 1800)
	b := bill(t, f, Options{GroupBy: byNamespace, Prices: flat(t, "1")})
	wantLines(t, b, "a: 3 h, 3", " [unobserved] adjusted: -0.5 h, -0.5")
	if b.Difference != 0 || len(b.Notes) != 1 || b.Capacity.String() != "2.5" {
		t.Errorf("difference %d, capacity %s, notes %q", b.Difference, b.Capacity, b.Notes)
	}
}

func TestWhatIsMissingMakesABillIncomplete(t *testing.T) {
	f := newFleet(day(1), day(11))
	f.held(0, "a", 3600)
	young := f.node("node-2", nil)
	f.Nodes[young].Created = day(6)
	f.held(0, "b", 3600, func(h *ledger.Held) { h.Node = young })
	f.rest(0, "", 7200, func(r *ledger.Rest) { r.Node = young; r.Card = "GPU-9" })
	if b := bill(t, f, Options{GroupBy: byNamespace}); !b.Complete || b.Nodes[1].Completeness.String() != "100" || b.Nodes[1].GPUs != 1 {
		t.Errorf("a node that is younger than the period: complete %t, %s %%", b.Complete, b.Nodes[1].Completeness)
	}
	f.Nodes[young].Missing = []ledger.Missing{
		{From: day(8), To: day(9)}, {From: day(7), To: day(9)}, {From: day(10), To: day(20)}, {From: day(1), To: day(2)},
	}
	b := bill(t, f, Options{GroupBy: byNamespace})
	if b.Complete || b.Nodes[1].Completeness.String() != "40" || b.Rows[1].Completeness.String() != "40" || b.Rows[0].Completeness.String() != "100" {
		t.Errorf("complete %t, nodes %s %%, rows %s and %s %%", b.Complete, b.Nodes[1].Completeness, b.Rows[0].Completeness, b.Rows[1].Completeness)
	}
	f.Nodes[young].Missing = []ledger.Missing{{From: day(8), To: day(8).Add(time.Millisecond)}}
	if b := bill(t, f, Options{}); b.Nodes[1].Completeness.String() != "99.9999" {
		t.Errorf("a millisecond is missing, and %s %% are there", b.Nodes[1].Completeness)
	}
	f.Nodes[young].Missing = nil
	if b := bill(t, f, Options{Now: day(10)}); b.Complete || !strings.Contains(strings.Join(b.Notes, "\n"), "not over before 2026-03-11") {
		t.Errorf("the period is not over: complete %t, notes %q", b.Complete, b.Notes)
	}
	if _, err := Make(f.Usage, Options{From: day(1), To: day(11), Now: day(10), ClosedOnly: true}); !errors.Is(err, ErrPeriod) {
		t.Errorf("an open period, and only closed ones are wanted: %v", err)
	}
	if b := bill(t, &fleet{ledger.Usage{Boundaries: []time.Time{day(1), day(2)}}}, Options{}); b.Complete {
		t.Error("no node told anything, and the bill is complete")
	}
}

func TestRowsAreGroupedByWhatIsAsked(t *testing.T) {
	teams, err := prices.ParseTeams("teams.yaml", []byte("teams:\n- {team: search, cost_center: \"0042\", namespaces: [a]}\n- {team: ads, namespace_labels: {org: ads}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(day(1), day(2))
	f.Nodes[0].Labels = map[string]string{"pool": "big"}
	f.held(0, "a", 3600, pod("trainer-0", "1"), mode(sharing.ModeMIG, "1g.10gb"), func(h *ledger.Held) {
		h.WorkloadKind, h.Workload, h.Labels = "StatefulSet", "trainer", map[string]string{"app": "train"}
	})
	f.held(0, "b", 3600, pod("x", "2"))
	for _, c := range []struct {
		groupBy []Dimension
		want    string
	}{
		{nil, ""},
		{[]Dimension{ByCluster}, "c"},
		{[]Dimension{ByNode}, "node-1"},
		{[]Dimension{ByTeam}, "ads; search"},
		{[]Dimension{ByCostCenter}, "; 0042"},
		{[]Dimension{ByWorkload}, "; a/StatefulSet/trainer"},
		{[]Dimension{ByNamespace, ByWorkload}, "a StatefulSet/trainer; b "},
		{[]Dimension{ByMode, ByProfile}, "exclusive ; mig 1g.10gb"},
		{[]Dimension{ByModel}, h100},
		{[]Dimension{ByResource}, "nvidia.com/gpu"},
		{[]Dimension{"label:app"}, "; train"},
		{[]Dimension{"namespace-label:org"}, "; ads"},
		{[]Dimension{"node-label:pool"}, "big"},
		{[]Dimension{ByDay}, "2026-03-01"},
	} {
		b := bill(t, f, Options{GroupBy: c.groupBy, Teams: teams, NamespaceLabels: map[string]map[string]string{"b": {"org": "ads"}}})
		var got []string
		for _, r := range b.Rows {
			got = append(got, strings.Join(r.Keys, " "))
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("by %v: %q, want %q", c.groupBy, text, c.want)
		}
	}
}

func TestOptionsThatCannotBeAnsweredAreErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"no period", Options{From: day(2), To: day(2)}, "not after its beginning"},
		{"unknown dimension", Options{GroupBy: []Dimension{"colour"}}, "no such dimension"},
		{"twice", Options{GroupBy: []Dimension{ByDay, ByDay}}, "twice"},
		{"no label", Options{GroupBy: []Dimension{"label:"}}, "label is missing"},
		{"no teams", Options{GroupBy: []Dimension{ByTeam}}, "file of teams"},
		{"no namespace labels", Options{GroupBy: []Dimension{"namespace-label:org"}}, "not known"},
		{"not read by hour", Options{GroupBy: []Dimension{ByHour}}, "not read at"},
		{"other period", Options{From: day(1), To: day(4)}, "other moments"},
	} {
		f := newFleet(day(1), day(2))
		if c.o.From.IsZero() {
			c.o.From, c.o.To = day(1), day(2)
		}
		if _, err := Make(f.Usage, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	f := newFleet(day(1), day(2))
	f.held(3, "a", 1)
	if _, err := Make(f.Usage, Options{From: day(1), To: day(2)}); err == nil {
		t.Error("a window that is not there is billed")
	}
}

func TestHoursShowWhatEachGPUDid(t *testing.T) {
	at := HourBoundaries(day(1), day(1).Add(2*time.Hour), nil)
	f := newFleet(at...)
	f.Nodes[0].Missing = []ledger.Missing{{From: at[1].Add(time.Minute), To: at[2]}}
	f.rest(0, "", 3600)
	f.rest(0, sharing.CauseFree, 900)
	f.rest(0, sharing.CauseUnhealthy, 0)
	f.rest(1, "", 60)
	f.rest(1, "", 3600, func(r *ledger.Rest) { r.Card, r.Index = "GPU-1", 1 })
	hours := Hours(f.Usage)
	if len(hours) != 3 {
		t.Fatalf("%d hours of GPUs, want 3", len(hours))
	}
	first := hours[0]
	if first.Held != 2700*second || !first.Known || len(first.Rest) != 1 || first.Rest[sharing.CauseFree] != 900*second {
		t.Errorf("first hour: %+v", first)
	}
	if hours[1].Known || !hours[1].Start.Equal(at[1]) || hours[2].Card != gpu.UUID("GPU-1") {
		t.Errorf("the others: %+v", hours[1:])
	}
}
