// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// away is a book whose disk is away from its first call on, or from its second commit on.
func away(t *testing.T, fromTheStart bool, n *busyNode) (*Book, *faultyDisk, *Totals) {
	t.Helper()
	dir := t.TempDir()
	d := newFaultyDisk(t, dir)
	d.until, d.err = math.MaxInt, syscall.EROFS
	b := openBook(BookConfig{Dir: dir}, d)
	t.Cleanup(func() { d.at = 0; _ = b.Close() })
	shown := &Totals{}
	if !fromTheStart {
		b.Observe(n.see())
		shown = committed(t, b)
	}
	d.at = d.calls + 1
	return b, d, shown
}

func TestADayWithoutADiskCostsLittleMemoryAndNoTime(t *testing.T) {
	for _, fromTheStart := range []bool{true, false} {
		n := newBusyNode(1, 3)
		n.calm = 10
		b, d, shown := away(t, fromTheStart, n)
		b.Observe(n.see())
		start, xids := n.at.Boot, uint64(0)
		for n.at.Boot-start < 86_400_000 {
			for range 300 {
				o := n.tick()
				for _, count := range o.XIDs {
					xids += count
				}
				b.Observe(o)
			}
			if err := b.Commit(); err == nil {
				t.Fatal("it commits to a disk that is away")
			}
		}
		kept := len(b.waiting.kept)
		if v := b.View(); v.Totals.Sequence != shown.Sequence || v.State.Pending > 8_000 || kept > 400 || kept+v.State.Pending == 0 {
			t.Errorf("after a day %d records and %d observations are kept", v.State.Pending, kept)
		}
		d.at = 0
		now := committed(t, b)
		checkConserved(t, now, n.at.Boot-100_000)
		var counted uint64
		for _, count := range now.XIDs {
			counted += count
		}
		if rest := now.Gaps[GapStall]; rest != 0 || counted < xids || now.At != n.at {
			t.Errorf("gaps %v, %d XIDs of %d", now.Gaps, counted, xids)
		}
		// No energy is lost: the counters tell of all of it but what was before the first look.
		for i := range now.Cards {
			card := &now.Cards[i]
			if got := card.Capacity.Energy.Floor(); got < n.energy[card.UUID]*99/100 {
				t.Errorf("%s: %d mJ of %d", card.UUID, got, n.energy[card.UUID])
			}
		}
	}
}

func TestWhatIsMeasuredWhileTheDiskIsAwayIsKeptInTheMean(t *testing.T) {
	var w waiting
	o := Observation{At: Instant{"b", 1000, 0}}
	w.add(o, minute)
	o.At.Boot += apartFor
	w.add(o, minute)
	for i, busy := range []int64{500_000, 1_000_000, 0, 1_000_000} {
		o.At.Boot = 1000 + apartFor + int64(i+1)*1000
		o.Busy, o.XIDs = map[gpu.UUID]int64{"d": busy}, map[XID]uint64{{Code: 1}: 1}
		o.Facts = []Fact{{What: FactHealth}}
		if !w.add(o, minute) {
			t.Fatal("there is no room")
		}
	}
	if n := len(w.kept); n != 3 {
		t.Fatalf("%d are kept", n)
	}
	last := w.kept[2]
	if last.Busy["d"] != 2_500_000/4 || last.XIDs[XID{Code: 1}] != 4 || len(last.Facts) != 4 || last.At.Boot != 5000+apartFor {
		t.Errorf("the last one kept is %+v", last)
	}
}

func TestAGapOfATimeWithoutADiskIsOneWhenTheDiskIsBack(t *testing.T) {
	for _, frozen := range []int64{0, 9, 43} {
		dir := t.TempDir()
		d := newFaultyDisk(t, dir)
		d.at, d.until, d.err = 1, math.MaxInt, syscall.EIO
		b := openBook(BookConfig{Dir: dir, Node: "node-1", Interval: time.Second}, d)
		t.Cleanup(func() { _ = b.Close() })
		c, at := a100(0), int64(0)
		for _, rest := range []int64{frozen, 0} {
			for range 600 {
				// Of one without a UID nobody knows whether it is the same one.
				b.Observe(seen(instant("b", at), []Card{c}, wholeLine(c, nameless(pod("p")))))
				at += second
			}
			at += rest * second
		}
		if len(b.waiting.kept) > 20 {
			t.Errorf("%d observations are kept", len(b.waiting.kept))
		}
		d.at = 0
		now, want := committed(t, b), int64(0)
		if frozen > 10 {
			want = (frozen + 1) * second
		}
		if now.Gaps[GapStall] != want {
			t.Errorf("frozen for %d s: gaps %v", frozen, now.Gaps)
		}
		wantGPU(t, "unobserved", now.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, want)
	}
}

