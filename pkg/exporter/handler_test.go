// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func get(h http.Handler, method, path string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func bodyOf(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestScrape(t *testing.T) {
	e := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig())
	h := e.Handler()
	plain := writtenPage(t, e, FormatText)

	r := get(h, "GET", "/metrics")
	if body := bodyOf(t, r); body != plain || r.StatusCode != http.StatusOK {
		t.Errorf("status %d, %d bytes, want %d", r.StatusCode, len(body), len(plain))
	}
	for name, want := range map[string]string{
		"Content-Type": textType, "Content-Encoding": "", "Content-Length": strconv.Itoa(len(plain)), "Vary": "Accept, Accept-Encoding",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}

	r = get(h, "GET", "/metrics", "Accept-Encoding", "gzip", "Accept", "application/openmetrics-text;version=1.0.0")
	if r.Header.Get("Content-Encoding") != "gzip" || r.Header.Get("Content-Type") != openMetricsType+"underscores" {
		t.Errorf("headers: %v", r.Header)
	}
	packed := bodyOf(t, r)
	if r.Header.Get("Content-Length") != strconv.Itoa(len(packed)) {
		t.Errorf("Content-Length %s for %d bytes", r.Header.Get("Content-Length"), len(packed))
	}
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(unpacked); err != nil || !bytes.HasSuffix(got, []byte("# EOF\n")) {
		t.Errorf("gzip body ends in %q, %v", got[max(0, len(got)-20):], err)
	}

	r = get(h, "HEAD", "/metrics")
	if body := bodyOf(t, r); body != "" || r.Header.Get("Content-Length") != strconv.Itoa(len(plain)) {
		t.Errorf("HEAD: %d bytes, Content-Length %s", len(body), r.Header.Get("Content-Length"))
	}
	if r = get(h, "GET", "/metrics", "Accept-Encoding", "identity;q=0"); r.StatusCode != http.StatusNotAcceptable {
		t.Errorf("refusing every coding: status %d", r.StatusCode)
	}
}

// TestPageThatCannotBeMade: a defect that panics must not look like an empty node.
func TestPageThatCannotBeMade(t *testing.T) {
	e := exporterOf(t, mixedNode(), nil, Config{})
	e.settings.Store(nil)
	h := e.Handler()
	first := func() (panicked bool) {
		defer func() { panicked = recover() != nil }()
		get(h, "GET", "/metrics")
		return false
	}
	if !first() {
		t.Fatal("the first scrape did not panic: this test needs another defect")
	}
	if r := get(h, "GET", "/metrics"); r.StatusCode != http.StatusInternalServerError {
		t.Errorf("second scrape: status %d", r.StatusCode)
	}
}

func TestOnlyReading(t *testing.T) {
	h := exporterOf(t, mixedNode(), nil, Config{}).Handler()
	for _, path := range []string{"/", "/metrics", "/livez", "/readyz", "/health"} {
		for method, want := range map[string]int{"POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405} {
			r := get(h, method, path)
			if r.StatusCode != want || r.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: status %d, Allow %q", method, path, r.StatusCode, r.Header.Get("Allow"))
			}
		}
	}
	if r := get(h, "GET", "/nothing"); r.StatusCode != http.StatusNotFound {
		t.Errorf("unknown path: status %d", r.StatusCode)
	}
}

// TestScrapeOverTheWire runs net/http's own server, which checks the headers.
func TestScrapeOverTheWire(t *testing.T) {
	e := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig())
	server := httptest.NewServer(e.Handler())
	defer server.Close()
	for range 3 {
		r, err := server.Client().Get(server.URL + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(got) != writtenPage(t, e, FormatText) || !r.Uncompressed {
			t.Errorf("%d bytes, uncompressed %v, %v", len(got), r.Uncompressed, err)
		}
	}
}

// silent is a response writer that costs nothing.
type silent struct{ header http.Header }

func (w *silent) Header() http.Header         { return w.header }
func (w *silent) Write(b []byte) (int, error) { return len(b), nil }
func (w *silent) WriteHeader(int)             {}

