// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/gpumeter/gpumeter/tests/dashboards/grafana"
)

// pixels is how wide a page of 24 columns is.
const pixels = 1600

// load reads the dashboards as they are shipped, those that the Go of ../../dashboards wrote.
func load(t testing.TB) []*grafana.Dashboard {
	t.Helper()
	files, err := filepath.Glob("../../dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards in ../../dashboards (%v); run: go -C dashboards run .", err)
	}
	var out []*grafana.Dashboard
	for _, f := range files {
		d, err := grafana.Load(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

// view is a dashboard as somebody has it open: its variables have values and its time range a beginning.
type view struct {
	rig       *rig
	dashboard *grafana.Dashboard
	scope     grafana.Scope
	// options are the values that each variable offers.
	options map[string][]string
}

// picked are the values of variables that a user has chosen; All where nothing is said.
type picked map[string][]string

// open opens a dashboard over span until now, or over its own time range where span is 0.
func (r *rig) open(ctx context.Context, d *grafana.Dashboard, span time.Duration, p picked) (*view, error) {
	v := &view{rig: r, dashboard: d, options: map[string][]string{}}
	v.scope = grafana.Scope{Chosen: map[string]grafana.Choice{}, To: r.now, From: r.now.Add(-span), Scrape: scrapeInterval}
	if span == 0 {
		from, err := grafana.Moment(d.Time.From, r.now)
		if err != nil {
			return nil, err
		}
		v.scope.From = from
	}
	v.scope.Interval = grafana.Step(r.now.Sub(v.scope.From), pixels, scrapeInterval)
	for _, one := range d.Templating.List {
		if err := v.choose(ctx, one, p); err != nil {
			return nil, fmt.Errorf("variable %s: %w", one.Name, err)
		}
	}
	return v, nil
}

// choose gives a variable its options and its value. Those before it have theirs.
func (v *view) choose(ctx context.Context, one grafana.Variable, p picked) error {
	values, chosen := p[one.Name]
	switch one.Type {
	case "datasource":
		v.scope.Chosen[one.Name] = grafana.Choice{Values: []string{"prometheus"}}
		return nil
	case "textbox", "constant":
		if !chosen {
			values = []string{one.Text()}
		}
		v.scope.Chosen[one.Name] = grafana.Choice{Values: values}
		return nil
	case "custom", "interval":
		for part := range strings.SplitSeq(one.Text(), ",") {
			_, value, ok := strings.Cut(part, " : ")
			if !ok {
				value = part
			}
			v.options[one.Name] = append(v.options[one.Name], strings.TrimSpace(value))
		}
	case "query":
		query, err := v.scope.Interpolate(one.Text())
		if err != nil {
			return err
		}
		if v.options[one.Name], err = v.variable(ctx, query, one.Regex); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
	default:
		return fmt.Errorf("type %s is not known", one.Type)
	}
	options := v.options[one.Name]
	c := grafana.Choice{List: one.Multi || one.IncludeAll, Values: values}
	switch {
	case chosen:
	case one.IncludeAll && one.AllValue != "":
		c.All = one.AllValue
	case one.IncludeAll:
		c.Values = options
	default:
		c.Values = options[:min(1, len(options))]
	}
	v.scope.Chosen[one.Name] = c
	return nil
}

var (
	labelValues = regexp.MustCompile(`^label_values\((?:(.+),\s*)?([a-zA-Z_]\w*)\)$`)
	queryResult = regexp.MustCompile(`(?s)^query_result\((.+)\)$`)
)

// variable is what a variable's query offers.
func (v *view) variable(ctx context.Context, query, filter string) ([]string, error) {
	var found []string
	var err error
	query = strings.TrimSpace(query)
	if m := queryResult.FindStringSubmatch(query); m != nil {
		found, err = v.results(ctx, m[1])
	} else if m := labelValues.FindStringSubmatch(query); m != nil {
		found, err = v.labelValues(ctx, m[1], m[2])
	} else {
		return nil, errors.New("want label_values(metric, label) or query_result(query)")
	}
	if err != nil {
		return nil, err
	}
	if filter != "" {
		if found, err = captured(found, filter); err != nil {
			return nil, err
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// captured is what a variable's regular expression leaves: its group, or the whole.
func captured(values []string, filter string) ([]string, error) {
	re, err := regexp.Compile(strings.TrimSuffix(strings.TrimPrefix(filter, "/"), "/"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, value := range values {
		m := re.FindStringSubmatch(value)
		if m == nil {
			continue
		}
		group := m[0]
		for i, name := range re.SubexpNames() {
			if i > 0 && (i == 1 || name == "value") && m[i] != "" {
				group = m[i]
			}
		}
		out = append(out, group)
	}
	return out, nil
}

// results are the series of an instant query at the end of the time range, each as a text.
func (v *view) results(ctx context.Context, query string) ([]string, error) {
	value, err := v.rig.instant(ctx, query, v.scope.To)
	if err != nil {
		return nil, err
	}
	vector, ok := value.(promql.Vector)
	if !ok {
		return nil, fmt.Errorf("a %s is no vector", value.Type())
	}
	var out []string
	for _, s := range vector {
		var pairs []string
		s.Metric.Range(func(l labels.Label) {
			if l.Name != model.MetricNameLabel {
				pairs = append(pairs, fmt.Sprintf("%s=%q", l.Name, l.Value))
			}
		})
		out = append(out, fmt.Sprintf("%s{%s} %v %d", s.Metric.Get(model.MetricNameLabel), strings.Join(pairs, ","), s.F, s.T))
	}
	return out, nil
}

// labelValues are the values of a label among the series of a selector in the time range.
func (v *view) labelValues(ctx context.Context, selector, label string) ([]string, error) {
	q, err := v.rig.db.Querier(v.scope.From.UnixMilli(), v.scope.To.UnixMilli())
	if err != nil {
		return nil, err
	}
	defer func() { _ = q.Close() }()
	matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(cmp.Or(selector, `{__name__=~".+"}`))
	if err != nil {
		return nil, err
	}
	var out []string
	set := q.Select(ctx, false, &storage.SelectHints{Start: v.scope.From.UnixMilli(), End: v.scope.To.UnixMilli(), Func: "series"}, matchers...)
	for set.Next() {
		if value := set.At().Labels().Get(label); value != "" {
			out = append(out, value)
		}
	}
	return out, set.Err()
}

// answer is what Prometheus says to a target: once, over time, or both.
type answer struct {
	target          grafana.Target
	query           string
	instant, ranged parser.Value
	step            time.Duration
}

// frames are the answer as the panel has it.
func (a answer) frames(alone bool) []grafana.Frame {
	var out []grafana.Frame
	if a.instant != nil {
		out = append(out, grafana.Frames(a.target, a.instant, alone)...)
	}
	if a.ranged != nil {
		out = append(out, grafana.Frames(a.target, a.ranged, alone)...)
	}
	return out
}

// samples are all series of the answer, with their values.
func (a answer) samples() promql.Matrix {
	var out promql.Matrix
	for _, value := range []parser.Value{a.instant, a.ranged} {
		switch value := value.(type) {
		case promql.Vector:
			for _, s := range value {
				out = append(out, promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{T: s.T, F: s.F}}})
			}
		case promql.Matrix:
			out = append(out, value...)
		case promql.Scalar:
			out = append(out, promql.Series{Floats: []promql.FPoint{{T: value.T, F: value.V}}})
		}
	}
	return out
}

// ask asks what a target asks.
func (v *view) ask(ctx context.Context, p grafana.Panel, t grafana.Target) (answer, error) {
	scope := v.scope
	least := scrapeInterval
	if text := cmp.Or(t.Interval, p.Interval); text != "" {
		d, err := model.ParseDuration(text)
		if err != nil {
			return answer{}, fmt.Errorf("interval %q: %w", text, err)
		}
		least = time.Duration(d)
	}
	points := pixels * max(p.GridPos.W, 1) / 24
	if p.MaxDataPoints > 0 {
		points = int(p.MaxDataPoints)
	}
	scope.Interval = grafana.Step(scope.To.Sub(scope.From), points, least)
	query, err := scope.Interpolate(t.Expr)
	a := answer{target: t, query: query, step: scope.Interval}
	if err != nil {
		return a, err
	}
	instant, ranged := t.Asks()
	if instant {
		if a.instant, err = v.rig.instant(ctx, query, scope.To); err != nil {
			return a, err
		}
	}
	if ranged {
		a.ranged, err = v.rig.over(ctx, query, scope.From, scope.To, scope.Interval)
	}
	return a, err
}

func (r *rig) instant(ctx context.Context, query string, at time.Time) (parser.Value, error) {
	q, err := r.engine.NewInstantQuery(ctx, r.db, nil, query, at)
	if err != nil {
		return nil, err
	}
	return run(ctx, q)
}

// over asks over time, at moments that are multiples of the step, as Grafana does.
func (r *rig) over(ctx context.Context, query string, from, to time.Time, step time.Duration) (parser.Value, error) {
	from, to = from.Truncate(step), to.Truncate(step)
	q, err := r.engine.NewRangeQuery(ctx, r.db, nil, query, from, to, step)
	if err != nil {
		return nil, err
	}
	return run(ctx, q)
}

// run runs a query and takes its answer out of the engine's hands.
func run(ctx context.Context, q promql.Query) (parser.Value, error) {
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, res.Err
	}
	if m, ok := res.Value.(promql.Matrix); ok {
		// The engine uses the points again after Close.
		kept := make(promql.Matrix, len(m))
		for i, s := range m {
			kept[i] = promql.Series{Metric: s.Metric, Floats: slices.Clone(s.Floats), Histograms: s.Histograms}
		}
		return kept, nil
	}
	if vec, ok := res.Value.(promql.Vector); ok {
		return inOrder(q, vec), nil
	}
	return res.Value, nil
}

// inOrder is a vector always in the same order: the engine leaves that open, save where a query sorts, and then for what is equal.
func inOrder(q promql.Query, v promql.Vector) promql.Vector {
	direction := 0
	if call, ok := outermost(q).(*parser.Call); ok {
		direction = map[string]int{"sort": 1, "sort_desc": -1}[call.Func.Name]
	}
	v = slices.Clone(v)
	slices.SortFunc(v, func(a, b promql.Sample) int {
		return cmp.Or(direction*cmp.Compare(a.F, b.F), labels.Compare(a.Metric, b.Metric))
	})
	return v
}

// outermost is what a query does last.
func outermost(q promql.Query) parser.Expr {
	e, ok := q.Statement().(*parser.EvalStmt)
	if !ok {
		return nil
	}
	for expr := e.Expr; ; {
		switch inner := expr.(type) {
		case *parser.StepInvariantExpr:
			expr = inner.Expr
		case *parser.ParenExpr:
			expr = inner.Expr
		default:
			return expr
		}
	}
}
