// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// hour is in GPU-microseconds.
	hour = int64(time.Hour / time.Microsecond)
	// maxPriceErrors are told at once.
	maxPriceErrors = 20
)

// pricing is one price, worked out once for all items that have it.
type pricing struct {
	prices.Price
	// list is for a GPU-microsecond, factor what discounts leave of it.
	list, factor sharing.Fraction
	err          error
}

// priceKey is what a price can depend on.
type priceKey struct {
	ledger.Series
	node int
	at   int64
}

// price gives every item its price. The error has what has none.
func (m *maker) price() error {
	if m.o.Prices == nil {
		return nil
	}
	known := map[priceKey]*pricing{}
	failed := map[string]bool{}
	var errs []error
	for i := range m.items {
		item := &m.items[i]
		at := item.at()
		key := priceKey{item.Series, item.Node, at.UnixNano()}
		p := known[key]
		if p == nil {
			p = m.look(item)
			known[key] = p
		}
		if p.err != nil {
			if text := p.err.Error(); !failed[text] {
				failed[text] = true
				errs = append(errs, p.err)
			}
			continue
		}
		item.Price = p.Price
		item.List = p.list.Mul(sharing.NewFraction(item.GPU, 1))
		item.Net = item.List.Mul(p.factor)
	}
	if more := len(errs) - maxPriceErrors; more > 0 {
		errs = append(errs[:maxPriceErrors], fmt.Errorf("%d more are without a price", more))
	}
	return errors.Join(errs...)
}

// at is the time whose price holds.
func (i *Item) at() time.Time {
	if i.Kind == KindAdjustment && i.Correction != nil {
		return i.Correction.FromTime
	}
	return i.Start
}

func (m *maker) look(item *Item) *pricing {
	found, err := m.o.Prices.Price(m.subject(item))
	if err != nil {
		return &pricing{err: err}
	}
	p := &pricing{Price: found, factor: sharing.One().Sub(fraction(found.Discount.Shift(-2)))}
	p.list = fraction(found.Hour).Mul(sharing.NewFraction(1, hour))
	return p
}

func (m *maker) subject(item *Item) prices.Subject {
	node := &m.nodes[item.Node]
	// There is no node without labels: nobody told them then, and a price must not be passed over for that.
	var labels map[string]string
	if len(node.Labels) > 0 {
		labels = node.Labels
	}
	return prices.Subject{
		Model: item.Model, Resource: item.Resource, Profile: item.Profile, Mode: string(item.Mode), Namespace: item.Namespace,
		NamespaceLabels: m.namespaceLabels(item.Namespace), NodeLabels: labels, Node: node.Node, Cluster: node.Cluster, At: item.at(),
	}
}

// namespaceLabels are those of a namespace, nil where nobody knows any.
func (m *maker) namespaceLabels(namespace string) map[string]string {
	if m.o.NamespaceLabels == nil {
		return nil
	}
	if labels := m.o.NamespaceLabels[namespace]; labels != nil {
		return labels
	}
	return map[string]string{}
}

// fraction is a decimal, exactly.
func fraction(d decimal.Decimal) sharing.Fraction {
	var f sharing.Fraction
	if err := f.UnmarshalText([]byte(d.Rat().RatString())); err != nil {
		return sharing.Fraction{}
	}
	return f
}

// pot is what is left of one quota in one calendar period.
type pot struct {
	quota     int
	period    int64
	namespace string
}

// quotas takes free hours off what was held: quota by quota in their order, of each period the dearest hours first, so
// that a bill comes to the same however it is grouped.
func (m *maker) quotas() error {
	if m.o.Prices == nil {
		return nil
	}
	quotas := m.o.Prices.Quotas()
	if len(quotas) == 0 {
		return nil
	}
	order := m.dearestFirst()
	left := map[pot]int64{}
	touched := map[int]bool{}
	for q := range quotas {
		quota := &quotas[q]
		size := quota.Hours.Mul(decimal.NewFromInt(hour)).IntPart()
		for _, i := range order {
			item := &m.items[i]
			applies, err := quota.Applies(m.subject(item))
			if err != nil {
				return err
			}
			if !applies {
				continue
			}
			p := pot{quota: q, period: m.period(quota.Per, item.Start).Unix()}
			if !quota.Shared {
				p.namespace = item.Namespace
			}
			had, ok := left[p]
			if !ok {
				had = size
			}
			taken := min(had, item.GPU-item.Free)
			left[p] = had - taken
			if taken > 0 {
				item.Free += taken
				item.Quotas = append(item.Quotas, quota.Name)
				touched[i] = true
			}
		}
		m.noteCut(quota)
	}
	for i := range touched {
		item := &m.items[i]
		item.Net = item.Net.Mul(sharing.NewFraction(item.GPU-item.Free, item.GPU))
	}
	return nil
}

// noteCut says so where the bill has only a part of a quota's calendar period.
func (m *maker) noteCut(q *prices.Quota) {
	if m.period(q.Per, m.o.From).Equal(m.o.From) && m.period(q.Per, m.o.To).Equal(m.o.To) {
		return
	}
	m.notes = append(m.notes, fmt.Sprintf("quota %q is for each %s, and this bill begins or ends within one: what was used of it outside is not known to it", q.Name, q.Per))
}

func (m *maker) period(per prices.Period, t time.Time) time.Time {
	if per == prices.PerDay {
		return m.cal.day(t)
	}
	return m.cal.month(t)
}

// dearestFirst is the order in which held items use quotas up.
func (m *maker) dearestFirst() []int {
	unit := map[int]sharing.Fraction{}
	var order []int
	for i := range m.items {
		item := &m.items[i]
		if item.Kind == KindHeld && item.GPU > 0 && item.Net.Sign() > 0 {
			order = append(order, i)
			unit[i] = item.Net.Mul(sharing.NewFraction(1, item.GPU))
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &m.items[a], &m.items[b]
		return cmp.Or(unit[b].Cmp(unit[a]), cmp.Compare(x.Node, y.Node), compareSeries(&x.Series, &y.Series), x.Start.Compare(y.Start))
	})
	return order
}
