// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

const (
	// ledgersPerSearch keep a query below the length that servers take.
	ledgersPerSearch = 500
	// resetStep is how finely samples are searched, resetSlack how far the clocks of two servers that scrape one page may differ.
	resetStep, resetSlack = 15 * time.Minute, time.Minute
	// unruled is how new what has happened may be to be in no hourly rule yet.
	unruled = 2 * time.Hour
)

// resetsRule counts once an hour how often a ledger's sequence fell.
const resetsRule = "gpumeter:ledger_resets:hourly"

// fall is a time in which a ledger's sequence fell.
type fall struct{ from, to time.Time }

// resets looks for ledgers that fell and grew on, which readings at the boundaries do not show: by the hourly rule where it
// has samples, else sample by sample as far as that is not too much.
func (r *report) resets(ctx context.Context) error {
	var ids []string
	for _, c := range r.accounts {
		// Two copies are told as such: their sequences go up and down by turns.
		if !slices.ContainsFunc(c.Missing, func(m ledger.Missing) bool { return m.Reason == "cloned" }) {
			ids = append(ids, c.id)
		}
	}
	s := &search{report: r, high: map[string]float64{}, hourly: map[string]float64{}, falls: map[string][]fall{}}
	for some := range slices.Chunk(ids, ledgersPerSearch) {
		if err := s.all(ctx, some); err != nil {
			return err
		}
	}
	for id, falls := range s.falls {
		r.account(id).tellResets(falls)
	}
	if s.skipped > 0 {
		r.usage.Notes = append(r.usage.Notes, fmt.Sprintf(
			"whether ledgers were put back to an older state within the time asked for was not looked for in %d hours of ledgers: that is too much to read sample by sample; load the hourly rules (etc/prometheus/rules.yaml), or ask for a shorter time or for fewer nodes",
			s.skipped))
	}
	return nil
}

// tellResets says when c fell: the first times one by one, and that there are more.
func (c *account) tellResets(falls []fall) {
	slices.SortFunc(falls, func(x, y fall) int { return cmp.Or(x.from.Compare(y.from), x.to.Compare(y.to)) })
	var joined []fall
	for _, f := range falls {
		if n := len(joined); n > 0 && !f.from.After(joined[n-1].to) {
			joined[n-1].to = later(joined[n-1].to, f.to)
			continue
		}
		joined = append(joined, f)
	}
	const most = 20
	more := ""
	if len(joined) > most {
		more = fmt.Sprintf(" (and %d times after that)", len(joined)-most)
		joined = joined[:most]
	}
	for i, f := range joined {
		text := fmt.Sprintf("the sequence of this ledger fell between %s and %s: the ledger was put back to an older state, or something else writes its series; what was consumed is not known from here, ask the ledger itself (--ledger)", stamp(f.from), stamp(f.to))
		if i == most-1 {
			text += more
		}
		c.Missing = append(c.Missing, ledger.Missing{From: f.from, To: f.to, Reason: "reset", Text: text})
	}
}

// search is a search for falls.
type search struct {
	*report
	// high is the highest that was seen of a ledger's sequence, whoever scraped it; hourly is the same of its rule.
	high, hourly map[string]float64
	falls        map[string][]fall
	// work is what was searched sample by sample, in hours of ledgers; skipped is what was not.
	work, skipped int
}

// all goes through the period day by day.
func (s *search) all(ctx context.Context, ids []string) error {
	first, last := s.boundaries[0], s.boundaries[len(s.boundaries)-1]
	for start := first; start.Before(last); {
		end := earlier(start.Add(longestWindow), last)
		ruled, err := s.ruled(ctx, ids, start, end)
		if err != nil {
			return err
		}
		rest := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return ruled[id] })
		if err := s.samples(ctx, rest, start, end, s.high); err != nil {
			return err
		}
		if tail := later(start, last.Add(-unruled)); tail.Before(end) && len(rest) < len(ids) {
			covered := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !ruled[id] })
			if err := s.samples(ctx, covered, tail, end, map[string]float64{}); err != nil {
				return err
			}
		}
		start = end
	}
	return nil
}

// ruled takes up what the hourly rules found, and says which ledgers they have looked at all the while.
func (s *search) ruled(ctx context.Context, ids []string, start, end time.Time) (map[string]bool, error) {
	over := func(by, function, rule string) (map[string]float64, error) {
		vector, err := s.asker.instant(ctx, fmt.Sprintf("%s by (%s) (%s(%s%s[%s]))", by, ledgerLabel, function, rule, s.asker.selector(ids), span(end.Sub(start))), end)
		found := map[string]float64{}
		for _, sample := range vector {
			found[string(sample.Metric[ledgerLabel])] = float64(sample.Value)
		}
		return found, err
	}
	var answers [5]map[string]float64
	for i, q := range [][3]string{
		{"max", "count_over_time", resetsRule}, {"max", "max_over_time", resetsRule}, {"max", "resets", s.registers.sequence.rule},
		{"min", "min_over_time", s.registers.sequence.rule}, {"max", "max_over_time", s.registers.sequence.rule},
	} {
		var err error
		if answers[i], err = over(q[0], q[1], q[2]); err != nil {
			return nil, err
		}
	}
	counts, counted, fell, lows, highs := answers[0], answers[1], answers[2], answers[3], answers[4]
	found := map[string]bool{}
	var fallen []string
	for _, id := range ids {
		// Where the rule lacks an hour, the node or the server was away: it does not look over that.
		found[id] = counts[id] > 0 && counts[id] >= math.Floor(end.Sub(start).Hours())
		low, seen := lows[id]
		switch {
		case counted[id] > 0:
			fallen = append(fallen, id)
		case fell[id] > 0, seen && low < s.hourly[id]:
			// It was away for long, between two hours of the rules.
			s.fell(id, start, end)
		}
		s.hourly[id] = max(s.hourly[id], highs[id])
	}
	return found, s.hours(ctx, fallen, start, end)
}

