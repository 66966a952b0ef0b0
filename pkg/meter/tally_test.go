// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// A mood is what happens to one call of a telemetry source, and in the time before it.
type mood struct {
	events []gpu.Event
	slow   time.Duration
	// deaf calls do not heed their context, and may so be good and late.
	deaf, fails bool
}

// moody is a source that keeps the contract of events in all of its moods: an event is in one
// good reading, and what a failing call had found is in the next.
type moody struct {
	moods   []mood
	pending []gpu.Event
}

func (m *moody) Read(ctx context.Context, _ []gpu.FieldID) (gpu.Reading, error) {
	var now mood
	if len(m.moods) > 0 {
		now, m.moods = m.moods[0], m.moods[1:]
	}
	m.pending = append(m.pending, now.events...)
	if err := pause(ctx, now.slow, now.deaf); err != nil {
		return gpu.Reading{}, err
	}
	if now.fails {
		return gpu.Reading{}, errors.New("driver is away")
	}
	told := m.pending
	m.pending = nil
	for i := range told {
		told[i].Time = time.Now()
	}
	return gpu.Reading{Time: time.Now(), Events: told}, nil
}

func drawMood(t *rapid.T) mood {
	xid := rapid.Custom(func(t *rapid.T) gpu.Event {
		return gpu.Event{
			Kind:        rapid.SampledFrom([]gpu.EventKind{gpu.EventXID, gpu.EventXID, gpu.EventECCDoubleBit}).Draw(t, "kind"),
			GPU:         rapid.SampledFrom([]gpu.UUID{"GPU-a", "GPU-b"}).Draw(t, "gpu"),
			GPUInstance: rapid.SampledFrom([]int{gpu.NoInstance, 3}).Draw(t, "instance"), ComputeInstance: gpu.NoInstance,
			Code: rapid.SampledFrom([]int{31, 79}).Draw(t, "code"),
		}
	})
	return mood{
		events: rapid.SliceOfN(xid, 0, 3).Draw(t, "events"),
		slow:   rapid.SampledFrom([]time.Duration{0, 0, time.Second, 7 * time.Second, 9 * time.Second, 14 * time.Second, 40 * time.Second}).Draw(t, "slow"),
		deaf:   rapid.Bool().Draw(t, "deaf"),
		fails:  rapid.IntRange(0, 3).Draw(t, "fails") == 0,
	}
}

func TestEveryEventCountsOnceWhateverBecomesOfTheCalls(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		moods := rapid.SliceOfN(rapid.Custom(drawMood), 1, 12).Draw(rt, "moods")
		want, events := map[XIDKey]uint64{}, 0
		for _, m := range moods {
			for _, e := range m.events {
				events++
				if e.Kind == gpu.EventXID {
					want[XIDKey{e.GPU, e.GPUInstance, e.ComputeInstance, e.Code}]++
				}
			}
		}
		var last *Snapshot
		told := 0
		synctest.Test(t, func(t *testing.T) {
			mt, err := New(Config{Telemetry: &moody{moods: moods}, Interval: 10 * time.Second, EventWindow: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _ = mt.Run(ctx) }()
			// Each call has come back within five ticks, and two more tell what is pending.
			for range 5*len(moods) + 2 {
				s, stale := mt.Watch()
				told += len(s.Reading.Events)
				<-stale
			}
			last = mt.Latest()
			told += len(last.Reading.Events)
			cancel()
		})
		if !maps.Equal(last.Totals.XIDs, want) {
			rt.Fatalf("counted %v, want %v", last.Totals.XIDs, want)
		}
		if told != events || len(last.Recent) != events {
			rt.Fatalf("%d events in the snapshots' readings, %d recent, want %d", told, len(last.Recent), events)
		}
	})
}

// heard is a tally that has heard one reading with the events, at the moment.
func heard(at time.Time, events ...gpu.Event) *tally {
	t := newTally(time.Minute, time.Minute)
	t.hear(&gpu.Reading{Events: events}, at)
	return t
}

func xidOn(uuid gpu.UUID, code int, at time.Time) gpu.Event {
	return gpu.Event{Kind: gpu.EventXID, Time: at, GPU: uuid, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: code}
}

