// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestWhatIsHeldIsChargedFromTheTickThatSeesItToTheTickThatDoesNot(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	got := kinds(a.Observe(seen(instant("b", 10*second), []Card{c}, freeLine(c))))
	if diff := cmp.Diff([]Kind{KindCard, KindOpen}, got); diff != "" {
		t.Error(diff)
	}
	got = kinds(a.Observe(seen(instant("b", 20*second), []Card{c}, wholeLine(c, pod("train")))))
	if diff := cmp.Diff([]Kind{KindClose, KindOpen}, got); diff != "" {
		t.Error(diff)
	}
	got = kinds(a.Observe(seen(instant("b", 30*second), []Card{c}, wholeLine(c, pod("train")))))
	if diff := cmp.Diff([]Kind{KindBeat}, got); diff != "" {
		t.Error(diff)
	}
	a.Observe(seen(instant("b", 37*second), []Card{c}, freeLine(c)))
	a.Observe(seen(instant("b", 40*second), []Card{c}, freeLine(c)))
	totals := a.Totals()
	wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, 30*second)
	wantGPU(t, "allocated", totals.Cards[0].Allocated.GPU, 17*second)
	wantGPU(t, "free", totals.Cards[0].Unallocated[sharing.CauseFree].GPU, 13*second)
	wantGPU(t, "the namespace", seriesTotal(totals, "team").GPU, 17*second)
	wantGPU(t, "the namespace's memory", seriesTotal(totals, "team").Memory, 17*second*81920)
	wantGPU(t, "the pod", podTotalOf(totals, "train", "uid-train").GPU, 17*second)
	if p := totals.Pods[0]; p.Ended != epoch+37*second {
		t.Errorf("the pod ended at %d", p.Ended-epoch)
	}
	if at := a.TotalsAt(50 * second); !at.Cards[0].Capacity.GPU.Equal(fraction(40*second, 1)) || at.At.Wall != epoch+50*second {
		t.Errorf("ten seconds later: %+v", at.Cards[0])
	}
	wantGPU(t, "capacity at an earlier moment", a.TotalsAt(5 * second).Cards[0].Capacity.GPU, 30*second)
}

func TestCountersAreBornAtZero(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", hour), []Card{c}, seatLine(c, pod("p"), 1, 2), restLine(c, sharing.CauseUnrequested, fraction(1, 2), fraction(1, 2))))
	totals := a.Totals()
	if len(totals.Series) != 1 || len(totals.Pods) != 1 || len(totals.Cards) != 1 {
		t.Fatalf("%+v", totals)
	}
	if !totals.Series[0].GPU.IsZero() || !totals.Pods[0].GPU.IsZero() || !totals.Cards[0].Capacity.GPU.IsZero() {
		t.Errorf("not zero: %+v", totals)
	}
	if _, there := totals.Cards[0].Unallocated[sharing.CauseUnrequested]; !there {
		t.Error("the cause is not there")
	}
}

func TestALineEndsAndBeginsWithEveryDifference(t *testing.T) {
	c, p := a100(0), pod("p")
	tests := []struct {
		name string
		next Line
		why  string
	}{
		{"another pod", wholeLine(c, pod("q")), CloseEnded},
		{"the same name again", wholeLine(c, sharing.Holder{Namespace: "team", Pod: "p", Container: "main", PodUID: "other"}), CloseEnded},
		{"a UID that is not known any more", wholeLine(c, nameless(p)), CloseChanged},
		{"fewer seats", seatLine(c, p, 1, 1), CloseChanged},
		{"out of service, with its holder", Line{
			Card: c.UUID, Device: c.UUID, GPUInstance: gpu.NoInstance, Cause: sharing.CauseUnhealthy, Holder: p,
			Weight: sharing.One(), Part: sharing.One(), Memory: sharing.One(),
		}, CloseChanged},
		{"nobody", freeLine(c), CloseEnded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			a.Observe(seen(instant("b", 1), []Card{c}, wholeLine(c, p)))
			records := a.Observe(seen(instant("b", 2), []Card{c}, tt.next))
			closed, ok := find[*Close](records)
			if !ok || closed.ID != 1 || closed.Why != tt.why {
				t.Errorf("%+v of %v, want %s", closed, kinds(records), tt.why)
			}
			if opened, ok := find[*Open](records); !ok || opened.ID != 2 {
				t.Errorf("%+v of %v", opened, kinds(records))
			}
		})
	}
}

