// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// asBook says, to this test program as a process of its own, in which folder it is to keep a book until it is
// killed: "<folder> <seed> <boot ms>".
const asBook = "GPUMETER_TEST_BOOK_IN"

// TestKeepsABookUntilItIsKilled is the process that is killed, and nothing otherwise.
func TestKeepsABookUntilItIsKilled(t *testing.T) {
	var dir string
	var seed uint64
	var boot int64
	if _, err := fmt.Sscan(os.Getenv(asBook), &dir, &seed, &boot); err != nil {
		t.Skip("it is not to be killed")
	}
	b, n, rnd := openBook(BookConfig{Dir: dir, Node: "node-1"}, osDisk{}), livedNode(seed, boot), rand.New(rand.NewPCG(seed, 2))
	for {
		for range 1 + rnd.IntN(4) {
			b.Observe(n.tick())
		}
		fmt.Println("written", n.at.Boot)
		if err := b.Commit(); err != nil {
			fmt.Println("failed", err)
			return
		}
		fmt.Println("committed", n.at.Boot)
	}
}

// livedNode is the node of one life of a book; what happens on it is the same for the same seed.
func livedNode(seed uint64, boot int64) *busyNode {
	n := newBusyNode(seed, 4)
	n.at.Boot, n.at.Wall = boot, nodeStart+boot
	return n
}

// The truth is told again by an account in memory, from the same observations.
func TestABookThatIsKilledAtAnyMomentComesBackWithWhatItSaidAndAddsUp(t *testing.T) {
	dir, rnd := t.TempDir(), rand.New(rand.NewPCG(11, 12))
	truth, boot, start := NewAccount(), int64(100_000), int64(0)
	for life := range crashRounds(t, 30) {
		seed := uint64(life + 1)
		said := killedBook(t, dir, seed, boot, time.Duration(rnd.Int64N(int64(25*time.Millisecond))))
		b := openBook(BookConfig{Dir: dir}, osDisk{hasty: true})
		found := committed(t, b)
		state := b.View().State
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if state.Errors["recover"] != 0 || found.At.Boot < said {
			t.Fatalf("life %d: it is back at %d ms and said %d; %+v", life, found.At.Boot, said, state)
		}
		replayedLog(t, dir)
		if found.At.Boot < boot {
			// It was killed before anything was written.
			continue
		}
		n := livedNode(seed, boot)
		for first := true; n.at.Boot < found.At.Boot; first = false {
			o := n.tick()
			if first {
				truth.Begin(Begin{LedgerID: found.LedgerID, Node: "node-1"}, o.At)
			}
			truth.Observe(o)
			if start == 0 {
				start = o.At.Boot
			}
		}
		if got, want := outlined(found), outlined(truth.Totals()); got != want {
			t.Fatalf("life %d: it comes back as\n%s\nand the truth is\n%s", life, got, want)
		}
		checkConserved(t, found, found.At.Boot-start)
		// What the account remembers of a life ends with it.
		state2, err := truth.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		truth = NewAccount()
		if err := truth.UnmarshalJSON(state2); err != nil {
			t.Fatal(err)
		}
		boot = found.At.Boot + 5_000
	}
}

// killedBook keeps a book in a process that is killed some time after its first commit, and returns up to when it
// said that it had committed.
func killedBook(t *testing.T, dir string, seed uint64, boot int64, span time.Duration) int64 {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestKeepsABookUntilItIsKilled$")
	cmd.Env = append(os.Environ(), asBook+"="+fmt.Sprint(dir, " ", seed, " ", boot))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, begun := int64(0), false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		word, rest := "", ""
		_, _ = fmt.Sscan(lines.Text(), &word, &rest)
		if word == "failed" {
			t.Fatal(lines.Text())
		}
		if !begun {
			begun = true
			time.AfterFunc(span, func() { _ = cmd.Process.Kill() })
		}
		if word == "committed" {
			if said, err = strconv.ParseInt(rest, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if !begun {
		t.Fatal("the book said nothing")
	}
	return said
}
