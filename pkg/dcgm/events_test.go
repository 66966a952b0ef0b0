// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// hear reads until so many events have come, and a few times more.
func (m *station) hear(n int) []gpu.Event {
	m.Helper()
	var events []gpu.Event
	m.until(fmt.Sprintf("%d events", n), nil, func(r gpu.Reading) string {
		events = append(events, r.Events...)
		if len(events) < n {
			return fmt.Sprintf("%+v", events)
		}
		return ""
	})
	for range 3 {
		time.Sleep(interval)
		events = append(events, m.read().Events...)
	}
	if len(events) != n {
		m.Fatalf("%d events, want %d: %+v", len(events), n, events)
	}
	return events
}

func codes(events []gpu.Event) []int {
	var out []int
	for _, e := range events {
		out = append(out, e.Code)
	}
	return out
}

func TestAnXIDFromBeforeWeWatchedIsNoEvent(t *testing.T) {
	m := node(t, "gpus 2 h100", "xid 0 79 ago 10s", "xid 0 48 ago 10s same", "xid 1 31 ago 1h")
	for range 3 {
		if r := m.read(gpu.FieldXID); len(r.Events) > 0 || cell(r, 0, gpu.FieldXID) != "48" || cell(r, 1, gpu.FieldXID) != "31" {
			t.Fatalf("events %+v; the last XIDs are %s and %s", r.Events, cell(r, 0, gpu.FieldXID), cell(r, 1, gpu.FieldXID))
		}
	}
	m.do("xid 0 79")
	if events := m.hear(1); events[0].Code != 79 || events[0].Kind != gpu.EventXID || time.Since(events[0].Time) > time.Minute {
		t.Errorf("then: %+v", events)
	}
}

func TestManyXIDsBetweenTwoReadingsAreAllTold(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read()
	var commands []string
	var want []int
	for i := range 200 {
		commands = append(commands, fmt.Sprintf("xid 0 %d", 1+i%7))
		want = append(want, 1+i%7)
	}
	m.do(commands...)
	m.do("xid 0 7 same", "xid 0 7 same")
	want = append(want, 7, 7)
	events := m.hear(len(want))
	if got := codes(events); !slices.Equal(got, want) {
		t.Errorf("codes %v, want %v", got, want)
	}
	if !slices.IsSortedFunc(events, func(a, b gpu.Event) int { return a.Time.Compare(b.Time) }) {
		t.Error("out of order")
	}
}

// The engine gives two XIDs one time; the second comes after the first was told.
func TestAnXIDAtTheTimeOfOneThatWasToldIsToldWithTheNext(t *testing.T) {
	m := node(t, "gpus 1 h100")
	m.read()
	m.do("xid 0 31")
	m.hear(1)
	m.do("xid 0 32 same")
	m.hear(0)
	m.do("xid 0 33")
	if got := codes(m.hear(2)); !slices.Equal(got, []int{32, 33}) {
		t.Errorf("codes %v", got)
	}
}

