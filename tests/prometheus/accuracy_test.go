// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/promusage"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// month is one node's month: how long pods are, and what stands between them and their bill.
type month struct {
	days     int
	scrape   time.Duration
	pod      time.Duration // on average
	idle     time.Duration // of a card between two pods, on average
	restarts float64       // of the exporter, a day
	missed   float64       // part of the scrapes
}

func (m month) name() string {
	return fmt.Sprintf("%s pods, scraped every %s, %g restarts a day, %g %% of scrapes missed", m.pod, m.scrape, m.restarts, m.missed*100)
}

// job is one pod on one card, for the time [from, to) in milliseconds since the epoch.
type job struct {
	tenant, card int
	name         string
	from, to     int64
}

const (
	accuracyCards   = 4
	accuracyTenants = 5
	// tickMS is the meter's interval, alarmMS how soon it ticks when the kubelet's devices change.
	tickMS, alarmMS = 15_000, 1_000
	tombstoneMS     = 15 * 60_000
)

// jobs are the month's pods, card by card in order, and what each tenant really had.
func (m month) jobs(r *rand.Rand) (jobs []job, truth []float64) {
	truth = make([]float64, accuracyTenants)
	end := int64(m.days) * 86_400_000
	for card := range accuracyCards {
		for at := int64(0); ; {
			at += 1 + int64(r.ExpFloat64()*float64(m.idle.Milliseconds()))
			// Lognormal, with the mean asked for.
			const spread = 0.8
			life := int64(math.Exp(r.NormFloat64()*spread-spread*spread/2) * float64(m.pod.Milliseconds()))
			to := at + max(1000, life)
			if to >= end-tombstoneMS {
				break
			}
			tenant := min(r.IntN(accuracyTenants), r.IntN(accuracyTenants))
			jobs = append(jobs, job{tenant: tenant, card: card, name: fmt.Sprintf("p%d", len(jobs)), from: at, to: to})
			truth[tenant] += float64(to-at) / 1000
			at = to
		}
	}
	slices.SortFunc(jobs, func(a, b job) int { return int(a.from - b.from) })
	return jobs, truth
}

// played is a month as it is played: the meter's account, its process' own counters, and who scrapes them.
type played struct {
	month
	t       testing.TB
	rand    *rand.Rand
	db      *tsdb.DB
	jobs    []job
	next    int   // the job that begins next
	running []job // now
	ended   []job // within the time of tombstones

	account *ledger.Account
	down    int64 // until when the exporter is away
	since   map[string]int64
	refs    map[string]storage.SeriesRef
	known   map[string]labels.Labels
	last    map[string]bool
	seen    map[string]int64 // what the meter knows of each pod, in milliseconds
	seenAt  int64
	holding []job // as the meter saw it last
}

