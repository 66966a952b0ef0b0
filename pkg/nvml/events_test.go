// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestMemoryErrorsAndXIDsAreEventsOfTheirGPU(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 1)
	s := m.source(t, Config{})
	read(t, s, 155)
	m.happen(0, nvml.EventData{EventType: nvml.EventTypeSingleBitEccError, GpuInstanceId: noInstance, ComputeInstanceId: noInstance})
	m.happen(2, nvml.EventData{EventType: nvml.EventTypeDoubleBitEccError, EventData: 5, GpuInstanceId: noInstance, ComputeInstanceId: noInstance})
	m.happen(2, nvml.EventData{EventType: nvml.EventTypeClock})
	m.happen(1, nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 94, GpuInstanceId: 2, ComputeInstanceId: 1})
	r := read(t, s, 230)
	type said struct {
		kind     gpu.EventKind
		gpu      gpu.UUID
		gi, ci   int
		code     int
		hasATime bool
	}
	got := make(map[said]int)
	for _, e := range r.Events {
		got[said{e.Kind, e.GPU, e.GPUInstance, e.ComputeInstance, e.Code, !e.Time.IsZero()}]++
	}
	for _, want := range []said{
		{gpu.EventECCSingleBit, gpu.UUID(m.boards[0].uuid), -1, -1, 0, true},
		{gpu.EventECCDoubleBit, gpu.UUID(m.boards[2].uuid), -1, -1, 0, true},
		{gpu.EventXID, gpu.UUID(m.boards[1].uuid), 2, 1, 94, true},
	} {
		if got[want] != 1 {
			t.Errorf("%+v is told %d times among %+v", want, got[want], r.Events)
		}
	}
	if len(r.Events) != 3 || show(valueOf(t, r, 1, 230)) != "94" || show(valueOf(t, r, 0, 230)) != "0" {
		t.Errorf("%d events; the last XIDs are %s and %s", len(r.Events), show(valueOf(t, r, 1, 230)), show(valueOf(t, r, 0, 230)))
	}
}

// Between readings, events are taken each second, so that their times are right.
func TestEventsHaveTheTimeWhenTheyHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 155)
		time.Sleep(10 * time.Second)
		m.xid(0, gpu.NoInstance, 13)
		at := time.Now()
		time.Sleep(19 * time.Second)
		r := read(t, s, 155)
		if len(r.Events) != 1 || r.Events[0].Time.Sub(at) > idleInterval {
			t.Errorf("at %v: %+v", at, r.Events)
		}
	})
}

// alarmed reports whether the alarm is raised, and takes it.
func alarmed(s *Source) bool {
	select {
	case <-s.Alarms():
		return true
	default:
		return false
	}
}

func TestTheAlarmIsRaisedForWhatCannotWait(t *testing.T) {
	whole := nvml.EventData{GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
	event := func(kind, data uint64) nvml.EventData {
		e := whole
		e.EventType, e.EventData = kind, data
		return e
	}
	for _, tc := range []struct {
		name   string
		happen func(m *machine)
		want   bool
	}{
		{"nothing", func(*machine) {}, false},
		{"an XID", func(m *machine) { m.xid(0, gpu.NoInstance, 79) }, true},
		{"a double-bit error", func(m *machine) { m.happen(0, event(nvml.EventTypeDoubleBitEccError, 0)) }, true},
		{"a single-bit error", func(m *machine) { m.happen(0, event(nvml.EventTypeSingleBitEccError, 0)) }, false},
		{"a recovery action", func(m *machine) { m.happen(0, event(nvml.EventTypeGpuRecoveryAction, 0)) }, true},
		{"a GPU that is lost", func(m *machine) { m.change(0, func(b *board) { b.lost = true }) }, true},
		{"a GPU of which only the events say that it is lost", func(m *machine) { m.change(0, func(b *board) { b.lostInEvents = true }) }, true},
		{"an XID beside a GPU that hangs", func(m *machine) { m.hang(1); m.xid(0, gpu.NoInstance, 79) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(modelH100())
				m.change(0, func(b *board) { b.events |= nvml.EventTypeGpuRecoveryAction })
				s := m.source(t, Config{})
				read(t, s, 155)
				tc.happen(m)
				time.Sleep(idleInterval)
				synctest.Wait()
				if got := alarmed(s); got != tc.want {
					t.Errorf("the alarm is raised: %v", got)
				}
				for range 10 {
					ctx, done := context.WithTimeout(t.Context(), time.Second)
					if _, err := s.Read(ctx, []gpu.FieldID{155}); err != nil {
						t.Fatal(err)
					}
					done()
					time.Sleep(2 * idleInterval)
				}
				if alarmed(s) {
					t.Error("it is raised again when readings have told it")
				}
				m.unhang(1)
			})
		})
	}
}

