// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// nodeTrouble is a device that is not plainly healthy, with its conditions and whom it hurts.
type nodeTrouble struct {
	Device, Name string
	// Listed is false of a GPU that has no card on the page.
	Listed     bool
	Verdict    nodeVerdict
	Conditions []nodeCondition
	// Heirs are MIG devices that have the verdict of their card.
	Heirs   int
	Holders []string
	More    int
	// Unseen says that somebody may hold it whom nobody could see.
	Unseen bool
	uuid   gpu.UUID
}

type nodeCondition struct {
	Kind, Class, Asks, Evidence, Recovery string
	Since, Last, Recovering               *moment
	Count                                 uint64
}

// troubles are the devices that are not plainly healthy, the worst first. A MIG device that suffers from nothing of
// its own is counted with its card.
func (p *nodePainter) troubles() (out []nodeTrouble, more int) {
	if p.s.Health == nil {
		return nil, 0
	}
	holders, heirs := holdersOf(&p.s.Division), make(map[gpu.UUID]int)
	plain := func(v *health.Verdict) bool { return v.Status == health.Healthy && !v.Avoid }
	for i := range p.s.Health.Verdicts {
		v := &p.s.Health.Verdicts[i]
		own := ownConditions(v)
		if plain(v) {
			continue
		}
		if card := p.verdicts[v.Card]; v.Device != v.Card && len(own) == 0 && card != nil && !plain(card) {
			heirs[v.Card]++
			continue
		}
		t := nodeTrouble{Device: displayed(string(v.Device)), Name: displayed(string(v.Device)), Verdict: p.verdictOf(v), uuid: v.Device}
		if d := p.n.devices[v.Device]; d != nil {
			t.Name, t.Listed = deviceName(d), true
		}
		for _, c := range own {
			t.Conditions = append(t.Conditions, p.condition(c))
		}
		t.Holders, t.More = holderNames(holders[v.Device])
		t.Unseen = p.unseen(v.Device)
		out = append(out, t)
	}
	for i := range out {
		out[i].Heirs = heirs[out[i].uuid]
	}
	rank := []string{"bad", "none", "warn"}
	slices.SortStableFunc(out, func(a, b nodeTrouble) int {
		return cmp.Compare(slices.Index(rank, a.Verdict.Class), slices.Index(rank, b.Verdict.Class))
	})
	kept := min(len(out), maxTroubles)
	return out[:kept], len(out) - kept
}

// unseen says whether somebody may hold a device, or a part of it, whom nobody could see.
func (p *nodePainter) unseen(device gpu.UUID) bool {
	return !p.s.Observed || slices.ContainsFunc(p.s.Division.Unallocated, func(u sharing.Unallocated) bool {
		return (u.Card == device || u.Device == device) && u.Holder == (sharing.Holder{}) && (u.Cause == sharing.CauseUnobserved || u.Cause == sharing.CauseUnattributed)
	})
}

func (p *nodePainter) condition(c *health.Condition) nodeCondition {
	return nodeCondition{
		Kind: displayed(string(c.Kind)), Class: c.Class.String(), Asks: asks(c.Class), Evidence: displayed(c.Evidence), Recovery: displayed(c.Recovery),
		Since: momentOf(c.Since, p.now), Last: momentOf(c.Last, p.now), Recovering: momentOf(c.RecoveringSince, p.now), Count: c.Count,
	}
}

