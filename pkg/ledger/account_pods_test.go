// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// watched lets an account see a card with a line every minute until a time.
func watched(a *Account, c Card, from, to int64, line Line) {
	for at := from; at <= to; at += minute {
		a.Observe(seen(instant("b", at), []Card{c}, line))
	}
}

func TestAPodIsShownForAWhileAfterItsEnd(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	watched(a, c, 0, minute, wholeLine(c, pod("p")))
	watched(a, c, 2*minute, 17*minute, freeLine(c))
	if pods := a.Totals().Pods; len(pods) != 1 || pods[0].Ended != epoch+2*minute {
		t.Errorf("%+v", pods)
	}
	watched(a, c, 18*minute, 18*minute, freeLine(c))
	if pods := a.Totals().Pods; len(pods) != 0 {
		t.Errorf("%+v", pods)
	}
}

func TestAPodThatComesBackGoesOnCounting(t *testing.T) {
	c := a100(0)
	for _, tt := range []struct {
		name   string
		holder sharing.Holder
		away   int64
		want   int64
	}{
		{"its tombstone is shown", pod("p"), 5 * minute, 3 * minute},
		{"its tombstone is not shown any more", pod("p"), 100 * minute, 3 * minute},
		{"it is forgotten", pod("p"), 130 * minute, minute},
		{"its UID is not known, so it may be the same", nameless(pod("p")), 130 * minute, 3 * minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			var dropped []PodTotal
			a.dropped = func(p PodTotal) { dropped = append(dropped, p) }
			watched(a, c, 0, minute, wholeLine(c, tt.holder))
			watched(a, c, 2*minute, tt.away, freeLine(c))
			watched(a, c, tt.away+minute, tt.away+2*minute, wholeLine(c, tt.holder))
			wantGPU(t, "the pod", podTotalOf(a.Totals(), "p", tt.holder.PodUID).GPU, tt.want)
			wantGPU(t, "the namespace", seriesTotal(a.Totals(), "team").GPU, 3*minute)
			if (len(dropped) == 1) != (tt.want == minute) {
				t.Errorf("dropped: %+v", dropped)
			}
			for _, p := range dropped {
				wantGPU(t, "what was dropped", p.GPU, 2*minute)
			}
			reopened(t, a)
		})
	}
}

func TestNoMoreThanSoManyEndedPodsAreKept(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	dropped := 0
	a.dropped = func(PodTotal) { dropped++ }
	for i := range int64(maxEnded + 20) {
		a.Observe(seen(instant("b", i), []Card{c}, wholeLine(c, nameless(pod(fmt.Sprint(i))))))
	}
	if len(a.pods) != maxEnded+1 || dropped != 19 || len(a.holders) != len(a.pods) {
		t.Errorf("%d pods, %d holders, %d dropped", len(a.pods), len(a.holders), dropped)
	}
}

func TestThePodThatEndedFirstGoesFirst(t *testing.T) {
	var e endedPods
	ended := func(name, uid string, seq uint64) *podAccount {
		p := &podAccount{key: PodSeries{Pod: name, PodUID: uid}, endedSeq: seq}
		e.add(p)
		return p
	}
	// One record ended three, in an order that is not the one in which they are written.
	c, b, d := ended("c", "u", 1), ended("b", "u", 1), ended("d", "u", 1)
	nameless := ended("a", "", 2)
	for i := range uint64(maxEnded) {
		ended("x", "u", 3+i)
	}
	for _, want := range []*podAccount{b, c, d, nameless} {
		got := e.next(0)
		if got != want {
			t.Fatalf("%+v goes, want %+v", got.key, want.key)
		}
		got.endedSeq = 0
		e.n--
	}
	if got := e.next(0); got != nil {
		t.Errorf("%+v goes, and there is room", got.key)
	}
	if got := e.next(podsFor.Milliseconds() + 1); got == nil {
		t.Error("nothing is ever forgotten")
	}
}

func TestWhatIsKnownOfAPodIsWrittenOnceAndKeptAsLongAsThePod(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	facts := Pod{Namespace: "team", Name: "p", UID: "uid-p", WorkloadKind: "Job", Workload: "night", Labels: map[string]string{"k": "v"}}
	o := seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p")))
	o.Pods = []Pod{facts, {Namespace: "team", Name: "holds-nothing", UID: "x"}}
	if got := kinds(a.Observe(o)); !slices.Equal(got, []Kind{KindCard, KindOpen, KindPod}) {
		t.Errorf("%v", got)
	}
	if got := kinds(a.Observe(o)); !slices.Equal(got, []Kind{KindBeat}) {
		t.Errorf("%v", got)
	}
	reopened(t, a)
	o.Pods[0].Labels = map[string]string{"k": "w"}
	if got := kinds(a.Observe(o)); !slices.Equal(got, []Kind{KindPod}) {
		t.Errorf("%v", got)
	}
	if diff := cmp.Diff(o.Pods[0], reopened(t, a).Totals().Pods[0].Pod); diff != "" {
		t.Error(diff)
	}
	o.At, o.Lines = instant("b", minute), []Line{freeLine(c)}
	a.Observe(o)
	if diff := cmp.Diff(o.Pods[0], a.Totals().Pods[0].Pod); diff != "" {
		t.Error(diff)
	}
}

func TestNodeLabelsStayWhileTheyAreNotKnown(t *testing.T) {
	a := begun(instant("b", 0))
	o := seen(instant("b", 0), nil)
	o.NodeLabels = map[string]string{"pool": "a"}
	a.Observe(o)
	a.Observe(seen(instant("b", 0), nil))
	if diff := cmp.Diff(map[string]string{"pool": "a"}, a.Totals().NodeLabels); diff != "" {
		t.Error(diff)
	}
}

func TestXIDsAreCountedOverRestarts(t *testing.T) {
	x := XID{GPU: "GPU-0", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 31}
	a := begun(instant("b", 0))
	for range 3 {
		o := seen(instant("b", 0), nil)
		o.XIDs = map[XID]uint64{x: 2, {GPU: "GPU-0", Code: 79}: 0}
		a.Observe(o)
		a = reopened(t, a)
		a.Begin(Begin{LedgerID: "ledger"}, instant("b", 0))
	}
	if diff := cmp.Diff(map[XID]uint64{x: 6}, a.Totals().XIDs); diff != "" {
		t.Error(diff)
	}
}
