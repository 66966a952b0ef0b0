// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lived is a folder with the book of some commits over two days, what it showed at last, and its node.
func lived(t *testing.T) (string, *Totals, *busyNode) {
	t.Helper()
	dir, n := t.TempDir(), newBusyNode(4, 2)
	b := testBook(t, dir)
	var shown *Totals
	for i := range 8 {
		if i == 5 {
			n.at.Boot, n.at.Wall = n.at.Boot+86_400_000, n.at.Wall+86_400_000
		}
		observe(b, n, 3)
		shown = committed(t, b)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	n.at.Boot, n.at.Wall = n.at.Boot+5000, n.at.Wall+5000
	return dir, shown, n
}

// The last segment of a log and its totals, each whole or not in any way.
func TestABookGoesOnFromWhateverIsLeft(t *testing.T) {
	inMemory(t)
	last := func(book string) string {
		all, err := listSegments(book)
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		return all[1].path
	}
	whole := func(string) {}
	inLast := func(edit func([]byte) []byte) func(string) {
		return func(book string) { edited(t, last(book), edit) }
	}
	logs := map[string]func(string){
		"whole": whole,
		"torn":  inLast(func(d []byte) []byte { return append(d, "0123"...) }),
		"cut":   inLast(func(d []byte) []byte { return d[:len(d)*2/3] }),
		"flipped": inLast(func(d []byte) []byte {
			d[len(d)*2/3] ^= 1
			return d
		}),
		"flipped at the start": inLast(func(d []byte) []byte {
			d[20] ^= 1
			return d
		}),
		"empty":   inLast(func([]byte) []byte { return nil }),
		"zeros":   inLast(func(d []byte) []byte { return make([]byte, len(d)) }),
		"no last": func(book string) { _ = os.Remove(last(book)) },
		"newer": inLast(func(d []byte) []byte {
			return append(append(d, summed(fmt.Sprintf("%032x 8 levitate 1 1 {}", 0))...), '\n')
		}),
		"gone": func(book string) {
			_ = os.Remove(last(book))
			_ = os.Remove(filepath.Join(book, segmentName(1)))
		},
	}
	stores := map[string]func(string){
		"whole": whole,
		"gone":  func(book string) { _ = os.Remove(filepath.Join(book, storeName)) },
		"empty": func(book string) { edited(t, filepath.Join(book, storeName), func([]byte) []byte { return nil }) },
		"flipped": func(book string) {
			edited(t, filepath.Join(book, storeName), func(d []byte) []byte { return bytes.Repeat([]byte("x"), len(d)) })
		},
	}
	// Where the totals are whole, nothing shown is lost. Where they are not, the log must be whole, but for a torn tail; it
	// cannot be told from one whose end is cut off.
	goesOn := func(log, store string) bool {
		return store == "whole" || log == "whole" || log == "torn" || log == "cut"
	}
	for log, editLog := range logs {
		for store, editStore := range stores {
			t.Run("log "+log+", totals "+store, func(t *testing.T) {
				dir, shown, n := lived(t)
				book := filepath.Join(dir, bookFolder)
				editStore(book)
				editLog(book)
				b := testBook(t, dir)
				observe(b, n, 1)
				now := committed(t, b)
				state := b.View().State
				if store != "whole" && log != "gone" && state.Restored == RestoredLast {
					t.Error("totals that were made anew are said to be as they were")
				}
				switch {
				case log == "no last" && store != "whole":
					// A whole day is gone and nothing is left to say so.
				case !goesOn(log, store):
					if now.LedgerID == shown.LedgerID || state.Restored == RestoredLast || state.Restored == RestoredPrevious {
						t.Errorf("it goes on as %s with %s", now.LedgerID, state.Restored)
					}
				case log == "cut" && store != "whole":
					if now.LedgerID != shown.LedgerID {
						t.Errorf("it is a new ledger, %s", state.Restored)
					}
				default:
					checkNotFallen(t, shown, now)
				}
				if quiet := (log == "whole" || log == "torn") && store == "whole"; quiet != (state.Errors["recover"] == 0) && log != "no last" && log != "cut" && log != "gone" {
					t.Errorf("%d recoveries are counted", state.Errors["recover"])
				}
				observe(b, n, 5)
				now = committed(t, b)
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				checkReopened(t, dir, now, n)
				for line, err := range scanSegments(book) {
					if err != nil && !strings.Contains(err.Error(), errChain.Error()) {
						t.Errorf("record %d: %v", line.Seq, err)
					}
				}
			})
		}
	}
}

func TestWhatIsDamagedIsKept(t *testing.T) {
	dir, _, n := lived(t)
	book := filepath.Join(dir, bookFolder)
	all, err := listSegments(book)
	if err != nil {
		t.Fatal(err)
	}
	edited(t, all[1].path, func(d []byte) []byte {
		d[len(d)*2/3] ^= 1
		return d
	})
	edited(t, filepath.Join(book, storeName), func(d []byte) []byte { return d[:100] })
	damaged, err := os.ReadFile(all[1].path)
	if err != nil {
		t.Fatal(err)
	}
	b := testBook(t, dir)
	observe(b, n, 1)
	committed(t, b)
	kept, err := filepath.Glob(filepath.Join(dir, "book.corrupt-*", filepath.Base(all[1].path)))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept are %v, %v", kept, err)
	}
	if data, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(data, damaged) {
		t.Errorf("it is not as it was: %v", err)
	}
	if stores, _ := filepath.Glob(filepath.Join(dir, "book.corrupt-*", storeName+".corrupt-*")); len(stores) != 1 {
		t.Errorf("the totals are kept as %v", stores)
	}
}

