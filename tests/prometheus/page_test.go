// SPDX-License-Identifier: Apache-2.0

// Package prometheus holds what we serve against Prometheus itself: its parsers, its
// storage, its query engine. It is a module of its own because they are too heavy for ours.
package prometheus

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// formats are what Prometheus asks for, in the words it asks with.
var formats = map[string]string{
	"text":        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
	"openmetrics": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
	"protobuf":    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;q=0.3",
}

// served is one format of a page as it went over the wire.
type served struct {
	contentType string
	body        []byte
}

func get(h http.Handler, accept string) served {
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return served{w.Header().Get("Content-Type"), w.Body.Bytes()}
}

// parse reads a page with Prometheus' own parser: series to value, and the type of each family.
func parse(s served) (series map[string]float64, types map[string]string, err error) {
	p, err := textparse.New(s.body, s.contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return nil, nil, err
	}
	series, types = map[string]float64{}, map[string]string{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return series, types, nil
		}
		if err != nil {
			return nil, nil, err
		}
		switch entry {
		case textparse.EntrySeries:
			var l labels.Labels
			p.Labels(&l)
			_, ts, v := p.Series()
			if ts != nil {
				return nil, nil, errors.New("a sample has a timestamp: " + l.String())
			}
			if _, twice := series[l.String()]; twice {
				return nil, nil, errors.New("a series stands twice on the page: " + l.String())
			}
			if dup, is := l.HasDuplicateLabelNames(); is {
				return nil, nil, errors.New("a label stands twice in a series: " + dup)
			}
			series[l.String()] = v
		case textparse.EntryType:
			name, typ := p.Type()
			types[string(name)] = string(typ)
		default:
		}
	}
}

// agree parses every format of what h serves and requires the same series of each.
func agree(t *testing.T, h http.Handler) map[string]float64 {
	t.Helper()
	var want map[string]float64
	for _, name := range []string{"text", "openmetrics", "protobuf"} {
		s := get(h, formats[name])
		got, types, err := parse(s)
		if err != nil {
			t.Fatalf("Prometheus refuses the %s page (%s): %v\n%s", name, s.contentType, err, s.body)
		}
		if name != "text" && s.contentType[:12] == "text/plain; " {
			t.Fatalf("asked for %s, served %s", name, s.contentType)
		}
		if len(got) == 0 || len(types) == 0 {
			t.Fatalf("the %s page is empty", name)
		}
		if want == nil {
			want = got
			continue
		}
		for k, v := range want {
			if g, ok := got[k]; !ok || g != v && !(math.IsNaN(g) && math.IsNaN(v)) {
				t.Errorf("text has %s %v, %s has %v (there: %v)", k, v, name, g, ok)
			}
		}
		for k := range got {
			if _, ok := want[k]; !ok {
				t.Errorf("%s has %s, text has not", name, k)
			}
		}
	}
	return want
}

func counters(t testing.TB) *exporter.Counters {
	t.Helper()
	data, err := etc.ReadFile("default-counters.csv")
	if err != nil {
		t.Fatal(err)
	}
	c, problems := exporter.ParseCounters("default-counters.csv", data)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return c
}

