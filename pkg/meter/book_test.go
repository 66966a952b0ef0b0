// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// notebook is a Book with moods: its totals are how often it heard something, and the XIDs.
type notebook struct {
	mu       sync.Mutex
	heard    []ledger.Observation
	total    ledger.Totals
	view     *ledger.View
	err      error
	slow     time.Duration
	degrades bool
	// since is when the commit began that is under way.
	since   time.Time
	commits int
}

func newNotebook() *notebook {
	return &notebook{view: &ledger.View{}, total: ledger.Totals{LedgerID: "book", XIDs: map[ledger.XID]uint64{}}}
}

func (n *notebook) set(f func(*notebook)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

func (n *notebook) Observe(o ledger.Observation) {
	n.set(func(n *notebook) {
		n.heard = append(n.heard, o)
		n.total.Sequence++
		n.total.XIDs = maps.Clone(n.total.XIDs)
		for x, count := range o.XIDs {
			n.total.XIDs[x] += count
		}
	})
}

func (n *notebook) Commit() error {
	n.mu.Lock()
	n.commits++
	total, err, slow := n.total, n.err, n.slow
	n.since = time.Now()
	n.mu.Unlock()
	time.Sleep(slow)
	n.set(func(n *notebook) {
		n.since = time.Time{}
		if err == nil {
			n.view = &ledger.View{Totals: &total}
		} else {
			n.view = &ledger.View{Totals: n.view.Totals, State: ledger.BookState{Degraded: n.degrades}}
		}
	})
	return err
}

func (n *notebook) View() *ledger.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.since.IsZero() && time.Since(n.since) >= saveHangs {
		return &ledger.View{Totals: n.view.Totals, State: ledger.BookState{Degraded: true}}
	}
	return n.view
}

// asked is how often it was to commit.
func (n *notebook) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.commits
}

// told is how many observations there were and how many a snapshot shows.
func (n *notebook) told(s *Snapshot) (heard, shown uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.Ledger != nil && s.Ledger.Totals != nil {
		shown = s.Ledger.Totals.Sequence
	}
	return uint64(len(n.heard)), shown
}

func (n *notebook) last() ledger.Observation {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.heard) == 0 {
		return ledger.Observation{}
	}
	return n.heard[len(n.heard)-1]
}

func keeping(n *notebook) func(*Config) { return func(c *Config) { c.Book = n } }

func TestASnapshotShowsWhatIsOnDiskOfItsOwnTick(t *testing.T) {
	m, n := newMachine(), newNotebook()
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		for tick := range uint64(4) {
			if heard, shown := n.told(mt.Latest()); heard != tick+1 || shown != heard {
				t.Errorf("after tick %d the book has heard %d, and %d are shown", tick+1, heard, shown)
			}
			after(10 * time.Second)
		}
		if n, there := mt.Latest().Totals.Faults[FaultKey{SourceLedger, "error"}]; !there || n != 0 {
			t.Errorf("the fault is not counted from zero on: %d, %v", n, there)
		}
	})
}

func TestWithoutABookNothingIsShownOfOne(t *testing.T) {
	turning(t, newMachine(), nil, func(t *testing.T, mt *Meter) {
		if s := mt.Latest(); s.Ledger != nil || Committed(s.Ledger) {
			t.Errorf("%+v", s.Ledger)
		}
	})
}

func TestADiskThatTakesNoChargesCostsNoTickAndShowsNone(t *testing.T) {
	m, n := newMachine(), newNotebook()
	n.err = errors.New("no space left on device")
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		after(30 * time.Second)
		s := mt.Latest()
		heard, shown := n.told(s)
		f, faulty := faultOf(s, SourceLedger)
		if heard != 4 || shown != 0 || Committed(s.Ledger) || !faulty || f.Kind != "error" || !strings.Contains(f.Text, "no space left") {
			t.Errorf("heard %d, shown %d, fault %+v", heard, shown, f)
		}
		n.set(func(n *notebook) { n.err = nil })
		after(10 * time.Second)
		s = mt.Latest()
		if heard, shown := n.told(s); shown != heard || heard != 5 || len(s.Faults) != 0 {
			t.Errorf("with room again: heard %d, shown %d, faults %v", heard, shown, s.Faults)
		}
	})
}

