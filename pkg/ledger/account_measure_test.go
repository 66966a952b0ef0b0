// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// metered is an Observation with what one card's energy counter shows.
func metered(at Instant, c Card, counter int64, lines ...Line) Observation {
	o := seen(at, []Card{c}, lines...)
	o.Energy = map[gpu.UUID]int64{c.UUID: counter}
	return o
}

// wantEnergy compares what one card took, who is charged for it and what nobody is.
func wantEnergy(t *testing.T, a *Account, card, held int64, causes map[sharing.Cause]int64) {
	t.Helper()
	totals := a.Totals()
	wantGPU(t, "the card's energy", totals.Cards[0].Capacity.Energy, card)
	wantGPU(t, "energy held", totals.Cards[0].Allocated.Energy, held)
	wantGPU(t, "the namespace's energy", seriesTotal(totals, "team").Energy, held)
	for _, cause := range sharing.Causes() {
		wantGPU(t, "energy "+string(cause), totals.Cards[0].Unallocated[cause].Energy, causes[cause])
	}
	if err := checkConservation(totals); err != nil {
		t.Error(err)
	}
}

func TestEnergyGoesToThoseWhoHeldTheCardWhenItWasTaken(t *testing.T) {
	c := a100(0)
	rest := restLine(c, sharing.CauseUnrequested, fraction(3, 4), fraction(3, 4))
	a := begun(instant("b", 0))
	a.Observe(metered(instant("b", 0), c, 5_000_000, wholeLine(c, pod("p"))))
	a.Observe(metered(instant("b", second), c, 5_000_400, wholeLine(c, pod("p"))))
	wantEnergy(t, a, 0, 0, nil)
	a.Observe(metered(instant("b", 2*second), c, 5_001_000, seatLine(c, pod("q"), 1, 4), rest))
	wantEnergy(t, a, 1000, 1000, nil)
	a.Observe(metered(instant("b", 3*second), c, 5_001_400, freeLine(c)))
	wantEnergy(t, a, 1400, 1100, map[sharing.Cause]int64{sharing.CauseUnrequested: 300})
	a.Observe(metered(instant("b", 2*minute), c, 5_002_400, freeLine(c)))
	wantEnergy(t, a, 2400, 1100, map[sharing.Cause]int64{sharing.CauseUnrequested: 300, sharing.CauseFree: 1000})
	basis := a.Totals().Cards[0].AllocatedEnergy
	wantGPU(t, "energy of the whole card", basis[BasisDevice], 1000)
	wantGPU(t, "energy of a part", basis[BasisShare], 100)
}

func TestACounterThatBeginsAnewIsNotTakenForEnergy(t *testing.T) {
	c := a100(0)
	line := wholeLine(c, pod("p"))
	a := begun(instant("b", 0))
	for i, counter := range []int64{1000, 1500, 100, 300, -7, 1 << 62, 800, 1 << 50, 1<<50 + 40} {
		a.Observe(metered(instant("b", int64(i)*second), c, counter, line))
	}
	a.Observe(seen(instant("b", 9*second), []Card{c}, line))
	a.Observe(metered(instant("b", 2*minute), c, 1<<50+100, line))
	// 500 before the new driver, 200 and 500 after it; then a counter of nonsense goes on by 100.
	wantEnergy(t, a, 1300, 1300, nil)
}