func TestXIDsCountByTheDeviceThatTheyConcern(t *testing.T) {
	m := newMachine()
	m.reading.Events = []gpu.Event{
		{Kind: gpu.EventXID, GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 13},
		{Kind: gpu.EventXID, GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 13},
		{Kind: gpu.EventXID, GPU: "GPU-a", GPUInstance: 2, ComputeInstance: 0, Code: 13},
		{Kind: gpu.EventECCDoubleBit, GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 13},
		{Kind: gpu.EventRecoveryAction, GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 1},
		{Kind: gpu.EventXID, GPU: "GPU-stranger", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 79},
	}
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		want := map[XIDKey]uint64{
			{"GPU-a", gpu.NoInstance, gpu.NoInstance, 13}:        2,
			{"GPU-a", 2, 0, 13}:                                  1,
			{"GPU-stranger", gpu.NoInstance, gpu.NoInstance, 79}: 1,
		}
		s := mt.Latest()
		if diff := cmp.Diff(want, s.Totals.XIDs); diff != "" {
			t.Errorf("XIDs (-want +got):\n%s", diff)
		}
		if len(s.Recent) != 6 || !s.Recent[0].Time.Equal(s.Reading.Time) {
			t.Errorf("recent %+v, want all six, those without a time at the reading's", s.Recent)
		}
		if len(s.Faults) != 0 || !m.reading.Events[0].Time.IsZero() {
			t.Errorf("faults %v; or the source's answer was written to", s.Faults)
		}
		m.set(func(m *machine) { m.reading.Events, m.reading.Devices = nil, m.reading.Devices[1:] })
		after(20 * time.Minute)
		if s = mt.Latest(); !maps.Equal(want, s.Totals.XIDs) || len(s.Recent) != 0 {
			t.Errorf("after the device left: %v, recent %v; want the old counts", s.Totals.XIDs, s.Recent)
		}
	})
}

func TestAReadingThatStandsInTellsNoEventAgain(t *testing.T) {
	m := newMachine()
	m.reading.Origin = gpu.Origin{Library: "libfake 1"}
	m.reading.Events = []gpu.Event{{Kind: gpu.EventXID, GPU: "GPU-a", Code: 79}}
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		first := mt.Latest()
		m.set(func(m *machine) { m.err = errors.New("gone") })
		after(10 * time.Second)
		s := mt.Latest()
		if len(first.Reading.Events) != 1 || len(s.Reading.Events) != 0 || len(s.Recent) != 1 || len(s.Reading.Samples) != 2 {
			t.Errorf("events %v, then %v, recent %v; want one told, and told once", first.Reading.Events, s.Reading.Events, s.Recent)
		}
		after(time.Hour)
		s = mt.Latest()
		if s.Totals.XIDs[XIDKey{GPU: "GPU-a", XID: 79}] != 1 || len(s.Recent) != 1 || len(s.Reading.Samples) != 0 {
			t.Errorf("after an hour: %v, recent %v; want one, and the window where the source's clock stood", s.Totals.XIDs, s.Recent)
		}
		if s.Reading.Origin.Library != "libfake 1" {
			t.Errorf("an old reading comes from %+v, want from where it came", s.Reading.Origin)
		}
	})
}

func TestAnEventOfNothingCostsItself(t *testing.T) {
	m := newMachine()
	m.reading.Events = []gpu.Event{{GPU: "GPU-a", Code: 79}, {Kind: gpu.EventXID, GPU: "GPU-b", Code: 31}, {Kind: gpu.EventXID, GPU: "GPU-a"}, {Kind: gpu.EventXID, Code: -4}}
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if len(s.Totals.XIDs) != 1 || len(s.Recent) != 1 || s.Recent[0].GPU != "GPU-b" {
			t.Errorf("XIDs %v, recent %v; want GPU-b's alone", s.Totals.XIDs, s.Recent)
		}
		if got := s.Totals.Faults[FaultKey{SourceTelemetry, "malformed"}]; got != 3 {
			t.Errorf("%d malformed, want 3: %v", got, s.Faults)
		}
	})
}

func TestRecentIsAWindowThatSlides(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	y := heard(at, xidOn("GPU-a", 2, at), xidOn("GPU-a", 1, at.Add(-59*time.Second)), xidOn("GPU-a", 3, at.Add(-61*time.Second)))
	codes := func() (out []int) {
		for _, e := range y.recent {
			out = append(out, e.Code)
		}
		return out
	}
	for _, step := range []struct {
		what string
		at   time.Duration
		more []gpu.Event
		want []int
	}{
		{"the oldest first, and none that came too late for it", 0, nil, []int{1, 2}},
		{"one second on, an event of exactly a window ago", time.Second, nil, []int{1, 2}},
		{"and a moment later", time.Second + 1, nil, []int{2}},
		{"one that was seen before another and told after it", 30 * time.Second, []gpu.Event{xidOn("GPU-b", 4, at.Add(-time.Second)), xidOn("GPU-b", 5, at)}, []int{4, 2, 5}},
		{"the clock is set back a little", -20 * time.Second, nil, []int{4, 2, 5}},
		{"the clock is set back by hours, and what it said is dropped", -5 * time.Hour, []gpu.Event{xidOn("GPU-b", 6, at.Add(-5*time.Hour))}, []int{6}},
		{"the clock is set right", 0, nil, nil},
	} {
		if y.hear(&gpu.Reading{Events: step.more}, at.Add(step.at)); !slices.Equal(codes(), step.want) {
			t.Errorf("%s: %v, want %v", step.what, codes(), step.want)
		}
		if cap(y.recent) != len(y.recent) {
			t.Errorf("%s: a reader that appends writes where another reader does", step.what)
		}
	}
	if len(y.xids) != 6 {
		t.Errorf("totals %v, want all six", y.xids)
	}
}

