// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func testBook(t testing.TB, dir string) *Book {
	t.Helper()
	b := openBook(BookConfig{Dir: dir, Node: "node-1", Cluster: "c", Version: "1", Policy: "slices"}, osDisk{hasty: true})
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestOnlyWhatIsCommittedIsShown(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		b, n := testBook(t, dir), newBusyNode(1, 2)
		b.Observe(n.see())
		if v := b.View(); len(v.Totals.Cards) != 0 || v.Totals.LedgerID != "" || v.State.Durable != (dir != "") {
			t.Errorf("before the first commit it shows %+v", v)
		}
		first := committed(t, b)
		if first.LedgerID == "" || first.Node != "node-1" || first.Cluster != "c" || len(first.Cards) != 2 || !first.Cards[0].Capacity.GPU.IsZero() {
			t.Errorf("the first commit shows %+v", first)
		}
		at := n.at
		for range 5 {
			b.Observe(n.tick())
		}
		if v := b.View(); v.Totals != first || v.State.Pending == 0 {
			t.Errorf("without a commit it shows %+v", v)
		}
		now := committed(t, b)
		checkConserved(t, now, n.at.Boot-at.Boot)
		if v := b.View(); now == first || now.At != n.at || v.State.Pending != 0 || v.State.Committed.UnixMilli() != n.at.Wall || v.State.Restored != RestoredNew {
			t.Errorf("after the second commit it is %+v", v)
		}
	}
}

func TestWhatIsBornIsShownAtZeroBeforeItCounts(t *testing.T) {
	b, n := testBook(t, ""), newBusyNode(1, 2)
	n.lines[0] = []Line{{Card: "GPU-0", GPUInstance: gpu.NoInstance, Cause: sharing.CauseFree, Weight: sharing.One(), Part: sharing.One(), Memory: sharing.One()}}
	b.Observe(n.see())
	if v := b.View(); len(v.NewCards) != 2 || v.NewCards[0].UUID != "GPU-0" || len(v.Unbalanced) != 2 || v.NewCauses["GPU-0"][0] != sharing.CauseFree {
		t.Errorf("a new node shows %+v", v)
	}
	committed(t, b)
	if v := b.View(); len(v.NewCards)+len(v.NewCauses)+len(v.NewPods)+len(v.NewSeries) != 0 {
		t.Errorf("after the commit it shows %+v", v)
	}
	n.at.Boot += 1000
	n.lines[0] = []Line{{
		Card: "GPU-0", Device: "GPU-0", GPUInstance: gpu.NoInstance, Holder: sharing.Holder{Namespace: "born", Pod: "p", PodUID: "u", Container: "c"},
		Resource: "r", Mode: sharing.ModeExclusive, Seats: 1, Of: 1, Weight: sharing.One(), Part: sharing.One(), Memory: sharing.One(),
	}}
	b.Observe(n.see())
	v := b.View()
	if len(v.NewSeries) != 1 || v.NewSeries[0].Namespace != "born" || len(v.NewPods) != 1 || v.NewPods[0].PodUID != "u" || !v.NewPods[0].GPU.IsZero() || len(v.NewCards) != 0 {
		t.Errorf("a new pod is shown as %+v", v)
	}
	if b.View() != v {
		t.Error("a view in which nothing is new is made again")
	}
}