func TestTheEnergyOfAGapGoesToWhatIsBridged(t *testing.T) {
	c := a100(0)
	half := fraction(1, 2)
	lines := []Line{seatLine(c, pod("p"), 1, 2), seatLine(c, nameless(pod("q")), 1, 2)}
	for _, tt := range []struct {
		name    string
		after   Instant
		counter int64
		card    int64
	}{
		{"a restart", instant("b", minute), 1600, 600},
		{"a restart and a new driver", instant("b", minute), 300, 0},
		{"another boot", Instant{BootID: "next", Boot: minute, Wall: epoch + minute}, 1600, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			a.Observe(metered(instant("b", 0), c, 1000, lines...))
			a = reopened(t, a)
			a.Begin(Begin{LedgerID: "ledger"}, tt.after)
			a.Observe(metered(tt.after, c, tt.counter, lines...))
			// The counter's first showing was in no record: it was too young.
			wantEnergy(t, a, 0, 0, nil)

			a = begun(instant("b", 0))
			a.Observe(metered(instant("b", 0), c, 900, lines...))
			a.Observe(metered(instant("b", 0), c, 1000, lines[0], restLine(c, sharing.CauseUnrequested, half, half)))
			a.Observe(metered(instant("b", 0), c, 1000, lines...))
			before := a.Totals().Cards[0].Capacity.Energy
			a = reopened(t, a)
			a.Begin(Begin{LedgerID: "ledger"}, tt.after)
			a.Observe(metered(tt.after, c, tt.counter, lines...))
			got := a.Totals().Cards[0]
			wantGPU(t, "the gap's energy", got.Capacity.Energy.Sub(before), tt.card)
			wantGPU(t, "unobserved", got.Unallocated[sharing.CauseUnobserved].Energy, tt.card/2)
			if err := checkConservation(a.Totals()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBusyTimeIsOfThoseWhoHoldTheDevice(t *testing.T) {
	c := a100(0)
	mig := migLine(c, 1, pod("m"), fraction(1, 4), fraction(1, 8))
	half := mig
	half.Mode, half.Of, half.Part, half.Memory = sharing.ModeMIGShared, 2, fraction(1, 8), fraction(1, 16)
	unhealthy := wholeLine(c, pod("p"))
	unhealthy.Cause = sharing.CauseUnhealthy
	tests := []struct {
		name   string
		device gpu.UUID
		busy   int64
		lines  []Line
		want   map[string]map[Basis]int64
	}{
		{"a whole card", c.UUID, 500_000, []Line{wholeLine(c, pod("p"))}, map[string]map[Basis]int64{"p": {BasisEngine: 30_000}}},
		{"more than busy", c.UUID, 5_000_000, []Line{wholeLine(c, pod("p"))}, map[string]map[Basis]int64{"p": {BasisEngine: 60_000}}},
		{"less than idle", c.UUID, -5, []Line{wholeLine(c, pod("p"))}, map[string]map[Basis]int64{"p": {BasisEngine: 0}}},
		{"idle all the while", c.UUID, 0, []Line{seatLine(c, pod("p"), 1, 4)}, map[string]map[Basis]int64{"p": {BasisEqual: 0}}},
		{"a MIG device counts as its part of the card", mig.Device, 1_000_000, []Line{mig}, map[string]map[Basis]int64{"m": {BasisEngine: 15_000}}},
		{"a seat alone on a MIG device used what it holds at most, and that is an estimate", mig.Device, 1_000_000, []Line{half}, map[string]map[Basis]int64{"m": {BasisEqual: 7_500}}},
		{"a seat alone may be all that is busy", mig.Device, 400_000, []Line{half}, map[string]map[Basis]int64{"m": {BasisEqual: 6_000}}},
		{"seats are given by number", c.UUID, 600_000, []Line{seatLine(c, pod("p"), 1, 4), seatLine(c, pod("q"), 2, 4)}, map[string]map[Basis]int64{"p": {BasisEqual: 12_000}, "q": {BasisEqual: 24_000}}},
		{"what is busy beyond the seats that are held is nobody's", c.UUID, 1_000_000, []Line{seatLine(c, pod("p"), 1, 4), seatLine(c, pod("q"), 2, 4)}, map[string]map[Basis]int64{"p": {BasisEqual: 15_000}, "q": {BasisEqual: 30_000}}},
		{"who is not charged uses nothing", c.UUID, 1_000_000, []Line{unhealthy}, nil},
		{"a card in MIG mode is no device", c.UUID, 1_000_000, []Line{mig}, map[string]map[Basis]int64{"m": {}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			for at := int64(0); at <= minute; at += 10 * second {
				o := seen(instant("b", at), []Card{c}, tt.lines...)
				o.Busy, o.Basis = map[gpu.UUID]int64{tt.device: tt.busy}, BasisEngine
				a.Observe(o)
			}
			totals := a.Totals()
			if len(totals.Pods) != len(tt.want) {
				t.Errorf("%d pods", len(totals.Pods))
			}
			for _, p := range totals.Pods {
				if len(p.Used) != len(tt.want[p.PodSeries.Pod]) {
					t.Errorf("%s used %v", p.PodSeries.Pod, p.Used)
				}
				for basis, want := range tt.want[p.PodSeries.Pod] {
					wantGPU(t, "used by "+p.PodSeries.Pod, p.Used[basis], want)
				}
			}
		})
	}
}

func TestBusyTimeIsWrittenBeforeItsHolderGoes(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	for at, name := range []string{"p", "p", "q", "q"} {
		o := seen(instant("b", int64(at)*second), []Card{c}, wholeLine(c, pod(name)))
		o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 1_000_000}, BasisUtil
		a.Observe(o)
	}
	o := seen(instant("b", 4*second), []Card{c}, freeLine(c))
	o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 1_000_000}, BasisEngine
	a.Observe(o)
	want := map[string]map[Basis]int64{"p": {BasisUtil: 2 * second}, "q": {BasisUtil: second, BasisEngine: second}}
	for _, p := range a.Totals().Pods {
		for _, basis := range []Basis{BasisUtil, BasisEngine} {
			wantGPU(t, "used by "+p.PodSeries.Pod, p.Used[basis], want[p.PodSeries.Pod][basis])
		}
	}
}

func TestBusyTimeStaysWithThoseWhoHeldTheDeviceThen(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	two := []Line{seatLine(c, pod("p"), 1, 2), seatLine(c, pod("q"), 1, 2)}
	one := []Line{seatLine(c, pod("p"), 1, 2), restLine(c, sharing.CauseUnrequested, fraction(1, 2), fraction(1, 2))}
	for at, lines := range [][]Line{two, two, one, one, two, two} {
		o := seen(instant("b", int64(at)*minute), []Card{c}, lines...)
		o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 1_000_000}, BasisEngine
		a.Observe(o)
		a = reopenedWatch(t, a)
	}
	// Two minutes of two, two of one alone, one of two. One alone is credited with its half.
	want := map[string]int64{"p": 5 * minute / 2, "q": 3 * minute / 2}
	for _, p := range a.Totals().Pods {
		wantGPU(t, "used by "+p.PodSeries.Pod, p.Used[BasisEqual], want[p.PodSeries.Pod])
	}
	wantGPU(t, "used by the namespace", a.Totals().Series[0].Used[BasisEqual], 4*minute)
}

func TestAQuietHourIsNoCreditForTheMinuteAfterIt(t *testing.T) {
	c := a100(0)
	lines := []Line{seatLine(c, pod("p"), 1, 4), restLine(c, sharing.CauseUnrequested, fraction(3, 4), fraction(3, 4))}
	a := begun(instant("b", 0))
	for at := int64(0); at <= hour+5*minute; at += minute {
		o := metered(instant("b", at), c, 100*at, lines...)
		o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 0}, BasisEngine
		if at > hour {
			o.Busy[c.UUID] = 1_000_000
		}
		a.Observe(o)
		a = reopenedWatch(t, a)
	}
	wantGPU(t, "used of five minutes", a.Totals().Series[0].Used[BasisEqual], 5*minute/4)
}

