// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// alarming is a machine that can raise an alarm.
type alarming struct {
	*machine
	alarms chan struct{}
}

func newAlarming() *alarming { return &alarming{machine: newMachine()} }

// Alarms makes the channel within the bubble of time that the Meter is in.
func (a *alarming) Alarms() <-chan struct{} {
	a.alarms = make(chan struct{}, 1)
	return a.alarms
}

// raise does as a source does that has news.
func (a *alarming) raise() {
	select {
	case a.alarms <- struct{}{}:
	default:
	}
}

// every sets a Meter's telemetry and its interval.
func every(a *alarming, interval time.Duration) func(*Config) {
	return func(c *Config) { c.Telemetry, c.Interval = a, interval }
}

func TestAnAlarmIsHeardAtOnceAndTheGridIsKept(t *testing.T) {
	a := newAlarming()
	rules := someRules(t)
	change := func(c *Config) { every(a, 30*time.Second)(c); c.Health = rules }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		after(42 * time.Second)
		before := mt.Latest()
		a.set(func(m *machine) { m.reading.Events = []gpu.Event{xid("GPU-a", 79)} })
		a.raise()
		after(time.Millisecond)
		s := mt.Latest()
		if s.Seq != before.Seq+1 || statusOf(t, s, "GPU-a") != health.Unhealthy || s.Late != 0 || s.Totals.Alarmed != 1 {
			t.Errorf("seq %d after %d, %v, late %v, %+v", s.Seq, before.Seq, statusOf(t, s, "GPU-a"), s.Late, s.Totals)
		}
		a.set(func(m *machine) { m.reading.Events = nil })
		after(18*time.Second - 2*time.Millisecond)
		if s := mt.Latest(); s.Seq != before.Seq+1 {
			t.Errorf("seq %d before the grid's next moment", s.Seq)
		}
		after(2 * time.Millisecond)
		s = mt.Latest()
		if s.Seq != before.Seq+2 || s.Late != 0 || s.Totals.LateTicks != 0 || s.Totals.Alarmed != 1 || s.Totals.Ticks != 4 {
			t.Errorf("on the grid: seq %d, late %v, %+v", s.Seq, s.Late, s.Totals)
		}
	})
}

func TestAStormOfAlarmsIsOneTickASecond(t *testing.T) {
	a := newAlarming()
	turning(t, a.machine, every(a, 30*time.Second), func(t *testing.T, mt *Meter) {
		before := mt.Latest()
		for range 3000 {
			a.raise()
			after(20 * time.Millisecond)
		}
		s := mt.Latest()
		if extra := s.Seq - before.Seq; extra < 55 || extra > 62 || s.Totals.LateTicks != 0 {
			t.Errorf("%d ticks in a minute of alarms, %+v", extra, s.Totals)
		}
		after(3 * time.Second)
		quiet := mt.Latest().Seq
		after(20 * time.Second)
		if now := mt.Latest().Seq; now != quiet {
			t.Errorf("%d ticks more when the storm is over", now-quiet)
		}
	})
}

func TestAtAShortIntervalTheGridIsSoonEnough(t *testing.T) {
	a := newAlarming()
	turning(t, a.machine, every(a, time.Second), func(t *testing.T, mt *Meter) {
		for range 100 {
			a.raise()
			after(100 * time.Millisecond)
		}
		if s := mt.Latest(); s.Totals.Alarmed != 0 || s.Totals.Ticks != 11 {
			t.Errorf("%+v", s.Totals)
		}
	})
}

func TestAnAlarmThatAReadingOnTheGridAnsweredIsOver(t *testing.T) {
	a := newAlarming()
	turning(t, a.machine, every(a, 30*time.Second), func(t *testing.T, mt *Meter) {
		after(29500 * time.Millisecond)
		a.raise()
		after(10 * time.Second)
		if s := mt.Latest(); s.Totals.Ticks != 2 || s.Totals.Alarmed != 0 {
			t.Errorf("%+v", s.Totals)
		}
	})
}

func TestAnAlarmDuringAHungTickIsHeardWhenItIsOver(t *testing.T) {
	a := newAlarming()
	turning(t, a.machine, every(a, 30*time.Second), func(t *testing.T, mt *Meter) {
		a.set(func(m *machine) { m.slow, m.deaf = 17*time.Second, true })
		after(32 * time.Second)
		a.set(func(m *machine) {
			m.slow, m.deaf = 0, false
			m.reading.Events = []gpu.Event{xid("GPU-a", 79)}
		})
		a.raise()
		var calls, now int
		a.set(func(m *machine) { calls = m.calls })
		after(14 * time.Second)
		// The tick is over, its call is not.
		a.set(func(m *machine) { now = m.calls })
		if s := mt.Latest(); s.Totals.Ticks != 2 || s.Totals.Alarmed != 0 || now != calls {
			t.Errorf("while the call is outstanding: %+v, %d calls more", s.Totals, now-calls)
		}
		after(3 * time.Second)
		if s := mt.Latest(); s.Totals.XIDs[XIDKey{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: 79}] == 0 || s.Totals.Alarmed == 0 {
			t.Errorf("two seconds after the call came back: %+v", s.Totals)
		}
		a.set(func(m *machine) { m.reading.Events = nil })
	})
}

