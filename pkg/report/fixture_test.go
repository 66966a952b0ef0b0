// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -run Golden -update writes it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

// written is what one of the outputs writes.
func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// stay is one container on one device in one part of the month, by the hour.
type stay struct {
	card                                      int
	namespace, pod, container, workload, kind string
	mode                                      sharing.Mode
	resource, profile                         string
	instance                                  int
	part                                      sharing.Fraction
	used                                      int64 // percent of it
	basis                                     ledger.Basis
	from, to                                  int // days of the month
	office                                    bool
	labels                                    map[string]string
	uid                                       string
}

func (s *stay) holds(local time.Time) bool {
	if s.office && (local.Hour() < 8 || local.Hour() >= 19 || local.Weekday() == time.Saturday || local.Weekday() == time.Sunday) {
		return false
	}
	return local.Day() >= s.from && local.Day() < s.to
}

const (
	h100    = "NVIDIA H100 80GB HBM3"
	hour    = int64(3_600_000_000)
	quarter = 4
)

// stays are the tenants of March 2026.
func stays() []stay {
	whole := func(card int, ns, workload string, from, to int, used int64, office bool) stay {
		return stay{
			card: card, namespace: ns, pod: workload + "-0", container: "main", workload: workload, kind: "StatefulSet",
			mode: sharing.ModeExclusive, resource: "nvidia.com/gpu", instance: gpu.NoInstance, part: sharing.One(),
			used: used, basis: ledger.BasisEngine, from: from, to: to, office: office, labels: map[string]string{"app": workload},
			uid: fmt.Sprintf("7c1f9a52-0000-4000-8000-%04d%08d", card, from),
		}
	}
	slice := func(ns, pod string, instance int, profile string, part sharing.Fraction, from, to int, used int64) stay {
		s := whole(5, ns, pod, from, to, used, false)
		s.mode, s.resource, s.profile, s.instance, s.part = sharing.ModeMIG, "nvidia.com/mig-"+profile, profile, instance, part
		return s
	}
	seat := func(card, n int, ns string, from, to int, used int64, office bool) stay {
		s := whole(card, ns, fmt.Sprintf("notebook-%d", n), from, to, used, office)
		s.mode, s.resource, s.part, s.basis, s.uid = sharing.ModeShared, "nvidia.com/gpu.shared", sharing.NewFraction(1, quarter), ledger.BasisEqual, ""
		return s
	}
	all := []stay{
		whole(0, "llm-training", "pretrain", 1, 32, 96, false),
		whole(1, "llm-training", "pretrain-b", 1, 26, 95, false),
		whole(2, "research", "protein-fold", 4, 29, 71, false),
		whole(3, "serving", "llama-70b", 1, 32, 34, false),
		whole(4, "serving", "embedder", 10, 32, 12, false),
		slice("vision", "detector", 1, "3g.40gb", sharing.NewFraction(13, 28), 1, 32, 58),
		slice("vision", "segmenter", 5, "2g.20gb", sharing.NewFraction(15, 56), 3, 24, 41),
		slice("research", "ablation", 7, "1g.10gb", sharing.NewFraction(15, 112), 1, 32, 9),
	}
	for n := range 3 {
		all = append(all, seat(6, n, "notebooks", 1, 32, 8, true))
	}
	return append(all, seat(6, 3, "research", 9, 21, 15, false), seat(7, 0, "notebooks", 2, 17, 5, true))
}

func at(berlin *time.Location, day, hour int) time.Time {
	return time.Date(2026, time.March, day, hour, 0, 0, 0, berlin)
}

// rest says why nobody holds what is free of a card.
func rest(card int, local time.Time) sharing.Cause {
	switch {
	case card == 5:
		return sharing.CauseStranded
	case card == 6:
		return sharing.CauseUnrequested
	case card == 2 && local.Day() >= 29:
		return sharing.CauseUnhealthy
	case card == 4 && local.Day() == 6 && local.Hour() < 9:
		return sharing.CauseUnobserved
	}
	return sharing.CauseFree
}

func inBerlin(t testing.TB) *time.Location {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return berlin
}

// march is the bill of a month of eight GPUs, with all that a bill can have: MIG devices, seats, discounts, something
// missing, a correction, and the hour that Berlin does not have.
func march(t testing.TB) *bill.Bill {
	t.Helper()
	berlin := inBerlin(t)
	b := &bill.Bill{
		ID: "b-2026-03-5f2c9d1e", From: at(berlin, 1, 0), To: at(berlin, 32, 0), Zone: berlin,
		GroupBy: []bill.Dimension{bill.ByNamespace, bill.ByMode}, Source: "ledger", Currency: "EUR", Decimals: 2,
		PriceVersion: "2026-Q1.2", PolicyVersion: "mig-blend+replica-even@v1", Idle: prices.IdlePlatform,
		Notes: []string{"node gpu-b was scraped twice in every interval; each charge is counted once"},
	}
	b.Nodes = []bill.Node{node(b, "gpu-a", 4), node(b, "gpu-b", 4)}
	b.Nodes[1].Completeness = decimal.RequireFromString("99.19")
	b.Nodes[1].Missing = []ledger.Missing{{
		From: at(berlin, 17, 3), To: at(berlin, 17, 9), Reason: "no_reading",
		Text: "Prometheus has no sample in this time; read the node's ledger with --ledger to have it all",
	}}
	b.Nodes[1].Gaps = []ledger.Missing{{From: at(berlin, 6, 0), To: at(berlin, 6, 9), Reason: "restart", Text: "the meter was away"}}
	bookHours(b)
	bookCorrection(b)
	sumUp(b)
	return b
}

