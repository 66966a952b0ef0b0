// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestUsageIsTheTimeThatLinesStood(t *testing.T) {
	d := newDesk(t)
	d.stand(30*time.Minute, whole("a-1"))
	d.turn()
	d.stand(30*time.Minute, left(sharing.CauseFree, 1, 1))
	u := d.usage(DetailSeries, 0, 10*time.Minute+1234567*time.Microsecond, time.Hour)
	for w, want := range []time.Duration{10*time.Minute + 1234*time.Millisecond, 20*time.Minute - 1234*time.Millisecond} {
		if got := heldOf(u, "team-a", w); got != micros(want) {
			t.Errorf("window %d: held %d µs, want %d", w, got, micros(want))
		}
	}
	if got, want := restOf(u, sharing.CauseFree, 1), micros(30*time.Minute); got != want {
		t.Errorf("free %d µs, want %d", got, want)
	}
	if got, want := restOf(u, "", 0)+restOf(u, "", 1), micros(time.Hour); got != want {
		t.Errorf("capacity %d µs, want %d", got, want)
	}
	n := u.Nodes[0]
	if n.Node != "node-1" || n.Cluster != "c" || n.LedgerID != "ledger-1" || !n.Created.Equal(deskStart) || len(n.Missing)+len(n.Gaps) > 0 {
		t.Errorf("node %+v", n)
	}
	if got := n.Readings[1]; !got.Equal(deskStart.Add(10*time.Minute + 1234*time.Millisecond)) {
		t.Errorf("read at %v", got)
	}
	if memory := u.Held[0].Memory; memory < 80*601.2 || memory > 80*601.3 {
		t.Errorf("%v GiB-seconds", memory)
	}
}

func TestAPodThatCameAndWentBetweenTwoBoundariesIsInTheAnswer(t *testing.T) {
	d := newDesk(t)
	free := left(sharing.CauseFree, 1, 1)
	d.stand(time.Hour, free)
	d.stand(20*time.Second, whole("a-short"))
	for range 3 {
		d.stand(20*time.Hour, free)
		d.turn()
	}
	u := d.usage(DetailPods, 0, 30*time.Minute, 60*time.Hour)
	if len(u.Held) != 1 || u.Held[0].Pod != "a-short" || u.Held[0].PodUID != "uid-a-short" || u.Held[0].Card != "GPU-0" || u.Held[0].Window != 1 {
		t.Fatalf("held %+v", u.Held)
	}
	if got, want := u.Held[0].GPU, micros(20*time.Second); got != want {
		t.Errorf("held %d µs, want %d", got, want)
	}
}

func TestAPodCarriesWhatIsKnownOfIt(t *testing.T) {
	d := newDesk(t)
	o := Observation{At: d.at, Cards: d.cards, Lines: []Line{whole("a-1")}, NodeLabels: map[string]string{"pool": "p"}, Pods: []Pod{{
		Namespace: "team-a", Name: "a-1", UID: "uid-a-1", WorkloadKind: "Deployment", Workload: "trainer", Labels: map[string]string{"app": "x"},
	}}}
	d.write(d.account.Observe(o))
	d.pass(time.Minute)
	o.At = d.at
	d.write(d.account.Observe(o))
	u := d.usage(DetailPods, 0, time.Minute)
	if len(u.Held) != 1 || u.Held[0].Workload != "trainer" || u.Held[0].WorkloadKind != "Deployment" || u.Held[0].Labels["app"] != "x" {
		t.Errorf("held %+v", u.Held)
	}
	if u.Nodes[0].Labels["pool"] != "p" {
		t.Errorf("labels %v", u.Nodes[0].Labels)
	}
}

func TestOnlyWhatIsAskedForIsAnsweredAndTheRestIsWhole(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Minute, seat("a-1", 4), seat("a-2", 4), seat("b-1", 4), left(sharing.CauseUnrequested, 1, 4))
	q := Query{Boundaries: deskTimes(0, time.Minute), Detail: DetailPods, Namespaces: []string{"team-a"}, Pods: []string{"a-2", "b-1"}}
	u, err := d.reader().Usage(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Held) != 1 || u.Held[0].Pod != "a-2" || restOf(u, sharing.CauseUnrequested, 0) != micros(15*time.Second) || restOf(u, "", 0) != micros(time.Minute) {
		t.Errorf("usage %+v", u)
	}
	q.Nodes = []string{"node-2"}
	if u, err = d.reader().Usage(t.Context(), q); err != nil || len(u.Nodes)+len(u.Held)+len(u.Rest) > 0 {
		t.Errorf("of another node: %+v, %v", u, err)
	}
}