func TestADiskThatHangsHoldsUpOneTickForASecondAndIsAskedOnce(t *testing.T) {
	m, n := newMachine(), newNotebook()
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		n.set(func(n *notebook) { n.slow = 33 * time.Second })
		after(10*time.Second + savePatience)
		s := mt.Latest()
		if heard, shown := n.told(s); s.Took != savePatience || heard != 2 || shown != 1 || len(s.Faults) != 0 {
			t.Errorf("took %v, heard %d, shown %d, faults %v", s.Took, heard, shown, s.Faults)
		}
		after(10 * time.Second)
		s = mt.Latest()
		if f, _ := faultOf(s, SourceLedger); s.Took >= time.Second || f.Kind != "timeout" {
			t.Errorf("the next tick took %v, fault %+v", s.Took, f)
		}
		if n.set(func(n *notebook) { n.slow = 0 }); n.asked() != 2 {
			t.Errorf("%d commits, want the first and the one that hangs", n.asked())
		}
		after(30 * time.Second)
		if heard, shown := n.told(mt.Latest()); heard != shown || len(mt.Latest().Faults) != 0 {
			t.Errorf("when the disk is back: heard %d, shown %d, faults %v", heard, shown, mt.Latest().Faults)
		}
	})
}

func TestAChargeWaitsForTheDiskNoLongerThanItIsTold(t *testing.T) {
	a, n := newAlarming(), newNotebook()
	change := func(c *Config) { every(a, time.Minute)(c); c.Book, c.CommitEvery = n, 10*time.Second }
	turning(t, a.machine, change, func(t *testing.T, mt *Meter) {
		after(3 * time.Second)
		a.raise()
		after(time.Millisecond)
		if heard, shown := n.told(mt.Latest()); heard != 2 || shown != 1 || n.asked() != 1 {
			t.Errorf("after an alarm: heard %d, shown %d, %d commits", heard, shown, n.asked())
		}
		after(7 * time.Second)
		if n.asked() != 2 || n.View().Totals.Sequence != 2 {
			t.Errorf("ten seconds after the last commit there are %d of %d", n.asked(), n.View().Totals.Sequence)
		}
		after(40 * time.Second)
		if n.asked() != 2 {
			t.Errorf("%d commits though nothing has come", n.asked())
		}
		n.set(func(n *notebook) { n.err = errors.New("input/output error") })
		after(25 * time.Second)
		if n.asked() != 4 {
			t.Errorf("%d commits, want one in the tick of the grid and another ten seconds later, as it failed", n.asked())
		}
	})
}

func TestFrequentTicksAreCommittedTogether(t *testing.T) {
	n := newNotebook()
	change := func(c *Config) { c.Book, c.Interval = n, time.Second }
	turning(t, newMachine(), change, func(t *testing.T, mt *Meter) {
		after(60*time.Second + time.Millisecond)
		if heard, shown := n.told(mt.Latest()); heard != 61 || heard-shown > 10 || n.asked() < 6 || n.asked() > 8 {
			t.Errorf("in a minute of ticks: heard %d, shown %d, %d commits", heard, shown, n.asked())
		}
	})
}

func TestAnXIDIsShownByItsOwnTick(t *testing.T) {
	m, n := newMachine(), newNotebook()
	change := func(c *Config) { c.Book, c.CommitEvery = n, 5*time.Minute }
	turning(t, m, change, func(t *testing.T, mt *Meter) {
		after(20 * time.Second)
		if heard, shown := n.told(mt.Latest()); heard != 3 || shown != 1 {
			t.Errorf("heard %d, shown %d", heard, shown)
		}
		happen(m, xid("GPU-a", 31))
		if heard, shown := n.told(mt.Latest()); heard != 4 || shown != 4 || len(mt.Latest().XIDs) != 1 {
			t.Errorf("with an XID: heard %d, shown %d, %v", heard, shown, mt.Latest().XIDs)
		}
		after(20 * time.Second)
		if heard, shown := n.told(mt.Latest()); heard != 6 || shown != 4 {
			t.Errorf("after that: heard %d, shown %d", heard, shown)
		}
	})
}

func TestTheLastTickIsCommittedAtTheEnd(t *testing.T) {
	n := newNotebook()
	change := func(c *Config) { c.Book, c.Interval = n, time.Second }
	turning(t, newMachine(), change, func(t *testing.T, mt *Meter) { after(3 * time.Second) })
	if got := n.View().Totals.Sequence; got != 4 {
		t.Errorf("%d of 4 ticks are on disk", got)
	}
}

func TestADiskThatHangsDoesNotKeepTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := newMachine(), newNotebook()
		mt, err := New(Config{Telemetry: m, Allocations: m, Interval: time.Second, Policy: blend(t), Book: n})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- mt.Run(ctx) }()
		synctest.Wait()
		n.set(func(n *notebook) { n.slow = time.Hour })
		after(20 * time.Second)
		cancel()
		began := time.Now()
		if err := <-done; err != nil || time.Since(began) > 2*lastPatience {
			t.Errorf("the end took %v: %v", time.Since(began), err)
		}
		after(time.Hour)
	})
}

func TestTheBookWaitsForTheFirstListing(t *testing.T) {
	m, n := newMachine(), newNotebook()
	m.listErr = errors.New("the kubelet is away")
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 31))
		after(20 * time.Second)
		if heard, _ := n.told(mt.Latest()); heard != 0 || !Committed(mt.Latest().Ledger) || n.asked() != 1 {
			t.Fatalf("heard %d before anybody knows who holds what; what was there before is shown: %v", heard, mt.Latest().Ledger)
		}
		m.set(func(m *machine) { m.listErr = nil })
		after(10 * time.Second)
		first := n.last()
		if heard, shown := n.told(mt.Latest()); heard != 1 || shown != 1 || lineOf(first, "GPU-a").Holder.Pod != "train" {
			t.Errorf("heard %d, shown %d: %+v", heard, shown, first.Lines)
		}
		if len(first.XIDs) != 1 {
			t.Errorf("what happened before is lost: %v", first.XIDs)
		}
	})
}

func TestTheBookWaitsTwoMinutesForAKubeletAndNoLonger(t *testing.T) {
	m, n := newMachine(), newNotebook()
	m.listErr = errors.New("the kubelet is away")
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		after(firstPatience)
		if heard, _ := n.told(mt.Latest()); heard != 1 || lineOf(n.last(), "GPU-a").Cause != sharing.CauseUnobserved {
			t.Errorf("heard %d: %+v", heard, n.last().Lines)
		}
	})
}

func TestTheBookWaitsForADriverForEver(t *testing.T) {
	m, n := newMachine(), newNotebook()
	m.err = errors.New("the driver is not loaded")
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		after(time.Hour)
		if heard, _ := n.told(mt.Latest()); heard != 0 || n.asked() != 1 {
			t.Fatalf("heard %d of no GPUs, %d commits", heard, n.asked())
		}
		m.set(func(m *machine) { m.err = nil })
		after(10 * time.Second)
		if heard, shown := n.told(mt.Latest()); heard != 1 || shown != 1 || len(n.last().Cards) != 2 {
			t.Errorf("heard %d, shown %d: %+v", heard, shown, n.last().Cards)
		}
	})
}

func TestANodeWithoutGPUsHasABookAsWell(t *testing.T) {
	m, n := newMachine(), newNotebook()
	m.reading.Devices, m.reading.Samples = nil, nil
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		after(firstPatience)
		if heard, shown := n.told(mt.Latest()); heard != 1 || shown != 1 {
			t.Errorf("heard %d, shown %d", heard, shown)
		}
	})
}

func TestWithoutAKubeletTheBookBeginsAtOnce(t *testing.T) {
	n := newNotebook()
	turning(t, newMachine(), func(c *Config) { c.Book, c.Allocations = n, nil }, func(t *testing.T, mt *Meter) {
		if heard, _ := n.told(mt.Latest()); heard != 1 {
			t.Errorf("heard %d", heard)
		}
	})
}

// changing is a machine whose listings raise alarms.
type changing struct {
	*machine
	alarms chan struct{}
}

func (c *changing) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	return c.machine.Read(ctx, fields)
}

// Alarms makes the channel within the bubble of time that the Meter is in.
func (c *changing) Alarms() <-chan struct{} {
	c.alarms = make(chan struct{}, 1)
	return c.alarms
}

