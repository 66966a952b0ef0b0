// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// defaultCommitEvery is how often a Book is committed unless the Config says otherwise.
	defaultCommitEvery = 10 * time.Second
	// firstPatience is how long a Book waits, once there is a reading, for devices and for the first good listing: until
	// then nobody can say who has held a device all the while, and a book that was told so would bridge no gap. Before there is
	// a reading there is nothing to tell; what it lacks then is a gap of the first observation.
	firstPatience = 2 * time.Minute
)

// Book keeps the charges. Observe takes in what a tick saw, in memory and at once; Commit makes it last, may
// block for as long as a disk does, and runs apart from the loop, one call at a time; View is what may be shown now. An
// error of Commit says that nothing is lost yet. A Book with a method Kinds() []string says how its errors are counted.
type Book interface {
	Observe(ledger.Observation)
	Commit() error
	View() *ledger.View
}

// bookkeeper has the Book hear each tick, and commits it before a snapshot with its totals is published, as
// long as the disk lets it. It is for the Meter's loop alone, and does nothing if nil.
type bookkeeper struct {
	book     Book
	observer *observer
	// every is how long what was heard may wait for the disk, and slack by how much a tick commits before that, so
	// that its own snapshot has it; patience is the longest that a tick waits for a commit.
	every, slack, patience time.Duration
	// listed says that there are listings to wait for; began is when the first reading was, and observed that the Book
	// has heard of a tick.
	listed   bool
	began    time.Time
	observed bool
	// heard is when the Book heard last of a tick. What is longer than pause is a gap for it.
	heard time.Time
	pause time.Duration

	answers chan error
	running bool
	// pending says that something was heard since the last commit began, or that it failed.
	pending bool
	// urgent says that what is pending is to be seen soon.
	urgent bool
	// start is when the commit under way began, last when the last one did.
	start, last time.Time
	// handed are this process' XIDs that the commit under way has; mixed says that more were handed over since.
	handed map[XIDKey]uint64
	mixed  bool
	// before are the XIDs of those who had the Book before this process, once they are known.
	before map[XIDKey]uint64
	// told are the XIDs of the totals toldOf.
	told   map[XIDKey]uint64
	toldOf *ledger.Totals
	// ahead says that more was told than the totals have, while the disk was of no use.
	ahead bool
	err   error
}

func newBookkeeper(cfg Config) (*bookkeeper, error) {
	memory, err := sharing.ParsePolicy("memory")
	if err != nil {
		return nil, fmt.Errorf("meter: %w", err)
	}
	return &bookkeeper{
		book: cfg.Book, every: cfg.CommitEvery, patience: min(cfg.Interval/4, savePatience),
		slack: min(cfg.Interval/2, cfg.CommitEvery/4), listed: cfg.Allocations != nil, pause: ledger.LongestPause(cfg.Interval),
		observer: newObserver(cfg, memory), answers: make(chan error, 1),
	}, nil
}

// hear tells the Book of a tick.
func (b *bookkeeper) hear(s *scene) {
	if b == nil {
		return
	}
	b.settle(0)
	b.observer.gather(s)
	if !b.ready(s, time.Now()) {
		return
	}
	o := b.observer.observation(s)
	b.heard = time.Now()
	b.urgent = b.urgent || !b.observed || len(o.XIDs) > 0
	b.observed = true
	b.book.Observe(o)
	b.pending, b.mixed = true, b.running
}

// ready says whether the Book is to hear of a tick.
func (b *bookkeeper) ready(s *scene, now time.Time) bool {
	if b.observed {
		return !b.stale(s, now)
	}
	if b.began.IsZero() && s.answered {
		b.began = now
	}
	seen := len(s.situation.Devices) > 0 && (s.situation.Observed || !b.listed)
	return seen || s.answered && now.Sub(b.began) >= firstPatience
}

// stale says that a tick would prove what it does not: nobody looked for so long that it is a gap, as where the process was
// frozen, and the listing was asked for before that. Who held a device then may not have held it since.
func (b *bookkeeper) stale(s *scene, now time.Time) bool {
	return now.Sub(b.heard) > b.pause && s.situation.Observed && now.Sub(s.asked) > b.pause
}

// wait is how long after a commit the next one is due: the first charges do not wait for others, nor do errors of the
// driver, which are alerted on.
func (b *bookkeeper) wait() time.Duration {
	if b.urgent {
		return min(b.every, alarmPause)
	}
	return b.every
}

