// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// story is what a book goes through before and while its disk fails.
type story struct {
	name string
	// before prepares the folder with a book of its own.
	before func(t testing.TB, dir string, n *busyNode)
	// during is what is being done as the disk fails; its commits may fail.
	during func(b *Book, n *busyNode)
}

func observe(b *Book, n *busyNode, ticks int) {
	for range ticks {
		b.Observe(n.tick())
	}
}

func stories() []story {
	nothing := func(testing.TB, string, *busyNode) {}
	some := func(t testing.TB, dir string, n *busyNode) {
		b := testBook(t, dir)
		for range 3 {
			observe(b, n, 4)
			committed(t, b)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		n.at.Boot, n.at.Wall = n.at.Boot+20_000, n.at.Wall+20_000
	}
	commits := func(count int, between func(n *busyNode)) func(b *Book, n *busyNode) {
		return func(b *Book, n *busyNode) {
			for range count {
				between(n)
				observe(b, n, 3)
				_ = b.Commit()
			}
		}
	}
	day := func(n *busyNode) {
		n.at.Boot, n.at.Wall = n.at.Boot+86_400_000, n.at.Wall+86_400_000
	}
	same := func(*busyNode) {}
	damaged := func(edit func(t testing.TB, book string)) func(t testing.TB, dir string, n *busyNode) {
		return func(t testing.TB, dir string, n *busyNode) {
			some(t, dir, n)
			edit(t, filepath.Join(dir, bookFolder))
		}
	}
	return []story{
		{"a new book", nothing, commits(2, same)},
		{"a book that goes on", some, commits(2, same)},
		{"new segments", some, commits(3, day)},
		{"a torn tail", damaged(func(t testing.TB, book string) { append64(t, filepath.Join(book, segmentName(1))) }), commits(2, same)},
		{"a log behind its totals", damaged(func(t testing.TB, book string) {
			if err := os.Truncate(filepath.Join(book, segmentName(1)), 1500); err != nil {
				t.Fatal(err)
			}
		}), commits(2, same)},
		{"totals that are gone", damaged(func(t testing.TB, book string) {
			if err := os.Remove(filepath.Join(book, storeName)); err != nil {
				t.Fatal(err)
			}
		}), commits(2, same)},
	}
}

// append64 adds the beginning of a line to a file.
func append64(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Repeat("0123456789abcdef", 4)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// steps is how many calls a story makes of its disk where none fails.
func (s *story) steps(t testing.TB) (int, []string) {
	dir, n := t.TempDir(), newBusyNode(7, 2)
	s.before(t, dir, n)
	d := newFaultyDisk(t, dir)
	b := openBook(BookConfig{Dir: dir}, d)
	s.during(b, n)
	calls, called := d.calls, d.called
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return calls, called
}

// crashRounds is how often each thing is tried: a few times, or so many more as GPUMETER_CRASH_ROUNDS says.
func crashRounds(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv("GPUMETER_CRASH_ROUNDS")
	if text == "" {
		return few
	}
	more, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return few * more
}

func TestWhateverCallOfADiskFailsTheBookGoesOnWhenItWorksAgain(t *testing.T) {
	inMemory(t)
	faults := []struct {
		err   error
		calls int
		half  bool
	}{{syscall.EIO, 1, false}, {syscall.EIO, 1, true}, {syscall.ENOSPC, 9, true}, {syscall.EROFS, math.MaxInt32, false}}
	for _, s := range stories() {
		steps, called := s.steps(t)
		for at := 1; at <= steps; at++ {
			for round := range crashRounds(t, 1) {
				fault := faults[(at+round)%len(faults)]
				name := fmt.Sprintf("%s, call %d (%s): %v for %d", s.name, at, called[at-1], fault.err, fault.calls)
				dir, n := t.TempDir(), newBusyNode(7, 2)
				s.before(t, dir, n)
				d := newFaultyDisk(t, dir)
				d.at, d.until, d.err, d.half = at, at+fault.calls, fault.err, fault.half
				b := openBook(BookConfig{Dir: dir}, d)
				s.during(b, n)
				shown := b.View()
				checkRead(t, dir, shown.Totals)
				if failed := shown.State.Errors["open"] + shown.State.Errors["commit"] + shown.State.Errors["retain"]; failed == 0 && called[at-1][:5] != "close" {
					t.Errorf("%s: no error is counted", name)
				}
				d.at = 0
				observe(b, n, 2)
				now := committed(t, b)
				checkNotFallen(t, shown.Totals, now)
				checkConserved(t, now, spanOf(now, n))
				if v := b.View(); v.State.Degraded || v.State.Pending != 0 || now.At != n.at {
					t.Errorf("%s: %+v", name, v.State)
				}
				if err := b.Close(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				checkReopened(t, dir, now, n)
				if t.Failed() {
					t.Fatal(name)
				}
			}
		}
	}
}

// spanOf is the capacity of the first card, which must be every card's, and -1 where it is more than time has passed.
func spanOf(totals *Totals, n *busyNode) int64 {
	if len(totals.Cards) == 0 {
		return 0
	}
	if span := totals.Cards[0].Capacity.GPU.Floor(); span <= n.at.Boot-100_000 {
		return span
	}
	return -1
}

// inMemory puts the folders of a test into memory where the machine has such: nothing is waited for there.
func inMemory(t *testing.T) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm")
	}
}

// checkReopened fails where a book that is opened again does not go on from totals, or its log does not come to the same.
func checkReopened(t testing.TB, dir string, totals *Totals, n *busyNode) {
	t.Helper()
	b := openBook(BookConfig{Dir: dir}, osDisk{hasty: true})
	defer func() { _ = b.Close() }()
	found := committed(t, b)
	if totals != nil && outlined(found) != outlined(totals) {
		t.Errorf("opened again it is\n%s\nand was\n%s", outlined(found), outlined(totals))
	}
	n.at.Boot, n.at.Wall = n.at.Boot+10_000, n.at.Wall+10_000
	for range 2 {
		observe(b, n, 2)
		now := committed(t, b)
		checkNotFallen(t, found, now)
		checkConserved(t, now, spanOf(now, n))
	}
}

func TestWhateverCallIsTheLastBeforeAPowerCutNothingShownIsLost(t *testing.T) {
	inMemory(t)
	rnd := rand.New(rand.NewPCG(3, 5))
	for _, s := range stories() {
		steps, called := s.steps(t)
		for at := 1; at <= steps; at++ {
			for try := range crashRounds(t, 1) {
				dir, n := t.TempDir(), newBusyNode(7, 2)
				s.before(t, dir, n)
				d := newFaultyDisk(t, dir)
				d.at, d.until, d.err, d.half = at, math.MaxInt32, errPowerCut, (at+try)%2 == 1
				b := openBook(BookConfig{Dir: dir}, d)
				s.during(b, n)
				shown := b.View().Totals
				found := d.afterPowerCut(t, dir, rnd)
				checkRead(t, dir, shown)
				_ = b.Close()
				again := openBook(BookConfig{Dir: found}, osDisk{hasty: true})
				now := committed(t, again)
				checkNotFallen(t, shown, now)
				if id := shown.LedgerID; id != "" && now.LedgerID != id {
					t.Errorf("the ledger was %s and is %s", id, now.LedgerID)
				}
				if err := again.Close(); err != nil {
					t.Error(err)
				}
				checkReopened(t, found, nil, n)
				if now.Sequence > 0 && s.name != "a log behind its totals" {
					replayedLog(t, found)
				}
				if t.Failed() {
					t.Fatalf("%s, call %d (%s), try %d", s.name, at, called[at-1], try)
				}
			}
		}
	}
}

// checkRead fails where a reader of a book says anything else than the totals that were committed, or less than what is shown.
func checkRead(t testing.TB, dir string, shown *Totals) {
	t.Helper()
	r := &Reader{dir: filepath.Join(dir, bookFolder), now: time.Now}
	e, err := r.extent()
	if err != nil {
		t.Fatal(err)
	}
	if e.totals == nil || e.totals.Seq == 0 {
		if e.totals != nil && len(e.segments) > 0 || e.totals == nil && shown.Sequence > 0 {
			t.Errorf("nothing is committed, and %d segments are read; %d is shown", len(e.segments), shown.Sequence)
		}
		return
	}
	account, err := restored(e.totals)
	if err != nil || account.seq < shown.Sequence {
		t.Fatalf("record %d is shown and the totals are of %d: %v", shown.Sequence, e.totals.Seq, err)
	}
	u, err := r.Usage(t.Context(), Query{Boundaries: []time.Time{time.UnixMilli(1), time.UnixMilli(1 << 42)}})
	if err != nil {
		// Nothing is said where nothing is there; what is wrong is to say something else.
		if e.cut < e.totals.Seq {
			t.Fatal(err)
		}
		return
	}
	// The node's clock is not the reader's.
	lacks := slices.ContainsFunc(u.Nodes[0].Missing, func(m Missing) bool { return m.Reason != "node_vanished" })
	if e.cut > 0 && !lacks {
		t.Errorf("%d records are missing, and it says %+v", e.cut, u.Nodes[0].Missing)
	}
	if lacks {
		return
	}
	got, want := map[gpu.UUID]int64{}, map[gpu.UUID]int64{}
	for _, x := range u.Rest {
		if x.Cause == "" {
			got[x.Card] = x.GPU
		}
	}
	totals := account.Totals()
	for i := range totals.Cards {
		if c := Micro(totals.Cards[i].Capacity.GPU); c > 0 {
			want[totals.Cards[i].UUID] = c
		}
	}
	held, allocated := int64(0), int64(0)
	for i := range u.Held {
		held += u.Held[i].GPU
	}
	for i := range totals.Series {
		allocated += Micro(totals.Series[i].GPU)
	}
	if !maps.Equal(got, want) || held != allocated {
		t.Errorf("a reader says %v, held %d; committed is %v, held %d", got, held, want, allocated)
	}
}

func TestAnErrorSaysWhatFailedAndIsToldOnce(t *testing.T) {
	dir, n := t.TempDir(), newBusyNode(7, 2)
	d := newFaultyDisk(t, dir)
	b := openBook(BookConfig{Dir: dir}, d)
	observe(b, n, 2)
	shown := committed(t, b)
	d.at, d.until, d.err = d.calls+1, math.MaxInt32, syscall.ENOSPC
	for i := range 3 {
		observe(b, n, 2)
		err := b.Commit()
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), segmentName(1)) {
			t.Errorf("attempt %d: %v", i, err)
		}
		if v := b.View(); v.Totals != shown || !v.State.Degraded || v.State.Errors["commit"] != uint64(i+1) {
			t.Errorf("attempt %d: %+v", i, v.State)
		}
	}
	d.at = 0
	if now := committed(t, b); now.At != n.at || b.View().State.Degraded {
		t.Errorf("when there is room again it is %+v", b.View().State)
	}
	_ = b.Close()
}

