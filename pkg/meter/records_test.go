// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// countedOf is what a report counts of a device.
func countedOf(r *health.Report, device gpu.UUID) (unhealthy time.Duration, transitions, clearings uint64) {
	for _, rec := range r.Records {
		if rec.Device != device {
			continue
		}
		for _, n := range rec.Transitions {
			transitions += n
		}
		return rec.Unhealthy, transitions, rec.Clearings
	}
	return 0, 0, 0
}

// fell says which counter of a device is less than it was.
func fell(now, before *health.Report, device gpu.UUID) string {
	u, t, c := countedOf(now, device)
	was, wast, wasc := countedOf(before, device)
	switch {
	case u < was:
		return "unhealthy " + u.String() + " after " + was.String()
	case t < wast:
		return "transitions"
	case c < wasc:
		return "clearings"
	}
	return ""
}

func TestWhatIsCountedIsOnDiskWheneverTheProcessIsKilled(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	moods := []func(*disk){
		func(d *disk) { d.err, d.slow = nil, 0 },
		func(d *disk) { d.slow = 1500 * time.Millisecond },
		func(d *disk) { d.err, d.slow = errors.New("no space left on device"), 0 },
		func(d *disk) { d.err, d.slow = nil, 25*time.Second },
	}
	change := func(c *Config) { c.Health, c.Conditions, c.Interval = rules, d, 3*time.Second }
	var published *health.Report
	var atDeath health.State
	turning(t, m, change, func(t *testing.T, mt *Meter) {
		before := mt.Latest().Health
		for i := range 400 {
			d.set(moods[i/7%len(moods)])
			if i%50 == 10 {
				m.set(func(m *machine) { m.reading.Events = []gpu.Event{xid("GPU-a", 79)} })
			}
			if i%50 == 40 {
				m.set(func(m *machine) { m.reading.Events = nil })
				_, _ = mt.Clear(t.Context(), health.Clearing{Device: "GPU-a", Reason: "seated again", By: "uid 0"})
			}
			after(time.Second)
			published = mt.Latest().Health
			atDeath, _ = d.last()
			if why := fell(published, before, "GPU-a"); why != "" {
				t.Fatalf("in second %d they fell: %s", i, why)
			}
			if why := fell(atDeath.Report(), published, "GPU-a"); why != "" {
				t.Fatalf("killed in second %d, a restart would begin with less than was told: %s", i, why)
			}
			before = published
		}
		if u, transitions, clearings := countedOf(published, "GPU-a"); u < time.Minute || transitions < 8 || clearings < 4 {
			t.Errorf("hardly anything was counted: %v, %d, %d", u, transitions, clearings)
		}
		d.set(moods[0])
		after(30 * time.Second)
	})
	m = newMachine()
	turning(t, m, func(c *Config) { change(c); c.HealthState = atDeath; c.Conditions = &disk{} }, func(t *testing.T, mt *Meter) {
		if why := fell(mt.Latest().Health, published, "GPU-a"); why != "" {
			t.Errorf("after the restart: %s", why)
		}
	})
}

func TestWhatIsCountedGoesOnWhenNothingCanBeSavedForLong(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.Conditions = rules, d }, func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 79))
		d.set(func(d *disk) { d.err = errors.New("read-only file system") })
		after(time.Minute)
		early, _, _ := countedOf(mt.Latest().Health, "GPU-a")
		if early > 10*time.Second {
			t.Errorf("after a minute of failing, %v are told that nobody would remember", early)
		}
		after(2 * time.Minute)
		late, _, _ := countedOf(mt.Latest().Health, "GPU-a")
		if f, _ := faultOf(mt.Latest(), SourceConditions); late < 2*time.Minute || !strings.Contains(f.Text, "counters of health would fall") {
			t.Errorf("after three minutes: %v; fault %q", late, f.Text)
		}
		d.set(func(d *disk) { d.err = nil })
		after(20 * time.Second)
		s := mt.Latest()
		saved, _ := d.last()
		now, _, _ := countedOf(s.Health, "GPU-a")
		kept, _, _ := countedOf(saved.Report(), "GPU-a")
		if now <= late || kept < now || len(s.Faults) != 0 {
			t.Errorf("with a good disk again: %v after %v, %v on disk, faults %v", now, late, kept, s.Faults)
		}
	})
}

func TestWhatIsCountedDoesNotFallWhenAnOldSaveIsDoneAtLast(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.Conditions = rules, d }, func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 79))
		d.set(func(d *disk) { d.err = errors.New("no space left on device") })
		before := mt.Latest().Health
		for i := range 30 {
			if i == 10 {
				d.set(func(d *disk) { d.err, d.slow = nil, 65*time.Second })
			}
			after(10 * time.Second)
			now := mt.Latest().Health
			if why := fell(now, before, "GPU-a"); why != "" {
				t.Errorf("in tick %d they fell: %s", i, why)
			}
			before = now
		}
		d.set(func(d *disk) { d.slow = 0 })
		after(unsavedLimit + time.Minute)
	})
}