func TestUseIsCreditedAfterAStartOfTheMachineAsBefore(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", hour))
	for _, boot := range []string{"b", "next"} {
		start := map[string]int64{"b": hour, "next": 0}[boot]
		if boot == "next" {
			a.Begin(Begin{LedgerID: "ledger"}, instant(boot, start))
		}
		for at := start; at <= start+2*minute; at += 10 * second {
			o := metered(instant(boot, at), c, at, wholeLine(c, pod("p")))
			o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 500_000}, BasisEngine
			a.Observe(o)
		}
	}
	wantGPU(t, "used in twice two minutes", a.Totals().Series[0].Used[BasisEngine], 2*minute)
}

func TestAMinuteOfUseIsWhatItWasWhenItsMeasureChanges(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	for i := range int64(10) {
		o := seen(instant("b", i*second), []Card{c}, wholeLine(c, pod("p")))
		o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 1_000_000}, BasisEngine
		if i%2 == 1 {
			o.Basis = BasisUtil
		}
		a.Observe(o)
	}
	a.Observe(seen(instant("b", 10*second), []Card{c}, freeLine(c)))
	used := a.Totals().Series[0].Used
	wantGPU(t, "used by one measure", used[BasisUtil], 5*second)
	wantGPU(t, "used by the other", used[BasisEngine], 4*second)
}

func TestWhatIsMeasuredIsWrittenOnceAMinute(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	var uses int
	for at := int64(0); at < 10*minute; at += 5 * second {
		o := metered(instant("b", at), c, at, wholeLine(c, pod("p")))
		o.Busy, o.Basis = map[gpu.UUID]int64{c.UUID: 1}, BasisEngine
		if _, used := find[*Use](a.Observe(o)); used {
			uses++
		}
	}
	if uses < 9 || uses > 11 {
		t.Errorf("%d times in ten minutes", uses)
	}
}
