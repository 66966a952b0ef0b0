// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// Difference is where a Usage from Prometheus and one from ledgers do not agree.
type Difference struct {
	LedgerID, Node string
	Window         int
	// Series is what was held; else Card is set, with its Cause, or without one for its capacity.
	Series    Series
	Card      gpu.UUID
	Cause     sharing.Cause
	Corrected bool
	// Prometheus and Ledger are in GPU-microseconds.
	Prometheus, Ledger int64
	// Why is the likely reason, a short word: a reason of Missing, or one of the Why constants. Text is for people.
	Why, Text string
}

// The reasons of a Difference that no Missing of the answer from Prometheus names.
const (
	// WhyReadingTime: the two were read at different instants, which explains all of it.
	WhyReadingTime = "reading_time"
	// WhyNotScraped: Prometheus knows nothing of the ledger.
	WhyNotScraped = "not_scraped"
	// WhyNotGiven: no ledger was given for what Prometheus knows of.
	WhyNotGiven = "ledger_not_given"
	// WhyCountedTwice: Prometheus' number is a multiple of the ledger's.
	WhyCountedTwice = "counted_twice"
	// WhyUnknown: nothing that is known explains it.
	WhyUnknown = "unknown"
)

// Serious says that the difference cannot be put down to when the two were read, or to a ledger that was not given.
func (d Difference) Serious() bool { return d.Why != WhyReadingTime && d.Why != WhyNotGiven }

// reconciled is one number that both have.
type reconciled struct {
	ledger    string
	window    int
	series    Series
	card      gpu.UUID
	cause     sharing.Cause
	corrected bool
}

// Reconcile holds what Prometheus and the ledgers say of the same boundaries against each other, number by number,
// in GPU-microseconds. It returns what differs, the largest difference first; nothing where they agree. Ask the
// ledgers at the readings of the answer from Prometheus, and there is nothing left that the time of a reading explains.
func Reconcile(prometheus, ledgers Usage) []Difference {
	theirs, ours := numbers(prometheus), numbers(ledgers)
	keys := map[reconciled]bool{}
	for k := range theirs {
		keys[k] = true
	}
	for k := range ours {
		keys[k] = true
	}
	their, our := byLedger(prometheus), byLedger(ledgers)
	cards := cardsOf(ledgers, prometheus)
	var all []Difference
	for k := range keys {
		if theirs[k] == ours[k] {
			continue
		}
		d := Difference{
			LedgerID: k.ledger, Window: k.window, Series: k.series, Card: k.card, Cause: k.cause, Corrected: k.corrected,
			Prometheus: theirs[k], Ledger: ours[k],
		}
		d.explain(their[k.ledger], our[k.ledger], cards[k.ledger])
		all = append(all, d)
	}
	slices.SortFunc(all, func(x, y Difference) int {
		return cmp.Or(cmp.Compare(abs(y.Prometheus-y.Ledger), abs(x.Prometheus-x.Ledger)), cmp.Compare(x.LedgerID, y.LedgerID),
			cmp.Compare(x.Window, y.Window), cmp.Compare(x.Series.Namespace, y.Series.Namespace), cmp.Compare(x.Series.Resource, y.Series.Resource),
			cmp.Compare(x.Series.Mode, y.Series.Mode), cmp.Compare(x.Series.Profile, y.Series.Profile), cmp.Compare(x.Card, y.Card), cmp.Compare(x.Cause, y.Cause))
	})
	return all
}

func numbers(u Usage) map[reconciled]int64 {
	all := map[reconciled]int64{}
	for _, h := range u.Held {
		all[reconciled{ledger: u.Nodes[h.Node].LedgerID, window: h.Window, series: h.Series}] += h.GPU
	}
	for _, x := range u.Rest {
		all[reconciled{ledger: u.Nodes[x.Node].LedgerID, window: x.Window, card: x.Card, cause: x.Cause, corrected: x.Corrected}] += x.GPU
	}
	return all
}

func byLedger(u Usage) map[string]*NodeUsage {
	all := map[string]*NodeUsage{}
	for i := range u.Nodes {
		all[u.Nodes[i].LedgerID] = &u.Nodes[i]
	}
	return all
}

// cardsOf counts the cards of each ledger: no number of one can grow faster than all of them.
func cardsOf(usages ...Usage) map[string]int {
	type card struct {
		ledger string
		uuid   gpu.UUID
	}
	seen := map[card]bool{}
	all := map[string]int{}
	for _, u := range usages {
		for _, x := range u.Rest {
			c := card{u.Nodes[x.Node].LedgerID, x.Card}
			if !seen[c] {
				seen[c] = true
				all[c.ledger]++
			}
		}
	}
	return all
}

// explain finds the likely reason of a difference, the surest first.
func (d *Difference) explain(theirs, ours *NodeUsage, cards int) {
	switch {
	case ours == nil:
		d.Node, d.Why = theirs.Node, WhyNotGiven
		d.Text = fmt.Sprintf("the ledger of node %s was not given; nothing to hold Prometheus' number against", theirs.Node)
		return
	case theirs == nil:
		d.Node, d.Why = ours.Node, WhyNotScraped
		d.Text = fmt.Sprintf("Prometheus knows nothing of node %s within this time: is its exporter scraped?", ours.Node)
		return
	}
	d.Node = ours.Node
	if times := multiple(d.Prometheus, d.Ledger); times > 1 {
		d.Why = WhyCountedTwice
		d.Text = fmt.Sprintf("Prometheus' number is %d times the ledger's: series of several scrapes were summed", times)
		return
	}
	for _, m := range theirs.Missing {
		d.Why, d.Text = m.Reason, m.Text
		if m.Reason == "reset" {
			return
		}
	}
	apart, known := readApart(theirs, ours, d.Window)
	allowed := apart.Microseconds() * int64(max(1, cards))
	switch {
	case d.Why != "":
	case known && abs(d.Prometheus-d.Ledger) <= allowed:
		d.Why = WhyReadingTime
		d.Text = fmt.Sprintf("the two were read %s apart at the ends of the window, which explains it", apart)
	default:
		d.Why, d.Text = WhyUnknown, "nothing that is known of the readings explains it: verify both (gpumeter verify)"
	}
}

// multiple is how often b fits into a, as closely as rounding allows; 0 where it does not, or where b is too small to tell.
func multiple(a, b int64) int64 {
	if b < time.Second.Microseconds() {
		return 0
	}
	times := (a + b/2) / b
	if abs(a-times*b) > times {
		return 0
	}
	return times
}

// readApart is by how much the instants of the two readings differ at both ends of a window.
func readApart(a, b *NodeUsage, window int) (time.Duration, bool) {
	var apart time.Duration
	for _, i := range []int{window, window + 1} {
		if i >= len(a.Readings) || i >= len(b.Readings) {
			return 0, false
		}
		if a.Readings[i].IsZero() && b.Readings[i].IsZero() {
			continue
		}
		if a.Readings[i].IsZero() || b.Readings[i].IsZero() {
			return 0, false
		}
		apart += a.Readings[i].Sub(b.Readings[i]).Abs()
	}
	return apart, true
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}
