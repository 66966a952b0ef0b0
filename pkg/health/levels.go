// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// standing is what a reading says of a level.
type standing uint8

const (
	// unread: the value is absent, and nothing is known anew.
	unread standing = iota
	clean
	set
)

const (
	// slowdownMemory is how long a slowdown stands after its reason was last seen: clocks go up
	// and down within seconds.
	slowdownMemory = time.Minute
	// retiredLimit is from how many retired pages on a card is to be exchanged, DCGM's number.
	retiredLimit = 63
)

// The reasons for which clocks are held back, bits of gpu.FieldClockReasons. A power cap set by
// software is how cards are run, and no fault.
const (
	clockHWSlowdown = 0x08
	clockSWThermal  = 0x20
	clockHWThermal  = 0x40
	clockPowerBrake = 0x80
)

// level folds one level: what is set makes or refreshes its condition, what is clean ends it, at
// once or after memory if it does not withdraw, else when it has been clean for the hold-down.
// A value that is absent changes nothing but that a recovery must stand anew.
func (f *fold) level(c *card, n finding, is standing, memory time.Duration) {
	n.at = f.now
	if n.origin == 0 {
		n.origin = ofLevel
	}
	if is == set {
		f.stands(c, n)
		return
	}
	i := c.find(n.subject, n.kind)
	if i < 0 {
		return
	}
	f.unset(c, i, is, memory)
}

// unset folds that the level of a condition is not set, or not known.
func (f *fold) unset(c *card, i int, is standing, memory time.Duration) {
	q := &c.Conditions[i]
	if q.Set {
		q.Set, f.durable = false, true
	}
	switch {
	case is == unread, f.paused && q.Withdraws():
		f.void(q)
	case q.Withdraws():
		if f.stood(q, takenBack(q.Origin)) {
			f.end(c, i)
		}
	case f.now.Sub(q.Last) >= memory:
		f.end(c, i)
	}
}

// takenBack is the evidence that what was so is so no more.
func takenBack(o origin) string {
	switch o {
	case ofCheck:
		return "a later health check did not find it"
	case ofFact:
		return "its reporter says so no more"
	default:
		return "it is read clean"
	}
}

// end ends a condition on evidence.
func (f *fold) end(c *card, i int) {
	f.durable = true
	if q := &c.Conditions[i]; q.Withdraws() {
		f.recovered(c, q)
	}
	c.Conditions = slices.Delete(c.Conditions, i, i+1)
}

// value is a field of the card's own sample, absent where there is none.
func (f *fold) value(s *seen, id gpu.FieldID) (int64, bool) {
	column := slices.Index(f.e.Reading.Fields, id)
	if column < 0 || s.sample == nil || column >= len(s.sample.Values) {
		return 0, false
	}
	v, ok := s.sample.Values[column].AsInt()
	return v, ok && v >= 0
}

// flag is a level that is set where the field is more than 0.
func (f *fold) flag(s *seen, id gpu.FieldID) standing {
	switch v, ok := f.value(s, id); {
	case !ok:
		return unread
	case v > 0:
		return set
	default:
		return clean
	}
}

// levels folds what the values of a card say. Those of a card that does not answer are old, and
// say nothing.
func (f *fold) levels(c *card, s *seen) {
	if !s.answers {
		return
	}
	if _, ok := f.value(s, fieldRemapFailed); ok && !c.Remaps {
		c.Remaps, f.durable = true, true
	}
	pending, retiring := f.flag(s, fieldRemapPending), f.flag(s, fieldRetiredPending)
	for _, l := range []struct {
		kind  Kind
		is    standing
		class Class
		cause string
	}{
		{KindRemapFailed, f.flag(s, fieldRemapFailed), ClassHardware, "a row of its memory could not be remapped"},
		{KindRemapPending, pending, ClassWatch, "a row of its memory is remapped at the next reset"},
		{KindRetiredPending, retiring, ClassWatch, "a page of its memory is retired at the next reset"},
		{KindSRAM, f.flag(s, fieldSRAM), ClassHardware, "errors in its SRAM exceed the limit"},
		{KindUnrepairable, f.flag(s, fieldUnrepairable), ClassHardware, "its memory cannot be repaired"},
	} {
		f.level(c, finding{subject: WholeCard(c.UUID), kind: l.kind, class: l.class, cause: l.cause}, l.is, 0)
	}
	f.retired(c, s)
	f.doubleBit(c, s)
	f.clocks(c, s)
	if action, ok := f.value(s, fieldAction); ok {
		f.act(c, action)
		if action == 0 {
			c.noneAt = f.now
		}
	}
	f.action(c)
}

// retired folds how many pages of memory are retired, which never get fewer.
func (f *fold) retired(c *card, s *seen) {
	single, ok1 := f.value(s, fieldRetiredSBE)
	double, ok2 := f.value(s, fieldRetiredDBE)
	n := finding{subject: WholeCard(c.UUID), kind: KindRetiredPages, class: ClassHardware}
	switch pages := single + double; {
	case pages >= retiredLimit:
		n.cause = fmt.Sprintf("%d pages of its memory are retired, and %d are the limit", pages, retiredLimit)
		f.level(c, n, set, 0)
	case ok1 && ok2:
		f.level(c, n, clean, 0)
	default:
		f.level(c, n, unread, 0)
	}
}

