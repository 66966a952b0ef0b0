// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// ErrNoLedgers is that the server knows of no ledger within the time asked for: it scrapes none, or keeps nothing
// that old.
var ErrNoLedgers = errors.New("no ledger of a GPU node is known to it within that time")

// account is one ledger: where its readings are taken.
type account struct {
	id    string
	names []naming
	ledger.NodeUsage
	// moments are for each boundary when its registers are read; zero where the ledger was not there yet.
	moments []time.Time
}

// naming is what a ledger said of where it is.
type naming struct{ node, cluster string }

// discover finds the ledgers that there were, by their info series, ordered by id.
func (a *asker) discover(ctx context.Context, r registers, from, to time.Time, nodes []string) ([]*account, error) {
	selector := a.selector(nil)
	var series []model.LabelSet
	err := a.ask(ctx, "series of "+r.info.metric, func(ctx context.Context) (warnings promapi.Warnings, err error) {
		series, warnings, err = a.series(ctx, []string{r.info.metric + selector, r.info.rule + selector}, from, to)
		return warnings, err
	})
	if err != nil {
		return nil, err
	}
	byID := map[string]*account{}
	for _, s := range series {
		id, labels := r.info.identify(model.Metric(s))
		if id == "" {
			continue
		}
		if byID[id] == nil {
			byID[id] = &account{id: id, NodeUsage: ledger.NodeUsage{LedgerID: id}}
		}
		byID[id].names = append(byID[id].names, naming{node: labels[0], cluster: labels[1]})
	}
	all := make([]*account, 0, len(byID))
	for _, c := range byID {
		if len(nodes) == 0 || slices.ContainsFunc(c.names, func(n naming) bool { return slices.Contains(nodes, n.node) }) {
			slices.SortFunc(c.names, func(x, y naming) int {
				return cmp.Or(strings.Compare(x.node, y.node), strings.Compare(x.cluster, y.cluster))
			})
			c.Node, c.Cluster = c.names[len(c.names)-1].node, c.names[len(c.names)-1].cluster
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(x, y *account) int { return strings.Compare(x.id, y.id) })
	if len(all) == 0 {
		return nil, fmt.Errorf("read %s from %s to %s: %w; is the exporter scraped, and does %s exist?", a.cfg.URL, from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339), ErrNoLedgers, r.info.metric)
	}
	return all, nil
}

func (a *asker) series(ctx context.Context, matches []string, from, to time.Time) ([]model.LabelSet, promapi.Warnings, error) {
	sets, warnings, _, err := a.api.Series(ctx, matches, from, to)
	return sets, warnings, err
}

// schedule says for every ledger at which moments its registers are read: at the boundaries where there is a
// reading just before, else where the nearest one is.
func (r *report) schedule(ctx context.Context) error {
	ids := make([]string, len(r.accounts))
	for i, c := range r.accounts {
		ids[i] = c.id
		c.moments = make([]time.Time, len(r.boundaries))
		c.Readings = make([]time.Time, len(r.boundaries))
	}
	commits, err := r.asker.read(ctx, r.registers.commit, ids, r.boundaries, r.source.lookbacks())
	if err != nil {
		return err
	}
	for _, s := range commits {
		c := r.account(s.ledger)
		for i, v := range s.values {
			if c != nil && !math.IsNaN(v) {
				c.moments[i], c.Readings[i] = r.boundaries[i], wallTime(v)
			}
		}
	}
	var odd []*account
	for _, c := range r.accounts {
		if slices.ContainsFunc(c.moments, time.Time.IsZero) {
			odd = append(odd, c)
		}
	}
	if len(odd) == 0 {
		return nil
	}
	return r.settle(ctx, odd)
}

// settle finds the nearest readings of ledgers that lack one at a boundary.
func (r *report) settle(ctx context.Context, odd []*account) error {
	first, last := r.boundaries[0], r.boundaries[len(r.boundaries)-1]
	ids := make([]string, len(odd))
	for i, c := range odd {
		ids[i] = c.id
	}
	seen, err := r.asker.look(ctx, r.registers.commit, ids, first.Add(-r.source.cfg.Search), last)
	if err != nil {
		return err
	}
	later, err := r.asker.look(ctx, r.registers.commit, ids, last, r.asker.latest(last.Add(r.source.cfg.RuleLookback)))
	if err != nil {
		return err
	}
	alive := r.wasKept(ctx, first)
	var present []*account
	for _, c := range odd {
		s := seen[c.id]
		if !c.any() && (s == nil || !s.lastBefore(last).After(first)) {
			continue // It ended before the time asked for.
		}
		created, err := r.created(ctx, c, s)
		if err != nil {
			return err
		}
		c.Created = created
		if err := r.place(ctx, c, s, later[c.id] != nil, alive); err != nil {
			return err
		}
		present = append(present, c)
	}
	r.accounts = slices.DeleteFunc(r.accounts, func(c *account) bool {
		return slices.Contains(odd, c) && !slices.Contains(present, c)
	})
	r.index()
	if len(r.accounts) == 0 {
		return fmt.Errorf("read %s: %w", r.source.cfg.URL, ErrNoLedgers)
	}
	return nil
}

