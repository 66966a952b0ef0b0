// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// web is the part of Prometheus' HTTP API that reports use, over a storage and an engine.
type web struct {
	storage storage.Queryable
	engine  *promql.Engine
	// refuse is asked before each request; what it returns is answered instead.
	refuse func(r *http.Request) (status int, body string)
	warn   []string
}

func serve(t testing.TB, w *web) *httptest.Server {
	t.Helper()
	if w.engine == nil {
		w.engine = newEngine(50_000_000)
	}
	s := httptest.NewServer(w)
	t.Cleanup(s.Close)
	return s
}

func newEngine(maxSamples int) *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: maxSamples, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
}

func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if w.refuse != nil {
		if status, body := w.refuse(r); status != 0 {
			rw.WriteHeader(status)
			_, _ = rw.Write([]byte(body))
			return
		}
	}
	var data any
	var err error
	switch r.URL.Path {
	case "/api/v1/query":
		data, err = w.query(r)
	case "/api/v1/query_range":
		data, err = w.queryRange(r)
	case "/api/v1/series":
		data, err = w.series(r)
	default:
		http.NotFound(rw, r)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	if err != nil {
		status, kind := http.StatusUnprocessableEntity, "execution"
		if _, timeout := errors.AsType[promql.ErrQueryTimeout](err); timeout {
			status, kind = http.StatusServiceUnavailable, "timeout"
		}
		rw.WriteHeader(status)
		_ = json.NewEncoder(rw).Encode(map[string]any{"status": "error", "errorType": kind, "error": err.Error()})
		return
	}
	_ = json.NewEncoder(rw).Encode(map[string]any{"status": "success", "data": data, "warnings": w.warn})
}

func moment(text string) time.Time {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(int64(v*1000 + 0.5))
}

func (w *web) query(r *http.Request) (any, error) {
	q, err := w.engine.NewInstantQuery(r.Context(), w.storage, nil, r.FormValue("query"), moment(r.FormValue("time")))
	if err != nil {
		return nil, err
	}
	defer q.Close()
	return answer(q.Exec(r.Context()))
}

func (w *web) queryRange(r *http.Request) (any, error) {
	step, err := strconv.ParseFloat(r.FormValue("step"), 64)
	if err != nil {
		return nil, err
	}
	from, to, every := moment(r.FormValue("start")), moment(r.FormValue("end")), time.Duration(step*float64(time.Second))
	if to.Sub(from)/every > 11000 {
		return nil, errors.New("exceeded maximum resolution of 11,000 points per timeseries")
	}
	q, err := w.engine.NewRangeQuery(r.Context(), w.storage, nil, r.FormValue("query"), from, to, every)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	return answer(q.Exec(r.Context()))
}

// answer is a result in the API's form.
func answer(res *promql.Result) (any, error) {
	if res.Err != nil {
		return nil, res.Err
	}
	switch v := res.Value.(type) {
	case promql.Vector:
		out := model.Vector{}
		for _, s := range v {
			out = append(out, &model.Sample{Metric: metric(s.Metric), Timestamp: model.Time(s.T), Value: model.SampleValue(s.F)})
		}
		return map[string]any{"resultType": "vector", "result": out}, nil
	case promql.Matrix:
		out := model.Matrix{}
		for _, s := range v {
			stream := &model.SampleStream{Metric: metric(s.Metric)}
			for _, p := range s.Floats {
				stream.Values = append(stream.Values, model.SamplePair{Timestamp: model.Time(p.T), Value: model.SampleValue(p.F)})
			}
			out = append(out, stream)
		}
		return map[string]any{"resultType": "matrix", "result": out}, nil
	}
	return nil, fmt.Errorf("a %s is not asked for", res.Value.Type())
}

func metric(l labels.Labels) model.Metric {
	m := model.Metric{}
	l.Range(func(l labels.Label) { m[model.LabelName(l.Name)] = model.LabelValue(l.Value) })
	return m
}

func (w *web) series(r *http.Request) (any, error) {
	if err := r.ParseForm(); err != nil {
		return nil, err
	}
	from, to := moment(r.FormValue("start")), moment(r.FormValue("end"))
	q, err := w.storage.Querier(from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, err
	}
	defer func() { _ = q.Close() }()
	out := []model.Metric{}
	for _, match := range r.Form["match[]"] {
		matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(match)
		if err != nil {
			return nil, err
		}
		set := q.Select(r.Context(), true, &storage.SelectHints{Start: from.UnixMilli(), End: to.UnixMilli(), Func: "series"}, matchers...)
		for set.Next() {
			out = append(out, metric(set.At().Labels()))
		}
		if err := set.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
