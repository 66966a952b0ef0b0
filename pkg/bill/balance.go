// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// registersPerCard are capacity, six causes and what was corrected.
const registersPerCard = 8

// completeness sets how much of each node's life within the period is known.
func (m *maker) completeness() {
	cards := make([]map[gpu.UUID]bool, len(m.nodes))
	for _, r := range m.usage.Rest {
		n := m.order[r.Node]
		if cards[n] == nil {
			cards[n] = map[gpu.UUID]bool{}
		}
		cards[n][r.Card] = true
	}
	for i := range m.nodes {
		n := &m.nodes[i]
		n.GPUs = len(cards[i])
		from := m.o.From
		if n.Created.After(from) {
			from = n.Created
		}
		n.Completeness = known(from, m.o.To, n.Missing)
	}
}

// known is the percentage of a time that nothing is missing of, rounded down: 100 is all of it.
func known(from, to time.Time, missing []ledger.Missing) decimal.Decimal {
	hundred := decimal.NewFromInt(100)
	if !from.Before(to) {
		return hundred
	}
	missing = slices.Clone(missing)
	slices.SortFunc(missing, func(a, b ledger.Missing) int { return a.From.Compare(b.From) })
	var lost time.Duration
	at := from
	for _, m := range missing {
		begin, end := later(m.From, at), m.To
		if end.After(to) {
			end = to
		}
		if begin.Before(end) {
			lost += end.Sub(begin)
			at = end
		}
	}
	whole := to.Sub(from)
	const decimals = 4
	part := new(big.Int).Mul(big.NewInt(int64(whole-lost)), big.NewInt(100*pow10(decimals)))
	return decimal.NewFromBigInt(part.Quo(part, big.NewInt(int64(whole))), -decimals)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// account is what one node's registers say of one window, in GPU-microseconds.
type account struct{ capacity, corrected, held, rest int64 }

// difference is by how much the registers contradict each other.
func (a account) difference() int64 { return a.capacity + a.corrected - a.held - a.rest }

// spot is a node in a window.
type spot struct{ node, window int }

// balance holds what was held and what was not against the capacity. Registers are rounded down, each by less than
// a microsecond; capacity is told as the sum of its parts where it is no further from it than that.
func (m *maker) balance(b *Bill) {
	m.overlaps(b)
	if m.o.Filtered {
		return
	}
	accounts, registers := m.accounts()
	spots := make([]spot, 0, len(accounts))
	for s := range accounts {
		spots = append(spots, s)
	}
	slices.SortFunc(spots, func(x, y spot) int { return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.window, y.window)) })
	off := new(big.Int)
	for _, s := range spots {
		a := accounts[s]
		d := a.difference()
		beyond := max(d-registers[s.node], -d-registers[s.node], 0)
		if beyond == 0 {
			continue
		}
		if m.o.showsNode(m.nodes[s.node].Node) {
			off.Add(off, big.NewInt(d))
		}
		b.Difference += beyond
		start, end := m.window(s.window)
		b.Unbalanced = append(b.Unbalanced, fmt.Sprintf("node %s from %s to %s: capacity %s, held %s, unallocated %s GPU-seconds, %s of it corrected",
			m.nodes[s.node].Node, start.Format(time.RFC3339), end.Format(time.RFC3339), seconds(a.capacity), seconds(a.held), seconds(a.rest), seconds(a.corrected)))
	}
	b.Capacity = b.Total.GPUHours
	if off.Sign() != 0 {
		b.Capacity = b.Capacity.Add(decimal.NewFromBigInt(halfEven(off.Mul(off, big.NewInt(pow10(quantityDecimals))), big.NewInt(hour)), -quantityDecimals))
	}
}

func seconds(micro int64) decimal.Decimal { return decimal.New(micro, -6) }

// accounts adds up the registers by node and window, and counts those of each node.
func (m *maker) accounts() (map[spot]account, map[int]int64) {
	accounts := map[spot]account{}
	registers := map[int]int64{}
	for i := range m.nodes {
		registers[i] = int64(registersPerCard * m.nodes[i].GPUs)
	}
	seen := map[heldKey]bool{}
	for i := range m.usage.Held {
		h := &m.usage.Held[i]
		s := spot{m.order[h.Node], h.Window}
		a := accounts[s]
		a.held += h.GPU
		accounts[s] = a
		key := keyOf(h)
		key.window = 0
		if !seen[key] {
			seen[key] = true
			registers[s.node]++
		}
	}
	for _, r := range m.usage.Rest {
		s := spot{m.order[r.Node], r.Window}
		a := accounts[s]
		switch {
		case r.Corrected:
			a.corrected += r.GPU
		case r.Cause == "":
			a.capacity += r.GPU
		default:
			a.rest += r.GPU
		}
		accounts[s] = a
	}
	return accounts, registers
}