func node(b *bill.Bill, name string, gpus int) bill.Node {
	return bill.Node{
		NodeUsage: ledger.NodeUsage{
			Cluster: "prod", Node: name, LedgerID: "led-" + name, Created: b.From.AddDate(0, -3, 0),
			Labels: map[string]string{"pool": "h100"}, Readings: []time.Time{b.From.Add(-4 * time.Second), b.To.Add(-3 * time.Second)},
		},
		Completeness: decimal.NewFromInt(100), GPUs: gpus,
	}
}

// bookHours books every hour of every card, and what it comes to in the month.
func bookHours(b *bill.Bill) {
	items := make(map[string]*bill.Item)
	var order []string
	book := func(key string, item *bill.Item, micros int64) {
		if items[key] == nil {
			items[key] = item
			order = append(order, key)
		}
		items[key].GPU += micros
	}
	all := stays()
	for start := b.From; start.Before(b.To); start = start.Add(time.Hour) {
		local := start.In(b.Zone)
		for card := range 8 {
			h := bill.CardHour{Node: card / 4, Card: uuid(card), Index: card % 4, Model: h100, Start: start, Capacity: hour, Known: true, Rest: make(map[sharing.Cause]int64)}
			h.Known = card < 4 || local.Day() != 17 || local.Hour() < 3 || local.Hour() >= 9
			for i := range all {
				if s := &all[i]; s.card == card && s.holds(local) {
					micros := s.part.Mul(sharing.NewFraction(hour, 1)).Floor()
					h.Held += micros
					book(fmt.Sprintf("held %02d", i), heldItem(b, s), micros)
				}
			}
			if left := h.Capacity - h.Held; left > 0 {
				cause := rest(card, local)
				h.Rest[cause] = left
				book(fmt.Sprintf("rest %s %d", cause, card), restItem(b, card, cause), left)
			}
			b.Hours = append(b.Hours, h)
		}
	}
	slices.Sort(order)
	for _, key := range order {
		addItem(b, items[key])
	}
}

func uuid(card int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("GPU-5d1e4c%02d-77aa-4e0b-9c3f-0123456789ab", card))
}

func heldItem(b *bill.Bill, s *stay) *bill.Item {
	item := &bill.Item{
		Kind: bill.KindHeld, Node: s.card / 4, Start: b.From, End: b.To,
		Series: ledger.Series{Namespace: s.namespace, Resource: s.resource, Mode: s.mode, Model: h100, Profile: s.profile},
		Pod:    s.pod, PodUID: s.uid, Container: s.container, WorkloadKind: s.kind, Workload: s.workload, Labels: s.labels,
		Card: uuid(s.card), CardIndex: s.card % 4, GPUInstance: s.instance,
		Used: map[ledger.Basis]int64{s.basis: s.used}, Price: priceOf(s.namespace),
	}
	return item
}

func restItem(b *bill.Bill, card int, cause sharing.Cause) *bill.Item {
	return &bill.Item{
		Kind: bill.KindUnallocated, Node: card / 4, Start: b.From, End: b.To, Series: ledger.Series{Model: h100},
		Card: uuid(card), CardIndex: card % 4, GPUInstance: gpu.NoInstance, Cause: cause, Price: priceOf(""),
	}
}

func priceOf(namespace string) prices.Price {
	p := prices.Price{Hour: decimal.RequireFromString("2.4975"), Entry: "h100", Version: "2026-Q1.2"}
	if namespace == "research" {
		p.Discount, p.Sources = decimal.NewFromInt(20), []string{"research-grant"}
	}
	return p
}

// addItem prices an item and puts it into its row.
func addItem(b *bill.Bill, item *bill.Item) {
	for basis, percent := range item.Used {
		item.Used[basis] = item.GPU / 100 * percent
	}
	item.Energy = item.GPU * 420 // 420 W held
	item.Memory = float64(item.GPU) / 1e6 * 80
	item.List = exact(item.Price.Hour).Mul(sharing.NewFraction(item.GPU, hour))
	item.Net = item.List.Mul(sharing.One().Sub(exact(item.Price.Discount).Scale(1, 100)))
	keys := []string{item.Namespace, string(item.Mode)}
	n := slices.IndexFunc(b.Rows, func(r bill.Row) bool {
		return r.Kind == item.Kind && r.Cause == item.Cause && slices.Equal(r.Keys, keys)
	})
	if n < 0 {
		n = len(b.Rows)
		b.Rows = append(b.Rows, bill.Row{
			ID: fmt.Sprintf("r-%03d", n+1), Kind: item.Kind, Keys: keys, Cause: item.Cause, Completeness: b.Nodes[item.Node].Completeness,
			UnitPrice: decimal.NewNullDecimal(item.Price.Hour), Discounts: item.Price.Sources,
		})
	}
	r := &b.Rows[n]
	r.Completeness = decimal.Min(r.Completeness, b.Nodes[item.Node].Completeness)
	r.Items = append(r.Items, *item)
}

