// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Totals are the registers as of the last record.
func (a *Account) Totals() *Totals { return a.totals(a.charged.Boot) }

// TotalsAt are the registers as they will be at a later moment of the boot clock if nothing changes before: what is
// open is charged up to then. An earlier one, and any while a gap is not told yet, gives those of the last record.
func (a *Account) TotalsAt(boot int64) *Totals {
	if a.away || a.crooked > 0 || boot <= a.charged.Boot || boot > maxClock {
		return a.Totals()
	}
	t := a.totals(boot)
	t.At.Wall += boot - t.At.Boot
	t.At.Boot = boot
	return t
}

// pending is what open lines have to be charged yet.
type pending struct {
	cards  []pendingCard
	series map[*seriesAccount]Amount
	pods   map[*podAccount]Amount
	used   map[*seriesAccount]map[Basis]sharing.Fraction
}

type pendingCard struct {
	allocated   Amount
	basis       map[Basis]sharing.Fraction
	unallocated map[sharing.Cause]Amount
}

// pending sums what is open apart from the registers: their sums have long denominators after a while, and
// each is added to once.
func (a *Account) pending(boot int64) pending {
	p := pending{
		cards:  make([]pendingCard, len(a.cards)),
		series: make(map[*seriesAccount]Amount, len(a.series)),
		pods:   make(map[*podAccount]Amount, len(a.lines)),
		used:   make(map[*seriesAccount]map[Basis]sharing.Fraction, len(a.series)),
	}
	for i, c := range a.cards {
		sums := &p.cards[i]
		for _, l := range c.lines {
			amount := l.amount(boot)
			if l.line.Cause != "" {
				if sums.unallocated == nil {
					sums.unallocated = map[sharing.Cause]Amount{}
				}
				sums.unallocated[l.line.Cause] = sums.unallocated[l.line.Cause].plus(amount)
				continue
			}
			sums.allocated = sums.allocated.plus(amount)
			if !amount.Energy.IsZero() {
				if sums.basis == nil {
					sums.basis = map[Basis]sharing.Fraction{}
				}
				basis := EnergyBasis(l.line.Mode)
				sums.basis[basis] = sums.basis[basis].Add(amount.Energy)
			}
			p.series[l.series] = p.series[l.series].plus(amount)
			p.pods[l.pod] = p.pods[l.pod].plus(amount)
			if basis, used := l.used(); !used.IsZero() {
				if p.used[l.series] == nil {
					p.used[l.series] = map[Basis]sharing.Fraction{}
				}
				p.used[l.series][basis] = p.used[l.series][basis].Add(used)
			}
		}
	}
	return p
}

func (a *Account) totals(boot int64) *Totals {
	open := a.pending(boot)
	t := &Totals{
		LedgerID: a.begin.LedgerID, Node: a.begin.Node, Cluster: a.begin.Cluster, Policy: a.begin.Policy,
		Created: time.UnixMilli(a.created).UTC(), Sequence: a.seq, At: a.at,
		Cards:  make([]CardTotal, 0, len(a.cards)),
		Series: make([]SeriesTotal, 0, len(a.series)),
		Pods:   make([]PodTotal, 0, len(a.lines)),
		Gaps:   make(map[string]int64, 4),
		XIDs:   maps.Clone(a.xids), NodeLabels: maps.Clone(a.labels),
	}
	for i, c := range a.cards {
		t.Cards = append(t.Cards, c.total(boot, &open.cards[i]))
	}
	for _, s := range a.series {
		t.Series = append(t.Series, s.total(&open))
	}
	for _, p := range a.pods {
		if len(p.lines) > 0 || p.unseen || a.age-p.endedAge <= TombstoneFor.Milliseconds() {
			t.Pods = append(t.Pods, a.podTotal(p, p.amount.plus(open.pods[p])))
		}
	}
	for _, reason := range GapReasons() {
		t.Gaps[reason] = a.gaps[reason]
	}
	slices.SortFunc(t.Cards, func(a, b CardTotal) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	slices.SortFunc(t.Series, func(a, b SeriesTotal) int { return a.Series.compare(&b.Series) })
	slices.SortFunc(t.Pods, func(a, b PodTotal) int { return a.PodSeries.compare(&b.PodSeries) })
	return t
}

func (c *cardAccount) total(boot int64, open *pendingCard) CardTotal {
	t := CardTotal{
		Card: c.card, Present: len(c.lines) > 0, Capacity: c.capacity, Allocated: c.allocated.plus(open.allocated),
		AllocatedEnergy: maps.Clone(c.basis), Unallocated: maps.Clone(c.unallocated), Corrected: maps.Clone(c.corrected),
	}
	if t.Present {
		t.Capacity = t.Capacity.plus(c.held(sharing.One(), sharing.One(), boot-c.since))
	}
	for cause, amount := range open.unallocated {
		t.Unallocated[cause] = t.Unallocated[cause].plus(amount)
	}
	for basis, energy := range open.basis {
		t.AllocatedEnergy[basis] = t.AllocatedEnergy[basis].Add(energy)
	}
	return t
}

func (s *seriesAccount) total(open *pending) SeriesTotal {
	t := SeriesTotal{Series: s.key, Amount: s.amount.plus(open.series[s]), Used: maps.Clone(s.used)}
	for basis, used := range open.used[s] {
		t.Used[basis] = t.Used[basis].Add(used)
	}
	return t
}

// podTotal is what a pod came to: its amount is the caller's, who knows up to when.
func (a *Account) podTotal(p *podAccount, amount Amount) PodTotal {
	t := PodTotal{
		PodSeries: p.key, Amount: amount, Used: maps.Clone(p.used), Ended: p.ended, Pod: a.holders[p.holder()].facts,
	}
	for _, l := range p.lines {
		if basis, used := l.used(); !used.IsZero() {
			t.Used[basis] = t.Used[basis].Add(used)
		}
	}
	return t
}

func (s *Series) compare(o *Series) int {
	return cmp.Or(
		strings.Compare(s.Namespace, o.Namespace), strings.Compare(s.Resource, o.Resource),
		cmp.Compare(s.Mode, o.Mode), strings.Compare(s.Model, o.Model), strings.Compare(s.Profile, o.Profile))
}

func (s *PodSeries) compare(o *PodSeries) int {
	if s.Namespace != o.Namespace {
		return strings.Compare(s.Namespace, o.Namespace)
	}
	return cmp.Or(
		strings.Compare(s.Pod, o.Pod), strings.Compare(s.PodUID, o.PodUID), strings.Compare(s.Container, o.Container),
		cmp.Compare(s.Card, o.Card), cmp.Compare(s.GPUInstance, o.GPUInstance), s.Series.compare(&o.Series))
}