func TestABookWithoutRoomStopsTakingAndGoesOnWithAGap(t *testing.T) {
	n := newBusyNode(1, 2)
	n.calm = 0
	b, d, _ := away(t, true, n)
	b.Observe(n.see())
	for range maxWaiting + 500 {
		b.Observe(n.tick())
	}
	if len(b.waiting.kept) != maxWaiting || !b.full {
		t.Errorf("%d are kept", len(b.waiting.kept))
	}
	d.at = 0
	committed(t, b)
	if b.Observe(n.tick()); b.full {
		t.Error("it does not go on")
	}
	now := committed(t, b)
	checkConserved(t, now, n.at.Boot-100_000)
	if now.Gaps[GapStall] == 0 || now.At != n.at {
		t.Errorf("gaps %v at %v", now.Gaps, now.At)
	}
}

// A test of the bound itself would take minutes: the bound is made small by filling it.
func TestABookWhoseBacklogIsFullStopsTaking(t *testing.T) {
	n := newBusyNode(1, 1)
	b, d, shown := away(t, false, n)
	b.pending = append(b.pending, make([]Record, maxPending)...)
	b.Observe(n.tick())
	if len(b.pending) != maxPending || !b.full {
		t.Errorf("%d records wait", len(b.pending))
	}
	b.pending, d.at = nil, 0
	n.at.Boot, n.at.Wall = n.at.Boot+600_000, n.at.Wall+600_000
	b.Observe(n.tick())
	if now := committed(t, b); now.Gaps[GapStall] == 0 || now.LedgerID != shown.LedgerID {
		t.Errorf("gaps %v", now.Gaps)
	}
}

func TestASegmentIsADay(t *testing.T) {
	dir, n := t.TempDir(), newBusyNode(1, 1)
	b := testBook(t, dir)
	step := func(boot, wall time.Duration) int {
		n.at.Boot, n.at.Wall = n.at.Boot+boot.Milliseconds(), n.at.Wall+wall.Milliseconds()
		observe(b, n, 1)
		committed(t, b)
		all, err := listSegments(filepath.Join(dir, bookFolder))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for i, c := range []struct {
		boot, wall time.Duration
		want       int
	}{
		{0, 0, 1},
		{20 * time.Hour, 20 * time.Hour, 1},
		{5 * time.Hour, 5 * time.Hour, 2},
		{0, -3 * time.Hour, 2}, // Over midnight and back again.
		{0, 3 * time.Hour, 2},
		{2 * time.Hour, -100 * time.Hour, 3},
		{25 * time.Hour, 0, 3}, // The wall clock stands still.
	} {
		if got := step(c.boot, c.wall); got != c.want {
			t.Errorf("step %d: %d segments, want %d", i, got, c.want)
		}
	}
	b.writer.size = maxSegment
	if got := step(0, 0); got != 4 {
		t.Errorf("a segment that is full is gone on with: %d", got)
	}
	replayedLog(t, dir)
}

func TestOldSegmentsGoAndTotalsStay(t *testing.T) {
	dir, n := t.TempDir(), newBusyNode(1, 1)
	b := openBook(BookConfig{Dir: dir, Retention: 10 * 24 * time.Hour}, osDisk{hasty: true})
	for range 40 {
		observe(b, n, 3)
		committed(t, b)
		n.at.Boot, n.at.Wall = n.at.Boot+86_400_000, n.at.Wall+86_400_000
	}
	n.at.Boot, n.at.Wall = n.at.Boot-86_400_000, n.at.Wall-86_400_000
	all, err := listSegments(filepath.Join(dir, bookFolder))
	if err != nil || len(all) < 10 || len(all) > 12 {
		t.Errorf("%d segments are left, %v", len(all), err)
	}
	v := b.View()
	checkConserved(t, v.Totals, spanOf(v.Totals, n))
	var size int64
	for _, seg := range all {
		size += sizeOf(seg.path)
	}
	if age := time.UnixMilli(n.at.Wall).Sub(v.State.Oldest); age < 9*24*time.Hour || age > 12*24*time.Hour || v.State.Size != size {
		t.Errorf("the oldest record is %v old, and %d bytes of %d are told", age, v.State.Size, size)
	}
	if got, want := outlined(replayedLog(t, dir).Totals()), outlined(v.Totals); got != want {
		t.Errorf("what is left comes to\n%s\nand not\n%s", got, want)
	}
	// A wall clock that is wrong by years costs two segments, and not all.
	n.at.Boot, n.at.Wall = n.at.Boot+86_400_000, n.at.Wall+100*365*86_400_000
	observe(b, n, 1)
	committed(t, b)
	if now, _ := listSegments(filepath.Join(dir, bookFolder)); len(now) != len(all)-1 {
		t.Errorf("%d segments of %d are left", len(now), len(all)+1)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = openBook(BookConfig{Dir: dir, MaxBytes: 1}, osDisk{hasty: true})
	if now := committed(t, b); now.LedgerID != v.Totals.LedgerID {
		t.Errorf("the ledger is %s", now.LedgerID)
	}
	if now, _ := listSegments(filepath.Join(dir, bookFolder)); len(now) != 1 {
		t.Errorf("with room for none %d segments are left, want the last", len(now))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
