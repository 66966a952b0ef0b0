// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// live lets a node live a while, as drawn; turns says whether pages are turned, which nothing may depend on.
func live(t *rapid.T, d *desk, turns bool) {
	pods := []string{"a-1", "a-2", "b-1", "c-1"}
	for i := range rapid.IntRange(1, 12).Draw(t, "deeds") {
		switch rapid.SampledFrom([]string{"stand", "stand", "stand", "turn", "restart", "reboot", "stall", "step"}).Draw(t, "deed") {
		case "stand":
			d.stand(time.Duration(rapid.IntRange(1, 100_000).Draw(t, "ms"))*time.Millisecond, cut(t, pods)...)
		case "turn":
			if turns && d.account.seq > 1 {
				d.turn()
			}
		case "restart":
			d.pass(time.Duration(rapid.IntRange(0, 600_000).Draw(t, "away")) * time.Millisecond)
			d.begin()
		case "reboot":
			d.reboot(fmt.Sprintf("boot-%d", i+2), time.Duration(rapid.IntRange(10, 3_600_000).Draw(t, "away"))*time.Millisecond,
				time.Duration(rapid.IntRange(0, 60_000).Draw(t, "up"))*time.Millisecond)
		case "stall":
			d.pass(time.Duration(rapid.IntRange(1, 1_000_000).Draw(t, "blind")) * time.Millisecond)
		case "step":
			d.step(time.Duration(rapid.IntRange(-200_000, 200_000).Draw(t, "by")) * time.Millisecond)
		}
	}
	d.stand(10*time.Second, cut(t, pods)...)
}

// cut is one way to divide the card.
func cut(t *rapid.T, pods []string) []Line {
	of := rapid.SampledFrom([]int{0, 1, 3, 7}).Draw(t, "seats")
	switch of {
	case 0:
		return []Line{left(rapid.SampledFrom(sharing.Causes()).Draw(t, "cause"), 1, 1)}
	case 1:
		return []Line{whole(rapid.SampledFrom(pods).Draw(t, "pod"))}
	}
	taken := rapid.IntRange(0, min(of-1, len(pods))).Draw(t, "taken")
	lines := []Line{left(sharing.CauseUnrequested, int64(of-taken), int64(of))}
	for _, pod := range pods[:taken] {
		lines = append(lines, seat(pod, of))
	}
	return lines
}

// drawnDesk is a desk in a folder of its own for each draw.
func drawnDesk(tt *testing.T, t *rapid.T, turns bool) *desk {
	d := newDesk(tt)
	live(t, d, turns)
	return d
}

// drawnTimes are boundaries around what the desk has seen, ascending.
func drawnTimes(t *rapid.T, d *desk) []time.Time {
	span := int(d.latest-deskStart.UnixMilli()) + 60_000
	found := map[int]bool{-60_000: true, span: true}
	for range rapid.IntRange(0, 6).Draw(t, "boundaries") {
		found[rapid.IntRange(-30_000, span-1).Draw(t, "boundary")] = true
	}
	// Those at which something was written are where it matters most.
	for range rapid.IntRange(0, 4).Draw(t, "exact boundaries") {
		if ms := int(rapid.SampledFrom(d.walls).Draw(t, "wall") - deskStart.UnixMilli()); ms > -60_000 {
			found[ms] = true
		}
	}
	var times []time.Time
	for _, ms := range slices.Sorted(maps.Keys(found)) {
		times = append(times, deskStart.Add(time.Duration(ms)*time.Millisecond))
	}
	return times
}

func asked(t *rapid.T, d *desk, detail Detail, times ...time.Time) Usage {
	u, err := d.reader().Usage(context.Background(), Query{Boundaries: times, Detail: detail})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// sums are what an answer comes to, by what it is of.
func sums(u Usage) map[string]int64 {
	all := map[string]int64{}
	for _, h := range u.Held {
		all[fmt.Sprintf("held %+v", h.Series)] += h.GPU
	}
	for _, r := range u.Rest {
		all[fmt.Sprintf("rest %s %s %v", r.Card, r.Cause, r.Corrected)] += r.GPU
	}
	maps.DeleteFunc(all, func(_ string, v int64) bool { return v == 0 })
	return all
}

func TestWindowsAddUpToTheWholeWhateverHappened(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, true)
		times := drawnTimes(rt, d)
		parts := asked(rt, d, DetailSeries, times...)
		all := asked(rt, d, DetailSeries, times[0], times[len(times)-1])
		if diff := cmp.Diff(sums(all), sums(parts)); diff != "" {
			rt.Fatalf("(-whole +sum of %d windows):\n%s", len(times)-1, diff)
		}
		for _, h := range slices.Concat(parts.Held) {
			if h.GPU < 0 {
				rt.Fatalf("negative: %+v", h)
			}
		}
		// What the account came to is what was asked of all of its time.
		want := map[string]int64{}
		for _, s := range d.account.Totals().Series {
			want[fmt.Sprintf("held %+v", s.Series)] = Micro(s.GPU)
		}
		got := sums(all)
		maps.DeleteFunc(want, func(_ string, v int64) bool { return v == 0 })
		maps.DeleteFunc(got, func(k string, _ int64) bool { return k[0] != 'h' })
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("(-account +answer):\n%s", diff)
		}
	})
}

