// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// lawBook has all that money can be changed by.
const lawBook = `
idle: %s
prices:
- {name: any, model: "*", price: 1.37, valid_to: 2026-03-03}
- {name: dearer, model: "*", price: 1.41, valid_from: 2026-03-03}
- {name: h100, model: "*H100*", price: 2.9375, profiles: {1g.10gb: 3.1}}
namespaces:
- {name: half, namespace: b, multiplier: 0.5}
- {name: agreed, namespace: c, price: 0.333}
discounts:
- {name: third, percent: 33.33, model: "*H100*"}
- {name: week, percent: 7, valid_from: 2026-03-02, valid_to: 2026-03-05}
%s`

const lawQuota = "quotas: [{name: start, namespace: \"*\", gpu_hours: 3.5}, {name: pot, namespace: a, gpu_hours: 2, per: day, shared: true}]"

// drawFleet is a few nodes over a few days: of each GPU all of each day is held by somebody or booked to a cause.
func drawFleet(t *rapid.T, o Options) *fleet {
	f := newFleet(Boundaries(o)...)
	f.Nodes = nil
	for n := range rapid.IntRange(1, 3).Draw(t, "nodes") {
		node := f.node(fmt.Sprintf("node-%d", n), map[string]string{})
		for card := range rapid.IntRange(1, 2).Draw(t, "cards") {
			for w := range len(f.Boundaries) - 1 {
				f.drawCard(t, node, w, card)
			}
		}
	}
	return f
}

func (f *fleet) drawCard(t *rapid.T, node, w, card int) {
	uuid := gpu.UUID(fmt.Sprintf("GPU-%d-%d", node, card))
	kind := []string{h100, "NVIDIA A40"}[card%2]
	at := func(r *ledger.Rest) { r.Node, r.Card, r.Index, r.Model = node, uuid, card, kind }
	left := int64(f.Boundaries[w+1].Sub(f.Boundaries[w]) / time.Microsecond)
	f.rest(w, "", 0, at, func(r *ledger.Rest) { r.GPU = left })
	for left > 0 {
		part := min(left, rapid.Int64Range(1, 90_000*second).Draw(t, "part"))
		left -= part
		if rapid.Bool().Draw(t, "held") {
			ns := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "namespace")
			m := rapid.SampledFrom([]sharing.Mode{sharing.ModeExclusive, sharing.ModeShared}).Draw(t, "mode")
			f.held(w, ns, 0, mode(m, ""), model(kind), func(h *ledger.Held) {
				h.Node, h.GPU, h.Card, h.Pod, h.PodUID = node, part, uuid, "pod-"+ns, ns
				h.Energy, h.Memory = part/7, float64(part)/3e6
				h.Used = map[ledger.Basis]int64{ledger.BasisEqual: part / 3}
			})
			continue
		}
		cause := rapid.SampledFrom(sharing.Causes()).Draw(t, "cause")
		f.rest(w, cause, 0, at, func(r *ledger.Rest) { r.GPU = part })
		if cause == sharing.CauseUnobserved && rapid.Bool().Draw(t, "proven late") {
			f.correctLater(t, len(f.Rest)-1)
		}
	}
}

// correctLater finds out in the last window that a rest was held.
func (f *fleet) correctLater(t *rapid.T, rest int) {
	r := f.Rest[rest]
	r.Window, r.Corrected = len(f.Boundaries)-2, true
	f.Rest = append(f.Rest, r)
	f.held(r.Window, "late", 0, model(r.Model), func(h *ledger.Held) {
		h.Node, h.GPU, h.Card, h.Pod, h.PodUID = r.Node, r.GPU, r.Card, "late", fmt.Sprint(len(f.Held))
	})
	from := f.Boundaries[f.Rest[rest].Window]
	if rapid.Bool().Draw(t, "explained") {
		f.Corrections = append(f.Corrections, ledger.Corrected{
			Node: r.Node, Window: r.Window, Held: f.Held[len(f.Held)-1], From: r.Cause, FromTime: from, ToTime: from, Refers: uint64(len(f.Held)),
		})
	}
}

func drawGroups(t *rapid.T) []Dimension {
	all := []Dimension{ByCluster, ByNode, ByNamespace, ByPod, ByMode, ByModel, ByProfile, ByDay, "node-label:pool"}
	return rapid.Permutation(all).Draw(t, "dimensions")[:rapid.IntRange(0, 4).Draw(t, "groups")]
}

