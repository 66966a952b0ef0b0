// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// intervals are those between two times since the start, in words.
func intervals(t *testing.T, d *desk, keep func(*Line) bool, from, to time.Duration) []string {
	t.Helper()
	var all []string
	for i, err := range d.reader().Intervals(t.Context(), keep, deskStart.Add(from), deskStart.Add(to)) {
		if err != nil {
			t.Fatal(err)
		}
		who := i.Holder.Pod
		if i.Cause != "" {
			who = string(i.Cause)
		}
		all = append(all, fmt.Sprintf("%s %s of GPU %d, %v to %v, %v: %s, %s", who, i.Part, i.Index,
			i.From.Sub(deskStart), i.To.Sub(deskStart), time.Duration(i.Span)*time.Millisecond, i.Began, i.Ended))
	}
	return all
}

func TestIntervalsTellWhoHeldWhatWhen(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Minute, seat("a-1", 2), left(sharing.CauseUnrequested, 1, 2))
	d.stand(time.Minute, seat("a-1", 4), seat("b-1", 4), left(sharing.CauseUnrequested, 2, 4))
	d.turn()
	d.stand(time.Minute, left(sharing.CauseUnrequested, 4, 4))
	held := func(l *Line) bool { return l.Cause == "" }
	want := []string{
		"a-1 1/2 of GPU 0, 30s to 1m0s, 30s: asked, changed",
		"a-1 1/4 of GPU 0, 1m0s to 2m0s, 1m0s: opened, ended",
		"b-1 1/4 of GPU 0, 1m0s to 2m0s, 1m0s: opened, ended",
	}
	got := intervals(t, d, held, 30*time.Second, 150*time.Second)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("intervals\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	rest := func(l *Line) bool { return l.Cause != "" && l.Part.IsOne() }
	want = []string{"unrequested 1 of GPU 0, 2m0s to 2m30s, 30s: opened, asked"}
	if got := intervals(t, d, rest, 30*time.Second, 150*time.Second); !slices.Equal(got, want) {
		t.Errorf("intervals %q", got)
	}
	want = []string{"unrequested 1 of GPU 0, 2m0s to 3m0s, 1m0s: opened, open"}
	if got := intervals(t, d, rest, 0, time.Hour); !slices.Equal(got, want) {
		t.Errorf("intervals %q", got)
	}
	if got := intervals(t, d, nil, time.Hour, 2*time.Hour); len(got) > 0 {
		t.Errorf("after the end: %q", got)
	}
	if got := intervals(t, d, nil, -2*time.Hour, -time.Hour); len(got) > 0 {
		t.Errorf("before the beginning: %q", got)
	}
}

func TestIntervalsTellWhatAGapCharged(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Minute, seat("a-1", 2), seat("b-1", 2))
	d.pass(time.Minute)
	d.begin()
	d.stand(time.Minute, seat("a-1", 2), left(sharing.CauseUnrequested, 1, 2))
	want := []string{
		"a-1 1/2 of GPU 0, 0s to 1m0s, 1m0s: asked, gap",
		"a-1 1/2 of GPU 0, 1m0s to 2m0s, 1m0s: gap, gap",
		"a-1 1/2 of GPU 0, 2m0s to 3m0s, 1m0s: gap, open",
		"b-1 1/2 of GPU 0, 0s to 1m0s, 1m0s: asked, gap",
		"unobserved 1/2 of GPU 0, 1m0s to 2m0s, 1m0s: gap, gap",
		"unrequested 1/2 of GPU 0, 2m0s to 3m0s, 1m0s: opened, open",
	}
	got := intervals(t, d, nil, 0, time.Hour)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("intervals\n%s", strings.Join(got, "\n"))
	}
}

func TestIntervalsEndWhenNobodyWantsMore(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Minute, seat("a-1", 2), seat("b-1", 2))
	n := 0
	for _, err := range d.reader().Intervals(t.Context(), nil, deskStart, deskStart.Add(time.Hour)) {
		if n++; err != nil {
			t.Error(err)
		}
		break
	}
	if n != 1 {
		t.Errorf("%d intervals", n)
	}
}

func TestIntervalsGoOnAfterDamage(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	d.turn()
	d.stand(time.Hour, whole("b-1"))
	edited(t, d.segments()[0], func(data []byte) []byte { data[len(data)/2] ^= 1; return data })
	damaged, after := 0, false
	for i, err := range d.reader().Intervals(t.Context(), nil, deskStart, deskStart.Add(2*time.Hour)) {
		if err != nil {
			damaged++
		}
		after = after || err == nil && i.Holder.Pod == "b-1"
	}
	if damaged == 0 || !after {
		t.Errorf("%d errors, and the interval after them: %v", damaged, after)
	}
}

func TestEventsTellWhatHappenedBesides(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Minute, whole("a-1"))
	d.write(d.account.Observe(Observation{
		At: d.at, Cards: d.cards, Lines: []Line{whole("a-1")}, XIDs: map[XID]uint64{{GPU: "GPU-0", GPUInstance: -1, ComputeInstance: -1, Code: 79}: 3},
		Facts: []Fact{{What: FactConflict, Device: "GPU-0", Text: "two want it", Detail: map[string]string{"kind": "exclusive"}}},
	}))
	d.pass(time.Minute)
	d.begin()
	d.stand(time.Minute, whole("a-1"))
	var text string
	for e, err := range d.reader().Events(t.Context(), deskStart.Add(30*time.Second), deskStart.Add(time.Hour)) {
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("%v %s %s %s\n", e.At.Sub(deskStart), e.Kind, e.Device, e.Text)
	}
	for _, want := range []string{
		"1m0s fact GPU-0 conflict: two want it", "1m0s xid GPU-0 XID 79, 3 times", "2m0s begin", "2m0s gap  the exporter was away: nobody looked for 1m0s; 1 lines are proven",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, "begin") != 1 {
		t.Errorf("what was before is told:\n%s", text)
	}
}