// hours says in which hours of the rule ledgers fell.
func (s *search) hours(ctx context.Context, ids []string, start, end time.Time) error {
	if len(ids) == 0 {
		return nil
	}
	const hour = time.Hour
	matrix, err := s.asker.spread(ctx, fmt.Sprintf("max by (%s) (max_over_time(%s%s[%s])) > 0", ledgerLabel, resetsRule, s.asker.selector(ids), span(hour)),
		start.Add(hour), later(start.Add(hour), end), hour)
	if err != nil {
		return err
	}
	found := steps(matrix, start.Add(hour), hour)
	for _, id := range ids {
		if found[id] == nil {
			s.fell(id, start, end)
		}
		for i, n := range found[id] {
			if from := start.Add(time.Duration(i) * hour); n > 0 {
				s.fell(id, from, earlier(from.Add(hour), end))
			}
		}
	}
	return nil
}

func (s *search) fell(id string, from, to time.Time) {
	if s.account(id) != nil && from.Before(to) {
		s.falls[id] = append(s.falls[id], fall{from, to})
	}
}

// samples searches each sample of ledgers, as long as that is not too much. high is what they came to before.
func (s *search) samples(ctx context.Context, ids []string, start, end time.Time, high map[string]float64) error {
	hours := len(ids) * int(math.Ceil(end.Sub(start).Hours()))
	switch {
	case len(ids) == 0:
		return nil
	case s.work+hours > s.source.cfg.SampledHours:
		s.skipped += hours
		return nil
	}
	s.work += hours
	err := s.steps(ctx, ids, start, end, high)
	if !errors.Is(err, errTooMuch) {
		return err
	}
	s.work -= hours
	half, middle := len(ids)/2, start.Add(end.Sub(start)/2)
	switch {
	case half > 0:
		if err := s.samples(ctx, ids[:half], start, end, high); err != nil {
			return err
		}
		return s.samples(ctx, ids[half:], start, end, high)
	case end.Sub(start) > 2*resetStep:
		if err := s.samples(ctx, ids, start, middle, high); err != nil {
			return err
		}
		return s.samples(ctx, ids, middle, end, high)
	}
	s.skipped += hours
	return nil
}

// steps finds the steps in which a series fell, and those whose samples are below earlier ones of another series: an
// exporter that is started anew may have another address, and its series other labels. What two servers scrape at
// once is no fall, though their clocks differ.
func (s *search) steps(ctx context.Context, ids []string, start, end time.Time, high map[string]float64) error {
	n := (end.Sub(start) + resetStep - 1) / resetStep
	step := max((end.Sub(start) / n).Truncate(time.Millisecond), time.Millisecond)
	metric := s.registers.sequence.metric + s.asker.selector(ids)
	over := func(query string, within time.Duration) (map[string][]float64, error) {
		matrix, err := s.asker.spread(ctx, fmt.Sprintf(query, ledgerLabel, metric, span(within)), start.Add(step), start.Add(n*step), step)
		return steps(matrix, start.Add(step), step), err
	}
	fallen, err := over("max by (%s) (resets(%s[%s])) > 0", step+resetSlack)
	if err != nil {
		return err
	}
	highs, err := over("max by (%s) (max_over_time(%s[%s]))", step)
	if err != nil {
		return err
	}
	lows, err := over("min by (%s) (min_over_time(%s[%s]))", max(step-resetSlack, step/2))
	if err != nil {
		return err
	}
	for _, id := range ids {
		for i := range int(n) {
			from := start.Add(time.Duration(i) * step)
			if valueAt(fallen[id], i) > 0 || valueAt(lows[id], i) < high[id] {
				s.fell(id, from, earlier(from.Add(step), end))
			}
			if h := valueAt(highs[id], i); h > high[id] {
				high[id] = h
			}
		}
	}
	return nil
}

// valueAt is NaN where there is nothing.
func valueAt(values []float64, i int) float64 {
	if i < len(values) {
		return values[i]
	}
	return math.NaN()
}

// steps are a matrix' values by ledger and step, NaN where there is none.
func steps(matrix model.Matrix, first time.Time, step time.Duration) map[string][]float64 {
	all := map[string][]float64{}
	for _, series := range matrix {
		id := string(series.Metric[ledgerLabel])
		for _, pair := range series.Values {
			i := int(math.Round(float64(pair.Timestamp.Time().Sub(first)) / float64(step)))
			for len(all[id]) <= i {
				all[id] = append(all[id], math.NaN())
			}
			all[id][i] = float64(pair.Value)
		}
	}
	return all
}