func drawOptions(t *rapid.T, tt testing.TB) Options {
	policy := rapid.SampledFrom([]string{"platform", "spread", "sole-tenant"}).Draw(t, "policy")
	quota := rapid.SampledFrom([]string{"", lawQuota}).Draw(t, "quota")
	return Options{
		From: day(1), To: day(1 + rapid.IntRange(1, 4).Draw(t, "days")), GroupBy: drawGroups(t), Prices: book(tt, fmt.Sprintf(lawBook, policy, quota)),
	}
}

func TestEveryBillAddsUpToTheCapacityAndToTheCent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := drawOptions(rt, t)
		b := bill(t, drawFleet(rt, o), o)
		if b.Difference != 0 || !b.Capacity.Equal(b.Total.GPUHours) {
			rt.Fatalf("difference %d, capacity %s, rows %s: %q", b.Difference, b.Capacity, b.Total.GPUHours, b.Unbalanced)
		}
		hours := decimal.NewFromInt(int64(o.To.Sub(o.From) / time.Hour))
		cards := 0
		for _, n := range b.Nodes {
			cards += n.GPUs
		}
		if want := hours.Mul(decimal.NewFromInt(int64(cards))); !b.Capacity.Equal(want) {
			rt.Fatalf("%d GPUs have %s hours, want %s", cards, b.Capacity, want)
		}
		if !b.Total.IdleCost.IsZero() {
			rt.Fatalf("idle cost is moved, and its sum is %s", b.Total.IdleCost)
		}
	})
}

func TestTheOrderInWhichMetersAreToldChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := drawOptions(rt, t)
		f := drawFleet(rt, o)
		want := bill(t, f, o)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		f.shuffle(r)
		got := bill(t, f, o)
		if got.ID != want.ID || strings.Join(lines(got), "\n") != strings.Join(lines(want), "\n") {
			rt.Fatalf("bill %s:\n%s\nin another order %s:\n%s", want.ID, strings.Join(lines(want), "\n"), got.ID, strings.Join(lines(got), "\n"))
		}
	})
}

func (f *fleet) shuffle(r *rand.Rand) {
	r.Shuffle(len(f.Held), func(i, j int) { f.Held[i], f.Held[j] = f.Held[j], f.Held[i] })
	r.Shuffle(len(f.Rest), func(i, j int) { f.Rest[i], f.Rest[j] = f.Rest[j], f.Rest[i] })
	r.Shuffle(len(f.Corrections), func(i, j int) { f.Corrections[i], f.Corrections[j] = f.Corrections[j], f.Corrections[i] })
	to := r.Perm(len(f.Nodes))
	nodes := slices.Clone(f.Nodes)
	for i, n := range nodes {
		f.Nodes[to[i]] = n
	}
	for i := range f.Held {
		f.Held[i].Node = to[f.Held[i].Node]
	}
	for i := range f.Rest {
		f.Rest[i].Node = to[f.Rest[i].Node]
	}
	for i := range f.Corrections {
		f.Corrections[i].Node = to[f.Corrections[i].Node]
	}
}

// exactCost is what all items of a bill cost together before anything is rounded.
func exactCost(b *Bill) (micro int64, list, total sharing.Fraction) {
	for _, r := range b.Rows {
		for _, i := range r.Items {
			micro += i.GPU
			list, total = list.Add(i.List), total.Add(i.Net).Add(i.Idle)
		}
	}
	return micro, list, total
}

func TestGroupingAndIdlePolicyChangeNoTotal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		quota := rapid.SampledFrom([]string{"", lawQuota}).Draw(rt, "quota")
		o := Options{From: day(1), To: day(4)}
		// Every day is a window, so that every bill can be made of it.
		o.GroupBy = []Dimension{ByDay}
		o.Prices = book(t, fmt.Sprintf(lawBook, "platform", quota))
		f := drawFleet(rt, o)
		want := bill(t, f, o)
		_, list, total := exactCost(want)
		for _, policy := range []string{"platform", "spread", "sole-tenant"} {
			o.GroupBy = drawGroups(rt)
			o.Prices = book(t, fmt.Sprintf(lawBook, policy, quota))
			got := bill(t, f, o)
			if _, l, tt := exactCost(got); !l.Equal(list) || !tt.Equal(total) {
				rt.Fatalf("%s by %v: list %s, total %s, want %s, %s", policy, o.GroupBy, l, tt, list, total)
			}
			if !got.Total.TotalCost.Equal(want.Total.TotalCost) || !got.Total.GPUHours.Equal(want.Total.GPUHours) || !got.Total.NetCost.Equal(want.Total.NetCost) {
				rt.Fatalf("%s by %v: %v, want %v", policy, o.GroupBy, listed(got.Total), listed(want.Total))
			}
		}
	})
}