// clockwork answers at the times of a clock of its own.
type clockwork struct {
	*machine
	now func() time.Time
}

func (c clockwork) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	r, err := c.machine.Read(ctx, fields)
	r.Time = c.now()
	return r, err
}

// A pretend node's clock can run an hour in each of our ticks, and a careless source has none.
func TestWindowsGoByTheClockOfTheSource(t *testing.T) {
	for _, story := range []struct {
		what   string
		now    func() time.Time
		recent int
	}{
		{"a clock that runs fast", func() time.Time {
			return time.Now().Add(3600 * time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
		}, 0},
		{"a clock that is years behind", func() time.Time { return time.Now().AddDate(-9, 0, 0) }, 1},
		{"no clock", func() time.Time { return time.Time{} }, 1},
	} {
		m := newMachine()
		m.reading.Events = []gpu.Event{xidOn("GPU-a", 79, time.Time{})}
		own := func(c *Config) { c.Telemetry = clockwork{m, story.now} }
		turning(t, m, own, func(t *testing.T, mt *Meter) {
			first := mt.Latest()
			m.set(func(m *machine) { m.reading.Events = nil })
			after(20 * time.Second)
			if s := mt.Latest(); len(first.Recent) != 1 || first.Recent[0].Time.IsZero() || len(s.Recent) != story.recent {
				t.Errorf("%s: recent %v, and two ticks later %v; want one, then %d", story.what, first.Recent, s.Recent, story.recent)
			}
			after(10 * time.Minute)
			if s := mt.Latest(); len(s.Recent) != 0 {
				t.Errorf("%s: ten minutes later there is %v", story.what, s.Recent)
			}
		})
	}
}

func TestAStormOfEventsKeepsTheLatestAndIsAFault(t *testing.T) {
	m := newMachine()
	for i := range recentLimit + 10 {
		m.reading.Events = append(m.reading.Events, xidOn("GPU-a", i+1, time.Time{}))
	}
	turning(t, m, nil, func(t *testing.T, mt *Meter) {
		s := mt.Latest()
		if len(s.Recent) != recentLimit || s.Recent[0].Code != 11 || len(s.Totals.XIDs) != recentLimit+10 {
			t.Errorf("%d recent from %d on, %d in the totals", len(s.Recent), s.Recent[0].Code, len(s.Totals.XIDs))
		}
		f, ok := faultOf(s, SourceTelemetry)
		if !ok || f.Kind != kindEventsDropped || !strings.Contains(f.Text, "oldest 10 ") || s.Totals.Faults[FaultKey{SourceTelemetry, kindEventsDropped}] != 1 {
			t.Errorf("faults %v, totals %v", s.Faults, s.Totals.Faults)
		}
		m.set(func(m *machine) { m.reading.Events = nil })
		after(10 * time.Second)
		if s = mt.Latest(); len(s.Faults) != 0 || len(s.Recent) != recentLimit {
			t.Errorf("the storm is over: faults %v, %d recent", s.Faults, len(s.Recent))
		}
	})
}

// Readers keep snapshots as long as they like, so what is in one stays as it was.
func TestWhatIsPublishedOfEventsAndClocksStaysAsItWas(t *testing.T) {
	m := newMachine()
	m.reading.Fields = []gpu.FieldID{gpu.FieldClockReasons}
	turning(t, m, func(c *Config) { c.EventWindow, c.ClockWindow = 40*time.Second, 40*time.Second }, func(t *testing.T, mt *Meter) {
		var kept []*Snapshot
		var was []string
		look := func(s *Snapshot) string {
			return fmt.Sprintf("%v %v %v %v %v", s.Recent, s.RecentClocks, s.Totals.XIDs, s.Totals.Clocks, s.Reading.Events)
		}
		for i := range 30 {
			m.set(func(m *machine) {
				if m.reading.Events = nil; i%3 != 0 {
					m.reading.Events = []gpu.Event{xidOn("GPU-a", 13+i%2, time.Time{}), xidOn("GPU-b", 31, time.Time{})}
				}
				if m.err = nil; i%11 == 10 {
					m.err = errors.New("gone")
				}
			})
			after(10 * time.Second)
			kept, was = append(kept, mt.Latest()), append(was, look(mt.Latest()))
		}
		for _, s := range kept {
			_ = append(s.Recent, xidOn("GPU-c", 1, time.Time{}))
		}
		for i, s := range kept {
			if now := look(s); now != was[i] {
				t.Fatalf("snapshot %d changed\nwas %s\nis  %s", s.Seq, was[i], now)
			}
		}
	})
}

func TestAQuietTickAllocatesNothingForEvents(t *testing.T) {
	at := time.Now()
	y := heard(at, xidOn("GPU-a", 79, at))
	m := newMachine()
	if n := testing.AllocsPerRun(100, func() { at = at.Add(time.Second); y.hear(&m.reading, at) }); n != 0 {
		t.Errorf("%v allocations in a tick without events, want none", n)
	}
	if len(y.recent) != 0 {
		t.Errorf("the window did not slide: %v", y.recent)
	}
}
