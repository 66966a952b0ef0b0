// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// past is what is known of the records before this process.
type past struct {
	account *Account
	writer  *logWriter
	// synced says that the checkpoint is of the log's last record.
	synced bool
	// lost says that records are missing.
	lost     bool
	restored Restored
}

// open finds out what was before, and takes up from there. It leaves nothing half done: after an error it is tried
// again from the beginning.
func (b *Book) open() error {
	p, err := b.read()
	if err != nil {
		b.setState(func(s *BookState) { s.Restored = RestoredUnread })
		return errors.Join(fmt.Errorf("open the ledger: %w", err), b.closeStore())
	}
	b.opened, b.writer = true, p.writer
	b.takeUp(p)
	b.retire()
	return nil
}

func (b *Book) read() (*past, error) {
	if err := b.lock.claim(); err != nil {
		return nil, err
	}
	if err := b.disk.MkdirAll(b.dir); err != nil {
		return nil, err
	}
	b.sweep()
	p, err := b.past()
	if err != nil {
		return nil, err
	}
	return p, b.settle(p)
}

// sweep removes what a crash left of files that were being made. Nothing reads them, so none of them matters.
func (b *Book) sweep() {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".new") {
			_ = os.Remove(filepath.Join(b.dir, e.Name()))
		}
	}
}

// settle makes sure that the disk has what was read: after a kill the log may be in the page cache only, and
// nothing is shown that the checkpoint does not cover.
func (b *Book) settle(p *past) error {
	if p.synced {
		return nil
	}
	if err := p.writer.sync(); err != nil {
		return err
	}
	c, err := checkpointOf(p.account)
	if err != nil {
		return err
	}
	c.Link = p.writer.link.String()
	return b.save(&c)
}

// takeUp shows the past, and goes on with what was observed while it was not known.
func (b *Book) takeUp(p *past) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.account, b.lost, b.state.Restored = p.account, p.lost, p.restored
	b.account.stall = b.stall()
	if p.account.seq > 0 {
		b.publish(p.account.Totals())
	}
	if p.lost {
		if err := b.carry(); err != nil {
			b.log.Error("the ledger goes on without a beginning of its new segment", "error", err)
		}
	}
	last := p.account.at
	for _, o := range b.waiting.kept {
		// What is older than the last record, another meter saw and wrote: the one before this in a rolling update.
		if o.At.BootID == "" || o.At.BootID != last.BootID || o.At.Boot > last.Boot {
			b.take(o)
		}
	}
	b.waiting = waiting{}
}

func (b *Book) setState(change func(*BookState)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view = nil
	change(&b.state)
}

// past reads the last segment of the log and the checkpoint beside it, and decides what to go on from. Nothing is shown
// that the checkpoint does not cover, and nothing is in it that the log did not have: so the one that is further is right.
func (b *Book) past() (*past, error) {
	c, err := b.openStore()
	if err != nil {
		return nil, err
	}
	bad := b.asideStore
	all, err := listSegments(b.dir)
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0 && c != nil && c.Seq > 0:
		b.found("the log of the ledger is gone; it goes on from the totals beside it", "dir", b.dir)
		return b.fromCheckpoint(c)
	case len(all) == 0 && bad != "":
		return b.anew(bad)
	case len(all) == 0:
		return b.anew(string(RestoredNew))
	}
	path := all[len(all)-1].path
	if c == nil {
		if bad == "" {
			b.found("the totals beside the log are gone; they are made anew from it, and what it may have lost at its end is not known", "dir", b.dir)
		}
		return b.decide(path)
	}
	last, err := replay(path, &c.Seq)
	if err != nil {
		return nil, err
	}
	if last.goesWith(c) {
		return b.choose(last, c)
	}
	b.found("the totals are not of the log beside them; they are made anew from it", "dir", b.dir)
	return b.decide(path, b.closeStore(), b.putStoreAside(wordCorrupt))
}

// decide is what the last segment alone allows, unless there is an error.
func (b *Book) decide(path string, errs ...error) (*past, error) {
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	last, err := replay(path, nil)
	if err != nil {
		return nil, err
	}
	return b.choose(last, nil)
}

