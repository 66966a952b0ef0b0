// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// timeline is one round of the story, worked out whole: the node's states between
// the moments at which something changes. Whatever is asked of a node is looked up
// here, so answers do not depend on what was asked before.
type timeline struct {
	states []*nodeState
	// loop is zero for a story without an end.
	loop time.Duration
	// closing are the cards' states at the end of a round; nil without a loop.
	closing []cardTotals
	// placements is how many pods one round starts.
	placements int
	// happenings are what the driver tells of in a round, perRound how many events that is.
	happenings []happening
	perRound   int64
	// boots are the times in a round at which the node is restarted.
	boots []time.Duration
}

// nodeState is the node between two changes. Immutable.
type nodeState struct {
	from    time.Duration
	cards   []*cardState
	active  []*placement
	devices []gpu.Device
	units   []*unit
	// sick are ids that the plugin reports unhealthy, away resources that no plugin
	// serves ("" is all of them).
	sick map[sickKey]int
	away map[string]int

	kubeletDown  bool
	kubeletDelay time.Duration
}

// cardState is one card between two changes of it. Immutable.
type cardState struct {
	since float64
	// lost: the driver cannot reach it. A card that is gone is lost too, and not listed.
	lost, gone bool
	// hang counts the events that keep the driver from answering.
	hang int
	// heard is the time in the round at which a card that is silent fell so, -1 where it was
	// silent from the round's beginning.
	heard time.Duration
	slow  time.Duration
	slots []slot
	uuids []gpu.UUID
	uses  []use
	// xid is the last one; touched says that this round has spoken of it.
	xid     int
	touched bool
	// dbe counts double-bit errors of the round, volatile those since the card came
	// back; reset says that it did so in this round.
	dbe, volatileDBE int
	reset            bool
	defects          defects
	// Areas since the round's beginning, up to since: of power drawn above idle and
	// of PCIe traffic (in units of the card's full), and the time the card was there.
	draw, pcie, up float64
}

// cardTotals is what a card's counters gain in one round, and how it is left.
type cardTotals struct {
	draw, pcie, up   float64
	dbe, volatileDBE int
	reset            bool
	xid              int
	// heard is the time in the round of its last answer, -1 for none.
	heard time.Duration
}

// silent reports whether nothing is heard from the card.
func (c *cardState) silent() bool { return c.lost || c.hang > 0 }

// use is one container's load on one device of a card.
type use struct {
	pod  *placement
	slot int
	load load
	// weight turns the load into utilisation of the device, part of that into the card's.
	weight, part float64
	// memoryMiB is the holder's share of the device's memory.
	memoryMiB float64
	start     float64
	// base is the load's integral at the state's beginning.
	base float64
}

// placement is one pod in one round, with the device ids it has for life.
type placement struct {
	spec              *podSpec
	index, copy, turn int
	order             int
	start, end        time.Duration
	seats             []seat
	devices           []held
	// lasting: it is there through the whole round, so the next round's is the same pod.
	lasting bool
}

// held is a device that a pod has seats on, and how many.
type held struct {
	unit  *unit
	seats int
}

type seat struct {
	unit    *unit
	replica int
}

type seatKey struct {
	uuid    string
	replica int
}

// sickKey is a replica of all of a card's devices; replica -1 is the whole card.
type sickKey struct{ card, replica int }

func (s seat) key() seatKey { return seatKey{s.unit.uuid, s.replica} }

// moment is an instant of the story.
type moment struct {
	round int64
	// t is the time in the round, seconds of it as a float.
	t       time.Duration
	seconds float64
	// total is the time since the story's beginning, in seconds.
	total float64
	state *nodeState
}

func (l *timeline) at(elapsed time.Duration) moment {
	elapsed = max(elapsed, 0)
	m := moment{t: elapsed, total: elapsed.Seconds()}
	if l.loop > 0 {
		m.round, m.t = int64(elapsed/l.loop), elapsed%l.loop
	}
	m.seconds = m.t.Seconds()
	i := sort.Search(len(l.states), func(i int) bool { return l.states[i].from > m.t })
	m.state = l.states[i-1]
	return m
}

