// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// atOnce is for how long two nodes have to tell of one ledger: longer than the clocks of a pair of servers differ, of which
// one sees a node's new name before the other has seen the last of the old.
const atOnce = 2 * time.Minute

// clones looks for ledgers that two nodes had at once, as after a disk was copied: the greatest over all that was scraped is
// then one node's, and the other's is lost. A ledger whose node got another name is none.
func (r *report) clones(ctx context.Context) error {
	var ids []string
	for _, c := range r.accounts {
		if c.hadSeveralNames() {
			ids = append(ids, c.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	step, moments := r.asker.steps(r.boundaries[0], r.boundaries[len(r.boundaries)-1])
	named := r.registers.info
	named.labels = []string{"node"}
	found, err := r.asker.read(ctx, named, ids, moments, lookbacks{step, step})
	if err != nil {
		return err
	}
	seen := map[string][]sighting{}
	for _, s := range found {
		seen[s.ledger] = append(seen[s.ledger], s)
	}
	for _, id := range ids {
		if err := r.clone(ctx, r.account(id), seen[id], step, moments); err != nil {
			return err
		}
	}
	return nil
}

func (c *account) hadSeveralNames() bool {
	return slices.ContainsFunc(c.names, func(n naming) bool { return n.node != c.names[0].node })
}

// clone looks closer at the steps in which a ledger was seen under several names.
func (r *report) clone(ctx context.Context, c *account, seen []sighting, step time.Duration, moments []time.Time) error {
	var several []time.Time
	for i, at := range moments {
		names := 0
		for _, s := range seen {
			if !math.IsNaN(s.values[i]) {
				names++
			}
		}
		if names > 1 {
			several = append(several, at)
		}
	}
	for _, at := range several {
		nodes, err := r.together(ctx, c.id, at, 2*step+r.source.cfg.RuleLookback)
		if err != nil {
			return err
		}
		if len(nodes) == 0 {
			continue
		}
		c.Missing = append(c.Missing, ledger.Missing{From: at.Add(-step), To: several[len(several)-1], Reason: "cloned", Text: fmt.Sprintf(
			"the nodes %s have copies of one ledger at the same time: what one of them consumed is in this answer, and what the other did is not. Remove the folder %q from the --ledger-dir of the copy and start its exporter anew, so that it begins a ledger of its own; each one's own ledger has what it consumed up to now (--ledger)",
			strings.Join(nodes, " and "), "book")})
		return nil
	}
	return nil
}

// together are the names of two nodes that told of a ledger by turns within the time before a moment; none where there
// are no such two.
func (r *report) together(ctx context.Context, id string, to time.Time, within time.Duration) ([]string, error) {
	info := r.registers.info
	times := map[string][]time.Time{}
	for _, name := range []string{info.metric, info.rule} {
		matrix, err := r.asker.samples(ctx, name+r.asker.selector([]string{id})+"["+span(within)+"]", to)
		if err != nil {
			return nil, err
		}
		for _, series := range matrix {
			node := label(series.Metric, "node")
			for _, pair := range series.Values {
				times[node] = append(times[node], pair.Timestamp.Time())
			}
		}
	}
	nodes := make([]string, 0, len(times))
	for node := range times {
		nodes = append(nodes, node)
		slices.SortFunc(times[node], time.Time.Compare)
	}
	slices.Sort(nodes)
	for i, one := range nodes {
		for _, other := range nodes[i+1:] {
			if byTurns(times[one], times[other]) {
				return []string{one, other}, nil
			}
		}
	}
	return nil, nil
}

// byTurns reports whether two sorted series of moments go through each other, rather than one after the other.
func byTurns(one, other []time.Time) bool {
	from, to := later(one[0], other[0]), earlier(one[len(one)-1], other[len(other)-1])
	if to.Sub(from) < atOnce {
		return false
	}
	one, other = between(one, from, to), between(other, from, to)
	fewer, turns, last := min(len(one), len(other)), 0, 0
	for len(one) > 0 || len(other) > 0 {
		now := 2
		if len(other) == 0 || len(one) > 0 && !one[0].After(other[0]) {
			now, one = 1, one[1:]
		} else {
			other = other[1:]
		}
		if last != 0 && now != last {
			turns++
		}
		last = now
	}
	return turns >= max(3, fewer)
}

// between are those of sorted moments that are within a time, both ends of which count.
func between(all []time.Time, from, to time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(all), func(t time.Time) bool { return t.Before(from) || t.After(to) })
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
