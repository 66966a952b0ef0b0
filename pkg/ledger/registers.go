// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math/big"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// plus is the sum of two amounts.
func (a Amount) plus(b Amount) Amount {
	return Amount{GPU: a.GPU.Add(b.GPU), Memory: a.Memory.Add(b.Memory), Energy: a.Energy.Add(b.Energy)}
}

// negative reports whether any of the quantities is below zero.
func (a Amount) negative() bool {
	return a.GPU.Sign() < 0 || a.Memory.Sign() < 0 || a.Energy.Sign() < 0
}

// times is f × n.
func times(f sharing.Fraction, n int64) sharing.Fraction {
	if f.IsZero() || n == 0 {
		return sharing.Fraction{}
	}
	return f.Mul(sharing.NewFraction(n, 1))
}

func least(f, g sharing.Fraction) sharing.Fraction {
	if g.Cmp(f) < 0 {
		return g
	}
	return f
}

// held is the amount of a part of a card and of its memory over a time in milliseconds.
func (c *cardAccount) held(part, memory sharing.Fraction, ms int64) Amount {
	if ms == 0 {
		return Amount{}
	}
	return Amount{GPU: times(part, ms), Memory: times(times(memory, c.card.Memory), ms)}
}

// cardAccount is what is known of a card and what it came to.
type cardAccount struct {
	n    int
	card Card
	// capacity is as of since, the others are as of what their lines say.
	capacity, allocated Amount
	basis               map[Basis]sharing.Fraction
	unallocated         map[sharing.Cause]Amount
	corrected           map[sharing.Cause]Amount
	// lines are the open ones, which add up to part and memory.
	lines        []*openLine
	part, memory sharing.Fraction
	// since is the boot clock up to which capacity is counted.
	since int64
	// used is the boot clock up to which a Use told what the card's devices did.
	used int64
	// counter is what the card's energy counter showed last, where metered says that it did.
	counter int64
	metered bool
}

func newCardAccount(n int, c Card) *cardAccount {
	return &cardAccount{
		n: n, card: c,
		basis:       map[Basis]sharing.Fraction{},
		unallocated: map[sharing.Cause]Amount{},
		corrected:   map[sharing.Cause]Amount{},
	}
}

// balanced reports whether the open lines are one card, or there are none.
func (c *cardAccount) balanced() bool {
	return len(c.lines) == 0 || c.part.IsOne() && c.memory.IsOne()
}

// seriesAccount is what a Series came to.
type seriesAccount struct {
	key    Series
	amount Amount
	used   map[Basis]sharing.Fraction
	// json is how key is written, nil where it was not yet; so it is of the others.
	json []byte
}

// holder is a pod by what it is told apart by.
type holder struct{ namespace, pod, uid string }

// holderAccount is a pod that has registers.
type holderAccount struct {
	// registers is how many podAccounts are the pod's.
	registers int
	facts     Pod
	json      []byte
}

// podAccount is what a PodSeries came to.
type podAccount struct {
	key    PodSeries
	amount Amount
	used   map[Basis]sharing.Fraction
	// born is the record that it began with, 0 where it was read from a state.
	born uint64
	// lines are the open ones that count here. Where there are none, ended is the wall clock and endedAge the
	// account's age when the last one ended, and endedSeq the record that did it.
	lines    []*openLine
	ended    int64
	endedAge int64
	endedSeq uint64
	// unseen says that it may have ended or not: nobody can see who holds the card.
	unseen bool
	json   []byte
}

func (p *podAccount) holder() holder {
	return holder{namespace: p.key.Namespace, pod: p.key.Pod, uid: p.key.PodUID}
}

// lineKey is what makes a line another line, beside its numbers.
type lineKey struct {
	card, device gpu.UUID
	instance     int
	profile      string
	cause        sharing.Cause
	holder       sharing.Holder
	resource     string
	mode         sharing.Mode
}

func (l *Line) key() lineKey {
	return lineKey{
		card: l.Card, device: l.Device, instance: l.GPUInstance, profile: l.Profile, cause: l.Cause,
		holder: l.Holder, resource: l.Resource, mode: l.Mode,
	}
}

// sameNumbers reports whether two lines of one key are of the same size.
func (l *Line) sameNumbers(m *Line) bool {
	return l.Seats == m.Seats && l.Of == m.Of &&
		l.Weight.Equal(m.Weight) && l.Part.Equal(m.Part) && l.Memory.Equal(m.Memory)
}

