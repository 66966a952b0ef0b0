// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"pgregory.net/rapid"
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
	look(61*minute, 1000+3_660_000, wholeLine(c, pod("new")))
	look(62*minute, 1000+3_720_000, wholeLine(c, pod("new")))
	// A thousand millijoules a second: one minute of it in the silence, and one after it.
	wantGPU(t, "the energy of who came", podTotalOf(a.Totals(), "new", "uid-new").Energy, 120_000)
	wantGPU(t, "the energy of the card", a.Totals().Cards[0].Capacity.Energy, 120_000)
	look(63*minute, 0, wholeLine(c, pod("new")))
	look(64*minute, 1000+3_840_000, wholeLine(c, pod("new")))
	wantGPU(t, "the energy of who stays", podTotalOf(a.Totals(), "new", "uid-new").Energy, 240_000)
	if err := checkConservation(a.Totals()); err != nil {
		t.Error(err)
	}
}

func TestAPodThatNobodyCanSeeIsNotOver(t *testing.T) {
	c := a100(0)
	unseen := restLine(c, sharing.CauseUnobserved, sharing.One(), sharing.One())
	for _, tt := range []struct {
		name    string
		restart bool
		after   Line
		want    int64
	}{
		{"it is there again", false, wholeLine(c, pod("p")), 3*hour + minute},
		{"it is not", false, freeLine(c), 2 * minute},
		{"it is there again, and the meter was started anew so long ago that no proof is waited for", true, wholeLine(c, pod("p")), 3 * minute},
		{"it is not, and the meter was started anew meanwhile", true, freeLine(c), 2 * minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			watched(a, c, 0, minute, wholeLine(c, pod("p")))
			for m := int64(2); m < 180; m++ {
				if m == 90 && tt.restart {
					a.Begin(Begin{LedgerID: "ledger"}, instant("b", m*minute))
				}
				a.Observe(seen(instant("b", m*minute), []Card{c}, unseen))
				if a = reopenedWatch(t, a); len(a.Totals().Pods) != 1 || a.Totals().Pods[0].Ended != 0 {
					t.Fatalf("after %d minutes in which nobody could see it: %+v", m, a.Totals().Pods)
				}
			}
			watched(a, c, 3*hour, 3*hour+minute, tt.after)
			wantGPU(t, "the pod", podTotalOf(a.Totals(), "p", "uid-p").GPU, tt.want)
			watched(a, c, 3*hour+2*minute, 3*hour+20*minute, freeLine(c))
			if pods := a.Totals().Pods; tt.want == 2*minute && len(pods) != 0 {
				t.Errorf("long after its end it is shown: %+v", pods)
			}
		})
	}
}

func TestAMeterThatLooksSeldomHasNoGapEachTime(t *testing.T) {
	c := a100(0)
	for _, dir := range []string{"", t.TempDir()} {
		b := openBook(BookConfig{Dir: dir, Node: "node-1", Interval: 10 * time.Minute}, osDisk{hasty: true})
		t.Cleanup(func() { _ = b.Close() })
		for m := int64(0); m <= 60; m += 10 {
			b.Observe(seen(instant("b", m*minute), []Card{c}, freeLine(c)))
			committed(t, b)
		}
		totals := committed(t, b)
		wantGPU(t, "free", totals.Cards[0].Unallocated[sharing.CauseFree].GPU, hour)
		if totals.Gaps[GapStall] != 0 {
			t.Errorf("gaps: %v", totals.Gaps)
		}
		b.Observe(seen(instant("b", 100*minute), []Card{c}, freeLine(c)))
		if gaps := committed(t, b).Gaps; gaps[GapStall] != 40*minute {
			t.Errorf("after forty minutes without a look the gaps are %v", gaps)
		}
	}
}

