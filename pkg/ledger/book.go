// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"
)

const (
	// bookFolder is where the book lies in a ledger's folder.
	bookFolder = "book"
	// maxPending bounds the records that wait for a disk: weeks of a node whose pods change rarely.
	maxPending = 200_000
	// hangsAfter is how long a disk may take for a commit.
	hangsAfter = 5 * time.Second

	defaultRetention = 400 * 24 * time.Hour
	defaultMaxBytes  = 1 << 30
)

// BookConfig is what a Book is opened with.
type BookConfig struct {
	// Dir is the folder of the ledger; the book lies in "book" within. Empty means memory only.
	Dir string
	// Node and Cluster name where it is, Version the program, Policy how MIG devices are weighed.
	Node, Cluster, Version, Policy string
	// Interval is how often the book is told what there is, where that is known: what is longer than LongestPause of it is a gap.
	Interval time.Duration
	// Retention is how long segments of the log are kept after their last record, 0 for 400 days; MaxBytes how many
	// bytes of them, 0 for 1 GiB. The totals are kept for ever.
	Retention time.Duration
	MaxBytes  int64
	// Log hears of trouble and of what was done about it; nil for nobody.
	Log *slog.Logger
}

// Book is the durable account of a node: what is observed becomes records, records become durable with a Commit, and
// only what is durable is shown. All of it is safe for concurrent use.
type Book struct {
	cfg  BookConfig
	log  *slog.Logger
	disk disk
	dir  string

	// committing is held by whoever touches the disk, for as long as that takes. It guards what follows.
	committing sync.Mutex
	lock       file
	opened     bool
	writer     *logWriter
	store      checkpoints
	// asideStore says why the store that was there is put aside, empty where it is not.
	asideStore string

	// mu is held for moments only. It guards what follows.
	mu sync.Mutex
	// account is ahead of the disk by the pending records; nil until the past is known.
	account *Account
	// begun says that this process is written in as the meter, lost that records are missing before it and nothing
	// says so yet.
	begun, lost bool
	waiting     waiting
	// pending are not written yet; the first inFlight of them are being written now and must not be changed.
	pending  []Record
	inFlight int
	// full says that there is no room for more.
	full, closed bool
	// committed is what the disk surely has, whole, shown what of it is to be seen.
	committed, shown *Totals
	state            BookState
	// asked is when the commit began that is under way, zero where there is none.
	asked time.Time
	// closedSize is of the segments that are not written to any more.
	closedSize int64
	// view is made when it is asked for.
	view *View
}

// stall is how long nothing may be observed before it is a gap, in milliseconds.
func (b *Book) stall() int64 { return LongestPause(b.cfg.Interval).Milliseconds() }

// durable says that there is a disk to keep the book on.
func (b *Book) durable() bool { return b.cfg.Dir != "" }

// OpenBook is the book in cfg.Dir. It does not touch the disk: the first Commit does, and until one could, the book
// shows nothing, keeps what it observes, and says in its State what is wrong.
func OpenBook(cfg BookConfig) *Book { return openBook(cfg, osDisk{}) }

func openBook(cfg BookConfig, d disk) *Book {
	if cfg.Retention <= 0 {
		cfg.Retention = defaultRetention
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	b := &Book{cfg: cfg, log: cfg.Log, disk: d, dir: filepath.Join(cfg.Dir, bookFolder)}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.committed, b.shown = &Totals{}, &Totals{}
	b.state = BookState{Durable: b.durable(), Errors: map[string]uint64{}}
	for _, operation := range BookErrors() {
		b.state.Errors[operation] = 0
	}
	if !b.durable() {
		b.account = NewAccount()
		b.account.stall = b.stall()
		b.state.Restored = RestoredNew
	}
	b.lock = file{dir: cfg.Dir, name: bookFolder}
	return b
}

// Observe takes what a tick saw; the book owns it from there on. It never waits for a disk. One goroutine calls it,
// in the order of time.
func (b *Book) Observe(o Observation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view = nil
	if b.closed {
		return
	}
	var room bool
	if b.account == nil {
		room = b.waiting.add(o, b.stall())
	} else if room = len(b.pending) < maxPending; room {
		b.take(o)
	}
	if !room && !b.full {
		b.log.Error("the ledger's disk has been away for so long that no more is kept in memory: what is not proven to be held until it is back is unobserved",
			"records", len(b.pending), "observations", len(b.waiting.kept))
	}
	b.full = !room
}

// take makes records of an observation.
func (b *Book) take(o Observation) {
	if b.lost {
		b.append(b.account.Lost(o.At))
		b.lost = false
	}
	if !b.begun {
		id := b.account.begin.LedgerID
		if id == "" {
			id = newLedgerID()
		}
		if was := b.account.begin.Node; was != "" && was != b.cfg.Node {
			b.log.Warn("the ledger was kept on a node of another name: where its disk was copied, remove this node's copy, or the charges of both are taken for those of one",
				"before", was, "now", b.cfg.Node, "ledger", id)
		}
		begin := Begin{LedgerID: id, Node: b.cfg.Node, Cluster: b.cfg.Cluster, Version: b.cfg.Version, Policy: b.cfg.Policy}
		b.append(b.account.Begin(begin, o.At))
		b.begun = true
	}
	b.append(b.account.Observe(o))
}

// append adds records to those that wait. A beat after a beat takes its place, and its number: between the two
// nothing happened.
func (b *Book) append(records []Record) {
	if n := len(b.pending); n > b.inFlight && len(records) == 1 &&
		records[0].Body.Kind() == KindBeat && b.pending[n-1].Body.Kind() == KindBeat {
		records[0].Seq = b.pending[n-1].Seq
		b.account.seq = records[0].Seq
		b.pending[n-1] = records[0]
		return
	}
	b.pending = append(b.pending, records...)
}

// newLedgerID is a random UUID, of version 4.
func newLedgerID() string {
	var id [16]byte
	// It does not fail: it ends the program where there is no randomness.
	_, _ = rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// View is what may be shown now. It is cheap to ask for.
func (b *Book) View() *View {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.view == nil || b.hangs() && !b.view.State.Degraded {
		b.view = b.look()
	}
	return b.view
}

// hangs says that a commit takes so long that the disk is not to be counted on.
func (b *Book) hangs() bool { return !b.asked.IsZero() && time.Since(b.asked) >= hangsAfter }

func (b *Book) look() *View {
	v := &View{Totals: b.shown, State: b.state}
	v.State.Errors = maps.Clone(b.state.Errors)
	v.State.Pending = len(b.pending)
	if b.hangs() && !v.State.Degraded {
		v.State.Degraded, v.State.Err = true, "the disk does not answer"
	}
	if b.account == nil {
		return v
	}
	v.Unbalanced = b.account.Unbalanced()
	if len(b.pending) > 0 {
		v.born(b.committed, b.account.Totals(), func(p PodSeries) bool { return b.account.pods[p].born > b.committed.Sequence })
	}
	return v
}

var errClosed = errors.New("the book is closed")

// Close commits what is pending and lets another process take the folder. Nothing is observed after it.
func (b *Book) Close() error {
	err := b.Commit()
	b.committing.Lock()
	defer b.committing.Unlock()
	b.mu.Lock()
	b.closed = true
	b.view = nil
	b.mu.Unlock()
	if b.writer != nil {
		b.writer.drop()
	}
	b.opened = false
	return errors.Join(err, b.closeStore(), b.lock.release())
}

func (b *Book) closeStore() error {
	if b.store == nil {
		return nil
	}
	err := b.store.Close()
	b.store = nil
	return err
}
