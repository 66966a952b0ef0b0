// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// awaitAlarm waits for the alarm without reading.
func (m *station) awaitAlarm(why string) {
	m.Helper()
	select {
	case <-m.Alarms():
	case <-time.After(patience):
		m.Fatalf("no alarm within %s: %s", patience, why)
	}
}

// tellsOnly reads once and wants one XID of a GPU.
func (m *station) tellsOnly(index, code int) {
	m.Helper()
	r := m.read(155)
	if len(r.Events) != 1 || r.Events[0].Code != code || r.Events[0].GPU != r.Devices[index].UUID {
		m.Errorf("the reading tells %+v, want XID %d of GPU %d", r.Events, code, index)
	}
}

// answers says what is wrong with a node of two GPUs or more.
func answers(r gpu.Reading) string {
	if len(r.Devices) < 2 || len(r.Troubles) > 0 {
		return fmt.Sprintf("%d devices, %v", len(r.Devices), r.Troubles)
	}
	return ""
}

func TestAnAlarmComesAlsoWhileAnotherGPUHangs(t *testing.T) {
	t.Parallel()
	m := node(t, "gpus 3 h100")
	m.read(155)
	m.do("hang 0")
	m.do("xid 2 79")
	m.awaitAlarm("an XID beside a GPU that hangs")
	r, err := m.tryRead(155)
	if err != nil || len(r.Events) != 1 || r.Events[0].Code != 79 {
		t.Errorf("%+v, %v", r.Events, err)
	}
	// The look at the GPU that hangs is stuck with it, and is over when that is.
	m.do("unhang 0")
	m.until("GPU 0 answers again", []gpu.FieldID{155}, answers)
	m.do("xid 0 31")
	m.awaitAlarm("an XID of the GPU that hung")
	m.tellsOnly(0, 31)
}

func TestALookForNewsThatIsSlowIsFollowedByTheReading(t *testing.T) {
	t.Parallel()
	m := node(t, "gpus 2 h100")
	m.read(155)
	m.do("slow 0 300ms")
	m.lookForNews()
	if i, _ := m.card(0); !m.cards[i].worker.busy() {
		t.Fatal("the look is over; this test needs one that is not")
	}
	if r, err := m.tryRead(155); err != nil || cell(r, 0, 155)[0] == '(' {
		t.Errorf("%s, %v, %+v", cell(r, 0, 155), err, r.Troubles)
	}
}

func TestAnXIDThatCameWhileTheEngineWasAwayRaisesTheAlarm(t *testing.T) {
	t.Parallel()
	sim := pretend(t, "gpus 2 h100")
	m := openOn(t, sim, func(c *Config) { c.Endpoint, _ = ParseEndpoint("unix:///run/pretend/engine") })
	m.until("the engine answers", []gpu.FieldID{155}, answers)
	m.do("down")
	for end := time.Now().Add(patience); ; time.Sleep(interval) {
		if _, err := m.tryRead(155); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the engine is not gone")
		}
	}
	m.do("up")
	m.until("the engine is back", []gpu.FieldID{155}, answers)
	m.do("xid 1 79")
	m.awaitAlarm("an XID of the engine that is back")
	m.tellsOnly(1, 79)
}

func TestTheAlarmWorksAfterReleaseAndResume(t *testing.T) {
	t.Parallel()
	m := node(t, "gpus 2 h100")
	m.read(155)
	if err := m.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * listenInterval)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.until("the engine answers", []gpu.FieldID{155}, answers)
	m.do("xid 1 79")
	m.awaitAlarm("an XID after Resume")
	m.tellsOnly(1, 79)
}

// Whoever asks for the ways between GPUs of a library that cannot tell them has none, and no trouble
// in each reading.
func TestALibraryWithoutTheWaysBetweenGPUsIsNotInTrouble(t *testing.T) {
	t.Parallel()
	m := node(t, "version 4.2.3", "gpus 2 h100")
	m.settings.pauses.round = time.Millisecond
	fields := []gpu.FieldID{155, gpu.FieldP2PStatus}
	for range 5 {
		if r := m.read(fields...); len(r.Troubles) > 0 || len(r.Peers) > 0 {
			t.Errorf("%+v, %+v", r.Troubles, r.Peers)
		}
		time.Sleep(interval)
	}
	m.hearClerk()
	if !errors.Is(m.peers.err, errMissing) {
		t.Errorf("it was not asked for: %v", m.peers.err)
	}
}

// noAlarm wants none in the time of two looks.
func (m *station) noAlarm(why string) {
	m.Helper()
	select {
	case <-m.Alarms():
		m.Errorf("an alarm: %s", why)
	case <-time.After(2*listenInterval + listenInterval/2):
	}
}