// choose decides between the last segment of the log and the checkpoint, which may be nil.
func (b *Book) choose(last *replayed, c *checkpoint) (*past, error) {
	switch {
	case c != nil && c.Seq == 0 && last.first.Body == nil:
		// Its first write was cut.
		return b.anew(string(RestoredNew))
	case c != nil && c.Seq > last.seq():
		b.found("the end of the log is lost; the ledger goes on from the totals beside it", "log", last.path, "record", last.seq(), "totals", c.Seq)
		if last.wrong != nil {
			if err := b.cutAside(last); err != nil {
				return nil, err
			}
		}
		return b.fromCheckpoint(c)
	case last.wrong == nil, last.torn():
		// What is torn was never acknowledged: it is cut when the next line is written.
		return b.fromLog(last, c)
	case c != nil:
		b.found("the log is damaged behind what its totals cover; what follows is put aside", "log", last.path, "error", last.wrong)
		if err := b.cutAside(last); err != nil {
			return nil, err
		}
		return b.fromLog(last, c)
	}
	b.found("the log is damaged and there are no totals beside it: nobody can tell what was shown, so a new ledger is begun", "log", last.path, "error", last.wrong)
	aside, err := (&file{dir: b.cfg.Dir, name: bookFolder}).putAside(last.word())
	if err != nil {
		return nil, fmt.Errorf("put the ledger aside: %w", err)
	}
	b.found("the ledger before is kept", "dir", aside)
	if err := b.disk.MkdirAll(b.dir); err != nil {
		return nil, err
	}
	return b.anew(last.word())
}

// fromLog goes on behind the last good line of a segment. C is nil where its totals are made anew.
func (b *Book) fromLog(last *replayed, c *checkpoint) (*past, error) {
	synced := c != nil && c.Seq == last.seq() && last.wrong == nil
	p := &past{account: last.account, writer: last.writer(b.disk, b.dir), synced: synced, restored: RestoredLast}
	if c == nil {
		p.restored = RestoredPrevious
	}
	return p, nil
}

// fromCheckpoint goes on with a new segment.
func (b *Book) fromCheckpoint(c *checkpoint) (*past, error) {
	account, err := restored(c)
	if err != nil {
		return nil, err
	}
	at, err := c.linked()
	if err != nil {
		return nil, err
	}
	w := &logWriter{disk: b.disk, dir: b.dir, seq: c.Seq, link: at, boot: c.BootID}
	return &past{account: account, writer: w, synced: true, lost: true, restored: RestoredPrevious}, nil
}

// restored is the account of a checkpoint.
func restored(c *checkpoint) (*Account, error) {
	a := NewAccount()
	if err := a.UnmarshalJSON(c.State); err != nil {
		return nil, fmt.Errorf("%w: %w", errNewer, err)
	}
	if a.seq != c.Seq {
		return nil, fmt.Errorf("%w: the totals of record %d are called those of %d", errCorrupt, a.seq, c.Seq)
	}
	return a, nil
}

// anew begins a ledger. It has totals from the beginning, so that those of a log that has none were lost.
func (b *Book) anew(word string) (*past, error) {
	p := &past{account: NewAccount(), writer: &logWriter{disk: b.disk, dir: b.dir}, restored: Restored(word), synced: true}
	c, err := checkpointOf(p.account)
	if err != nil {
		return nil, err
	}
	c.Link = link{}.String()
	return p, b.save(&c)
}

// openStore opens the store where there is one, and puts it aside where it is of no use. The checkpoint is nil where
// there is none.
func (b *Book) openStore() (*checkpoint, error) {
	b.asideStore = ""
	store, c, err := b.disk.OpenStore(filepath.Join(b.dir, storeName))
	if err == nil {
		if _, err = restored(c); err != nil {
			err = errors.Join(err, store.Close())
		}
	}
	switch {
	case err == nil:
		b.store = store
		return c, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errNewer):
		return nil, b.putStoreAside(wordNewer)
	case errors.Is(err, errCorrupt):
		return nil, b.putStoreAside(wordCorrupt)
	}
	return nil, err
}

func (b *Book) putStoreAside(word string) error {
	aside, err := (&file{dir: b.dir, name: storeName}).putAside(word)
	if err != nil {
		return fmt.Errorf("put the totals aside: %w", err)
	}
	b.asideStore = word
	b.found("the totals beside the log are of no use; they are kept and made anew from the log", "file", aside, "why", word)
	return nil
}

// found counts and tells something that was wrong and is dealt with.
func (b *Book) found(text string, args ...any) {
	b.log.Error(text, args...)
	b.setState(func(s *BookState) { s.Errors[operationRecover]++ })
}

// cutAside keeps a damaged segment as it is under another name, and what of it is good under its own.
func (b *Book) cutAside(last *replayed) error {
	good, err := readStart(last.path, last.good)
	if err != nil {
		return err
	}
	name := filepath.Base(last.path)
	aside, err := (&file{dir: b.dir, name: name}).putAside(last.word())
	if err != nil {
		return fmt.Errorf("put the damaged segment aside: %w", err)
	}
	b.found("the damaged segment is kept", "file", aside)
	if last.good == 0 {
		return nil
	}
	return (&logWriter{disk: b.disk, dir: b.dir}).replace(last.path, good)
}
