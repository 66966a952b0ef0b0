// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
)

// ruled records what the hourly rules of a ledger's sequence yield over what is stored, as a server does in minute 59.
func ruled(t *testing.T, db *tsdb.DB, from, to int) {
	t.Helper()
	groups, errs := rulefmt.ParseFile("../../etc/prometheus/rules.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), nil)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	engine, done := newEngine(50_000_000), 0
	for _, rule := range groups.Groups[0].Rules {
		if rule.Record != "gpumeter:ledger_resets:hourly" && rule.Record != "gpumeter:ledger_sequence:hourly" {
			continue
		}
		done++
		for hour := from; hour < to; hour++ {
			at := epoch.Add(time.Duration(hour)*time.Hour + 59*time.Minute + 20*time.Second)
			q, err := engine.NewInstantQuery(t.Context(), db, nil, rule.Expr, at)
			if err != nil {
				t.Fatal(err)
			}
			vector, err := q.Exec(t.Context()).Vector()
			if err != nil {
				t.Fatal(err)
			}
			app := db.Appender(t.Context())
			for _, sample := range vector {
				l := labels.NewBuilder(sample.Metric).Set("__name__", rule.Record).Labels()
				if _, err := app.Append(0, l, at.UnixMilli(), sample.F); err != nil {
					t.Fatal(err)
				}
			}
			q.Close()
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if done != 2 {
		t.Fatalf("%d rules found, want 2", done)
	}
}

// lost is what a reader says of resets: when each was.
func lost(missing []ledger.Missing) (falls [][2]float64) {
	for _, m := range missing {
		if m.Reason == "reset" && strings.HasPrefix(m.Text, "the sequence") {
			falls = append(falls, [2]float64{m.From.Sub(epoch).Hours(), m.To.Sub(epoch).Hours()})
		}
	}
	return falls
}

// TestALedgerThatFellAndGrewOnWithinThePeriodIsTold puts an older copy back in the middle of a period: what is read at
// its ends does not show it.
func TestALedgerThatFellAndGrewOnWithinThePeriodIsTold(t *testing.T) {
	type story struct {
		born  time.Duration
		fell  float64 // hours; the copy was made so long before
		copy  float64
		away  float64
		moved bool
		pair  bool
		none  bool
	}
	for name, s := range map[string]story{
		"in place":                       {born: -30 * time.Hour, fell: 5.4, copy: 0.3},
		"of a ledger born within":        {born: time.Hour, fell: 5.4, copy: 2},
		"under another address":          {born: -30 * time.Hour, fell: 5.4, copy: 0.5, moved: true},
		"under another one, after hours": {born: -30 * time.Hour, fell: 5.4, copy: 4, away: 2.9, moved: true},
		"in the last hour":               {born: -30 * time.Hour, fell: 31.7, copy: 0.2},
		"not at all, only moved":         {born: -30 * time.Hour, fell: 5.4, moved: true, none: true},
		"not at all, only away":          {born: time.Hour, fell: 5.4, away: 3, moved: true, none: true},
		"not at all, a pair":             {born: -30 * time.Hour, fell: 5.4, moved: true, pair: true, none: true},
	} {
		for _, rules := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " with rules", false: ""}[rules], func(t *testing.T) {
				db := openStorage(t)
				m := meterOf{id: "l1", node: "n", born: epoch.Add(s.born)}
				begin := later(epoch.Add(-time.Hour), m.born.Add(15*time.Second))
				hour := func(h float64) time.Time {
					return epoch.Add(time.Duration(h * float64(time.Hour))).Truncate(15 * time.Second)
				}
				g := newTarget(db, "a", map[string]string{"pod": "x"})
				g.honor = true
				podScrapes(t, g, m, begin, hour(s.fell))
				if s.pair { // The clock of the other server is ahead.
					ahead := m
					ahead.born = m.born.Add(10 * time.Second)
					podScrapes(t, newTarget(db, "a", map[string]string{"pod": "x", "replica": "b"}), ahead, begin.Add(5*time.Second), hour(32))
				}
				if s.moved {
					g = newTarget(db, "a", map[string]string{"pod": "y"})
					g.honor = true
				}
				m.born = m.born.Add(time.Duration(s.copy * float64(time.Hour)))
				podScrapes(t, g, m, hour(s.fell+s.away).Add(15*time.Second), hour(32))
				if rules {
					ruled(t, db, -1, 32)
				}
				source := reader(t, &web{storage: db}, func(c *promusage.Config) {
					c.Now = func() time.Time { return epoch.Add(32*time.Hour + time.Minute) }
				})
				for _, detail := range []ledger.Detail{ledger.DetailSeries, ledger.DetailPods} {
					u, err := source.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 31.9), Detail: detail})
					if err != nil {
						t.Fatal(err)
					}
					fellWhen(t, lost(u.Nodes[0].Missing), s.fell, s.fell+s.away, s.none)
				}
				v, err := source.Verify(t.Context(), epoch, hours(31.9)[0], time.Hour, nil)
				if err != nil {
					t.Fatal(err)
				}
				if v.OK() != s.none {
					t.Errorf("verified: %v", v.OK())
				}
				fellWhen(t, lost(v.Nodes[0].Missing), s.fell, s.fell+s.away, s.none)
			})
		}
	}
}