// proof is what must be the same on both sides of a gap for a holder to have held all the while: the kubelet
// gives a container its devices for life, and a pod's UID is given once.
type proof struct {
	holder   sharing.Holder
	device   gpu.UUID
	resource string
	mode     sharing.Mode
}

// proof is the line's; false where it can prove nothing.
func (l *Line) proof() (proof, bool) {
	if l.Cause != "" || l.Holder.PodUID == "" {
		return proof{}, false
	}
	return proof{holder: l.Holder, device: l.Device, resource: l.Resource, mode: l.Mode}, true
}

// openLine is a line that stands.
type openLine struct {
	id     uint64
	said   *Open
	line   Line
	card   *cardAccount
	series *seriesAccount
	pod    *podAccount
	device *deviceAccount
	// since is the boot clock up to which it is charged.
	since int64
	// energy is what the card took and busy how long the device was, in millijoules and milliseconds, since the
	// line was charged its part of them. Busy is only what the line is credited its part of.
	energy, busy int64
	// mayUse is what mostBusy gives for a millisecond, where mayUseOf seats of the device are held; 0 where it is not known.
	mayUse   sharing.Fraction
	mayUseOf int
	json     []byte
}

// deviceAccount is a device that somebody holds.
type deviceAccount struct {
	lines []*openLine
	// basis is what the busy time of its lines rests on.
	basis Basis
}

// used is what of a device's busy time is a line's and not charged yet, in GPU-milliseconds: a device that is a part of a
// card is busy for its part of the card only.
func (l *openLine) used() (Basis, sharing.Fraction) {
	if l.busy == 0 {
		return "", sharing.Fraction{}
	}
	return l.basisOf(l.device.basis), times(l.line.Weight, l.busy).Scale(max(l.line.Seats, 1), l.device.seats())
}

// seats are those of the device that are held.
func (d *deviceAccount) seats() int {
	seats := 0
	for _, l := range d.lines {
		seats += max(l.line.Seats, 1)
	}
	return seats
}

// mostBusy is how long the device may have been busy since the last Use up to now for the line to be credited its part of
// it: whoever holds a quarter has used a quarter at most, and what a device did beyond that nobody is credited with.
func (l *openLine) mostBusy(seats int, now int64) int64 {
	if l.mayUseOf != seats {
		l.mayUse, l.mayUseOf = quotient(l.line.Part.Scale(seats, 1), l.line.Weight.Scale(max(l.line.Seats, 1), 1)), seats
	}
	return times(l.mayUse, max(now-max(l.card.used, l.since), 0)).Floor()
}

// quotient is f / g, and 0 where there is none.
func quotient(f, g sharing.Fraction) sharing.Fraction {
	var a, b big.Rat
	_, okA := a.SetString(f.String())
	_, okB := b.SetString(g.String())
	if !okA || !okB || b.Sign() == 0 {
		return sharing.Fraction{}
	}
	q, err := sharing.ParseFraction(a.Quo(&a, &b).RatString())
	if err != nil {
		return sharing.Fraction{}
	}
	return q
}

// basisOf is what a line's use rests on where that of its device was measured so.
func (l *openLine) basisOf(measured Basis) Basis {
	if len(l.device.lines) == 1 && l.line.Seats == l.line.Of {
		return measured
	}
	return BasisEqual
}

// amount is what a line is not charged for yet up to a time of the boot clock.
func (l *openLine) amount(boot int64) Amount {
	amount := l.card.held(l.line.Part, l.line.Memory, boot-l.since)
	amount.Energy = times(l.line.Part, l.energy)
	return amount
}

// lateLine is a line that a gap ended, or that nobody could see any more, and that may yet be proven to have stood all the
// while.
type lateLine struct {
	said *Open
	line Line
	// refers is the record that ended it, span how long it is not charged, from and to when that was by the wall clock, age the
	// account's at the end of that time; at its beginning while the line is hidden.
	refers   uint64
	span     int64
	from, to int64
	age      int64
	// mebibytes is the card's memory as that time was booked with.
	mebibytes int64
}

// memoryOf is what part of a card's memory is charged late for a part of it: no more than was booked, should the card have
// said since that it has more.
func (l *lateLine) memoryOf(part sharing.Fraction, c Card) sharing.Fraction {
	if c.Memory <= l.mebibytes {
		return part
	}
	return part.Mul(sharing.NewFraction(l.mebibytes, c.Memory))
}
