// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	_ "embed" // the index page is a file

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

//go:embed index.html
var indexHTML string

// indexPage is what the template shows.
type indexPage struct {
	Node, Version  string
	Source         string
	SourceReason   string
	GPUs, MIGs     int
	Lost           int
	Tick           time.Time
	Ago            time.Duration
	Ready          bool
	Status         string
	Sources        []indexSource
	Faults         []deviceFault
	Health         string
	Verdicts       []deviceFault
	Paths          []Link
	ReloadProblem  string
	ConfigProblems int64
}

type indexSource struct{ Name, State string }

// serveIndex is the page for people. It is made for each request, which no machine
// should make.
func (e *Exporter) serveIndex(w http.ResponseWriter, _ *http.Request) {
	s, st := e.latest(), e.settings.Load()
	p := indexPage{
		Node: e.cfg.Hostname, Version: e.cfg.Build.Version, Source: origin(&s.Reading), SourceReason: e.cfg.SourceReason,
		Faults: deviceFaults(s),
		Paths: []Link{
			{"/metrics", "what Prometheus scrapes"},
			{"/livez", "whether the loop turns"},
			{"/readyz", "whether there is something to scrape"},
			{"/health", "dcgm-exporter's probe"},
			{"/api/v1/health", "what is known of each device's health, and who holds it"},
		},
	}
	p.Paths = append(p.Paths, e.cfg.Links...)
	p.Health, p.Verdicts = healthLines(s)
	for _, d := range s.Divided() {
		switch {
		case d.IsMIG():
			p.MIGs++
		case d.Lost:
			p.GPUs++
			p.Lost++
		default:
			p.GPUs++
		}
	}
	if s.Seq > 0 {
		p.Tick = s.Time
		p.Ago = max(time.Since(s.Time), 0).Round(time.Millisecond)
	}
	p.Ready, p.Status = e.ready(s)
	for _, source := range s.Sources {
		p.Sources = append(p.Sources, indexSource{source.Name, sourceAge(source, s.Time)})
	}
	if st.failed != nil {
		p.ReloadProblem = st.failed.Error()
	}
	for _, n := range st.problems {
		p.ConfigProblems += n
	}
	var b bytes.Buffer
	if err := e.index.Execute(&b, &p); err != nil {
		http.Error(w, "the index page cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes())
}

// origin is where a reading comes from, in words.
func origin(r *gpu.Reading) string {
	var parts []string
	for _, part := range []string{r.Source, r.Origin.Library, r.Origin.Engine} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if r.Origin.Driver != "" {
		parts = append(parts, "driver "+r.Origin.Driver)
	}
	return strings.Join(parts, ", ")
}