func TestATickOfAnAlarmDoesNotWaitForOneThatHangs(t *testing.T) {
	a := newAlarming()
	turning(t, a.machine, every(a, 30*time.Second), func(t *testing.T, mt *Meter) {
		after(5 * time.Second)
		a.set(func(m *machine) { m.slow, m.deaf = 8*time.Second, true })
		a.raise()
		after(alarmPatience)
		if s := mt.Latest(); s.Totals.Alarmed != 1 || s.Took > alarmPatience {
			t.Errorf("%+v, took %v", s.Totals, s.Took)
		}
		a.set(func(m *machine) { m.slow, m.deaf = 0, false })
		after(20 * time.Second)
		if s := mt.Latest(); s.Totals.Alarmed != 1 {
			t.Errorf("an alarm that was acted upon is not over: %+v", s.Totals)
		}
	})
}

func TestNewFactsAreFoldedAtOnceAndRepeatedOnesWait(t *testing.T) {
	a := newAlarming()
	rules := someRules(t)
	change := func(c *Config) { every(a, 30*time.Second)(c); c.Health = rules }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		dead := []health.Fact{{GPU: "GPU-a", Kind: health.KindMPSDown, Class: health.ClassReset, Text: "dead"}}
		after(5 * time.Second)
		mt.Report("mps", dead)
		after(time.Millisecond)
		s := mt.Latest()
		if statusOf(t, s, "GPU-a") != health.Unhealthy || s.Totals.Ticks != 2 || s.Totals.Alarmed != 1 {
			t.Errorf("a moment after the news: %v, %+v", statusOf(t, s, "GPU-a"), s.Totals)
		}
		for range 15 {
			mt.Report("mps", dead)
			after(time.Second)
		}
		if s := mt.Latest(); s.Totals.Ticks != 2 {
			t.Errorf("the same facts again and again make %d ticks", s.Totals.Ticks)
		}
		mt.Report("mps", nil)
		after(time.Millisecond)
		if s := mt.Latest(); s.Totals.Ticks != 3 {
			t.Errorf("facts that are taken back wait for the grid: %d ticks", s.Totals.Ticks)
		}
	})
}

func TestNewFactsDoNotWaitForASourceThatHangs(t *testing.T) {
	a := newAlarming()
	rules := someRules(t)
	change := func(c *Config) { every(a, 30*time.Second)(c); c.Health = rules }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		a.set(func(m *machine) { m.slow, m.deaf = 25*time.Second, true })
		after(41 * time.Second)
		mt.Report("mps", []health.Fact{{GPU: "GPU-a", Kind: health.KindMPSDown, Class: health.ClassReset, Text: "dead"}})
		after(alarmPatience + time.Millisecond)
		if s := mt.Latest(); statusOf(t, s, "GPU-a") != health.Unhealthy || s.Totals.Alarmed != 1 {
			t.Errorf("%v, %+v", statusOf(t, s, "GPU-a"), s.Totals)
		}
		a.set(func(m *machine) { m.slow, m.deaf = 0, false })
		after(20 * time.Second)
	})
}

func TestACardThatAReadingLacksIsLookedForAgainSoon(t *testing.T) {
	a := newAlarming()
	rules := someRules(t)
	change := func(c *Config) { every(a, 5*time.Minute)(c); c.Health = rules }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		after(time.Minute)
		whole := a.reading
		a.set(func(m *machine) { m.reading.Devices, m.reading.Samples = m.reading.Devices[1:], m.reading.Samples[1:] })
		a.raise()
		after(time.Millisecond)
		if got := statusOf(t, mt.Latest(), "GPU-a"); got == health.Unhealthy {
			t.Error("one reading without it makes it lost")
		}
		after(11 * time.Second)
		s := mt.Latest()
		if got := statusOf(t, s, "GPU-a"); got != health.Unhealthy || s.Totals.Ticks > 4 {
			t.Errorf("eleven seconds later it is %v, after %d ticks", got, s.Totals.Ticks)
		}
		ticks := s.Totals.Ticks
		after(2 * time.Minute)
		if s := mt.Latest(); s.Totals.Ticks != ticks {
			t.Errorf("%d ticks more for a card that is known to be lost", s.Totals.Ticks-ticks)
		}
		a.set(func(m *machine) { m.reading = whole })
	})
}

func TestANodeWithoutAnyCardIsNotLookedAtMoreOften(t *testing.T) {
	a := newAlarming()
	rules := someRules(t)
	change := func(c *Config) { every(a, time.Minute)(c); c.Health = rules }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		a.set(func(m *machine) { m.reading.Devices, m.reading.Samples = nil, nil })
		after(10 * time.Minute)
		if s := mt.Latest(); s.Totals.Alarmed != 0 {
			t.Errorf("%+v", s.Totals)
		}
	})
}