// holderNames are the pods among holders, which are in the order of their pods, a few of them, and how many are left out.
func holderNames(holders []shownHolder) (names []string, more int) {
	for _, h := range holders {
		if name := displayed(h.Namespace) + "/" + displayed(h.Pod); len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	const most = 8
	kept := min(len(names), most)
	return names[:kept], len(names) - kept
}

// nodeNote is something wrong that is no verdict on a device.
type nodeNote struct{ What, Text string }

// notes are what is wrong with sources, allocations, the configuration and the books, and how many are left out.
func (p *nodePainter) notes(st *settings, sum *nodeSum) (out []nodeNote, more int) {
	if sum.Off {
		out = append(out, nodeNote{"attribution", fmt.Sprintf("the parts add up to %s GPUs and not to %d", sum.Total.Shown, len(p.n.cards))})
	}
	out = append(append(append(out, p.bookNotes(st)...), p.faultNotes()...), p.allocationNotes()...)
	kept := min(len(out), maxTroubles)
	return out[:kept], len(out) - kept
}

// faultNotes are the faults of the tick.
func (p *nodePainter) faultNotes() (out []nodeNote) {
	for _, f := range p.s.Faults {
		what := f.Source
		if f.Subject != "" {
			what = string(f.Subject)
		}
		if d := p.n.devices[f.Subject]; d != nil {
			what = deviceName(d) + ", " + what
		}
		out = append(out, nodeNote{displayed(what), displayed(f.Kind + ": " + f.Text)})
	}
	return out
}

// allocationNotes are the allocations that contradict others or are tied to no device.
func (p *nodePainter) allocationNotes() (out []nodeNote) {
	pod := func(h *sharing.Holder) string { return displayed(h.Namespace) + "/" + displayed(h.Pod) }
	for i := range p.s.Division.Conflicts {
		c := &p.s.Division.Conflicts[i]
		what, text := displayed(string(c.Device)), "conflict of allocations, "+strings.ReplaceAll(c.Kind, "_", " ")
		if d := p.n.devices[c.Device]; d != nil {
			what = deviceName(d)
		}
		if c.Loser != (sharing.Holder{}) {
			text += ": " + pod(&c.Loser) + " is not charged"
		}
		if c.Winner != (sharing.Holder{}) {
			text += ", " + pod(&c.Winner) + " is"
		}
		out = append(out, nodeNote{what, text})
	}
	for i := range p.s.Division.Unmatched {
		u := &p.s.Division.Unmatched[i]
		out = append(out, nodeNote{"allocation", fmt.Sprintf("%q of %s (%s) is tied to no device: %s", displayed(u.Allocation.DeviceID), pod(&u.Allocation.Holder),
			displayed(u.Allocation.Resource), strings.ReplaceAll(u.Reason, "_", " "))})
	}
	return out
}

// bookNotes are what is wrong with the configuration and with what is kept on disk, and what holds judging back.
func (p *nodePainter) bookNotes(st *settings) (out []nodeNote) {
	if v := p.s.Ledger; v != nil && v.State.Degraded {
		out = append(out, nodeNote{"ledger", "charges are in memory only, and a restart loses them: " + displayed(cmp.Or(v.State.Err, "the disk does not answer"))})
	}
	if err := p.s.HealthStore.Err; err != "" {
		out = append(out, nodeNote{"conditions", "they are not on disk: " + displayed(err)})
	}
	if st.failed != nil {
		out = append(out, nodeNote{"last reload", "refused: " + displayed(st.failed.Error())})
	}
	if n := st.problems[SeverityError] + st.problems[SeverityWarning]; n > 0 {
		out = append(out, nodeNote{"counter file", countOf(int(n), "problem") + ", listed in the log"})
	}
	if p.s.Health == nil {
		return out
	}
	switch r := &p.s.Health.Repartition; {
	case r.Paused:
		out = append(out, nodeNote{"MIG manager", fmt.Sprintf("GPUs are being divided anew (%s), and judging is paused until %s UTC", displayed(string(r.State)), r.Until.UTC().Format(time.DateTime))})
	case r.Overdue:
		out = append(out, nodeNote{"MIG manager", fmt.Sprintf("it divides GPUs anew (%s) for too long, so that judging goes on", displayed(string(r.State)))})
	case r.State == health.MIGFailed:
		out = append(out, nodeNote{"MIG manager", "the last division of GPUs failed"})
	}
	return out
}

// nodeEvent is something that happened.
type nodeEvent struct {
	When               *moment
	Device, Name, What string
	Listed             bool
	// Class and Asks are empty of what is no fault.
	Class, Asks string
	at          time.Time
}

// events are what happened of late, the latest first, and how many are left out.
func (p *nodePainter) events() (out []nodeEvent, more int) {
	out = append(p.xidEvents(), p.changes()...)
	slices.SortStableFunc(out, func(a, b nodeEvent) int { return b.at.Compare(a.at) })
	kept := min(len(out), maxEventRows)
	return out[:kept], len(out) - kept
}

func (p *nodePainter) event(at time.Time, device gpu.UUID, what string, class health.Class) nodeEvent {
	e := nodeEvent{When: momentOf(at, p.now), Device: displayed(string(device)), Name: displayed(string(device)), What: what, Asks: asks(class), at: at}
	if e.Asks != "" {
		e.Class = class.String()
	}
	if d := p.n.devices[device]; d != nil {
		e.Name, e.Listed = deviceName(d), true
	}
	return e
}

// xidEvents are the driver's errors within the meter's window, those of one code and part in one.
func (p *nodePainter) xidEvents() []nodeEvent {
	type source struct {
		kind gpu.EventKind
		gpu  gpu.UUID
		id   int
		code int
	}
	type run struct {
		last time.Time
		n    int
	}
	runs, order := make(map[source]*run), []source(nil)
	for i := range p.s.Recent {
		e := &p.s.Recent[i]
		at := source{e.Kind, e.GPU, e.GPUInstance, e.Code}
		if runs[at] == nil {
			runs[at] = &run{}
			order = append(order, at)
		}
		runs[at].n++
		runs[at].last = e.Time
	}
	var out []nodeEvent
	for _, at := range order {
		r := runs[at]
		what, class := p.eventText(at.kind, at.code)
		if at.id != gpu.NoInstance {
			what += fmt.Sprintf(", in GPU instance %d", at.id)
		}
		if r.n > 1 {
			what += fmt.Sprintf(", %d times", r.n)
		}
		out = append(out, p.event(r.last, at.gpu, what, class))
	}
	return out
}

func (p *nodePainter) eventText(kind gpu.EventKind, code int) (string, health.Class) {
	switch kind {
	case gpu.EventXID:
		x := p.cfg.XIDs.Lookup(code)
		return fmt.Sprintf("XID %d: %s", code, displayed(x.Name)), x.Class
	case gpu.EventECCSingleBit:
		return "a memory error of one bit, corrected", 0
	case gpu.EventECCDoubleBit:
		return "a memory error of two bits", 0
	case gpu.EventRecoveryAction:
		actions := [...]string{"nothing any more", "a reset", "a reboot", "its peers drained", "a drain and a reset"}
		if code >= 0 && code < len(actions) {
			return "the driver asks for " + actions[code], 0
		}
		return "the driver asks for action " + strconv.Itoa(code), 0
	default:
		return "event " + strconv.Itoa(code), 0
	}
}

// changes are the turns that verdicts took.
func (p *nodePainter) changes() []nodeEvent {
	r := p.s.Health
	if r == nil {
		return nil
	}
	turns := make(map[gpu.UUID]uint64)
	for i := range r.Records {
		for _, n := range r.Records[i].Transitions {
			turns[r.Records[i].Device] += n
		}
	}
	var out []nodeEvent
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		own := ownConditions(v)
		for _, c := range own {
			out = append(out, p.event(c.Since, v.Device, "began: "+displayed(string(c.Kind))+", "+displayed(c.Evidence), c.Class))
		}
		// That a device was found healthy when the exporter began is no news, and that a card's trouble is its MIG devices' is told with the card.
		if v.Since.IsZero() || v.Status == health.Healthy && turns[v.Device] < 2 || v.Device != v.Card && len(own) == 0 && p.sameAsCard(v) {
			continue
		}
		out = append(out, p.event(v.Since, v.Device, "verdict: "+v.Status.String(), 0))
	}
	for _, e := range r.Ended {
		out = append(out, p.event(e.Ended, e.GPU, "ended by evidence: "+displayed(string(e.Kind)), 0))
	}
	for i := range r.Clearings {
		c := &r.Clearings[i]
		out = append(out, p.event(c.Time, c.Device, fmt.Sprintf("cleared by %s: %s (%s ended, %d standing)",
			displayed(c.By), displayed(c.Reason), countOf(len(c.Ended), "condition"), len(c.Standing)), 0))
	}
	return out
}

