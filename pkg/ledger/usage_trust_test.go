// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// fourHours is a ledger of four segments of an hour, in which a pod holds half a card, and another the other half from the second hour on.
func fourHours(t *testing.T) *desk {
	t.Helper()
	d := newDesk(t)
	d.stand(time.Hour, seat("a-1", 2), left(sharing.CauseUnrequested, 1, 2))
	for range 3 {
		d.turn()
		d.stand(time.Hour, seat("a-1", 2), seat("b-1", 2))
	}
	return d
}

// flipped changes one bit in the middle of a file.
func flipped(t *testing.T, path string) {
	t.Helper()
	edited(t, path, func(data []byte) []byte {
		data[len(data)/2] ^= 1
		return data
	})
}

// missingOf are the times that an answer lacks for a reason.
func missingOf(u Usage, reason string) []Missing {
	var found []Missing
	for _, m := range u.Nodes[0].Missing {
		if m.Reason == reason {
			found = append(found, m)
		}
	}
	return found
}

func TestWhatADamagedLineMakesDoubtfulIsMissingAndTheNumbersRestOnTheCarry(t *testing.T) {
	for _, detail := range []Detail{DetailSeries, DetailPods} {
		d := fourHours(t)
		flipped(t, d.segments()[1])
		u := d.usage(detail, 0, time.Hour, 119*time.Minute, 2*time.Hour, 4*time.Hour)
		m := missingOf(u, MissingDamaged)
		if len(m) != 1 || !m[0].From.After(deskStart.Add(time.Hour)) || m[0].From.After(deskStart.Add(100*time.Minute)) || !m[0].To.Equal(deskStart.Add(2*time.Hour)) {
			t.Fatalf("missing %+v", u.Nodes[0].Missing)
		}
		for w, want := range []time.Duration{30 * time.Minute, 29*time.Minute + 30*time.Second, 30 * time.Second, time.Hour} {
			if got := heldOf(u, "team-a", w); got != micros(want) {
				t.Errorf("detail %d, window %d: held %d µs, want %d", detail, w, got, micros(want))
			}
		}
	}
}

func TestDamageThatIsNotInThePeriodIsNoMatterOfIt(t *testing.T) {
	d := fourHours(t)
	flipped(t, d.segments()[1])
	for _, period := range [][]time.Duration{{0, 30 * time.Minute}, {2 * time.Hour, 4 * time.Hour}} {
		if u := d.usage(DetailSeries, period...); len(u.Nodes[0].Missing) > 0 {
			t.Errorf("of %v is missing %+v", period, u.Nodes[0].Missing)
		}
	}
}

// The newest segment has no carry behind it; the totals are as good as one.
func TestDamageInTheNewestSegmentLeavesTheTotals(t *testing.T) {
	d := fourHours(t)
	flipped(t, d.segments()[3])
	d.pass(30 * time.Minute)
	for _, detail := range []Detail{DetailSeries, DetailPods} {
		u := d.usage(detail, 0, 239*time.Minute, 5*time.Hour)
		if a, b := heldOf(u, "team-a", 0), heldOf(u, "team-a", 1); a != micros(119*time.Minute+30*time.Second) || b != micros(30*time.Second) {
			t.Errorf("detail %d: held %d and %d µs", detail, a, b)
		}
		if m := missingOf(u, MissingDamaged); len(m) != 1 || !m[0].To.Equal(deskStart.Add(4*time.Hour)) {
			t.Errorf("missing %+v", u.Nodes[0].Missing)
		}
	}
}

// Only the boundaries are read for numbers; all of the period is looked at.
func TestDamageBetweenTwoBoundariesIsSeen(t *testing.T) {
	d := fourHours(t)
	flipped(t, d.segments()[2])
	if u := d.usage(DetailSeries, 0, 4*time.Hour); len(missingOf(u, MissingDamaged)) != 1 || heldOf(u, "team-a", 0) != micros(2*time.Hour) {
		t.Errorf("missing %+v, held %d", u.Nodes[0].Missing, heldOf(u, "team-a", 0))
	}
}

