// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// What may be: a gap that nothing explains, and what a program may hold at the end beyond what it held when its last life was warm.
const (
	longestGap      = 20 * time.Second
	warm            = time.Minute
	moreMemory      = 1.5
	moreMemoryMiB   = 24
	moreDescriptors = 24
	moreGoroutines  = 40
)

// report is what came of it, with the last checks.
func (n *node) report(span time.Duration) string {
	b := n.book
	proof := n.verify()
	for _, err := range n.machine.problems() {
		b.violation("the machine: %v", err)
	}
	pages, gaps := b.pages()
	holds := b.holds()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out strings.Builder
	fmt.Fprintf(&out, "soak of %v, seed %d\n\n%s\n%s\n%s\n", span, n.seed, pages, gaps, holds)
	fmt.Fprintf(&out, "what happened\n%s\n", b.counts())
	if d, err := readDiary(n.path("kubelet")); err == nil {
		fmt.Fprintf(&out, "kubelet: %v\n", d)
	}
	fmt.Fprintf(&out, "\nledger: %s\n\n", proof)
	fmt.Fprintf(&out, "violations: %d\n", len(b.violations)+b.more)
	for _, v := range b.violations {
		fmt.Fprintln(&out, v)
	}
	if b.more > 0 {
		fmt.Fprintf(&out, "%d more\n", b.more)
	}
	return out.String()
}

// verify proves the ledger that the soak leaves behind.
func (n *node) verify() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(n.programs, "gpumeter"), "verify", "--ledger", n.path("ledger")).CombinedOutput()
	if err != nil {
		n.book.violation("gpumeter verify: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// pages is a table of what each client got.
func (b *book) pages() (pages, gaps string) {
	b.mu.Lock()
	var told []string
	var out, why strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "client\tpages valid\trefused\tunanswered\tMiB\tslowest\tlongest gap\t")
	valid := 0
	for _, c := range b.clients {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.0f\t%v\t%v\t\n", c.name, c.valid, c.refused, c.failed, float64(c.bytes)/(1<<20),
			c.slowest.Round(time.Millisecond), c.gap.Round(100*time.Millisecond))
		valid += c.valid
		ends := []string{verbKillExport, verbStopExport}
		if c.name == pluginClient {
			ends = []string{verbKillPlugin, verbStopPlugin}
		}
		reason := b.why(ends, c.gapFrom, c.gapTo)
		if reason == "" && c.gap > longestGap {
			told = append(told, fmt.Sprintf("%s: no page for %v from %v on, and nothing explains it", c.name, c.gap, c.gapFrom))
		}
		if c.valid == 0 {
			told = append(told, c.name+": no page at all")
		}
		if reason == "" {
			reason = "nothing was ended"
		}
		fmt.Fprintf(&why, "  %s: from %v to %v: %s\n", c.name, c.gapFrom.Round(time.Second), c.gapTo.Round(time.Second), reason)
	}
	_ = w.Flush()
	b.mu.Unlock()
	for _, v := range told {
		b.violation("%s", v)
	}
	return fmt.Sprintf("%s%d pages valid\n", out.String(), valid), "the longest gaps\n" + why.String()
}

// holds is a table of what our programs hold, and sees what grows.
func (b *book) holds() string {
	b.mu.Lock()
	samples := slices.Clone(b.samples)
	b.mu.Unlock()
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what is held\tfirst minute\tlast life, warm\tmost\tend\t")
	for _, p := range []struct {
		name string
		of   func(sample) held
	}{
		{"exporter", func(s sample) held { return s.exporter }},
		{"device plugin", func(s sample) held { return s.plugin }},
	} {
		first, settled, end, most := span(samples, p.of)
		if end.life == 0 {
			b.violation("%s: nobody knows what it holds at the end", p.name)
			continue
		}
		fmt.Fprintf(w, "%s, MiB resident\t%.0f\t%.0f\t%.0f\t%.0f\t\n", p.name, first.rss, settled.rss, most.rss, end.rss)
		fmt.Fprintf(w, "%s, descriptors\t%d\t%d\t%d\t%d\t\n", p.name, first.descriptors, settled.descriptors, most.descriptors, end.descriptors)
		fmt.Fprintf(w, "%s, threads\t%d\t%d\t%d\t%d\t\n", p.name, first.threads, settled.threads, most.threads, end.threads)
		if most.goroutines > 0 {
			fmt.Fprintf(w, "%s, goroutines\t%d\t%d\t%d\t%d\t\n", p.name, first.goroutines, settled.goroutines, most.goroutines, end.goroutines)
		}
		if end.rss > settled.rss*moreMemory+moreMemoryMiB {
			b.violation("%s: %.0f MiB at the end, %.0f when it was warm", p.name, end.rss, settled.rss)
		}
		if end.descriptors > settled.descriptors+moreDescriptors {
			b.violation("%s: %d descriptors at the end, %d when it was warm", p.name, end.descriptors, settled.descriptors)
		}
		if end.goroutines > settled.goroutines+moreGoroutines {
			b.violation("%s: %d goroutines at the end, %d when it was warm", p.name, end.goroutines, settled.goroutines)
		}
	}
	_ = w.Flush()
	return out.String()
}

// span is what a program held: half a minute after the start, a minute after its last start, at the end, and the most of each.
func span(samples []sample, of func(sample) held) (first, settled, end, most held) {
	var lastBegan time.Duration
	for i, s := range samples {
		if h := of(s); h.life > 0 && (i == 0 || of(samples[i-1]).life != h.life) {
			lastBegan = s.at
		}
	}
	for _, s := range samples {
		h := of(s)
		if h.life == 0 {
			continue
		}
		if s.at <= warm/2 {
			first = h
		}
		if s.at <= lastBegan+warm || settled.life == 0 {
			settled = h
		}
		end = h
		most.rss, most.descriptors = max(most.rss, h.rss), max(most.descriptors, h.descriptors)
		most.threads, most.goroutines = max(most.threads, h.threads), max(most.goroutines, h.goroutines)
	}
	return first, settled, end, most
}

// counts are how often each thing happened.
func (b *book) counts() string {
	of := map[string]int{}
	for _, h := range b.happened {
		of[h.verb]++
	}
	var lines []string
	for _, w := range weights() {
		lines = append(lines, fmt.Sprintf("  %d x %s", of[w.verb], w.verb))
	}
	return strings.Join(lines, "\n")
}
