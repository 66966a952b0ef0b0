// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// maxMemory bounds what a card's frame buffer may be, in MiB.
const maxMemory = int64(1) << 32

// lineOf is the line that an Open says, of a card that it names by number.
func lineOf(o *Open, card Card) (Line, error) {
	l := Line{
		Card: card.UUID, Device: o.Device, GPUInstance: o.GPUInstance, Profile: o.Profile, Cause: o.Cause,
		Holder:   sharing.Holder{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, PodUID: o.PodUID},
		Resource: o.Resource, Mode: o.Mode, Seats: o.Seats, Of: o.Of,
	}
	if o.Weight != "" {
		weight, err := part(o.Weight)
		if err != nil {
			return Line{}, err
		}
		l.Weight = weight
	}
	var errPart, errMemory error
	l.Part, errPart = part(o.Part)
	l.Memory, errMemory = part(o.Memory)
	if o.Seats < 0 || o.Of < 0 {
		return Line{}, fmt.Errorf("%d seats of %d", o.Seats, o.Of)
	}
	return l, errors.Join(errPart, errMemory)
}

// part reads a part of a card.
func part(text string) (sharing.Fraction, error) {
	f, err := sharing.ParseFraction(text)
	if err != nil {
		return f, err
	}
	if f.Sign() < 0 || f.Cmp(sharing.One()) > 0 {
		return f, fmt.Errorf("%s is no part of a card", text)
	}
	return f, nil
}

// openOf says a line; the card's number, the id and the policy are the caller's.
func openOf(l *Line) Open {
	o := Open{
		Device: l.Device, GPUInstance: l.GPUInstance, Profile: l.Profile, Cause: l.Cause,
		Namespace: l.Holder.Namespace, Pod: l.Holder.Pod, PodUID: l.Holder.PodUID, Container: l.Holder.Container,
		Resource: l.Resource, Mode: l.Mode, Seats: l.Seats, Of: l.Of,
		Part: l.Part.String(), Memory: l.Memory.String(),
	}
	if !l.Weight.IsZero() {
		o.Weight = l.Weight.String()
	}
	return o
}

func (a *Account) prepareOpen(o *Open) (func(), error) {
	card := a.card(o.Card)
	if card == nil {
		return nil, fmt.Errorf("line %d is of card %d, which nobody introduced", o.ID, o.Card)
	}
	if o.ID <= a.lastLine {
		return nil, fmt.Errorf("line %d was there before: %d was the last", o.ID, a.lastLine)
	}
	line, err := lineOf(o, card.card)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", o.ID, err)
	}
	if other := a.byKey[line.key()]; other != nil {
		return nil, fmt.Errorf("line %d is open as line %d", o.ID, other.id)
	}
	return func() { a.open(&openLine{id: o.ID, said: o, line: line, card: card, since: a.charged.Boot}) }, nil
}

// conclude draws what follows from a line that was opened just now.
func (a *Account) conclude(l *openLine) {
	if l.line.Cause == sharing.CauseUnhealthy {
		a.doubt(&l.line)
	}
	if l.line.Cause == sharing.CauseUnobserved {
		a.hide(l.card)
	}
}

// doubt gives up proofs that a line makes worthless: of a device that is found broken after a gap nobody can say since
// when it was, and its holder does not pay for that.
func (a *Account) doubt(l *Line) {
	a.late = slices.DeleteFunc(a.late, func(late *lateLine) bool {
		return late.line.Card == l.Card && late.line.Device == l.Device
	})
}

// open lets a line stand. Its since is set.
func (a *Account) open(l *openLine) {
	a.lastLine = max(a.lastLine, l.id)
	a.lines[l.id] = l
	a.byKey[l.line.key()] = l
	c := l.card
	if len(c.lines) == 0 {
		c.since = a.charged.Boot
	}
	a.reshape(c, func() {
		c.lines = append(c.lines, l)
		c.part, c.memory = c.part.Add(l.line.Part), c.memory.Add(l.line.Memory)
	})
	a.register(l)
}

// reshape changes which lines a card has, and keeps count of the cards that do not add up.
func (a *Account) reshape(c *cardAccount, change func()) {
	if !c.balanced() {
		a.crooked--
	}
	change()
	if !c.balanced() {
		a.crooked++
	}
}