func TestAPodThatComesIsSeenAtOnce(t *testing.T) {
	m, n := newMachine(), newNotebook()
	c := &changing{machine: m}
	// The telemetry of this meter raises no alarms.
	change := func(cfg *Config) {
		cfg.Allocations, cfg.Interval, cfg.Book = c, 30*time.Second, n
	}
	turning(t, m, change, func(t *testing.T, mt *Meter) {
		after(12 * time.Second)
		m.set(func(m *machine) {
			short := m.listing.Allocations[0]
			short.Holder.Pod, short.DeviceID = "short", "GPU-b"
			m.listing.Allocations = append(m.listing.Allocations[:1:1], short)
		})
		c.alarms <- struct{}{}
		after(time.Millisecond)
		if s := mt.Latest(); s.Seq != 2 || s.Totals.Alarmed != 1 || lineOf(n.last(), "GPU-b").Holder.Pod != "short" {
			t.Errorf("seq %d, %+v: %+v", s.Seq, s.Totals, n.last().Lines)
		}
		m.set(func(m *machine) { m.slow, m.deaf = time.Hour, true })
		m.set(func(m *machine) { m.listing.Allocations = m.listing.Allocations[:1] })
		for range 3 {
			c.alarms <- struct{}{}
			after(2100 * time.Millisecond)
		}
		if s := mt.Latest(); s.Totals.Alarmed < 3 || lineOf(n.last(), "GPU-b").Holder.Pod != "" {
			t.Errorf("while the driver hangs: %+v: %+v", s.Totals, n.last().Lines)
		}
		m.set(func(m *machine) { m.deaf = false })
		after(time.Hour)
	})
}

func TestXIDsGoOnOverARestart(t *testing.T) {
	m, n := newMachine(), newNotebook()
	key := XIDKey{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: 31}
	for life := range uint64(3) {
		turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
			happen(m, xid("GPU-a", 31), xid("GPU-a", 31))
			if s := mt.Latest(); s.XIDs[key] != 2*(life+1) || s.Totals.XIDs[key] != 2 {
				t.Errorf("life %d: %d over restarts, %d in this process", life, s.XIDs[key], s.Totals.XIDs[key])
			}
		})
	}
}

func TestXIDsAreToldWhileTheDiskIsOfNoUseAndNeverFall(t *testing.T) {
	m, n := newMachine(), newNotebook()
	key := XIDKey{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: 31}
	n.total.XIDs[ledger.XID{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 31}] = 7
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 31))
		if got := mt.Latest().XIDs[key]; got != 8 {
			t.Errorf("%d, want 7 from before and one", got)
		}
		n.set(func(n *notebook) { n.err, n.degrades = errors.New("read-only file system"), true })
		happen(m, xid("GPU-a", 31))
		happen(m, xid("GPU-a", 31))
		if got := mt.Latest().XIDs[key]; got != 10 {
			t.Errorf("%d while the disk takes nothing, want 10", got)
		}
		n.set(func(n *notebook) { n.err = nil })
		after(10 * time.Second)
		if got := mt.Latest().XIDs[key]; got != 10 {
			t.Errorf("%d after that, want 10", got)
		}
	})
}

func TestXIDsDoNotFallWhenADiskThatHungAnswersAtLast(t *testing.T) {
	m, n := newMachine(), newNotebook()
	key := XIDKey{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: 31}
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 31))
		n.set(func(n *notebook) { n.slow = 25 * time.Second })
		var last uint64
		for range 12 {
			m.set(func(m *machine) { m.reading.Events = []gpu.Event{xid("GPU-a", 31)} })
			for range 10 {
				after(time.Second)
				got := mt.Latest().XIDs[key]
				if got < last {
					t.Errorf("%d after %d", got, last)
				}
				last = got
			}
			m.set(func(m *machine) { m.reading.Events = nil })
		}
		n.set(func(n *notebook) { n.slow = 0 })
		after(time.Minute)
		if got := mt.Latest().XIDs[key]; got != 13 {
			t.Errorf("%d in the end, want 13", got)
		}
	})
}

// frozen is a machine on which the whole process is frozen in a tick, and a kubelet that answered before that.
type frozen struct {
	*machine
	span atomic.Int64
	// answered says that the answer is from before it, and is heard after it.
	answered bool
}

func (f *frozen) freeze() string {
	time.Sleep(time.Duration(f.span.Swap(0)))
	return "boot"
}

