// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
)

// A bill of a part is the whole bill with what is not of that part left out: who pays for what nobody held, and who
// uses a quota up, depends on those that are not shown too.

// Query is what the Usage of such a bill is to be asked for. It names no namespaces and no pods, and nodes only where what one
// node's consumption costs does not depend on others.
func Query(o Options) ledger.Query {
	q := ledger.Query{Boundaries: Boundaries(o), Detail: Detail(o)}
	if !o.acrossNodes() {
		q.Nodes = slices.Clone(o.Nodes)
	}
	return q
}

// acrossNodes reports whether the amounts of one node depend on what others did.
func (o *Options) acrossNodes() bool {
	return o.Prices != nil && (o.idle() == prices.IdleSpread || len(o.Prices.Quotas()) > 0)
}

// ofHolders reports whether only what some held is shown, and not what nobody held.
func (o *Options) ofHolders() bool { return len(o.Namespaces) > 0 || len(o.Pods) > 0 }

// partly reports whether anything is left out.
func (o *Options) partly() bool { return o.ofHolders() || len(o.Nodes) > 0 }

// showsNode reports whether a node is shown.
func (o *Options) showsNode(name string) bool { return named(o.Nodes, name) }

func named(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

// shows reports whether an item is shown. What an adjustment gives back for nobody is nobody's.
func (m *maker) shows(i *Item) bool {
	switch {
	case !m.o.showsNode(m.nodes[i.Node].Node):
		return false
	case !m.o.ofHolders():
		return true
	}
	return i.Cause == "" && named(m.o.Namespaces, i.Namespace) && named(m.o.Pods, i.Pod)
}

// keepPart leaves out what is not shown, after all has its price. What is not whole of nodes that are left out is noted
// where it matters to those shown.
func (m *maker) keepPart() {
	items := slices.DeleteFunc(m.items, func(i Item) bool { return !m.shows(&i) })
	to := make([]int, len(m.nodes))
	var nodes []Node
	var lacking []string
	for i := range m.nodes {
		n := &m.nodes[i]
		if m.o.showsNode(n.Node) {
			to[i] = len(nodes)
			nodes = append(nodes, *n)
		} else if len(n.Missing) > 0 && m.o.acrossNodes() {
			lacking = append(lacking, cmp.Or(n.Node, n.LedgerID))
		}
	}
	for i := range items {
		items[i].Node = to[items[i].Node]
	}
	m.items, m.nodes = items, nodes
	m.othersLack = len(lacking) > 0
	if m.othersLack {
		m.notes = append(m.notes, "quotas and what nobody held are shared with nodes that are not shown, and of these something is missing: "+some(lacking))
	}
	m.notePart()
}

// notePart says what is shown, and that the total is of that.
func (m *maker) notePart() {
	var of []string
	for _, f := range []struct {
		what  string
		names []string
	}{{"node", m.o.Nodes}, {"namespace", m.o.Namespaces}, {"pod", m.o.Pods}} {
		if len(f.names) > 0 {
			of = append(of, f.what+" "+some(f.names))
		}
	}
	text := fmt.Sprintf("only a part is shown, of which TOTAL is the sum: %s", strings.Join(of, ", "))
	if m.o.Prices != nil {
		text += "; prices, quotas and idle shares are those of the whole bill"
	}
	m.notes = append(m.notes, text)
}
