// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// A correction counts one time twice in the registers: first under a cause, and then as held. A bill counts it once.
// Where it is about the bill's own period, the time is the holder's, and not the cause's. Where it is about an earlier
// one, which is billed and closed, it is an adjustment of this one: what the holder owes for then, and what was
// booked to the cause then, back.

// fromLedger is the source of a Usage that ledgers told.
const fromLedger = "ledger"

// corrector puts corrections right in the items.
type corrector struct {
	m *maker
	// held and rest are by what tells registers apart; there is more than one of a kind where a pod's labels changed.
	held map[heldKey][]*Item
	rest map[restKey][]*Item
	out  []Item
}

type heldKey struct {
	node, window int
	ledger.Series
	pod, uid, container string
	card                gpu.UUID
	instance            int
}

type restKey struct {
	node, window int
	card         gpu.UUID
	cause        sharing.Cause
}

// correct changes held and rest in place and returns what is to be added to them.
func (m *maker) correct(held, rest []Item) []Item {
	corrected := m.correctedRest()
	if len(corrected) == 0 && len(m.usage.Corrections) == 0 {
		return nil
	}
	c := &corrector{m: m, held: map[heldKey][]*Item{}, rest: map[restKey][]*Item{}}
	for i := range m.usage.Held {
		key := keyOf(&m.usage.Held[i])
		c.held[key] = append(c.held[key], &held[i])
	}
	at := 0
	for _, r := range m.usage.Rest {
		if r.Cause != "" && !r.Corrected {
			key := restKey{r.Node, r.Window, r.Card, r.Cause}
			c.rest[key] = append(c.rest[key], &rest[at])
			at++
		}
	}
	c.line()
	known := slices.Clone(m.usage.Corrections)
	slices.SortStableFunc(known, func(a, b ledger.Corrected) int {
		return cmp.Or(cmp.Compare(m.order[a.Node], m.order[b.Node]), cmp.Compare(a.Window, b.Window), cmp.Compare(a.Refers, b.Refers),
			a.FromTime.Compare(b.FromTime), compareSeries(&a.Held.Series, &b.Held.Series), cmp.Compare(a.Held.Pod, b.Held.Pod), cmp.Compare(a.Held.GPU, b.Held.GPU))
	})
	for i := range known {
		c.explained(&known[i], corrected)
	}
	unexplained := false
	for i := range corrected {
		// A register is rounded down at both ends, and so is what explains it.
		unexplained = unexplained || corrected[i].GPU > int64(len(known)+1)
		c.unexplained(corrected[i])
	}
	if unexplained {
		m.noteUnexplained()
	}
	return c.out
}

func (m *maker) noteUnexplained() {
	text := "some time was first booked to a cause and later to its holder, and this source does not say when it was: " +
		"it is taken from that cause within the period, and credited where the period has not as much"
	if m.usage.Source != fromLedger {
		text += "; a ledger says it exactly"
	}
	m.notes = append(m.notes, text)
}

// line orders what is of a kind.
func (c *corrector) line() {
	byItem := func(a, b *Item) int { return compareItems(*a, *b) }
	for _, list := range c.held {
		slices.SortFunc(list, byItem)
	}
	for _, list := range c.rest {
		slices.SortFunc(list, byItem)
	}
}

// correctedRest are the registers of what was corrected, in an order that does not depend on the Usage's.
func (m *maker) correctedRest() []ledger.Rest {
	var list []ledger.Rest
	at := map[restKey]int{}
	for _, r := range m.usage.Rest {
		if !r.Corrected || r.Quantity == (ledger.Quantity{}) {
			continue
		}
		key := restKey{r.Node, r.Window, r.Card, r.Cause}
		if i, ok := at[key]; ok {
			list[i].Quantity = less(list[i].Quantity, less(ledger.Quantity{}, r.Quantity))
			continue
		}
		at[key] = len(list)
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b ledger.Rest) int {
		return cmp.Or(cmp.Compare(m.order[a.Node], m.order[b.Node]), cmp.Compare(a.Window, b.Window), cmp.Compare(a.Card, b.Card), compareCauses(a.Cause, b.Cause))
	})
	return list
}

func keyOf(h *ledger.Held) heldKey {
	return heldKey{h.Node, h.Window, h.Series, h.Pod, h.PodUID, h.Container, h.Card, h.GPUInstance}
}

