// SPDX-License-Identifier: Apache-2.0

// Package dashboards holds the dashboards against a real Prometheus: every query of every panel over the shipped
// scenarios, against what the scenarios know to be true. It also draws the pictures of docs/dashboards.
package dashboards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	// scrapeInterval is Prometheus'.
	scrapeInterval = 30 * time.Second
	// scrapeLag is how long after a tick the page is scraped: a scrape never meets a tick.
	scrapeLag = 7 * time.Second
	// lockstep is how long all nodes are played and scraped; the month's node has been since before the month began.
	lockstep = 69*time.Minute + 30*time.Second
)

// Times of the stories. June 2026 begins on a Monday, as the month's story does.
func born() time.Time       { return time.Date(2026, 5, 30, 0, 0, 0, 0, time.UTC) }
func together() time.Time   { return time.Date(2026, 6, 18, 9, 0, 0, 0, time.UTC) }
func monthBegin() time.Time { return time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC) }

// rig is the fleet as it was scraped, and what is asked of it.
type rig struct {
	db      *tsdb.DB
	engine  *promql.Engine
	now     time.Time
	players []*player
	// plugin is the device plugin of one node as Prometheus scrapes it, pluginPages what it shows, one after the other.
	plugin      *target
	pluginPages [][]byte
	// at is how far each node's story was when its exporter last looked.
	at map[string]time.Duration
}

// played makes the rig that all tests share, once.
type played struct {
	once sync.Once
	rig  *rig
	dir  string
	err  error
}

var shared played

// theRig is the fleet after its stories. It is only read.
func theRig(t *testing.T) *rig {
	t.Helper()
	shared.once.Do(func() {
		begin := time.Now()
		if shared.dir, shared.err = os.MkdirTemp("", "gpumeter-dashboards-"); shared.err != nil {
			return
		}
		shared.rig, shared.err = play(t, shared.dir)
		t.Logf("the fleet is played and scraped after %v", time.Since(begin).Round(100*time.Millisecond))
	})
	if shared.err != nil || shared.rig == nil {
		t.Fatalf("the fleet could not be played: %v", shared.err)
	}
	return shared.rig
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.rig != nil {
		_ = shared.rig.db.Close()
	}
	_ = os.RemoveAll(shared.dir)
	os.Exit(code)
}

func newEngine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: parser.NewParser(parser.Options{})})
}

// play plays the fleet in virtual time.
func play(t *testing.T, dir string) (*rig, error) {
	options := tsdb.DefaultOptions()
	options.RetentionDuration = (90 * 24 * time.Hour).Milliseconds()
	options.WALSegmentSize = -1
	// One head has it all.
	options.MinBlockDuration = (60 * 24 * time.Hour).Milliseconds()
	options.MaxBlockDuration = options.MinBlockDuration
	db, err := tsdb.Open(filepath.Join(dir, "data"), nil, nil, options, nil)
	if err != nil {
		return nil, err
	}
	db.DisableCompactions()
	r := &rig{db: db, engine: newEngine(), at: map[string]time.Duration{}}
	if r.pluginPages, err = pluginPages(t.Context(), dir); err != nil {
		return nil, err
	}
	r.plugin = newTarget(scrape{job: "gpumeter-device-plugin", honor: true, labels: map[string]string{"node": "gpu-h100-03"}}, "gpu-h100-03", 9402)
	synctest.Test(t, func(*testing.T) { err = r.play(dir) })
	return r, err
}

func (r *rig) play(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	groups, err := r.groups(ctx)
	if err != nil {
		return err
	}
	time.Sleep(time.Until(born()))
	var failures []error
	for _, p := range fleet() {
		if p.long {
			if err := r.begin(p, dir); err != nil {
				return err
			}
			failures = append(failures, r.weeks(ctx, groups))
		}
	}
	running := make(chan error)
	started := 0
	for _, p := range fleet() {
		if p.long {
			continue
		}
		if err := r.begin(p, dir); err != nil {
			return err
		}
		n := r.players[len(r.players)-1]
		started++
		go func() { running <- n.meter.Run(ctx) }()
	}
	failures = append(failures, r.together(ctx, groups))
	cancel()
	for range started {
		failures = append(failures, <-running)
	}
	for _, n := range r.players {
		failures = append(failures, n.close())
	}
	return errors.Join(failures...)
}

