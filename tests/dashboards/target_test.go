// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// target is a page as one scrape job of a Prometheus server takes it in.
type target struct {
	scrape
	instance string
	known    map[string]*series
	round    int
}

// series is one series of a target.
type series struct {
	ref    storage.SeriesRef
	labels labels.Labels
	// round is the scrape that had it last.
	round int
}

func newTarget(s scrape, node string, port int) *target {
	return &target{scrape: s, instance: fmt.Sprintf("%s:%d", node, port), known: map[string]*series{}}
}

// take stores a page as a scrape at that time does: series that are gone end. A nil page is a scrape that failed.
func (g *target) take(db *tsdb.DB, page []byte, at time.Time) error {
	app := db.Appender(context.Background())
	g.round++
	n, err := g.parse(app, page, at.UnixMilli())
	if err != nil {
		return errors.Join(fmt.Errorf("scrape %s by job %s: %w", g.instance, g.job, err), app.Rollback())
	}
	for _, s := range g.known {
		if s.round == g.round-1 {
			if _, err := app.Append(s.ref, s.labels, at.UnixMilli(), math.Float64frombits(value.StaleNaN)); err != nil {
				return errors.Join(err, app.Rollback())
			}
		}
	}
	up := 0.0
	if page != nil {
		up = 1
	}
	for name, v := range map[string]float64{"up": up, "scrape_samples_scraped": float64(n), "scrape_duration_seconds": 0.01} {
		if _, err := app.Append(0, g.relabel(labels.FromStrings("__name__", name)), at.UnixMilli(), v); err != nil {
			return errors.Join(err, app.Rollback())
		}
	}
	return app.Commit()
}

// parse reads a page with Prometheus' own parser and appends what it has.
func (g *target) parse(app storage.Appender, page []byte, at int64) (int, error) {
	if page == nil {
		return 0, nil
	}
	p, err := textparse.New(page, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return 0, err
	}
	for n := 0; ; {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		n++
		raw, _, v := p.Series()
		s, ok := g.known[string(raw)]
		if !ok {
			var l labels.Labels
			p.Labels(&l)
			s = &series{labels: g.relabel(l)}
			g.known[string(raw)] = s
		}
		s.round = g.round
		if s.ref, err = app.Append(s.ref, s.labels, at, v); err != nil {
			return n, fmt.Errorf("%s: %w", s.labels, err)
		}
	}
}

// relabel gives a series of the page the target's labels. Where both have one, honor_labels says whose stays.
func (g *target) relabel(l labels.Labels) labels.Labels {
	b := labels.NewBuilder(l)
	set := func(name, v string) {
		own := l.Get(name)
		switch {
		case own != "" && g.honor:
			return
		case own != "":
			b.Set("exported_"+name, own)
		}
		b.Set(name, v)
	}
	for name, v := range g.labels {
		set(name, v)
	}
	set("job", g.job)
	set("instance", g.instance)
	return b.Labels()
}
