// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/prices"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// quantityDecimals are those of hours and kilowatt-hours.
	quantityDecimals = 6
	// keySeparator is in no name.
	keySeparator = "\x00"
)

// placed is an item and the row it belongs to.
type placed struct {
	item int
	keys []string
	// row tells rows apart.
	row string
}

// rows groups the items; the sums of the rows are not set yet.
func (m *maker) rows() ([]Row, error) {
	places := make([]placed, len(m.items))
	for i := range m.items {
		keys, err := m.keys(&m.items[i])
		if err != nil {
			return nil, err
		}
		places[i] = placed{i, keys, strings.Join(keys, keySeparator)}
	}
	slices.SortStableFunc(places, func(a, b placed) int {
		x, y := &m.items[a.item], &m.items[b.item]
		return cmp.Or(cmp.Compare(kindOrder(x.Kind), kindOrder(y.Kind)), slices.Compare(a.keys, b.keys), compareCauses(x.Cause, y.Cause))
	})
	sorted := make([]Item, len(places))
	for i, p := range places {
		sorted[i] = m.items[p.item]
	}
	m.items = sorted
	var rows []Row
	for begin := 0; begin < len(places); {
		first, end := &sorted[begin], begin+1
		for end < len(places) && places[end].row == places[begin].row && sorted[end].Kind == first.Kind && sorted[end].Cause == first.Cause {
			end++
		}
		rows = append(rows, m.row(places[begin].keys, sorted[begin:end:end]))
		begin = end
	}
	return rows, nil
}

// row is one row of items that have the same keys, kind and cause.
func (m *maker) row(keys []string, items []Item) Row {
	r := Row{Kind: items[0].Kind, Keys: keys, Cause: items[0].Cause, Items: items, Completeness: decimal.NewFromInt(100)}
	r.ID = m.rowID(&r)
	sources, bases := map[string]bool{}, map[ledger.Basis]bool{}
	same := m.o.Prices != nil
	for i := range items {
		item := &items[i]
		same = same && item.Price.Hour.Equal(items[0].Price.Hour)
		if !item.Price.Discount.IsZero() {
			addAll(sources, item.Price.Sources)
		}
		addAll(sources, item.Quotas)
		for basis := range item.Used {
			bases[basis] = true
		}
		if c := m.nodes[item.Node].Completeness; c.LessThan(r.Completeness) {
			r.Completeness = c
		}
	}
	if same {
		r.UnitPrice = decimal.NewNullDecimal(items[0].Price.Hour)
	}
	r.Discounts = slices.Sorted(maps.Keys(sources))
	r.Bases = slices.Sorted(maps.Keys(bases))
	return r
}

func addAll(set map[string]bool, names []string) {
	for _, name := range names {
		set[name] = true
	}
}

// keys are the values of what rows are grouped by.
func (m *maker) keys(item *Item) ([]string, error) {
	keys := make([]string, len(m.o.GroupBy))
	for i, d := range m.o.GroupBy {
		key, err := m.key(d, item)
		if err != nil {
			return nil, err
		}
		keys[i] = key
	}
	return keys, nil
}

func (m *maker) key(d Dimension, item *Item) (string, error) {
	node := &m.nodes[item.Node]
	switch d {
	case ByCluster:
		return node.Cluster, nil
	case ByNode:
		return node.Node, nil
	case ByNamespace:
		return item.Namespace, nil
	case ByPod:
		return m.within(item, item.Pod), nil
	case ByWorkload:
		if item.Workload == "" {
			return "", nil
		}
		return m.within(item, item.WorkloadKind+"/"+item.Workload), nil
	case ByTeam, ByCostCenter:
		team, err := m.o.Teams.Of(item.Namespace, m.namespaceLabels(item.Namespace))
		if d == ByTeam {
			return team.Name, err
		}
		return team.CostCenter, err
	case ByResource:
		return item.Resource, nil
	case ByMode:
		return string(item.Mode), nil
	case ByModel:
		return item.Model, nil
	case ByProfile:
		return item.Profile, nil
	case ByDay:
		return m.cal.dayKey(item.Start), nil
	case ByHour:
		return m.cal.hourKey(item.Start), nil
	}
	if name, ok := strings.CutPrefix(string(d), labelPrefix); ok {
		return item.Labels[name], nil
	}
	if name, ok := strings.CutPrefix(string(d), namespaceLabelPrefix); ok {
		return m.namespaceLabels(item.Namespace)[name], nil
	}
	return node.Labels[strings.TrimPrefix(string(d), nodeLabelPrefix)], nil
}

// within puts the namespace before a name that means something only within it, where no column has it.
func (m *maker) within(item *Item, name string) string {
	if name == "" || m.o.groups(ByNamespace) {
		return name
	}
	return item.Namespace + "/" + name
}