// A boundary within a restart divides what the gap charged by time.
func TestAGapThatABoundaryIsInIsDivided(t *testing.T) {
	d := newDesk(t)
	seats := []Line{seat("a-1", 2), seat("b-1", 2)}
	d.stand(time.Hour, seats...)
	d.pass(10 * time.Minute)
	d.begin()
	d.stand(time.Hour, seats[0], left(sharing.CauseUnrequested, 1, 2))
	for _, detail := range []Detail{DetailSeries, DetailPods} {
		u := d.usage(detail, 0, 64*time.Minute, 130*time.Minute)
		if got, want := heldOf(u, "team-a", 0), micros(32*time.Minute); got != want {
			t.Errorf("bridged: %d µs before the boundary, want %d", got, want)
		}
		if got, want := restOf(u, sharing.CauseUnobserved, 0), micros(2*time.Minute); got != want {
			t.Errorf("unobserved: %d µs before the boundary, want %d", got, want)
		}
		if got, want := restOf(u, sharing.CauseUnobserved, 1), micros(3*time.Minute); got != want {
			t.Errorf("unobserved: %d µs after the boundary, want %d", got, want)
		}
		if got, want := heldOf(u, "team-b", 0)+heldOf(u, "team-b", 1), micros(30*time.Minute); got != want {
			t.Errorf("what was not proven: %d µs, want %d", got, want)
		}
		gaps := u.Nodes[0].Gaps
		if len(gaps) != 1 || gaps[0].Reason != GapRestart || gaps[0].To.Sub(gaps[0].From) != 10*time.Minute {
			t.Errorf("gaps %+v", gaps)
		}
	}
}

func TestAStartOfTheMachineIsReadAtWhatWasLastKnown(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	d.reboot("boot-2", 20*time.Minute, 3*time.Minute)
	d.stand(time.Hour, whole("a-1"))
	u := d.usage(DetailSeries, 0, 70*time.Minute, 140*time.Minute)
	if got := heldOf(u, "team-a", 0); got != micros(time.Hour) {
		t.Errorf("before: %d µs", got)
	}
	if got := restOf(u, sharing.CauseUnobserved, 1); got != micros(3*time.Minute) {
		t.Errorf("unobserved: %d µs", got)
	}
	if got := u.Nodes[0].Readings[1]; !got.Equal(deskStart.Add(time.Hour)) {
		t.Errorf("read at %v", got)
	}
}

func TestACorrectionIsToldApart(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	d.pass(10 * time.Minute)
	d.begin()
	unknown := whole("a-1")
	unknown.Holder.PodUID = ""
	d.stand(time.Minute, unknown)
	d.stand(time.Hour, whole("a-1"))
	u := d.usage(DetailPods, 0, 70*time.Minute+30*time.Second, 140*time.Minute)
	if len(u.Corrections) != 1 {
		t.Fatalf("corrections %+v", u.Corrections)
	}
	c := u.Corrections[0]
	if c.Window != 1 || c.From != sharing.CauseUnobserved || c.Held.GPU != micros(10*time.Minute) || c.Held.Pod != "a-1" || c.Held.Model != "H100" ||
		!c.FromTime.Equal(deskStart.Add(time.Hour)) || !c.ToTime.Equal(deskStart.Add(70*time.Minute)) {
		t.Errorf("correction %+v", c)
	}
	corrected := int64(0)
	for _, r := range u.Rest {
		if r.Corrected {
			corrected += r.GPU
		}
	}
	if corrected != micros(10*time.Minute) {
		t.Errorf("corrected %d µs", corrected)
	}
}

