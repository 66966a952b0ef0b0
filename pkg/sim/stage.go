// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// pluginLag is how long after the kubelet's return its device plugins register anew.
const pluginLag = 5 * time.Second

// stage plays one round of a scenario and writes down its states.
type stage struct {
	s     *Scenario
	seed  uint64
	uuids []string
	now   time.Duration

	cards   []cardState
	dirty   []bool
	units   []*unit
	devices []gpu.Device
	changed bool

	active, pending []*placement
	held            map[seatKey]*placement
	sick            map[sickKey]int
	away            map[string]int
	down            int
	// delays are of the slow events under way, by GPU; -1 is the kubelet, whose longest
	// is lag.
	delays map[int][]time.Duration
	lag    time.Duration
	order  int

	states []*nodeState
}

// action is something that happens at an instant. At one instant pods end first,
// then the node changes, then pods start.
type action struct {
	at    time.Duration
	class int
	do    func()
}

func play(s *Scenario, seed uint64, uuids []string) *timeline {
	g := &stage{
		s: s, seed: seed, uuids: uuids,
		cards: make([]cardState, len(s.cards)), dirty: make([]bool, len(s.cards)),
		held: map[seatKey]*placement{}, sick: map[sickKey]int{}, away: map[string]int{},
		delays: map[int][]time.Duration{},
	}
	for i := range s.cards {
		g.cards[i].lost = s.cards[i].lost
		g.cards[i].setSlots(s, i, uuids[i], s.cards[i].slots)
		g.dirty[i] = true
	}
	g.refreshInventory()
	actions := g.actions()
	slices.SortStableFunc(actions, func(a, b action) int {
		if a.at != b.at {
			return int(max(min(a.at-b.at, 1), -1))
		}
		return a.class - b.class
	})
	for i := 0; ; {
		for ; i < len(actions) && actions[i].at == g.now; i++ {
			actions[i].do()
		}
		g.seatPending()
		g.record()
		if i == len(actions) || s.Loop > 0 && actions[i].at >= s.Loop {
			break
		}
		g.now = actions[i].at
	}
	l := &timeline{states: g.states, loop: s.Loop, placements: g.order}
	l.happenings, l.perRound = happenings(s, uuids)
	l.boots = boots(s)
	if s.Loop > 0 {
		last := g.states[len(g.states)-1]
		for _, c := range last.cards {
			draw, pcie, up := c.areasAt(s.Loop.Seconds())
			heard := s.Loop
			if c.silent() {
				heard = c.heard
			}
			l.closing = append(l.closing, cardTotals{draw, pcie, up, c.dbe, c.volatileDBE, c.reset, c.xid, heard})
		}
	}
	for _, p := range g.active {
		p.lasting = p.start == 0 && p.end == 0
	}
	return l
}

func (g *stage) actions() []action {
	var out []action
	add := func(at time.Duration, class int, do func()) { out = append(out, action{at, class, do}) }
	for i := range g.s.pods {
		spec := &g.s.pods[i]
		for c := range spec.copies {
			for _, p := range g.turns(spec, i, c) {
				add(p.start, 2, func() { g.pending = append(g.pending, p) })
				if p.end > 0 {
					add(p.end, 0, func() { g.end(p) })
				}
			}
		}
	}
	for i := range g.s.events {
		e := &g.s.events[i]
		begin, end := g.effect(e)
		add(e.at, 1, begin)
		if end != nil && e.last > 0 {
			lag := time.Duration(0)
			if e.do == doKubeletRestart || e.do == doReboot {
				lag = pluginLag
				add(e.at+e.last, 1, func() { g.down--; g.changed = true })
			}
			add(e.at+e.last+lag, 1, end)
		}
	}
	return out
}

