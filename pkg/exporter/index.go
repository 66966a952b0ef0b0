// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the node page and its style are files
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

//go:embed nodepage.html
var nodePageHTML string

//go:embed nodepage.css
var nodePageCSS string

// shortestRefresh is how soon the node page asks again at the soonest.
const shortestRefresh = 5 * time.Second

// nodeTemplates are what the node page is made with.
type nodeTemplates struct {
	*template.Template
	style template.CSS
	// policy is the page's Content-Security-Policy: no script, nothing from elsewhere, and no style but its own.
	policy string
}

func newNodeTemplates() (*nodeTemplates, error) {
	parsed, err := template.New("nodepage").Parse(nodePageHTML)
	if err != nil {
		return nil, fmt.Errorf("exporter: parse node page: %w", err)
	}
	_, style, _ := strings.Cut(nodePageCSS, "*/\n")
	style = strings.TrimSpace(style)
	sum := sha256.Sum256([]byte(style))
	return &nodeTemplates{
		Template: parsed, style: template.CSS(style),
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}, nil
}

// nodeBody is the part of the node page that is made once for a snapshot.
type nodeBody struct {
	title, summary string
	html           []byte
	err            error
}

// nodeBody is the page's, made by the first caller while others wait. It is nil where making it panicked.
func (p *page) nodeBody() *nodeBody {
	p.drawn.Do(func() { p.node = p.exporter.index.body(&p.exporter.cfg, p.settings, p.snapshot) })
	return p.node
}

func (t *nodeTemplates) body(cfg *Config, st *settings, s *meter.Snapshot) *nodeBody {
	var b bytes.Buffer
	if s.Seq == 0 {
		err := t.ExecuteTemplate(&b, "early", nil)
		return &nodeBody{title: "awaiting the first tick", html: b.Bytes(), err: err}
	}
	painted := paintNode(cfg, st, s)
	err := t.ExecuteTemplate(&b, "body", painted)
	return &nodeBody{painted.Title, painted.Summary, b.Bytes(), err}
}

// nodeHead is what the node page says above and below its body: what changes from one request to the next.
type nodeHead struct {
	Node, Version, Title, Summary, Source string
	Style                                 template.CSS
	// Refresh is after how many seconds the page asks again, 0 for never.
	Refresh int
	Tick    *moment
	Age     string
	// Limping says that it is ready, and that a source does not answer.
	Ready, Limping bool
	Status         string
	Sources        []indexSource
	Stream         *Stream
	Paths          []Link
}

type indexSource struct{ Name, State string }

// serveIndex is the page for people. What it says of the snapshot is made once; its frame, with the ages, is made for
// each request, which no machine should make.
func (e *Exporter) serveIndex(w http.ResponseWriter, r *http.Request) {
	p := e.current()
	body := p.nodeBody()
	if body == nil || body.err != nil {
		http.Error(w, "the node page of this tick could not be made; /metrics and /api/v1/health are others", http.StatusInternalServerError)
		return
	}
	head := e.nodeHead(p.snapshot, body)
	if r.URL.Query().Get("refresh") == "off" {
		head.Refresh = 0
	}
	var above, below bytes.Buffer
	err := e.index.ExecuteTemplate(&above, "head", head)
	if err == nil {
		err = e.index.ExecuteTemplate(&below, "foot", head)
	}
	if err != nil {
		http.Error(w, "the node page cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(above.Len()+len(body.html)+below.Len()))
	h.Set("Content-Security-Policy", e.index.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	// A client that went away is no fault of the node.
	for _, part := range [][]byte{above.Bytes(), body.html, below.Bytes()} {
		if _, err := w.Write(part); err != nil {
			return
		}
	}
}

func (e *Exporter) nodeHead(s *meter.Snapshot, body *nodeBody) *nodeHead {
	head := &nodeHead{
		Node: displayed(e.cfg.Hostname), Version: e.cfg.Build.Version, Title: body.title, Summary: body.summary, Style: e.index.style,
		Refresh: int(shortestRefresh.Seconds()), Source: displayed(origin(&s.Reading)),
	}
	if e.cfg.SourceReason != "" && head.Source != "" {
		head.Source += " (" + displayed(e.cfg.SourceReason) + ")"
	}
	if s.Seq > 0 {
		head.Refresh = int(max(shortestRefresh, interval(s)+time.Second-1).Seconds())
		head.Tick = momentOf(s.Time, s.Time)
		head.Age = max(time.Since(s.Time), 0).Round(time.Millisecond).String() + " ago"
	}
	head.Ready, head.Status = e.ready(s)
	for _, source := range s.Sources {
		head.Sources = append(head.Sources, indexSource{source.Name, sourceAge(source, s.Time)})
		head.Limping = head.Limping || !source.Up
	}
	if e.cfg.Stream != nil {
		stream := e.cfg.Stream()
		head.Stream = &stream
	}
	head.Paths = relative(slices.Concat([]Link{
		{"/metrics", "what Prometheus scrapes"},
		{"/api/v1/health", "what is known of each device's health, and who holds it"},
		{"/readyz", "whether there is something to scrape"},
		{"/livez", "whether the loop turns"},
		{"/health", "dcgm-exporter's probe"},
	}, e.cfg.Links))
	return head
}

// relative are links that hold behind a proxy too, such as the API server's.
func relative(links []Link) []Link {
	out := make([]Link, 0, len(links))
	for _, l := range links {
		out = append(out, Link{Path: strings.TrimPrefix(l.Path, "/"), Text: l.Text})
	}
	return out
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
