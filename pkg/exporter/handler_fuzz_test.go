// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// FuzzRequest has a client ask for anything in any words: it gets a whole answer that says truly what it is, or is told why not, and the next one
// who means well gets the page.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/metrics", "", "text/plain;version=0.0.4", "gzip", "10")
	f.Add("HEAD", "/metrics", "a=b", "application/openmetrics-text; version=1.0.0; escaping=dots", "zstd;q=0.9, gzip;q=1", "0.000001")
	f.Add("GET", "/metrics", "", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "identity;q=0, *;q=0", "1e309")
	f.Add("GET", "/api/v1/health", "device=GPU-0&device=GPU-1", ";;,q=", ",,;q=nan", "-1")
	f.Add("GET", "/api/v1/health", "device=%00%ff%zz", "*/*;q=2", "gzip;q=-0", "NaN")
	f.Add("GET", "/", "refresh=off&refresh=%", "text/html", "br", "")
	f.Add("POST", "/health", "", "", "", "")
	f.Add("DELETE", "/readyz/../metrics", "", "", "", "")
	h := exporterOf(f, eventfulNode(), rowsOf(f, mixedCounters), Config{Hostname: "node"}).Handler()
	f.Fuzz(func(t *testing.T, method, path, query, accept, coding, patience string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, &http.Request{
			Method: method, URL: &url.URL{Path: path, RawQuery: query}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody,
			Header: http.Header{"Accept": {accept}, "Accept-Encoding": {coding}, "X-Prometheus-Scrape-Timeout-Seconds": {patience}},
		})
		if err := answered(method, path, w); err != nil {
			t.Error(err)
		}
		if r := get(h, "GET", "/metrics"); r.StatusCode != http.StatusOK || bodyOf(t, r) == "" {
			t.Errorf("after it the page is %s", r.Status)
		}
	})
}

// answered holds an answer against itself.
func answered(method, path string, w *httptest.ResponseRecorder) error {
	r := w.Result()
	known := []int{200, 301, 307, 400, 404, 405, 406, 503}
	if !slices.Contains(known, r.StatusCode) {
		return fmt.Errorf("%q %q: %s", method, path, r.Status)
	}
	if length := r.Header.Get("Content-Length"); length != "" && method != http.MethodHead && length != strconv.Itoa(w.Body.Len()) {
		return fmt.Errorf("%q %q: Content-Length %s of %d bytes", method, path, length, w.Body.Len())
	}
	if path != "/metrics" || method != http.MethodGet || r.StatusCode != http.StatusOK {
		return nil
	}
	page, err := plainPage(r)
	if err != nil {
		return err
	}
	switch kind := r.Header.Get("Content-Type"); kind[:16] {
	case "text/plain; vers":
		_, err = parsedText(page)
	case "application/open":
		err = checkOpenMetrics([]byte(page))
	case "application/vnd.":
		_, err = parsedProtobuf(page)
	default:
		err = fmt.Errorf("content type %q", kind)
	}
	return err
}

// plainPage undoes the coding that an answer says it has.
func plainPage(r *http.Response) (string, error) {
	var body io.Reader = r.Body
	switch coding := r.Header.Get("Content-Encoding"); coding {
	case "":
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return "", err
		}
		body = unzipped
	case "zstd":
		decoder, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return "", err
		}
		defer decoder.Close()
		body = decoder
	default:
		return "", fmt.Errorf("coding %q", coding)
	}
	page, err := io.ReadAll(body)
	return string(page), err
}

// FuzzPatience reads how long Prometheus waits: whatever it says, a scrape waits for no longer than it may, and not for a negative time.
func FuzzPatience(f *testing.F) {
	for _, text := range []string{"10", "0.1", "1e-300", "1e300", "-1", "NaN", "Inf", "0x1p-2", "", "10s", "4.9406564584124654e-324"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h := http.Header{"X-Prometheus-Scrape-Timeout-Seconds": {text}}
		waits := patience(5*time.Second, h)
		if waits < 0 || waits > 5*time.Second {
			t.Errorf("%q: waits for %v", text, waits)
		}
		if said, err := strconv.ParseFloat(text, 64); err == nil && said > 0 && said <= 10 && waits.Seconds() > said {
			t.Errorf("%q: waits for %v, longer than Prometheus", text, waits)
		}
	})
}