// A driver without the event for it is asked each second, in one call, and only where there is an action at
// all; the reading tells it once.
func TestARecoveryActionRaisesTheAlarmWithoutAnEventForIt(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*board)
		want    bool
		calls   int
	}{
		"a driver without the event":       {func(*board) {}, true, 1},
		"a driver with the event":          {func(b *board) { b.events |= nvml.EventTypeGpuRecoveryAction }, false, 0},
		"a driver without recovery action": {func(b *board) { delete(b.fields, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION) }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(modelH100())
				m.change(0, tc.prepare)
				s := m.source(t, Config{})
				read(t, s, 155)
				time.Sleep(idleInterval / 2)
				m.change(0, func(b *board) { clear(b.calls); b.action = 2 })
				time.Sleep(idleInterval)
				synctest.Wait()
				if got := alarmed(s); got != tc.want {
					t.Errorf("the alarm is raised: %v", got)
				}
				m.change(0, func(b *board) {
					if n := b.calls["nvmlDeviceGetFieldValues"]; n != tc.calls {
						t.Errorf("%d calls in a second, want %d", n, tc.calls)
					}
				})
				if !tc.want {
					return
				}
				r := read(t, s, 155)
				if len(r.Events) != 1 || r.Events[0].Kind != gpu.EventRecoveryAction || r.Events[0].Code != 2 {
					t.Errorf("%+v", r.Events)
				}
				time.Sleep(3 * idleInterval)
				synctest.Wait()
				if r := read(t, s, 155); len(r.Events) != 0 || alarmed(s) {
					t.Errorf("it is told again: %+v", r.Events)
				}
			})
		})
	}
}

// Some boards have no events; their driver still says that they are lost.
func TestALostGPURaisesTheAlarmWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.change(0, func(b *board) { b.events = 0 })
		s := m.source(t, Config{})
		read(t, s, 155)
		m.change(0, func(b *board) { b.lost = true })
		time.Sleep(2 * idleInterval)
		synctest.Wait()
		if !alarmed(s) {
			t.Error("no alarm")
		}
		time.Sleep(10 * idleInterval)
		synctest.Wait()
		if alarmed(s) {
			t.Error("it is raised again for the same loss")
		}
	})
}

func TestTheAlarmWorksAfterTheDriverWasReleasedAndResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 155)
		if err := s.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		read(t, s, 155)
		m.xid(2, gpu.NoInstance, 79)
		time.Sleep(idleInterval)
		synctest.Wait()
		if r := read(t, s, 155); !alarmed(s) || len(r.Events) != 1 {
			t.Errorf("events %+v", r.Events)
		}
	})
}

func TestARecoveryActionIsToldWhenItChanges(t *testing.T) {
	for _, byEvent := range []bool{true, false} {
		t.Run(fmt.Sprintf("the driver has an event for it: %v", byEvent), func(t *testing.T) {
			m := newMachine(modelH100())
			if byEvent {
				m.change(0, func(b *board) { b.events |= nvml.EventTypeGpuRecoveryAction })
			}
			s := m.source(t, Config{})
			read(t, s)
			var got []int
			for _, action := range []uint64{0, 1, 1, 4, 0} {
				changed := false
				m.change(0, func(b *board) { changed = b.action != action; b.action = action })
				if changed {
					m.happen(0, nvml.EventData{EventType: nvml.EventTypeGpuRecoveryAction, GpuInstanceId: noInstance, ComputeInstanceId: noInstance})
				}
				r := read(t, s, 1523)
				if v := valueOf(t, r, 0, 1523); show(v) != fmt.Sprint(action) {
					t.Errorf("the action is %s, want %d", show(v), action)
				}
				for _, e := range r.Events {
					if e.Kind != gpu.EventRecoveryAction || e.GPU != gpu.UUID(m.boards[0].uuid) || e.GPUInstance != gpu.NoInstance {
						t.Errorf("an odd event: %+v", e)
					}
					got = append(got, e.Code)
				}
			}
			if fmt.Sprint(got) != "[1 4 0]" {
				t.Errorf("the actions told are %v", got)
			}
		})
	}
}