func play30(t testing.TB, m month, seed uint64) (*played, []float64) {
	r := rand.New(rand.NewPCG(seed, 1))
	jobs, truth := m.jobs(r)
	options := tsdb.DefaultOptions()
	options.RetentionDuration = 400 * 24 * time.Hour.Milliseconds()
	db, err := tsdb.Open(t.TempDir(), nil, nil, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	p := &played{month: m, t: t, rand: r, db: db, jobs: jobs, since: map[string]int64{}, refs: map[string]storage.SeriesRef{}, known: map[string]labels.Labels{}, last: map[string]bool{}, seen: map[string]int64{}, account: ledger.NewAccount()}
	p.begin(0)
	p.play()
	return p, truth
}

// play goes from event to event: ticks, changes, scrapes, restarts.
func (p *played) play() {
	end := int64(p.days) * 86_400_000
	scrape, tick, alarm := int64(7_000), int64(0), int64(math.MaxInt64)
	kill := p.untilKill(0)
	for now := int64(0); now <= end; {
		if p.advance(now) && now+alarmMS < tick {
			alarm = min(alarm, now+alarmMS)
		}
		switch {
		case now >= kill:
			p.kill(now)
			kill = p.untilKill(p.down)
			tick, alarm = p.down, math.MaxInt64
		case now >= tick || now >= alarm:
			if now >= p.down {
				if p.down > 0 {
					p.begin(now)
					p.down = 0
				}
				p.observe(now)
			}
			if now >= tick {
				tick = now + tickMS
			}
			alarm = math.MaxInt64
		case now >= scrape:
			p.scraped(now)
			scrape += p.scrape.Milliseconds()
		}
		now = max(now, min(tick, alarm, scrape, kill, p.nextChange()))
	}
}

func (p *played) untilKill(now int64) int64 {
	if p.restarts == 0 {
		return math.MaxInt64
	}
	return now + int64(p.rand.ExpFloat64()*86_400_000/p.restarts)
}

// nextChange is when a pod begins or ends.
func (p *played) nextChange() int64 {
	at := int64(math.MaxInt64)
	if p.next < len(p.jobs) {
		at = p.jobs[p.next].from
	}
	for _, j := range p.running {
		at = min(at, j.to)
	}
	return at
}

// advance begins and ends pods up to now, and says whether any did.
func (p *played) advance(now int64) bool {
	before := len(p.running)
	p.running = slices.DeleteFunc(p.running, func(j job) bool {
		if j.to <= now {
			p.ended = append(p.ended, j)
		}
		return j.to <= now
	})
	changed := len(p.running) != before
	for p.next < len(p.jobs) && p.jobs[p.next].from <= now {
		if p.jobs[p.next].to > now {
			p.running = append(p.running, p.jobs[p.next])
			changed = true
		}
		p.next++
	}
	p.ended = slices.DeleteFunc(p.ended, func(j job) bool { return j.to+tombstoneMS < now })
	return changed
}

func (p *played) instant(now int64) ledger.Instant {
	return ledger.Instant{BootID: "b", Boot: now + 3_600_000, Wall: epoch.UnixMilli() + now}
}

func (p *played) begin(now int64) {
	p.account.Begin(ledger.Begin{LedgerID: "l1", Node: "n1", BootID: "b", Version: "t"}, p.instant(now))
}

// kill ends the exporter; another begins from what is on disk, a while after.
func (p *played) kill(now int64) {
	state, err := json.Marshal(p.account)
	if err != nil {
		p.t.Fatal(err)
	}
	p.account = ledger.NewAccount()
	if err := json.Unmarshal(state, p.account); err != nil {
		p.t.Fatal(err)
	}
	p.since = map[string]int64{}
	p.down = now + 30_000 + p.rand.Int64N(60_000)
}

func (p *played) observe(now int64) {
	o := ledger.Observation{At: p.instant(now)}
	held := map[int]job{}
	for _, j := range p.running {
		held[j.card] = j
		if _, ok := p.since[j.name]; !ok {
			p.since[j.name] = now
		}
	}
	// What was seen holds until now, over a restart only where the same pod is seen again.
	for _, j := range p.holding {
		if h, still := held[j.card]; now-p.seenAt <= tickMS || still && h.name == j.name {
			p.seen[j.name] += now - p.seenAt
		}
	}
	p.holding, p.seenAt = slices.Clone(p.running), now
	for card := range accuracyCards {
		uuid := gpu.UUID(fmt.Sprintf("GPU-%d", card))
		o.Cards = append(o.Cards, ledger.Card{UUID: uuid, Index: card, Model: "H100", Memory: 80 << 10})
		l := ledger.Line{Card: uuid, GPUInstance: gpu.NoInstance, Cause: sharing.CauseFree, Part: sharing.One(), Memory: sharing.One(), Weight: sharing.One()}
		if j, ok := held[card]; ok {
			l.Cause, l.Device, l.Resource, l.Mode, l.Seats, l.Of = "", uuid, "nvidia.com/gpu", sharing.ModeExclusive, 1, 1
			l.Holder = sharing.Holder{Namespace: tenantName(j.tenant), Pod: j.name, PodUID: j.name, Container: "c"}
		}
		o.Lines = append(o.Lines, l)
	}
	p.account.Observe(o)
}

func tenantName(n int) string { return fmt.Sprintf("team-%d", n) }

// scraped stores what each of the ways to measure would have on its page.
func (p *played) scraped(now int64) {
	app := p.db.Appender(context.Background())
	page := map[string]bool{}
	put := func(v float64, pairs ...string) {
		key := fmt.Sprint(pairs)
		l, ok := p.known[key]
		if !ok {
			l = labels.FromStrings(pairs...)
			p.known[key] = l
		}
		ref, err := app.Append(p.refs[key], l, epoch.UnixMilli()+now, v)
		if err != nil {
			p.t.Fatal(err)
		}
		p.refs[key] = ref
		page[key] = true
	}
	if p.rand.Float64() >= p.missed {
		for _, j := range p.running {
			put(1, "__name__", "kube_pod_running", "namespace", tenantName(j.tenant), "pod", j.name)
		}
		if now >= p.down {
			p.exported(now, put)
		}
	}
	for key := range p.last {
		if !page[key] {
			if _, err := app.Append(p.refs[key], p.known[key], epoch.UnixMilli()+now, math.Float64frombits(value.StaleNaN)); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	p.last = page
	if err := app.Commit(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *played) exported(now int64, put func(float64, ...string)) {
	for _, j := range p.holding {
		tenant := tenantName(j.tenant)
		put(1, "__name__", "share", "namespace", tenant, "pod", j.name)
		if since, ok := p.since[j.name]; ok {
			put(float64(p.seenAt-since)/1000, "__name__", "resetting_total", "namespace", tenant, "pod", j.name)
		}
	}
	for _, list := range [][]job{p.holding, p.ended} {
		for _, j := range list {
			put(float64(p.seen[j.name])/1000, "__name__", "persistent_total", "namespace", tenantName(j.tenant), "pod", j.name)
		}
	}
	totals := p.account.Totals()
	if totals.Sequence == 0 {
		return
	}
	put(1, "__name__", "gpumeter_ledger_info", "ledger_id", "l1", "node", "n1")
	put(float64(totals.Created.UnixMilli())/1e3, "__name__", "gpumeter_ledger_created_timestamp_seconds", "ledger_id", "l1")
	put(float64(totals.At.Wall)/1e3, "__name__", "gpumeter_ledger_commit_timestamp_seconds", "ledger_id", "l1")
	put(float64(totals.Sequence), "__name__", "gpumeter_ledger_sequence", "ledger_id", "l1")
	for _, s := range totals.Series {
		put(float64(ledger.Micro(s.GPU))/1e6, "__name__", "gpumeter_namespace_gpu_seconds_total", "ledger_id", "l1", "namespace", s.Namespace, "resource", s.Resource, "mode", string(s.Mode), "model", s.Model)
	}
}

// ways are the ways to measure, in the order of the table.
func ways() []string {
	return []string{"gauge x step", "OpenCost, 5 min", "increase(), resetting", "increase(), persistent", "gpumeter"}
}

// measured is what each tenant had by each way, in seconds.
func (p *played) measured() map[string][]float64 {
	end := epoch.Add(time.Duration(p.days) * 24 * time.Hour)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 2_000_000_000, Timeout: time.Hour, Parser: parser.NewParser(parser.Options{})})
	within := fmt.Sprintf("[%dd]", p.days)
	sum := func(expr string) []float64 {
		q, err := engine.NewInstantQuery(p.t.Context(), p.db, nil, "sum by (namespace) ("+expr+")", end)
		if err != nil {
			p.t.Fatal(err)
		}
		defer q.Close()
		v, err := q.Exec(p.t.Context()).Vector()
		if err != nil {
			p.t.Fatal(err)
		}
		out := make([]float64, accuracyTenants)
		for _, s := range v {
			for i := range out {
				if s.Metric.Get("namespace") == tenantName(i) {
					out[i] = s.F
				}
			}
		}
		return out
	}
	u, err := reader(p.t, &web{storage: p.db}, func(c *promusage.Config) { c.Now = func() time.Time { return end.Add(time.Hour) } }).
		Usage(p.t.Context(), ledger.Query{Boundaries: []time.Time{epoch, end}})
	if err != nil {
		p.t.Fatal(err)
	}
	ours := make([]float64, accuracyTenants)
	for _, h := range u.Held {
		for i := range ours {
			if h.Namespace == tenantName(i) {
				ours[i] += float64(h.GPU) / 1e6
			}
		}
	}
	gauge := sum("sum_over_time(share" + within + ")")
	for i := range gauge {
		gauge[i] *= p.scrape.Seconds()
	}
	names := ways()
	return map[string][]float64{
		names[0]: gauge, names[1]: p.openCost(engine, end), names[2]: sum("increase(resetting_total" + within + ")"),
		names[3]: sum("increase(persistent_total" + within + ")"), names[4]: ours,
	}
}

// openCost is request x minutes between the first and the last five-minute step in which a pod ran; one step's worth for
// a pod that was seen in one.
func (p *played) openCost(engine *promql.Engine, end time.Time) []float64 {
	const step = 5 * time.Minute
	type seen struct{ first, last int64 }
	pods := map[[2]string]seen{}
	for from := epoch; from.Before(end); from = from.Add(24 * time.Hour) {
		q, err := engine.NewRangeQuery(p.t.Context(), p.db, nil, "max by (namespace, pod) (kube_pod_running)", from, from.Add(24*time.Hour-step), step)
		if err != nil {
			p.t.Fatal(err)
		}
		m, err := q.Exec(p.t.Context()).Matrix()
		if err != nil {
			p.t.Fatal(err)
		}
		for _, s := range m {
			pod := [2]string{s.Metric.Get("namespace"), s.Metric.Get("pod")}
			first, last := s.Floats[0].T, s.Floats[len(s.Floats)-1].T
			if before, again := pods[pod]; again {
				first = before.first
			}
			pods[pod] = seen{first, last}
		}
		q.Close()
	}
	out := make([]float64, accuracyTenants)
	for pod, s := range pods {
		for i := range out {
			if pod[0] == tenantName(i) {
				out[i] += max(step.Seconds(), float64(s.last-s.first)/1000)
			}
		}
	}
	return out
}

// deviation is by how many percent a way is off, over all and for the tenant it treats worst.
type deviation struct{ all, worst float64 }

func deviate(measured, truth []float64) deviation {
	var d deviation
	var m, t float64
	for i := range truth {
		m, t = m+measured[i], t+truth[i]
		if e := (measured[i] - truth[i]) / truth[i] * 100; math.Abs(e) > math.Abs(d.worst) {
			d.worst = e
		}
	}
	d.all = (m - t) / t * 100
	return d
}

// TestEveryWayToMeasureIsHeldAgainstTheTruth plays a day, and requires of ours what no other way comes near.
func TestEveryWayToMeasureIsHeldAgainstTheTruth(t *testing.T) {
	p, truth := play30(t, month{days: 1, scrape: 30 * time.Second, pod: time.Minute, idle: 4 * time.Minute, restarts: 4, missed: 0.01}, 1)
	for way, m := range p.measured() {
		d := deviate(m, truth)
		t.Logf("%-24s %+.3f %% over all, %+.3f %% for one tenant", way, d.all, d.worst)
		if way == "gpumeter" && (math.Abs(d.all) > 0.5 || math.Abs(d.worst) > 1) {
			t.Errorf("%s is off by %+v", way, d)
		}
	}
}

// TestAccuracy makes docs/accuracy.md and its picture; `make accuracy` runs it.
func TestAccuracy(t *testing.T) {
	docs := os.Getenv("GPUMETER_ACCURACY")
	if docs == "" {
		t.Skip("GPUMETER_ACCURACY names the folder to write accuracy.md and accuracy.svg to")
	}
	months := []month{
		{30, 15 * time.Second, 20 * time.Second, 5 * time.Minute, 0, 0},
		{30, 15 * time.Second, 20 * time.Second, 5 * time.Minute, 4, 0},
		{30, 30 * time.Second, time.Minute, 5 * time.Minute, 4, 0.01},
		{30, time.Minute, time.Minute, 5 * time.Minute, 4, 0.01},
		{30, time.Minute, 5 * time.Minute, 5 * time.Minute, 4, 0.01},
		{30, time.Minute, time.Hour, 20 * time.Minute, 24, 0.05},
	}
	found := make([]map[string]deviation, len(months))
	for i, m := range months {
		p, truth := play30(t, m, 1)
		found[i] = map[string]deviation{}
		for way, measured := range p.measured() {
			found[i][way] = deviate(measured, truth)
		}
		t.Logf("%s: %+v", m.name(), found[i])
	}
	if err := os.WriteFile(docs+"/accuracy.md", []byte(accuracyText(months, found)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(docs+"/accuracy.svg", []byte(accuracyPicture(months, found)), 0o644); err != nil {
		t.Fatal(err)
	}
}