// TestScrapeOnlyReads is the law that a scrape is a load and a write: it allocates
// nothing.
func TestScrapeOnlyReads(t *testing.T) {
	h := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig()).Handler()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1")
	r.Header.Set("Accept-Encoding", "gzip")
	w := &silent{http.Header{}}
	h.ServeHTTP(w, r)
	if n := testing.AllocsPerRun(100, func() { h.ServeHTTP(w, r) }); n > 0 {
		t.Errorf("%v allocations per scrape", n)
	}
}

func TestLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var source swapped
		source.Store(&meter.Snapshot{Interval: 10 * time.Second})
		e, err := New(&source, nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		h := e.Handler()
		alive := func(want bool, sentence string) {
			t.Helper()
			r := get(h, "GET", "/livez")
			body := bodyOf(t, r)
			if (r.StatusCode == http.StatusOK) != want || !want && r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, sentence) {
				t.Errorf("status %d: %s", r.StatusCode, body)
			}
		}
		// Two and a half intervals and five seconds are thirty seconds.
		time.Sleep(30 * time.Second)
		alive(true, "the loop turns: 30s since the start without a tick")
		time.Sleep(time.Second)
		alive(false, "the loop does not turn: 31s since the start without a tick, more than 30s")

		source.Store(&meter.Snapshot{Seq: 1, Time: time.Now(), Interval: 10 * time.Second})
		alive(true, "the loop turns: 0s since the last tick")
		time.Sleep(30 * time.Second)
		alive(true, "30s since the last tick")
		time.Sleep(time.Millisecond)
		alive(false, "the loop does not turn: 30.001s since the last tick")
		if r := get(h, "GET", "/health"); r.StatusCode != http.StatusOK {
			t.Errorf("/health: status %d", r.StatusCode)
		}
	})
}

func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var source swapped
		e, err := New(&source, nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		h := e.Handler()
		want := func(path string, status int, body string) {
			t.Helper()
			r := get(h, "GET", path)
			if got := bodyOf(t, r); r.StatusCode != status || got != body {
				t.Errorf("%s: status %d, want %d:\n%s", path, r.StatusCode, status, got)
			}
		}
		want("/readyz", 503, "not ready: awaiting the first tick\n")
		want("/health", 200, "OK, not ready: awaiting the first tick\n")

		s := &meter.Snapshot{
			Seq: 1, Time: time.Now(), Interval: time.Second,
			Sources: []meter.SourceState{{Name: meter.SourceTelemetry, Age: -1, Outstanding: 1500 * time.Millisecond}},
			Faults:  []meter.Fault{{Source: meter.SourceTelemetry, Kind: "error", Text: "no\ndriver\x00"}},
		}
		source.Store(s)
		want("/readyz", 503, "not ready: awaiting the first answer of the telemetry source: no driver\uFFFD\ntelemetry: down, no answer yet, waiting for 1.5s\n")

		up := *s
		up.Faults = nil
		up.Sources = []meter.SourceState{
			{Name: meter.SourceTelemetry, Age: 20 * time.Millisecond, LastSuccess: time.Now(), Up: true},
			{Name: meter.SourceAllocations, Age: time.Minute, LastSuccess: time.Now()},
		}
		source.Store(&up)
		time.Sleep(2 * time.Second)
		want("/readyz", 200, "ready\ntelemetry: up, last answer 2.02s ago\nallocations: down, last answer 1m2s ago\n")
		want("/health", 200, "OK\ntelemetry: up, last answer 2.02s ago\nallocations: down, last answer 1m2s ago\n")
	})
}

