// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// events folds what happened, in the order of the reading.
func (f *fold) events() {
	for i := range f.e.Reading.Events {
		e := &f.e.Reading.Events[i]
		if e.GPU == "" || len(e.GPU) > mostWord {
			continue
		}
		switch e.Kind {
		case gpu.EventXID:
			if x := f.cfg.XIDs.Lookup(e.Code); x.Class >= ClassWatch && e.Code > 0 {
				f.xid(f.cardOf(e.GPU), e, x)
			}
		case gpu.EventECCDoubleBit:
			f.eccEvent(f.cardOf(e.GPU), e)
		case gpu.EventRecoveryAction:
			if c := f.cardOf(e.GPU); c != nil && e.Code >= 0 {
				f.act(c, int64(e.Code))
				f.action(c)
			}
		case gpu.EventECCSingleBit:
		}
	}
}

// cardOf is a card, made if nobody listed it yet: what happened to it is known before it is. It is
// nil where there are too many.
func (f *fold) cardOf(id gpu.UUID) *card {
	if i := f.card(id, 0); i >= 0 {
		return &f.d.Cards[i]
	}
	if len(f.d.Cards) >= mostCards {
		return nil
	}
	f.d.Cards = append(f.d.Cards, newCard(id))
	return &f.d.Cards[len(f.d.Cards)-1]
}

// xid folds an XID of a class that makes a condition.
func (f *fold) xid(c *card, e *gpu.Event, x XID) {
	if c == nil {
		return
	}
	n := finding{
		subject: c.instance(e.GPUInstance, e.ComputeInstance, f.before(c.UUID)), kind: XIDKind(x.Code), origin: ofEvent, class: x.Class,
		cause: line(fmt.Sprintf("XID %d: %s", x.Code, x.Name)), xid: x.Code, at: f.when(e.Time), count: 1, repeat: x.Repeat,
	}
	if x.Class >= ClassNode {
		n.subject = WholeCard(c.UUID)
	}
	if x.Class == ClassContained && n.repeat.IsZero() {
		n.repeat = f.cfg.Contained
	}
	if !f.retold(c, &n) {
		f.happen(c, n)
	}
}

// eccEvent folds a double-bit error of a card whose driver does not count them.
func (f *fold) eccEvent(c *card, e *gpu.Event) {
	if c == nil || c.DoubleBit != unknownCount {
		return
	}
	n := f.eccError(c, c.instance(e.GPUInstance, e.ComputeInstance, f.before(c.UUID)), 1)
	n.origin, n.at = ofEvent, f.when(e.Time)
	if !f.retold(c, &n) {
		f.happen(c, n)
	}
}

// before are the MIG devices that a card had before this reading: an event may be of one of them.
func (f *fold) before(id gpu.UUID) []device {
	if f.old == nil {
		return nil
	}
	for i := range f.old.Cards {
		if f.old.Cards[i].UUID == id {
			return f.old.Cards[i].Parts
		}
	}
	return nil
}

// retold says whether an event was folded in an earlier life already: a source that outlives its
// reader tells its last events again. Only the first reading of a life can have such, and only of the
// time until the last reading of the life before; what was since then nobody has heard. Where the clock
// was set back the times cannot be compared, and to hear it twice is better than not at all.
func (f *fold) retold(c *card, n *finding) bool {
	if !f.d.restored || f.setBack || !n.at.Before(f.heard) {
		return false
	}
	if n.at.Before(c.Settled) {
		return true
	}
	i := c.find(n.subject, n.kind)
	return i >= 0 && c.Conditions[i].told.IsZero() && !n.at.After(c.Conditions[i].Last)
}

// The numbers of what a health check can find that are more, or less, than something to watch.
const (
	// incidentXID is that there was an XID. Its class is known better from the XID itself, and a
	// host engine repeats the incident until it is restarted.
	incidentXID = 101
	// incidentFabric is that the GPU did not join its NVLink fabric: CUDA does not start on it.
	incidentFabric = 112
)

// checks folds the last round of health checks, once. Its incidents are to be watched: the host engine
// keeps what it has seen until it is restarted, and its texts and systems are not always right. Only
// what has neither a level nor an XID of its own withdraws.
func (f *fold) checks() {
	h := &f.e.Reading.Health
	if h.Time.IsZero() || !writable(utc(h.Time)) {
		return
	}
	for _, id := range h.Checked {
		i := f.card(id, 0)
		if i < 0 || f.d.Cards[i].Checked.Equal(utc(h.Time)) {
			continue
		}
		c := &f.d.Cards[i]
		c.Checked = utc(h.Time)
		if f.paused {
			continue
		}
		found := f.incidents(c, h.Incidents)
		for j := len(c.Conditions) - 1; j >= 0; j-- {
			if q := &c.Conditions[j]; q.Origin == ofCheck && !slices.Contains(found, key{q.Subject, q.Kind}) {
				f.unset(c, j, clean, 0)
			}
		}
	}
}

// key is what a condition of a card is known by.
type key struct {
	Subject
	kind Kind
}

// incidents folds what a round found on a card, and says which conditions that is. Of several
// incidents in one system the worst counts.
func (f *fold) incidents(c *card, all []gpu.HealthIncident) []key {
	var found []key
	worst := map[key]finding{}
	for i := range all {
		in := &all[i]
		if in.GPU != c.UUID || in.Result < gpu.HealthWarn || in.Code == incidentXID && in.Result < gpu.HealthFail {
			continue
		}
		n := finding{
			subject: c.instance(in.GPUInstance, gpu.NoInstance, f.before(c.UUID)), kind: IncidentKind(systemOf(in.System)),
			origin: ofCheck, class: ClassWatch, at: f.now,
		}
		result := "warns of"
		if in.Result >= gpu.HealthFail {
			result = "fails because of"
		}
		if in.Code == incidentFabric && in.Result >= gpu.HealthFail {
			n.class = ClassReset
		}
		n.cause = line(fmt.Sprintf("DCGM's check of %s %s error %d: %s", systemOf(in.System), result, in.Code, in.Text))
		k := key{n.subject, n.kind}
		has, there := worst[k]
		if !there {
			found = append(found, k)
		}
		if !there || cmp.Compare(n.class, has.class) > 0 {
			worst[k] = n
		}
	}
	for _, k := range found {
		f.stands(c, worst[k])
	}
	return found
}

// systemOf is the system of an incident, HealthAll where a source names one that is not known.
func systemOf(s gpu.HealthSystem) gpu.HealthSystem {
	if slices.Contains(gpu.HealthSystems(), s) {
		return s
	}
	return gpu.HealthAll
}

// line is foreign text as one line of valid UTF-8, of mostText bytes at most.
func line(text string) string { return bounded(text, mostText) }

// word is a foreign name likewise, shorter.
func word(text string) string { return bounded(text, mostWord) }

func bounded(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(text) <= most {
		return text
	}
	text = text[:most-len("...")]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + "..."
}
