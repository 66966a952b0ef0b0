// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrUnknownDevice is the reason of an error about a device that the state does not know.
var ErrUnknownDevice = errors.New("no such device on this node")

// Clear is the state after an operator's word that a device is good: of a physical GPU all of its
// conditions end, with those of its parts and what was remembered of earlier ones; of a MIG device those of
// its own instance. What the GPU itself still says stays, as it is by itself without repetition, and
// is Standing in the Clearing that is returned. A GPU that is not listed any more is forgotten.
//
// The error is of a device that is not known (ErrUnknownDevice) or of a word without a reason;
// then the state is unchanged.
func (r *Rules) Clear(s State, word Clearing) (State, Clearing, error) {
	word.Reason, word.By, word.Ended, word.Standing = line(word.Reason), line(word.By), []Condition{}, nil
	if strings.TrimSpace(word.Reason) == "" {
		return s, word, errors.New("a GPU is cleared for a reason (say which, such as \"exchanged by the vendor\")")
	}
	if s.data == nil || !s.data.knows(word.Device) {
		return s, word, fmt.Errorf("clearing %q: %w (give a UUID as nvidia-smi -L shows it)", line(string(word.Device)), ErrUnknownDevice)
	}
	f := &fold{cfg: &r.cfg, e: &Evidence{}, old: s.data, d: successor(s.data), durable: true}
	if word.Time = utc(word.Time); word.Time.Year() < 2000 {
		word.Time = f.d.Time
	}
	f.now = later(f.d.Time, word.Time)
	for i := range f.d.Cards {
		if c := &f.d.Cards[i]; c.UUID == word.Device {
			f.clearCard(c, &word)
		} else {
			f.clearPart(c, &word)
		}
	}
	f.record(word.Device).Clearings++
	f.d.Clearings = append(slices.Clone(f.d.Clearings), word)
	f.d.Clearings = f.d.Clearings[max(0, len(f.d.Clearings)-mostClearings):]
	f.forget()
	f.conclude()
	return State{f.d}, word, nil
}

func (f *fold) clearCard(c *card, word *Clearing) {
	for i := len(c.Conditions) - 1; i >= 0; i-- {
		q := &c.Conditions[i]
		if q.Set && c.Listed && q.Origin != ofFact && q.Kind != KindNVLinkDown {
			q.Raised, q.Recent, q.Class, q.Evidence = false, nil, q.Own, q.Cause
			word.Standing = append(word.Standing, q.Condition)
			continue
		}
		word.Ended = append(word.Ended, q.Condition)
		c.Conditions = slices.Delete(c.Conditions, i, i+1)
	}
	c.Past, c.Settled = nil, f.now
	if !c.Listed {
		// It is nobody's to miss any more.
		c.Met, c.Away, c.Gone, c.Lost = false, time.Time{}, false, false
	}
	// Links that are down are so for good reason; those that are up will be seen again.
	c.Links = 0
	f.d.Facts = maps.Clone(f.d.Facts)
	for reporter, facts := range f.d.Facts {
		rest := slices.DeleteFunc(slices.Clone(facts), func(fact Fact) bool { return fact.GPU == c.UUID })
		if f.d.Facts[reporter] = rest; len(rest) == 0 {
			delete(f.d.Facts, reporter)
		}
	}
}

// shares says whether a condition concerns MIG devices of another GPU instance than p's too: its memory was
// divided since.
func (c *card) shares(q *condition, p *device) bool {
	return slices.ContainsFunc(c.Parts, func(d device) bool { return d.GPUInstance != p.GPUInstance && c.covers(q, &d) })
}

// clearPart ends the conditions of the MIG device's own instance, if the card has it. What other
// instances have of it as well stays: the word is of this one.
func (f *fold) clearPart(c *card, word *Clearing) {
	k := slices.IndexFunc(c.Parts, func(p device) bool { return p.UUID == word.Device })
	if k < 0 {
		return
	}
	p := &c.Parts[k]
	for i := len(c.Conditions) - 1; i >= 0; i-- {
		q := &c.Conditions[i]
		switch {
		case whole(q) || !c.covers(q, p):
		case c.shares(q, p):
			word.Standing = append(word.Standing, q.Condition)
		default:
			word.Ended = append(word.Ended, q.Condition)
			c.Past = slices.DeleteFunc(slices.Clone(c.Past), func(p past) bool { return p.Kind == q.Kind && p.Subject == q.Subject })
			c.Conditions = slices.Delete(c.Conditions, i, i+1)
		}
	}
	c.Settled = f.now
}