func TestARestartBridgesOnlyWhatIsProven(t *testing.T) {
	c := a100(0)
	half := fraction(1, 2)
	rest := restLine(c, sharing.CauseUnrequested, half, half)
	tests := []struct {
		name          string
		before, after []Line
		// bridged is what of one minute's gap is charged to the pod.
		bridged int64
	}{
		{"the same pod on the same device", []Line{wholeLine(c, pod("p"))}, []Line{wholeLine(c, pod("p"))}, minute},
		{"no UID before", []Line{wholeLine(c, nameless(pod("p")))}, []Line{wholeLine(c, pod("p"))}, 0},
		{"no UID after", []Line{wholeLine(c, pod("p"))}, []Line{wholeLine(c, nameless(pod("p")))}, 0},
		{"no UID at all", []Line{wholeLine(c, nameless(pod("p")))}, []Line{wholeLine(c, nameless(pod("p")))}, 0},
		{"it is gone", []Line{wholeLine(c, pod("p"))}, []Line{freeLine(c)}, 0},
		{"it came", []Line{freeLine(c)}, []Line{wholeLine(c, pod("p"))}, 0},
		{"nobody on both sides", []Line{freeLine(c)}, []Line{freeLine(c)}, 0},
		{"a smaller part after", []Line{seatLine(c, pod("p"), 1, 2), rest}, []Line{seatLine(c, pod("p"), 1, 4), restLine(c, sharing.CauseUnrequested, fraction(3, 4), fraction(3, 4))}, minute / 4},
		{"a greater part after", []Line{seatLine(c, pod("p"), 1, 4), restLine(c, sharing.CauseUnrequested, fraction(3, 4), fraction(3, 4))}, []Line{seatLine(c, pod("p"), 1, 2), rest}, minute / 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			a.Observe(seen(instant("b", 0), []Card{c}, tt.before...))
			a = reopened(t, a)
			a.Begin(Begin{LedgerID: "ledger"}, instant("b", 30*second))
			wantGPU(t, "capacity before anybody looked", a.TotalsAt(40 * second).Cards[0].Capacity.GPU, 0)
			records := a.Observe(seen(instant("b", minute), []Card{c}, tt.after...))
			gap, ok := find[*Gap](records)
			if !ok || gap.Reason != GapRestart || gap.Span != minute || gap.Wall != minute {
				t.Fatalf("%+v of %v", gap, kinds(records))
			}
			totals := a.Totals()
			wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, minute)
			wantGPU(t, "the pod", seriesTotal(totals, "team").GPU, tt.bridged)
			wantGPU(t, "unobserved", totals.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, minute-tt.bridged)
			if totals.Gaps[GapRestart] != minute {
				t.Errorf("gaps: %v", totals.Gaps)
			}
			if err := checkConservation(totals); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestALineThatIsBridgedGoesOnUnderItsNumber(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p"))))
	a.Begin(Begin{LedgerID: "ledger"}, instant("b", minute))
	if got := kinds(a.Observe(seen(instant("b", minute), []Card{c}, wholeLine(c, pod("p"))))); !slices.Equal(got, []Kind{KindGap}) {
		t.Errorf("%v", got)
	}
}

// reopened is an account as another process reads it.
func reopened(t *testing.T, a *Account) *Account {
	t.Helper()
	b := NewAccount()
	if err := b.UnmarshalJSON([]byte(written(t, a))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(written(t, a), written(t, b)); diff != "" {
		t.Fatal(diff)
	}
	return b
}

func TestARebootEndsAllAndCountsFromTheStartOfTheMachine(t *testing.T) {
	c, gone, came := a100(0), a100(1), a100(2)
	a := begun(instant("b", hour))
	a.Observe(seen(instant("b", hour), []Card{c, gone}, wholeLine(c, pod("p")), freeLine(gone)))
	a.Observe(seen(instant("b", hour+minute), []Card{c, gone}, wholeLine(c, pod("p")), freeLine(gone)))
	after := Instant{BootID: "next", Boot: 90 * second, Wall: epoch + 2*hour}
	a.Begin(Begin{LedgerID: "ledger"}, after)
	records := a.Observe(seen(after, []Card{c, came}, wholeLine(c, pod("p")), freeLine(came)))
	gap, ok := find[*Gap](records)
	if !ok || gap.Reason != GapReboot || gap.Span != 90*second || gap.Wall != 59*minute || len(gap.Bridged) > 0 || !slices.Equal(gap.Cards, []int{1}) {
		t.Fatalf("%+v of %v", gap, kinds(records))
	}
	totals := a.Totals()
	wantGPU(t, "the pod", seriesTotal(totals, "team").GPU, minute)
	wantGPU(t, "unobserved", totals.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, 90*second)
	wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, minute+90*second)
	wantGPU(t, "capacity of the card that is gone", totals.Cards[1].Capacity.GPU, minute)
	wantGPU(t, "capacity of the card that came", totals.Cards[2].Capacity.GPU, 0)
	if totals.Cards[1].Present || !totals.Cards[2].Present {
		t.Errorf("present: %+v", totals.Cards)
	}
}

func TestAMeterThatDoesNotTickForLongHasAGap(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", 0), []Card{c}, freeLine(c)))
	a.Observe(seen(instant("b", StallAfter.Milliseconds()), []Card{c}, freeLine(c)))
	if gaps := a.Totals().Gaps; gaps[GapStall] != 0 {
		t.Errorf("%v", gaps)
	}
	a.Observe(seen(instant("b", 2*StallAfter.Milliseconds()+1), []Card{c}, freeLine(c)))
	totals := a.Totals()
	if totals.Gaps[GapStall] != StallAfter.Milliseconds()+1 {
		t.Errorf("%v", totals.Gaps)
	}
	wantGPU(t, "unobserved", totals.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, StallAfter.Milliseconds()+1)
}

func TestNoClockChargesAnythingTwice(t *testing.T) {
	c := a100(0)
	line := wholeLine(c, pod("p"))
	tests := []struct {
		name  string
		ticks []Instant
		// again says before which ticks another meter begins.
		again []int
		want  int64
	}{
		{"the wall clock goes back an hour", []Instant{{"b", 0, epoch}, {"b", 10_000, epoch - hour}, {"b", 20_000, epoch - hour + 10_000}}, nil, 20_000},
		{"the wall clock goes ahead a year", []Instant{{"b", 0, epoch}, {"b", 10_000, epoch + 365*24*hour}, {"b", 20_000, epoch}}, nil, 20_000},
		{"the boot clock goes back and on", []Instant{{"b", 100_000, epoch}, {"b", 110_000, epoch}, {"b", 50_000, epoch}, {"b", 120_000, epoch}}, nil, 20_000},
		{"the boot clock goes back over a restart", []Instant{{"b", 100_000, epoch}, {"b", 110_000, epoch}, {"b", 50_000, epoch}, {"b", 60_000, epoch}}, []int{2}, 10_000},
		{"a boot that nobody knows, in one meter's life", []Instant{{"", 0, epoch}, {"", 10_000, epoch}}, nil, 10_000},
		{"a boot that nobody knows, over a restart", []Instant{{"", 0, epoch}, {"", 10_000, epoch}, {"", 500_000, epoch}, {"", 501_000, epoch}}, []int{2}, 11_000},
		{"a boot that nobody knows, and its clock began anew", []Instant{{"", 100_000, epoch}, {"", 110_000, epoch}, {"", 5, epoch}, {"", 1005, epoch}}, []int{2}, 11_000},
		{"a boot that was known once", []Instant{{"b", 0, epoch}, {"", 10_000, epoch}, {"b", 20_000, epoch}, {"b", 21_000, epoch}}, []int{1, 2}, 1_000},
		{"clocks of nonsense", []Instant{{"b", -5, -1 << 63}, {"b", 10_000, 1<<63 - 1}, {"b", 11_000, 0}}, nil, 11_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(tt.ticks[0])
			for i, at := range tt.ticks {
				if slices.Contains(tt.again, i) {
					a.Begin(Begin{LedgerID: "ledger"}, at)
				}
				if refused, there := find[*FactSeen](a.Observe(seen(at, []Card{c}, line))); there {
					t.Errorf("tick %d: %+v", i, refused)
				}
			}
			totals := a.Totals()
			wantGPU(t, "the pod", seriesTotal(totals, "team").GPU, tt.want)
			if err := checkConservation(totals); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestABootClockThatGoesBackIsToldAsAGapOfNoLength(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", hour))
	a.Observe(seen(instant("b", hour), []Card{c}, wholeLine(c, pod("p"))))
	gap, ok := find[*Gap](a.Observe(seen(instant("b", minute), []Card{c}, wholeLine(c, pod("p")))))
	if !ok || gap.Reason != GapStall || gap.Span != 0 || len(gap.Bridged) != 1 {
		t.Errorf("%+v", gap)
	}
	// It is told once, and not with every tick until the clock is where it was.
	if got := kinds(a.Observe(seen(instant("b", 2*minute), []Card{c}, wholeLine(c, pod("p"))))); !slices.Equal(got, []Kind{KindBeat}) {
		t.Errorf("%v", got)
	}
}

func TestACardWhoseLinesAreNotOneCardIsSaidSoAndNobodyPaysForIt(t *testing.T) {
	c := a100(0)
	half, third := fraction(1, 2), fraction(1, 3)
	tests := []struct {
		name                string
		lines               []Line
		lacks               sharing.Fraction
		held, unattributed  int64
		heldMemory, restMem int64
	}{
		{"nothing is said", nil, sharing.One(), 0, 6000, 0, 6000},
		{"a half is missing", []Line{seatLine(c, pod("p"), 1, 2)}, half, 3000, 3000, 3000, 3000},
		{"memory is missing", []Line{migLine(c, 1, pod("p"), sharing.One(), third)}, fraction(2, 3), 6000, 0, 2000, 4000},
		{"twice the card", []Line{wholeLine(c, pod("p")), wholeLine(c, pod("q"))}, fraction(-1, 1), 0, 6000, 0, 6000},
		{"twice the memory", []Line{migLine(c, 1, pod("p"), half, sharing.One()), migLine(c, 2, pod("q"), half, half)}, fraction(-1, 2), 0, 6000, 0, 6000},
		{"a part below zero", []Line{wholeLine(c, pod("p")), migLine(c, 2, pod("q"), fraction(-1, 2), half), migLine(c, 3, pod("r"), half, half)}, fraction(-3, 2), 0, 6000, 0, 6000},
		{"the same line twice", []Line{seatLine(c, pod("p"), 1, 2), seatLine(c, pod("p"), 1, 2)}, sharing.Fraction{}, 6000, 0, 6000, 0},
		{"held by nobody", []Line{wholeLine(c, sharing.Holder{})}, sharing.Fraction{}, 0, 6000, 0, 6000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			c := c
			c.Memory = 1
			a.Observe(seen(instant("b", 0), []Card{c}, tt.lines...))
			if got := a.Unbalanced()[c.UUID]; !got.Equal(tt.lacks) {
				t.Errorf("lacks %s, want %s", got, tt.lacks)
			}
			a.Observe(seen(instant("b", 6000), []Card{c}, tt.lines...))
			totals := a.Totals()
			wantGPU(t, "held", totals.Cards[0].Allocated.GPU, tt.held)
			wantGPU(t, "unattributed", totals.Cards[0].Unallocated[sharing.CauseUnattributed].GPU, tt.unattributed)
			wantGPU(t, "memory held", totals.Cards[0].Allocated.Memory, tt.heldMemory)
			wantGPU(t, "memory unattributed", totals.Cards[0].Unallocated[sharing.CauseUnattributed].Memory, tt.restMem)
			wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, 6000)
			if err := checkConservation(totals); err != nil {
				t.Error(err)
			}
			a.Observe(seen(instant("b", 6000), []Card{c}, freeLine(c)))
			if got, there := a.Unbalanced()[c.UUID]; !there || !got.IsZero() {
				t.Errorf("all is well, and %s lacks", got)
			}
		})
	}
}

func TestLinesOfACardThatIsNotListedCountAsThoseOfACard(t *testing.T) {
	a := begun(instant("b", 0))
	stranger := Card{UUID: "GPU-x"}
	a.Observe(seen(instant("b", 0), nil, wholeLine(stranger, pod("p")), wholeLine(Card{}, pod("q"))))
	a.Observe(seen(instant("b", second), nil, wholeLine(stranger, pod("p")), wholeLine(Card{}, pod("q"))))
	totals := a.Totals()
	if len(totals.Cards) != 1 {
		t.Fatalf("%+v", totals.Cards)
	}
	wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, second)
}

func TestACardKeepsItsNameWhenItDoesNotTellItAnyMore(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p"))))
	lost := Card{UUID: c.UUID, Index: 3}
	a.Observe(seen(instant("b", second), []Card{lost}, wholeLine(c, pod("p"))))
	other := Card{UUID: c.UUID, Index: 3, Model: "A100X"}
	a.Observe(seen(instant("b", 2*second), []Card{other}, wholeLine(c, pod("p"))))
	a.Observe(seen(instant("b", 5*second), []Card{other}, wholeLine(c, pod("p"))))
	totals := a.Totals()
	want := Card{UUID: c.UUID, Index: 3, Model: "A100X", Memory: c.Memory}
	if totals.Cards[0].Card != want {
		t.Errorf("%+v", totals.Cards[0].Card)
	}
	got := map[string]string{}
	for _, s := range totals.Series {
		got[s.Model] = s.GPU.String()
	}
	if diff := cmp.Diff(map[string]string{"A100": "2000", "A100X": "3000"}, got); diff != "" {
		t.Error(diff)
	}
	if err := checkConservation(totals); err != nil {
		t.Error(err)
	}
}
