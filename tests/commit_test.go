// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// mortal is a book in a folder, in a process that is killed in one of its commits: what the folder is then
// is what the next process finds.
type mortal struct {
	*ledger.Book
	t    *testing.T
	from string
	// fails says which commits do not reach the disk. The process is killed in the commit dies, before
	// or after it was written.
	fails func(commit int) bool
	dies  int
	after bool

	mu      sync.Mutex
	commits int
	heir    string
	onDisk  uint64
}

func (m *mortal) Commit() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commits++
	if m.heir != "" {
		return errors.New("this process is dead")
	}
	if m.commits == m.dies && !m.after {
		m.die()
		return errors.New("killed before it was written")
	}
	if m.fails(m.commits) {
		return errors.New("no space left on device")
	}
	err := m.Book.Commit()
	if v := m.Book.View(); err == nil {
		m.onDisk = v.Totals.Sequence
	}
	if m.commits == m.dies {
		m.die()
	}
	return err
}

// die keeps the folder as it is now.
func (m *mortal) die() {
	m.heir = m.t.TempDir()
	if err := os.CopyFS(m.heir, os.DirFS(m.from)); err != nil {
		m.t.Error(err)
	}
}

// state is the folder that is left, empty while the process lives, and the last record that is on disk.
func (m *mortal) state() (heir string, onDisk uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heir, m.onDisk
}

// TestLawCommitBeforePublish plays a day of broken GPUs with an exporter that is killed again and again, right before a commit
// and right after it, on a disk that does not take every third one: no page shows what is not on disk, no counter falls, and the
// ledger stays the same one.
func TestLawCommitBeforePublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, err := sim.Open("bad-health")
		if err != nil {
			t.Fatal(err)
		}
		node, err := sim.NewNode(sc, sim.Options{Start: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		dir, seen, pages, fell := t.TempDir(), map[string]float64{}, 0, 0
		for life := range 16 {
			book := &mortal{
				Book: ledger.OpenBook(ledger.BookConfig{Dir: dir, Node: sc.Node}), t: t, from: dir,
				fails: func(commit int) bool { return life%2 == 1 && commit%3 == 0 },
				dies:  4 + life%5, after: life%4 < 2,
			}
			charging(t, node, book, func(e *exporter.Exporter) {
				for {
					pass(10 * time.Second)
					heir, onDisk := book.state()
					if heir != "" {
						dir = heir
						return
					}
					families := parsePage(t, textPage(t, e))
					if err := balances(families); err != nil {
						t.Errorf("life %d: %v", life, err)
					}
					pages++
					fell += falls(t, families, seen)
					if shown := families["gpumeter_ledger_sequence"].GetMetric(); len(shown) != 1 || valueOf(shown[0]) != float64(onDisk) {
						t.Fatalf("life %d: the page is as of %v, and on disk is %d", life, shown, onDisk)
					}
				}
			})
		}
		if ids := ledgersOf(seen); len(ids) != 1 || pages < 40 || len(seen) < 100 || fell > 0 {
			t.Errorf("%d ledgers, %d pages, %d counters, %d fell", len(ids), pages, len(seen), fell)
		}
	})
}

// charging is one life of an exporter on a node.
func charging(t *testing.T, node *sim.Node, book *mortal, story func(*exporter.Exporter)) {
	t.Helper()
	rules, err := health.NewRules(health.Config{XIDs: fewXIDs(t)})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := sharing.ParsePolicy("blend")
	if err != nil {
		t.Fatal(err)
	}
	m, err := meter.New(meter.Config{
		Telemetry: node, Allocations: node, Interval: 10 * time.Second, Policy: policy, Health: rules,
		BootID: func() string { return node.BootID(node.Elapsed()) }, Book: book, Clock: clockOf(node),
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := exporter.New(m, nil, exporter.Config{XIDs: fewXIDs(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	synctest.Wait()
	story(e)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := book.Close(); err != nil {
		t.Error(err)
	}
}

func textPage(t *testing.T, e *exporter.Exporter) []byte {
	t.Helper()
	var page strings.Builder
	if err := e.WritePage(&page, exporter.FormatText); err != nil {
		t.Fatal(err)
	}
	return []byte(page.String())
}

// falls counts the lasting counters on a page that are lower than they were seen, and takes over the others.
func falls(t *testing.T, page map[string]*dto.MetricFamily, seen map[string]float64) int {
	t.Helper()
	fell := 0
	for name, family := range page {
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			if family.GetType() != dto.MetricType_COUNTER || labels["ledger_id"] == "" && name != "gpumeter_xid_errors_total" {
				continue
			}
			series := name + m.String()[strings.Index(m.String(), "label"):strings.Index(m.String(), "counter")]
			if v := valueOf(m); v < seen[series] {
				fell++
				t.Errorf("%s fell from %v to %v", series, seen[series], v)
			} else {
				seen[series] = v
			}
		}
	}
	return fell
}

// ledgersOf are the ids of the ledgers in the names of series.
func ledgersOf(seen map[string]float64) map[string]bool {
	ids := map[string]bool{}
	for series := range seen {
		if _, after, ok := strings.Cut(series, `name:"ledger_id"`); ok {
			ids[strings.Fields(after)[0]] = true
		}
	}
	return ids
}