// exact are the sums of rows before they are rounded, row by row. The times are in GPU-microseconds, memory in
// millionths of a GiB-second, energy in microjoules.
type exact struct {
	gpu, used, wasted, memory, energy []sharing.Fraction
	list, net, idle, adjustment       []sharing.Fraction
	wastedCost                        []sharing.Fraction
}

func sumUp(rows []Row) *exact {
	e := &exact{}
	lists := []*[]sharing.Fraction{&e.gpu, &e.used, &e.wasted, &e.memory, &e.energy, &e.list, &e.net, &e.idle, &e.adjustment, &e.wastedCost}
	for _, list := range lists {
		*list = make([]sharing.Fraction, len(rows))
	}
	for r := range rows {
		for i := range rows[r].Items {
			e.add(r, &rows[r].Items[i])
		}
	}
	return e
}

func (e *exact) add(r int, item *Item) {
	plus := func(list []sharing.Fraction, f sharing.Fraction) { list[r] = list[r].Add(f) }
	whole := func(n int64) sharing.Fraction { return sharing.NewFraction(n, 1) }
	wasted := item.wasted()
	plus(e.gpu, whole(item.GPU))
	plus(e.used, whole(item.used()))
	plus(e.wasted, whole(wasted))
	plus(e.memory, whole(millionths(item.Memory)))
	plus(e.energy, whole(item.Energy))
	if item.Kind == KindAdjustment {
		plus(e.adjustment, item.Net)
		return
	}
	plus(e.list, item.List)
	plus(e.net, item.Net)
	plus(e.idle, item.Idle)
	if item.GPU != 0 && wasted != 0 {
		plus(e.wastedCost, item.Net.Mul(sharing.NewFraction(wasted, item.GPU)))
	}
}

// millionths is a float in whole millionths: sums of those do not depend on their order. What is no number is 0.
func millionths(f float64) int64 {
	f = math.Round(f * 1e6)
	if math.IsNaN(f) || math.Abs(f) > math.MaxInt64/2 {
		return 0
	}
	return int64(f)
}

// fill sets the rounded sums of the rows and returns those of all.
func (m *maker) fill(rows []Row) Sums {
	e := sumUp(rows)
	var total Sums
	ofHour := big.NewRat(pow10(quantityDecimals), hour)
	ofKWh := big.NewRat(pow10(quantityDecimals), 1000*hour)
	for _, c := range []struct {
		unit   *big.Rat
		values []sharing.Fraction
		of     func(*Sums) *decimal.Decimal
	}{
		{ofHour, e.gpu, func(s *Sums) *decimal.Decimal { return &s.GPUHours }},
		{ofHour, e.used, func(s *Sums) *decimal.Decimal { return &s.UsedHours }},
		{ofHour, e.wasted, func(s *Sums) *decimal.Decimal { return &s.WastedHours }},
		{ofHour, e.memory, func(s *Sums) *decimal.Decimal { return &s.MemoryHours }},
		{ofKWh, e.energy, func(s *Sums) *decimal.Decimal { return &s.Energy }},
	} {
		rounded, sum := columns(c.unit, c.values)[0].largestRemainder()
		for r := range rows {
			*c.of(&rows[r].Sums) = decimal.NewFromBigInt(rounded[r], -quantityDecimals)
		}
		*c.of(&total) = decimal.NewFromBigInt(sum, -quantityDecimals)
	}
	if m.o.Prices != nil {
		fillMoney(e, rows, &total, m.o.Prices.Decimals())
	}
	return total
}

func fillMoney(e *exact, rows []Row, total *Sums, decimals int32) {
	unit := big.NewRat(pow10(decimals), 1)
	c := columns(unit, e.list, e.net, e.idle, e.adjustment)
	money := newMoney(c[0], c[1], c[2], c[3])
	money.round()
	for r := range rows {
		setMoney(&rows[r].Sums, money.row(r), decimals)
	}
	setMoney(total, money.sum(), decimals)
	wasted := columns(unit, e.wastedCost)[0]
	for r := range rows {
		s := &rows[r].Sums
		cost := decimal.NewFromBigInt(halfEven(wasted.numerators[r], wasted.den), -decimals)
		s.WastedCost = decimal.Max(decimal.Min(cost, s.NetCost), decimal.Zero)
		total.WastedCost = total.WastedCost.Add(s.WastedCost)
	}
}

func setMoney(s *Sums, amounts [cells]*big.Int, decimals int32) {
	for i, cell := range [cells]*decimal.Decimal{
		cellList: &s.ListCost, cellDiscount: &s.Discount, cellNet: &s.NetCost, cellIdle: &s.IdleCost, cellAdjustment: &s.Adjustment, cellTotal: &s.TotalCost,
	} {
		*cell = decimal.NewFromBigInt(amounts[i], -decimals)
	}
}

func pow10(n int32) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}

// policyOf is the idle policy that a bill names; none without money.
func (o *Options) policyOf() prices.IdlePolicy {
	if o.Prices == nil {
		return ""
	}
	return o.Prices.Idle()
}
