// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// seen is what a reading has of one card.
type seen struct {
	// device is nil for a card that is not listed.
	device *gpu.Device
	// sample is the card's own one, nil for none; newest is the latest time of any of its samples.
	sample *gpu.Sample
	newest time.Time
	// sampled says that there is a sample of it at all.
	sampled bool
	trouble gpu.Reason
	// up and down are its NVLinks whose state was read, a bit for each.
	up, down uint64
	// answers says that the values are new.
	answers bool
}

// stillFor is for how long values may stay the same ones, without a word about why, before the
// card counts as not answering: sources that keep values renew them at their own pace.
const stillFor = 30 * time.Second

// look sorts what the reading has by card.
func (f *fold) look() {
	r := &f.e.Reading
	linkState := slices.Index(r.Fields, fieldLinkState)
	at := 0
	for i := range r.Samples {
		s := &r.Samples[i]
		k := f.card(s.Entity.GPU, at)
		if k < 0 || s.Entity.GPU == "" {
			continue
		}
		at = k
		c := &f.seen[k]
		switch s.Entity.Kind {
		case gpu.KindGPU:
			c.sample = s
			fallthrough
		case gpu.KindGPUInstance:
			c.sampled = true
			if writable(utc(s.Time)) {
				c.newest = later(c.newest, s.Time)
			}
		case gpu.KindLink:
			if linkState >= 0 && linkState < len(s.Values) && s.Entity.ID >= 0 && s.Entity.ID < 64 {
				c.link(s.Entity.ID, s.Values[linkState])
			}
		default:
		}
	}
	for _, t := range r.Troubles {
		f.unnamed = f.unnamed || t.GPU == "" && t.Reason == gpu.ReasonTimeout
		if k := f.card(t.GPU, 0); k >= 0 && (f.seen[k].trouble == gpu.ReasonNone || t.Reason == gpu.ReasonTimeout) {
			f.seen[k].trouble = t.Reason
		}
	}
	for i := range f.seen {
		c := &f.seen[i]
		c.answers = c.device != nil && !c.device.Lost && c.sampled && !c.newest.IsZero() &&
			!utc(c.newest).Equal(f.d.Cards[i].Sampled)
	}
}

// link takes the state of an NVLink: 0 is down, others are up or asleep.
func (s *seen) link(id int, v gpu.Value) {
	switch state, ok := v.AsInt(); {
	case !ok || state < 0:
	case state == 0:
		s.down |= 1 << id
	default:
		s.up |= 1 << id
	}
}

// awayFor is for how long readings must lack a card before it is lost, and before its return is
// evidence: a list can be incomplete for once, and a reset takes some time. A hold-down that is
// shorter goes before it.
const awayFor = 10 * time.Second

// presence folds whether a card is there. One that is listed as lost, or was listed and is missing from
// readings for awayFor, is lost. A reading that lists no card at all says nothing: then it is the
// driver or the source that is ill. Nor does a card's absence while the source waits for one that it
// cannot name: a card that hangs before it was ever asked for its name may be the one that is missing.
func (f *fold) presence(c *card, s *seen) {
	listed := s.device != nil
	if c.Listed != listed || !c.Met && listed {
		f.durable = true
	}
	c.Listed, c.Met = listed, c.Met || listed
	told := listed && s.device.Lost
	switch {
	case f.blind, f.unnamed && !listed:
		// What was known to be lost stays so; an absence of the others begins when it can be told.
		if !c.Gone && !c.Away.IsZero() {
			c.Away, f.durable = time.Time{}, true
		}
		return
	case told || !listed && c.Met:
		f.away(c, told)
	case !c.Away.IsZero():
		f.back(c)
	}
	if c.Lost {
		cause := "the driver can no longer reach it"
		if !told {
			cause = "it was there and is not listed any more"
		}
		f.stands(c, finding{subject: WholeCard(c.UUID), kind: KindLost, origin: ofEvent, class: ClassNode, at: f.now, cause: cause})
	}
}

// away folds that a card is told to be lost, or is missing.
func (f *fold) away(c *card, told bool) {
	if c.Away.IsZero() {
		c.Away, f.durable = f.now, true
	}
	gone := c.Gone || f.now.Sub(c.Away) >= min(awayFor, f.cfg.HoldDown)
	lost := told || gone
	if f.paused {
		lost = c.Lost
	}
	if gone != c.Gone || lost != c.Lost {
		c.Gone, c.Lost, f.durable = gone, lost, true
	}
}

// back folds that a card is there again. After an absence that was borne out, that is evidence of
// recovery for all that happened before; after a short one, for the absence alone.
func (f *fold) back(c *card) {
	for i := range c.Conditions {
		q := &c.Conditions[i]
		if q.Kind == KindLost {
			q.Returned, q.Set = true, false
		}
		q.Returned = q.Returned || c.Gone
	}
	c.Away, c.Gone, c.Lost, f.durable = time.Time{}, false, false, true
}

// answering folds whether a card answers, and calls one stuck that has not for StuckAfter while
// others do. Silence of all cards is their driver's or their source's, and blames none of them; of the only
// card of a node it counts where its source says that a call does not come back.
func (f *fold) answering(c *card, s *seen) {
	switch {
	case s.answers:
		c.Sampled, c.Answered = utc(s.newest), f.now
		f.mute(c, time.Time{})
	case c.Lost, !s.sampled && c.Answered.IsZero():
		// It is known to be out of reach, or nobody ever asked it.
	case s.sampled && s.trouble != gpu.ReasonNone, f.now.Sub(c.Answered) >= stillFor:
		if c.Mute.IsZero() {
			f.mute(c, f.now)
		}
	}
	stuck := unread
	switch {
	case f.paused:
	case s.answers:
		stuck = clean
	case !c.Mute.IsZero() && f.now.Sub(c.Mute) >= f.cfg.StuckAfter && s.hangs() && f.othersAnswer(s):
		stuck = set
	}
	f.level(c, finding{
		subject: WholeCard(c.UUID), kind: KindStuck, class: ClassReset, cause: "the driver does not answer for it while it does for others",
	}, stuck, 0)
}

// hangs says whether a card that does not answer may be stuck. One that nobody asks is not, nor one that
// the source may not, or does not know how to, ask.
func (s *seen) hangs() bool {
	return s.sampled && s.trouble != gpu.ReasonNotPermitted && s.trouble != gpu.ReasonNotSupported && s.trouble != gpu.ReasonNotFound
}

// mute sets from when a card does not answer.
func (f *fold) mute(c *card, since time.Time) {
	if !c.Mute.Equal(since) {
		c.Mute, f.durable = since, true
	}
}

// othersAnswer says whether some other card answers now, or there is no other to tell by and the
// source says that it waits for this one.
func (f *fold) othersAnswer(s *seen) bool {
	others := false
	for i := range f.seen {
		if o := &f.seen[i]; o != s && o.sampled {
			if o.answers {
				return true
			}
			others = true
		}
	}
	return !others && s.trouble == gpu.ReasonTimeout
}

// note says why the status of a card is not known, empty where it is.
func (f *fold) note(c *card) string {
	why := f.silent(c)
	if why != "" && f.d.Repartition.Paused {
		why += "; the MIG manager divides the node's GPUs anew"
	}
	return why
}

func (f *fold) silent(c *card) string {
	switch {
	case f.d.Silent:
		return "the source of readings does not answer"
	case c.Answered.IsZero():
		return "it was never read"
	case !c.Listed:
		return "it is not listed any more"
	case !c.Mute.IsZero():
		return fmt.Sprintf("it does not answer, since %s", c.Mute.Format(time.RFC3339))
	default:
		return ""
	}
}