// An hour that the clock shows twice is the first time it did, whatever is asked for; nothing is charged twice.
func TestAClockThatIsSetBackChargesNothingTwice(t *testing.T) {
	d := newDesk(t)
	d.stand(2*time.Hour, whole("a-1"))
	d.step(-time.Hour)
	d.stand(2*time.Hour, whole("b-1"))
	u := d.usage(DetailSeries, 0, time.Hour, 90*time.Minute, 2*time.Hour, 3*time.Hour)
	for w, want := range []time.Duration{time.Hour, 30 * time.Minute, 30 * time.Minute, 0} {
		if got := heldOf(u, "team-a", w); got != micros(want) {
			t.Errorf("window %d: a held %d µs, want %d", w, got, micros(want))
		}
	}
	if got, want := heldOf(u, "team-b", 3), micros(2*time.Hour); got != want {
		t.Errorf("b held %d µs after it, want %d", got, want)
	}
}

func TestAClockThatIsSetForwardLosesNothing(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	d.step(3 * time.Hour)
	d.stand(time.Hour, whole("a-1"))
	u := d.usage(DetailSeries, 0, 2*time.Hour, 5*time.Hour)
	if a, b := heldOf(u, "team-a", 0), heldOf(u, "team-a", 1); a != micros(time.Hour) || b != micros(time.Hour) {
		t.Errorf("held %d and %d µs", a, b)
	}
	if got := u.Nodes[0].Readings[1]; !got.Equal(deskStart.Add(time.Hour)) {
		t.Errorf("read at %v", got)
	}
}

// Machines start with the wrong year before they ask what time it is.
func TestAClockThatWasPlainlyWrongHidesNoTime(t *testing.T) {
	for _, off := range []time.Duration{400 * 24 * time.Hour, -20 * 365 * 24 * time.Hour} {
		for _, paged := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, paged %v", off, paged), func(t *testing.T) {
				d := newDesk(t)
				d.stand(time.Hour, whole("a-1"))
				d.step(off)
				if paged {
					d.turn()
				}
				d.stand(time.Minute, whole("a-1"))
				if paged {
					d.turn()
				}
				d.step(-off)
				d.stand(time.Hour, whole("b-1"))
				d.turn()
				d.stand(time.Hour, whole("b-1"))
				u := d.usage(DetailSeries, 0, time.Hour, 2*time.Hour, 3*time.Hour)
				if a, b := heldOf(u, "team-a", 0)+heldOf(u, "team-a", 1), heldOf(u, "team-b", 1)+heldOf(u, "team-b", 2); a != micros(61*time.Minute) || b != micros(119*time.Minute) {
					t.Errorf("a held %d µs, b %d µs", a, b)
				}
				if got := heldOf(u, "team-b", 2); got != micros(time.Hour) {
					t.Errorf("b held %d µs in the last hour", got)
				}
				if len(u.Nodes[0].Missing) > 0 {
					t.Errorf("missing %v", u.Nodes[0].Missing)
				}
			})
		}
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	three := func(t *testing.T) *desk {
		d := newDesk(t)
		for range 3 {
			d.stand(time.Hour, whole("a-1"))
			d.turn()
		}
		return d
	}
	t.Run("nothing", func(t *testing.T) {
		if n := three(t).usage(DetailSeries, -time.Hour, time.Hour, 3*time.Hour).Nodes[0]; len(n.Missing) > 0 || !n.Readings[0].IsZero() {
			t.Errorf("node %+v", n)
		}
	})
	t.Run("what retention took", func(t *testing.T) {
		d := three(t)
		remove(t, d.segments()[0])
		u := d.usage(DetailSeries, 30*time.Minute, 45*time.Minute, 2*time.Hour)
		if m := u.Nodes[0].Missing; len(m) != 1 || m[0].Reason != "retention" || !m[0].To.Equal(deskStart.Add(time.Hour)) || !m[0].From.Equal(deskStart.Add(30*time.Minute)) {
			t.Errorf("missing %+v", m)
		}
		if a, b := heldOf(u, "team-a", 0), heldOf(u, "team-a", 1); a != 0 || b != micros(time.Hour) {
			t.Errorf("held %d and %d µs", a, b)
		}
	})
	t.Run("a segment in the middle", func(t *testing.T) {
		d := three(t)
		remove(t, d.segments()[1])
		for _, detail := range []Detail{DetailSeries, DetailPods} {
			u := d.usage(detail, 0, 90*time.Minute, 3*time.Hour)
			if m := u.Nodes[0].Missing; len(m) != 1 || m[0].Reason != "log_lost" {
				t.Errorf("missing %+v", m)
			}
			if a, b := heldOf(u, "team-a", 0), heldOf(u, "team-a", 1); a+b != micros(3*time.Hour) {
				t.Errorf("held %d and %d µs", a, b)
			}
		}
	})
	t.Run("a node that is gone", func(t *testing.T) {
		d := three(t)
		d.pass(5 * time.Hour)
		u := d.usage(DetailSeries, 0, 6*time.Hour)
		if m := u.Nodes[0].Missing; len(m) != 1 || m[0].Reason != "node_vanished" || m[0].To.Sub(m[0].From) != 3*time.Hour || !strings.Contains(m[0].Text, "node-1") {
			t.Errorf("missing %+v", m)
		}
	})
	t.Run("nothing of a future that has not come", func(t *testing.T) {
		if n := three(t).usage(DetailSeries, 0, 600*time.Hour).Nodes[0]; len(n.Missing) > 0 {
			t.Errorf("missing %+v", n.Missing)
		}
	})
	t.Run("a damaged line", func(t *testing.T) {
		d := three(t)
		edited(t, d.segments()[1], func(data []byte) []byte { data[len(data)/2] ^= 1; return data })
		u := d.usage(DetailPods, 0, 3*time.Hour)
		if len(u.Nodes[0].Missing) == 0 && len(u.Notes) == 0 {
			t.Errorf("usage %+v", u)
		}
		if got := heldOf(u, "team-a", 0); got != micros(3*time.Hour) {
			t.Errorf("held %d µs", got)
		}
	})
}