func TestASegmentWhoseBeginningIsDamagedIsReadFromTheOneBefore(t *testing.T) {
	// Within the line's link, number, kind, clocks and body.
	for at := 30; at < 90; at += 3 {
		d := fourHours(t)
		edited(t, d.segments()[2], func(data []byte) []byte {
			data[at] ^= 2
			return data
		})
		u := d.usage(DetailSeries, 0, 2*time.Hour, 150*time.Minute, 4*time.Hour)
		if m := missingOf(u, MissingDamaged); len(m) == 0 || !m[len(m)-1].To.Equal(deskStart.Add(3*time.Hour)) {
			t.Errorf("byte %d: missing %+v", at, u.Nodes[0].Missing)
		}
		for w, want := range []time.Duration{time.Hour, 15 * time.Minute, 45 * time.Minute} {
			if got := heldOf(u, "team-a", w); got != micros(want) {
				t.Errorf("byte %d, window %d: held %d µs, want %d", at, w, got, micros(want))
			}
		}
	}
}

// Who came behind the damage is in no record that can be read, and in the carry.
func TestWhatBeganBehindDamageIsBetweenTheCarries(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, left(sharing.CauseFree, 1, 1))
	d.see(whole("a-1"))
	d.stand(time.Hour, whole("a-1"))
	d.turn()
	d.stand(time.Hour, whole("a-1"))
	edited(t, d.segments()[0], func(data []byte) []byte {
		at := bytes.Index(data, []byte("team-a"))
		data[at] ^= 1
		return data
	})
	u := d.usage(DetailSeries, 0, time.Hour, 90*time.Minute, 2*time.Hour, 3*time.Hour)
	for w, want := range []time.Duration{0, 30 * time.Minute, 30 * time.Minute, time.Hour} {
		if got := heldOf(u, "team-a", w); got < micros(want-20*time.Second) || got > micros(want+20*time.Second) {
			t.Errorf("window %d: held %d µs, want about %d", w, got, micros(want))
		}
	}
}

// The sums and links of the changed segments fit; what they come to is not what the next begins with.
func TestARewrittenSegmentContradictsAndItsCarriesCount(t *testing.T) {
	for _, detail := range []Detail{DetailSeries, DetailPods} {
		d := fourHours(t)
		d.total()
		paths := d.segments()
		rechain(t, paths, func(r *Record) {
			if o, ok := r.Body.(*Open); ok && o.Pod == "b-1" {
				o.Namespace = "team-x"
			}
		})
		if err := os.Remove(filepath.Join(d.dir, bookFolder, storeName)); err != nil {
			t.Fatal(err)
		}
		u := d.usage(detail, 0, time.Hour, 119*time.Minute, 4*time.Hour)
		if m := missingOf(u, MissingContradicted); len(m) == 0 || !m[0].From.Equal(deskStart.Add(time.Hour)) || !m[0].To.Equal(deskStart.Add(2*time.Hour)) {
			t.Errorf("missing %+v", u.Nodes[0].Missing)
		}
		if x, b := heldOf(u, "team-x", 1), heldOf(u, "team-b", 1); x != 0 || b != micros(29*time.Minute+30*time.Second) {
			t.Errorf("detail %d: x held %d µs, b %d", detail, x, b)
		}
	}
}

func TestALogWhoseEndIsCutOffIsFoundByItsTotals(t *testing.T) {
	cut := func(t *testing.T, d *desk) {
		edited(t, d.segments()[3], func(data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			return bytes.Join(lines[:len(lines)-101], nil)
		})
	}
	d := fourHours(t)
	cut(t, d)
	v := verified(t, d)
	if len(v.Problems) != 1 || v.Problems[0].Kind != ProblemEnd || !v.Contradicts() || !strings.HasPrefix(v.Problems[0].Text, "100 records at the end are missing") {
		t.Errorf("problems %+v", v.Problems)
	}
	u := d.usage(DetailSeries, 0, 4*time.Hour)
	if got := heldOf(u, "team-a", 0); got != micros(2*time.Hour) {
		t.Errorf("held %d µs, and the totals have all of it", got)
	}
	if m := missingOf(u, "log_lost"); len(m) != 1 || len(u.Nodes[0].Missing) != 1 || !m[0].To.Equal(deskStart.Add(4*time.Hour)) || m[0].To.Sub(m[0].From) < 15*time.Minute {
		t.Errorf("missing %+v", u.Nodes[0].Missing)
	}
	if u := d.usage(DetailSeries, 0, 3*time.Hour); len(u.Nodes[0].Missing) > 0 {
		t.Errorf("of the time before is missing %+v", u.Nodes[0].Missing)
	}
	t.Run("a whole segment", func(t *testing.T) {
		d := fourHours(t)
		remove(t, d.segments()[3])
		if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemEnd {
			t.Errorf("problems %+v", v.Problems)
		}
	})
	t.Run("and the totals with it", func(t *testing.T) {
		d := fourHours(t)
		cut(t, d)
		remove(t, filepath.Join(d.dir, bookFolder, storeName))
		if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemMissing || v.Contradicts() {
			t.Errorf("problems %+v", v.Problems)
		}
		if u := d.usage(DetailSeries, 0, 2*time.Hour); len(u.Notes) != 1 || !strings.Contains(u.Notes[0], "nothing can say") {
			t.Errorf("notes %q", u.Notes)
		}
	})
	t.Run("and the totals damaged", func(t *testing.T) {
		d := fourHours(t)
		d.flush()
		edited(t, filepath.Join(d.dir, bookFolder, storeName), func(data []byte) []byte { return data[:100] })
		if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemUnread || v.Contradicts() {
			t.Errorf("problems %+v", v.Problems)
		}
	})
}

