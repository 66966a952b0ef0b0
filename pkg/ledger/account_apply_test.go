// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestARecordThatCannotFollowIsRefusedAndChangesNothing(t *testing.T) {
	c := a100(0)
	line := wholeLine(c, pod("q"))
	other := openOf(&line)
	other.ID, other.Card = 9, 1
	with := func(change func(*Open)) *Open {
		o := other
		change(&o)
		return &o
	}
	later := instant("b", hour+second)
	tests := []struct {
		name string
		at   Instant
		body Body
		says string
	}{
		{"nothing", later, nil, "says nothing"},
		{"another kind", later, strange{}, "newer"},
		{"time goes back", instant("b", hour-1), &Beat{}, "goes back"},
		{"no time", Instant{BootID: "b", Boot: -1}, &Beat{}, "time is none"},
		{"another boot", instant("c", hour), &Beat{}, "no gap says so"},
		{"another ledger", later, &Begin{LedgerID: "x", BootID: "b"}, "ledger"},
		{"a begin of two boots", later, &Begin{LedgerID: "ledger", BootID: "x"}, "boot"},
		{"a begin in the past", instant("b", 0), &Begin{LedgerID: "ledger", BootID: "b"}, "goes back"},
		{"a card without a name", later, &CardSeen{N: 2}, "no UUID"},
		{"a card out of turn", later, &CardSeen{N: 3, Card: a100(1)}, "2 is next"},
		{"a card of two numbers", later, &CardSeen{N: 2, Card: c}, "number 1"},
		{"a card of negative memory", later, &CardSeen{N: 2, Card: Card{UUID: "x", Memory: -1}}, "MiB"},
		{"a line of no card", later, with(func(o *Open) { o.Card = 2 }), "nobody introduced"},
		{"a line of a negative card", later, with(func(o *Open) { o.Card = -1 }), "nobody introduced"},
		{"a line's number again", later, with(func(o *Open) { o.ID = 1 }), "there before"},
		{"a line that is open", later, with(func(o *Open) { o.Pod, o.PodUID = "p", "uid-p" }), "is open"},
		{"a negative part", later, with(func(o *Open) { o.Part = "-1/2" }), "no part"},
		{"more than a card", later, with(func(o *Open) { o.Memory = "3/2" }), "no part"},
		{"a part that is none", later, with(func(o *Open) { o.Part = "x" }), "parse"},
		{"a weight that is none", later, with(func(o *Open) { o.Weight = "2" }), "no part"},
		{"negative seats", later, with(func(o *Open) { o.Seats = -1 }), "seats"},
		{"a line that is not open", later, &Close{ID: 7}, "not open"},
		{"energy of no card", later, &Use{Energy: map[int]int64{2: 1}}, "energy"},
		{"negative energy", later, &Use{Energy: map[int]int64{1: -1}}, "energy"},
		{"negative busy time", later, &Use{Busy: map[gpu.UUID]int64{c.UUID: -1}}, "busy"},
		{"a gap of no reason", later, &Gap{Reason: "x"}, "no reason"},
		{"a gap of more than time", later, &Gap{Reason: GapStall, Span: second + 1}, "possible"},
		{"a negative gap", later, &Gap{Reason: GapStall, Span: -1}, "possible"},
		{"a gap back in time", instant("b", 0), &Gap{Reason: GapStall}, "goes back"},
		{"a gap of a boot that has not begun", instant("c", second), &Gap{Reason: GapReboot}, "not begun"},
		{"a bridge of nothing", later, &Gap{Reason: GapStall, Bridged: []Bridge{{ID: 7, Part: "1", Memory: "1"}}}, "no open line"},
		{"a bridge twice", later, &Gap{Reason: GapStall, Bridged: []Bridge{{ID: 1, Part: "1", Memory: "1"}, {ID: 1, Part: "1", Memory: "1"}}}, "no open line"},
		{"a bridge of no part", later, &Gap{Reason: GapStall, Bridged: []Bridge{{ID: 1, Part: "", Memory: "1"}}}, "parse"},
		{"a bridge of more than it had", later, &Gap{Reason: GapStall, Bridged: []Bridge{{ID: 1, Part: "1", Memory: "1/1"}}, Cards: []int{1}}, "the boot is the same"},
		{"energy of a card of no lines", later, &Gap{Reason: GapStall, Energy: map[int]int64{7: 1}}, "energy"},
		{"lost records that charge", later, &Gap{Reason: GapLost, Span: 1}, "charge nothing"},
		{"a correction of no card", later, &Correction{Card: 2, To: other}, "card 2"},
		{"a correction of more than was booked", later, &Correction{Card: 1, To: other, From: sharing.CauseUnobserved, Span: 1, Part: "1", Memory: "1"}, "more off"},
		{"a correction that charges nobody", later, &Correction{Card: 1, To: *with(func(o *Open) { o.Cause = "free" }), Part: "1", Memory: "1"}, "charges nobody"},
		{"too many XIDs", later, &XIDSeen{GPU: c.UUID, Code: 31, Count: math.MaxUint64}, "64 bits"},
		{"a carry of another state", later, &Carry{State: json.RawMessage(`{"version":1}`)}, "another state"},
		{"a carry of nothing", later, &Carry{}, "read the state"},
	}
	a := begun(instant("b", 0))
	o := seen(instant("b", hour), []Card{c}, wholeLine(c, pod("p")))
	o.XIDs = map[XID]uint64{{GPU: c.UUID, Code: 31}: 1}
	a.Observe(o)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := written(t, a)
			err := a.Apply(Record{Seq: a.seq + 1, At: tt.at, Body: tt.body})
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
			if diff := cmp.Diff(before, written(t, a)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := a.Apply(Record{Seq: a.seq + 2, At: later, Body: &Beat{}}); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("a record is left out: %v", err)
	}
}