// turns are the runs of one copy of a pod in a round.
func (g *stage) turns(spec *podSpec, index, copy int) []*placement {
	next := func(turn int, start, end time.Duration) *placement {
		p := &placement{spec: spec, index: index, copy: copy, turn: turn, order: g.order, start: start, end: end}
		g.order++
		return p
	}
	if spec.every == 0 {
		return []*placement{next(0, spec.start, spec.stop)}
	}
	limit := g.s.Loop
	if spec.stop > 0 {
		limit = spec.stop
	}
	var out []*placement
	// Copies of one kind are spread over the interval, and whole milliseconds keep times readable.
	first := spec.start + spec.every/time.Duration(spec.copies)*time.Duration(copy)
	for turn := 0; ; turn++ {
		h := mix(g.seed, hashText("turn"), uint64(index), uint64(copy), uint64(turn))
		start := first + spec.every*time.Duration(turn) + time.Duration(unit01(h)*float64(spec.jitter)).Truncate(time.Millisecond)
		if start >= limit {
			return out
		}
		life := spec.lifeLow + time.Duration(unit01(mix(h, 1))*float64(spec.lifeHigh-spec.lifeLow)).Truncate(time.Millisecond)
		out = append(out, next(turn, start, min(start+life, limit)))
	}
}

// effect is what an event does, and what undoes it after its time.
func (g *stage) effect(e *eventSpec) (begin, end func()) {
	card := func(change func(c *cardState)) func() {
		return func() {
			change(&g.cards[e.gpu])
			g.dirty[e.gpu] = true
		}
	}
	node := func(change func()) func() {
		return func() { change(); g.changed = true }
	}
	// A card comes back through a reset.
	back := card((*cardState).restart)
	switch e.do {
	case doXID:
		if e.instance != gpu.NoInstance {
			// The card's own field keeps the last XID of the whole card.
			return func() {}, nil
		}
		return card(func(c *cardState) { c.xid, c.touched = e.code, true }), nil
	case doECC:
		return card(func(c *cardState) {
			c.dbe, c.volatileDBE, c.xid, c.touched = c.dbe+e.count, c.volatileDBE+e.count, xidDoubleBit, true
		}), nil
	case doGPULost:
		return card(func(c *cardState) { c.lost, c.xid, c.touched = true, xidOffTheBus, true }), back
	case doGPUGone:
		return card(func(c *cardState) { c.lost, c.gone = true, true }), back
	case doGPUBack, doGPUReset:
		return back, nil
	case doReboot:
		return node(g.reboot), node(func() { g.away[""]-- })
	case doHang:
		return card(func(c *cardState) { c.hang++ }), card(func(c *cardState) { c.hang-- })
	case doSlow:
		return card(func(c *cardState) { c.slow = g.delay(e) }), card(func(c *cardState) { c.slow = g.hasten(e) })
	case doRepartition:
		return func() { g.repartition(e) }, nil
	case doKubeletRestart:
		return node(func() { g.down++; g.away[""]++ }), node(func() { g.away[""]-- })
	case doKubeletSlow:
		return node(func() { g.lag = g.delay(e) }), node(func() { g.lag = g.hasten(e) })
	case doPluginAway:
		return node(func() { g.away[e.resource]++ }), node(func() { g.away[e.resource]-- })
	case doReplicaUnhealthy:
		return node(func() { g.sicken(e, 1) }), node(func() { g.sicken(e, -1) })
	default:
		return card(func(c *cardState) { c.defects = c.defects.with(e, true) }), card(func(c *cardState) { c.defects = c.defects.with(e, false) })
	}
}

// restart is a reset of a card, which clears what the driver remembers only until then.
func (c *cardState) restart() {
	c.lost, c.gone, c.xid, c.touched, c.volatileDBE, c.reset = false, false, 0, true, 0, true
	c.defects = c.defects.afterReset()
}

// reboot restarts every card with the machine. Those that were not there when the story began
// are not there again.
func (g *stage) reboot() {
	for i := range g.cards {
		g.cards[i].restart()
		g.cards[i].lost = g.s.cards[i].lost
		g.dirty[i] = true
	}
	g.down++
	g.away[""]++
}

