// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// absence is a time of a node that the bill lacks, or in which nobody looked.
type absence struct {
	node, ledger string
	from, to     time.Time
	reason, text string
}

func (a absence) lasted() string { return lasted(a.to.Sub(a.from)) }

// missing are the times that the bill lacks, node by node.
func missing(b *bill.Bill) []absence {
	return absences(b, func(n *bill.Node) []ledger.Missing { return n.Missing })
}

// gaps are the times in which nobody looked and which the bill has all the same.
func gaps(b *bill.Bill) []absence {
	return absences(b, func(n *bill.Node) []ledger.Missing { return n.Gaps })
}

// mostGaps are told one by one: of a large cluster there may be one for each node.
const mostGaps = 20

// someGaps are the first gaps, and what is said of the others.
func someGaps(b *bill.Bill) (some []absence, more string) {
	all := gaps(b)
	if len(all) <= mostGaps {
		return all, ""
	}
	var rest time.Duration
	for _, a := range all[mostGaps:] {
		rest += a.to.Sub(a.from)
	}
	return all[:mostGaps], counted(len(all)-mostGaps, "more time") + ", " + lasted(rest) + " together"
}

func absences(b *bill.Bill, of func(*bill.Node) []ledger.Missing) []absence {
	var all []absence
	for i := range b.Nodes {
		n := &b.Nodes[i]
		for _, m := range of(n) {
			all = append(all, absence{node: nodeName(n), ledger: n.LedgerID, from: m.From.In(b.Zone), to: m.To.In(b.Zone), reason: m.Reason, text: m.Text})
		}
	}
	return all
}

func nodeName(n *bill.Node) string {
	if n.Cluster == "" {
		return n.Node
	}
	return n.Cluster + "/" + n.Node
}

// balance is the sentence that says whether the bill adds up, and whether it does.
func balance(b *bill.Bill) (string, bool) {
	held, rest, late := split(b)
	sum := hoursText(held) + " held + " + hoursText(rest) + " unallocated"
	if !late.IsZero() {
		sum += " + " + hoursText(late) + " adjustments"
	}
	if b.OfHolders || b.Capacity.IsZero() && !held.Add(rest).IsZero() {
		sum += " GPU-hours, of a part of what there was"
	} else {
		sum = hoursText(b.Capacity) + " GPU-hours of capacity = " + sum
	}
	switch {
	case b.Difference != 0:
		return sum + "; they are " + thousands(decimal.NewFromInt(b.Difference).Shift(-6).String()) + " GPU-seconds apart", false
	case len(b.Unbalanced) > 0:
		return sum + "; it does not add up " + counted(len(b.Unbalanced), "time") + ", as named here", false
	}
	return sum + "; difference 0", true
}

func hoursText(hours decimal.Decimal) string { return thousands(hours.StringFixed(6)) }

// split is what was held, what was not, and what belongs to earlier periods, in GPU-hours.
func split(b *bill.Bill) (held, rest, late decimal.Decimal) {
	for i := range b.Rows {
		switch r := &b.Rows[i]; r.Kind {
		case bill.KindHeld:
			held = held.Add(r.GPUHours)
		case bill.KindUnallocated:
			rest = rest.Add(r.GPUHours)
		case bill.KindAdjustment:
			late = late.Add(r.GPUHours)
		}
	}
	return held, rest, late
}

// causeName is a cause as people say it.
func causeName(cause sharing.Cause) string {
	if cause == sharing.CauseUnrequested {
		return "unrequested replicas"
	}
	return string(cause)
}

// causeMeaning says what a cause means and what to do.
func causeMeaning(cause sharing.Cause) string {
	switch cause {
	case sharing.CauseFree:
		return "Nobody asked for it, and anybody could have had it."
	case sharing.CauseUnrequested:
		return "Seats of a shared GPU that nobody took while others sat there."
	case sharing.CauseStranded:
		return "Left over between MIG devices: no profile that could still be created fits. Another layout would free it."
	case sharing.CauseUnhealthy:
		return "The GPU was out of service."
	case sharing.CauseUnobserved:
		return "The meter was away, and nothing proves who held it. Nobody is charged."
	case sharing.CauseUnattributed:
		return "It was held, but by whom or how much of it could not be told. Nobody is charged."
	}
	return ""
}

// basisMeaning says what a measurement rests on.
func basisMeaning(basis ledger.Basis) string {
	switch basis {
	case ledger.BasisEngine:
		return "activity of the graphics and compute engine"
	case ledger.BasisUtil:
		return "time in which any kernel ran"
	case ledger.BasisEqual:
		return "measured on a shared GPU and split by seats: an estimate"
	case ledger.BasisDevice:
		return "measured on the whole GPU"
	case ledger.BasisShare:
		return "measured on the GPU and split by parts: an estimate"
	}
	return string(basis)
}

// idleMeaning says who pays for what nobody held.
func idleMeaning(policy prices.IdlePolicy) string {
	switch policy {
	case prices.IdlePlatform:
		return "the platform pays for what nobody held"
	case prices.IdleSpread:
		return "what nobody held is spread over the holders in proportion to their cost"
	case prices.IdleSoleTenant:
		return "a namespace alone on a shared GPU pays for its unrequested seats, the platform for the rest"
	}
	return ""
}

// counted is "1 node", "2 nodes".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return thousands(strconv.Itoa(n)) + " " + what + "s"
}

// rowName is what a row is called where its keys stand in no columns of their own.
func rowName(b *bill.Bill, r *bill.Row) string {
	name := ""
	for i, key := range r.Keys {
		if key == "" || timeDimension(b.GroupBy[i]) {
			continue
		}
		if name != "" {
			name += " / "
		}
		name += key
	}
	switch {
	case name != "":
		return name
	case r.Kind == bill.KindUnallocated:
		return causeName(r.Cause)
	case len(b.GroupBy) == 0:
		return "everybody"
	}
	return "(none)"
}

func timeDimension(d bill.Dimension) bool { return d == bill.ByDay || d == bill.ByHour }
