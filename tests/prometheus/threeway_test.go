// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// scraper is one Prometheus' view of the node: how often it looks, and when it does not.
type scraper struct {
	*target
	every, next time.Duration
	misses      int // of 100
	away        func(time.Duration) bool
}

// world is a node, those who scrape it, and what each scrape has seen of the truth.
type world struct {
	*history
	scrapers []*scraper
	// shown are for each scrape when it was and how many stretches of the truth its page had.
	shown []shown
}

type shown struct {
	at        time.Time
	stretches int
	commit    time.Time
}

// scrapeUntil has everybody scrape whose time it is.
func (w *world) scrapeUntil(to time.Time) {
	for _, s := range w.scrapers {
		for ; !epoch.Add(s.next).After(to); s.next += s.every {
			at := epoch.Add(s.next)
			if s.away != nil && s.away(s.next) {
				continue
			}
			if w.page == nil || w.rand.IntN(100) < s.misses {
				s.scrape(w.t, at, nil)
				continue
			}
			page, _, err := parse(get(w.exp.Handler(), formats["openmetrics"]))
			if err != nil {
				w.t.Fatal(err)
			}
			s.scrape(w.t, at, page)
			w.shown = append(w.shown, shown{at, w.committed, w.keptWall})
		}
	}
}

// live plays so many ticks.
func (w *world) live(ticks int) {
	for range ticks {
		w.happen()
		// What is scraped until this tick is what was committed before it.
		w.scrapeUntil(w.now.Add(-time.Millisecond))
		if w.tick == 1 || w.rand.IntN(40) > 0 {
			w.observe()
			if w.tick == 1 || w.rand.IntN(3) > 0 {
				w.commit()
			}
		}
		switch r := w.rand.IntN(400); {
		case r == 0:
			w.kill(time.Duration(1+w.rand.IntN(120))*15*time.Second, false)
			w.scrapeUntil(w.now)
		case r == 1:
			w.kill(time.Duration(4+w.rand.IntN(60))*15*time.Second, true)
			w.scrapeUntil(w.now)
		case r == 2:
			w.pass(time.Duration(10+w.rand.IntN(60)) * 15 * time.Second) // It hangs.
			w.scrapeUntil(w.now)
		case r == 3 && w.stepped:
			w.offset += time.Duration(w.rand.IntN(7200)-3600) * time.Second
		}
	}
	w.observe()
	w.commit()
}

// newWorld is a node scraped by a pair of servers and by a second job, each now and then missing a scrape.
func newWorld(t *testing.T, seed uint64, cards int) *world {
	w := &world{history: newHistory(t, seed, cards)}
	db := openStorage(t)
	sd := map[string]string{"namespace": "gpu-system", "pod": "exporter-abc", "node": "n1"}
	every := []time.Duration{15 * time.Second, 30 * time.Second, time.Minute}[w.rand.IntN(3)]
	for i := range 2 {
		s := &scraper{target: newTarget(db, "gpu"+strconv.Itoa(i), sd), every: every, next: time.Duration(w.rand.Int64N(int64(every))).Truncate(time.Millisecond), misses: 10}
		w.scrapers = append(w.scrapers, s)
	}
	from := time.Duration(w.rand.IntN(4*3600)) * time.Second
	for _, s := range w.scrapers {
		s.away = func(at time.Duration) bool { return at > from && at < from+15*time.Minute }
	}
	second := &scraper{target: newTarget(db, "second", nil), every: 45 * time.Second, next: 3 * time.Second, misses: 30, away: w.scrapers[0].away}
	second.honor = true
	w.scrapers = append(w.scrapers, second)
	return w
}

// cellsOf is a Usage by what it is of, window by window.
func cellsOf(u ledger.Usage, windows int) []map[string]int64 {
	all := make([]map[string]int64, windows)
	for i := range all {
		all[i] = map[string]int64{}
	}
	for _, h := range u.Held {
		all[h.Window][heldText(h.Series)] += h.GPU
	}
	for _, x := range u.Rest {
		all[x.Window][restText(x)] += x.GPU
	}
	for i := range all {
		maps.DeleteFunc(all[i], func(_ string, v int64) bool { return v == 0 })
	}
	return all
}

// evidenceOf is what is measured beside the time held: energy and busy time.
func evidenceOf(u ledger.Usage) map[string]int64 {
	all := map[string]int64{}
	for _, h := range u.Held {
		all["energy of "+heldText(h.Series)] += h.Energy
		for basis, v := range h.Used {
			all[fmt.Sprintf("use (%s) of %s", basis, heldText(h.Series))] += v
		}
	}
	for _, x := range u.Rest {
		all["energy of "+restText(x)] += x.Energy
	}
	maps.DeleteFunc(all, func(_ string, v int64) bool { return v == 0 })
	return all
}

