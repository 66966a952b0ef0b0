// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"math"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// cardKey tells the cards of ledgers apart.
type cardKey struct {
	node int
	card gpu.UUID
}

// newest makes one sighting of each card of those under the names that its model has had, and notes which name it had
// when. A card's registers go on under the name that a new driver gives its model, so the greatest is the newest.
func (r *report) newest(b batch, found []sighting) []sighting {
	byCard := map[string][]sighting{}
	var order []string
	for _, s := range found {
		card := sighting{ledger: s.ledger, id: s.id[:1]}
		if byCard[card.key()] == nil {
			order = append(order, card.key())
		}
		byCard[card.key()] = append(byCard[card.key()], s)
	}
	all := make([]sighting, 0, len(order))
	for _, key := range order {
		all = append(all, r.oneCard(b, byCard[key]))
	}
	return all
}

// oneCard is one of several sightings of one card.
func (r *report) oneCard(b batch, names []sighting) sighting {
	// Where two names show the same, the one that is there for longer is the newer one.
	slices.SortStableFunc(names, func(x, y sighting) int { return lastSeen(x.values) - lastSeen(y.values) })
	one := sighting{ledger: names[0].ledger, id: names[0].id[:1], values: nothing(len(b.moments))}
	models := make([]string, len(b.moments))
	for i := range one.values {
		for _, s := range names {
			if v := s.values[i]; !math.IsNaN(v) && !(v < one.values[i]) {
				one.values[i], models[i] = v, s.id[1]
			}
		}
		if models[i] == "" && i > 0 {
			models[i] = models[i-1]
		}
	}
	if node, ok := r.byID[one.ledger]; ok {
		r.noteModels(b, cardKey{node, gpu.UUID(one.id[0])}, models)
	}
	return one
}

// noteModels keeps the models that a card had at the moments of a batch, by boundary.
func (r *report) noteModels(b batch, key cardKey, models []string) {
	known := make([]string, len(b.at))
	for i, at := range b.at {
		if at >= 0 {
			known[i] = models[at]
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models[key] = known
}

// lastSeen is the index of the last value that is there, -1 for none.
func lastSeen(values []float64) int {
	for i, v := range slices.Backward(values) {
		if !math.IsNaN(v) {
			return i
		}
	}
	return -1
}

// modelOf is the name of a card's model at the end of a window.
func (r *report) modelOf(key cardKey, window int) string {
	if known := r.models[key]; window+1 < len(known) {
		return known[window+1]
	}
	return ""
}
