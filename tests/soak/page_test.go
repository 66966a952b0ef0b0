// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// series is one of a page.
type series struct {
	labels labels.Labels
	value  float64
}

// page is one as Prometheus' own parser reads it, by metric.
type page map[string][]series

// parse reads a page and refuses what Prometheus would.
func parse(body []byte, contentType string) (page, error) {
	p, err := textparse.New(body, contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return nil, err
	}
	out, seen := page{}, map[uint64]bool{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var s series
		p.Labels(&s.labels)
		_, _, s.value = p.Series()
		hash := s.labels.Hash()
		if seen[hash] {
			return nil, fmt.Errorf("a series stands twice: %v", s.labels)
		}
		seen[hash] = true
		name := s.labels.Get(model.MetricNameLabel)
		out[name] = append(out[name], s)
	}
}

// laws are what is so on every page.
func (p page) laws() error {
	return errors.Join(p.addsUp(), p.balances(), p.atPeace())
}

// addsUp: the shares and the rest of each card are one, and every card is there.
func (p page) addsUp() error {
	sum := map[string]float64{}
	for _, name := range []string{"gpumeter_allocation_share", "gpumeter_unallocated_share"} {
		for _, s := range p[name] {
			sum[s.labels.Get("UUID")] += s.value
		}
	}
	if len(sum) > cards || len(sum) < cards && !p.nameless() {
		return fmt.Errorf("shares of %d cards, want %d", len(sum), cards)
	}
	for card, v := range sum {
		if math.Abs(v-1) > 1e-9 {
			return fmt.Errorf("the shares of %s add up to %v", card, v)
		}
	}
	return nil
}

// nameless reports whether the driver hangs about a card that it has not named: from the exporter's start on such a card has no UUID, and is a fault
// without one.
func (p page) nameless() bool {
	for _, s := range p["gpumeter_fault"] {
		if s.labels.Get("source") == "telemetry" && s.labels.Get("kind") == "timeout" && s.labels.Get("UUID") == "" {
			return true
		}
	}
	return false
}

// balances: what the ledger has of each card is all of it.
func (p page) balances() error {
	rest, scale := map[string]float64{}, map[string]float64{}
	for family, sign := range map[string]float64{"capacity": 1, "corrected": 1, "allocated": -1, "unallocated": -1} {
		for _, s := range p["gpumeter_"+family+"_gpu_seconds_total"] {
			rest[s.labels.Get("UUID")] += sign * s.value
			scale[s.labels.Get("UUID")] += s.value
		}
	}
	for card, v := range rest {
		// Each series is shown in whole microseconds, rounded down; there are 14 of a card at most.
		if math.Abs(v) > 14e-6+scale[card]*1e-13 {
			return fmt.Errorf("%v of %v GPU-seconds of %s are missing in its totals", v, scale[card], card)
		}
	}
	return nil
}

// atPeace: the meter itself finds nothing wrong with its accounts.
func (p page) atPeace() error {
	for _, s := range p["gpumeter_conservation_error_gpu_seconds"] {
		if s.value != 0 {
			return fmt.Errorf("conservation error of %v GPU-seconds on %s", s.value, s.labels.Get("UUID"))
		}
	}
	for _, s := range p["gpumeter_ledger_degraded"] {
		if s.value != 0 {
			return errors.New("the ledger is degraded")
		}
	}
	for _, s := range p["gpumeter_ledger_restored"] {
		if state := s.labels.Get("state"); state != "restored" && state != "new" {
			return fmt.Errorf("the ledger was found %q", state)
		}
	}
	return nil
}

// memory is what a client remembers of counters, to see that none falls.
type memory struct {
	// durable are the ledger's, which outlive the process; brief are those of one process.
	durable, brief map[uint64]remembered
	life, pages    int
	ledger         string
}

type remembered struct {
	value float64
	page  int
}

// forgotten is after how many pages without it a counter is forgotten: a pod that has ended does not come back.
const forgotten = 60

// falls compares a page with the ones before it. life is 0 where the process may have changed while it was served.
func (m *memory) falls(p page, life int) error {
	if m.durable == nil || life != m.life {
		m.brief = map[uint64]remembered{}
	}
	if m.durable == nil {
		m.durable = map[uint64]remembered{}
	}
	m.life, m.pages = life, m.pages+1
	var errs []error
	for name, all := range p {
		if !strings.HasPrefix(name, "gpumeter_") || !strings.HasSuffix(name, "_total") && name != "gpumeter_ledger_sequence" {
			continue
		}
		for _, s := range all {
			of := m.brief
			if s.labels.Get("ledger_id") != "" {
				of = m.durable
			} else if life == 0 {
				continue
			}
			hash := s.labels.Hash()
			if was, known := of[hash]; known && s.value < was.value {
				errs = append(errs, fmt.Errorf("%v fell from %v to %v", s.labels, was.value, s.value))
			}
			of[hash] = remembered{s.value, m.pages}
		}
	}
	for _, s := range p["gpumeter_ledger_info"] {
		id := s.labels.Get("ledger_id")
		if m.ledger != "" && id != m.ledger {
			errs = append(errs, fmt.Errorf("the ledger %s has become %s", m.ledger, id))
		}
		m.ledger = id
	}
	for hash, r := range m.durable {
		if m.pages-r.page > forgotten {
			delete(m.durable, hash)
		}
	}
	return errors.Join(errs...)
}
