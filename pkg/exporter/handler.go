// SPDX-License-Identifier: Apache-2.0

package exporter

import "net/http"

// Handler serves /metrics, /livez, /readyz, /health and the index page. It is safe
// for concurrent use and can be mounted in a larger mux at the root.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", readOnly(e.serveMetrics))
	mux.HandleFunc("/livez", readOnly(e.serveLive))
	mux.HandleFunc("/readyz", readOnly(e.serveReady))
	mux.HandleFunc("/health", readOnly(e.serveHealth))
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

var varyAccept = []string{"Accept, Accept-Encoding"}