type strange struct{}

func (strange) Kind() Kind { return "strange" }

func TestACorrectionMayBeOfAPodThatIsGone(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p"))))
	a.Begin(Begin{LedgerID: "ledger"}, instant("b", minute))
	a.Observe(seen(instant("b", minute), []Card{c}, freeLine(c)))
	line := wholeLine(c, pod("q"))
	to := openOf(&line)
	to.ID, to.Card = 7, 1
	correction := &Correction{Card: 1, To: to, From: sharing.CauseUnobserved, Span: minute, Part: "1", Memory: "1"}
	if err := a.Apply(Record{Seq: a.seq + 1, At: a.at, Body: correction}); err != nil {
		t.Fatal(err)
	}
	wantGPU(t, "the pod", podTotalOf(reopened(t, a).Totals(), "q", "uid-q").GPU, minute)
	if err := a.Apply(Record{Seq: a.seq + 1, At: a.at, Body: correction}); err == nil {
		t.Error("the same time is charged twice")
	}
}

func TestNoTimePassesWhileLinesAreNotOneCard(t *testing.T) {
	c := a100(0)
	line := seatLine(c, pod("p"), 1, 2)
	o := openOf(&line)
	o.ID, o.Card = 1, 1
	a := begun(instant("b", 0))
	for _, body := range []Body{&CardSeen{N: 1, Card: c}, &o, &Beat{}} {
		if err := a.Apply(Record{Seq: a.seq + 1, At: instant("b", 0), Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Apply(Record{Seq: a.seq + 1, At: instant("b", 1), Body: &Beat{}}); err == nil || !strings.Contains(err.Error(), "add up") {
		t.Errorf("%v", err)
	}
	wantGPU(t, "capacity", a.TotalsAt(hour).Cards[0].Capacity.GPU, 0)
	// So it is after a crash within a commit: the next meter has a gap, in which all is told for.
	a.Begin(Begin{LedgerID: "ledger"}, instant("b", minute))
	a.Observe(seen(instant("b", minute), []Card{c}, line, restLine(c, sharing.CauseUnrequested, fraction(1, 2), fraction(1, 2))))
	totals := a.Totals()
	wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, minute)
	wantGPU(t, "held", totals.Cards[0].Allocated.GPU, minute/2)
	if err := checkConservation(totals); err != nil {
		t.Error(err)
	}
}

func TestABeginWithoutItsGapLetsNoTimePass(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", 0))
	a.Observe(seen(instant("b", 0), []Card{c}, freeLine(c)))
	a.Begin(Begin{LedgerID: "ledger"}, instant("b", minute))
	if err := a.Apply(Record{Seq: a.seq + 1, At: instant("b", minute), Body: &Beat{}}); err == nil || !strings.Contains(err.Error(), "no gap") {
		t.Errorf("%v", err)
	}
	a.Begin(Begin{LedgerID: "ledger"}, instant("b", 2*minute))
	a.Observe(seen(instant("b", 3*minute), []Card{c}, freeLine(c)))
	wantGPU(t, "unobserved", a.Totals().Cards[0].Unallocated[sharing.CauseUnobserved].GPU, 3*minute)
}

func TestLostRecordsAreNotedAndTheNextGapTellsTheRest(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", hour))
	a.Observe(seen(instant("b", hour), []Card{c}, wholeLine(c, pod("p"))))
	after := Instant{BootID: "next", Boot: minute, Wall: epoch + 2*hour}
	records := a.Lost(after)
	records = append(records, a.Begin(Begin{LedgerID: "ledger"}, after)...)
	records = append(records, a.Observe(seen(after, []Card{c}, wholeLine(c, pod("p"))))...)
	if diff := cmp.Diff([]Kind{KindGap, KindBegin, KindGap, KindOpen}, kinds(records)); diff != "" {
		t.Error(diff)
	}
	if lost, ok := find[*Gap](records); !ok || lost.Reason != GapLost || lost.Wall != hour || records[0].At.BootID != "b" {
		t.Errorf("%+v", records[0])
	}
	totals := a.Totals()
	wantGPU(t, "held", totals.Cards[0].Allocated.GPU, 0)
	wantGPU(t, "unobserved", totals.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, minute)
}

func TestTheBootOfEveryRecordIsThatOfTheLastBegin(t *testing.T) {
	c := a100(0)
	a := begun(instant("b", hour))
	a.Observe(seen(instant("b", hour), []Card{c}, freeLine(c)))
	records := a.Observe(seen(instant("next", minute), []Card{c}, freeLine(c)))
	if diff := cmp.Diff([]Kind{KindBegin, KindGap, KindOpen}, kinds(records)); diff != "" {
		t.Error(diff)
	}
	if b, _ := find[*Begin](records); b.BootID != "next" || b.LedgerID != "ledger" || b.Policy != "blend" {
		t.Errorf("%+v", b)
	}
}

func TestAStateOfALaterVersionIsNotCalledCorrupt(t *testing.T) {
	err := NewAccount().UnmarshalJSON([]byte(`{"version":2,"cards":7}`))
	if !errors.Is(err, errNewer) {
		t.Errorf("%v", err)
	}
}

func FuzzAStateIsReadAsItIsWrittenOrNotAtAll(f *testing.F) {
	c := a100(0)
	a := begun(instant("b", 0))
	o := metered(instant("b", hour), c, 5, wholeLine(c, pod("p")))
	o.XIDs = map[XID]uint64{{GPU: c.UUID, Code: 31}: 1}
	a.Observe(o)
	a.Observe(metered(instant("b", hour+minute), c, 500, freeLine(c)))
	state, err := a.MarshalJSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"lines":[{"id":1}],"cards":[{"uuid":"x","since":-1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a := NewAccount()
		if err := a.UnmarshalJSON(data); err != nil {
			if !reflect.DeepEqual(a, NewAccount()) {
				t.Fatal("it was read in part")
			}
			return
		}
		again := reopened(t, a)
		for _, account := range []*Account{a, again} {
			at := account.at
			account.Begin(Begin{LedgerID: account.begin.LedgerID}, at)
			account.Observe(seen(at, []Card{c}, freeLine(c)))
			account.Totals()
		}
		if diff := cmp.Diff(written(t, a), written(t, again)); diff != "" {
			t.Fatal(diff)
		}
	})
}
