// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/pkg/exporter"
)

// server is Prometheus without its network: its storage and its query engine.
type server struct {
	db     *tsdb.DB
	engine *promql.Engine
	now    time.Time
	last   map[string]labels.Labels
}

func newServer(t *testing.T) *server {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &server{
		db:     db,
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})}),
		now:    time.Unix(1.7e9, 0),
	}
}

// scrape stores a page as a scrape at the server's present time does: series that are gone since the last one end.
func (s *server) scrape(t *testing.T, page map[string]float64, series map[string]labels.Labels) {
	t.Helper()
	app := s.db.Appender(context.Background())
	for key, v := range page {
		if _, err := app.Append(0, series[key], s.now.UnixMilli(), v); err != nil {
			t.Fatal(err)
		}
	}
	for key, l := range s.last {
		if _, still := page[key]; still {
			continue
		}
		if _, err := app.Append(0, l, s.now.UnixMilli(), math.Float64frombits(value.StaleNaN)); err != nil {
			t.Fatal(err)
		}
	}
	s.last = series
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// query is the result of an instant query, by the value of the given label.
func (s *server) query(t *testing.T, expr, by string) map[string]float64 {
	t.Helper()
	q, err := s.engine.NewInstantQuery(context.Background(), s.db, nil, expr, s.now)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	r := q.Exec(context.Background())
	v, err := r.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	out := map[string]float64{}
	for _, sample := range v {
		out[sample.Metric.Get(by)] += sample.F
	}
	return out
}

// asked runs a query over the page of a scenario two minutes into its story.
func asked(t *testing.T, scenario string, cfg exporter.Config) *server {
	t.Helper()
	s := newServer(t)
	play(t, scenario, cfg, 9, func(h http.Handler) {
		page := get(h, formats["openmetrics"])
		values, _, err := parse(page)
		if err != nil {
			t.Fatal(err)
		}
		series := map[string]labels.Labels{}
		for key := range values {
			series[key] = labelsOf(t, key)
		}
		s.now = s.now.Add(15 * time.Second)
		s.scrape(t, values, series)
	})
	return s
}

func labelsOf(t testing.TB, series string) labels.Labels {
	t.Helper()
	m, err := parser.NewParser(parser.Options{}).ParseMetric(series)
	if err != nil {
		t.Fatalf("%s: %v", series, err)
	}
	return m
}

func total(m map[string]float64) float64 {
	var sum float64
	for _, v := range m {
		sum += v
	}
	return sum
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Max(1, math.Abs(b)) }

// TestQueriesOfTheMigrationGuide runs the expressions of docs/migration.md.
func TestQueriesOfTheMigrationGuide(t *testing.T) {
	const (
		ofDevice = `sum by (namespace) (
		  gpumeter_allocation_share / on (UUID, GPU_I_ID) group_left () gpumeter_device_weight
		    * on (UUID, GPU_I_ID) group_left () DCGM_FI_DEV_FB_USED)`
		ofCard = `sum by (namespace) (
		  sum by (UUID, namespace) (gpumeter_allocation_share) * on (UUID) group_left () DCGM_FI_DEV_POWER_USAGE)`
	)
	for _, scenario := range []string{"h100x8-exclusive", "h100x8-timeslice4", "a100x8-mig-mixed", "h100x8-mig-timeslice", "default"} {
		t.Run(scenario, func(t *testing.T) {
			plain := asked(t, scenario, exporter.Config{})
			power := total(plain.query(t, `DCGM_FI_DEV_POWER_USAGE`, "UUID"))
			held := total(plain.query(t, ofCard, "namespace"))
			rest := total(plain.query(t, `gpumeter_unallocated_share * on (UUID) group_left () DCGM_FI_DEV_POWER_USAGE`, "reason"))
			if !near(held+rest, power) || held == 0 {
				t.Errorf("power: %v W held, %v W not, %v W measured", held, rest, power)
			}
			memory := total(plain.query(t, ofDevice, "namespace"))
			unrequested := total(plain.query(t, `DCGM_FI_DEV_FB_USED unless on (UUID, GPU_I_ID) gpumeter_allocation_share`, "UUID"))
			used := total(plain.query(t, `DCGM_FI_DEV_FB_USED`, "UUID"))
			if memory <= 0 || memory > used-unrequested+1e-6 {
				t.Errorf("memory: %v MiB apportioned of %v MiB used on held devices", memory, used-unrequested)
			}
			if scenario == "h100x8-exclusive" && !near(memory, used) {
				t.Errorf("memory of whole cards: %v MiB apportioned, %v MiB used", memory, used)
			}
		})
	}
}

// TestCopiesOverCount shows what docs/migration.md says about virtual GPUs.
func TestCopiesOverCount(t *testing.T) {
	plain, copies := asked(t, "h100x8-timeslice4", exporter.Config{}), asked(t, "h100x8-timeslice4", exporter.Config{VirtualGPUs: true})
	const sum = `sum (DCGM_FI_DEV_POWER_USAGE)`
	if once, often := total(plain.query(t, sum, "")), total(copies.query(t, sum, "")); !near(often, 4*once) {
		t.Errorf("four copies of %v W add up to %v W", once, often)
	}
	if undone := total(copies.query(t, `sum (max by (UUID) (DCGM_FI_DEV_POWER_USAGE))`, "")); !near(undone, total(plain.query(t, sum, ""))) {
		t.Errorf("max by (UUID) gives %v W", undone)
	}
}
