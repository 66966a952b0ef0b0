// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"cmp"
	"math/big"
	"slices"
)

// The columns of money. In each row list = discount + net, and total = net + idle + adjustment; each column adds
// up to its sum; and that must be so of what is printed too. A cell is one arc of a network in which money
// flows, a row two of its vertices and a column one:
//
//	X -list-> Lists -> row's left -> Discounts -discount-> X
//	                   row's left -net-> row's right
//	Idles, Adjustments -> row's right -> Totals -total-> Y -idle-> Idles, -adjustment-> Adjustments, -net-> X
//
// Exact amounts are a flow that is kept at every vertex, and for such a network there is always a flow in whole numbers too in
// which each arc is rounded down or up and whole ones stay. It is found by pushing along circles of fractional
// arcs until none is left.
const (
	cellList = iota
	cellDiscount
	cellNet
	cellIdle
	cellAdjustment
	cellTotal
	cells
)

// The vertices that all rows share; after them a left and a right one for each row.
const (
	vertexX = iota
	vertexY
	vertexLists
	vertexDiscounts
	vertexIdles
	vertexAdjustments
	vertexTotals
	hubs
)

// money rounds the columns of money.
type money struct {
	den  *big.Int
	rows int
	// arcs are the sums by cell, then the cells of each row.
	arcs []arc
	// queues are the arcs of rows at each hub, those that are nearest to the next unit first.
	queues [hubs]queue
	seen   []int
	stamp  int
}

// arc is one amount on its way to a whole number: floor plus part/den.
type arc struct {
	from, to    int
	floor, part *big.Int
	// was is part at first.
	was  *big.Int
	live bool
}

// queue has arcs in an order; those before lo and from hi on are settled.
type queue struct {
	arcs   []int
	lo, hi int
}

// step is an arc of a walk, and whether it is walked from its from to its to.
type step struct {
	arc     int
	forward bool
}

// newMoney takes the columns of list, net, idle and adjustment, over one denominator. The others follow.
func newMoney(list, net, idle, adjustment column) *money {
	m := &money{den: list.den, rows: len(list.numerators)}
	m.arcs = make([]arc, 0, cells*(m.rows+1))
	m.seen = make([]int, hubs+2*m.rows)
	var sums [cells]*big.Int
	for i := range sums {
		sums[i] = new(big.Int)
	}
	rows := make([][cells]*big.Int, m.rows)
	for r := range rows {
		n := net.numerators[r]
		total := new(big.Int).Add(n, idle.numerators[r])
		rows[r] = [cells]*big.Int{
			cellList: list.numerators[r], cellNet: n, cellIdle: idle.numerators[r], cellAdjustment: adjustment.numerators[r],
			cellDiscount: new(big.Int).Sub(list.numerators[r], n), cellTotal: total.Add(total, adjustment.numerators[r]),
		}
		for i := range sums {
			sums[i].Add(sums[i], rows[r][i])
		}
	}
	ends := [cells][2]int{
		cellList: {vertexX, vertexLists}, cellDiscount: {vertexDiscounts, vertexX}, cellNet: {vertexY, vertexX},
		cellIdle: {vertexY, vertexIdles}, cellAdjustment: {vertexY, vertexAdjustments}, cellTotal: {vertexTotals, vertexY},
	}
	for i, sum := range sums {
		m.arcs = append(m.arcs, m.arc(ends[i][0], ends[i][1], sum))
	}
	for r, row := range rows {
		left, right := hubs+2*r, hubs+2*r+1
		ends := [cells][2]int{
			cellList: {vertexLists, left}, cellDiscount: {left, vertexDiscounts}, cellNet: {left, right},
			cellIdle: {vertexIdles, right}, cellAdjustment: {vertexAdjustments, right}, cellTotal: {right, vertexTotals},
		}
		for i, n := range row {
			m.arcs = append(m.arcs, m.arc(ends[i][0], ends[i][1], n))
		}
	}
	m.line()
	return m
}