func TestAnXIDNamesThePartOfTheCard(t *testing.T) {
	m := node(t, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 9 placement 2 ci", "gi 1 profile 1g.10gb nvml 7 placement 0 ci")
	r := m.read()
	card := r.Devices[1].UUID
	var events []gpu.Event
	for _, what := range []string{"xid 1 43 gi 9", "xid 1 43 gi 7 ci 0", "xid 1 79"} {
		m.do(what)
		events = append(events, m.hear(1)...)
	}
	for i, want := range []gpu.Event{
		{GPUInstance: 9, ComputeInstance: gpu.NoInstance, Code: 43},
		{GPUInstance: 7, ComputeInstance: 0, Code: 43},
		{GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 79},
	} {
		got := events[i]
		want.Kind, want.GPU, want.Time = gpu.EventXID, card, got.Time
		if got != want {
			t.Errorf("event %d is %+v, want %+v", i, got, want)
		}
	}
	// The card's last XID is the last of all its parts.
	m.do("xid 1 45 gi 9")
	m.until("XID 45", []gpu.FieldID{gpu.FieldXID}, func(r gpu.Reading) string {
		if got := cell(r, 1, gpu.FieldXID); got != "45" {
			return got
		}
		return ""
	})
}

func TestTheXIDByWhichAGPUIsLostIsTold(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read()
	m.do("lost 1", "xid 1 79")
	if events := m.hear(1); events[0].Code != 79 {
		t.Errorf("%+v", events)
	}
	m.do("xid 1 80")
	if events := m.hear(1); events[0].Code != 80 {
		t.Errorf("%+v", events)
	}
}

// The engine still has it among the GPUs that can be used.
func TestAnXIDIsToldByTheReadingThatFindsTheGPULost(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155)
	m.do("xid 1 79", "status 1 155 -18")
	for i := range 3 {
		r := m.read(155)
		if !r.Devices[1].Lost || cell(r, 1, 155) != "(lost)" || cell(r, 0, 155)[0] == '(' {
			t.Errorf("GPU 1 is %+v, power %s and %s", r.Devices[1], cell(r, 0, 155), cell(r, 1, 155))
		}
		if want := 1 - min(i, 1); len(r.Events) != want {
			t.Errorf("reading %d tells %+v", i, r.Events)
		}
	}
	calls, err := m.sim.Calls()
	if err != nil || calls["dcgmGroupCreate"] != 2 {
		t.Errorf("%d groups were made for two GPUs (%v)", calls["dcgmGroupCreate"], err)
	}
	m.do("status 1 155 0")
	if r := m.read(155); r.Devices[1].Lost || cell(r, 1, 155)[0] == '(' {
		t.Errorf("GPU 1 is %+v, power %s", r.Devices[1], cell(r, 1, 155))
	}
}

// The first readings of a GPU whose calls hang come late; its events do not get lost in them.
func TestEventsOfALateAnswerAreTold(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read()
	m.do("slow 1 1500ms", "xid 1 31")
	r := m.read()
	if len(r.Events) > 0 || len(r.Troubles) == 0 {
		t.Fatalf("events %+v, troubles %+v", r.Events, r.Troubles)
	}
	m.do("slow 1 0ms")
	m.hear(1)
}

func TestAQuestionForXIDsThatFailsIsAskedAgain(t *testing.T) {
	m := node(t, "gpus 1 h100")
	m.read()
	m.do("fail dcgmGetValuesSince_v2 -3", "xid 0 31", "xid 0 32")
	if r := m.read(155); len(r.Events) > 0 || cell(r, 0, 155)[0] == '(' {
		t.Errorf("events %+v, power %s", r.Events, cell(r, 0, 155))
	}
	m.do("fail dcgmGetValuesSince_v2 0")
	if got := codes(m.hear(2)); !slices.Equal(got, []int{31, 32}) {
		t.Errorf("codes %v", got)
	}
}

func TestARepartitionTellsNoXIDAgain(t *testing.T) {
	m := node(t, "gpus 1 h100", "mig 0 on", "gi 0 profile 1g.10gb nvml 7 ci")
	m.read()
	m.do("xid 0 31", "xid 0 32 gi 7")
	m.hear(2)
	m.do("gi 0 profile 1g.10gb nvml 8 placement 1 ci")
	m.until("two devices", nil, func(r gpu.Reading) string {
		if len(r.Events) > 0 {
			t.Errorf("told again: %+v", r.Events)
		}
		if len(r.Devices) != 3 {
			return fmt.Sprintf("%d devices", len(r.Devices))
		}
		return ""
	})
	m.hear(0)
	m.do("xid 0 33 gi 8")
	if events := m.hear(1); events[0].GPUInstance != 8 {
		t.Errorf("%+v", events)
	}
}

func TestXIDsCostNothingWhileThereAreNone(t *testing.T) {
	m := node(t, "gpus 8 h100")
	for range 10 {
		m.read(155)
	}
	calls, err := m.sim.Calls()
	if err != nil {
		t.Fatal(err)
	}
	if n := calls["dcgmGetValuesSince_v2"]; n > 0 {
		t.Errorf("asked %d times for XIDs", n)
	}
	// One call for each GPU in each reading, and one for each that was new.
	if n := calls["dcgmGetLatestValues_v2"]; n != 8*10+8 {
		t.Errorf("%d calls for values, want 88", n)
	}
}

