// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// useEvery is how often what was measured is written on a node of few devices.
	useEvery = time.Minute
	// maxName bounds what of a foreign text is kept, in bytes, maxLabels how many labels of one thing, and maxLabelBytes
	// those in all: they are written with each commit as long as their pod is known, and any tenant can give his pods more.
	maxName       = 1024
	maxLabels     = 256
	maxLabelBytes = 8 << 10
)

// watch is what Observe remembers from one Observation to the next.
type watch struct {
	// seen says that there was one since the Begin; cards and lines are its own.
	seen  bool
	cards []Card
	lines []Line
	// boot is what its boot clock showed.
	boot int64
	// lacks is what the lines of a card lacked to one, where they did.
	lacks map[gpu.UUID]sharing.Fraction
	measured
}

// derivation makes the records of one Observation.
type derivation struct {
	account *Account
	at      Instant
	out     []Record
	// told are the devices whose use the Observation tells, while the lines of before it stand.
	told map[gpu.UUID]int64
}

// emit applies a record and keeps it.
func (d *derivation) emit(body Body) {
	r := Record{Seq: d.account.seq + 1, At: d.at, Body: body}
	err := d.account.Apply(r)
	if err != nil {
		// What is derived follows by construction. Where it does not, the book goes on, and says so.
		r.Body = &FactSeen{Fact{What: FactRefused, Text: text(err.Error())}}
		if d.account.Apply(r) != nil {
			return
		}
	}
	d.out = append(d.out, r)
}

// forward is an instant that can follow the last record: no clock is read as nonsense, and the boot clock does not
// go back. Time that it went back is counted when it has passed for the second time, which charges nothing twice.
func (a *Account) forward(at Instant) Instant {
	at = believable(at)
	if at.BootID == a.at.BootID {
		at.Boot = max(at.Boot, a.at.Boot)
	}
	return at
}

// believable is an instant of clocks that may show nonsense.
func believable(at Instant) Instant {
	return Instant{
		BootID: text(at.BootID), Boot: min(max(at.Boot, 0), maxClock), Wall: min(max(at.Wall, -maxClock), maxClock),
	}
}

// Observe takes in what one tick of the meter saw, and gives the records that say so: at least a Beat. They
// are applied already. The Observation is not modified; its lines are not kept.
//
// Foreign text is cut to what a log can hold, and a card whose lines are not one card is booked as unattributed for
// what they lack, or as a whole where they are more.
func (a *Account) Observe(o Observation) []Record {
	d := derivation{account: a, at: a.forward(o.At)}
	if a.begin.BootID != d.at.BootID {
		b := a.begin
		b.BootID = d.at.BootID
		d.emit(&b)
	}
	fell := a.watch.seen && o.At.Boot < a.watch.boot
	reason, span := a.gap(d.at, fell, o.watched)
	if reason == "" && a.watch.sameSituation(&o) {
		d.measure(&o)
		d.useIfDue()
	} else {
		s := situate(&o)
		a.watch.lacks = s.lacks
		if reason != "" {
			d.gap(s, &o, reason, span)
		} else {
			d.measure(&o)
		}
		d.change(s)
		a.watch.cards, a.watch.lines = slices.Clone(o.Cards), slices.Clone(o.Lines)
	}
	a.watch.seen, a.watch.boot = true, o.At.Boot
	d.node(o.NodeLabels)
	d.pods(o.Pods)
	for _, x := range sortedXIDs(o.XIDs) {
		if o.XIDs[x] > 0 {
			seen := xidSeen(x, o.XIDs[x])
			seen.GPU = gpu.UUID(text(string(x.GPU)))
			d.emit(&seen)
		}
	}
	for i := range o.Facts {
		d.emit(&FactSeen{cleanFact(o.Facts[i])})
	}
	if n := len(d.out); n == 0 || d.out[n-1].At != d.at {
		d.emit(&Beat{})
	}
	return d.out
}

// sameSituation reports whether cards and lines are those of the Observation before.
func (w *watch) sameSituation(o *Observation) bool {
	if !w.seen || !slices.Equal(w.cards, o.Cards) || len(w.lines) != len(o.Lines) {
		return false
	}
	for i := range w.lines {
		before, now := &w.lines[i], &o.Lines[i]
		// What is the same bit for bit, as it mostly is, needs no arithmetic.
		if *before != *now && (before.key() != now.key() || !before.sameNumbers(now)) {
			return false
		}
	}
	return true
}

