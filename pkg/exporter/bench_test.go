// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// busyNode is a node under dcgm-exporter's default counters on which every seat is
// held: cards physical GPUs, each cut into slices GPU instances (0 for none), each
// with the given replicas.
func busyNode(tb testing.TB, cards, slices, replicas int) (*meter.Snapshot, *Counters) {
	tb.Helper()
	file, err := etc.ReadFile("default-counters.csv")
	if err != nil {
		tb.Fatal(err)
	}
	counters, _ := ParseCounters("default-counters.csv", file)
	r := gpu.Reading{Fields: counters.Fields()}
	var div sharing.Division
	take := func(d gpu.Device, weight sharing.Fraction) {
		for seat := range replicas {
			h := sharing.Holder{
				Namespace: fmt.Sprintf("team-%d", len(div.Shares)%5),
				Pod:       fmt.Sprintf("train-%d", len(div.Shares)), Container: "main",
			}
			div.Shares = append(div.Shares, seats(d, h, weight, replicas, seat))
		}
	}
	sample := func(e gpu.Entity) {
		values := make([]gpu.Value, len(r.Fields))
		for i, id := range r.Fields {
			switch f, _ := gpu.FieldByID(id); {
			case f.Type == gpu.FieldText:
				values[i] = gpu.Text("550.90.07")
			case f.Type == gpu.FieldFloat:
				values[i] = gpu.Float(float64(1000+len(r.Samples)) / 1234)
			default:
				values[i] = gpu.Int(int64(id) * 1980)
			}
		}
		r.Samples = append(r.Samples, sampled(e, values...))
	}
	for i := range cards {
		d := card(i)
		d.UUID = gpu.UUID(fmt.Sprintf("GPU-a000%04d-1111-2222-3333-44444444%04d", i, i))
		r.Devices = append(r.Devices, d)
		sample(gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID})
		for id := range slices {
			m := slice(d, id+1, "1g.10gb", 1)
			r.Devices = append(r.Devices, m)
			sample(gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.UUID, ID: id + 1})
			take(m, sharing.NewFraction(1, int64(slices)))
		}
		if slices == 0 {
			take(d, sharing.One())
		}
	}
	return ticked(r, div), counters
}

type benchNode struct {
	name                    string
	cards, slices, replicas int
	copies                  bool
}

func benchNodes() []benchNode {
	nodes := []benchNode{
		{"gpus=8,replicas=4,copies", 8, 0, 4, true},
		{"gpus=8,replicas=4", 8, 0, 4, false},
		{"gpus=8,slices=7,replicas=4,copies", 8, 7, 4, true},
		{"gpus=8,slices=7,replicas=4", 8, 7, 4, false},
	}
	for _, n := range []int{1, 2, 4, 16} {
		nodes = append(nodes, benchNode{"gpus=" + strconv.Itoa(n) + ",replicas=4,copies", n, 0, 4, true})
	}
	return nodes
}

