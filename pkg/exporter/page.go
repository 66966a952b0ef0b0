// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/gpumeter/gpumeter/pkg/meter"
)

// Format is one of the exposition formats.
type Format uint8

// The formats.
const (
	// FormatText is Prometheus' text format 0.0.4.
	FormatText Format = iota
	// FormatOpenMetrics is OpenMetrics 1.0.0.
	FormatOpenMetrics
	// FormatProtobuf is a sequence of io.prometheus.client.MetricFamily messages,
	// each after its length.
	FormatProtobuf

	formatCount
)

// page is one snapshot under one configuration, in every form that was asked for.
type page struct {
	exporter *Exporter
	snapshot *meter.Snapshot
	settings *settings

	once    sync.Once
	content *content
	judged  sync.Once
	health  *healthJSON
	drawn   sync.Once
	node    *nodeBody
	bodies  [formatCount][codingCount]body
}

// body is a page in one format and coding, ready to be written.
type body struct {
	once  sync.Once
	bytes []byte
	// length is the value of the header Content-Length.
	length []string
}

// current is the page of the latest snapshot. The page before it is let go, and its
// snapshot with it.
func (e *Exporter) current() *page {
	for {
		p := e.page.Load()
		s, st := e.latest(), e.settings.Load()
		if p != nil && p.snapshot == s && p.settings == st {
			return p
		}
		// Whoever comes second finds the first one's page, or a newer one.
		e.page.CompareAndSwap(p, &page{exporter: e, snapshot: s, settings: st})
	}
}

// body is the page in a form, made by the first caller while others wait.
func (p *page) body(f Format, c coding) *body {
	b := &p.bodies[f][c]
	b.once.Do(func() {
		if c == codingIdentity {
			b.bytes = p.exporter.press.render(p.families(), f)
		} else {
			b.bytes = p.exporter.press.compress(p.body(f, codingIdentity).bytes, f, c)
		}
		b.length = []string{strconv.Itoa(len(b.bytes))}
	})
	return b
}

// families is the page before it has a format.
func (p *page) families() *content {
	p.once.Do(func() {
		var last extent
		if e := p.exporter.extent.Load(); e != nil {
			last = *e
		}
		p.content = buildContent(&p.exporter.cfg, p.settings, p.snapshot, last)
		last = p.content.extent()
		p.exporter.extent.Store(&last)
	})
	return p.content
}

// healthJSON is the page's health.
func (p *page) healthJSON() *healthJSON {
	p.judged.Do(func() { p.health = encodeHealth(&p.exporter.cfg, p.snapshot) })
	return p.health
}

// buildContent makes the families of a snapshot: the operator's first, in the order of
// the counter file, then gpumeter's own. Last is the extent of the page before it.
func buildContent(cfg *Config, st *settings, s *meter.Snapshot, last extent) *content {
	b, n := newBuilder(last), newNode(s)
	absent := addDevices(b, cfg, st.rows, s, n)
	addOwn(b, cfg, st, s, n, absent)
	return &b.content
}

// WritePage writes the page of the latest snapshot, uncompressed.
func (e *Exporter) WritePage(w io.Writer, f Format) error {
	if f >= formatCount {
		return fmt.Errorf("exporter: no such format: %d", f)
	}
	if _, err := w.Write(e.current().body(f, codingIdentity).bytes); err != nil {
		return fmt.Errorf("write metrics page: %w", err)
	}
	return nil
}