func TestABookGoesOnWhereItWasLeft(t *testing.T) {
	dir, n := t.TempDir(), newBusyNode(2, 3)
	start := n.at.Boot
	var shown *Totals
	for life := range 4 {
		b := testBook(t, dir)
		for range 40 {
			b.Observe(n.tick())
			if n.rnd.IntN(3) == 0 {
				now := committed(t, b)
				if shown != nil {
					checkNotFallen(t, shown, now)
				}
				shown = now
			}
		}
		shown = committed(t, b)
		if life == 0 {
			start = 100_000 + firstSpan(t, shown, n.at)
		}
		checkConserved(t, shown, n.at.Boot-start)
		want, got := outlined(shown), outlined(replayedLog(t, dir).Totals())
		if got != want {
			t.Fatalf("life %d: the log comes to\n%s\nand the book shows\n%s", life, got, want)
		}
		if restored := b.View().State.Restored; life > 0 && restored != RestoredLast {
			t.Errorf("life %d began %s", life, restored)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		n.at.Boot += 30_000
		n.at.Wall += 30_000
	}
	if shown.Gaps[GapRestart] == 0 {
		t.Errorf("three restarts, and the gaps are %v", shown.Gaps)
	}
}

// firstSpan is how long after the node's beginning the first observation was.
func firstSpan(t *testing.T, totals *Totals, now Instant) int64 {
	t.Helper()
	return now.Boot - 100_000 - totals.Cards[0].Capacity.GPU.Floor()
}

func TestTheLogIsPublishedBeforeTheBookSaysSo(t *testing.T) {
	dir := t.TempDir()
	b, n := testBook(t, dir), newBusyNode(1, 1)
	b.Observe(n.see())
	committed(t, b)
	for range 10 {
		b.Observe(n.tick())
		if shown := committed(t, b); outlined(shown) != outlined(replayedLog(t, dir).Totals()) {
			t.Fatal("the log of a running book is behind what it shows")
		}
	}
}

func TestASecondProcessWaitsUntilTheFirstIsGone(t *testing.T) {
	dir, n := t.TempDir(), newBusyNode(1, 1)
	first, second := testBook(t, dir), testBook(t, dir)
	first.Observe(n.see())
	id := committed(t, first).LedgerID
	second.Observe(n.tick())
	if err := second.Commit(); err == nil || !strings.Contains(err.Error(), "another process writes") {
		t.Fatalf("two books write one folder: %v", err)
	}
	if v := second.View(); !v.State.Degraded || v.State.Errors["open"] != 1 || v.Totals.LedgerID != "" || v.State.Restored != RestoredUnread || !strings.Contains(v.State.Err, "another process") {
		t.Errorf("the second one shows %+v", v)
	}
	for range 4 {
		second.Observe(n.tick())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	now := committed(t, second)
	if v := second.View(); v.State.Degraded || v.State.Err != "" || now.LedgerID != id || now.At != n.at {
		t.Errorf("when the first is gone it shows %+v", v)
	}
	checkConserved(t, now, n.at.Boot-100_000)
	first.Observe(n.tick())
	if err := first.Commit(); err == nil {
		t.Error("a closed book commits")
	}
}

func TestPodsThatEndedAreShownForAWhile(t *testing.T) {
	b, n := testBook(t, ""), newBusyNode(1, 1)
	n.lines[0] = []Line{{
		Card: "GPU-0", Device: "GPU-0", GPUInstance: gpu.NoInstance, Holder: sharing.Holder{Namespace: "n", Pod: "p", PodUID: "u", Container: "c"},
		Resource: "r", Mode: sharing.ModeExclusive, Seats: 1, Of: 1, Weight: sharing.One(), Part: sharing.One(), Memory: sharing.One(),
	}}
	b.Observe(n.see())
	n.lines[0] = []Line{{Card: "GPU-0", GPUInstance: gpu.NoInstance, Cause: sharing.CauseFree, Weight: sharing.One(), Part: sharing.One(), Memory: sharing.One()}}
	ended := n.at.Boot
	for n.at.Boot-ended < 2*TombstoneFor.Milliseconds() {
		n.at.Boot, n.at.Wall = n.at.Boot+60_000, n.at.Wall+60_000
		b.Observe(n.see())
		shown := len(committed(t, b).Pods) == 1
		if want := n.at.Boot-ended-60_000 <= TombstoneFor.Milliseconds(); shown != want {
			t.Fatalf("%v after its end the pod is shown: %v", time.Duration(n.at.Boot-ended-60_000)*time.Millisecond, shown)
		}
		if v := b.View(); len(v.NewPods) != 0 {
			t.Fatalf("a pod that ended is born again: %+v", v.NewPods)
		}
	}
}

func TestNothingOfABookOfMemoryTouchesADisk(t *testing.T) {
	t.Chdir(t.TempDir())
	b, n := testBook(t, ""), newBusyNode(1, 1)
	b.Observe(n.see())
	committed(t, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) != 0 {
		t.Errorf("there is %v, %v", entries, err)
	}
}