// nextChange is the first instant after elapsed at which the node's state changes;
// false when it never does again.
func (l *timeline) nextChange(elapsed time.Duration) (time.Duration, bool) {
	m := l.at(elapsed)
	i := sort.Search(len(l.states), func(i int) bool { return l.states[i].from > m.t })
	switch {
	case i < len(l.states):
		return elapsed + l.states[i].from - m.t, true
	case l.loop > 0:
		return elapsed + l.loop - m.t, true
	default:
		return 0, false
	}
}

// heard is when a card last answered, as time since the story's beginning; false if never.
func (l *timeline) heard(m moment, card int) (time.Duration, bool) {
	c := m.state.cards[card]
	begun := time.Duration(m.round) * l.loop
	switch {
	case !c.silent():
		return begun + m.t, true
	case c.heard >= 0:
		return begun + c.heard, true
	case m.round == 0 || l.closing[card].heard < 0:
		return 0, false
	default:
		return begun - l.loop + l.closing[card].heard, true
	}
}

// areas are a card's integrals since the beginning of the story.
func (l *timeline) areas(m moment, card int) (draw, pcie, up float64) {
	draw, pcie, up = m.state.cards[card].areasAt(m.seconds)
	if m.round > 0 {
		r, c := float64(m.round), &l.closing[card]
		draw, pcie, up = draw+r*c.draw, pcie+r*c.pcie, up+r*c.up
	}
	return draw, pcie, up
}

// areasAt are the integrals in the round up to t, which lies in this state.
func (c *cardState) areasAt(t float64) (draw, pcie, up float64) {
	draw, pcie, up = c.draw, c.pcie, c.up
	if c.lost {
		return draw, pcie, up
	}
	for i := range c.uses {
		u := &c.uses[i]
		area := (u.load.integral(t-u.start) - u.base) * u.weight * u.part
		draw += area * u.load.kind.draw
		pcie += area * u.load.kind.pcie
	}
	return draw, pcie, up + t - c.since
}

// name is the pod's name in a round.
func (p *placement) name(seed uint64, round int64) string {
	switch {
	case p.spec.every > 0 || p.spec.random:
		return p.spec.name + "-" + suffix(p.hash(seed, round), 5)
	case p.spec.copies > 1:
		return p.spec.name + "-" + strconv.Itoa(p.copy)
	default:
		return p.spec.name
	}
}

// hash is the pod's own chance; a lasting pod is the same in every round.
func (p *placement) hash(seed uint64, round int64) uint64 {
	if p.lasting {
		round = 0
	}
	return mix(seed, hashText("pod"), uint64(p.index), uint64(p.copy), uint64(p.turn), uint64(round))
}

// pid is the process id of the pod's GPU process: unique among the pods of any instant.
func (p *placement) pid(perRound int, round int64) uint32 {
	const spacing, first, rounds = 7, 4000, 100
	n := p.order
	if !p.lasting {
		n += perRound * (1 + int(round%rounds))
	}
	return uint32(first + n*spacing)
}

// offered reports whether the kubelet would hand out an id now.
func (n *nodeState) offered(st seat) bool {
	u := st.unit
	return !n.cards[u.card].lost && n.away[""] == 0 && n.away[u.resource] == 0 &&
		n.sick[sickKey{u.card, st.replica}] == 0 && n.sick[sickKey{u.card, -1}] == 0
}

// seat gives the pod its ids.
func (p *placement) seat(seats []seat) {
	p.seats = seats
	for _, st := range seats {
		i := slices.IndexFunc(p.devices, func(d held) bool { return d.unit == st.unit })
		if i < 0 {
			i = len(p.devices)
			p.devices = append(p.devices, held{unit: st.unit})
		}
		p.devices[i].seats++
	}
}