// disagree names what differs.
func disagree(t *testing.T, what string, window int, got, want map[string]int64) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(want))
	for k := range got {
		if _, ok := want[k]; !ok {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		if got[k] != want[k] {
			t.Errorf("%s, window %d: %s is %d, want %d (%+d)", what, window, k, got[k], want[k], got[k]-want[k])
		}
	}
}

// histories is how many of them are tried: GPUMETER_HISTORIES, or a few.
func histories(t *testing.T) int {
	if text := os.Getenv("GPUMETER_HISTORIES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 3
}

// TestPrometheusTheLedgerAndTheTruthAreOneBill plays lives of a node, with kills, reboots, stalls, new layouts, pods of a tick
// and of days, scrapes that fail and scrapes that come twice; and holds the three against each other to the microsecond.
func TestPrometheusTheLedgerAndTheTruthAreOneBill(t *testing.T) {
	for seed := range histories(t) {
		for _, stepped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d stepped %v", seed, stepped), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, uint64(seed), 2)
				w.stepped = stepped
				w.live(400 + w.rand.IntN(800))
				w.judge()
			})
		}
	}
}

func (w *world) judge() {
	t := w.t
	// What was committed last is scraped once more.
	w.now = w.now.Add(2 * time.Minute)
	for _, s := range w.scrapers {
		s.misses, s.away = 0, nil
	}
	w.scrapeUntil(w.now)
	end := w.now
	var boundaries []time.Time
	for range 2 + w.rand.IntN(4) {
		boundaries = append(boundaries, epoch.Add(time.Minute+time.Duration(w.rand.Int64N(int64(end.Sub(epoch)-time.Minute)))).Truncate(time.Millisecond))
	}
	slices.SortFunc(boundaries, time.Time.Compare)
	boundaries = append(slices.CompactFunc(boundaries, time.Time.Equal), end)
	u, err := reader(t, &web{storage: w.scrapers[0].db}, nil).Usage(t.Context(), ledger.Query{Boundaries: boundaries})
	if err != nil {
		t.Fatal(err)
	}
	windows := len(boundaries) - 1
	fromPrometheus := cellsOf(u, windows)
	truths := make([]map[string]int64, len(boundaries))
	for i, b := range boundaries {
		truths[i] = w.truth(w.lastShown(b).stretches)
	}
	for i := range windows {
		want := map[string]int64{}
		for k, v := range truths[i+1] {
			if d := v - truths[i][k]; d != 0 {
				want[k] = d
			}
		}
		disagree(t, "Prometheus against the truth", i, fromPrometheus[i], want)
	}
	if len(u.Nodes) != 1 {
		t.Fatalf("%d nodes", len(u.Nodes))
	}
	if w.stepped || t.Failed() {
		return
	}
	w.againstLedger(u, fromPrometheus)
}

// lastShown is the newest page that was scraped at or before a moment.
func (w *world) lastShown(at time.Time) shown {
	var last shown
	for _, s := range w.shown {
		if !s.at.After(at) && !s.at.Before(last.at) {
			last = s
		}
	}
	return last
}

// againstLedger asks the ledger for the moments of Prometheus' readings.
func (w *world) againstLedger(u ledger.Usage, fromPrometheus []map[string]int64) {
	t := w.t
	if err := w.book.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := ledger.OpenReader(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range u.Nodes[0].Readings[1:] {
		from, to := u.Nodes[0].Readings[i], u.Nodes[0].Readings[i+1]
		if !from.Before(to) {
			disagree(t, "nothing was read in between", i, fromPrometheus[i], nil)
			continue
		}
		own, err := r.Usage(t.Context(), ledger.Query{Boundaries: []time.Time{from, to}})
		if err != nil {
			t.Fatal(err)
		}
		disagree(t, "Prometheus against the ledger", i, fromPrometheus[i], cellsOf(own, 1)[0])
	}
	// What was measured is written once a minute, and its registers step: the two agree on what is written at the end.
	first, last := u.Nodes[0].Readings[0], u.Nodes[0].Readings[len(u.Nodes[0].Readings)-1]
	own, err := r.Usage(t.Context(), ledger.Query{Boundaries: []time.Time{first, last}})
	if err != nil {
		t.Fatal(err)
	}
	disagree(t, "what was measured, Prometheus against the ledger", 0, evidenceOf(u), evidenceOf(own))
}
