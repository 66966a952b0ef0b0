// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// clockStep is by how much a node's clock may be set within a window without its GPUs looking as if they were there twice.
	clockStep = time.Second
	// clockDrift is what part of a window it may go wrong by.
	clockDrift = 10_000
)

// meteredKey is a GPU in a window.
type meteredKey struct {
	window int
	card   gpu.UUID
}

// overlaps finds the GPUs that several ledgers charge for at the same time, as where two exporters with ledgers of their own
// meter one node: together they come to more than there is of the window. One GPU that moved from a node to another
// within it does not.
func (m *maker) overlaps(b *Bill) {
	metered := map[meteredKey]map[int]int64{}
	for _, r := range m.usage.Rest {
		if r.Cause != "" || r.Corrected || r.GPU == 0 {
			continue
		}
		key := meteredKey{r.Window, r.Card}
		if metered[key] == nil {
			metered[key] = map[int]int64{}
		}
		metered[key][m.order[r.Node]] += r.GPU
	}
	keys := slices.SortedFunc(maps.Keys(metered), func(x, y meteredKey) int {
		return cmp.Or(cmp.Compare(x.window, y.window), cmp.Compare(x.card, y.card))
	})
	for _, key := range keys {
		if by := metered[key]; len(by) > 1 {
			m.overlap(b, key, by)
		}
	}
}

// overlap holds what several nodes' ledgers say of one GPU against the time that there was.
func (m *maker) overlap(b *Bill, key meteredKey, by map[int]int64) {
	from, to := m.window(key.window)
	nodes := slices.Sorted(maps.Keys(by))
	first, last := from, to
	var sum int64
	names := make([]string, len(nodes))
	for i, n := range nodes {
		sum += by[n]
		names[i] = fmt.Sprintf("ledger %s of node %s with %s", m.nodes[n].LedgerID, m.nodes[n].Node, seconds(by[n]))
		if at := m.read(n, key.window); !at.IsZero() && at.Before(first) {
			first = at
		}
		if at := m.read(n, key.window+1); at.After(last) {
			last = at
		}
	}
	length := last.Sub(first)
	allowed := length + time.Duration(len(nodes))*(clockStep+length/clockDrift)
	beyond := sum - allowed.Microseconds()
	if beyond <= 0 {
		return
	}
	b.Difference += beyond
	b.Unbalanced = append(b.Unbalanced, fmt.Sprintf(
		"GPU %s from %s to %s is charged by more than one ledger at the same time: %s GPU-seconds, where there are %s: let one exporter meter it, and leave the other's ledger out",
		key.card, from.Format(time.RFC3339), to.Format(time.RFC3339), strings.Join(names, " and "), seconds(length.Microseconds())))
}

// read is when a node's reading for a boundary was taken; zero where nobody knows.
func (m *maker) read(node, boundary int) time.Time {
	if readings := m.nodes[node].Readings; boundary < len(readings) {
		return readings[boundary]
	}
	return time.Time{}
}
