// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// endedFor is for how long the end of a withdrawing condition is told, for those who have it still.
const endedFor = 24 * time.Hour

// Ending is that a withdrawing condition is over: evidence ended it, or what somebody handed over is none
// by the table of XIDs here.
type Ending struct {
	Subject
	Kind  Kind      `json:"kind"`
	Ended time.Time `json:"ended"`
}

// Covers says whether the ending is one of c: the same fault of the same part, or of all of its card, that
// was last seen no later.
func (e Ending) Covers(c Condition) bool {
	return e.Kind == c.Kind && e.Subject.holds(c.Subject) && !c.Last.After(e.Ended)
}

// SameFault says whether q is of the kind and the part that c is, or of all of its card.
func (c Condition) SameFault(q Condition) bool { return c.Kind == q.Kind && q.holds(c.Subject) }

// holds says whether o is s, or a part of the card that s is.
func (s Subject) holds(o Subject) bool {
	return s.GPU == o.GPU && (s.GPUInstance == gpu.NoInstance || s.GPUInstance == o.GPUInstance)
}

// mostWitnessed bounds what one tick takes of conditions that others hand over.
const mostWitnessed = 256

// mostHeard bounds the count of one of them, so that counts of a foreign program never wrap round.
const mostHeard = 1 << 32

// witnesses takes over what others have seen happen and this state has not: an XID is told once, and to
// whoever listens then. From here on such a condition is like one that was heard here: it keeps its
// time, its boot and its part, has the class that this table gives it, and ends by the same evidence. What
// is known here, or is over here since it was last seen, changes nothing.
func (f *fold) witnesses() {
	n := 0
	for _, reporter := range slices.Sorted(maps.Keys(f.e.Witnessed)) {
		for i := range f.e.Witnessed[reporter] {
			if n++; n > mostWitnessed {
				return
			}
			f.witness(word(reporter), &f.e.Witnessed[reporter][i])
		}
	}
}

func (f *fold) witness(reporter string, w *Condition) {
	i := f.card(w.GPU, 0)
	if i < 0 || w.XID < 1 || w.XID > MaxXID || w.Kind != XIDKind(w.XID) {
		return
	}
	c, x := &f.d.Cards[i], f.cfg.XIDs.Lookup(w.XID)
	n := finding{
		subject: c.instance(w.GPUInstance, w.ComputeInstance, f.before(c.UUID)), kind: w.Kind, origin: ofEvent, class: x.Class,
		cause: line(fmt.Sprintf("XID %d: %s (heard by %s)", x.Code, x.Name, reporter)), xid: x.Code,
		at: f.when(w.Last), count: min(max(w.Count, 1), mostHeard), repeat: x.Repeat, once: true,
	}
	if w.Placement.Size > 0 && n.subject.GPUInstance != gpu.NoInstance {
		n.subject.Placement = w.Placement
	}
	if x.Class >= ClassNode {
		n.subject = WholeCard(c.UUID)
	}
	if x.Class == ClassContained && n.repeat.IsZero() {
		n.repeat = f.cfg.Contained
	}
	if !n.repeat.IsZero() && w.Class >= n.repeat.Class {
		n.count, n.once = max(n.count, uint64(n.repeat.Count)), false
	}
	has := func(q condition) bool { return w.SameFault(q.Condition) }
	if slices.ContainsFunc(c.Conditions, has) || f.over(c, w, &n) {
		return
	}
	if x.Class < ClassWatch {
		f.remember(c, past{Subject: n.subject, Kind: n.kind, Ended: f.now})
		f.durable = true
		return
	}
	f.happen(c, n)
	if k := c.find(n.subject, n.kind); k >= 0 {
		q := &c.Conditions[k]
		q.Since = f.when(w.Since)
		if q.Since.After(q.Last) {
			q.Since = q.Last
		}
		if boot := word(w.BootID); boot != "" {
			q.BootID = boot
		}
	}
}

// over says whether a fault that is handed over ended here after it was last seen.
func (f *fold) over(c *card, w *Condition, n *finding) bool {
	seen := *w
	seen.Last = n.at
	return slices.ContainsFunc(c.Past, func(p past) bool { return p.ending().Covers(seen) }) ||
		slices.ContainsFunc(f.d.Clearings, func(word Clearing) bool { return word.Device == c.UUID && !word.Time.Before(n.at) })
}

func (p *past) ending() Ending { return Ending{p.Subject, p.Kind, p.Ended} }

// endings are those of all cards.
func (d *data) endings() []Ending {
	var out []Ending
	for i := range d.Cards {
		for k := range d.Cards[i].Past {
			if p := &d.Cards[i].Past[k]; !p.Ended.IsZero() {
				out = append(out, p.ending())
			}
		}
	}
	return out
}

// Release is the state without those conditions that are over by the word of somebody who saw the
// evidence: of things that happened, last seen before that. It is for who has handed them over. s
// is not modified.
func (r *Rules) Release(s State, over []Ending) State {
	ends := func(q *condition) bool {
		return q.Origin == ofEvent && slices.ContainsFunc(over, func(e Ending) bool { return e.Covers(q.Condition) })
	}
	if s.data == nil || !slices.ContainsFunc(s.data.Cards, func(c card) bool {
		return slices.ContainsFunc(c.Conditions, func(q condition) bool { return ends(&q) })
	}) {
		return s
	}
	f := &fold{cfg: &r.cfg, e: &Evidence{}, now: s.data.Time, old: s.data, d: successor(s.data)}
	for i := range f.d.Cards {
		c := &f.d.Cards[i]
		for k := len(c.Conditions) - 1; k >= 0; k-- {
			if ends(&c.Conditions[k]) {
				f.end(c, k)
			}
		}
	}
	f.conclude()
	return State{f.d}
}
