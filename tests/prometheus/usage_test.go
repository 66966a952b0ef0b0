// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// epoch is when the stories begin.
var epoch = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// meterOf is a node with one card of which team-a holds half, as its exporter's page says it: exact to the microsecond.
type meterOf struct {
	id, node string
	born     time.Time
	gaps     float64
}

// page is the registers at a moment.
func (m meterOf) page(at time.Time) map[string]float64 {
	age := float64(at.Sub(m.born).Microseconds()) / 1e6
	half := math.Floor(age*1e6/2) / 1e6
	id := `ledger_id="` + m.id + `"`
	card := fmt.Sprintf(`UUID="GPU-%s",model="H100",%s`, m.id, id)
	held := `namespace="team-a",resource="nvidia.com/gpu.shared",mode="shared",model="H100",profile="",` + id
	pages := map[string]float64{
		`gpumeter_ledger_info{` + id + `,node="` + m.node + `",policy="blend"}`:  1,
		`gpumeter_ledger_created_timestamp_seconds{` + id + `}`:                  float64(m.born.UnixMilli()) / 1e3,
		`gpumeter_ledger_commit_timestamp_seconds{` + id + `}`:                   float64(at.UnixMilli()) / 1e3,
		`gpumeter_ledger_sequence{` + id + `}`:                                   math.Floor(age),
		`gpumeter_capacity_gpu_seconds_total{` + card + `}`:                      age,
		`gpumeter_allocated_gpu_seconds_total{` + card + `}`:                     half,
		`gpumeter_corrected_gpu_seconds_total{` + card + `,reason="unobserved"}`: 0,
		`gpumeter_namespace_gpu_seconds_total{` + held + `}`:                     half,
		`gpumeter_namespace_memory_byte_seconds_total{` + held + `}`:             half * (1 << 30),
		`gpumeter_namespace_energy_joules_total{basis="share",` + held + `}`:     half * 100,
		`gpumeter_namespace_energy_joules_total{basis="device",` + held + `}`:    half,
		`gpumeter_namespace_used_gpu_seconds_total{basis="equal",` + held + `}`:  math.Floor(half*1e6/4) / 1e6,
		`gpumeter_observation_gap_seconds_total{reason="restart",` + id + `}`:    m.gaps,
		`gpumeter_device_info{UUID="GPU-` + m.id + `",gpu="3",model="H100"}`:     1,
		`gpumeter_node_label{label="pool",value="a",` + id + `}`:                 1,
	}
	for _, cause := range sharing.Causes() {
		v := 0.0
		if cause == sharing.CauseUnrequested {
			v = half
		}
		pages[fmt.Sprintf(`gpumeter_unallocated_gpu_seconds_total{%s,reason=%q}`, card, cause)] = v
	}
	return pages
}

// target is one scrape of a page: its own labels, as a job and service discovery give them.
type target struct {
	db     *tsdb.DB
	labels map[string]string
	honor  bool
	known  map[string]labels.Labels
	last   map[string]labels.Labels
}