// doubleBit folds the count of double-bit errors since the last reset. Each more is a repetition.
func (f *fold) doubleBit(c *card, s *seen) {
	count, ok := f.value(s, fieldDBE)
	before := c.DoubleBit
	if ok && count != before {
		c.DoubleBit, f.durable = count, true
	}
	subject := WholeCard(c.UUID)
	if !ok || count == 0 {
		is := clean
		if !ok {
			is = unread
		}
		if i := c.find(subject, KindECC); i >= 0 && c.Conditions[i].Origin == ofLevel {
			f.unset(c, i, is, 0)
		}
		return
	}
	i := c.find(subject, KindECC)
	grown := count - before
	if before < 0 {
		// Errors of unknown times are one occurrence.
		grown = 0
	} else if grown < 0 {
		grown = count
	}
	if i < 0 || grown > 0 {
		n := f.eccError(c, subject, uint64(max(grown, 1)))
		n.origin, n.at, n.once = ofLevel, f.now, f.unseen
		f.happen(c, n)
		i = c.find(subject, KindECC)
	}
	if i < 0 {
		return
	}
	q := &c.Conditions[i]
	f.void(q)
	if !q.Set || q.BootID != f.boot {
		q.Set, q.BootID, f.durable = true, f.boot, true
	}
	q.Last = later(q.Last, f.now)
}

// eccError is the finding of double-bit errors: contained where the card can remap rows, which
// ends the program that met it and no other, else a reason to reset it.
func (f *fold) eccError(c *card, subject Subject, count uint64) finding {
	n := finding{subject: subject, kind: KindECC, class: ClassReset, cause: "double-bit errors in its memory", count: count}
	if c.Remaps {
		n.class, n.repeat = ClassContained, f.cfg.Contained
	}
	return n
}

// clocks folds why the clocks are held back.
func (f *fold) clocks(c *card, s *seen) {
	reasons, ok := f.value(s, gpu.FieldClockReasons)
	thermal, power := unread, unread
	if ok {
		thermal, power = clean, clean
		if reasons&(clockSWThermal|clockHWThermal) != 0 {
			thermal = set
		}
		if reasons&clockPowerBrake != 0 || reasons&clockHWSlowdown != 0 && reasons&clockHWThermal == 0 {
			power = set
		}
	}
	f.level(c, finding{subject: WholeCard(c.UUID), kind: KindThermal, class: ClassWatch, cause: "its clocks are held back by heat"}, thermal, slowdownMemory)
	f.level(c, finding{subject: WholeCard(c.UUID), kind: KindPower, class: ClassWatch, cause: "its clocks are held back by its power supply"}, power, slowdownMemory)
}

// act takes what the driver wants done with a card. That it wants no reset or restart any more, and
// nothing else, is evidence of recovery for all that happened before.
func (f *fold) act(c *card, action int64) {
	if c.ActionBoot != f.boot {
		c.ActionBoot, f.durable = f.boot, true
	}
	if action == c.Action {
		return
	}
	if action == 0 && wanted(c.Action) >= ClassReset {
		for i := range c.Conditions {
			c.Conditions[i].Freed = true
		}
	}
	c.Action, f.durable = action, true
}

// action folds the driver's recovery action as last told. One that was told before the node was
// restarted, by a driver that does not tell any more, is none.
func (f *fold) action(c *card) {
	n := finding{subject: WholeCard(c.UUID), kind: KindRecoveryAction}
	is := set
	switch c.Action {
	case unknownAction:
		is = unread
	case 0:
		is = clean
	case 1:
		n.cause = "the driver asks for a reset of the GPU"
	case 2:
		n.cause = "the driver asks for a restart of the node"
	case 3:
		n.cause = "the driver asks to drain traffic between GPUs"
	case 4:
		n.cause = "the driver asks to drain the GPU and to reset it"
	case 5:
		n.cause = "the driver asks to recover the IMEX domain"
	case 6:
		n.cause = "the driver asks for a reset of the bus"
	case 7:
		n.cause = "the driver asks for a restart of the system"
	default:
		n.cause = fmt.Sprintf("the driver asks for recovery action %d, which is not known here", c.Action)
	}
	n.class = wanted(c.Action)
	if is == set && f.elsewhen(c.ActionBoot) {
		is = clean
	}
	f.level(c, n, is, 0)
}

// wanted is the class of a recovery action, none where the driver wants nothing or did not say.
func wanted(action int64) Class {
	switch action {
	case unknownAction, 0:
		return 0
	case 1, 4, 6:
		return ClassReset
	case 2, 7:
		return ClassNode
	default:
		return ClassWatch
	}
}

// links folds which NVLinks are down that were up once. A link that never was up leads nowhere.
func (f *fold) links() {
	if f.paused {
		return
	}
	for i := range f.seen {
		c, s := &f.d.Cards[i], &f.seen[i]
		if !s.answers || s.up|s.down == 0 {
			continue
		}
		if c.Links|s.up != c.Links {
			c.Links, f.durable = c.Links|s.up, true
		}
		n := finding{subject: WholeCard(c.UUID), kind: KindNVLinkDown, class: ClassWatch}
		down := c.Links & s.down
		if down == 0 {
			f.level(c, n, clean, 0)
			continue
		}
		n.cause = fmt.Sprintf("%d of its %d NVLinks are down: %v", bits.OnesCount64(down), bits.OnesCount64(c.Links), numbers(down))
		f.level(c, n, set, 0)
	}
}

// numbers are the numbers of the bits that are set.
func numbers(mask uint64) []int {
	var out []int
	for ; mask != 0; mask &= mask - 1 {
		out = append(out, bits.TrailingZeros64(mask))
	}
	return out
}
