// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func TestARealDifferenceStandsBeforeWhatIsNone(t *testing.T) {
	end := bookStart.Add(24 * time.Hour)
	usage := func(nodes ...ledger.NodeUsage) ledger.Usage {
		return ledger.Usage{Boundaries: []time.Time{bookStart, end}, Nodes: nodes}
	}
	node := func(name string, created time.Time) ledger.NodeUsage {
		return ledger.NodeUsage{Node: name, LedgerID: "ledger of " + name, Created: created}
	}
	difference := func(name, why string) ledger.Difference {
		return ledger.Difference{Node: name, LedgerID: "ledger of " + name, Card: "GPU-0", Why: why, Text: why, Prometheus: 1}
	}
	var all []ledger.Difference
	for i := range 14 {
		for range 30 {
			all = append(all, difference(fmt.Sprintf("far-%02d", i), ledger.WhyNotGiven))
		}
	}
	all = append(all, difference("old", ledger.WhyReadingTime), difference("young", ledger.WhyNotScraped), difference("old", ledger.WhyUnknown), difference("forgotten", ledger.WhyNotScraped))
	ours := usage(node("old", bookStart), node("young", end.Add(-time.Minute)), node("forgotten", bookStart))
	r := sorted(all, ours, usage(node("old", bookStart)))
	var out strings.Builder
	if err := r.show(&out, 15); err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, d := range r.told {
		order = append(order, d.Node+" "+d.Why)
	}
	if got := strings.Join(order, ", "); r.serious != 2 || got != "old unknown, forgotten not_scraped, old reading_time, young not_scraped" {
		t.Errorf("%d are serious of: %s", r.serious, got)
	}
	text := out.String()
	if strings.Count(text, "far-") != namedNodes || !strings.Contains(text, "No ledger was given of 14 nodes: far-00, far-01") || !strings.Contains(text, "and 4 more.") {
		t.Errorf("the nodes without a ledger are not told in one line:\n%s", text)
	}
	if !strings.Contains(text, "younger than 5m0s") {
		t.Errorf("nobody says that a node is young:\n%s", text)
	}
}

func TestNodesWithoutALedgerAreNoAgreement(t *testing.T) {
	for _, tt := range []struct {
		notGiven []string
		nodes    int
		want     string
	}{
		{nil, 2, "\nThey agree in every number"}, {[]string{"a"}, 2, "\nThe others agree in every number"}, {[]string{"a", "b"}, 2, "nothing left to hold against"},
	} {
		var out strings.Builder
		if err := (&reconciliation{notGiven: tt.notGiven}).show(&out, tt.nodes); err != nil || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%v of %d: %v, %q", tt.notGiven, tt.nodes, err, out.String())
		}
	}
}