func openStorage(t testing.TB) *tsdb.DB {
	t.Helper()
	options := tsdb.DefaultOptions()
	options.RetentionDuration = (400 * 24 * time.Hour).Milliseconds()
	options.OutOfOrderTimeWindow = (100 * 24 * time.Hour).Milliseconds()
	db, err := tsdb.Open(t.TempDir(), nil, nil, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Targets are scraped one after the other, each from the beginning: what is late must not meet a compaction.
	db.DisableCompactions()
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func newTarget(db *tsdb.DB, job string, extra map[string]string) *target {
	l := map[string]string{"job": job, "instance": job + ":9400"}
	maps.Copy(l, extra)
	return &target{db: db, labels: l, known: map[string]labels.Labels{}}
}

// scrape stores a page as a scrape at that time does: labels of the page that the target has too are renamed, and series that
// are gone end. A nil page is a scrape that failed.
func (g *target) scrape(t testing.TB, at time.Time, page map[string]float64) {
	t.Helper()
	app := g.db.Appender(context.Background())
	now := map[string]labels.Labels{}
	for key, v := range page {
		l, ok := g.known[key]
		if !ok {
			l = g.relabel(labelsOf(t, key))
			g.known[key] = l
		}
		now[key] = l
		if _, err := app.Append(0, l, at.UnixMilli(), v); err != nil {
			t.Fatal(err)
		}
	}
	for key, l := range g.last {
		if _, still := now[key]; !still {
			if _, err := app.Append(0, l, at.UnixMilli(), math.Float64frombits(value.StaleNaN)); err != nil {
				t.Fatal(err)
			}
		}
	}
	up := 0.0
	if page != nil {
		up = 1
	}
	if _, err := app.Append(0, g.relabel(labels.FromStrings("__name__", "up")), at.UnixMilli(), up); err != nil {
		t.Fatal(err)
	}
	g.last = now
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

func (g *target) relabel(l labels.Labels) labels.Labels {
	b := labels.NewBuilder(l)
	for name, v := range g.labels {
		if own := l.Get(name); own != "" {
			if g.honor {
				continue
			}
			b.Set("exported_"+name, own)
		}
		b.Set(name, v)
	}
	return b.Labels()
}

func reader(t testing.TB, w *web, change func(*promusage.Config)) *promusage.Source {
	t.Helper()
	cfg := promusage.Config{URL: serve(t, w).URL}
	if change != nil {
		change(&cfg)
	}
	s, err := promusage.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hours are boundaries so many hours after the epoch.
func hours(h ...float64) []time.Time {
	all := make([]time.Time, len(h))
	for i, v := range h {
		all[i] = epoch.Add(time.Duration(v * float64(time.Hour)))
	}
	return all
}

// held is what team-a had in each window, in GPU-microseconds.
func held(u ledger.Usage, windows int) []int64 {
	sums := make([]int64, windows)
	for _, h := range u.Held {
		sums[h.Window] += h.GPU
	}
	return sums
}

func reasons(u ledger.Usage) string {
	var all []string
	for _, n := range u.Nodes {
		for _, m := range n.Missing {
			all = append(all, n.Node+" "+m.Reason)
		}
	}
	return strings.Join(all, ", ")
}

// scrapes plays a node's pages into the storage.
func scrapes(t testing.TB, g *target, m meterOf, from, to time.Time, every time.Duration, missed func(time.Time) bool) {
	t.Helper()
	for at := from; !at.After(to); at = at.Add(every) {
		if missed != nil && missed(at) {
			continue
		}
		// The page is of the last tick.
		g.scrape(t, at, m.page(at.Add(-7*time.Second).Truncate(15*time.Second)))
	}
}

// TestConsumptionIsTheDifferenceOfTwoReadings is the plainest case, and all that is on its page.
func TestConsumptionIsTheDifferenceOfTwoReadings(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n1", born: epoch.Add(-30 * time.Hour)}
	scrapes(t, newTarget(db, "a", nil), m, epoch.Add(-time.Hour), epoch.Add(4*time.Hour), 15*time.Second, nil)
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 3)})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(held(u, 2)); got != "[1800000000 3600000000]" {
		t.Errorf("held %s", got)
	}
	if n := u.Nodes[0]; n.Node != "n1" || fmt.Sprint(n.Policies) != "[blend]" || !n.Created.Equal(m.born) || n.Labels["pool"] != "a" || len(n.Missing) != 0 || len(n.Gaps) != 0 {
		t.Errorf("the node is %+v", n)
	}
	if r := u.Nodes[0].Readings; !r[0].Equal(epoch.Add(-15*time.Second)) || !r[2].Equal(epoch.Add(3*time.Hour-15*time.Second)) {
		t.Errorf("readings %v", r)
	}
	h := u.Held[1]
	if h.Memory != 3600 || h.Energy != 3600*101*1e6 || h.Used[ledger.BasisEqual] != 900e6 || h.Mode != sharing.ModeShared || h.Model != "H100" {
		t.Errorf("held %+v", h)
	}
	sum := map[string]int64{}
	for _, x := range u.Rest {
		if x.Index != 3 {
			t.Errorf("card %s has index %d", x.Card, x.Index)
		}
		sum[string(x.Cause)] += x.GPU
	}
	if sum[""] != 3*3600e6 || sum["unrequested"] != 3*1800e6 || len(sum) != 2 {
		t.Errorf("the rest is %v", sum)
	}
}

// TestNothingIsCountedTwice scrapes one node by a pair of servers, by a second job that honours the page's labels, and
// from an exporter that is replaced half-way.
func TestNothingIsCountedTwice(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n1", born: epoch.Add(-30 * time.Hour)}
	sd := func(pod, replica string) map[string]string {
		return map[string]string{"namespace": "gpu-system", "pod": pod, "node": "n1", "replica": replica}
	}
	half, end := epoch.Add(90*time.Minute), epoch.Add(4*time.Hour)
	for i, replica := range []string{"0", "1"} {
		offset := time.Duration(i) * 4 * time.Second
		scrapes(t, newTarget(db, "old"+replica, sd("exporter-x", replica)), m, epoch.Add(-time.Hour+offset), half, 30*time.Second, nil)
		scrapes(t, newTarget(db, "new"+replica, sd("exporter-y", replica)), m, half.Add(time.Minute), end, 30*time.Second, nil)
	}
	honest := newTarget(db, "second", sd("exporter-x", "0"))
	honest.honor = true
	scrapes(t, honest, m, epoch.Add(-time.Hour), end, time.Minute, nil)
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2, 3)})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(held(u, 3)); got != "[1800000000 1800000000 1800000000]" || len(u.Held) != 3 || len(u.Nodes) != 1 {
		t.Errorf("held %s in %d rows of %d nodes", got, len(u.Held), len(u.Nodes))
	}
	if u.Held[0].Namespace != "team-a" || u.Nodes[0].Node != "n1" || reasons(u) != "" {
		t.Errorf("held by %q on %q, missing %q", u.Held[0].Namespace, u.Nodes[0].Node, reasons(u))
	}
	if !strings.Contains(strings.Join(u.Notes, "\n"), "more than once") {
		t.Errorf("nobody is told of the duplicates: %q", u.Notes)
	}
}