func TestALineThatIsBeingWrittenIsNotReadYet(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	last := d.segments()[0]
	d.pass(10 * time.Second)
	d.see(whole("a-1"))
	d.ahead()
	remove(t, filepath.Join(d.dir, bookFolder, storeName))
	edited(t, last, func(data []byte) []byte { return data[:len(data)-7] })
	if got, want := heldOf(d.usage(DetailSeries, 0, 2*time.Hour), "team-a", 0), micros(time.Hour); got != want {
		t.Errorf("held %d µs, want %d", got, want)
	}
}

func TestCopiesOfALedgerCountOnce(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	d.flush()
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(d.dir)); err != nil {
		t.Fatal(err)
	}
	copied, err := OpenReader(other)
	if err != nil {
		t.Fatal(err)
	}
	u, err := ReadUsage(t.Context(), []*Reader{d.reader(), copied}, Query{Boundaries: deskTimes(0, time.Hour)})
	if err != nil || len(u.Nodes) != 1 || heldOf(u, "team-a", 0) != micros(time.Hour) || len(u.Notes) != 1 {
		t.Errorf("usage %+v, %v", u, err)
	}
}

func TestQuestionsThatAreNoneAreRefused(t *testing.T) {
	r := newDesk(t).reader()
	for _, times := range [][]time.Time{nil, deskTimes(0), deskTimes(0, 0), deskTimes(time.Hour, 0)} {
		if _, err := r.Usage(t.Context(), Query{Boundaries: times}); err == nil {
			t.Errorf("%v is answered", times)
		}
	}
}

func TestLedgersAreFoundWhereTheyAre(t *testing.T) {
	d := newDesk(t)
	d.flush()
	parent := t.TempDir()
	for _, name := range []string{"node-a", "node-b"} {
		if err := os.CopyFS(parent+"/"+name, os.DirFS(d.dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(parent+"/other", 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string][]string{
		d.dir:             {d.dir},
		d.dir + "/book":   {d.dir + "/book"},
		parent:            {parent + "/node-a", parent + "/node-b"},
		parent + "/other": nil,
		parent + "/none":  nil,
	} {
		got, err := FindLedgers(dir)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("in %s: %v, %v", dir, got, err)
		}
		for _, one := range got {
			if _, err := OpenReader(one); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := OpenReader(parent + "/other"); err == nil || !strings.Contains(err.Error(), "--ledger-dir") {
		t.Errorf("error %v", err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