func (m *money) arc(from, to int, n *big.Int) arc {
	floor, part := new(big.Int).DivMod(n, m.den, new(big.Int))
	return arc{from: from, to: to, floor: floor, part: part, was: new(big.Int).Set(part), live: part.Sign() != 0}
}

// line orders the arcs at each hub.
func (m *money) line() {
	for cell, hub := range map[int]int{
		cellList: vertexLists, cellDiscount: vertexDiscounts, cellIdle: vertexIdles, cellAdjustment: vertexAdjustments, cellTotal: vertexTotals,
	} {
		var q queue
		for r := range m.rows {
			if id := cells*(r+1) + cell; m.arcs[id].live {
				q.arcs = append(q.arcs, id)
			}
		}
		slices.SortFunc(q.arcs, func(a, b int) int { return cmp.Or(m.arcs[b].part.Cmp(m.arcs[a].part), cmp.Compare(a, b)) })
		q.hi = len(q.arcs)
		m.queues[hub] = q
	}
}

// round settles every arc. The sums come first: total and net go to the nearest whole number, the others to the
// nearest that those leave them. Then come the cells, which go up where they have the largest remainders.
func (m *money) round() {
	for _, cell := range []int{cellTotal, cellNet, cellList, cellAdjustment} {
		m.settleSum(cell)
	}
	for _, hub := range []int{vertexTotals, vertexLists, vertexDiscounts, vertexIdles, vertexAdjustments} {
		for {
			first, ok := m.first(hub)
			if !ok {
				break
			}
			m.push(m.favoured(m.circle(hub, first)))
		}
	}
}

// settleSum pushes one sum to the whole number that was nearest to it. While it is fractional there is a circle through it.
func (m *money) settleSum(cell int) {
	sum := &m.arcs[cell]
	target := halfEven(new(big.Int).Add(new(big.Int).Mul(sum.floor, m.den), sum.was), m.den)
	up := target.Cmp(sum.floor) > 0
	for sum.live {
		from, to := sum.to, sum.from
		if !up {
			from, to = to, from
		}
		m.stamp++
		path, ok := m.path(from, to, cell, up, nil)
		if !ok {
			return
		}
		m.push(append(path, step{cell, up}))
	}
}

// path finds a way from one vertex to another by fractional arcs other than one, each vertex at most once. At a hub
// it tries those cells first that go where up says by themselves, and another sum last.
func (m *money) path(from, to, without int, up bool, so []step) ([]step, bool) {
	if from == to {
		return so, true
	}
	m.seen[from] = m.stamp
	try := func(id int) ([]step, bool) {
		a := &m.arcs[id]
		if !a.live || id == without {
			return nil, false
		}
		next := a.to
		if from == a.to {
			next = a.from
		}
		if m.seen[next] == m.stamp {
			return nil, false
		}
		return m.path(next, to, without, up, append(so, step{id, from == a.from}))
	}
	if from < hubs {
		q := m.queues[from]
		for i := q.lo; i < q.hi; i++ {
			id := q.arcs[i]
			if !up {
				id = q.arcs[q.hi-1-(i-q.lo)]
			}
			if path, ok := try(id); ok {
				return path, true
			}
		}
	}
	for _, id := range m.fixed(from) {
		if path, ok := try(id); ok {
			return path, true
		}
	}
	return nil, false
}

// fixed are the arcs of a vertex that are no cell at a hub: all of a row's vertex, the sums of a hub.
func (m *money) fixed(vertex int) []int {
	switch vertex {
	case vertexX:
		return []int{cellDiscount, cellList, cellNet}
	case vertexY:
		return []int{cellIdle, cellAdjustment, cellNet, cellTotal}
	case vertexLists:
		return []int{cellList}
	case vertexDiscounts:
		return []int{cellDiscount}
	case vertexIdles:
		return []int{cellIdle}
	case vertexAdjustments:
		return []int{cellAdjustment}
	case vertexTotals:
		return []int{cellTotal}
	}
	row := cells * ((vertex-hubs)/2 + 1)
	if (vertex-hubs)%2 == 0 {
		return []int{row + cellNet, row + cellList, row + cellDiscount}
	}
	return []int{row + cellNet, row + cellTotal, row + cellIdle, row + cellAdjustment}
}