func TestEveryWindowIsConserved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, true)
		times := drawnTimes(rt, d)
		u := asked(rt, d, DetailSeries, times...)
		for w := range len(times) - 1 {
			balance, registers := int64(0), int64(0)
			for _, r := range u.Rest {
				switch {
				case r.Window != w:
					continue
				case r.Cause == "" || r.Corrected:
					balance += r.GPU
				default:
					balance -= r.GPU
				}
				registers++
			}
			for _, h := range u.Held {
				if h.Window == w {
					balance -= h.GPU
					registers++
				}
			}
			if balance > registers || balance < -registers {
				rt.Fatalf("window %d (%s to %s) is off by %d µs with %d registers", w, times[w], times[w+1], balance, registers)
			}
		}
	})
}

func TestPodsAddUpToTheirSeries(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, true)
		times := drawnTimes(rt, d)
		series, pods := sums(asked(rt, d, DetailSeries, times...)), asked(rt, d, DetailPods, times...)
		byPods := sums(pods)
		for key, want := range series {
			if off := byPods[key] - want; off > int64(len(pods.Held)) || off < -int64(len(pods.Held)) {
				rt.Fatalf("%s: %d µs by series, %d by pods", key, want, byPods[key])
			}
		}
	})
}

func TestTheAnswerDoesNotDependOnWhereThePagesAreTurned(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, false)
		times := drawnTimes(rt, d)
		want := sums(asked(rt, d, DetailPods, times...))
		paged := repaged(t, d, rapid.IntRange(1, 30).Draw(rt, "records per page"))
		for _, detail := range []Detail{DetailSeries, DetailPods} {
			u, err := paged.Usage(context.Background(), Query{Boundaries: times, Detail: detail})
			if err != nil {
				rt.Fatal(err)
			}
			got := sums(u)
			for key := range got {
				if off := got[key] - want[key]; off > 100 || off < -100 {
					rt.Fatalf("%s: %d µs on one page, %d on several", key, want[key], got[key])
				}
			}
			if len(got) != len(want) {
				rt.Fatalf("%v on one page, %v on several", want, got)
			}
		}
	})
}

// repaged is the same ledger with a page for so many records.
func repaged(t *testing.T, d *desk, every int) *Reader {
	t.Helper()
	dir := t.TempDir()
	w, a, seq := &logWriter{disk: osDisk{hasty: true}, dir: dir}, NewAccount(), uint64(0)
	var out []Record
	for line, err := range scanSegment(d.segments()[0]) {
		if err != nil {
			t.Fatal(err)
		}
		seq++
		r := line.Record
		r.Seq = seq
		if err := a.Apply(r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
		if int(line.Seq)%every == 0 {
			state, err := a.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			seq++
			carry := Record{Seq: seq, At: a.at, Body: &Carry{State: state}}
			if err := a.Apply(carry); err != nil {
				t.Fatal(err)
			}
			out = append(out, carry)
		}
	}
	if _, err := w.write(out); err != nil {
		t.Fatal(err)
	}
	w.drop()
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	r.now = func() time.Time { return time.UnixMilli(d.at.Wall) }
	return r
}

func TestIntervalsComeToTheUsageExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, true)
		times := drawnTimes(rt, d)
		first := rapid.IntRange(0, len(times)-2).Draw(rt, "window")
		times = times[first : first+2]
		u := asked(rt, d, DetailPods, times...)
		want, exact := map[string]int64{}, map[string]sharing.Fraction{}
		for _, h := range u.Held {
			want[h.Pod+" "+string(h.Mode)] += h.GPU
		}
		for _, r := range u.Rest {
			if r.Cause != "" && !r.Corrected {
				want[string(r.Cause)] += r.GPU
			}
		}
		n := 0
		for i, err := range d.reader().Intervals(context.Background(), nil, times[0], times[1]) {
			if err != nil {
				rt.Fatal(err)
			}
			key := string(i.Cause)
			if i.Cause == "" {
				key = i.Holder.Pod + " " + string(i.Mode)
			}
			exact[key] = exact[key].Add(i.Amount().GPU)
			if n++; i.Span <= 0 {
				rt.Fatalf("interval %+v", i)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(exact)) {
			if off := Micro(exact[key]) - want[key]; off > 8 || off < -8 {
				rt.Fatalf("%s: intervals come to %s ms, usage is %d µs, from %s to %s", key, exact[key], want[key], times[0], times[1])
			}
			delete(want, key)
		}
		if len(want) > 0 {
			rt.Fatalf("no intervals for %v", want)
		}
	})
}

func TestWhateverWasWrittenIsVerified(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, true)
		v, err := d.reader().Verify(context.Background(), nil)
		if err != nil {
			rt.Fatal(err)
		}
		if len(v.Problems) > 0 || v.Records != d.account.seq || !v.Proven.Equal(v.Capacity) {
			rt.Fatalf("verification %+v", v)
		}
	})
}

// A change of anything in the log is found, wherever it is.
func TestAnyChangeOfTheLogIsFound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := drawnDesk(t, rt, true)
		paths := d.segments()
		path := rapid.SampledFrom(paths).Draw(rt, "segment")
		data, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		at := rapid.IntRange(0, len(data)-1).Draw(rt, "at")
		data[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			rt.Fatal(err)
		}
		v, err := d.reader().Verify(context.Background(), nil)
		// The end of the last line may look like one that is being written.
		torn := path == paths[len(paths)-1] && at == len(data)-1
		if err != nil || len(v.Problems) == 0 && !(torn && len(v.Notes) > 0) {
			rt.Fatalf("byte %d of %s was changed: %+v, %v", at, filepath.Base(path), v, err)
		}
	})
}