func fellWhen(t *testing.T, falls [][2]float64, from, to float64, none bool) {
	t.Helper()
	switch {
	case none && len(falls) > 0:
		t.Errorf("fell at %v, and nothing did", falls)
	case !none && len(falls) == 0:
		t.Error("nobody is told")
	case !none && (falls[0][0] > to+0.26 || falls[0][1] < from):
		t.Errorf("fell at %v, want %v", falls, from)
	}
}

func podScrapes(t *testing.T, g *target, m meterOf, from, to time.Time) {
	t.Helper()
	for at := from; !at.After(to); at = at.Add(30 * time.Second) {
		g.scrape(t, at, podsOf(m, at, map[string]float64{"long": at.Sub(m.born).Seconds() / 2}))
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// TestTooManySamplesToLookForResetsInAreTold asks of more ledgers and hours than can be read sample by sample.
func TestTooManySamplesToLookForResetsInAreTold(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-time.Hour)}
	scrapes(t, newTarget(db, "a", nil), m, epoch.Add(-11*time.Minute), epoch.Add(time.Hour), time.Minute, nil)
	u, err := reader(t, &web{storage: db}, func(c *promusage.Config) { c.SampledHours = 40 }).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 72)})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(u.Notes, "\n"), "was not looked for in 48 hours") {
		t.Errorf("nobody is told: %q", u.Notes)
	}
}

// TestVerifyTakesEveryStep has steps below what samples take to settle, up to now.
func TestVerifyTakesEveryStep(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	scrapes(t, newTarget(db, "a", nil), m, epoch.Add(-time.Hour), epoch.Add(time.Hour), 15*time.Second, nil)
	source := reader(t, &web{storage: db}, func(c *promusage.Config) { c.Now = func() time.Time { return epoch.Add(time.Hour) } })
	for _, step := range []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, time.Minute} {
		v, err := source.Verify(t.Context(), epoch, epoch.Add(time.Hour), step, nil)
		if want := int((time.Hour-30*time.Second+step-1)/step) + 1; err != nil || !v.OK() || v.Checked != want {
			t.Errorf("every %s: %d checked, want %d, %v", step, v.Checked, want, err)
		}
	}
	if _, err := source.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2, 3, 4, 5)}); err != nil {
		t.Errorf("hours that are yet to come: %v", err)
	}
}

// TestAGapOfALedgerBornWithinBeginsWithIt has a restart in the first window of a node.
func TestAGapOfALedgerBornWithinBeginsWithIt(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(30 * time.Minute), gaps: 40}
	scrapes(t, newTarget(db, "a", nil), m, epoch.Add(31*time.Minute), epoch.Add(3*time.Hour), 15*time.Second, nil)
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	gaps := u.Nodes[0].Gaps
	if len(gaps) != 1 || !gaps[0].From.Equal(m.born) || !gaps[0].To.After(gaps[0].From) {
		t.Errorf("gaps %+v", gaps)
	}
}
