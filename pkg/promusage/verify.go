// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// Verification is what became of holding a server's data against the law that a GPU's parts add up to it.
type Verification struct {
	// Nodes are the ledgers seen, and where they have no readings or fell.
	Nodes []ledger.NodeUsage
	// GPUs are the cards seen; Checked is how many readings of a card were added up.
	GPUs, Checked int
	// Worst is the largest difference in GPU-microseconds, Allowed what rounding of registers explains.
	Worst, Allowed int64
	// Violations are the readings that do not add up, the first MaxViolations of Failed.
	Violations []Violation
	Failed     int
	// Notes are for people: what was not looked for.
	Notes []string
}

// MaxViolations bounds how many are told one by one.
const MaxViolations = 100

// Violation is a reading of a card that does not add up.
type Violation struct {
	Cluster, Node, LedgerID string
	Card                    gpu.UUID
	At                      time.Time
	// Capacity + Corrected - Allocated - Unallocated = Difference, in GPU-microseconds.
	Capacity, Corrected, Allocated, Unallocated, Difference int64
}

// OK says that all that was there added up and nothing fell. Holes are no violation of it.
func (v Verification) OK() bool {
	fell := slices.ContainsFunc(v.Nodes, func(n ledger.NodeUsage) bool {
		return slices.ContainsFunc(n.Missing, func(m ledger.Missing) bool { return m.Reason == "reset" })
	})
	return v.Failed == 0 && !fell
}

// Registers are rounded down to whole microseconds: the sum of all causes, allocated and corrected strays by less than
// this from capacity.
const roundedBy = 8

// Verify adds every card's registers up at from, from + step and so on up to to, and looks for registers that fell.
// Progress may be nil.
func (s *Source) Verify(ctx context.Context, from, to time.Time, step time.Duration, progress func(done float64, what string)) (Verification, error) {
	if step <= 0 || !from.Before(to) {
		return Verification{}, errors.New("verify: the end must be after the start, and the step more than nothing")
	}
	q := ledger.Query{Progress: progress}
	// What is newer than the newest samples would all be read at one moment.
	to = newAsker(s).latest(to)
	for at := from; at.Before(to); at = at.Add(step) {
		q.Boundaries = append(q.Boundaries, at)
	}
	q.Boundaries = append(q.Boundaries, to)
	r := newReport(s, q)
	if len(q.Boundaries) < 2 || !r.boundaries[0].Before(r.boundaries[len(r.boundaries)-1]) {
		return Verification{}, fmt.Errorf("verify %s: the time asked for is yet to come", s.cfg.URL)
	}
	return r.verify(ctx)
}

func (r *report) verify(ctx context.Context) (Verification, error) {
	first, last := r.boundaries[0], r.boundaries[len(r.boundaries)-1]
	v := Verification{Allowed: roundedBy - 1}
	accounts, err := r.asker.discover(ctx, r.registers, first.Add(-r.source.cfg.RuleLookback), last, nil)
	if err != nil {
		return v, err
	}
	r.accounts = accounts
	r.asker.whole = len(accounts)
	r.index()
	if err := r.schedule(ctx); err != nil {
		return v, err
	}
	if err := r.clones(ctx); err != nil {
		return v, err
	}
	batches := r.batches()
	for i, b := range batches {
		if err := r.verifyBatch(ctx, b, &v); err != nil {
			return v, err
		}
		r.progress(float64(i+1)/float64(len(batches)), "verified")
	}
	if err := r.resets(ctx); err != nil {
		return v, err
	}
	v.Notes = r.usage.Notes
	for _, a := range r.accounts {
		v.Nodes = append(v.Nodes, a.NodeUsage)
	}
	return v, nil
}

// sums are one card's registers at the moments of a batch, in GPU-microseconds.
type sums struct {
	ledger                                    string
	seen                                      []bool
	capacity, corrected, allocated, remainder []int64
}

func (r *report) verifyBatch(ctx context.Context, b batch, v *Verification) error {
	type key struct {
		ledger string
		card   gpu.UUID
	}
	cards := map[key]*sums{}
	g := r.registers
	for _, part := range []struct {
		register register
		into     func(*sums) []int64
	}{
		{g.capacity.gpu, func(s *sums) []int64 { return s.capacity }},
		{g.corrected.gpu, func(s *sums) []int64 { return s.corrected }},
		{g.allocated.gpu, func(s *sums) []int64 { return s.allocated }},
		{g.rest.gpu, func(s *sums) []int64 { return s.remainder }},
	} {
		found, err := r.asker.read(ctx, part.register, b.ids, b.moments, r.source.lookbacks())
		if err != nil {
			return err
		}
		for _, s := range found {
			card := key{s.ledger, gpu.UUID(s.id[0])}
			if cards[card] == nil {
				n := len(b.moments)
				cards[card] = &sums{ledger: s.ledger, seen: make([]bool, n), capacity: make([]int64, n), corrected: make([]int64, n), allocated: make([]int64, n), remainder: make([]int64, n)}
			}
			into := part.into(cards[card])
			for i, value := range s.values {
				if !math.IsNaN(value) {
					cards[card].seen[i] = true
					into[i] += millionths(value)
				}
			}
		}
	}
	v.GPUs += len(cards)
	for card, s := range cards {
		r.addUp(card.card, s, b.moments, v)
	}
	slices.SortFunc(v.Violations, func(x, y Violation) int { return x.At.Compare(y.At) })
	return nil
}

func (r *report) addUp(card gpu.UUID, s *sums, moments []time.Time, v *Verification) {
	a := r.account(s.ledger)
	if a == nil {
		return
	}
	for i, at := range moments {
		if !s.seen[i] {
			continue
		}
		v.Checked++
		difference := s.capacity[i] + s.corrected[i] - s.allocated[i] - s.remainder[i]
		v.Worst = max(v.Worst, difference, -difference)
		if difference <= v.Allowed && -difference <= v.Allowed {
			continue
		}
		v.Failed++
		if len(v.Violations) < MaxViolations {
			v.Violations = append(v.Violations, Violation{
				Cluster: a.Cluster, Node: a.Node, LedgerID: a.id, Card: card, At: at, Capacity: s.capacity[i],
				Corrected: s.corrected[i], Allocated: s.allocated[i], Unallocated: s.remainder[i], Difference: difference,
			})
		}
	}
}