// A meter that was frozen has seen nothing: who was there before and is not after may have gone at once.
func TestAFrozenMeterChargesNobodyForWhatItDidNotSee(t *testing.T) {
	c := a100(0)
	for _, tt := range []struct {
		name                   string
		interval               time.Duration
		apart                  int64
		after                  Line
		held, unobserved, gaps int64
	}{
		{"a pod that is gone", time.Second, 43 * second, freeLine(c), 15 * second, 43 * second, 43 * second},
		{"a pod that is still there", time.Second, 43 * second, wholeLine(c, pod("p")), 58 * second, 0, 43 * second},
		{"a pod of the same name", time.Second, 43 * second, wholeLine(c, nameless(pod("p"))), 15 * second, 43 * second, 43 * second},
		{"as long as a slow source takes", time.Second, 10 * second, freeLine(c), 25 * second, 0, 0},
		{"three intervals", 30 * time.Second, 90 * second, freeLine(c), 105 * second, 0, 0},
		{"more than three intervals", 30 * time.Second, 91 * second, freeLine(c), 15 * second, 91 * second, 91 * second},
		{"nobody knows how often it looks", 0, 300 * second, freeLine(c), 315 * second, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := openBook(BookConfig{Node: "node-1", Interval: tt.interval}, osDisk{hasty: true})
			for at := range int64(16) {
				b.Observe(seen(instant("b", at*second), []Card{c}, wholeLine(c, pod("p"))))
			}
			b.Observe(seen(instant("b", 15*second+tt.apart), []Card{c}, tt.after))
			totals := committed(t, b)
			wantGPU(t, "the pod", seriesTotal(totals, "team").GPU, tt.held)
			wantGPU(t, "unobserved", totals.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, tt.unobserved)
			if totals.Gaps[GapStall] != tt.gaps {
				t.Errorf("gaps: %v", totals.Gaps)
			}
		})
	}
}