// slowly opens a node whose readings are a minute apart, so that nothing comes in time by itself.
func slowly(t *testing.T, scenario ...string) *station {
	t.Helper()
	return openOn(t, pretend(t, append([]string{"strict on"}, scenario...)...), func(c *Config) { c.Interval = time.Minute })
}

func TestALevelThatMayWithdrawAGPURaisesTheAlarmHoweverFarReadingsAreApart(t *testing.T) {
	for name, scenario := range map[string][]string{
		"a whole GPU":   {"gpus 2 h100"},
		"a divided GPU": {"gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fields := []gpu.FieldID{155, 395, 396, 1523}
			m := slowly(t, append(scenario, "field 1 395 0", "field 1 396 0", "field 1 1523 1")...)
			m.until("the first values", fields, func(r gpu.Reading) string {
				if got := cell(r, 1, 1523) + cell(r, 1, 395); got != "10" {
					return got
				}
				return ""
			})
			m.noAlarm("what the reading has told is no news")
			m.do("field 1 1523 2")
			m.awaitAlarm("another recovery action")
			if r := m.read(fields...); cell(r, 1, 1523) != "2" {
				t.Errorf("the reading has %s", cell(r, 1, 1523))
			}
			m.do("field 1 396 1")
			m.noAlarm("a row that waits for a reset withdraws nothing")
			m.do("field 1 395 1")
			m.awaitAlarm("a row that could not be remapped")
			m.awaitAlarm("it was not told yet")
			if r := m.read(fields...); cell(r, 1, 395) != "1" {
				t.Errorf("the reading has %s", cell(r, 1, 395))
			}
		})
	}
}

func TestAGPUThatIsLostUnboundOrBackRaisesTheAlarm(t *testing.T) {
	t.Parallel()
	m := slowly(t, "gpus 3 h100")
	m.read(155)
	for _, step := range []string{"lost 1", "back 1", "detach 2", "attach 2"} {
		m.do(step)
		m.awaitAlarm(step)
		m.read(155)
		select {
		case <-m.Alarms():
		default:
		}
	}
	m.noAlarm("what the reading has told is no news")
}

// A look is what each second costs: one call for each GPU and one for all of them.
func TestALookIsOneCallForEachGPUAndOneForAll(t *testing.T) {
	m := openOn(t, pretend(t, append([]string{"gpus 8 h100"}, divided(8)...)...), func(c *Config) { c.Interval = time.Minute })
	m.read(155, 311, 346, 395, 396, 1507, 1523)
	before, err := m.sim.Calls()
	if err != nil {
		t.Fatal(err)
	}
	const looks = 10
	for range looks {
		m.lookForNews()
	}
	after, err := m.sim.Calls()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for name, n := range after {
		if d := n - before[name]; d > 0 {
			total += d
			t.Logf("%s: %d", name, d)
		}
	}
	// One of its own may have come in between.
	if most := (looks + 2) * 9; total < looks*9 || total > most {
		t.Errorf("%d looks at 8 GPUs are %d calls, want 9 each", looks, total)
	}
}

func TestWhatSaysHowHealthyAGPUIsIsNeverOld(t *testing.T) {
	p := setPlan{}
	for _, c := range []struct {
		kind             kindOfWatch
		interval, period time.Duration
	}{
		{watchLevels, 30 * time.Second, 10 * time.Second}, {watchLevels, 5 * time.Second, 5 * time.Second},
		{watchAction, 30 * time.Second, 2 * time.Second}, {watchAction, time.Second, time.Second},
		{watchValues, 30 * time.Second, 30 * time.Second},
	} {
		if period, keep, _ := p.watchOf(c.kind, c.interval); period != c.period || keep < 2*period {
			t.Errorf("%v at %v: each %v, kept for %v", c.kind, c.interval, period, keep)
		}
	}
	for _, id := range []gpu.FieldID{311, 346, 390, 391, 392, 395, 396, 1507} {
		if got := askedWatch(id); got != watchLevels {
			t.Errorf("field %d is watched as one of %v", id, got)
		}
	}
}

// BenchmarkLook is what each second costs beside the readings, on a node of eight GPUs.
func BenchmarkLook(b *testing.B) {
	for name, scenario := range map[string][]string{
		"8GPUs":              {"gpus 8 h100", "clock frozen"},
		"8GPUsDividedInto56": append([]string{"gpus 8 h100", "clock frozen"}, divided(8)...),
	} {
		b.Run(name, func(b *testing.B) {
			sim := pretend(b, scenario...)
			s, err := Open(Config{Library: sim.Path, Interval: time.Minute})
			if err != nil {
				b.Fatal(errors.Join(err, sim.Err()))
			}
			defer s.Close()
			if _, err := s.Read(b.Context(), append(defaultCounters(), 311, 346, 396, 1507, 1523)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.lookForNews()
			}
		})
	}
}
