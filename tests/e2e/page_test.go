// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// page is what a /metrics said.
type page map[string]*dto.MetricFamily

func scrape(url string) (page, error) {
	text, err := fetch(url)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

func labels(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

func value(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
}

// sum adds up the samples of a family that have these labels.
func (p page) sum(family string, want map[string]string) float64 {
	total := 0.0
	for _, m := range p[family].GetMetric() {
		l, match := labels(m), true
		for name, v := range want {
			match = match && l[name] == v
		}
		if match {
			total += value(m)
		}
	}
	return total
}

// shares are the parts of cards that a pod holds.
func (p page) shares(pod string) map[string]float64 {
	out := map[string]float64{}
	for _, family := range []string{"gpumeter_allocation_share", "gpumeter_uncharged_share"} {
		for _, m := range p[family].GetMetric() {
			if l := labels(m); l["pod"] == pod {
				out[l["UUID"]] += value(m)
			}
		}
	}
	return out
}

// sumsWatch scrapes the exporter all the time and adds up every card.
type sumsWatch struct {
	mu sync.Mutex
	// scrapes are pages, silent is how often there was none.
	scrapes, silent int
	worst           float64
	broken          []string
	// totals are the counters of charges as they were last shown, worstTotal is by how much they did not add up at worst.
	totals     map[string]float64
	worstTotal float64
	// stop ends the scraping.
	stop context.CancelFunc
}

// watchSums goes on until the test ends, or stop is called, and at the end says what it saw. A card that does not add
// up fails the test.
func watchSums(t *testing.T) *sumsWatch {
	t.Helper()
	const pause = 100 * time.Millisecond
	w := &sumsWatch{totals: map[string]float64{}}
	done := make(chan struct{})
	var ctx context.Context
	ctx, w.stop = context.WithCancel(t.Context())
	go func() {
		defer close(done)
		for ticker := time.NewTicker(pause); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				w.look(scrape(exporterPage))
			}
		}
	}()
	t.Cleanup(func() {
		w.stop()
		<-done
		w.say(t)
	})
	return w
}

// tolerance is what sums of floats may be off.
const tolerance = 1e-9

func (w *sumsWatch) look(p page, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.silent++
		return
	}
	w.scrapes++
	sums := map[string]float64{}
	for _, family := range []string{"gpumeter_allocation_share", "gpumeter_unallocated_share"} {
		for _, m := range p[family].GetMetric() {
			sums[labels(m)["UUID"]] += value(m)
		}
	}
	if len(sums) != cards {
		w.broken = append(w.broken, fmt.Sprintf("%s: shares of %d cards", time.Now().Format("15:04:05.000"), len(sums)))
	}
	for card, total := range sums {
		off := math.Abs(total - 1)
		w.worst = max(w.worst, off)
		if !(off <= tolerance) {
			w.broken = append(w.broken, fmt.Sprintf("%s: the parts of %s add up to %v", time.Now().Format("15:04:05.000"), card, total))
		}
	}
	w.lookAtTotals(p)
}

// totalTolerance is what the totals of a card may be off: each is rounded down to a microsecond.
const totalTolerance = 10e-6

// lookAtTotals: what cards came to adds up, and no counter of it falls.
func (w *sumsWatch) lookAtTotals(p page) {
	off := map[string]float64{}
	for family, sign := range map[string]float64{
		"gpumeter_capacity_gpu_seconds_total": 1, "gpumeter_corrected_gpu_seconds_total": 1,
		"gpumeter_allocated_gpu_seconds_total": -1, "gpumeter_unallocated_gpu_seconds_total": -1, "gpumeter_namespace_gpu_seconds_total": 0,
	} {
		for _, m := range p[family].GetMetric() {
			l := labels(m)
			if l["UUID"] != "" {
				off[l["UUID"]] += sign * value(m)
			}
			key := fmt.Sprint(family, l)
			if value(m) < w.totals[key] {
				w.broken = append(w.broken, fmt.Sprintf("%s: %s fell from %v to %v", time.Now().Format("15:04:05.000"), key, w.totals[key], value(m)))
			}
			w.totals[key] = value(m)
		}
	}
	for card, by := range off {
		w.worstTotal = max(w.worstTotal, math.Abs(by))
		if !(math.Abs(by) <= totalTolerance) {
			w.broken = append(w.broken, fmt.Sprintf("%s: the totals of %s differ by %v s", time.Now().Format("15:04:05.000"), card, by))
		}
	}
}

func (w *sumsWatch) say(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("conservation: %d scrapes of %d cards, off by %.3g at worst; %d without an answer", w.scrapes, cards, w.worst, w.silent)
	t.Logf("conservation: %d counters of charges never fell, cards' totals were off by %.3g s at worst", len(w.totals), w.worstTotal)
	if len(w.totals) == 0 {
		t.Error("there were no totals")
	}
	if w.scrapes == 0 {
		t.Error("the exporter was never scraped")
	}
	const shown = 10
	for i, text := range w.broken {
		if i == shown {
			t.Errorf("and %d more", len(w.broken)-shown)
			break
		}
		t.Error(text)
	}
}
