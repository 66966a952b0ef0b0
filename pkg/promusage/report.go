// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// report is one query on its way to its answer.
type report struct {
	source     *Source
	asker      *asker
	registers  registers
	query      ledger.Query
	boundaries []time.Time
	accounts   []*account
	byID       map[string]int
	// late count the boundaries within the period whose reading is old, by ledger.
	late  map[string]int
	usage ledger.Usage

	mu sync.Mutex
	// models are the cards' at each boundary.
	models      map[cardKey][]string
	done, total int
}

func newReport(s *Source, q ledger.Query) *report {
	r := &report{source: s, asker: newAsker(s), registers: allRegisters(), query: q, late: map[string]int{}, models: map[cardKey][]string{}}
	for _, b := range q.Boundaries {
		r.boundaries = append(r.boundaries, r.asker.latest(b))
	}
	r.usage = ledger.Usage{Source: "prometheus", Boundaries: slices.Clone(q.Boundaries)}
	return r
}

func (r *report) index() {
	r.byID = make(map[string]int, len(r.accounts))
	for i, c := range r.accounts {
		r.byID[c.id] = i
	}
}

func (r *report) account(id string) *account {
	if i, ok := r.byID[id]; ok {
		return r.accounts[i]
	}
	return nil
}

func (r *report) progress(done float64, what string) {
	if r.query.Progress != nil {
		r.query.Progress(done, what)
	}
}

func (r *report) run(ctx context.Context) error {
	first, last := r.boundaries[0], r.boundaries[len(r.boundaries)-1]
	if !first.Before(last) {
		return fmt.Errorf("read %s: the time asked for begins at %s, which is yet to come", r.source.cfg.URL, stamp(r.query.Boundaries[0]))
	}
	r.progress(0, "looking for ledgers")
	// Readings just before the start count as well.
	from := first.Add(-max(r.source.cfg.RuleLookback, r.source.cfg.Lookback))
	accounts, err := r.asker.discover(ctx, r.registers, from, last, r.query.Nodes)
	if err != nil {
		return err
	}
	r.accounts = accounts
	if len(r.query.Nodes) == 0 {
		r.asker.whole = len(accounts)
	}
	r.index()
	if err := r.schedule(ctx); err != nil {
		return err
	}
	if err := r.clones(ctx); err != nil {
		return err
	}
	if err := r.fill(ctx); err != nil {
		return err
	}
	for _, c := range r.accounts {
		r.usage.Nodes = append(r.usage.Nodes, c.NodeUsage)
	}
	r.remark(ctx)
	r.progress(1, "read")
	return nil
}

// batch are ledgers that are read at the same moments, at once.
type batch struct {
	ids     []string
	moments []time.Time
	// at are for each boundary the index of its moment, -1 where the ledger was not there yet.
	at []int
}

// valuesPerAnswer is how large an answer is meant to be at most: some 100 MB of JSON would be 4,000,000.
const valuesPerAnswer = 1_000_000

// seriesPerLedger is a guess at how many series of one register a node has: 8 cards, 6 causes.
const seriesPerLedger = 48

// batches sorts the ledgers into what can be asked together.
func (r *report) batches() []batch {
	groups := map[string]*batch{}
	var order []string
	for _, c := range r.accounts {
		var key strings.Builder
		for _, m := range c.moments {
			fmt.Fprintf(&key, "%d ", m.UnixMilli())
		}
		g := groups[key.String()]
		if g == nil {
			g = newBatch(c.moments)
			groups[key.String()] = g
			order = append(order, key.String())
		}
		g.ids = append(g.ids, c.id)
	}
	var all []batch
	for _, key := range order {
		g := groups[key]
		if len(g.moments) == 0 {
			continue
		}
		size := max(1, valuesPerAnswer/(seriesPerLedger*len(g.moments)))
		for ids := range slices.Chunk(g.ids, size) {
			all = append(all, batch{ids: ids, moments: g.moments, at: g.at})
		}
	}
	return all
}

func newBatch(moments []time.Time) *batch {
	b := &batch{at: make([]int, len(moments))}
	for i, m := range moments {
		switch {
		case m.IsZero():
			b.at[i] = -1
			continue
		case len(b.moments) == 0 || b.moments[len(b.moments)-1].Before(m):
			b.moments = append(b.moments, m)
		}
		b.at[i] = len(b.moments) - 1
	}
	return b
}

// remark adds what people should know: duplicates, warnings, late readings within the period.
func (r *report) remark(ctx context.Context) {
	warned := r.asker.warned()
	for i := range r.usage.Nodes {
		for _, w := range warned {
			r.usage.Nodes[i].Missing = append(r.usage.Nodes[i].Missing, ledger.Missing{
				From: r.boundaries[0], To: r.boundaries[len(r.boundaries)-1], Reason: "partial", Text: "the server warned that its answer may be partial: " + w,
			})
		}
	}
	late := 0
	for _, n := range r.late {
		late += n
	}
	if late > 0 {
		r.usage.Notes = append(r.usage.Notes, fmt.Sprintf(
			"%d windows on %d nodes end where there was no reading for longer than %s: what was consumed there is in the window of the next reading; the sum over the period is not touched",
			late, len(r.late), r.source.cfg.Lookback))
	}
	last := r.boundaries[len(r.boundaries)-1]
	twice, err := r.asker.instant(ctx, "count by ("+ledgerLabel+") ("+r.registers.sequence.metric+r.asker.selector(nil)+") > 1", last)
	if err != nil {
		return
	}
	if n := asked(twice, r.usage.Nodes); n > 0 {
		r.usage.Notes = append(r.usage.Notes, fmt.Sprintf(
			"%d ledgers are scraped more than once (a pair of Prometheus servers, a second job); each is counted once", n))
	}
}

// asked counts the ledgers among samples that are of nodes.
func asked(samples model.Vector, nodes []ledger.NodeUsage) int {
	ids := map[string]bool{}
	for i := range nodes {
		ids[nodes[i].LedgerID] = true
	}
	n := 0
	for _, sample := range samples {
		if ids[string(sample.Metric[ledgerLabel])] {
			n++
		}
	}
	return n
}
