// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// HourBoundaries are the moments to ask a Usage at for Hours.
func HourBoundaries(from, to time.Time, zone *time.Location) []time.Time {
	return Boundaries(Options{From: from, To: to, Zone: zone, GroupBy: []Dimension{ByHour}})
}

// Hours are what each GPU did in each window of a Usage, for Bill.Hours: ordered by node as Bill.Nodes is, GPU and time.
// What was found to be held later is not moved in it: it shows what was seen then.
func Hours(u ledger.Usage) []CardHour {
	windows := len(u.Boundaries) - 1
	if windows < 1 {
		return nil
	}
	m := &maker{usage: &u, o: &Options{From: u.Boundaries[0], To: u.Boundaries[windows]}, cal: calendar{time.UTC}}
	m.arrange()
	at := map[restKey]*CardHour{}
	var hours []*CardHour
	for _, r := range u.Rest {
		if r.Corrected || r.Node < 0 || r.Node >= len(u.Nodes) || r.Window < 0 || r.Window >= windows {
			continue
		}
		key := restKey{node: r.Node, window: r.Window, card: r.Card}
		h := at[key]
		if h == nil {
			h = &CardHour{Node: m.order[r.Node], Card: r.Card, Index: r.Index, Model: r.Model, Start: u.Boundaries[r.Window], Rest: map[sharing.Cause]int64{}}
			h.Known = isKnown(&u.Nodes[r.Node], u.Boundaries[r.Window], u.Boundaries[r.Window+1])
			at[key], hours = h, append(hours, h)
		}
		if r.Cause == "" {
			h.Capacity += r.GPU
		} else if r.GPU != 0 {
			h.Rest[r.Cause] += r.GPU
		}
	}
	out := make([]CardHour, 0, len(hours))
	for _, h := range hours {
		h.Held = h.Capacity
		for _, rest := range h.Rest {
			h.Held -= rest
		}
		h.Held = max(h.Held, 0)
		out = append(out, *h)
	}
	slices.SortFunc(out, func(a, b CardHour) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index), cmp.Compare[gpu.UUID](a.Card, b.Card), a.Start.Compare(b.Start))
	})
	return out
}

// isKnown reports whether all of a window of a node is in the data.
func isKnown(n *ledger.NodeUsage, from, to time.Time) bool {
	return !slices.ContainsFunc(n.Missing, func(m ledger.Missing) bool { return m.From.Before(to) && from.Before(m.To) })
}
