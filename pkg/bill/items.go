// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// maker makes one bill.
type maker struct {
	usage *ledger.Usage
	o     *Options
	cal   calendar
	// order[i] is where node i of the Usage stands in the bill.
	order []int
	nodes []Node
	// index is that of each GPU on its node, by its registers: what is held does not say it.
	index map[place]int
	items []Item
	notes []string
	// othersLack says that something is missing of a node that is not shown and matters to those that are.
	othersLack bool
}

// place is a GPU of a node of the Usage.
type place struct {
	node int
	card gpu.UUID
}

// arrange puts the nodes in an order that does not depend on the Usage's.
func (m *maker) arrange() {
	index := make([]int, len(m.usage.Nodes))
	for i := range index {
		index[i] = i
	}
	slices.SortStableFunc(index, func(a, b int) int {
		x, y := &m.usage.Nodes[a], &m.usage.Nodes[b]
		return cmp.Or(cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Node, y.Node), cmp.Compare(x.LedgerID, y.LedgerID))
	})
	m.order = make([]int, len(index))
	m.nodes = make([]Node, len(index))
	for to, from := range index {
		m.order[from] = to
		m.nodes[to] = Node{NodeUsage: m.usage.Nodes[from]}
	}
	m.index = map[place]int{}
	for i := range m.usage.Rest {
		r := &m.usage.Rest[i]
		m.index[place{r.Node, r.Card}] = r.Index
	}
}

// check holds the Usage against what the bill needs of it.
func (m *maker) check() error {
	u := m.usage
	windows := len(u.Boundaries) - 1
	if windows < 1 || !u.Boundaries[0].Equal(m.o.From) || !u.Boundaries[windows].Equal(m.o.To) {
		return fmt.Errorf("%w: what was consumed is told from other moments than its beginning and end", ErrPeriod)
	}
	if !slices.IsSortedFunc(u.Boundaries, time.Time.Compare) {
		return fmt.Errorf("%w: the moments at which meters were read are out of order", ErrPeriod)
	}
	for _, at := range Boundaries(*m.o) {
		if _, ok := slices.BinarySearchFunc(u.Boundaries, at, time.Time.Compare); !ok {
			return fmt.Errorf("%w: the meters were not read at %s, where a price, a quota or a group begins", ErrPeriod, at.Format(time.RFC3339))
		}
	}
	outside := func(node, window int) bool {
		return node < 0 || node >= len(u.Nodes) || window < 0 || window >= windows
	}
	bad := slices.ContainsFunc(u.Held, func(h ledger.Held) bool { return outside(h.Node, h.Window) }) ||
		slices.ContainsFunc(u.Rest, func(r ledger.Rest) bool { return outside(r.Node, r.Window) }) ||
		slices.ContainsFunc(u.Corrections, func(c ledger.Corrected) bool { return outside(c.Node, c.Window) })
	if bad {
		return fmt.Errorf("%w: what was consumed names a node or a window that is not there", ErrPeriod)
	}
	return nil
}

// collect turns the Usage into items, without prices.
func (m *maker) collect() {
	held, rest := m.held(), m.rest()
	adjusted := m.correct(held, rest)
	m.items = make([]Item, 0, len(held)+len(rest)+len(adjusted))
	for _, list := range [][]Item{held, rest, adjusted} {
		for i := range list {
			if !list[i].empty() {
				m.items = append(m.items, list[i])
			}
		}
	}
	slices.SortFunc(m.items, compareItems)
}

// empty reports whether there is nothing in it.
func (i *Item) empty() bool {
	if i.Quantity != (ledger.Quantity{}) {
		return false
	}
	for _, used := range i.Used {
		if used != 0 {
			return false
		}
	}
	return true
}

func (m *maker) window(w int) (start, end time.Time) {
	return m.usage.Boundaries[w].In(m.cal.zone), m.usage.Boundaries[w+1].In(m.cal.zone)
}

