// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"
)

// sightings are the ends of equal steps in which a ledger was seen, ascending.
type sightings struct {
	step  time.Duration
	steps []time.Time
	// exact are samples looked up before, by the end of their step.
	exact map[time.Time]time.Time
}

// lastBefore is the end of the last step at or before t; zero for none.
func (s *sightings) lastBefore(t time.Time) time.Time {
	for _, end := range slices.Backward(s.steps) {
		if !end.After(t) {
			return end
		}
	}
	return time.Time{}
}

// firstAfter is the end of the first step after t; zero for none.
func (s *sightings) firstAfter(t time.Time) time.Time {
	for _, end := range s.steps {
		if end.After(t) {
			return end
		}
	}
	return time.Time{}
}

// latest is t, or the newest moment whose samples are all there.
func (a *asker) latest(t time.Time) time.Time {
	if now := a.cfg.Now().Add(-a.cfg.Settle); t.After(now) {
		return now.Truncate(time.Millisecond)
	}
	return t
}

// look finds the steps between from and to in which there is a sample of r or of its rule. The last step ends at to.
func (a *asker) look(ctx context.Context, r register, ledgers []string, from, to time.Time) (map[string]*sightings, error) {
	found := map[string]*sightings{}
	if !from.Before(to) {
		return found, nil
	}
	step, moments := a.steps(from, to)
	all, err := a.read(ctx, r, ledgers, moments, lookbacks{step, step})
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		seen := &sightings{step: step, exact: map[time.Time]time.Time{}}
		for i, v := range s.values {
			if !math.IsNaN(v) {
				seen.steps = append(seen.steps, moments[i])
			}
		}
		found[s.ledger] = seen
	}
	return found, nil
}

// steps are the ends of as many equal steps as one query can answer, the last of which is to.
func (a *asker) steps(from, to time.Time) (step time.Duration, ends []time.Time) {
	step = max(a.cfg.Lookback, (to.Sub(from)/maxPoints).Round(time.Second)+time.Second)
	for i := int((to.Sub(from)+step-1)/step) - 1; i >= 0; i-- {
		ends = append(ends, to.Add(-time.Duration(i)*step))
	}
	return step, ends
}

// sample is the moment of the last sample at or before t, or of the first one after it.
func (a *asker) sample(ctx context.Context, r register, ledger string, s *sightings, t time.Time, before bool) (time.Time, bool, error) {
	if s == nil {
		return time.Time{}, false, nil
	}
	end := s.firstAfter(t)
	if before {
		end = s.lastBefore(t)
	}
	if end.IsZero() {
		return time.Time{}, false, nil
	}
	if known, again := s.exact[end]; again && before {
		return known, true, nil
	}
	selector := a.selector([]string{ledger})
	var best time.Time
	for _, name := range []string{r.metric, r.rule} {
		matrix, err := a.samples(ctx, fmt.Sprintf("%s%s[%s]", name, selector, span(s.step)), end)
		if err != nil {
			return time.Time{}, false, err
		}
		best = nearest(best, matrix, t, before)
	}
	if before && !best.IsZero() {
		s.exact[end] = best
	}
	return best, !best.IsZero(), nil
}

// nearest is the best moment of the samples, or the one given.
func nearest(best time.Time, matrix model.Matrix, t time.Time, before bool) time.Time {
	for _, series := range matrix {
		for _, pair := range series.Values {
			at := pair.Timestamp.Time().UTC()
			if before == at.After(t) {
				continue
			}
			if best.IsZero() || before && at.After(best) || !before && at.Before(best) {
				best = at
			}
		}
	}
	return best
}
