// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// sighting is one series' values at some moments, NaN where it has none.
type sighting struct {
	ledger string
	id     identity
	values []float64
}

// lookbacks are how old a sample may be to be the reading at a moment, of a register and of its rule.
type lookbacks struct{ raw, rule time.Duration }

func (s *Source) lookbacks() lookbacks { return lookbacks{s.cfg.Lookback, s.cfg.RuleLookback} }

// selector is what is asked of: the ledgers given, all where none is.
func (a *asker) selector(ledgers []string) string {
	all := slices.Clone(a.cfg.Matchers)
	switch {
	case len(ledgers) == a.whole:
	case len(ledgers) == 1:
		all = append(all, ledgerLabel+"="+strconv.Quote(ledgers[0]))
	case len(ledgers) > 1:
		quoted := make([]string, len(ledgers))
		for i, l := range ledgers {
			quoted[i] = escapeRegexp(l)
		}
		all = append(all, ledgerLabel+"=~"+strconv.Quote(strings.Join(quoted, "|")))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// escapeRegexp does without a library's escapes that some servers' fast paths for plain alternatives do not know.
func escapeRegexp(s string) string {
	var b strings.Builder
	for _, c := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, c) {
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// query asks for what is not 0, unless 0 is an answer: most registers are, such as causes that a card never had, and one
// that is not there counts as 0.
func (r register) query(selector string, back lookbacks) string {
	if r.matcher != "" {
		selector = "{" + r.matcher + "," + strings.TrimPrefix(selector, "{")
	}
	query := fmt.Sprintf("max by (%s) (last_over_time(%s%s[%s]) or last_over_time(%s%s[%s]))",
		r.by(), r.metric, selector, span(back.raw), r.rule, selector, span(back.rule))
	if r.zeros {
		return query
	}
	return query + " > 0"
}

// span is a duration in PromQL.
func span(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// read is what a register of the ledgers showed at the moments, which are ascending: in smaller parts where the
// server's limits ask for it.
func (a *asker) read(ctx context.Context, r register, ledgers []string, moments []time.Time, back lookbacks) ([]sighting, error) {
	found := map[string]*sighting{}
	if err := a.readInto(ctx, found, r, ledgers, moments, 0, len(moments), back); err != nil {
		return nil, err
	}
	all := make([]sighting, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[key])
	}
	return all, nil
}

func (a *asker) readInto(ctx context.Context, found map[string]*sighting, r register, ledgers []string, moments []time.Time, from, to int, back lookbacks) error {
	for from < to {
		n := runLength(moments[from:to])
		err := a.readRun(ctx, found, r, ledgers, moments, from, n, back)
		if errors.Is(err, errTooMuch) {
			err = a.readHalves(ctx, found, r, ledgers, moments, from, n, back, err)
		}
		if err != nil {
			return err
		}
		from += n
	}
	return nil
}

func (a *asker) readHalves(ctx context.Context, found map[string]*sighting, r register, ledgers []string, moments []time.Time, from, n int, back lookbacks, cause error) error {
	switch half := len(ledgers) / 2; {
	case half > 0:
		a.cfg.Log.Debug("a query is asked in halves", "register", r.metric, "ledgers", len(ledgers))
		if err := a.readInto(ctx, found, r, ledgers[:half], moments, from, from+n, back); err != nil {
			return err
		}
		return a.readInto(ctx, found, r, ledgers[half:], moments, from, from+n, back)
	case n > 1:
		if err := a.readInto(ctx, found, r, ledgers, moments, from, from+n/2, back); err != nil {
			return err
		}
		return a.readInto(ctx, found, r, ledgers, moments, from+n/2, from+n, back)
	}
	return fmt.Errorf("%w; even one node at one moment is too much: raise --query.max-samples or the tenant's limits", cause)
}

// maxPoints is below Prometheus' limit of 11,000 points of a series in an answer.
const maxPoints = 10000

// runLength is how many of the moments, from the first on, are equally far apart: what one range query can
// answer. Two or fewer are asked one by one, so that the server reads nothing in between.
func runLength(moments []time.Time) int {
	if len(moments) < 3 {
		return 1
	}
	step := moments[1].Sub(moments[0])
	if step <= 0 {
		return 1
	}
	n := 2
	for n < len(moments) && n < maxPoints && moments[n].Sub(moments[n-1]) == step {
		n++
	}
	if n < 3 {
		return 1
	}
	return n
}

func (a *asker) readRun(ctx context.Context, found map[string]*sighting, r register, ledgers []string, moments []time.Time, from, n int, back lookbacks) error {
	query := r.query(a.selector(ledgers), back)
	put := func(m model.Metric, at int, v model.SampleValue) { keep(found, r, m, len(moments), at, float64(v)) }
	if n == 1 {
		vector, err := a.instant(ctx, query, moments[from])
		for _, sample := range vector {
			put(sample.Metric, from, sample.Value)
		}
		return err
	}
	step := moments[from+1].Sub(moments[from])
	matrix, err := a.spread(ctx, query, moments[from], moments[from+n-1], step)
	for _, series := range matrix {
		for _, pair := range series.Values {
			i := int(math.Round(float64(pair.Timestamp.Time().Sub(moments[from])) / float64(step)))
			if i >= 0 && i < n {
				put(series.Metric, from+i, pair.Value)
			}
		}
	}
	return err
}

// keep takes a value up; the same identity may come twice, once renamed by a scrape and once not.
func keep(found map[string]*sighting, r register, m model.Metric, moments, at int, v float64) {
	id, labels := r.identify(m)
	key := id + "\xff" + strings.Join(labels, "\xff")
	s := found[key]
	if s == nil {
		s = &sighting{ledger: id, id: labels, values: make([]float64, moments)}
		for i := range s.values {
			s.values[i] = math.NaN()
		}
		found[key] = s
	}
	if !math.IsNaN(v) && !(v <= s.values[at]) {
		s.values[at] = v
	}
}