// However readings and questions fall: each XID that comes after the first look is told once,
// and none twice. What the engine finds in the kernel's log of the time before is not told,
// whenever it finds it.
func TestEachXIDIsToldOnceWhateverTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const watched = 1000
		card := entity{groupGPU, 0}
		const logged = 1 << 20
		var engine []record
		reported := 0
		var x xids
		told := map[int]int{}
		clock := int64(rapid.IntRange(900, 999).Draw(t, "clock"))
		report := func() {
			engine = append(engine, record{entity: card, field: gpu.FieldXID, kind: gpu.FieldInt, ts: clock, bits: uint64(reported)})
			reported++
		}
		look := func(broken bool) {
			x.begin()
			last := record{entity: card, field: gpu.FieldXID, kind: gpu.FieldInt, status: stNoData}
			if len(engine) > 0 {
				last = engine[len(engine)-1]
			}
			x.seen(last, watched)
			if broken || !x.fresh {
				return
			}
			since := slices.DeleteFunc(slices.Clone(engine), func(r record) bool { return r.ts < x.from })
			x.take(slices.Values(since), func(_ entity, _ int64, code int) { told[code]++ })
		}
		for range rapid.IntRange(0, 3).Draw(t, "before") {
			clock += int64(rapid.IntRange(0, 2).Draw(t, "later"))
			report()
		}
		clock = max(clock, watched)
		first := reported
		look(false)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				clock += int64(rapid.IntRange(0, 20).Draw(t, "later"))
				report()
			case 1:
				clock++
				report()
				report()
			case 2:
				late := record{entity: card, field: gpu.FieldXID, kind: gpu.FieldInt, ts: int64(rapid.IntRange(1, watched-1).Draw(t, "logged")), bits: logged}
				at, _ := slices.BinarySearchFunc(engine, late, func(a, b record) int { return cmp.Compare(a.ts, b.ts) })
				engine = slices.Insert(engine, at, late)
			default:
				look(rapid.Bool().Draw(t, "broken"))
			}
		}
		clock++
		report()
		look(false)
		if told[logged] > 0 {
			t.Fatalf("what was logged before was told; times %+v", engine)
		}
		for _, r := range engine {
			code := int(r.bits)
			if n := told[code]; code < logged && (n > 1 || code >= first && n != 1 || code < first && r.ts < watched && n > 0) {
				t.Fatalf("XID %d of %d, of which %d were there before, was told %d times; times %+v", code, reported, first, n, engine)
			}
		}
	})
}

func TestEventsThatNobodyTakesAreBounded(t *testing.T) {
	var q eventQueue
	for i := range maxEvents + 10 {
		q.add([]gpu.Event{{Code: i, Time: time.Unix(int64(i), 0)}})
	}
	events, dropped := q.take()
	if len(events) != maxEvents || dropped != 10 || events[0].Code != 10 {
		t.Errorf("%d events from %d on, %d dropped", len(events), events[0].Code, dropped)
	}
	if again, dropped := q.take(); len(again) > 0 || dropped > 0 {
		t.Errorf("then %d events, %d dropped", len(again), dropped)
	}
}

// Whether an XID came before us is a matter of the clock that it is told in.
func TestTheClockOfAnotherHostSaysWhatCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		for _, clock := range []struct {
			local bool
			ahead time.Duration
			want  time.Duration
		}{
			{true, 0, 0}, {true, -time.Minute, 0}, {false, 0, 0}, {false, day, day}, {false, -day, -day},
		} {
			c := &card{ss: &session{handle: &handle{local: clock.local}}, watchedSince: time.Now()}
			time.Sleep(time.Hour)
			if c.since() != micros(c.watchedSince) {
				t.Error("without a sample of the engine its clock is not ours")
			}
			c.seen.clock = micros(time.Now().Add(clock.ahead))
			if got := time.Duration(c.since()-micros(c.watchedSince)) * time.Microsecond; got != clock.want {
				t.Errorf("%+v: moved by %s", clock, got)
			}
		}
	})
}