// TestWhereThereIsNoReading tells each way of having none apart. In all of them adjacent periods add up.
func TestWhereThereIsNoReading(t *testing.T) {
	for name, story := range map[string]struct {
		born     time.Duration
		from, to time.Duration
		missed   func(time.Duration) bool
		keptFrom time.Duration
		want     string
		reasons  string
	}{
		"all there":                          {born: -30 * time.Hour, from: -time.Hour, to: 4 * time.Hour, want: "[1800 1800]"},
		"born within":                        {born: 30 * time.Minute, from: 31 * time.Minute, to: 4 * time.Hour, want: "[892.5 1800]"},
		"first seen late":                    {born: -30 * time.Hour, from: 30 * time.Minute, to: 4 * time.Hour, want: "[900 1800]", reasons: "n retention"},
		"first seen late beside others":      {born: -30 * time.Hour, from: 30 * time.Minute, to: 4 * time.Hour, keptFrom: -time.Hour, want: "[900 1800]", reasons: "n no_reading"},
		"gone within":                        {born: -30 * time.Hour, from: -time.Hour, to: 90 * time.Minute, want: "[1800 900]", reasons: "n node_vanished"},
		"server away over the middle":        {born: -30 * time.Hour, from: -time.Hour, to: 4 * time.Hour, missed: between(45, 90), want: "[1342.5 2257.5]"},
		"server away over the end":           {born: -30 * time.Hour, from: -time.Hour, to: 4 * time.Hour, missed: between(90, 150), want: "[1800 892.5]", reasons: "n no_reading"},
		"server away over the start":         {born: -30 * time.Hour, from: -time.Hour, to: 4 * time.Hour, missed: between(-30, 30), want: "[2707.5 1800]", reasons: "n no_reading"},
		"server away over the start for far": {born: -60 * time.Hour, from: -50 * time.Hour, to: 4 * time.Hour, missed: between(-48*60, 30), want: "[88207.5 1800]", reasons: "n no_reading"},
	} {
		t.Run(name, func(t *testing.T) {
			db := openStorage(t)
			m := meterOf{id: "l1", node: "n", born: epoch.Add(story.born)}
			var missed func(time.Time) bool
			if story.missed != nil {
				missed = func(at time.Time) bool { return story.missed(at.Sub(epoch)) }
			}
			scrapes(t, newTarget(db, "a", nil), m, epoch.Add(story.from), epoch.Add(story.to), 15*time.Second, missed)
			if story.keptFrom != 0 {
				newTarget(db, "other", nil).scrape(t, epoch.Add(-time.Minute), map[string]float64{`x{a="b"}`: 1})
			}
			u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2)})
			if err != nil {
				t.Fatal(err)
			}
			h := held(u, 2)
			if got := fmt.Sprint([]float64{float64(h[0]) / 1e6, float64(h[1]) / 1e6}); got != story.want || reasons(u) != story.reasons {
				t.Errorf("held %s, missing %q; want %s, %q", got, reasons(u), story.want, story.reasons)
			}
		})
	}
}

