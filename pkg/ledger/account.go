// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// StallAfter is how long a meter may not look before what is between counts as a gap, where it is not known how often
	// it looks.
	StallAfter = 5 * time.Minute
	// leastStall is below any such time: a machine that is busy may hold a meter up for seconds.
	leastStall = 10 * time.Second
	// lateFor is how long after a gap a proof is still waited for.
	lateFor = time.Hour
	// podsFor is how long an ended pod's registers are kept, so that one that comes back goes on counting:
	// the kubelet may be away for longer than a tombstone is shown.
	podsFor = 2 * time.Hour
	// maxEnded bounds the ended pods that are kept: all of them are written with each commit.
	maxEnded = 2_000
	// maxClock bounds what a clock, a duration or a counter may read: far beyond every real one, and sums of two
	// cannot overflow.
	maxClock = int64(1) << 53
)

// Account is what a book's records come to: a pure fold without clock or disk. The same records give the
// same Account. It is not safe for concurrent use.
//
// The time of open lines is charged when it is asked for, so that a Beat costs nothing.
type Account struct {
	begin   Begin
	created int64
	seq     uint64
	// at is the last record's instant, charged the one up to which open lines are charged. They differ from a Begin
	// to its Gap, while away.
	at, charged Instant
	away        bool
	// age is how long the account has counted, in milliseconds: unlike both clocks it never goes back.
	age int64

	cards    []*cardAccount // by number, less one
	byUUID   map[gpu.UUID]*cardAccount
	lines    map[uint64]*openLine
	byKey    map[lineKey]*openLine
	lastLine uint64
	// crooked counts the cards whose lines are not one card.
	crooked int

	devices map[gpu.UUID]*deviceAccount
	series  map[Series]*seriesAccount
	pods    map[PodSeries]*podAccount
	holders map[holder]*holderAccount
	ended   endedPods
	late    []*lateLine
	// hidden are lines of cards that nobody can see the holders of, and may be late when somebody can.
	hidden []*lateLine
	gaps   map[string]int64
	xids   map[XID]uint64
	labels map[string]string

	// watch is what Observe remembers from one Observation to the next and what no record has.
	watch watch
	// stall is LongestPause in milliseconds.
	stall int64
	// dropped, where it is set, hears of every pod whose registers are dropped, with the last that they came to.
	dropped func(PodTotal)
}

// LongestPause is how long a meter that looks every interval may not look before what is between counts as a gap: three
// intervals, since one that waits for a slow source looks late, and ten seconds at least; StallAfter where interval is 0.
func LongestPause(interval time.Duration) time.Duration {
	if interval <= 0 {
		return StallAfter
	}
	return max(3*interval, leastStall)
}

// NewAccount is an account without a record.
func NewAccount() *Account {
	return &Account{
		byUUID:  map[gpu.UUID]*cardAccount{},
		lines:   map[uint64]*openLine{},
		byKey:   map[lineKey]*openLine{},
		devices: map[gpu.UUID]*deviceAccount{},
		series:  map[Series]*seriesAccount{},
		pods:    map[PodSeries]*podAccount{},
		holders: map[holder]*holderAccount{},
		gaps:    map[string]int64{},
		xids:    map[XID]uint64{},
		labels:  map[string]string{},
		stall:   StallAfter.Milliseconds(),
	}
}

// Apply folds one record in. Its errors say why the record cannot follow those before; the account is then
// as it was.
func (a *Account) Apply(r Record) error {
	if err := a.apply(&r); err != nil {
		kind := Kind("empty")
		if r.Body != nil {
			kind = r.Body.Kind()
		}
		return fmt.Errorf("record %d (%s) does not follow record %d: %w", r.Seq, kind, a.seq, err)
	}
	a.seq = r.Seq
	a.forget()
	return nil
}

func (a *Account) apply(r *Record) error {
	if r.Body == nil {
		return errors.New("it says nothing")
	}
	if r.At.Boot < 0 || r.At.Boot > maxClock || r.At.Wall < -maxClock || r.At.Wall > maxClock {
		return fmt.Errorf("its time is none: %d ms of the boot clock, %d of the wall clock", r.At.Boot, r.At.Wall)
	}
	carry, isCarry := r.Body.(*Carry)
	switch {
	case isCarry:
		return a.applyCarry(r.Seq, carry)
	case r.Seq != a.seq+1:
		return fmt.Errorf("record %d is missing: begin with the carry of a segment, or with the first record", a.seq+1)
	}
	switch body := r.Body.(type) {
	case *Begin:
		return a.applyBegin(r.At, body)
	case *Gap:
		return a.applyGap(r.Seq, r.At, body)
	}
	if err := a.canPass(r.At); err != nil {
		return err
	}
	// What a record says comes to count at its instant, and is looked at before anything is changed.
	do, err := a.prepare(r)
	if err != nil {
		return err
	}
	a.pass(r.At)
	do()
	return nil
}

// prepare looks whether a record can be applied, and is what it then does.
func (a *Account) prepare(r *Record) (do func(), err error) {
	switch body := r.Body.(type) {
	case *Beat:
		return func() {}, nil
	case *CardSeen:
		return a.prepareCard(body)
	case *Open:
		do, err := a.prepareOpen(body)
		return func() { do(); a.conclude(a.lines[body.ID]) }, err
	case *Close:
		return a.prepareClose(body)
	case *Use:
		return a.prepareUse(body)
	case *Correction:
		return a.prepareCorrection(body)
	case *FactSeen:
		return func() {}, nil
	case *XIDSeen:
		return a.prepareXID(body)
	case *PodSeen:
		return func() { a.know(body.Pod) }, nil
	case *NodeSeen:
		return func() { a.labels = body.Labels }, nil
	}
	return nil, fmt.Errorf("this program does not know the kind %q: a newer one wrote it", r.Body.Kind())
}

