// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Handler serves /metrics, /livez, /readyz, /health, /api/v1/health and the index page. It is safe
// for concurrent use and can be mounted in a larger mux at the root.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", readOnly(e.serveMetrics))
	mux.HandleFunc("/livez", readOnly(e.serveLive))
	mux.HandleFunc("/readyz", readOnly(e.serveReady))
	mux.HandleFunc("/health", readOnly(e.serveHealth))
	mux.HandleFunc("/api/v1/health", readOnly(e.serveHealthJSON))
	mux.HandleFunc("/{$}", readOnly(e.serveIndex))
	return mux
}

// readOnly refuses what would not only read.
func readOnly(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are served here", http.StatusMethodNotAllowed)
			return
		}
		serve(w, r)
	}
}

// serveMetrics is a scrape. The header values are made once and shared, so that
// a scrape allocates nothing of its own.
func (e *Exporter) serveMetrics(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Vary"] = varyAccept
	p := e.negotiator.plan(r.Header)
	if !p.acceptable {
		http.Error(w, "the page comes in gzip, zstd or uncompressed; Accept-Encoding refuses all of them", http.StatusNotAcceptable)
		return
	}
	if e.latest().Seq == 0 && !e.awaitFirst(r) {
		// A page without GPUs would say that the node has none: graphs break and alerts on absent
		// series fire. Refused, the target is down, which it is.
		h["Retry-After"] = retryAfter
		http.Error(w, fmt.Sprintf("the first tick is not over, %v after the start, so there is nothing to say of GPUs yet; try again soon, /readyz says how far it is",
			time.Since(e.started).Round(time.Millisecond)), http.StatusServiceUnavailable)
		return
	}
	b := e.current().body(p.format, p.coding)
	if b.length == nil {
		// Making the page panicked under an earlier scrape, which has the trace. An
		// empty page would pass for a node without GPUs.
		http.Error(w, "the page of this tick could not be made; the log has the reason", http.StatusInternalServerError)
		return
	}
	h["Content-Type"] = p.contentType
	if p.contentEncoding != nil {
		h["Content-Encoding"] = p.contentEncoding
	}
	h["Content-Length"] = b.length
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	// A client that went away is no fault of the node.
	_, _ = w.Write(b.bytes)
}

var (
	varyAccept = []string{"Accept, Accept-Encoding"}
	retryAfter = []string{"5"}
)

// awaitFirst waits for the first tick for as long as this scrape can, and says whether it has been.
func (e *Exporter) awaitFirst(r *http.Request) bool {
	watcher, ok := e.snapshots.(Watcher)
	if !ok {
		return false
	}
	expired := time.NewTimer(patience(e.cfg.FirstTick, r.Header))
	defer expired.Stop()
	for {
		s, stale := watcher.Watch()
		if s != nil && s.Seq > 0 {
			return true
		}
		select {
		case <-stale:
		case <-expired.C:
			return false
		case <-r.Context().Done():
			return false
		}
	}
}

// patience is how long a scrape can wait: for less than Prometheus does, so that it hears the reason.
func patience(longest time.Duration, h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0) || seconds > longest.Seconds()*2 {
		return longest
	}
	return min(longest, time.Duration(seconds*float64(time.Second))*4/5)
}
