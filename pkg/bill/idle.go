// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"math/big"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// spreadUnit is the part of a unit of currency to which idle cost is spread: far below what is rounded to, and it keeps
// denominators small. The last one has what is left, so nothing is lost.
const spreadUnit = 1_000_000_000

// pool is idle cost and those who bear it, by index of items.
type pool struct{ idle, bearers []int }

// spread is what pools of IdleSpread are by.
type spread struct {
	month          int64
	cluster, model string
}

// seat is what pools of IdleSoleTenant are by.
type seat struct {
	node int
	day  int64
	card gpu.UUID
}

// shareIdle has idle cost borne by those who bear it, by the book's policy.
func (m *maker) shareIdle() {
	switch m.o.idle() {
	case prices.IdleSpread:
		unborne := false
		for _, p := range m.spreads() {
			unborne = m.bear(p) || unborne
		}
		if unborne {
			m.notes = append(m.notes, "of some model nothing was held at a cost in a month, so what was idle of it stays with the platform")
		}
	case prices.IdleSoleTenant:
		for _, p := range m.soleTenants() {
			m.bear(p)
		}
	case prices.IdlePlatform:
	}
}

func (m *maker) spreads() map[spread]*pool {
	pools := map[spread]*pool{}
	for i := range m.items {
		item := &m.items[i]
		key := spread{m.cal.month(item.Start).Unix(), m.nodes[item.Node].Cluster, item.Model}
		p := pools[key]
		if p == nil {
			p = &pool{}
			pools[key] = p
		}
		switch item.Kind {
		case KindHeld:
			p.bearers = append(p.bearers, i)
		case KindUnallocated:
			p.idle = append(p.idle, i)
		case KindAdjustment:
		}
	}
	return pools
}

// soleTenants are the shared GPUs of which one namespace alone held replicas on a day.
func (m *maker) soleTenants() map[seat]*pool {
	pools := map[seat]*pool{}
	tenant := map[seat]string{}
	several := map[seat]bool{}
	for i := range m.items {
		item := &m.items[i]
		key := seat{item.Node, m.cal.day(item.Start).Unix(), item.Card}
		p := pools[key]
		if p == nil {
			p = &pool{}
			pools[key] = p
		}
		switch {
		case item.Kind == KindUnallocated && item.Cause == sharing.CauseUnrequested:
			p.idle = append(p.idle, i)
		case item.Kind == KindHeld && (item.Mode == sharing.ModeShared || item.Mode == sharing.ModeMIGShared):
			if had, ok := tenant[key]; ok && had != item.Namespace {
				several[key] = true
			}
			tenant[key] = item.Namespace
			p.bearers = append(p.bearers, i)
		}
	}
	for key := range several {
		delete(pools, key)
	}
	return pools
}

// bear moves a pool's idle cost to its bearers, in proportion to what each pays. It reports whether there is idle
// cost that nobody bears.
func (m *maker) bear(p *pool) (unborne bool) {
	idle, total := new(big.Rat), new(big.Rat)
	for _, i := range p.idle {
		idle.Add(idle, rat(m.items[i].Net))
	}
	var payers []int
	for _, i := range p.bearers {
		if m.items[i].Net.Sign() > 0 {
			payers = append(payers, i)
			total.Add(total, rat(m.items[i].Net))
		}
	}
	if idle.Sign() == 0 || len(payers) == 0 {
		return idle.Sign() != 0
	}
	// What all up to one bear is rounded down; one bears what that is more than before it.
	perUnit := new(big.Rat).Quo(new(big.Rat).Mul(idle, big.NewRat(spreadUnit, 1)), total)
	upTo, before := new(big.Rat), new(big.Rat)
	for n, i := range payers {
		item := &m.items[i]
		upTo.Add(upTo, rat(item.Net))
		now := new(big.Rat).Set(idle)
		if n < len(payers)-1 {
			units := new(big.Rat).Mul(upTo, perUnit)
			now.SetFrac(new(big.Int).Div(units.Num(), units.Denom()), big.NewInt(spreadUnit))
		}
		item.Idle = item.Idle.Add(exactly(new(big.Rat).Sub(now, before)))
		before = now
	}
	for _, i := range p.idle {
		m.items[i].Idle = sharing.Fraction{}.Sub(m.items[i].Net)
	}
	return false
}

// exactly is r as a Fraction.
func exactly(r *big.Rat) sharing.Fraction {
	if r.Num().IsInt64() && r.Denom().IsInt64() {
		return sharing.NewFraction(r.Num().Int64(), r.Denom().Int64())
	}
	var f sharing.Fraction
	if err := f.UnmarshalText([]byte(r.RatString())); err != nil {
		return sharing.Fraction{}
	}
	return f
}