func (c *account) any() bool {
	return slices.ContainsFunc(c.moments, func(t time.Time) bool { return !t.IsZero() })
}

// place gives every boundary of c its moment, and says what is missing.
func (r *report) place(ctx context.Context, c *account, s *sightings, goesOn, kept bool) error {
	n := len(r.boundaries)
	for i, x := range r.boundaries {
		if !c.moments[i].IsZero() {
			continue
		}
		at, found, err := r.asker.sample(ctx, r.registers.commit, c.id, s, x, true)
		if err != nil {
			return err
		}
		if found {
			c.moments[i] = at
			r.missLate(c, i, at, goesOn)
			continue
		}
		if !c.Created.IsZero() && !c.Created.Before(x.Add(-r.source.cfg.Lookback)) {
			continue // Not born yet: its registers were 0.
		}
		at, found, err = r.asker.sample(ctx, r.registers.commit, c.id, s, x, false)
		if err != nil {
			return err
		}
		if !found {
			at = r.boundaries[n-1]
		}
		for k := i; k < n && r.boundaries[k].Before(at) && c.moments[k].IsZero(); k++ {
			c.moments[k] = at
		}
		c.Missing = append(c.Missing, r.missEarly(x, at, kept))
	}
	return nil
}

// missLate says of a boundary that its reading is older than it should be. At the first and the last boundary the
// period's sum is touched; in between only how it is spread.
func (r *report) missLate(c *account, i int, at time.Time, goesOn bool) {
	x, last := r.boundaries[i], len(r.boundaries)-1
	switch {
	case i == 0:
		c.Missing = append(c.Missing, ledger.Missing{From: at, To: x, Reason: "no_reading", Text: fmt.Sprintf(
			"the last reading before the start is of %s: what was consumed from then on is in this answer", stamp(at))})
	case i == last && !goesOn:
		c.Missing = append(c.Missing, ledger.Missing{From: at, To: x, Reason: "node_vanished", Text: fmt.Sprintf(
			"the node was not seen after %s; what it consumed after that, if it lived, is not in the answer", stamp(at))})
	case i == last:
		c.Missing = append(c.Missing, ledger.Missing{From: at, To: x, Reason: "no_reading", Text: fmt.Sprintf(
			"the last reading before the end is of %s: what was consumed after it is in the next period", stamp(at))})
	case at.Before(x.Add(-r.source.cfg.Lookback)):
		r.late[c.id]++
	}
}

func (r *report) missEarly(x, at time.Time, kept bool) ledger.Missing {
	m := ledger.Missing{From: x, To: at, Reason: "no_reading", Text: fmt.Sprintf(
		"the node's ledger is older than its first reading here, of %s: what was consumed before is not in the answer; its ledger has it (--ledger)", stamp(at))}
	if !kept {
		m.Reason = "retention"
		m.Text = fmt.Sprintf("the server has nothing of %s any more, or was not there yet: what was consumed before %s is not in the answer; its ledger has it (--ledger)", stamp(x), stamp(at))
	}
	return m
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// wasKept asks whether the server has anything of a moment at all.
func (r *report) wasKept(ctx context.Context, at time.Time) bool {
	v, err := r.asker.instant(ctx, "count(last_over_time(up["+span(r.source.cfg.Lookback)+"]))", at)
	return err == nil && len(v) > 0
}

// created is a ledger's birth, from wherever it was seen.
func (r *report) created(ctx context.Context, c *account, s *sightings) (time.Time, error) {
	var at time.Time
	for _, m := range c.moments {
		if !m.IsZero() {
			at = m
		}
	}
	if at.IsZero() && s != nil {
		at = s.lastBefore(r.boundaries[len(r.boundaries)-1])
	}
	if at.IsZero() {
		return time.Time{}, nil
	}
	found, err := r.asker.read(ctx, r.registers.created, []string{c.id}, []time.Time{at}, r.source.lookbacks())
	if err != nil || len(found) == 0 || math.IsNaN(found[0].values[0]) {
		return time.Time{}, err
	}
	return wallTime(found[0].values[0]), nil
}