// first is the first fractional cell at a hub.
func (m *money) first(hub int) (int, bool) {
	q := &m.queues[hub]
	for q.lo < q.hi && !m.arcs[q.arcs[q.lo]].live {
		q.lo++
	}
	for q.lo < q.hi && !m.arcs[q.arcs[q.hi-1]].live {
		q.hi--
	}
	if q.lo == q.hi {
		return 0, false
	}
	return q.arcs[q.lo], true
}

// other is a fractional arc of a vertex beside the one by which it was reached. There always is one, since the parts of
// a vertex's arcs add up to a whole number. At a hub it is from the other end of the queue.
func (m *money) other(vertex, reached int) (int, bool) {
	if vertex < hubs {
		if lo, ok := m.first(vertex); ok {
			q := &m.queues[vertex]
			if hi := q.arcs[q.hi-1]; hi != reached {
				return hi, true
			}
			if lo != reached {
				return lo, true
			}
		}
	}
	for _, id := range m.fixed(vertex) {
		if id != reached && m.arcs[id].live {
			return id, true
		}
	}
	return 0, false
}

// circle walks by fractional arcs from a hub until it comes to where it was.
func (m *money) circle(hub, first int) []step {
	at := map[int]int{hub: 0}
	var walk []step
	vertex, id := hub, first
	for {
		a := &m.arcs[id]
		forward := vertex == a.from
		walk = append(walk, step{id, forward})
		vertex = a.to
		if !forward {
			vertex = a.from
		}
		if begin, ok := at[vertex]; ok {
			return walk[begin:]
		}
		at[vertex] = len(walk)
		next, ok := m.other(vertex, id)
		if !ok {
			// It cannot be: see other. Giving the arc up keeps the loop from being endless.
			m.arcs[id].live = false
			return nil
		}
		id = next
	}
}

// favoured turns a circle round where that takes its amounts nearer to what they were.
func (m *money) favoured(circle []step) []step {
	cost := new(big.Int)
	for _, s := range circle {
		a := &m.arcs[s.arc]
		// To be up costs den - 2 × part more than to be down.
		up := new(big.Int).Sub(m.den, new(big.Int).Lsh(a.was, 1))
		if s.forward {
			cost.Add(cost, up)
		} else {
			cost.Sub(cost, up)
		}
	}
	if cost.Sign() <= 0 {
		return circle
	}
	turned := make([]step, 0, len(circle))
	for _, s := range slices.Backward(circle) {
		turned = append(turned, step{s.arc, !s.forward})
	}
	return turned
}

// push moves as much along a circle as makes one of its arcs whole.
func (m *money) push(circle []step) {
	var most *big.Int
	for _, s := range circle {
		room := m.arcs[s.arc].part
		if s.forward {
			room = new(big.Int).Sub(m.den, room)
		}
		if most == nil || room.Cmp(most) < 0 {
			most = new(big.Int).Set(room)
		}
	}
	for _, s := range circle {
		a := &m.arcs[s.arc]
		if s.forward {
			a.part.Add(a.part, most)
		} else {
			a.part.Sub(a.part, most)
		}
		switch {
		case a.part.Sign() == 0:
			a.live = false
		case a.part.Cmp(m.den) == 0:
			a.live = false
			a.floor.Add(a.floor, big.NewInt(1))
			a.part.SetInt64(0)
		}
	}
}

// row is the cells of a row, sum the sums, in whole units.
func (m *money) row(r int) [cells]*big.Int { return m.amounts(cells * (r + 1)) }

func (m *money) sum() [cells]*big.Int { return m.amounts(0) }

func (m *money) amounts(from int) (amounts [cells]*big.Int) {
	for i := range amounts {
		amounts[i] = m.arcs[from+i].floor
	}
	return amounts
}