// explained is one correction of which everything is known. What it takes from the registers of corrected is off
// their account.
func (c *corrector) explained(k *ledger.Corrected, corrected []ledger.Rest) {
	left := k.Held.Quantity
	for _, item := range c.booked(k) {
		if left.GPU <= 0 {
			return
		}
		part := smaller(left, item.Quantity)
		left = less(left, part)
		if part.GPU > 0 {
			c.move(k, item, part, corrected)
		}
	}
	if left.GPU > 0 {
		c.m.notes = append(c.m.notes, fmt.Sprintf("the correction by record %d is not, or not all, in what namespace %q held, and is left as it is", k.Refers, k.Held.Namespace))
	}
}

// move moves a quantity of an item to where it belongs by a correction.
func (c *corrector) move(k *ledger.Corrected, item *Item, q ledger.Quantity, corrected []ledger.Rest) {
	card := settleAccount(k, q, corrected)
	item.Quantity = less(item.Quantity, q)
	moved := *item
	moved.Quantity, moved.Used, moved.Correction = q, nil, k
	if k.FromTime.Before(c.m.o.From) {
		moved.Kind = KindAdjustment
		c.out = append(c.out, moved)
		c.credit(k.Node, k.Window, card, item.Model, k.From, q, k)
		return
	}
	window := c.m.windowOf(k)
	moved.Start, moved.End = c.m.window(window)
	c.out = append(c.out, moved)
	left := c.take(k.Node, window, card, k.From, q)
	c.credit(k.Node, k.Window, card, item.Model, k.From, left, k)
}

// settleAccount takes a correction off the registers that counted it and returns its card.
func settleAccount(k *ledger.Corrected, q ledger.Quantity, corrected []ledger.Rest) gpu.UUID {
	card := k.Held.Card
	for i := range corrected {
		r := &corrected[i]
		if q.GPU <= 0 || r.Node != k.Node || r.Window != k.Window || r.Cause != k.From || r.GPU <= 0 || card != "" && r.Card != card {
			continue
		}
		taken := smaller(q, r.Quantity)
		r.Quantity, q, card = less(r.Quantity, taken), less(q, taken), r.Card
	}
	return card
}

// booked are the items of what a correction was booked to.
func (c *corrector) booked(k *ledger.Corrected) []*Item {
	h := k.Held
	h.Node, h.Window = k.Node, k.Window
	if items := c.held[keyOf(&h)]; items != nil {
		return items
	}
	// Of series there are no pods.
	return c.held[heldKey{node: k.Node, window: k.Window, Series: h.Series, instance: gpu.NoInstance}]
}

// unexplained is corrected time of which only card and cause are known. It may have been in this period or before.
func (c *corrector) unexplained(r ledger.Rest) {
	left := c.take(r.Node, r.Window, r.Card, r.Cause, r.Quantity)
	c.credit(r.Node, r.Window, r.Card, r.Model, r.Cause, left, nil)
}

// take takes a quantity off what is booked to a cause, in the window and those before it, and returns what it did not
// find there.
func (c *corrector) take(node, window int, card gpu.UUID, cause sharing.Cause, q ledger.Quantity) ledger.Quantity {
	for w := window; w >= 0 && q.GPU > 0; w-- {
		for _, item := range c.rest[restKey{node, w, card, cause}] {
			taken := smaller(q, item.Quantity)
			item.Quantity = less(item.Quantity, taken)
			q = less(q, taken)
		}
	}
	if q.GPU <= 0 {
		return ledger.Quantity{}
	}
	return q
}

// credit gives back what an earlier period booked to a cause.
func (c *corrector) credit(node, window int, card gpu.UUID, model string, cause sharing.Cause, q ledger.Quantity, k *ledger.Corrected) {
	if q.GPU == 0 {
		return
	}
	item := c.m.restItem(&ledger.Rest{Node: node, Window: window, Card: card, Model: model, Cause: cause, Quantity: less(ledger.Quantity{}, q)})
	item.Kind, item.Correction = KindAdjustment, k
	c.out = append(c.out, item)
}

// windowOf is the window that a corrected time was in.
func (m *maker) windowOf(k *ledger.Corrected) int {
	for w := k.Window; w > 0; w-- {
		if !m.usage.Boundaries[w].After(k.FromTime) {
			return w
		}
	}
	return 0
}

func smaller(a, b ledger.Quantity) ledger.Quantity {
	return ledger.Quantity{GPU: min(a.GPU, b.GPU), Energy: min(a.Energy, b.Energy), Memory: min(a.Memory, b.Memory)}
}

func less(a, b ledger.Quantity) ledger.Quantity {
	return ledger.Quantity{GPU: a.GPU - b.GPU, Energy: a.Energy - b.Energy, Memory: a.Memory - b.Memory}
}
