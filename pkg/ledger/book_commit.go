// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// maxSegment is how many bytes a segment has before the next is begun.
	maxSegment = 16 << 20
	// segmentSpan is how long a segment takes at least where it is the day that ends it, in milliseconds: a clock that
	// goes to and fro over midnight does not make a segment each time.
	segmentSpan = 60 * 60 * 1000
)

// The operations of BookErrors.
const (
	operationOpen    = "open"
	operationCommit  = "commit"
	operationRecover = "recover"
	operationRetain  = "retain"
)

// batch is what one commit is about: records, and what the account comes to with them.
type batch struct {
	records    []Record
	checkpoint checkpoint
	totals     *Totals
}

// Commit makes all that was observed before it durable, and shows it then: first the log, then the totals, each with
// an fsync. It takes as long as the disk does, beside Observe and View; Commits wait for each other. After an error
// nothing is lost: the next Commit writes it.
func (b *Book) Commit() error {
	b.committing.Lock()
	defer b.committing.Unlock()
	b.mu.Lock()
	b.asked = time.Now()
	b.mu.Unlock()
	operation, err := b.commit()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.view = time.Time{}, nil
	if err == nil {
		if b.state.Degraded {
			b.log.Info("the ledger is on its disk again", "dir", b.dir)
		}
		b.state.Degraded, b.state.Err = false, ""
		return nil
	}
	b.state.Errors[operation]++
	// What is wrong is told once, and not with every attempt.
	if !b.state.Degraded || b.state.Err != err.Error() {
		b.log.Error("the ledger cannot be saved; it goes on in memory, shows what was saved last, and tries again", "dir", b.dir, "error", err)
	}
	b.state.Degraded, b.state.Err = true, err.Error()
	return err
}

// commit returns what it was about when it failed.
func (b *Book) commit() (string, error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return operationCommit, errClosed
	}
	if b.durable() && !b.opened {
		if err := b.open(); err != nil {
			return operationOpen, err
		}
	}
	if err := b.renew(); err != nil {
		return operationRecover, err
	}
	todo, err := b.batch()
	if todo == nil || err != nil {
		return operationCommit, err
	}
	if !b.durable() {
		b.done(todo, len(todo.records), nil)
		return operationCommit, nil
	}
	segment := b.writer.path
	written, err := b.writer.write(todo.records)
	if err == nil {
		todo.checkpoint.Link = b.writer.link.String()
		err = b.save(&todo.checkpoint)
	}
	b.done(todo, written, err)
	if err == nil && b.writer.path != segment {
		b.retire()
	}
	return operationCommit, err
}

// renew begins the log anew where somebody removed the segment that is being written: what is pending is told by a
// Carry instead, so that the totals go on.
func (b *Book) renew() error {
	if !b.durable() || b.writer.path == "" {
		return nil
	}
	if _, err := os.Stat(b.writer.path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(b.disk.MkdirAll(b.dir), b.closeStore()); err != nil {
		return fmt.Errorf("begin the log anew: %w", err)
	}
	b.found("the ledger's log was removed while it was being written; it is begun anew, and the totals go on", "log", b.writer.path)
	b.writer.drop()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writer.path, b.pending = "", nil
	return b.carry()
}

// save replaces the checkpoint. After an error the store is opened again, or made anew, by the next one.
func (b *Book) save(c *checkpoint) error {
	path := filepath.Join(b.dir, storeName)
	if b.store == nil {
		if _, err := b.openStore(); err != nil {
			return err
		}
	}
	if b.store == nil {
		var err error
		b.store, err = b.disk.CreateStore(path, c)
		return err
	}
	if err := b.store.Save(c); err != nil {
		return errors.Join(fmt.Errorf("save the totals in %s: %w", path, err), b.closeStore())
	}
	return nil
}

// batch takes what is pending. It is nil where there is nothing new.
func (b *Book) batch() (*batch, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.account == nil || b.account.seq == b.committed.Sequence {
		return nil, nil
	}
	todo := &batch{}
	if b.durable() {
		if b.turns() {
			if err := b.carry(); err != nil {
				return nil, err
			}
		}
		var err error
		if todo.checkpoint, err = checkpointOf(b.account); err != nil {
			return nil, err
		}
	}
	b.inFlight = len(b.pending)
	todo.records, todo.totals = b.pending[:b.inFlight:b.inFlight], b.account.Totals()
	return todo, nil
}

// turns says whether a new segment is to be begun.
func (b *Book) turns() bool {
	w, now := b.writer, b.account.at
	isCarry := func(r Record) bool { return r.Body.Kind() == KindCarry }
	if w.path == "" || slices.ContainsFunc(b.pending, isCarry) {
		return false
	}
	young := now.BootID == w.started.BootID && now.Boot-w.started.Boot < segmentSpan
	return w.size >= maxSegment || dayOf(now.Wall) != dayOf(w.started.Wall) && !young
}

// dayOf is the number of the UTC day.
func dayOf(wall int64) int64 {
	return time.UnixMilli(wall).UTC().Truncate(24 * time.Hour).Unix()
}

// carry makes the next record one that begins a segment.
func (b *Book) carry() error {
	state, err := b.account.MarshalJSON()
	if err != nil {
		return fmt.Errorf("write down what the ledger came to: %w", err)
	}
	b.account.seq++
	b.pending = append(b.pending, Record{Seq: b.account.seq, At: b.account.at, Body: &Carry{State: state}})
	return nil
}

// checkpointOf is what an account came to; its link is the caller's to set.
func checkpointOf(a *Account) (checkpoint, error) {
	state, err := a.MarshalJSON()
	if err != nil {
		return checkpoint{}, fmt.Errorf("write down what the ledger came to: %w", err)
	}
	return checkpoint{LedgerID: a.begin.LedgerID, Seq: a.seq, BootID: a.at.BootID, State: state}, nil
}

// done takes note of how a commit went: the records that were not written are still pending.
func (b *Book) done(todo *batch, written int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight = 0
	if b.pending = b.pending[written:]; len(b.pending) == 0 {
		b.pending = nil
	}
	if err == nil {
		b.publish(todo.totals)
	}
}

// publish shows what the disk surely has.
func (b *Book) publish(t *Totals) {
	b.view = nil
	b.committed, b.shown = t, shownOf(t)
	b.state.Committed = time.UnixMilli(t.At.Wall)
	if b.writer != nil {
		b.state.Size = b.closedSize + b.writer.size
	}
}
