// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The XIDs that come with what else happens to a card.
const (
	xidDoubleBit = 48
	xidOffTheBus = 79
)

// eventLimit bounds the events of one reading; the next one has those that follow.
const eventLimit = 10000

// happening is what the driver tells of at an instant of each round, so many times.
type happening struct {
	at    time.Duration
	event gpu.Event
	// count is how often, before how many the happenings before it in the round tell of.
	count, before int64
}

// happenings are what the driver tells of in one round, in the order of their times.
func happenings(s *Scenario, uuids []string) (all []happening, perRound int64) {
	add := func(e *eventSpec, kind gpu.EventKind, code int) {
		all = append(all, happening{at: e.at, count: int64(e.count), event: gpu.Event{
			Kind: kind, GPU: gpu.UUID(uuids[e.gpu]), GPUInstance: e.instance, ComputeInstance: e.computeInstance(), Code: code,
		}})
	}
	for i := range s.events {
		e := &s.events[i]
		switch {
		case s.Loop > 0 && e.at >= s.Loop:
		case e.do == doXID:
			add(e, gpu.EventXID, e.code)
		case e.do == doECC:
			add(e, gpu.EventXID, xidDoubleBit)
			add(e, gpu.EventECCDoubleBit, 0)
		case e.do == doGPULost:
			add(e, gpu.EventXID, xidOffTheBus)
		}
	}
	all = append(all, actionChanges(s, uuids)...)
	slices.SortStableFunc(all, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	for i := range all {
		all[i].before = perRound
		perRound += all[i].count
	}
	return all, perRound
}

// actionChanges are the events of which the driver tells when it changes its mind about what a
// card needs. A reset settles it, whoever asked for it.
func actionChanges(s *Scenario, uuids []string) []happening {
	type change struct {
		at        time.Duration
		gpu, code int
	}
	var changes []change
	for i := range s.events {
		e := &s.events[i]
		switch e.do {
		case doRecoveryAction:
			changes = append(changes, change{e.at, e.gpu, slices.Index(actionWords(), e.word)})
			if e.last > 0 {
				changes = append(changes, change{e.at + e.last, e.gpu, 0})
			}
		case doGPUBack, doGPUReset:
			changes = append(changes, change{e.at, e.gpu, 0})
		case doGPULost, doGPUGone:
			if e.last > 0 {
				changes = append(changes, change{e.at + e.last, e.gpu, 0})
			}
		case doReboot:
			for card := range s.cards {
				changes = append(changes, change{e.at, card, 0})
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	var all []happening
	now := make([]int, len(s.cards))
	for _, c := range changes {
		if c.code == now[c.gpu] || s.Loop > 0 && c.at >= s.Loop {
			continue
		}
		now[c.gpu] = c.code
		all = append(all, happening{at: c.at, count: 1, event: gpu.Event{
			Kind: gpu.EventRecoveryAction, GPU: gpu.UUID(uuids[c.gpu]), Code: c.code,
			GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance,
		}})
	}
	return all
}

// computeInstance is that of an event: each GPU instance has one, the whole of it.
func (e *eventSpec) computeInstance() int {
	if e.instance == gpu.NoInstance {
		return gpu.NoInstance
	}
	return 0
}

// events counts what the driver told of from the story's beginning to a time, that included.
func (l *timeline) events(elapsed time.Duration) int64 {
	if elapsed < 0 {
		return 0
	}
	round, t := int64(0), elapsed
	if l.loop > 0 {
		round, t = int64(elapsed/l.loop), elapsed%l.loop
	}
	told := l.perRound
	if i := sort.Search(len(l.happenings), func(i int) bool { return l.happenings[i].at > t }); i < len(l.happenings) {
		told = l.happenings[i].before
	}
	return round*l.perRound + told
}

// event is the k-th since the story's beginning.
func (n *Node) event(k int64) gpu.Event {
	l := n.line
	round, k := k/l.perRound, k%l.perRound
	i := sort.Search(len(l.happenings), func(i int) bool { return l.happenings[i].before > k }) - 1
	e := l.happenings[i].event
	e.Time = n.start.Add(time.Duration(round)*l.loop + l.happenings[i].at)
	return e
}

// Events are what the driver told of after one time since the story began, up to and with
// another. Read hands them over once each, this does so always. A time before the story, such
// as -1, is needed to have what happened at its very beginning.
func (n *Node) Events(after, until time.Duration) []gpu.Event {
	var out []gpu.Event
	for k, end := n.line.events(after), n.line.events(until); k < end; k++ {
		out = append(out, n.event(k))
	}
	return out
}

// tell hands over the events that no reading had yet.
func (n *Node) tell(elapsed time.Duration) []gpu.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []gpu.Event
	for end := min(n.line.events(elapsed), n.told+eventLimit); n.told < end; n.told++ {
		out = append(out, n.event(n.told))
	}
	if n.told >= n.line.events(elapsed) {
		n.hush()
	}
	return out
}

// checkEvery is how often the health of the cards is looked at, in the story's time.
const checkEvery = 30 * time.Second

// The errors of health checks, in DCGM's numbers.
const (
	frVolatileDBE     = 4
	frPagesPending    = 6
	frClocksThermal   = 10
	frClocksPower     = 12
	frNVLinkDown      = 14
	frNVLinkCritical  = 71
	frRowRemapFailure = 80
	frUncontained     = 81
	frRowRemapPending = 85
	frSRAMThreshold   = 118
	frOffTheBus       = 120
	frRecoveryAction  = 125 // and the three after it
	frContained       = 131
)

// healthAt is the last round of health checks. A card that hangs is not looked at.
func (n *Node) healthAt(elapsed time.Duration) gpu.HealthReport {
	elapsed = max(elapsed, 0).Truncate(checkEvery)
	m := n.line.at(elapsed)
	report := gpu.HealthReport{Time: n.start.Add(elapsed)}
	for i := range n.cards {
		p := &physics{node: n, card: &n.cards[i], state: m.state.cards[i], m: m, index: i}
		if p.state.hang > 0 || p.state.gone {
			continue
		}
		report.Checked = append(report.Checked, p.card.uuid)
		report.Incidents = append(report.Incidents, p.incidents()...)
	}
	return report
}

// incidents are what a health check would find on a card.
func (p *physics) incidents() []gpu.HealthIncident {
	var out []gpu.HealthIncident
	add := func(system gpu.HealthSystem, result gpu.HealthResult, code int, text string) {
		out = append(out, gpu.HealthIncident{
			GPU: p.card.uuid, GPUInstance: gpu.NoInstance, System: system, Result: result, Code: code, Text: text,
		})
	}
	if p.state.lost {
		add(gpu.HealthAll, gpu.HealthFail, frOffTheBus, "the GPU has fallen off the bus")
		return out
	}
	if p.xid() == 74 {
		add(gpu.HealthNVLink, gpu.HealthFail, frNVLinkCritical, "a critical NVLink error was seen")
	}
	if p.volatileErrors() > 0 {
		add(gpu.HealthMemory, gpu.HealthFail, frVolatileDBE, "double-bit errors since the last reset")
	}
	if p.xid() == 63 || p.state.defects.remapPending {
		add(gpu.HealthMemory, gpu.HealthWarn, frRowRemapPending, "a row waits to be remapped by a reset")
	}
	if p.xid() == 64 || p.state.defects.remapFailed {
		add(gpu.HealthMemory, gpu.HealthFail, frRowRemapFailure, "a row could not be remapped")
	}
	switch p.xid() {
	case 94:
		add(gpu.HealthMemory, gpu.HealthWarn, frContained, "a contained memory error ended a process")
	case 95:
		add(gpu.HealthMemory, gpu.HealthFail, frUncontained, "an uncontained memory error was seen")
	}
	p.defectIncidents(add)
	return sorted(out)
}

// peersAt are the ways between all cards that are listed: NVLink reaches every card that has it,
// that is not in MIG mode, and that is there. It goes through switches.
func (n *Node) peersAt(m moment) []gpu.Peer {
	status := make([]gpu.PeerStatus, len(n.cards))
	for i := range n.cards {
		switch {
		case m.state.cards[i].lost:
			status[i] = gpu.PeerUnknown
		case n.cards[i].model.nvlinks == 0 || n.scenario.cards[i].mig:
			status[i] = gpu.PeerNotSupported
		}
	}
	out := make([]gpu.Peer, 0, len(n.cards)*(len(n.cards)-1))
	for i := range n.cards {
		for j := range n.cards {
			if i != j && !m.state.cards[i].gone && !m.state.cards[j].gone {
				out = append(out, gpu.Peer{From: n.cards[i].uuid, To: n.cards[j].uuid, Status: max(status[i], status[j])})
			}
		}
	}
	return out
}

// checkInstances sees that an event names a GPU instance that its GPU has by then.
func (p *parser) checkInstances() {
	layouts := make([][]slot, len(p.s.cards))
	for i := range p.s.cards {
		layouts[i] = p.s.cards[i].slots
	}
	for i := range p.s.events {
		e := &p.s.events[i]
		if e.do == doRepartition {
			layouts[e.gpu] = e.slots
		}
		if e.instance == gpu.NoInstance {
			continue
		}
		var ids []int
		for _, sl := range layouts[e.gpu] {
			ids = append(ids, sl.instanceID(p.s.cards[e.gpu].model.capacity.Memory))
		}
		if !slices.Contains(ids, e.instance) {
			there := "none"
			if len(ids) > 0 {
				there = strings.Trim(fmt.Sprint(ids), "[]")
			}
			p.at(e.line, "GPU %d has no GPU instance %d at %s (it has %s)", e.gpu, e.instance, e.at, there)
		}
	}
}