// play runs a shipped scenario in virtual time and calls story at each tick.
func play(t *testing.T, scenario string, cfg exporter.Config, ticks int, story func(h http.Handler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sc, err := sim.Open(scenario)
		if err != nil {
			t.Fatal(err)
		}
		node, err := sim.NewNode(sc, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		policy, err := sharing.ParsePolicy("blend")
		if err != nil {
			t.Fatal(err)
		}
		c := counters(t)
		m, err := meter.New(meter.Config{Telemetry: node, Allocations: node, Fields: c.Fields(), Policy: policy, Interval: 15 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		e, err := exporter.New(m, c, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		for range ticks {
			synctest.Wait()
			story(e.Handler())
			time.Sleep(15 * time.Second)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPrometheusReadsEveryFormatOfEveryStory(t *testing.T) {
	for _, name := range sim.Shipped() {
		for mode, cfg := range map[string]exporter.Config{
			"plain":   {Hostname: "n"},
			"virtual": {Hostname: "n", VirtualGPUs: true, PodUID: true, OldNamespace: true},
		} {
			t.Run(name+" "+mode, func(t *testing.T) {
				play(t, name, cfg, 24, func(h http.Handler) { agree(t, h) })
			})
		}
	}
}

func TestOpenMetricsKeepsTheNamesThatDashboardsKnow(t *testing.T) {
	play(t, "h100x8-exclusive", exporter.Config{}, 1, func(h http.Handler) {
		_, types, err := parse(get(h, formats["openmetrics"]))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "unknown",
			"DCGM_FI_DEV_GPU_TEMP":                 "gauge",
			"gpumeter_ticks":                       "counter",
		} {
			if types[name] != want {
				t.Errorf("%s is %q in OpenMetrics, want %q", name, types[name], want)
			}
		}
	})
}

// still is a snapshot that stands.
type still struct{ *meter.Snapshot }

func (s still) Latest() *meter.Snapshot { return s.Snapshot }

// FuzzHostileTextNeverSpoilsThePage puts foreign text wherever a driver, a kubelet or a tenant can put it.
func FuzzHostileTextNeverSpoilsThePage(f *testing.F) {
	f.Add("NVIDIA H100", "ml", "train-0", "nvidia.com/gpu", "550.90", "help")
	f.Add("a\"} 1\nevil{x=\"", "\xff\xfe", "p\\", "r\n# EOF\n", "\x00", "he\\lp\n# TYPE x counter")
	f.Add("", "", "", "", "", "")
	f.Add("\u2028", "{}", "pod=\"x\",UUID=\"y\"", "\r\n", "é", "\t")
	f.Fuzz(func(t *testing.T, model, namespace, pod, resource, driver, fault string) {
		c := counters(t)
		fields := c.Fields()
		values := make([]gpu.Value, len(fields))
		for i, id := range fields {
			values[i] = gpu.Int(int64(i))
			if field, _ := gpu.FieldByID(id); field.Type == gpu.FieldText {
				values[i] = gpu.Text(driver)
			}
		}
		holder := sharing.Holder{Namespace: namespace, Pod: pod, Container: pod + namespace, PodUID: model}
		device := gpu.Device{UUID: gpu.UUID("GPU-" + model), Model: model, PCIBusID: resource, GPUInstance: -1, ComputeInstance: -1}
		snap := &meter.Snapshot{
			Seq: 1, Interval: time.Second, Observed: true,
			Reading: gpu.Reading{
				Source: driver, Fields: fields, Devices: []gpu.Device{device, {UUID: gpu.UUID(pod), Index: 1, Model: driver, GPUInstance: -1, ComputeInstance: -1}},
				Samples: []gpu.Sample{
					{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: device.UUID}, Values: values},
					{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: gpu.UUID(pod)}, Values: values},
				},
			},
			Division: sharing.Division{
				Shares:    []sharing.Share{{Card: device.UUID, Device: device.UUID, Holder: holder, Resource: resource, Mode: sharing.ModeExclusive, Seats: 1, Of: 1, Weight: sharing.One(), Part: sharing.One()}},
				Unmatched: []sharing.Unmatched{{Allocation: sharing.Allocation{Holder: holder, Resource: resource, DeviceID: driver}, Reason: fault}},
				Conflicts: []sharing.Conflict{{Card: device.UUID, Kind: fault}},
			},
			Listing: sharing.Listing{Skipped: map[string]int{fault: 1}},
			Faults:  []meter.Fault{{Source: driver, Subject: device.UUID, Kind: fault, Text: fault}},
			Totals:  meter.Totals{Faults: map[meter.FaultKey]uint64{{Source: driver, Kind: fault}: 1}, Conflicts: map[string]uint64{fault: 1}, NotCharged: map[string]uint64{fault: 1}},
			Sources: []meter.SourceState{{Name: driver}},
		}
		for _, cfg := range []exporter.Config{{Hostname: resource}, {Hostname: resource, VirtualGPUs: true, PodUID: true, OldNamespace: true}} {
			e, err := exporter.New(still{snap}, c, cfg)
			if err != nil {
				t.Skip(err)
			}
			agree(t, e.Handler())
		}
	})
}