func TestAGPUWithoutEventsIsNoTrouble(t *testing.T) {
	m := newMachine(modelH100())
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetSupportedEventTypes"] = nvml.ERROR_NOT_SUPPORTED })
	m.change(1, func(b *board) { b.events = nvml.EventTypeClock })
	s := m.source(t, Config{})
	for range 3 {
		r := read(t, s, 230)
		if len(r.Troubles) != 0 || valueOf(t, r, 0, 230).Reason() != gpu.ReasonNotSupported || valueOf(t, r, 1, 230).Reason() != gpu.ReasonNotSupported {
			t.Errorf("%+v, %s", r.Troubles, show(valueOf(t, r, 0, 230)))
		}
	}
	m.change(0, func(b *board) {
		if n := b.calls["nvmlDeviceGetSupportedEventTypes"]; n != 1 {
			t.Errorf("it was asked for its events %d times", n)
		}
	})
}

// One kind of event that is refused, as memory errors are while ECC is off, must not cost the XIDs.
func TestXIDsAreHeardWhereOtherEventsAreRefused(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_UNKNOWN} {
		m := newMachine(modelA100())
		m.change(0, func(b *board) {
			b.refusedEvents, b.refusal = nvml.EventTypeSingleBitEccError|nvml.EventTypeDoubleBitEccError, ret
		})
		s := m.source(t, Config{})
		read(t, s, 230)
		m.xid(0, gpu.NoInstance, 31)
		r := read(t, s, 230)
		if len(r.Events) != 1 || len(r.Troubles) != 0 || show(valueOf(t, r, 0, 230)) != "31" {
			t.Errorf("%v: %+v, %+v", returned(ret), r.Events, r.Troubles)
		}
		if sets, _ := m.leaks(); sets != 8 {
			t.Errorf("%d event sets for 8 GPUs", sets)
		}
	}
}

// A 0 would say that there was no XID, where nobody would hear of one.
func TestAGPUWithoutXIDsHasNoLastOne(t *testing.T) {
	m := newMachine(modelA100())
	m.change(0, func(b *board) { b.events = nvml.EventTypeSingleBitEccError })
	r := read(t, m.source(t, Config{}), 230)
	if none, some := valueOf(t, r, 0, 230), valueOf(t, r, 1, 230); none.Reason() != gpu.ReasonNotSupported || show(some) != "0" {
		t.Errorf("they are %s and %s", show(none), show(some))
	}
}

// What older drivers leave unset reads as instance 0.
func TestAnEventOfACardWithoutMIGIsTheCards(t *testing.T) {
	m := newMachine(modelA100())
	mixed(m, 1)
	s := m.source(t, Config{})
	read(t, s, 155)
	for i := range 2 {
		m.happen(i, nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 31})
	}
	for _, e := range read(t, s, 155).Events {
		want := gpu.NoInstance
		if e.GPU == gpu.UUID(m.boards[1].uuid) {
			want = 0
		}
		if e.GPUInstance != want || e.ComputeInstance != want {
			t.Errorf("%+v, want instance %d", e, want)
		}
	}
}