// scrapes runs a benchmark for each node over a handler of its page, as Prometheus
// asks for it.
func scrapes(b *testing.B, coding string, handler func(*Exporter) http.Handler) {
	for _, n := range benchNodes() {
		b.Run(n.name, func(b *testing.B) {
			s, counters := busyNode(b, n.cards, n.slices, n.replicas)
			e := exporterOf(b, s, counters, Config{Hostname: "node-7", VirtualGPUs: n.copies})
			h := handler(e)
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1")
			r.Header.Set("Accept-Encoding", coding)
			w := &silent{http.Header{}}
			h.ServeHTTP(w, r)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkScrape is a scrape of a page that has been made.
func BenchmarkScrape(b *testing.B) { scrapes(b, "gzip", (*Exporter).Handler) }

// BenchmarkServeBytes is what BenchmarkScrape is measured against: the same mux
// writing bytes that never change.
func BenchmarkServeBytes(b *testing.B) {
	scrapes(b, "gzip", func(e *Exporter) http.Handler {
		page := e.current().body(FormatOpenMetrics, codingGzip).bytes
		mux := http.NewServeMux()
		mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })
		return mux
	})
}

// pages runs a benchmark that makes a page of each node from a fresh snapshot.
func pages(b *testing.B, f Format, c coding) {
	for _, n := range benchNodes() {
		b.Run(n.name, func(b *testing.B) {
			s, counters := busyNode(b, n.cards, n.slices, n.replicas)
			e := exporterOf(b, s, counters, Config{Hostname: "node-7", VirtualGPUs: n.copies})
			size, plain := len(e.current().body(f, c).bytes), len(e.current().body(f, codingIdentity).bytes)
			b.ReportAllocs()
			for b.Loop() {
				p := &page{exporter: e, snapshot: s, settings: e.settings.Load()}
				p.body(f, c)
			}
			b.SetBytes(int64(plain))
			b.ReportMetric(float64(len(e.current().families().samples)), "series")
			b.ReportMetric(float64(size), "page-B")
		})
	}
}

// BenchmarkPage is what the first scrape after a tick costs, without compression.
func BenchmarkPage(b *testing.B) { pages(b, FormatText, codingIdentity) }

func BenchmarkPageOpenMetrics(b *testing.B) { pages(b, FormatOpenMetrics, codingIdentity) }

func BenchmarkPageProtobuf(b *testing.B) { pages(b, FormatProtobuf, codingIdentity) }

// BenchmarkPageGzip is what the first scrape after a tick costs Prometheus' usual client.
func BenchmarkPageGzip(b *testing.B) { pages(b, FormatText, codingGzip) }

func BenchmarkPageZstd(b *testing.B) { pages(b, FormatText, codingZstd) }

// alertedXIDs is a table with as many codes to alert on as the shipped one has.
func alertedXIDs(tb testing.TB) *health.XIDTable {
	tb.Helper()
	var xids []health.XID
	for code := 100; code < 128; code++ {
		xids = append(xids, health.XID{Code: code, Name: "an error of the driver", Class: health.ClassReset, Alert: true})
	}
	table, err := health.NewXIDTable(xids)
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

// BenchmarkPageOfEvents is BenchmarkPage on 8 GPUs, 32 holders, with the table of XIDs, and
// with all that is computed on top.
func BenchmarkPageOfEvents(b *testing.B) {
	for _, computed := range []bool{false, true} {
		b.Run(fmt.Sprintf("computed=%v", computed), func(b *testing.B) {
			s, counters := busyNode(b, 8, 0, 4)
			if computed {
				counters = rowsOf(b, string(etc.DefaultCounters())+computedCounters)
				s.Reading.Health.Time = noon
				s.RecentClocks, s.Totals.Clocks = make(map[gpu.UUID]meter.ClockWindow), make(map[gpu.UUID]meter.ClockReasons)
				for _, d := range s.Reading.Devices {
					s.RecentClocks[d.UUID] = meter.ClockWindow{Samples: 20, Reasons: meter.ClockReasons{20, 0, 3}}
					s.Totals.Clocks[d.UUID] = meter.ClockReasons{20, 0, 3}
					s.Reading.Health.Checked = append(s.Reading.Health.Checked, d.UUID)
					for _, to := range s.Reading.Devices {
						if to.UUID != d.UUID {
							s.Reading.Peers = append(s.Reading.Peers, gpu.Peer{From: d.UUID, To: to.UUID})
						}
					}
				}
			}
			e := exporterOf(b, s, counters, Config{Hostname: "node-7", XIDs: alertedXIDs(b)})
			e.current().families()
			b.ReportAllocs()
			for b.Loop() {
				p := &page{exporter: e, snapshot: s, settings: e.settings.Load()}
				p.body(FormatText, codingIdentity)
			}
			b.ReportMetric(float64(len(e.current().families().samples)), "series")
		})
	}
}

// BenchmarkPageOfVerdicts is BenchmarkPage on 8 GPUs in 7 slices of 4 replicas each, without
// verdicts, with one on each device, and with a condition on each card too.
func BenchmarkPageOfVerdicts(b *testing.B) {
	for _, with := range []string{"nothing", "verdicts", "conditions"} {
		b.Run(with, func(b *testing.B) {
			s, counters := busyNode(b, 8, 7, 4)
			s.Health = judged(s, with)
			e := exporterOf(b, s, counters, Config{Hostname: "node-7"})
			size := len(e.current().body(FormatText, codingIdentity).bytes)
			b.ReportAllocs()
			for b.Loop() {
				p := &page{exporter: e, snapshot: s, settings: e.settings.Load()}
				p.body(FormatText, codingIdentity)
			}
			b.ReportMetric(float64(len(e.current().families().samples)), "series")
			b.ReportMetric(float64(size), "page-B")
		})
	}
}

// BenchmarkHealthJSON is what the first look at /api/v1/health after a tick costs on such a node.
func BenchmarkHealthJSON(b *testing.B) {
	s, _ := busyNode(b, 8, 7, 4)
	s.Health = judged(s, "conditions")
	e := exporterOf(b, s, nil, Config{Hostname: "node-7"})
	b.ReportAllocs()
	for b.Loop() {
		encodeHealth(&e.cfg, s)
	}
	b.ReportMetric(float64(len(encodeHealth(&e.cfg, s).all)), "page-B")
}

// judged is a report on all devices of a snapshot.
func judged(s *meter.Snapshot, with string) *health.Report {
	r := &health.Report{Time: noon, BootID: "boot-1", Version: 7}
	for i := range s.Reading.Devices {
		d := &s.Reading.Devices[i]
		v := health.Verdict{Device: d.UUID, Card: d.Card(), Status: health.Healthy, Since: noon}
		if with == "conditions" {
			v.Avoid, v.Reason = true, "a row waits to be remapped by a reset (watch)"
			v.Conditions = []health.Condition{{
				Subject: health.WholeCard(d.Card()), Kind: health.KindRemapPending, Class: health.ClassWatch, Since: noon, Last: noon, Count: 1,
			}}
		}
		r.Verdicts = append(r.Verdicts, v)
		r.Records = append(r.Records, health.Record{Device: d.UUID, Transitions: map[string]uint64{"healthy": 1}})
	}
	if with == "nothing" {
		return nil
	}
	return r
}

// BenchmarkScrapeFreshPage is a scrape that finds a new snapshot each time.
func BenchmarkScrapeFreshPage(b *testing.B) {
	var source swapped
	s, counters := busyNode(b, 8, 0, 4)
	e, err := New(&source, counters, Config{Hostname: "node-7", VirtualGPUs: true})
	if err != nil {
		b.Fatal(err)
	}
	h := e.Handler()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := &silent{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		next := *s
		source.Store(&next)
		h.ServeHTTP(w, r)
	}
}

// BenchmarkPageOfLedger is BenchmarkPage on 8 GPUs in 7 slices of 4 replicas each, without a book of charges, with
// one, and with what each of the 224 pods came to.
func BenchmarkPageOfLedger(b *testing.B) {
	for _, with := range []string{"nothing", "namespaces", "pods"} {
		b.Run(with, func(b *testing.B) {
			s, counters := busyNode(b, 8, 7, 4)
			if with != "nothing" {
				s.Ledger = charged(s)
			}
			e := exporterOf(b, s, counters, Config{Hostname: "node-7", NoPodCharges: with == "namespaces"})
			size := len(e.current().body(FormatText, codingIdentity).bytes)
			b.ReportAllocs()
			for b.Loop() {
				p := &page{exporter: e, snapshot: s, settings: e.settings.Load()}
				p.body(FormatText, codingIdentity)
			}
			b.ReportMetric(float64(len(e.current().families().samples)), "series")
			b.ReportMetric(float64(size), "page-B")
		})
	}
}

// charged is what a ledger has of a snapshot's holders after some time.
func charged(s *meter.Snapshot) *ledger.View {
	t := &ledger.Totals{LedgerID: "3f9c0ffee3f9c0ffee3f9c0ffee3f9c0f", Node: "node-7", Created: noon, At: ledger.Instant{Wall: noon.UnixMilli()}}
	v := &ledger.View{Totals: t, Unbalanced: map[gpu.UUID]sharing.Fraction{}}
	amount := ledger.Amount{
		GPU: sharing.NewFraction(86_413_271*15, 112*4), Memory: sharing.NewFraction(86_413_271*81920, 8*4), Energy: sharing.NewFraction(86_413_271*477*15, 112*4),
	}
	models := make(map[gpu.UUID]string)
	for _, d := range s.Reading.Devices {
		models[d.UUID] = d.Model
		if !d.IsMIG() {
			t.Cards = append(t.Cards, ledger.CardTotal{
				Card: ledger.Card{UUID: d.UUID, Model: d.Model}, Capacity: amount, Allocated: amount,
				Unallocated: map[sharing.Cause]ledger.Amount{sharing.CauseFree: amount},
			})
			v.Unbalanced[d.UUID] = sharing.Fraction{}
		}
	}
	series := map[ledger.Series]bool{}
	for i := range s.Division.Shares {
		share := &s.Division.Shares[i]
		in := ledger.Series{Namespace: share.Holder.Namespace, Resource: share.Resource, Mode: share.Mode, Model: models[share.Card], Profile: "1g.10gb"}
		used := map[ledger.Basis]sharing.Fraction{ledger.BasisEqual: amount.GPU.Scale(1, 3)}
		if !series[in] {
			series[in] = true
			t.Series = append(t.Series, ledger.SeriesTotal{Series: in, Amount: amount, Used: used})
		}
		t.Pods = append(t.Pods, ledger.PodTotal{
			PodSeries: ledger.PodSeries{
				Series: in, Pod: share.Holder.Pod, PodUID: fmt.Sprintf("a0000000-0000-4000-8000-%012d", i), Container: share.Holder.Container, Card: share.Card, GPUInstance: i/4%7 + 1,
			},
			Amount: amount, Used: used,
		})
	}
	return v
}
