// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// twoNodes is a Usage of one window: node a with one card of which team-a holds all, and node b likewise.
func twoNodes(change func(*ledger.Usage)) ledger.Usage {
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	u := ledger.Usage{Boundaries: []time.Time{start, start.Add(time.Hour)}}
	for i, name := range []string{"a", "b"} {
		u.Nodes = append(u.Nodes, ledger.NodeUsage{Node: name, LedgerID: "ledger-" + name, Readings: []time.Time{start, start.Add(time.Hour)}})
		u.Held = append(u.Held, ledger.Held{Node: i, Series: ledger.Series{Namespace: "team-" + name}, Quantity: ledger.Quantity{GPU: 3600e6}})
		u.Rest = append(u.Rest, ledger.Rest{Node: i, Card: gpu.UUID("GPU-" + name), Quantity: ledger.Quantity{GPU: 3600e6}})
	}
	if change != nil {
		change(&u)
	}
	return u
}

func TestWhoDisagreesAndWhy(t *testing.T) {
	for name, story := range map[string]struct {
		theirs, ours func(*ledger.Usage)
		why          string
		serious      bool
	}{
		"nobody":            {},
		"counted twice":     {theirs: func(u *ledger.Usage) { u.Held[0].GPU *= 2 }, why: ledger.WhyCountedTwice, serious: true},
		"thrice, rounded":   {theirs: func(u *ledger.Usage) { u.Held[0].GPU = 3*3600e6 - 2 }, why: ledger.WhyCountedTwice, serious: true},
		"a microsecond":     {theirs: func(u *ledger.Usage) { u.Held[0].GPU++ }, why: ledger.WhyUnknown, serious: true},
		"not scraped":       {theirs: func(u *ledger.Usage) { u.Nodes, u.Held, u.Rest = u.Nodes[:1], u.Held[:1], u.Rest[:1] }, why: ledger.WhyNotScraped, serious: true},
		"not given":         {ours: func(u *ledger.Usage) { u.Nodes, u.Held, u.Rest = u.Nodes[:1], u.Held[:1], u.Rest[:1] }, why: ledger.WhyNotGiven},
		"read earlier":      {theirs: func(u *ledger.Usage) { earlier(u, 10*time.Second, 10e6) }, why: ledger.WhyReadingTime},
		"by more than so":   {theirs: func(u *ledger.Usage) { earlier(u, 10*time.Second, 11e6) }, why: ledger.WhyUnknown, serious: true},
		"retention":         {theirs: func(u *ledger.Usage) { lacks(u, "retention") }, why: "retention", serious: true},
		"a ledger put back": {theirs: func(u *ledger.Usage) { lacks(u, "no_reading"); lacks(u, "reset") }, why: "reset", serious: true},
	} {
		t.Run(name, func(t *testing.T) {
			found := ledger.Reconcile(twoNodes(story.theirs), twoNodes(story.ours))
			if story.why == "" {
				if len(found) != 0 {
					t.Fatalf("they agree, and it finds %+v", found)
				}
				return
			}
			if len(found) == 0 || found[0].Why != story.why || found[0].Serious() != story.serious || found[0].Text == "" || found[0].Node == "" {
				t.Fatalf("want %s, found %+v", story.why, found)
			}
		})
	}
}

func earlier(u *ledger.Usage, by time.Duration, gpu int64) {
	u.Nodes[0].Readings[1] = u.Nodes[0].Readings[1].Add(-by)
	u.Held[0].GPU -= gpu
}

func lacks(u *ledger.Usage, reason string) {
	u.Nodes[0].Missing = append(u.Nodes[0].Missing, ledger.Missing{Reason: reason, Text: "so"})
	u.Held[0].GPU -= 100e6
}