// TestALostConnectionIsTold with its words and costs readiness only when its values are too
// old to be shown.
func TestALostConnectionIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var source swapped
		e, err := New(&source, nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		slow, err := New(&source, nil, Config{ReadingMaxAge: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ready := func(e *Exporter, want bool, sentence string) {
			t.Helper()
			if ok, got := e.ready(source.Load()); ok != want || got != sentence {
				t.Errorf("ready %v: %s\nwant %v: %s", ok, got, want, sentence)
			}
		}
		away := func(age time.Duration, kind, text string) {
			source.Store(&meter.Snapshot{
				Seq: 9, Time: time.Now(), Interval: 10 * time.Second,
				Sources: []meter.SourceState{{Name: meter.SourceTelemetry, Age: age, LastSuccess: time.Now().Add(-age)}},
				Faults:  []meter.Fault{{Source: meter.SourceTelemetry, Subject: "GPU-0", Kind: "lost", Text: "gone"}, {Source: meter.SourceTelemetry, Kind: kind, Text: text}},
			})
		}
		away(10*time.Second, "connection", "no host engine at\nunix:///run/e.sock since 12:00:00; next try in 4s")
		ready(e, true, "ready with earlier values, since the telemetry source does not answer: no host engine at unix:///run/e.sock since 12:00:00; next try in 4s")
		away(25*time.Second, "released", "the driver was let go on request")
		ready(e, true, "ready with earlier values, since the telemetry source does not answer: the driver was let go on request")
		away(25*time.Second+time.Millisecond, "released", "the driver was let go on request")
		ready(e, false, "not ready: no answer of the telemetry source for 25.001s, more than 25s: the driver was let go on request")
		ready(slow, true, "ready with earlier values, since the telemetry source does not answer: the driver was let go on request")

		source.Store(&meter.Snapshot{
			Seq: 10, Time: time.Now(), Interval: 10 * time.Second,
			Sources: []meter.SourceState{{Name: meter.SourceTelemetry, LastSuccess: time.Now(), Up: true}},
		})
		ready(e, true, "ready")
		time.Sleep(31 * time.Second)
		ready(e, false, "not ready: the loop does not turn: 31s since the last tick, more than 30s")
	})
}

// TestAStuckGPUIsTold: it stays in the inventory, and the probe names it, as does the node page.
func TestAStuckGPUIsTold(t *testing.T) {
	d, stuck := card(0), card(1)
	s := ticked(temps([]gpu.Device{d, stuck}, []gpu.Sample{onGPU(d, gpu.Int(40)), onGPU(stuck, gpu.Absent(gpu.ReasonTimeout))}), sharing.Division{})
	s.Time, s.Sources[0].Up = time.Now(), true
	s.Reading.Origin = gpu.Origin{Library: "libnvidia-ml 12.570", Driver: "570.86.15"}
	s.Faults = []meter.Fault{
		{Source: meter.SourceTelemetry, Subject: stuck.UUID, Kind: "timeout", Text: "no answer\nfor 12s <b>"},
		{Source: meter.SourceTelemetry, Subject: "GPU-away", Kind: "lost", Text: "gone"},
	}
	e := exporterOf(t, s, rowsOf(t, tempOnly), Config{SourceReason: "no libdcgm.so.4"})
	page := writtenPage(t, e, FormatText)
	if n := len(seriesOf(page, "gpumeter_device_info")); n != 2 {
		t.Errorf("%d GPUs in the inventory", n)
	}
	wantSeries(t, page, "gpumeter_absent_values", `{field="DCGM_FI_DEV_GPU_TEMP",reason="timeout"} 1`)
	wantSeries(t, page, "gpumeter_fault", `{source="telemetry",kind="timeout",UUID="GPU-1"} 1`, `{source="telemetry",kind="lost",UUID="GPU-away"} 1`)

	r := get(e.Handler(), "GET", "/readyz")
	if body := bodyOf(t, r); r.StatusCode != http.StatusOK || !strings.HasSuffix(body, "\nGPU 1, GPU-1: timeout: no answer for 12s <b>\nGPU-away: lost: gone\n") {
		t.Errorf("status %d:\n%s", r.StatusCode, body)
	}
	s.Faults = slices.Repeat(s.Faults, 20)
	if told := deviceFaults(s); len(told) != maxDeviceFaults+1 || told[maxDeviceFaults].Text != "8 more faults, counted in /metrics" {
		t.Errorf("%d entries, the last %v", len(told), told[len(told)-1])
	}
}