func between(from, to int) func(time.Duration) bool {
	return func(at time.Duration) bool {
		return at > time.Duration(from)*time.Minute-15*time.Second && at < time.Duration(to)*time.Minute
	}
}

// TestALedgerThatWasPutBackIsNoSmallerBill restores a node's disk from an hour ago.
func TestALedgerThatWasPutBackIsNoSmallerBill(t *testing.T) {
	for name, hour := range map[string]time.Duration{"grown beyond": 90 * time.Minute, "still below": 175 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			db := openStorage(t)
			m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
			g := newTarget(db, "a", nil)
			scrapes(t, g, m, epoch.Add(-time.Hour), epoch.Add(hour), 15*time.Second, nil)
			m.born = m.born.Add(time.Hour)
			scrapes(t, g, m, epoch.Add(hour+15*time.Second), epoch.Add(4*time.Hour), 15*time.Second, nil)
			u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 2, 3)})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(reasons(u), "n reset") {
				t.Errorf("missing %q", reasons(u))
			}
		})
	}
}

// TestOneRegisterThatFallsIsTold has something else write a series of a ledger that is whole.
func TestOneRegisterThatFallsIsTold(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	g := newTarget(db, "a", nil)
	for at := epoch.Add(-time.Hour); !at.After(epoch.Add(2 * time.Hour)); at = at.Add(15 * time.Second) {
		page := m.page(at)
		for key := range page {
			if at.After(epoch.Add(time.Hour)) && strings.HasPrefix(key, "gpumeter_namespace_gpu") {
				page[key] /= 2
			}
		}
		g.scrape(t, at, page)
	}
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if got := held(u, 2); reasons(u) != "n reset" || got[0] != 1800e6 || got[1] != 0 {
		t.Errorf("missing %q, held %v", reasons(u), got)
	}
}