// delay and hasten begin and end what makes a card, or the kubelet where the event
// has none, slow. The longest delay under way counts.
func (g *stage) delay(e *eventSpec) time.Duration {
	g.delays[e.gpu] = append(g.delays[e.gpu], e.delay)
	return slices.Max(g.delays[e.gpu])
}

func (g *stage) hasten(e *eventSpec) time.Duration {
	i := slices.Index(g.delays[e.gpu], e.delay)
	g.delays[e.gpu] = slices.Delete(g.delays[e.gpu], i, i+1)
	return slices.Max(append(g.delays[e.gpu], 0))
}

// sicken marks one replica of a card's devices, or all of the card.
func (g *stage) sicken(e *eventSpec, by int) { g.sick[sickKey{e.gpu, e.replica}] += by }

func (g *stage) repartition(e *eventSpec) {
	g.cards[e.gpu].setSlots(g.s, e.gpu, g.uuids[e.gpu], e.slots)
	g.dirty[e.gpu] = true
	kept := g.cards[e.gpu].uuids
	for _, p := range slices.Clone(g.active) {
		gone := slices.ContainsFunc(p.seats, func(st seat) bool {
			return st.unit.card == e.gpu && !slices.Contains(kept, gpu.UUID(st.unit.uuid))
		})
		if gone {
			g.end(p)
		}
	}
	g.refreshInventory()
}

func (c *cardState) setSlots(s *Scenario, card int, uuid string, slots []slot) {
	c.slots, c.uuids = slots, nil
	for _, sl := range slots {
		c.uuids = append(c.uuids, gpu.UUID(s.cards[card].migUUID(uuid, sl)))
	}
}

// refreshInventory makes the list of units anew.
func (g *stage) refreshInventory() {
	g.units = nil
	for i := range g.s.cards {
		g.units = append(g.units, g.s.unitsOf(i, g.uuids[i], g.cards[i].slots)...)
	}
	g.devices, g.changed = nil, true
}

// end takes a pod away, whether it runs or waits.
func (g *stage) end(p *placement) {
	same := func(o *placement) bool { return o == p }
	g.pending = slices.DeleteFunc(g.pending, same)
	n := len(g.active)
	if g.active = slices.DeleteFunc(g.active, same); len(g.active) == n {
		return
	}
	for _, st := range p.seats {
		delete(g.held, st.key())
		g.dirty[st.unit.card] = true
	}
	g.changed = true
}

// record writes down the present state if it differs from the last.
func (g *stage) record() {
	cards := make([]*cardState, len(g.cards))
	var last *nodeState
	if len(g.states) > 0 {
		last = g.states[len(g.states)-1]
		copy(cards, last.cards)
	}
	for i := range g.cards {
		if !g.dirty[i] {
			continue
		}
		next := g.cards[i]
		next.since = g.now.Seconds()
		next.heard = -1
		if last != nil {
			next.heard = g.now
			if last.cards[i].silent() {
				next.heard = last.cards[i].heard
			}
			next.draw, next.pcie, next.up = last.cards[i].areasAt(next.since)
			if last.cards[i].lost != next.lost || last.cards[i].gone != next.gone {
				g.devices = nil
			}
		}
		next.uses = g.usesOf(i)
		cards[i] = &next
		g.dirty[i], g.changed = false, true
	}
	if !g.changed && last != nil {
		return
	}
	n := &nodeState{
		from: g.now, cards: cards, active: slices.Clone(g.active), units: g.units,
		sick: maps.Clone(g.sick), away: maps.Clone(g.away), kubeletDown: g.down > 0, kubeletDelay: g.lag,
	}
	if g.devices == nil {
		g.devices = deviceList(g.s, g.uuids, cards)
	}
	n.devices = g.devices
	g.states, g.changed = append(g.states, n), false
}
