// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

var update = flag.Bool("update", false, "write the golden files anew")

// station is a shipped scenario with a meter and an exporter on it, in virtual time.
type station struct {
	node     *sim.Node
	asked    *counting
	meter    *meter.Meter
	exporter *exporter.Exporter
}

// page is what the exporter serves now, in the text format, under a ledger id that stays the same.
func (s station) page() []byte {
	w := httptest.NewRecorder()
	s.exporter.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	page := w.Body.Bytes()
	if v := s.meter.Latest().Ledger; meter.Committed(v) {
		page = bytes.ReplaceAll(page, []byte(v.Totals.LedgerID), []byte("golden"))
	}
	return page
}

// playing runs story on a station whose clock is virtual, ticking each interval, under the
// default counters.
func playing(t *testing.T, scenario string, interval time.Duration, cfg exporter.Config, story func(t *testing.T, s station)) {
	t.Helper()
	playingWith(t, scenario, interval, "", cfg, story)
}

// playingWith is playing with rows behind the default counters.
func playingWith(t *testing.T, scenario string, interval time.Duration, rows string, cfg exporter.Config, story func(t *testing.T, s station)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sc, err := sim.Open(scenario)
		if err != nil {
			t.Fatal(err)
		}
		node, err := sim.NewNode(sc, sim.Options{Start: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		data, err := etc.ReadFile("default-counters.csv")
		if err != nil {
			t.Fatal(err)
		}
		counters, problems := exporter.ParseCounters("default-counters.csv", append(data, rows...))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		policy, err := sharing.ParsePolicy("blend")
		if err != nil {
			t.Fatal(err)
		}
		asked := &counting{Node: node}
		rules, err := health.NewRules(health.Config{XIDs: fewXIDs(t)})
		if err != nil {
			t.Fatal(err)
		}
		book := ledger.OpenBook(ledger.BookConfig{Node: sc.Node, Policy: policy.Name()})
		m, err := meter.New(meter.Config{
			Telemetry: asked, Allocations: asked, Fields: counters.Fields(), Policy: policy, Interval: interval,
			Health: rules, BootID: func() string { return node.BootID(node.Elapsed()) },
			Book: book, Clock: clockOf(node),
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Hostname, cfg.XIDs, cfg.Policy = sc.Node, fewXIDs(t), policy.Name()
		cfg.Build = exporter.BuildInfo{Version: "golden", Revision: "golden", GoVersion: "golden"}
		e, err := exporter.New(m, counters, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		story(t, station{node, asked, m, e})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// clockOf is the clocks of a node that tells its story once.
func clockOf(node *sim.Node) func() ledger.Instant {
	return func() ledger.Instant {
		elapsed := node.Elapsed()
		return ledger.Instant{BootID: node.BootID(elapsed), Boot: elapsed.Milliseconds(), Wall: node.Now().UnixMilli()}
	}
}

// fewXIDs is a table of XIDs that does not crowd the pages.
func fewXIDs(t *testing.T) *health.XIDTable {
	t.Helper()
	table, err := health.NewXIDTable([]health.XID{
		{Code: 43, Name: "a program's fault reset its channel", Class: health.ClassApp},
		{Code: 48, Name: "double-bit memory error", Class: health.ClassReset, Alert: true},
		{Code: 79, Name: "GPU has fallen off the bus", Class: health.ClassNode, Alert: true},
		{Code: 94, Name: "contained memory error", Class: health.ClassContained, Alert: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// computedRows ask for all that dcgm-exporter computes.
const computedRows = `
DCGM_EXP_XID_ERRORS_COUNT, gauge, XID errors in the window.
DCGM_EXP_XID_ERRORS_TOTAL, counter, XID errors since the exporter began.
DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, Samples in the window with a clock event.
DCGM_EXP_CLOCK_EVENTS_TOTAL, counter, Clock events since the exporter began.
DCGM_EXP_GPU_HEALTH_STATUS, gauge, "Result of DCGM's health checks: 0 pass, 10 warning, 20 failure."
DCGM_EXP_P2P_STATUS, gauge, NVLink from one GPU to another: 0 is usable.
`

// pass lets virtual time go by and everything due in it happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; run make update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what is served now; run make update and look at the difference\n%s", file,
			cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")))
	}
}

// TestGoldenPages holds the whole page of each shipped scenario at one instant of its story.
func TestGoldenPages(t *testing.T) {
	at := map[string]time.Duration{
		"default":    5 * time.Minute,
		"bad-day":    7*time.Minute + 30*time.Second,
		"bad-health": 7*time.Minute + 30*time.Second,
		"otherwise":  2 * time.Minute,
	}
	for _, name := range sim.Shipped() {
		t.Run(name, func(t *testing.T) {
			instant, ok := at[name]
			if !ok {
				instant = at["otherwise"]
			}
			playing(t, name, 30*time.Second, exporter.Config{}, func(t *testing.T, s station) {
				pass(instant)
				golden(t, name+".prom", s.page())
			})
		})
	}
	t.Run("bad-day with all that is computed", func(t *testing.T) {
		playingWith(t, "bad-day", 30*time.Second, computedRows, exporter.Config{}, func(t *testing.T, s station) {
			pass(7*time.Minute + 30*time.Second)
			golden(t, "bad-day-computed.prom", s.page())
		})
	})
	t.Run("h100x8-timeslice4 with virtual GPUs", func(t *testing.T) {
		playing(t, "h100x8-timeslice4", 30*time.Second, exporter.Config{VirtualGPUs: true}, func(t *testing.T, s station) {
			pass(2 * time.Minute)
			golden(t, "h100x8-timeslice4-virtual-gpus.prom", s.page())
		})
	})
}

// TestAttributionMatchesTheNodesTruth holds the exporter's shares against what the node itself knows.
func TestAttributionMatchesTheNodesTruth(t *testing.T) {
	for _, name := range sim.Shipped() {
		t.Run(name, func(t *testing.T) {
			playing(t, name, 15*time.Second, exporter.Config{}, func(t *testing.T, s station) {
				start := s.asked.Now().Add(-s.asked.Elapsed())
				for range 80 {
					snap := s.meter.Latest()
					charged, listed := map[string]int{}, map[string]int{}
					for _, sh := range snap.Division.Shares {
						charged[sh.Holder.Namespace+"/"+sh.Holder.Pod] += sh.Seats
					}
					for _, u := range snap.Division.Unallocated {
						if u.Holder.Pod != "" {
							charged[u.Holder.Namespace+"/"+u.Holder.Pod] = -1
						}
					}
					// What is held of a GPU that is not listed can be charged to nobody.
					for _, u := range snap.Division.Unmatched {
						charged[u.Allocation.Holder.Namespace+"/"+u.Allocation.Holder.Pod] = -1
					}
					for _, a := range s.asked.Truth(snap.Listing.Time.Sub(start)) {
						listed[a.Holder.Namespace+"/"+a.Holder.Pod]++
					}
					for pod, n := range charged {
						if n < 0 {
							delete(listed, pod)
							delete(charged, pod)
						}
					}
					if d := cmp.Diff(listed, charged); d != "" {
						t.Fatalf("%v into the story, seats held (-truth +charged):\n%s", s.asked.Elapsed(), d)
					}
					pass(15 * time.Second)
				}
			})
		})
	}
}