// change closes the lines that do not stand any more and opens those that came.
func (d *derivation) change(s *situation) {
	a := d.account
	next := make(map[lineKey]int, len(s.lines))
	for i := range s.lines {
		next[s.lines[i].key()] = i
	}
	touched := map[gpu.UUID]bool{}
	var ended []*openLine
	for _, id := range a.openIDs() {
		l := a.lines[id]
		if i, stands := next[l.line.key()]; stands && s.lines[i].sameNumbers(&l.line) {
			continue
		}
		ended = append(ended, l)
		touched[l.line.Card] = true
	}
	var opened []int
	for i := range s.lines {
		l := a.byKey[s.lines[i].key()]
		if l == nil || !l.line.sameNumbers(&s.lines[i]) {
			opened = append(opened, i)
			touched[s.lines[i].Card] = true
		}
	}
	for _, c := range s.cards {
		if known := a.byUUID[c.UUID]; known == nil || known.card != known.renewed(c) {
			touched[c.UUID] = true
		}
	}
	d.use(func(c *cardAccount) bool { return touched[c.card.UUID] })
	for uuid, e := range a.watch.energy {
		if touched[uuid] && e.told < d.at.Boot {
			e.changed = d.at.Boot
		}
	}
	d.useIfDue()
	d.introduce(s.cards)
	goesOn, unseen := s.successors(), s.unseen()
	for _, l := range ended {
		why := CloseEnded
		switch {
		case goesOn.has(&l.line):
			why = CloseChanged
		case unseen[l.line.Card] && l.line.Cause == "":
			why = CloseUnseen
		}
		d.emit(&Close{ID: l.id, Why: why})
	}
	for _, i := range opened {
		d.open(&s.lines[i])
	}
	a.watch.follow(a)
}

// renewed is a card with what is said of it now; what is not said any more stays.
func (c *cardAccount) renewed(now Card) Card {
	now.Model = cmp.Or(now.Model, c.card.Model)
	now.Memory = cmp.Or(now.Memory, c.card.Memory)
	return now
}

func (d *derivation) introduce(cards []Card) {
	a := d.account
	for _, c := range cards {
		known := a.byUUID[c.UUID]
		switch {
		case known == nil:
			d.emit(&CardSeen{N: len(a.cards) + 1, Card: c})
		case known.card != known.renewed(c):
			d.emit(&CardSeen{N: known.n, Card: known.renewed(c)})
		}
	}
}

// open opens a line, and charges what it proves of a gap.
func (d *derivation) open(l *Line) {
	a := d.account
	o := openOf(l)
	o.ID, o.Card = a.lastLine+1, a.byUUID[l.Card].n
	if l.GPUInstance != gpu.NoInstance {
		o.Policy = a.begin.Policy
	}
	d.emit(&o)
	if _, can := l.proof(); !can || len(a.late) == 0 {
		return
	}
	for _, late := range slices.Clone(a.late) {
		if late.line.Card != l.Card || !sameProof(&late.line, l) {
			continue
		}
		memory := late.memoryOf(least(late.line.Memory, l.Memory), a.byUUID[l.Card].card)
		d.emit(&Correction{
			Card: o.Card, To: o, From: sharing.CauseUnobserved, Span: late.span,
			Part: least(late.line.Part, l.Part).String(), Memory: memory.String(),
			Refers: late.refers, FromWall: late.from, ToWall: late.to, Reason: CorrectionProof,
		})
	}
}

// node says the node's labels where they are others.
func (d *derivation) node(labels map[string]string) {
	if labels == nil || maps.Equal(labels, d.account.labels) {
		return
	}
	if clean := cleanLabels(labels); !maps.Equal(clean, d.account.labels) {
		d.emit(&NodeSeen{Labels: clean})
	}
}

// pods says what is new of the pods that have registers.
func (d *derivation) pods(pods []Pod) {
	a := d.account
	for i := range pods {
		p := &pods[i]
		h := a.holders[holder{p.Namespace, p.Name, p.UID}]
		if h != nil && samePod(p, &h.facts) {
			continue
		}
		clean := Pod{
			Namespace: text(p.Namespace), Name: text(p.Name), UID: text(p.UID),
			WorkloadKind: text(p.WorkloadKind), Workload: text(p.Workload), Labels: cleanLabels(p.Labels),
		}
		h = a.holders[holder{clean.Namespace, clean.Name, clean.UID}]
		if h != nil && !samePod(&clean, &h.facts) {
			d.emit(&PodSeen{clean})
		}
	}
}

func samePod(p, q *Pod) bool {
	return p.Namespace == q.Namespace && p.Name == q.Name && p.UID == q.UID &&
		p.WorkloadKind == q.WorkloadKind && p.Workload == q.Workload && maps.Equal(p.Labels, q.Labels)
}

// text is foreign text as a log can hold it: valid UTF-8, and not endless.
func text(s string) string {
	if len(s) > maxName {
		s = s[:maxName]
	}
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func cleanLabels(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(labels))
	clean := make(map[string]string, min(len(names), maxLabels))
	room := maxLabelBytes
	for _, name := range names[:min(len(names), maxLabels)] {
		key, value := text(name), text(labels[name])
		if room -= len(key) + len(value); room < 0 {
			break
		}
		clean[key] = value
	}
	return clean
}

func cleanFact(f Fact) Fact {
	return Fact{
		What: text(f.What), Device: gpu.UUID(text(string(f.Device))), Text: text(f.Text), Detail: cleanLabels(f.Detail),
	}
}