// register gives a line the registers that it counts in.
func (a *Account) register(l *openLine) {
	if l.line.Cause != "" {
		if _, known := l.card.unallocated[l.line.Cause]; !known {
			l.card.unallocated[l.line.Cause] = Amount{}
		}
		return
	}
	l.pod = a.podOf(podSeriesOf(&l.line, l.card.card.Model))
	l.series = a.seriesOf(l.pod.key.Series)
	l.pod.lines = append(l.pod.lines, l)
	a.revive(l.pod)
	l.device = a.devices[l.line.Device]
	if l.device == nil {
		l.device = &deviceAccount{}
		a.devices[l.line.Device] = l.device
	}
	l.device.settle()
	l.device.lines = append(l.device.lines, l)
}

// unregister takes a line off the registers that it counts in.
func (a *Account) unregister(l *openLine) {
	if l.pod == nil {
		return
	}
	l.device.settle()
	l.device.lines = without(l.device.lines, l)
	if len(l.device.lines) == 0 {
		delete(a.devices, l.line.Device)
	}
	l.pod.lines = without(l.pod.lines, l)
	if len(l.pod.lines) == 0 {
		a.end(l.pod)
	}
	l.pod, l.series, l.device = nil, nil, nil
}

func podSeriesOf(l *Line, model string) PodSeries {
	return PodSeries{
		Series: Series{
			Namespace: l.Holder.Namespace, Resource: l.Resource, Mode: l.Mode, Model: model, Profile: l.Profile,
		},
		Pod: l.Holder.Pod, PodUID: l.Holder.PodUID, Container: l.Holder.Container,
		Card: l.Card, GPUInstance: l.GPUInstance,
	}
}

func (a *Account) seriesOf(key Series) *seriesAccount {
	s := a.series[key]
	if s == nil {
		s = &seriesAccount{key: key, used: map[Basis]sharing.Fraction{}}
		a.series[key] = s
	}
	return s
}

// settle charges a line for the time up to now.
func (a *Account) settle(l *openLine) {
	amount := l.amount(a.charged.Boot)
	l.since, l.energy = a.charged.Boot, 0
	a.book(l, amount)
}

// book adds an amount to all registers that a line counts in.
func (a *Account) book(l *openLine, amount Amount) {
	if l.line.Cause != "" {
		l.card.unallocated[l.line.Cause] = l.card.unallocated[l.line.Cause].plus(amount)
		return
	}
	l.card.allocate(l.line.Mode, amount)
	l.series.amount = l.series.amount.plus(amount)
	l.pod.amount = l.pod.amount.plus(amount)
}

// allocate counts an amount as held in a mode.
func (c *cardAccount) allocate(mode sharing.Mode, amount Amount) {
	c.allocated = c.allocated.plus(amount)
	if !amount.Energy.IsZero() {
		basis := EnergyBasis(mode)
		c.basis[basis] = c.basis[basis].Add(amount.Energy)
	}
}

func without(lines []*openLine, l *openLine) []*openLine {
	return slices.DeleteFunc(lines, func(other *openLine) bool { return other == l })
}

// settle charges the busy time of a device to those who hold it, which must be before others do.
func (d *deviceAccount) settle() {
	used := make([]sharing.Fraction, len(d.lines))
	var basis Basis
	for i, l := range d.lines {
		if l.busy > 0 {
			basis, used[i] = l.used()
		}
	}
	for i, l := range d.lines {
		l.busy = 0
		if !used[i].IsZero() {
			l.series.used[basis] = l.series.used[basis].Add(used[i])
			l.pod.used[basis] = l.pod.used[basis].Add(used[i])
		}
	}
}

// settleCard counts a card's capacity up to now.
func (a *Account) settleCard(c *cardAccount) {
	if len(c.lines) > 0 {
		c.capacity = c.capacity.plus(c.held(sharing.One(), sharing.One(), a.charged.Boot-c.since))
		c.since = a.charged.Boot
	}
}

func (a *Account) prepareClose(c *Close) (func(), error) {
	l := a.lines[c.ID]
	if l == nil {
		return nil, fmt.Errorf("line %d is not open", c.ID)
	}
	return func() {
		if _, can := l.line.proof(); can && c.Why == CloseUnseen {
			a.hidden = append(a.hidden, &lateLine{
				said: l.said, line: l.line, refers: a.seq + 1, from: a.charged.Wall, age: a.age, mebibytes: l.card.card.Memory,
			})
		}
		a.close(l)
	}, nil
}

// close ends a line now.
func (a *Account) close(l *openLine) {
	a.settle(l)
	a.settleCard(l.card)
	delete(a.lines, l.id)
	delete(a.byKey, l.line.key())
	c := l.card
	a.reshape(c, func() {
		c.lines = without(c.lines, l)
		c.part, c.memory = c.part.Sub(l.line.Part), c.memory.Sub(l.line.Memory)
	})
	a.unregister(l)
	if l.line.Cause == sharing.CauseUnobserved {
		a.reveal(c)
	}
}