// commit begins one unless one is under way.
func (b *bookkeeper) commit(xids map[XIDKey]uint64) {
	b.settle(0)
	if b.running {
		return
	}
	if !b.observed {
		xids = nil // nobody has handed them over yet
	}
	b.running, b.pending, b.urgent, b.mixed, b.handed = true, false, false, false, xids
	b.start = time.Now()
	b.last = b.start
	go func() { b.answers <- b.book.Commit() }()
}

// due gets something when what the Book heard in a tick is to be committed before the tick at moment; nil for never.
func (b *bookkeeper) due(moment time.Time) <-chan time.Time {
	if b == nil || !b.pending || b.running && len(b.answers) == 0 {
		return nil
	}
	wait := max(time.Until(b.last.Add(b.wait())), 0)
	if time.Until(moment) <= wait+b.slack {
		return nil
	}
	return time.After(wait)
}

// finish begins a commit if that is due, waits for what this tick began, and is what may be told of the Book. A
// commit that outlives its tick stays under way. The first one also shows what was there before.
func (b *bookkeeper) finish(xids map[XIDKey]uint64) (*ledger.View, map[XIDKey]uint64, []Fault) {
	if b == nil {
		return nil, xids, nil
	}
	if b.last.IsZero() || b.pending && time.Since(b.last) >= b.wait()-b.slack {
		b.commit(xids)
	}
	b.settle(b.patience - time.Since(b.start))
	view := b.book.View()
	return view, b.lasting(view, xids), b.faults()
}

// close commits what the loop ends with.
func (b *bookkeeper) close() {
	if b == nil || !b.observed {
		return
	}
	deadline := time.Now().Add(lastPatience)
	b.settle(lastPatience)
	b.commit(nil)
	b.settle(time.Until(deadline))
}

// settle takes the answer of the commit under way, if it comes within patience.
func (b *bookkeeper) settle(patience time.Duration) {
	if !b.running {
		return
	}
	if came, err := awaitAnswer(b.answers, patience); came {
		b.take(err)
	}
}

func (b *bookkeeper) take(err error) {
	b.running, b.err = false, err
	if err != nil {
		b.pending = true
		return
	}
	view := b.book.View()
	if b.before == nil && !b.mixed && Committed(view) {
		b.before = less(lastingXIDs(view.Totals), b.handed)
	}
}

// Committed says whether a view has totals that may be shown.
func Committed(v *ledger.View) bool { return v != nil && v.Totals != nil && v.Totals.LedgerID != "" }

// lasting are the XIDs counted over restarts: those that are on disk, and all that are known while the disk is of no
// use, since an alert must not wait for it. Nil while it is not known what was counted before.
func (b *bookkeeper) lasting(view *ledger.View, xids map[XIDKey]uint64) map[XIDKey]uint64 {
	switch {
	case view != nil && view.State.Degraded, view == nil:
		b.ahead = true
		return more(b.before, xids)
	case !Committed(view):
		return nil
	}
	if view.Totals != b.toldOf {
		b.told, b.toldOf = lastingXIDs(view.Totals), view.Totals
	}
	if !b.ahead {
		return b.told
	}
	// The commit that a disk answers at last has what was counted when it began.
	all := maps.Clone(b.told)
	for key, n := range more(b.before, xids) {
		all[key] = max(all[key], n)
	}
	b.ahead = !maps.Equal(all, b.told)
	return all
}

func lastingXIDs(t *ledger.Totals) map[XIDKey]uint64 {
	out := make(map[XIDKey]uint64, len(t.XIDs))
	for x, n := range t.XIDs {
		out[XIDKey{GPU: x.GPU, GPUInstance: x.GPUInstance, ComputeInstance: x.ComputeInstance, XID: x.Code}] = n
	}
	return out
}

// less is a without b, nothing below zero.
func less(a, b map[XIDKey]uint64) map[XIDKey]uint64 {
	out := maps.Clone(a)
	for key, n := range b {
		out[key] -= min(out[key], n)
	}
	return out
}

// more is a with b.
func more(a, b map[XIDKey]uint64) map[XIDKey]uint64 {
	out := make(map[XIDKey]uint64, len(a)+len(b))
	maps.Copy(out, a)
	for key, n := range b {
		out[key] += n
	}
	return out
}

func (b *bookkeeper) faults() []Fault {
	kind, text := "", ""
	switch {
	case b.running && time.Since(b.start) >= saveHangs:
		kind, text = "timeout", fmt.Sprintf("the disk has not answered for %v", time.Since(b.start).Round(time.Second))
	case b.err != nil:
		kind, text = faultKind(b.err), b.err.Error()
	default:
		return nil
	}
	return []Fault{{Source: SourceLedger, Kind: kind, Text: text + "; charges go on in memory, and a restart would lose those since the last commit"}}
}
