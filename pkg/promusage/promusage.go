// SPDX-License-Identifier: Apache-2.0

// Package promusage reads consumption from Prometheus, Thanos or Mimir, as the last reading of each of gpumeter's
// registers at or before a moment, whoever scraped it how often.
//
// A register's value is taken as the greatest over all targets, jobs and replicas that scraped it (registers
// never fall), and nothing is summed before that; so neither a pair of Prometheus servers nor a second scrape job counts
// anything twice. Consumption is the difference of two readings; nothing is extrapolated, and no rate is taken.
package promusage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	promapi "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// The defaults of Config.
const (
	// DefaultLookback covers ten scrapes a minute apart.
	DefaultLookback = 10 * time.Minute
	// DefaultRuleLookback covers one lost evaluation of the hourly rules.
	DefaultRuleLookback = 2 * time.Hour
	// DefaultSearch is how far back a reading is looked for where there is none near the start.
	DefaultSearch = 7 * 24 * time.Hour
	// DefaultSettle is how long after a scrape its samples may still be on their way.
	DefaultSettle = 30 * time.Second
	// DefaultTimeout is for one query.
	DefaultTimeout = 2 * time.Minute
	// DefaultParallel is how many queries run at once.
	DefaultParallel = 4
	// DefaultSampledHours are those of 400 ledgers in a month.
	DefaultSampledHours = 300_000
)

// Config is where and how to read.
type Config struct {
	// URL is the server's, with the prefix under which /api/v1 lies.
	URL string
	// HTTP does the requests: it adds credentials, the tenant's header, TLS. Nil is a plain transport.
	HTTP http.RoundTripper
	// Matchers are put into every selector of a register's own series and of their rules: `cluster="a"`. They
	// must name labels that the rules keep.
	Matchers []string
	// Lookback is how old a sample may be to count as the reading at a moment, RuleLookback the same for the
	// hourly rules.
	Lookback, RuleLookback time.Duration
	// Search is how far before the start a reading is looked for where there is none within the lookbacks.
	Search time.Duration
	// Settle is how long samples may be on their way: nothing newer is read.
	Settle time.Duration
	// Timeout is for one query, Parallel how many run at once.
	Timeout  time.Duration
	Parallel int
	// SampledHours bounds in how many hours of ledgers a fall is looked for sample by sample, where no hourly rule did it.
	SampledHours int
	// KubeLabels reads labels of pods and nodes from kube-state-metrics' series too; NamespaceLabels are those of namespaces.
	KubeLabels bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log hears of queries that were made smaller and the like; nil is silent.
	Log *slog.Logger
}

// Source reads Usage from a server. It is safe for concurrent use.
type Source struct {
	cfg Config
	api promapi.API
}

// New is a Source; it asks nothing yet. The error says what is wrong with cfg.
func New(cfg Config) (*Source, error) {
	if cfg.URL == "" {
		return nil, errors.New("read Prometheus: no URL; give the one under which its /api/v1 lies")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = DefaultParallel
	}
	if cfg.SampledHours <= 0 {
		cfg.SampledHours = DefaultSampledHours
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&cfg.Lookback, DefaultLookback}, {&cfg.RuleLookback, DefaultRuleLookback}, {&cfg.Search, DefaultSearch},
		{&cfg.Settle, DefaultSettle}, {&cfg.Timeout, DefaultTimeout},
	} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
	if !strings.Contains(cfg.URL, "://") {
		return nil, fmt.Errorf("read Prometheus: %q is no URL; it begins with http:// or https://", cfg.URL)
	}
	client, err := api.NewClient(api.Config{Address: cfg.URL, RoundTripper: cfg.HTTP})
	if err != nil {
		return nil, fmt.Errorf("read Prometheus at %q: %w", cfg.URL, err)
	}
	return &Source{cfg: cfg, api: promapi.NewAPI(client)}, nil
}

// Usage reads what was consumed between q's boundaries. An error means that the server could not be asked; what it
// does not have is in the answer, as Missing.
func (s *Source) Usage(ctx context.Context, q ledger.Query) (ledger.Usage, error) {
	if len(q.Boundaries) < 2 {
		return ledger.Usage{}, errors.New("read Prometheus: a query needs two boundaries or more")
	}
	for i := 1; i < len(q.Boundaries); i++ {
		if !q.Boundaries[i-1].Before(q.Boundaries[i]) {
			return ledger.Usage{}, fmt.Errorf("read Prometheus: boundary %s is not after %s", q.Boundaries[i], q.Boundaries[i-1])
		}
	}
	r := newReport(s, q)
	if err := r.run(ctx); err != nil {
		return ledger.Usage{}, err
	}
	return r.usage, nil
}
