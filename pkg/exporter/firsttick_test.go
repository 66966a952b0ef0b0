// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/meter"
)

// coming is a Snapshots whose first tick is yet to come.
type coming struct {
	mu    sync.Mutex
	now   *meter.Snapshot
	stale chan struct{}
}

func (c *coming) Latest() *meter.Snapshot {
	s, _ := c.Watch()
	return s
}

func (c *coming) Watch() (*meter.Snapshot, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.stale
}

func (c *coming) publish(s *meter.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = s
	close(c.stale)
	c.stale = make(chan struct{})
}

func TestAScrapeBeforeTheFirstTickWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &coming{now: &meter.Snapshot{}, stale: make(chan struct{})}
		e, err := New(c, rowsOf(t, mixedCounters), mixedConfig())
		if err != nil {
			t.Fatal(err)
		}
		h := e.Handler()
		time.AfterFunc(2*time.Second, func() { c.publish(&meter.Snapshot{}) })
		time.AfterFunc(4*time.Second, func() { c.publish(mixedNode()) })
		start := time.Now()
		r := get(h, "GET", "/metrics")
		if body := bodyOf(t, r); r.StatusCode != http.StatusOK || len(seriesOf(body, "gpumeter_device_info")) == 0 || time.Since(start) != 4*time.Second {
			t.Errorf("after %v: status %d, %d bytes", time.Since(start), r.StatusCode, len(body))
		}
		start = time.Now()
		if r := get(h, "GET", "/metrics"); r.StatusCode != http.StatusOK || time.Since(start) != 0 {
			t.Errorf("the next scrape: status %d after %v", r.StatusCode, time.Since(start))
		}
	})
}

// A page without GPUs would pass for a node that has none.
func TestAScrapeIsRefusedWhereTheFirstTickDoesNotCome(t *testing.T) {
	tests := []struct {
		timeout string
		longest time.Duration
		want    time.Duration
	}{
		{"", 0, 5 * time.Second},
		{"10", 0, 5 * time.Second},
		{"4", 0, 3200 * time.Millisecond},
		{"0.5", 0, 400 * time.Millisecond},
		{"1e300", 0, 5 * time.Second},
		{"-1", 0, 5 * time.Second},
		{"NaN", 0, 5 * time.Second},
		{"soon", 2 * time.Second, 2 * time.Second},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			c := &coming{now: &meter.Snapshot{}, stale: make(chan struct{})}
			e, err := New(c, nil, Config{FirstTick: tt.longest})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			r := get(e.Handler(), "GET", "/metrics", "X-Prometheus-Scrape-Timeout-Seconds", tt.timeout)
			if waited := time.Since(start); waited != tt.want {
				t.Errorf("scrape timeout %q: waited for %v, want %v", tt.timeout, waited, tt.want)
			}
			body := bodyOf(t, r)
			if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || !strings.Contains(body, "first tick") || strings.Contains(body, "gpumeter_") {
				t.Errorf("status %d, %v: %s", r.StatusCode, r.Header, body)
			}
		})
	}
}

func TestAScrapeThatNobodyWaitsForAnyMoreEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &coming{now: &meter.Snapshot{}, stale: make(chan struct{})}
		e, err := New(c, nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		e.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil).WithContext(ctx))
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited for %v", waited)
		}
	})
}

// A source that never answers leaves a page of the exporter's own families.
func TestASourceThatNeverAnswersHasAPage(t *testing.T) {
	e := exporterOf(t, &meter.Snapshot{Seq: 1, Time: noon}, nil, Config{})
	if r := get(e.Handler(), "GET", "/metrics"); r.StatusCode != http.StatusOK || !strings.Contains(bodyOf(t, r), "gpumeter_ticks_total") {
		t.Errorf("status %d", r.StatusCode)
	}
}