// A quota of a month, and idle cost that is spread within one, are not the sum of days; without them it is.
func TestDaysAddUpToTheirMonth(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := Options{From: day(1), To: day(5), GroupBy: []Dimension{ByDay, ByNamespace}, Prices: book(t, fmt.Sprintf(lawBook, "sole-tenant", ""))}
		f := drawFleet(rt, o)
		micro, list, total := exactCost(bill(t, f, o))
		var days [3]sharing.Fraction
		for w := range len(f.Boundaries) - 1 {
			part := f.window(w)
			p := o
			p.From, p.To = part.Boundaries[0], part.Boundaries[1]
			m, l, tt := exactCost(bill(t, part, p))
			days[0], days[1], days[2] = days[0].Add(sharing.NewFraction(m, 1)), days[1].Add(l), days[2].Add(tt)
		}
		if !days[0].Equal(sharing.NewFraction(micro, 1)) {
			rt.Fatalf("the days have %s GPU-microseconds, all of it %d", days[0], micro)
		}
		if len(f.Corrections) == 0 && !slices.ContainsFunc(f.Rest, func(r ledger.Rest) bool { return r.Corrected }) && (!days[1].Equal(list) || !days[2].Equal(total)) {
			rt.Fatalf("the days cost %s and %s, all of it %s and %s", days[1], days[2], list, total)
		}
	})
}

// window is the part of a fleet's Usage that is one window.
func (f *fleet) window(w int) *fleet {
	part := &fleet{ledger.Usage{Source: f.Source, Boundaries: f.Boundaries[w : w+2], Nodes: f.Nodes}}
	for _, h := range f.Held {
		if h.Window == w {
			h.Window = 0
			part.Held = append(part.Held, h)
		}
	}
	for _, r := range f.Rest {
		if r.Window == w {
			r.Window = 0
			part.Rest = append(part.Rest, r)
		}
	}
	for _, c := range f.Corrections {
		if c.Window == w {
			c.Window, c.Held.Window = 0, 0
			part.Corrections = append(part.Corrections, c)
		}
	}
	return part
}

func TestARowHasTheSameNameInEveryBillOfItsPeriod(t *testing.T) {
	f := newFleet(day(1), day(2))
	f.held(0, "a", 3600)
	one := bill(t, f, Options{GroupBy: byNamespace})
	f.held(0, "b", 3600)
	f.rest(0, sharing.CauseFree, 1)
	two := bill(t, f, Options{GroupBy: byNamespace, Prices: flat(t, "1")})
	if one.Rows[0].ID != two.Rows[0].ID || one.ID == two.ID {
		t.Errorf("rows %s and %s, bills %s and %s", one.Rows[0].ID, two.Rows[0].ID, one.ID, two.ID)
	}
	seen := map[string]bool{}
	for _, r := range two.Rows {
		if seen[r.ID] {
			t.Errorf("the ID %s is there twice", r.ID)
		}
		seen[r.ID] = true
	}
}

// bigFleet is a month of a thousand nodes: 20,000 series, 48,000 registers of what nobody held and 8,000 of capacity.
func bigFleet() *fleet {
	f := newFleet(day(1), day(31))
	f.Nodes = nil
	capacity := int64(30 * 24 * 3600)
	for n := range 1000 {
		node := f.node(fmt.Sprintf("node-%04d", n), map[string]string{"pool": fmt.Sprint(n % 3)})
		for s := range 20 {
			f.held(0, fmt.Sprintf("ns-%02d", (n+s)%60), capacity*4/20+int64(s*n%97), model([]string{h100, "NVIDIA A40"}[s%2]), func(h *ledger.Held) { h.Node = node })
		}
		for card := range 8 {
			at := func(r *ledger.Rest) {
				r.Node, r.Card, r.Index = node, gpu.UUID(fmt.Sprintf("GPU-%d-%d", n, card)), card
			}
			f.rest(0, "", capacity, at)
			for _, cause := range sharing.Causes() {
				f.rest(0, cause, capacity/12, at)
			}
		}
	}
	return f
}

func BenchmarkMakeOfAThousandNodes(b *testing.B) {
	f := bigFleet()
	for _, policy := range []string{"platform", "spread"} {
		for _, groups := range [][]Dimension{{ByNamespace, ByModel}, {ByNode, ByNamespace, ByModel}} {
			o := Options{From: day(1), To: day(31), GroupBy: groups, Prices: book(b, "idle: "+policy+`
prices: [{model: "*", price: 1.37}, {model: "*H100*", price: 2.9375}]
discounts: [{percent: 33.33}]`)}
			b.Run(fmt.Sprintf("%s/%d", policy, len(groups)), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Make(f.Usage, o); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
