// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// Make makes the bill of what was consumed, which was asked for with Boundaries and Detail of the same options. The error
// says what has no price, or what the options ask that cannot be told; there is no bill then. That data are missing or
// contradict themselves is no error: the bill says so. The Usage is not changed, and the bill keeps parts of it.
func Make(u ledger.Usage, o Options) (*Bill, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m := &maker{usage: &u, o: &o, cal: calendar{o.zone()}}
	if err := m.check(); err != nil {
		return nil, err
	}
	m.arrange()
	m.completeness()
	m.collect()
	if err := m.price(); err != nil {
		return nil, err
	}
	if err := m.quotas(); err != nil {
		return nil, err
	}
	m.shareIdle()
	b := &Bill{
		From: o.From.In(o.zone()), To: o.To.In(o.zone()), Zone: o.zone(), GroupBy: slices.Clone(o.GroupBy), Source: u.Source,
		PolicyVersion: m.policy(), Idle: o.policyOf(), OfHolders: o.ofHolders(),
	}
	if o.Prices != nil {
		b.Currency, b.Decimals, b.PriceVersion = o.Prices.Currency(), o.Prices.Decimals(), o.Prices.Version()
	}
	if err := m.divide(b); err != nil {
		return nil, err
	}
	m.balance(b)
	if o.partly() {
		whole := b.Total.GPUHours
		m.keepPart()
		if err := m.divide(b); err != nil {
			return nil, err
		}
		b.Capacity = b.Capacity.Sub(whole).Add(b.Total.GPUHours)
		if o.ofHolders() {
			b.Capacity = decimal.Zero
		}
	}
	b.Nodes = m.nodes
	b.Complete = m.complete()
	m.noteYoung()
	m.noteLabels()
	b.Notes = append(slices.Clone(u.Notes), m.notes...)
	slices.Sort(b.Notes)
	b.Notes = slices.Compact(b.Notes)
	b.ID = m.billID(b)
	return b, nil
}

// divide sets the rows and their total, of the items that there are.
func (m *maker) divide(b *Bill) error {
	rows, err := m.rows()
	if err != nil {
		return err
	}
	b.Rows, b.Total = rows, m.fill(rows)
	return nil
}

// rowID is made of when the period begins and of what the row is of, and of nothing else: while a month goes on, its rows
// keep theirs.
func (m *maker) rowID(r *Row) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d %s %s\n", m.o.From.UnixMilli(), r.Kind, r.Cause)
	for i, d := range m.o.GroupBy {
		fmt.Fprintf(&text, "%q %q\n", d, r.Keys[i])
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:6])
}

// billID is made of all that the amounts rest on. Who told what was consumed is not in it: the same bill from
// the ledger and from Prometheus has the same ID.
func (m *maker) billID(b *Bill) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %q %q %q %q %t %t\n", b.From.UnixMilli(), b.To.UnixMilli(), b.Zone, b.GroupBy, b.PriceVersion, b.PolicyVersion,
		m.o.Filtered || m.o.ofHolders(), b.Complete)
	if m.o.partly() {
		fmt.Fprintf(h, "only %q %q %q\n", m.o.Nodes, m.o.Namespaces, m.o.Pods)
	}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		fmt.Fprintf(h, "node %q %q %q %s\n", n.Cluster, n.Node, n.LedgerID, n.Completeness)
	}
	for i := range b.Rows {
		r := &b.Rows[i]
		fmt.Fprintf(h, "row %s %s %s %s %s\n", r.ID, r.GPUHours, r.ListCost, r.NetCost, r.TotalCost)
		for j := range r.Items {
			hashItem(h, &r.Items[j])
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func hashItem(h hash.Hash, i *Item) {
	fmt.Fprintf(h, "%d %d %q %q %q %q %q %q %q %q %q %d %d %d %s\n", i.Node, i.Start.UnixMilli(), i.Namespace, i.Resource, i.Mode, i.Model, i.Profile,
		i.Pod, i.PodUID, i.Container, i.Card, i.GPUInstance, i.GPU, i.Free, i.Price.Entry)
}

// policy names how shares were weighed: MIG devices by what the nodes say, replicas of a device evenly.
func (m *maker) policy() string {
	nodes := map[string][]string{}
	for i := range m.nodes {
		for _, p := range m.nodes[i].Policies {
			nodes[p] = append(nodes[p], m.nodes[i].Node)
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	policies := slices.Sorted(maps.Keys(nodes))
	if len(policies) > 1 {
		said := make([]string, len(policies))
		for i, p := range policies {
			said[i] = fmt.Sprintf("%s on %s", p, some(nodes[p]))
		}
		m.notes = append(m.notes, "MIG devices were weighed in more than one way: "+strings.Join(said, "; "))
	}
	return "mig-" + strings.Join(policies, ",") + "+replica-even@v1"
}

// manyNames are told before the rest is only counted.
const manyNames = 10

// some is a list of names that may be long.
func some(names []string) string {
	if more := len(names) - manyNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:manyNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// noteYoung names the nodes whose ledger began within the period: nothing that is known is missing of them, and yet a
// GPU may have worked before somebody metered it.
func (m *maker) noteYoung() {
	var young []string
	for i := range m.nodes {
		if n := &m.nodes[i]; n.Created.After(m.o.From) && n.Created.Before(m.o.To) {
			young = append(young, fmt.Sprintf("%s (%s)", cmp.Or(n.Node, n.LedgerID), n.Created.In(m.cal.zone).Format(time.RFC3339)))
		}
	}
	if len(young) > 0 {
		m.notes = append(m.notes, "not metered before a moment within this period, so that what their GPUs did until then is in no bill: "+some(young))
	}
}

// complete reports whether nothing is missing, and says so where something is that no node has.
func (m *maker) complete() bool {
	complete := !m.othersLack
	if len(m.nodes) == 0 {
		m.notes = append(m.notes, "no node told anything for this period")
		complete = false
	}
	if !m.o.Now.IsZero() && m.o.To.After(m.o.Now) {
		m.notes = append(m.notes, fmt.Sprintf("the period is not over before %s", m.o.To.In(m.cal.zone).Format(time.RFC3339)))
		complete = false
	}
	for i := range m.nodes {
		complete = complete && len(m.nodes[i].Missing) == 0
	}
	return complete
}
