// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// endedPods are the registers of pods that hold nothing any more, in the order in which they ended. One that is open
// again stays in its queue, or stands in it twice: the record that ended it tells which entry is true.
type endedPods struct {
	// known are those whose UID is known: no other pod will count there. One of the others may.
	known, unknown []endedPod
	n              int
}

type endedPod struct {
	pod *podAccount
	seq uint64
}

func (e endedPod) true() bool { return e.pod.endedSeq == e.seq }

func (e *endedPods) add(p *podAccount) {
	e.n++
	queue := &e.unknown
	if p.key.PodUID != "" {
		queue = &e.known
	}
	if len(*queue) > 2*maxEnded {
		*queue = slices.DeleteFunc(*queue, func(e endedPod) bool { return !e.true() })
	}
	*queue = append(*queue, endedPod{p, p.endedSeq})
	// Those that one record ended are in the order in which they are written, so that it is the same when they are read.
	for i := len(*queue) - 1; i > 0; i-- {
		before := (*queue)[i-1]
		if before.seq != p.endedSeq || before.pod.key.compare(&p.key) < 0 {
			break
		}
		(*queue)[i-1], (*queue)[i] = (*queue)[i], before
	}
}

// trim leaves out entries at the head of a queue that are not true any more.
func trim(queue []endedPod) []endedPod {
	for len(queue) > 0 && !queue[0].true() {
		queue = queue[1:]
	}
	return queue
}

// next is the one that has to go, or nil where all can stay.
func (e *endedPods) next(age int64) *podAccount {
	e.known, e.unknown = trim(e.known), trim(e.unknown)
	if len(e.known) > 0 && age-e.known[0].pod.endedAge > podsFor.Milliseconds() {
		return e.known[0].pod
	}
	switch {
	case e.n <= maxEnded:
		return nil
	case len(e.known) == 0, len(e.unknown) > 0 && e.unknown[0].seq < e.known[0].seq:
		return e.unknown[0].pod
	}
	return e.known[0].pod
}

func (a *Account) podOf(key PodSeries) *podAccount {
	p := a.pods[key]
	if p != nil {
		return p
	}
	p = &podAccount{key: key, used: map[Basis]sharing.Fraction{}, born: a.seq + 1}
	a.pods[key] = p
	h := a.holders[p.holder()]
	if h == nil {
		h = &holderAccount{facts: Pod{Namespace: key.Namespace, Name: key.Pod, UID: key.PodUID}}
		a.holders[p.holder()] = h
	}
	h.registers++
	return p
}

// end says that no line counts in a pod's registers any more, by the record that is being applied.
func (a *Account) end(p *podAccount) {
	p.ended, p.endedAge, p.endedSeq = a.charged.Wall, a.age, a.seq+1
	a.ended.add(p)
}

// hide says that from now on nobody can see who holds a card. The pods that end by that may hold it still, so their
// registers stay and are shown.
func (a *Account) hide(c *cardAccount) {
	for _, p := range a.pods {
		if p.endedSeq != 0 && p.endedAge == a.age && p.key.Card == c.card.UUID {
			a.revive(p)
			p.unseen = true
		}
	}
}

// reveal says that somebody looks at a card again: those who are not found there have ended, and those who are can prove that
// they held it all the while.
func (a *Account) reveal(c *cardAccount) {
	a.hidden = slices.DeleteFunc(a.hidden, func(l *lateLine) bool {
		if l.line.Card != c.card.UUID {
			return false
		}
		l.span, l.to, l.age = a.age-l.age, a.charged.Wall, a.age
		if l.span > 0 {
			a.late = append(a.late, l)
		}
		return true
	})
	for _, p := range a.pods {
		if p.unseen && p.key.Card == c.card.UUID {
			p.unseen = false
			a.end(p)
		}
	}
}

// revive says that a pod holds something, again perhaps.
func (a *Account) revive(p *podAccount) {
	p.unseen = false
	if p.endedSeq != 0 {
		p.ended, p.endedAge, p.endedSeq = 0, 0, 0
		a.ended.n--
	}
}

// forget drops what is too old to matter. It looks at the oldest only, so it costs nothing where nothing is.
func (a *Account) forget() {
	for p := a.ended.next(a.age); p != nil; p = a.ended.next(a.age) {
		if a.dropped != nil {
			a.dropped(a.podTotal(p, p.amount))
		}
		a.revive(p)
		delete(a.pods, p.key)
		h := a.holders[p.holder()]
		h.registers--
		if h.registers == 0 {
			delete(a.holders, p.holder())
		}
	}
	for len(a.late) > 0 && a.age-a.late[0].age > lateFor.Milliseconds() {
		a.late = a.late[1:]
	}
}

// know remembers what is said of a pod that has registers.
func (a *Account) know(p Pod) {
	if h := a.holders[holder{p.Namespace, p.Name, p.UID}]; h != nil {
		h.facts, h.json = p, nil
	}
}