func (f *frozen) List(ctx context.Context) (sharing.Listing, error) {
	l, err := f.machine.List(ctx)
	if span := f.span.Load(); f.answered && span > 0 {
		time.Sleep(time.Duration(span))
	}
	return l, err
}

// Who held a GPU before the process was frozen may be gone since: only who is asked after it can say.
func TestATickThatWasFrozenProvesNothing(t *testing.T) {
	for name, answered := range map[string]bool{"asked before it": false, "asked before it and heard after it": true} {
		t.Run(name, func(t *testing.T) {
			f, n, rules := &frozen{machine: newMachine(), answered: answered}, newNotebook(), someRules(t)
			change := func(c *Config) {
				c.Book, c.Allocations, c.Interval, c.Health, c.BootID = n, f, time.Second, rules, f.freeze
			}
			turning(t, f.machine, change, func(t *testing.T, mt *Meter) {
				after(10 * time.Second)
				if lineOf(n.last(), "GPU-a").Holder.Pod != "train" {
					t.Fatalf("%+v", n.last().Lines)
				}
				f.span.Store(int64(43 * time.Second))
				after(1500 * time.Millisecond)
				thawed := n.last().At.Boot + 40_000
				f.set(func(m *machine) { m.listing.Allocations = nil })
				after(time.Minute)
				heard := 0
				for _, o := range n.heard {
					if o.At.Boot < thawed {
						continue
					}
					heard++
					if l := lineOf(o, "GPU-a"); l.Cause != sharing.CauseFree {
						t.Errorf("at %d ms it is told of %s", o.At.Boot, l.Holder.Pod)
					}
				}
				if heard < 10 {
					t.Errorf("heard %d times after it", heard)
				}
			})
		})
	}
}

// A kubelet that is silent for a while after it costs what its last answer is too old for, and no false proof.
func TestAfterAFrozenTickTheKubeletIsWaitedFor(t *testing.T) {
	f, n, rules := &frozen{machine: newMachine()}, newNotebook(), someRules(t)
	change := func(c *Config) {
		c.Book, c.Allocations, c.Interval, c.Health, c.BootID = n, f, time.Second, rules, f.freeze
	}
	turning(t, f.machine, change, func(t *testing.T, mt *Meter) {
		after(10 * time.Second)
		f.set(func(m *machine) { m.listErr = errors.New("the kubelet is away") })
		f.span.Store(int64(43 * time.Second))
		after(time.Minute)
		if now := n.last().At.Boot; now > 13_000 {
			t.Errorf("told of %s at %d ms", lineOf(n.last(), "GPU-a").Holder.Pod, now)
		}
		after(5 * time.Minute)
		if l := lineOf(n.last(), "GPU-a"); n.last().At.Boot < 300_000 || l.Cause != sharing.CauseUnobserved {
			t.Errorf("in the end it is told of %+v", l)
		}
	})
}

func TestXIDsOfADiskThatNeverWorkedAreThoseOfTheProcess(t *testing.T) {
	m, n := newMachine(), newNotebook()
	n.err = errors.New("read-only file system")
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		happen(m, xid("GPU-a", 31))
		if got := mt.Latest().XIDs; got != nil {
			t.Errorf("%v while it is not known what was counted before", got)
		}
		n.set(func(n *notebook) { n.degrades = true })
		after(10 * time.Second)
		if got := mt.Latest().XIDs; len(got) != 1 {
			t.Errorf("%v though the disk is of no use", got)
		}
	})
}

func TestXIDsFromBeforeTheFirstListingAreCountedOnce(t *testing.T) {
	m, n := newMachine(), newNotebook()
	key := XIDKey{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: 31}
	n.total.XIDs[ledger.XID{GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 31}] = 7
	m.listErr = errors.New("the kubelet is away")
	m.reading.Events = []gpu.Event{{Kind: gpu.EventXID, GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 31}}
	turning(t, m, keeping(n), func(t *testing.T, mt *Meter) {
		m.set(func(m *machine) { m.reading.Events, m.listErr = nil, nil })
		after(10 * time.Second)
		n.set(func(n *notebook) { n.err, n.degrades = errors.New("read-only file system"), true })
		after(10 * time.Second)
		if got := mt.Latest().XIDs[key]; got != 8 {
			t.Errorf("%d, want 7 from before and one", got)
		}
	})
}
