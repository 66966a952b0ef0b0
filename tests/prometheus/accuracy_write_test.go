// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// accuracyText is docs/accuracy.md.
func accuracyText(months []month, found []map[string]deviation) string {
	var b strings.Builder
	b.WriteString(`# Accuracy

Made by ` + "`make accuracy`" + ` (tests/prometheus/accuracy_test.go); do not edit. The same seed gives the same figures.

A simulated month of a node with four GPUs and five tenants, whose pods have lognormal lifetimes. What each tenant really had
is known. Prometheus' own storage takes up what is scraped, its own query engine answers, and ` + "`gpumeter report`" + `'s own reader of
Prometheus makes the last column. Each cell is the error over all tenants, and in brackets that of the tenant it is
worst for: errors of tenants cancel out in a total, and not on a bill.

`)
	fmt.Fprintf(&b, "| mean pod | scraped every | restarts of the exporter a day | scrapes missed | %s |\n|---|---|---|---|%s\n",
		strings.Join(ways(), " | "), strings.Repeat("---|", len(ways())))
	for i, m := range months {
		fmt.Fprintf(&b, "| %s | %s | %g | %g %% |", short(m.pod), short(m.scrape), m.restarts, m.missed*100)
		for _, way := range ways() {
			d := found[i][way]
			fmt.Fprintf(&b, " %+.2f %% (%+.2f %%) |", d.all, d.worst)
		}
		b.WriteString("\n")
	}
	b.WriteString(`
![The error of the tenant it is worst for, by way to measure](accuracy.svg)

- **gauge x step**: ` + "`sum_over_time`" + ` of a gauge that is 1 while a pod holds a GPU, times the scrape interval. A missed scrape and an
  exporter that is away are not billed; a short pod is billed none, one or two steps.
- **OpenCost, 5 min**: the request times the time between the first and the last five-minute step in which the pod ran; a pod seen in one
  step is billed five minutes.
- **increase(), resetting**: counters of the exporter's process, one for each pod, which end with the pod and begin anew with the exporter. What lies
  before the first and after the last scrape of a series is guessed by extrapolation, or lost.
- **increase(), persistent**: the same on counters that are kept over restarts and shown for 15 minutes after the pod's end. What a
  series had before its first scrape is lost.
- **gpumeter**: the difference of two readings of a register that never falls. What is left is the meter's own view of when a pod
  began and ended: it looks every 15 seconds, and one second after the kubelet's devices have changed; and what nobody saw
  while the exporter was away, unless the same pod held the same GPU before and after: that is in the bill as unobserved. The difference
  between two readings is the ledger's to the microsecond, whatever was scraped in between
  (TestPrometheusTheLedgerAndTheTruthAreOneBill).
`)
	return b.String()
}

// accuracyPicture draws the worst tenant's error by scenario and way, on a logarithmic scale from 0.001 % to 1000 %.
func accuracyPicture(months []month, found []map[string]deviation) string {
	const left, width, bar, gap = 330, 420, 11, 18
	colours := []string{"#b07aa1", "#e15759", "#f28e2b", "#edc948", "#4e79a7"}
	height := 60 + len(months)*(len(ways())*bar+gap)
	x := func(percent float64) float64 {
		return left + width*(math.Log10(math.Max(percent, 0.001))+3)/6
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", left+width+70, height)
	for i, way := range ways() {
		fmt.Fprintf(&b, `<rect x="%d" y="10" width="10" height="10" fill="%s"/><text x="%d" y="19">%s</text>`+"\n", 10+i*155, colours[i], 24+i*155, way)
	}
	for e := -3; e <= 3; e++ {
		at := x(math.Pow10(e))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="40" x2="%.1f" y2="%d" stroke="#ddd"/><text x="%.1f" y="36" text-anchor="middle" fill="#555">%g %%</text>`+"\n", at, at, height-10, at, math.Pow10(e))
	}
	y := 48
	for i, m := range months {
		fmt.Fprintf(&b, `<text x="10" y="%d">%s pods, scraped every %s</text><text x="10" y="%d" fill="#555">%g restarts a day, %g %% missed</text>`+"\n", y+22, short(m.pod), short(m.scrape), y+37, m.restarts, m.missed*100)
		for k, way := range ways() {
			worst := math.Abs(found[i][way].worst)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d" font-size="9">%.3g %%</text>`+"\n", left, y, math.Max(1, x(worst)-left), bar-1, colours[k], x(worst)+4, y+9, worst)
			y += bar
		}
		y += gap
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// short is a duration without what is zero of it.
func short(d time.Duration) string {
	text := strings.TrimSuffix(d.String(), "m0s")
	if text != d.String() {
		text += "m"
	}
	if hours, whole := strings.CutSuffix(text, "h0m"); whole {
		return hours + "h"
	}
	return text
}