// TestAServersLimitsMakeSmallerQuestions lowers the limit until a report can be had only in parts, and then not at all.
func TestAServersLimitsMakeSmallerQuestions(t *testing.T) {
	db := openStorage(t)
	for i := range 20 {
		m := meterOf{id: fmt.Sprintf("l%02d", i), node: fmt.Sprintf("n%02d", i), born: epoch.Add(-30 * time.Hour)}
		scrapes(t, newTarget(db, m.id, nil), m, epoch.Add(-11*time.Minute), epoch.Add(3*time.Hour), time.Minute, nil)
	}
	every := hours(0, 0.5, 1, 1.5, 2, 2.5, 3)
	for limit, fails := range map[int]bool{1_000_000: false, 300: false, 8: true} {
		w := &web{storage: db, engine: newEngine(limit)}
		u, err := reader(t, w, nil).Usage(t.Context(), ledger.Query{Boundaries: every})
		if fails {
			if err == nil || !strings.Contains(err.Error(), "max-samples") {
				t.Errorf("limit %d: %v", limit, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("limit %d: %v", limit, err)
		}
		if got := fmt.Sprint(held(u, 6)); got != "[18000000000 18000000000 18000000000 18000000000 18000000000 18000000000]" {
			t.Errorf("limit %d: held %s", limit, got)
		}
	}
}

// TestTroubleOfTheServer is told in words, and passing trouble is not.
func TestTroubleOfTheServer(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	scrapes(t, newTarget(db, "a", nil), m, epoch.Add(-11*time.Minute), epoch.Add(time.Hour), time.Minute, nil)
	q := ledger.Query{Boundaries: hours(0, 1)}
	ask := func(w *web) (ledger.Usage, error) {
		w.storage = db
		return reader(t, w, nil).Usage(t.Context(), q)
	}
	var asked atomic.Int32
	var known sync.Map
	if _, err := ask(&web{refuse: func(r *http.Request) (int, string) {
		_, again := known.LoadOrStore(r.FormValue("query")+r.FormValue("time")+r.FormValue("match[]"), true)
		if !again && asked.Add(1)%5 == 0 {
			return http.StatusBadGateway, "bad gateway"
		}
		return 0, ""
	}}); err != nil {
		t.Errorf("a gateway that stumbles: %v", err)
	}
	for status, want := range map[int]string{http.StatusUnauthorized: "credentials", http.StatusNotFound: "no Prometheus API"} {
		_, err := ask(&web{refuse: func(*http.Request) (int, string) { return status, "no" }})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", status, err)
		}
	}
	u, err := ask(&web{warn: []string{"one store is away"}})
	if err != nil || !strings.Contains(reasons(u), "partial") {
		t.Errorf("a partial answer: missing %q, %v", reasons(u), err)
	}
	if _, err := reader(t, &web{storage: openStorage(t)}, nil).Usage(t.Context(), q); err == nil || !strings.Contains(err.Error(), "no ledger") {
		t.Errorf("an empty server: %v", err)
	}
}

// TestVerifyFindsTheReadingThatDoesNotAddUp plants one.
func TestVerifyFindsTheReadingThatDoesNotAddUp(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	g := newTarget(db, "a", nil)
	scrapes(t, g, m, epoch.Add(-time.Hour), epoch.Add(4*time.Hour), 15*time.Second, nil)
	s := reader(t, &web{storage: db}, nil)
	v, err := s.Verify(t.Context(), epoch, epoch.Add(3*time.Hour), 10*time.Minute, nil)
	if err != nil || !v.OK() || v.Checked != 19 || v.GPUs != 1 || v.Worst > v.Allowed {
		t.Fatalf("%+v, %v", v, err)
	}
	page := m.page(epoch.Add(4 * time.Hour))
	for key := range page {
		if strings.HasPrefix(key, "gpumeter_allocated_gpu") {
			page[key] += 0.000020
		}
	}
	g.scrape(t, epoch.Add(4*time.Hour+10*time.Second), page)
	v, err = s.Verify(t.Context(), epoch.Add(3*time.Hour), epoch.Add(4*time.Hour+20*time.Second), time.Hour, nil)
	if err != nil || v.OK() || v.Failed != 1 || v.Violations[0].Difference > -19 || v.Violations[0].Difference < -21 {
		t.Fatalf("%+v, %v", v, err)
	}
}

// podsOf is a page of pods' registers beside the ledger's own.
func podsOf(m meterOf, at time.Time, pods map[string]float64) map[string]float64 {
	page := m.page(at)
	for pod, v := range pods {
		uid := "uid-" + pod
		if strings.HasPrefix(pod, "nameless") {
			uid = ""
		}
		page[fmt.Sprintf(`gpumeter_pod_gpu_seconds_total{namespace="team-a",pod=%q,pod_uid=%q,container="c",UUID="GPU-l1",resource="nvidia.com/gpu",mode="exclusive",model="H100",ledger_id="l1"}`, pod, uid)] = v
		if uid != "" {
			page[fmt.Sprintf(`gpumeter_pod_info{namespace="team-a",pod=%q,pod_uid=%q,workload="trainer",workload_kind="Job",ledger_id="l1"}`, pod, uid)] = 1
			page[fmt.Sprintf(`kube_pod_labels{uid=%q,label_app="x"}`, uid)] = 1
		}
	}
	return page
}

// TestPodsThatEndWithinAWindowAreChargedInIt has series that end, begin, and begin again.
func TestPodsThatEndWithinAWindowAreChargedInIt(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	g := newTarget(db, "a", nil)
	g.honor = true
	for at := epoch.Add(-time.Hour); !at.After(epoch.Add(3 * time.Hour)); at = at.Add(30 * time.Second) {
		minute := at.Sub(epoch).Minutes()
		pods := map[string]float64{"long": 7200 + at.Sub(epoch).Seconds()}
		if minute > 10 && minute < 40 { // It ran for 20 seconds, and is shown for a while.
			pods["short"] = 20
		}
		if minute < -20 {
			pods["nameless"] = 500
		}
		if minute > 70 && minute < 100 { // Another of the same name goes on counting.
			pods["nameless"] = 500 + min(300, (minute-70)*60)
		}
		g.scrape(t, at, podsOf(m, at, pods))
	}
	s := reader(t, &web{storage: db}, func(c *promusage.Config) { c.KubeLabels = true })
	u, err := s.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1, 2), Detail: ledger.DetailPods})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range u.Held {
		got = append(got, fmt.Sprintf("%d %s %s %v %s/%s %v", h.Window, h.Pod, h.PodUID, float64(h.GPU)/1e6, h.WorkloadKind, h.Workload, h.Labels))
	}
	want := []string{
		"0 long uid-long 3600 Job/trainer map[app:x]", "0 short uid-short 20 Job/trainer map[app:x]",
		"1 long uid-long 3600 Job/trainer map[app:x]", "1 nameless  300 / map[]",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	u, err = s.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1), Detail: ledger.DetailPods, Pods: []string{"short"}, Namespaces: []string{"team-a"}, Nodes: []string{"n"}})
	if err != nil || len(u.Held) != 1 || u.Held[0].Pod != "short" || len(u.Rest) == 0 {
		t.Errorf("one pod: %+v, %v", u.Held, err)
	}
	if _, err = s.Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1), Nodes: []string{"another"}}); err == nil {
		t.Error("a node that is not there is no error")
	}
}

// TestTheHourlyRuleCarriesWhereSamplesAreGone keeps one sample an hour of an old month, and scrapes of the rest.
func TestTheHourlyRuleCarriesWhereSamplesAreGone(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n", born: epoch.Add(-30 * time.Hour)}
	hourlyOf(t, db, m, -3, 3, "")
	scrapes(t, newTarget(db, "a", nil), m, epoch.Add(90*time.Minute), epoch.Add(4*time.Hour), 15*time.Second, nil)
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(-1, 0, 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(held(u, 3)); got != "[1800000000 1800000000 1807500000]" || reasons(u) != "" {
		t.Errorf("held %s, missing %q", got, reasons(u))
	}
	if n := u.Nodes[0]; n.Node != "n" || n.Labels["pool"] != "a" || u.Rest[0].Index != 3 {
		t.Errorf("the node is %+v, a card %+v", n, u.Rest[0])
	}
}
