// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// disk is a Store with moods.
type disk struct {
	mu    sync.Mutex
	err   error
	slow  time.Duration
	saved []health.State
	calls int
}

func (d *disk) set(f func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func (d *disk) Save(s health.State) error {
	d.mu.Lock()
	d.calls++
	err, slow := d.err, d.slow
	d.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	if err == nil {
		d.set(func(d *disk) { d.saved = append(d.saved, s) })
	}
	return err
}

// last is what was saved last, and how often there was a call.
func (d *disk) last() (health.State, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.saved) == 0 {
		return health.State{}, d.calls
	}
	return d.saved[len(d.saved)-1], d.calls
}

func TestAVerdictIsOnDiskBeforeItIsPublished(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	saves := 0
	turning(t, m, func(c *Config) { c.Health, c.Conditions = rules, d }, func(t *testing.T, mt *Meter) {
		_, calls := d.last()
		after(50 * time.Second)
		if _, now := d.last(); now != calls {
			t.Errorf("%d more saves within a minute in which nothing happened", now-calls)
		}
		after(20 * time.Second)
		if _, now := d.last(); now != calls+1 {
			t.Errorf("%d more saves after a minute, want one for the running times", now-calls)
		}
		happen(m, xid("GPU-a", 79))
		s := mt.Latest()
		saved, _ := d.last()
		if v, _ := saved.Report().Verdict("GPU-a"); v.Status != health.Unhealthy || !s.HealthStore.Saved || s.HealthStore.Err != "" || !s.HealthStore.At.Equal(s.Time) {
			t.Errorf("on disk: %v; told: %+v", v.Status, s.HealthStore)
		}
		_, calls = d.last()
		after(time.Minute)
		if _, now := d.last(); now != calls+6 {
			t.Errorf("%d more saves in a minute in which a device was unhealthy, want one each 10 s", now-calls)
		}
		_, saves = d.last()
	})
	if _, now := d.last(); now != saves+1 {
		t.Errorf("%d saves at the end, want one", now-saves)
	}
}

func TestADiskThatFailsCostsNoVerdictAndIsTriedUntilItWorks(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.Conditions = rules, d }, func(t *testing.T, mt *Meter) {
		if n, there := mt.Latest().Totals.Faults[FaultKey{SourceConditions, "error"}]; !there || n != 0 {
			t.Errorf("the fault is not counted from zero on: %d, %v", n, there)
		}
		d.set(func(d *disk) { d.err = errors.New("no space left on device") })
		happen(m, xid("GPU-a", 79))
		after(20 * time.Second)
		s := mt.Latest()
		f, ok := faultOf(s, SourceConditions)
		if !ok || f.Kind != "error" || !strings.Contains(f.Text, "no space left") || s.HealthStore.Saved || !strings.Contains(s.HealthStore.Err, "no space left") {
			t.Errorf("fault %+v, %+v", f, s.HealthStore)
		}
		if got := statusOf(t, s, "GPU-a"); got != health.Unhealthy {
			t.Errorf("a full disk hides a broken GPU: %v", got)
		}
		d.set(func(d *disk) { d.err = nil })
		after(10 * time.Second)
		s = mt.Latest()
		saved, _ := d.last()
		if v, _ := saved.Report().Verdict("GPU-a"); !s.HealthStore.Saved || s.HealthStore.Err != "" || v.Status != health.Unhealthy {
			t.Errorf("with room again: %+v, on disk %v", s.HealthStore, v.Status)
		}
		if _, ok := faultOf(s, SourceConditions); ok {
			t.Errorf("faults %v", s.Faults)
		}
	})
}

func TestADiskThatHangsDoesNotStopTheMeter(t *testing.T) {
	m, d := newMachine(), &disk{}
	rules := someRules(t)
	turning(t, m, func(c *Config) { c.Health, c.Conditions = rules, d }, func(t *testing.T, mt *Meter) {
		d.set(func(d *disk) { d.slow = 33 * time.Second })
		before, start := mt.Latest().Seq, time.Now()
		happen(m, xid("GPU-a", 79))
		after(savePatience)
		s := mt.Latest()
		if s.Seq != before+1 || s.Took < savePatience || s.HealthStore.Saved || statusOf(t, s, "GPU-a") != health.Unhealthy {
			t.Errorf("after %v: seq %d took %v %+v", time.Since(start), s.Seq, s.Took, s.HealthStore)
		}
		if len(s.Faults) != 0 {
			t.Errorf("a second is no fault yet: %v", s.Faults)
		}
		after(11 * time.Second)
		if f, ok := faultOf(mt.Latest(), SourceConditions); !ok || f.Kind != "timeout" {
			t.Errorf("faults %v", mt.Latest().Faults)
		}
		if _, calls := d.last(); calls != 2 {
			t.Errorf("%d calls, want one at the start and one that hangs", calls)
		}
		happen(m, xid("GPU-b", 79))
		d.set(func(d *disk) { d.slow = 0 })
		after(19 * time.Second)
		s = mt.Latest()
		saved, _ := d.last()
		if v, _ := saved.Report().Verdict("GPU-b"); !s.HealthStore.Saved || v.Status != health.Unhealthy || len(s.Faults) != 0 {
			t.Errorf("in the first tick after the disk is back: %+v, on disk %v, faults %v", s.HealthStore, v.Status, s.Faults)
		}
	})
}