func TestABookThatIsRemovedWhileItIsWrittenIsBegunAnewWithItsTotals(t *testing.T) {
	dir, n := t.TempDir(), newBusyNode(1, 2)
	b := testBook(t, dir)
	observe(b, n, 3)
	committed(t, b)
	for _, remove := range []func() error{
		func() error { return os.RemoveAll(filepath.Join(dir, bookFolder)) },
		func() error { return os.Remove(b.writer.path) },
	} {
		observe(b, n, 3)
		shown := committed(t, b)
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		observe(b, n, 3)
		now := committed(t, b)
		checkNotFallen(t, shown, now)
		if now.At != n.at || b.View().State.Errors["recover"] == 0 {
			t.Errorf("it is at %v: %+v", now.At, b.View().State)
		}
		if got := outlined(replayedLog(t, dir).Totals()); got != outlined(now) {
			t.Errorf("its log comes to\n%s\nand not\n%s", got, outlined(now))
		}
	}
	now := b.View().Totals
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	checkReopened(t, dir, now, n)
}

func TestWhatACrashLeftHalfMadeIsSwept(t *testing.T) {
	dir, _, n := lived(t)
	left := filepath.Join(dir, bookFolder, segmentName(999)+".new")
	if err := os.WriteFile(left, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := testBook(t, dir)
	observe(b, n, 1)
	committed(t, b)
	if _, err := os.Stat(left); err == nil {
		t.Error("it is still there")
	}
}

func TestTotalsOfAnotherLedgerAreNotTakenForItsOwn(t *testing.T) {
	dir, shown, n := lived(t)
	other, _, m := lived(t)
	b := testBook(t, other)
	for range 3 {
		// They are further than the log that they are put beside.
		observe(b, m, 10)
		committed(t, b)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(other, bookFolder, storeName))
	if err != nil {
		t.Fatal(err)
	}
	edited(t, filepath.Join(dir, bookFolder, storeName), func([]byte) []byte { return data })
	b = testBook(t, dir)
	now := committed(t, b)
	if outlined(now) != outlined(shown) || b.View().State.Errors["recover"] == 0 {
		t.Errorf("it goes on as\n%s\nand not\n%s", outlined(now), outlined(shown))
	}
	checkNotFallen(t, shown, now)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	checkReopened(t, dir, now, n)
}

func TestTotalsThatAreOfAnotherLineAreMadeAnew(t *testing.T) {
	dir, shown, n := lived(t)
	path := filepath.Join(dir, bookFolder, storeName)
	s, c, err := osDisk{hasty: true}.OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	c.Link = link{1}.String()
	if err := errors.Join(s.Save(c), s.Close()); err != nil {
		t.Fatal(err)
	}
	b := testBook(t, dir)
	now := committed(t, b)
	if outlined(now) != outlined(shown) || b.View().State.Errors["recover"] == 0 {
		t.Errorf("it goes on as\n%s\nand not\n%s", outlined(now), outlined(shown))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	checkReopened(t, dir, now, n)
}