func TestALogWithANewEndIsNotTheOneOfItsTotals(t *testing.T) {
	d := fourHours(t)
	rechain(t, d.segments(), func(r *Record) {
		if r.Seq == d.account.seq-1 {
			r.At.Wall++
		}
	})
	if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemTotals || !v.Contradicts() {
		t.Errorf("problems %+v", v.Problems)
	}
	if u := d.usage(DetailSeries, 0, 4*time.Hour); len(missingOf(u, MissingContradicted)) != 1 {
		t.Errorf("missing %+v", u.Nodes[0].Missing)
	}
}

func TestWhatIsNotCommittedIsNotCounted(t *testing.T) {
	d := fourHours(t)
	d.flush()
	d.stand(time.Hour, whole("c-1"))
	d.ahead()
	u := d.usage(DetailPods, 0, 5*time.Hour)
	if got := heldOf(u, "team-c", 0); got != 0 || restOf(u, "", 0) != micros(4*time.Hour) {
		t.Errorf("held %d µs of %d", got, restOf(u, "", 0))
	}
	for i, err := range d.reader().Intervals(t.Context(), nil, deskStart, deskStart.Add(5*time.Hour)) {
		if err != nil || i.Holder.Pod == "c-1" {
			t.Errorf("interval %+v, %v", i, err)
		}
	}
	if v := verified(t, d); len(v.Problems) > 0 || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "not committed") {
		t.Errorf("verification %+v", v)
	}
}

func TestALedgerThatWasPutAsideIsNamed(t *testing.T) {
	d, before := fourHours(t), fourHours(t)
	aside := filepath.Join(d.dir, bookFolder+".corrupt-20261101T000000Z")
	if err := os.CopyFS(aside, os.DirFS(filepath.Dir(before.segments()[0]))); err != nil {
		t.Fatal(err)
	}
	// The one that was put aside began two hours earlier.
	for _, path := range []string{aside} {
		all, err := listSegments(path)
		if err != nil {
			t.Fatal(err)
		}
		rewound := func(r *Record) { r.At.Wall -= 2 * time.Hour.Milliseconds() }
		var paths []string
		for _, s := range all {
			paths = append(paths, s.path)
		}
		rechain(t, paths, rewound)
	}
	u := d.usage(DetailSeries, -3*time.Hour, 4*time.Hour)
	if m := missingOf(u, "put_aside"); len(m) != 1 || !m[0].From.Equal(deskStart.Add(-2*time.Hour)) || !m[0].To.Equal(deskStart) || !strings.Contains(m[0].Text, aside) {
		t.Errorf("missing %+v", u.Nodes[0].Missing)
	}
	if u := d.usage(DetailSeries, 0, 4*time.Hour); len(u.Nodes[0].Missing) > 0 || !slices.ContainsFunc(u.Notes, func(n string) bool { return strings.Contains(n, aside) }) {
		t.Errorf("missing %+v, notes %q", u.Nodes[0].Missing, u.Notes)
	}
	if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemMissing || !strings.Contains(fmt.Sprint(v.Problems), aside) {
		t.Errorf("problems %+v", v.Problems)
	}
}