func exact(d decimal.Decimal) sharing.Fraction {
	f, err := sharing.ParseFraction(d.String())
	if err != nil {
		return sharing.Fraction{}
	}
	return f
}

// bookCorrection books an hour and a half of February that came to be known in March: the holder owes it, and what was
// booked to nobody is given back.
func bookCorrection(b *bill.Bill) {
	s := stays()[2]
	known := &ledger.Corrected{
		From: sharing.CauseUnobserved, FromTime: b.From.Add(-30 * time.Hour), ToTime: b.From.Add(-28*time.Hour - 30*time.Minute),
		Reason: "the pod's UID became known after the restart", Refers: 48211,
	}
	owed, back := heldItem(b, &s), restItem(b, s.card, sharing.CauseUnobserved)
	owed.GPU, back.GPU = hour*3/2, -hour*3/2
	for _, item := range []*bill.Item{owed, back} {
		item.Kind, item.Used, item.Correction = bill.KindAdjustment, nil, known
		addItem(b, item)
	}
}

func sumUp(b *bill.Bill) {
	var owed, shown decimal.Decimal
	for i := range b.Rows {
		r := &b.Rows[i]
		var list, net, waste sharing.Fraction
		var micros, used, energy int64
		for j := range r.Items {
			item := &r.Items[j]
			micros, energy = micros+item.GPU, energy+item.Energy
			r.MemoryHours = r.MemoryHours.Add(decimal.NewFromFloat(item.Memory / 3600).Round(6))
			list, net = list.Add(item.List), net.Add(item.Net)
			for basis, u := range item.Used {
				used += u
				waste = waste.Add(item.Net.Mul(sharing.One().Sub(sharing.NewFraction(u, item.GPU))))
				if !slices.Contains(r.Bases, basis) {
					r.Bases = append(r.Bases, basis)
				}
			}
		}
		r.GPUHours = rounded(sharing.NewFraction(micros, hour), 6)
		r.Energy = decimal.NewFromInt(energy).Shift(-6).DivRound(decimal.NewFromInt(3_600_000), 6)
		if measured(r) {
			r.UsedHours = rounded(sharing.NewFraction(used, hour), 6)
			r.WastedHours = r.GPUHours.Sub(r.UsedHours)
			r.WastedCost = rounded(waste, 2)
		}
		r.ListCost = rounded(list, 2)
		r.TotalCost = rounded(net, 2)
		owed = owed.Add(rounded(net, 12))
		shown = shown.Add(r.TotalCost)
		if i == len(b.Rows)-1 {
			r.TotalCost = r.TotalCost.Add(owed.RoundBank(2).Sub(shown))
		}
		if r.Kind == bill.KindAdjustment {
			r.Adjustment, r.ListCost = r.TotalCost, decimal.Zero
		} else {
			r.NetCost, r.Discount = r.TotalCost, r.ListCost.Sub(r.TotalCost)
		}
		b.Capacity = b.Capacity.Add(r.GPUHours)
		b.Total = plus(b.Total, r.Sums)
	}
	// The rows' six decimals add up to the capacity as a bill's do.
	whole := decimal.NewFromInt(int64(len(b.Hours)))
	apart := whole.Sub(b.Capacity)
	last := &b.Rows[len(b.Rows)-3]
	last.GPUHours, b.Total.GPUHours, b.Capacity = last.GPUHours.Add(apart), b.Total.GPUHours.Add(apart), whole
}

func plus(a, c bill.Sums) bill.Sums {
	return bill.Sums{
		GPUHours: a.GPUHours.Add(c.GPUHours), UsedHours: a.UsedHours.Add(c.UsedHours), WastedHours: a.WastedHours.Add(c.WastedHours),
		MemoryHours: a.MemoryHours.Add(c.MemoryHours), Energy: a.Energy.Add(c.Energy), ListCost: a.ListCost.Add(c.ListCost),
		Discount: a.Discount.Add(c.Discount), NetCost: a.NetCost.Add(c.NetCost), IdleCost: a.IdleCost.Add(c.IdleCost),
		Adjustment: a.Adjustment.Add(c.Adjustment), TotalCost: a.TotalCost.Add(c.TotalCost), WastedCost: a.WastedCost.Add(c.WastedCost),
	}
}

func rounded(f sharing.Fraction, decimals int32) decimal.Decimal {
	num, den, slash := strings.Cut(f.String(), "/")
	d := decimal.RequireFromString(num)
	if slash {
		d = d.DivRound(decimal.RequireFromString(den), 20)
	}
	return d.RoundBank(decimals)
}

// brief is b with the hours of one night only.
func brief(b *bill.Bill) *bill.Bill {
	b.Hours = b.Hours[:96]
	return b
}