func TestWhoHeldACardBeforeAndAfterNobodyCouldSeeItHeldItAllTheWhile(t *testing.T) {
	c := a100(0)
	unseen := restLine(c, sharing.CauseUnobserved, sharing.One(), sharing.One())
	broken := wholeLine(c, pod("p"))
	broken.Cause, broken.Mode, broken.Resource, broken.Seats, broken.Of = sharing.CauseUnhealthy, "", "", 0, 0
	for _, tt := range []struct {
		name      string
		after     Line
		boot      string
		restarted bool
		corrected int64
	}{
		{"the same pod", wholeLine(c, pod("p")), "b", false, hour - 2*minute},
		{"a pod whose UID is not known", wholeLine(c, nameless(pod("p"))), "b", false, 0},
		{"another pod", wholeLine(c, pod("q")), "b", false, 0},
		{"nobody", freeLine(c), "b", false, 0},
		{"the same pod on a broken GPU", broken, "b", false, 0},
		{"the same pod after a restart of the meter", wholeLine(c, pod("p")), "b", true, hour - 2*minute},
		{"the same pod after a start of the machine", wholeLine(c, pod("p")), "b2", true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			watched(a, c, 0, minute, wholeLine(c, pod("p")))
			watched(a, c, 2*minute, hour-minute, unseen)
			a = reopenedWatch(t, a)
			if tt.restarted {
				a.Begin(Begin{LedgerID: "ledger"}, instant(tt.boot, hour))
			}
			for at := hour; at <= hour+minute; at += minute {
				a.Observe(seen(instant(tt.boot, at), []Card{c}, tt.after))
			}
			totals := a.Totals()
			wantGPU(t, "corrected", totals.Cards[0].Corrected[sharing.CauseUnobserved].GPU, tt.corrected)
			if err := checkConservation(totals); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNoSeriesThatWasShownEverComesBackLower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := openBook(BookConfig{Node: "node-1"}, osDisk{hasty: true})
		highest := map[string]sharing.Fraction{}
		b.account.dropped = func(p PodTotal) {
			if p.PodUID == "" {
				t.Fatalf("%+v is dropped, and may come back", p.PodSeries)
			}
			delete(highest, fmt.Sprint(p.PodSeries))
		}
		for _, s := range anyHistory(t) {
			if s.begin {
				b.begun = false
			}
			b.Observe(s.o)
			if rapid.Bool().Draw(t, "commit") {
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			v := b.View()
			now := flat(v.Totals)
			for _, p := range v.Totals.Pods {
				now[fmt.Sprint(p.PodSeries)] = p.GPU
			}
			for _, p := range v.NewPods {
				if _, twice := now[fmt.Sprint(p.PodSeries)]; twice {
					t.Fatalf("%+v is shown twice", p.PodSeries)
				}
				now[fmt.Sprint(p.PodSeries)] = p.GPU
			}
			for name, value := range now {
				if value.Cmp(highest[name]) < 0 {
					t.Fatalf("%s is %s, and was %s", name, value, highest[name])
				}
				highest[name] = value
			}
		}
	})
}

func TestWhatTwoMetersSawIsCountedOnce(t *testing.T) {
	c, dir := a100(0), t.TempDir()
	first, second := testBook(t, dir), testBook(t, dir)
	see := func(b *Book, ms int64) {
		o := seen(instant("b", ms), []Card{c}, wholeLine(c, pod("p")))
		o.Energy = map[gpu.UUID]int64{c.UUID: 1000 + ms}
		if ms == 3*minute {
			o.XIDs = map[XID]uint64{{GPU: c.UUID, Code: 79}: 1}
		}
		b.Observe(o)
	}
	for m := range int64(6) {
		see(first, m*minute)
		committed(t, first)
		if m >= 2 {
			see(second, m*minute)
			if err := second.Commit(); err == nil {
				t.Fatal("both have the folder")
			}
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for m := int64(6); m <= 10; m++ {
		see(second, m*minute)
	}
	now := committed(t, second)
	if n := now.XIDs[XID{GPU: c.UUID, Code: 79}]; n != 1 {
		t.Errorf("an XID that both saw is counted %d times", n)
	}
	wantGPU(t, "the pod", podTotalOf(now, "p", "uid-p").GPU, 10*minute)
	wantGPU(t, "its energy", podTotalOf(now, "p", "uid-p").Energy, 10*minute)
}

func TestALedgerOfAnotherNodeIsTold(t *testing.T) {
	c, dir := a100(0), t.TempDir()
	for i, tt := range []struct {
		node string
		told bool
	}{{"node-1", false}, {"node-1", false}, {"node-2", true}} {
		var log strings.Builder
		b := openBook(BookConfig{Dir: dir, Node: tt.node, Log: slog.New(slog.NewTextHandler(&log, nil))}, osDisk{hasty: true})
		b.Observe(seen(instant("b", int64(i)*minute), []Card{c}, freeLine(c)))
		committed(t, b)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "before=node-1 now=node-2"); got != tt.told {
			t.Errorf("start %d on %s: %s", i+1, tt.node, log.String())
		}
	}
}

func TestATenantCannotMakeTheLedgerGreatWithLabels(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	labels := map[string]string{"app": "trainer"}
	for i := range 1000 {
		labels[fmt.Sprintf("%0300d", i)] = strings.Repeat("x", 60)
	}
	o := seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p")))
	o.Pods = []Pod{{Namespace: "team", Name: "p", UID: "uid-p", Labels: labels}}
	a.Observe(o)
	if n := len(written(t, a)); n > 2*maxLabelBytes {
		t.Errorf("one pod takes %d bytes", n)
	}
	o.At = instant("b", minute)
	if got := kinds(a.Observe(o)); len(got) != 1 || got[0] != KindBeat {
		t.Errorf("what was left out of it is told again: %v", got)
	}
}

func TestAProofThatComesLateIsForTheMemoryThatWasBooked(t *testing.T) {
	small, great := a100(0), a100(0)
	small.Memory, great.Memory = 40_000, 80_000
	for _, tt := range []struct {
		before, after Card
		want          int64
	}{{small, great, 40_000}, {great, small, 40_000}, {small, small, 40_000}} {
		a := begun(instant("b", 0))
		watched(a, tt.before, 0, minute, wholeLine(tt.before, pod("p")))
		a.Begin(Begin{LedgerID: "ledger"}, instant("b", 2*minute))
		a.Observe(seen(instant("b", 2*minute), []Card{tt.before}, wholeLine(tt.before, nameless(pod("p")))))
		a.Observe(seen(instant("b", 2*minute), []Card{tt.after}, wholeLine(tt.after, pod("p"))))
		totals := a.Totals()
		wantGPU(t, "corrected", totals.Cards[0].Corrected[sharing.CauseUnobserved].GPU, minute)
		wantGPU(t, "corrected memory", totals.Cards[0].Corrected[sharing.CauseUnobserved].Memory, minute*tt.want)
		if err := checkConservation(totals); err != nil {
			t.Error(err)
		}
	}
}