func (p *nodePainter) sameAsCard(v *health.Verdict) bool {
	card := p.verdicts[v.Card]
	return card != nil && card.Status == v.Status
}

// nodeXID is how often a code was counted.
type nodeXID struct {
	Device, Name, What, Class, Asks string
	Listed                          bool
	Count                           uint64
}

// xids are the driver's errors counted in the life of the ledger, or of the exporter where there is none; the most
// frequent where there are many.
func (p *nodePainter) xids() []nodeXID {
	counts := p.s.XIDs
	if counts == nil {
		counts = p.s.Totals.XIDs
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b meter.XIDKey) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.XID, b.XID), cmp.Compare(a.GPUInstance, b.GPUInstance),
			cmp.Compare(a.ComputeInstance, b.ComputeInstance))
	})
	var out []nodeXID
	for _, key := range keys[:min(len(keys), maxTroubles)] {
		if counts[key] == 0 {
			continue
		}
		what, class := p.eventText(gpu.EventXID, key.XID)
		if key.GPUInstance != gpu.NoInstance {
			what += fmt.Sprintf(", in GPU instance %d", key.GPUInstance)
		}
		e := p.event(time.Time{}, key.GPU, what, class)
		out = append(out, nodeXID{Device: e.Device, Name: e.Name, What: what, Class: e.Class, Asks: e.Asks, Listed: e.Listed, Count: counts[key]})
	}
	return out
}

// verdictCounts says how many devices have each status: "4 healthy, 3 unhealthy, 1 unknown".
func (p *nodePainter) verdictCounts() string {
	counts := make(map[health.Status]int)
	for _, v := range p.verdicts {
		counts[v.Status]++
	}
	var words []string
	for _, status := range []health.Status{health.Healthy, health.Unhealthy, health.Unknown} {
		if counts[status] > 0 {
			words = append(words, fmt.Sprintf("%d %s", counts[status], status))
		}
	}
	return strings.Join(words, ", ")
}