// canPass reports why open lines cannot be charged up to an instant.
func (a *Account) canPass(at Instant) error {
	switch {
	case len(a.cards) == 0 && at.BootID != a.at.BootID:
		return nil
	case a.away:
		return errors.New("a meter began, and no gap says what was before")
	case at.BootID != a.at.BootID:
		return fmt.Errorf("the machine was started anew (boot %q, then %q), and no gap says so", a.at.BootID, at.BootID)
	case at.Boot < a.at.Boot:
		return fmt.Errorf("the boot clock goes back from %d to %d ms", a.at.Boot, at.Boot)
	case a.age+at.Boot-a.at.Boot > maxClock:
		return errors.New("the account is older than time can be counted")
	case at.Boot > a.at.Boot && a.crooked > 0:
		return fmt.Errorf("time passes while the lines of %d GPUs do not add up to one", a.crooked)
	}
	return nil
}

// oneBoot reports whether the boot clocks of an instant and of what was charged last can be compared. Where the boot id is
// not known, the machine may have been started anew whenever a meter begins.
func (a *Account) oneBoot(at Instant) bool {
	return at.BootID == a.charged.BootID && (at.BootID != "" || !a.away)
}

// pass lets time pass, which charges what is open.
func (a *Account) pass(at Instant) {
	if at.BootID == a.charged.BootID && at.Boot > a.charged.Boot {
		a.age += at.Boot - a.charged.Boot
	}
	a.at, a.charged = at, at
}

// Begin takes the book up for a meter: what was open is charged up to the last record, and the next Observation
// tells what came of it. The id, node and policy are those of b from here on; its BootID is set to at's.
func (a *Account) Begin(b Begin, at Instant) []Record {
	b.BootID = at.BootID
	d := derivation{account: a, at: believable(at)}
	if at.BootID != "" {
		d.at = a.forward(at)
	}
	d.emit(&b)
	return d.out
}

func (a *Account) applyBegin(at Instant, b *Begin) error {
	if a.begin.LedgerID != "" && a.begin.LedgerID != b.LedgerID {
		return fmt.Errorf("it is of ledger %q, and this one is %q", b.LedgerID, a.begin.LedgerID)
	}
	if b.BootID != at.BootID {
		return fmt.Errorf("its boot is %q and %q", b.BootID, at.BootID)
	}
	if at.BootID == a.at.BootID && at.BootID != "" && at.Boot < a.at.Boot {
		return fmt.Errorf("the boot clock goes back from %d to %d ms", a.at.Boot, at.Boot)
	}
	if a.seq == 0 {
		a.created = at.Wall
	}
	a.begin = *b
	a.at = at
	if len(a.cards) > 0 {
		a.away = true
	} else {
		a.charged = at
	}
	a.watch = watch{}
	return nil
}

// Lost says that records which the account knows of are missing in the log: it was restored from a newer state. A
// Begin and an Observation follow.
func (a *Account) Lost(at Instant) []Record {
	at = a.forward(at)
	// What comes next says which boot it is; the log has none before a Begin.
	d := derivation{account: a, at: Instant{BootID: a.at.BootID, Boot: a.at.Boot, Wall: at.Wall}}
	d.emit(&Gap{Reason: GapLost, Wall: at.Wall - a.at.Wall})
	return d.out
}

func (a *Account) prepareCard(c *CardSeen) (func(), error) {
	known := a.byUUID[c.UUID]
	switch {
	case c.UUID == "":
		return nil, errors.New("the card has no UUID")
	case c.Memory < 0 || c.Memory > maxMemory:
		return nil, fmt.Errorf("card %s has %d MiB", c.UUID, c.Memory)
	case known != nil && known.n != c.N:
		return nil, fmt.Errorf("card %s is number %d, not %d", c.UUID, known.n, c.N)
	case known == nil && c.N != len(a.cards)+1:
		return nil, fmt.Errorf("card %s is number %d, and %d is next", c.UUID, c.N, len(a.cards)+1)
	case known == nil:
		return func() {
			card := newCardAccount(c.N, c.Card)
			a.cards = append(a.cards, card)
			a.byUUID[c.UUID] = card
		}, nil
	}
	return func() {
		// What was until now is charged as what the card was until now.
		a.settleCard(known)
		for _, l := range known.lines {
			a.settle(l)
			a.unregister(l)
		}
		known.card = c.Card
		for _, l := range a.hidden {
			if l.line.Card == c.UUID {
				l.mebibytes = min(l.mebibytes, c.Memory)
			}
		}
		for _, l := range known.lines {
			a.register(l)
		}
	}, nil
}

// card is the card of a number, or nil.
func (a *Account) card(n int) *cardAccount {
	if n < 1 || n > len(a.cards) {
		return nil
	}
	return a.cards[n-1]
}

func (a *Account) prepareXID(x *XIDSeen) (func(), error) {
	key := XID{GPU: x.GPU, GPUInstance: x.GPUInstance, ComputeInstance: x.ComputeInstance, Code: x.Code}
	sum := a.xids[key] + x.Count
	if sum < x.Count {
		return nil, fmt.Errorf("XID %d of %s: the count is over 64 bits", x.Code, x.GPU)
	}
	return func() { a.xids[key] = sum }, nil
}

// Unbalanced is for every card that the account knows what the lines of the last Observation lacked to one, in parts
// of the card: zero where all is well, negative where they were more.
func (a *Account) Unbalanced() map[gpu.UUID]sharing.Fraction {
	lacks := make(map[gpu.UUID]sharing.Fraction, len(a.cards))
	for _, c := range a.cards {
		lacks[c.card.UUID] = a.watch.lacks[c.card.UUID]
	}
	return lacks
}