// hangingDisk does not come back from a sync until it is let go.
type hangingDisk struct {
	osDisk
	hangs, letGo chan struct{}
}

func (d hangingDisk) SyncDir(string) error {
	d.hangs <- struct{}{}
	<-d.letGo
	return nil
}

func TestNobodyWaitsForADiskThatHangs(t *testing.T) {
	d := hangingDisk{osDisk{hasty: true}, make(chan struct{}), make(chan struct{})}
	dir, n := t.TempDir(), newBusyNode(1, 2)
	n.calm = 10
	n.quiet = true
	b := openBook(BookConfig{Dir: dir}, d)
	observe(b, n, 3)
	seen := n.at
	result := make(chan error)
	go func() { result <- b.Commit() }()
	<-d.hangs
	for range 100 {
		observe(b, n, 1)
		if v := b.View(); v.Totals.Sequence != 0 || v.State.Pending == 0 {
			t.Errorf("it shows %+v", v)
		}
	}
	close(d.letGo)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	// What was observed meanwhile is no part of it, in the log either.
	if first := b.View().Totals; first.At != seen || outlined(replayedLog(t, dir).Totals()) != outlined(first) {
		t.Errorf("the commit was of %+v, not %+v", first.At, seen)
	}
	go func() {
		for range d.hangs {
		}
	}()
	if now := committed(t, b); now.At != n.at {
		t.Errorf("the next is of %+v", now.At)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