// begin sets a node up.
func (r *rig) begin(p plan, dir string) error {
	n, err := newPlayer(p, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", p.scenario, err)
	}
	for _, s := range p.scrapes {
		n.targets = append(n.targets, newTarget(s, n.name, 9400))
	}
	r.players = append(r.players, n)
	return nil
}

// weeks plays the first node up to the time from which on all are played, and keeps one reading an hour: what is left of
// a month in a Prometheus that keeps rules longer than samples.
func (r *rig) weeks(ctx context.Context, groups []*rules.Group) error {
	n := r.players[0]
	for now := time.Now(); now.Before(together()); now = time.Now() {
		n.hand.at = now.Sub(n.started)
		n.meter.Tick(ctx)
		time.Sleep(longStep - time.Minute)
		if time.Now().Minute() == 59 {
			if err := r.scrape(n, time.Now()); err != nil {
				return err
			}
			for _, g := range groups {
				if g.Name() == "gpumeter-hourly" {
					g.Eval(ctx, time.Now())
				}
			}
		}
		time.Sleep(time.Minute)
	}
	return nil
}

// together scrapes all nodes, and evaluates the rules each minute.
func (r *rig) together(ctx context.Context, groups []*rules.Group) error {
	time.Sleep(scrapeLag)
	for i := 0; ; i++ {
		for _, n := range r.players {
			if n.hand != nil {
				n.hand.at = time.Since(n.started)
				n.meter.Tick(ctx)
			}
		}
		synctest.Wait()
		r.now = time.Now()
		for _, n := range r.players {
			if err := r.scrape(n, r.now); err != nil {
				return err
			}
			r.at[n.name] = n.looked()
		}
		page := r.pluginPages[int(float64(len(r.pluginPages)-1)*float64(r.now.Sub(together()))/float64(lockstep))%len(r.pluginPages)]
		if err := r.plugin.take(r.db, page, r.now); err != nil {
			return err
		}
		if i%2 == 1 {
			for _, g := range groups {
				g.Eval(ctx, r.now)
				if i == 1 {
					// A group shows its alerts only once it has looked for those of the server's last run.
					g.RestoreForState(r.now)
				}
				for _, rule := range g.Rules() {
					if err := rule.LastError(); err != nil {
						return fmt.Errorf("rule %s: %w", rule.Name(), err)
					}
				}
			}
		}
		if r.now.Sub(together()) >= lockstep {
			return nil
		}
		time.Sleep(scrapeInterval)
	}
}

// scrape has each target take the node's page.
func (r *rig) scrape(n *player, at time.Time) error {
	page, err := n.page()
	if err != nil {
		return err
	}
	for _, g := range n.targets {
		if err := g.take(r.db, page, at); err != nil {
			return err
		}
	}
	return nil
}

// groups are the shipped recording rules and alerts.
func (r *rig) groups(ctx context.Context) ([]*rules.Group, error) {
	files, err := filepath.Glob("../../etc/prometheus/*.yaml")
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("no rules in ../../etc/prometheus")
	}
	var shipped []string
	for _, f := range append(files, "testdata/prices.yaml") {
		if !strings.Contains(f, "_test") {
			shipped = append(shipped, f)
		}
	}
	m := rules.NewManager(&rules.ManagerOptions{
		NameValidationScheme: model.UTF8Validation, QueryFunc: rules.EngineQueryFunc(newEngine(), oneServer{r.db}), AppendableV2: r.db, Queryable: oneServer{r.db}, Context: ctx,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: slog.New(slog.DiscardHandler),
		Parser: parser.NewParser(parser.Options{}),
	})
	byName, errs := m.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, shipped...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var out []*rules.Group
	for _, g := range byName {
		out = append(out, g)
	}
	return out, nil
}

// oneServer is what one Prometheus of a pair has scraped: rules are evaluated by each server over its own samples, and dashboards see
// those of both.
type oneServer struct{ storage.Queryable }

// Querier reads all but the samples of the other server.
func (s oneServer) Querier(from, to int64) (storage.Querier, error) {
	q, err := s.Queryable.Querier(from, to)
	return oneServerQuerier{q}, err
}

type oneServerQuerier struct{ storage.Querier }

// Select adds to what is asked for that it is not the other server's.
func (q oneServerQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	other := labels.MustNewMatcher(labels.MatchNotEqual, replicaLabel, "b")
	return q.Querier.Select(ctx, sorted, hints, append(slices.Clone(matchers), other)...)
}