func TestAGPUWhoseXIDsAreNotHeardIsInTrouble(t *testing.T) {
	m := newMachine(modelH100())
	m.change(0, func(b *board) { b.refused["nvmlDeviceRegisterEvents"] = nvml.ERROR_UNKNOWN })
	s := m.source(t, Config{})
	for range 2 {
		r := read(t, s, 155)
		if len(r.Troubles) != 1 || r.Troubles[0].GPU != r.Devices[0].UUID || r.Troubles[0].Reason != gpu.ReasonError || !valueOf(t, r, 0, 155).Present() {
			t.Errorf("%+v", r.Troubles)
		}
	}
	if sets, _ := m.leaks(); sets != 7 {
		t.Errorf("%d event sets for the other 7", sets)
	}
	m.change(0, func(b *board) { clear(b.refused) })
	read(t, s, 155)
	m.xid(0, gpu.NoInstance, 8)
	if r := read(t, s, 155); len(r.Troubles) != 0 || len(r.Events) != 1 {
		t.Errorf("it is heard again: %+v, %+v", r.Troubles, r.Events)
	}
}

// A lost GPU must not make the others' events unheard, nor be asked for its own for ever.
func TestALostGPUDoesNotDeafenTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 155)
		m.xid(3, gpu.NoInstance, 79)
		m.change(3, func(b *board) { b.lost = true })
		time.Sleep(5 * time.Second)
		m.xid(4, gpu.NoInstance, 31)
		r := read(t, s, 155)
		if len(r.Events) != 2 || r.Events[0].Code != 79 || r.Events[1].Code != 31 || len(r.Troubles) != 1 {
			t.Errorf("%+v, %+v", r.Events, r.Troubles)
		}
		m.change(3, func(b *board) { b.lost = false })
		read(t, s, 155)
		m.xid(3, gpu.NoInstance, 45)
		r = read(t, s, 230)
		if len(r.Events) != 1 || r.Events[0].GPU != r.Devices[3].UUID || show(valueOf(t, r, 3, 230)) != "45" {
			t.Errorf("after its return: %+v", r.Events)
		}
	})
}

func TestAStormOfMemoryErrorsLeavesRoomForXIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 155)
		for range 3 * mostQueued {
			m.happen(0, nvml.EventData{EventType: nvml.EventTypeSingleBitEccError})
		}
		m.xid(1, gpu.NoInstance, 48)
		time.Sleep(30 * time.Second)
		r := read(t, s, 155)
		xids := 0
		for _, e := range r.Events {
			if e.Kind == gpu.EventXID {
				xids++
			}
		}
		if len(r.Events) != mostQueued/2 || xids != 1 {
			t.Errorf("%d events, %d XIDs", len(r.Events), xids)
		}
		if len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonError {
			t.Errorf("%+v", r.Troubles)
		}
		if r := read(t, s, 155); len(r.Troubles) != 0 || len(r.Events) != 0 {
			t.Errorf("the next reading: %+v, %d events", r.Troubles, len(r.Events))
		}
	})
}

// However XIDs, readings that fail, lost GPUs and time come together, each XID is told once.
func TestEachXIDIsToldOnceWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 60).Draw(rt, "steps")
		which := rapid.SliceOfN(rapid.IntRange(0, 2), len(steps), len(steps)).Draw(rt, "GPUs")
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(modelA100())
			m.boards = m.boards[:3]
			s := m.source(t, Config{})
			read(t, s, 155)
			told, raised := make(map[string]int), make(map[string]int)
			hear := func() {
				for _, e := range read(t, s, 155).Events {
					told[fmt.Sprint(e.GPU, e.GPUInstance, e.Code)]++
				}
			}
			lost := false
			for i, step := range steps {
				switch step {
				case 0, 1:
					if lost && which[i] == 2 {
						continue
					}
					code := 13 + i%3
					m.xid(which[i], gpu.NoInstance, code)
					raised[fmt.Sprint(m.boards[which[i]].uuid, gpu.NoInstance, code)]++
				case 2:
					hear()
				case 3:
					over, cancel := context.WithCancel(t.Context())
					cancel()
					_, _ = s.Read(over, nil)
				case 4:
					time.Sleep(700 * time.Millisecond)
				case 5:
					// What a GPU said before it was lost is told; what nobody can hear is not raised.
					hear()
					lost = !lost
					m.change(2, func(b *board) { b.lost = lost })
					hear()
				}
			}
			hear()
			hear()
			if fmt.Sprint(told) != fmt.Sprint(raised) {
				rt.Errorf("raised %v, told %v", raised, told)
			}
		})
	})
}
