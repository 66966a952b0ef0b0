// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// finding is something that a fold saw on a card.
type finding struct {
	subject Subject
	kind    Kind
	origin  origin
	class   Class
	cause   string
	xid     int
	// at is when it happened, count how often.
	at     time.Time
	count  uint64
	repeat Repeat
	// once says that nobody knows when each was: for repetition they are one.
	once bool
}

// oneFault is how close together XIDs of a code are one occurrence for repetition: the driver tells one for
// each channel that a fault has hit.
const oneFault = time.Second

// happen makes or refreshes the condition of something that happened. What was evidence of its
// recovery until now is void.
func (f *fold) happen(c *card, n finding) {
	q := f.condition(c, n)
	if q == nil {
		return
	}
	f.durable = true
	withdrew := q.Withdraws()
	q.Last, q.BootID = later(q.Last, n.at), f.boot
	q.Count += n.count
	q.Freed, q.Returned, q.Asks, q.told = false, false, time.Time{}, f.now
	q.Recovery, q.RecoveringSince = "", time.Time{}
	q.Own, q.Origin = n.class, n.origin
	if !n.repeat.IsZero() {
		q.Recent = n.recent(q.Recent)
		q.Raised = q.Raised || len(q.Recent) >= n.repeat.Count
	}
	q.Class, q.Lowered = q.Own, false
	q.Cause = n.cause
	q.Evidence = q.Cause
	if q.Raised && n.repeat.Class > q.Own {
		q.Class = n.repeat.Class
		q.Evidence = line(fmt.Sprintf("%s; %d times within %v", q.Cause, n.repeat.Count, n.repeat.Within))
	}
	if q.Withdraws() && !withdrew {
		f.cameBack(c, q.Subject, q.Kind)
	}
}

// recent are the occurrences that count for repetition after a finding.
func (n *finding) recent(before []time.Time) []time.Time {
	out := make([]time.Time, 0, len(before)+1)
	again := false
	for _, t := range before {
		apart := n.at.Sub(t)
		if apart < n.repeat.Within {
			out = append(out, t)
		}
		again = again || n.xid != 0 && apart.Abs() < oneFault
	}
	times := min(n.count, uint64(n.repeat.Count))
	if n.once {
		times = 1
	}
	for range times {
		if !again {
			out = append(out, n.at)
		}
	}
	return out[max(0, len(out)-mostRecent):]
}

// stands makes or refreshes the condition of something that is so.
func (f *fold) stands(c *card, n finding) {
	q := f.condition(c, n)
	if q == nil {
		return
	}
	withdrew := q.Withdraws()
	q.Last = later(q.Last, n.at)
	if q.Count == 0 || q.Class != n.class || q.Cause != n.cause || q.BootID != f.boot || !q.Set || q.Recovery != "" {
		f.durable = true
	}
	q.Count = max(q.Count, 1)
	q.BootID, q.Set, q.Own, q.Class, q.Origin = f.boot, true, n.class, n.class, n.origin
	q.Cause, q.Evidence = n.cause, n.cause
	q.Freed, q.Returned = false, false
	q.Recovery, q.RecoveringSince = "", time.Time{}
	if q.Withdraws() && !withdrew {
		f.cameBack(c, q.Subject, q.Kind)
	}
}

// condition is the one that a finding is of, made if there is none; nil where there is no
// room for it, which is never the case for one that withdraws beside others that do not.
func (f *fold) condition(c *card, n finding) *condition {
	n.subject.GPU = c.UUID
	if i := c.find(n.subject, n.kind); i >= 0 {
		return &c.Conditions[i]
	}
	if len(c.Conditions) >= mostConditions {
		i := slices.IndexFunc(c.Conditions, func(q condition) bool { return !q.Withdraws() })
		if i < 0 {
			return nil
		}
		c.Conditions = slices.Delete(c.Conditions, i, i+1)
	}
	c.Conditions = append(c.Conditions, condition{
		Condition: Condition{Subject: n.subject, Kind: n.kind, Since: n.at, XID: n.xid}, Origin: n.origin,
	})
	return &c.Conditions[len(c.Conditions)-1]
}

// cameBack counts a fault that evidence had ended, and calls a card with too many of them flapping.
func (f *fold) cameBack(c *card, s Subject, k Kind) {
	i := slices.IndexFunc(c.Past, func(p past) bool { return p.Kind == k && p.Subject == s })
	if i < 0 || f.cfg.FlapLimit < 0 {
		return
	}
	if f.now.Sub(c.Past[i].last()) > f.cfg.FlapWindow {
		return
	}
	c.Past = slices.Clone(c.Past)
	p := &c.Past[i]
	returns := make([]time.Time, 0, len(p.Returns)+1)
	for _, t := range p.Returns {
		if f.now.Sub(t) < f.cfg.FlapWindow {
			returns = append(returns, t)
		}
	}
	returns = append(returns, f.now)
	p.Returns = returns[max(0, len(returns)-mostRecent):]
	if len(p.Returns) < f.cfg.FlapLimit {
		return
	}
	f.happen(c, finding{
		subject: WholeCard(c.UUID), kind: KindFlapping, origin: ofFlapping, class: ClassHardware, at: f.now, count: 1,
		cause: line(fmt.Sprintf("%s came back %d times within %v after it had recovered", k, len(p.Returns), f.cfg.FlapWindow)),
	})
}

// recovered remembers that evidence ended a withdrawing condition, or made it withdraw no more.
func (f *fold) recovered(c *card, q *condition) {
	c.Settled = f.now
	if q.Origin == ofFact {
		return
	}
	f.remember(c, past{Subject: q.Subject, Kind: q.Kind, Ended: f.now})
}

// remember notes an end.
func (f *fold) remember(c *card, end past) {
	c.Past = slices.Clone(c.Past)
	if i := slices.IndexFunc(c.Past, func(p past) bool { return p.Kind == end.Kind && p.Subject == end.Subject }); i >= 0 {
		c.Past[i].Ended = end.Ended
		return
	}
	if len(c.Past) >= mostPast {
		c.Past = slices.Delete(c.Past, 0, 1)
	}
	c.Past = append(c.Past, end)
}

// void takes back that a condition is recovering.
func (f *fold) void(q *condition) {
	if q.Recovery != "" || !q.Asks.IsZero() {
		q.Recovery, q.RecoveringSince, q.Asks = "", time.Time{}, time.Time{}
		f.durable = true
	}
}

// stood says whether the evidence of a condition's end has stood for long enough. It begins to
// stand with the first call, or when it is other evidence than before.
func (f *fold) stood(q *condition, evidence string) bool {
	if q.Recovery != evidence {
		q.Recovery, q.RecoveringSince = evidence, f.now
		f.durable = true
	}
	return f.now.Sub(q.RecoveringSince) >= f.cfg.HoldDown
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// when is the time of something that happened, on the clock of the state: not later than now, and
// now where the source's own time cannot be.
func (f *fold) when(t time.Time) time.Time {
	t = utc(t)
	if t.After(f.now) || t.Year() < 2000 {
		return f.now
	}
	return t
}

// instance is the subject of an event of a part of the card.
func (c *card) instance(gi, ci int, before []device) Subject {
	s := Subject{GPU: c.UUID, GPUInstance: gi, ComputeInstance: ci}
	for _, parts := range [][]device{c.Parts, before} {
		for i := range parts {
			if parts[i].GPUInstance == gi && parts[i].Placement.Size > 0 {
				s.Placement = parts[i].Placement
				return s
			}
		}
	}
	if gi == gpu.NoInstance {
		s.ComputeInstance = gpu.NoInstance
	}
	return s
}
