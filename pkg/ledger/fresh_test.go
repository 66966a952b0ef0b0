// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestAPodThatComesBackLongAfterItsEndIsNotShownAsNew(t *testing.T) {
	c := a100(0)
	b := testBook(t, "")
	at := int64(0)
	see := func(lines ...Line) {
		b.Observe(seen(instant("b", at), []Card{c}, lines...))
		at += minute
	}
	for range 3 {
		see(wholeLine(c, nameless(pod("p"))))
	}
	for range 30 {
		see(freeLine(c))
		committed(t, b)
	}
	before := podTotalOf(b.account.Totals(), "p", "")
	if n := len(b.View().Totals.Pods); n != 0 {
		t.Fatalf("half an hour after its end %d pods are shown: %v", n, before)
	}
	see(wholeLine(c, nameless(pod("p"))))
	if v := b.View(); len(v.NewPods) != 0 {
		t.Errorf("it is shown at 0, and came to 3 minutes before: %+v", v.NewPods)
	}
	wantGPU(t, "the pod", podTotalOf(committed(t, b), "p", "").GPU, 3*minute)
}

func TestAGapThatEndsWithABrokenGPUIsNotChargedWhenItIsWellAgain(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p"))))
	a.Begin(Begin{LedgerID: "ledger"}, instant("b", hour))
	broken := wholeLine(c, pod("p"))
	broken.Cause, broken.Mode, broken.Resource, broken.Seats, broken.Of = sharing.CauseUnhealthy, "", "", 0, 0
	a.Observe(seen(instant("b", hour), []Card{c}, broken))
	a.Observe(seen(instant("b", hour+minute), []Card{c}, wholeLine(c, pod("p"))))
	a.Observe(seen(instant("b", hour+2*minute), []Card{c}, wholeLine(c, pod("p"))))
	wantGPU(t, "the namespace", seriesTotal(a.Totals(), "team").GPU, minute)
	if err := checkConservation(a.Totals()); err != nil {
		t.Error(err)
	}
}

func TestEnergyOfASilentCounterIsNotThatOfWhoCameMeanwhile(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	look := func(ms, counter int64, lines ...Line) {
		o := seen(instant("b", ms), []Card{c}, lines...)
		if counter > 0 {
			o.Energy = map[gpu.UUID]int64{c.UUID: counter}
		}
		a.Observe(o)
	}
	look(0, 1000, wholeLine(c, pod("old")))
	for m := int64(1); m < 60; m++ {
		look(m*minute, 0, wholeLine(c, pod("old")))
	}
	look(60*minute, 0, wholeLine(c, pod("new")))
	look(61*minute, 1000+3_600_000, wholeLine(c, pod("new")))
	look(62*minute, 1000+3_600_000+60_000, wholeLine(c, pod("new")))
	t.Log("old", podTotalOf(a.Totals(), "old", "uid-old").Energy, "new", podTotalOf(a.Totals(), "new", "uid-new").Energy, "card", a.Totals().Cards[0].Capacity.Energy)
}

func TestAPodThatNobodyCanSeeIsNotOver(t *testing.T) {
	c := a100(0)
	for _, hours := range []int64{1, 3} {
		b := testBook(t, "")
		b.Observe(seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p"))))
		b.Observe(seen(instant("b", minute), []Card{c}, wholeLine(c, pod("p"))))
		unseen := restLine(c, sharing.CauseUnobserved, sharing.One(), sharing.One())
		for m := int64(2); m < hours*60; m++ {
			b.Observe(seen(instant("b", m*minute), []Card{c}, unseen))
			if v := committed(t, b); len(v.Pods) != 1 {
				t.Fatalf("after %d minutes without a kubelet %d pods are shown", m, len(v.Pods))
			}
		}
		b.Observe(seen(instant("b", hours*hour), []Card{c}, wholeLine(c, pod("p"))))
		wantGPU(t, "the pod", podTotalOf(committed(t, b), "p", "uid-p").GPU, 2*minute)
	}
}