func (m *maker) held() []Item {
	items := make([]Item, len(m.usage.Held))
	for i := range m.usage.Held {
		h := &m.usage.Held[i]
		items[i] = m.heldItem(h, h.Node, h.Window)
	}
	return items
}

func (m *maker) heldItem(h *ledger.Held, node, window int) Item {
	start, end := m.window(window)
	return Item{
		Kind: KindHeld, Node: m.order[node], Start: start, End: end, Series: h.Series, Pod: h.Pod, PodUID: h.PodUID, Container: h.Container,
		WorkloadKind: h.WorkloadKind, Workload: h.Workload, Labels: h.Labels, Card: h.Card, CardIndex: m.index[place{node, h.Card}],
		GPUInstance: h.GPUInstance, Quantity: h.Quantity, Used: h.Used,
	}
}

// rest is the items of what nobody held.
func (m *maker) rest() []Item {
	var items []Item
	for i := range m.usage.Rest {
		r := &m.usage.Rest[i]
		if r.Cause == "" || r.Corrected {
			continue
		}
		items = append(items, m.restItem(r))
	}
	return items
}

func (m *maker) restItem(r *ledger.Rest) Item {
	start, end := m.window(r.Window)
	return Item{
		Kind: KindUnallocated, Node: m.order[r.Node], Start: start, End: end, Series: ledger.Series{Model: r.Model}, Card: r.Card,
		CardIndex: m.index[place{r.Node, r.Card}], GPUInstance: gpu.NoInstance, Cause: r.Cause, Quantity: r.Quantity,
	}
}

// compareItems orders items by all that tells them apart.
func compareItems(a, b Item) int {
	return cmp.Or(
		cmp.Compare(kindOrder(a.Kind), kindOrder(b.Kind)), cmp.Compare(a.Node, b.Node), a.Start.Compare(b.Start), compareSeries(&a.Series, &b.Series),
		cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Container, b.Container),
		cmp.Compare(a.CardIndex, b.CardIndex), cmp.Compare(a.Card, b.Card), cmp.Compare(a.GPUInstance, b.GPUInstance), compareCauses(a.Cause, b.Cause),
		cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Energy, b.Energy), cmp.Compare(a.Memory, b.Memory),
		cmp.Compare(a.WorkloadKind, b.WorkloadKind), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.used(), b.used()), compareCorrections(a.Correction, b.Correction),
	)
}

func compareSeries(a, b *ledger.Series) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Mode, b.Mode),
		cmp.Compare(a.Model, b.Model), cmp.Compare(a.Profile, b.Profile))
}

func compareCorrections(a, b *ledger.Corrected) int {
	if a == nil || b == nil {
		return cmp.Compare(order(a != nil), order(b != nil))
	}
	return cmp.Or(cmp.Compare(a.Refers, b.Refers), a.FromTime.Compare(b.FromTime), strings.Compare(a.Reason, b.Reason))
}

func order(b bool) int {
	if b {
		return 1
	}
	return 0
}

func kindOrder(k RowKind) int {
	return slices.Index([]RowKind{KindHeld, KindUnallocated, KindAdjustment}, k)
}

// compareCauses is in the order in which causes are shown; what is no cause comes first.
func compareCauses(a, b sharing.Cause) int {
	causes := sharing.Causes()
	return cmp.Compare(slices.Index(causes, a), slices.Index(causes, b))
}

// used is what was measured of it, in GPU-microseconds.
func (i *Item) used() int64 {
	var sum int64
	for _, used := range i.Used {
		sum += used
	}
	return sum
}

// wasted is what was held and measured not to be used; 0 where nothing was measured. It is not cut off at 0, so that
// it comes to the same however finely the items are divided.
func (i *Item) wasted() int64 {
	if len(i.Used) == 0 || i.Kind == KindUnallocated {
		return 0
	}
	return i.GPU - i.used()
}
