// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// Supervisor keeps a node's control daemons. It is safe for concurrent use.
type Supervisor struct {
	cfg Config

	mu   sync.Mutex
	plan Plan
	// wanted counts the plans, reconciled is the last that was carried out.
	wanted, reconciled uint64
	keepers            map[string]*keeper
	// changed closes at the next change of anything.
	changed chan struct{}
	// over says that Run has ended.
	over bool

	// The others are Run's alone.

	// exclusive are the GPUs that were put into another compute mode.
	exclusive map[gpu.UUID]bool
	reported  []health.Fact
	told      bool
}

// New makes a Supervisor and starts nothing.
func New(cfg Config) *Supervisor {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Report == nil {
		cfg.Report = func([]health.Fact) {}
	}
	if cfg.pace == (pace{}) {
		cfg.pace = usualPace()
	}
	return &Supervisor{cfg: cfg, keepers: map[string]*keeper{}, changed: make(chan struct{}), exclusive: map[gpu.UUID]bool{}}
}

// Ensure makes a plan the one that holds, and waits until each of its daemons has answered or
// failed, until ctx ends, or until Run has ended. Daemons that the plan does not change are not
// disturbed; one of which only the limits change is told them; one with other GPUs is replaced,
// which ends its clients.
func (s *Supervisor) Ensure(ctx context.Context, p Plan) {
	s.mu.Lock()
	if s.wanted == 0 || !reflect.DeepEqual(s.plan, p) {
		s.plan = p
		s.wanted++
		s.broadcast()
	}
	version := s.wanted
	s.mu.Unlock()
	for {
		settled, changed := s.settled(version)
		if settled {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// settled says whether it is known how a plan went.
func (s *Supervisor) settled(version uint64) (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over || s.reconciled >= version && s.allSettled(), s.changed
}

func (s *Supervisor) allSettled() bool {
	for _, k := range s.keepers {
		if _, state := k.now(); !state.settled {
			return false
		}
	}
	return true
}

// broadcast wakes who waits for changes. The lock is held.
func (s *Supervisor) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Supervisor) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broadcast()
}

// Run keeps the daemons until ctx ends. Then it ends those that it has started, which ends their
// clients too, and returns nil.
func (s *Supervisor) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		plan, version, changed := s.plan, s.wanted, s.changed
		behind := s.reconciled < version
		s.mu.Unlock()
		if behind {
			s.reconcile(ctx, plan)
			s.mu.Lock()
			s.reconciled = version
			s.broadcast()
			s.mu.Unlock()
			continue
		}
		s.report(version)
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	s.reconcile(ctx, Plan{})
	s.mu.Lock()
	s.over = true
	s.broadcast()
	s.mu.Unlock()
	return nil
}

// reconcile ends what a plan does not have before it starts what is new, so that no GPU is with
// two daemons.
func (s *Supervisor) reconcile(ctx context.Context, p Plan) {
	next, old := map[string]*keeper{}, s.keepers
	inherited := map[string]string{}
	var leaving sync.WaitGroup
	for name, k := range old {
		i := slices.IndexFunc(p.Daemons, func(d Daemon) bool { return d.Resource == name })
		has, state := k.now()
		if i >= 0 && k.place.root == p.Root && has.sameProcess(p.Daemons[i]) {
			next[name] = k
			continue
		}
		inherited[name] = state.down
		leaving.Go(k.stop)
	}
	leaving.Wait()
	s.restore(ctx, p)
	for _, d := range p.Daemons {
		if k := next[d.Resource]; k != nil {
			if has, _ := k.now(); !reflect.DeepEqual(has, d) {
				k.want(d)
			}
			continue
		}
		k := newKeeper(&s.cfg, p.Root, d, s.wake)
		// A fact that stands does not end for the moment of a new start.
		k.state.down = inherited[d.Resource]
		next[d.Resource] = k
		k.start(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepers = next
}

const restorePatience = 10 * time.Second

// restore puts GPUs that are not shared any more back into the compute mode DEFAULT.
func (s *Supervisor) restore(ctx context.Context, p Plan) {
	if s.cfg.External || s.cfg.SetExclusive == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restorePatience)
	defer cancel()
	stay := map[gpu.UUID]bool{}
	for _, d := range p.Daemons {
		for _, uuid := range d.uuids() {
			stay[uuid] = true
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(s.exclusive)) {
		if stay[uuid] {
			continue
		}
		if err := s.cfg.SetExclusive(ctx, uuid, false); err != nil {
			s.cfg.Log.Warn("a GPU that is not shared by MPS any more could not be put back into the compute mode DEFAULT; do it by nvidia-smi -c DEFAULT",
				"gpu", uuid, "error", err)
		}
	}
	s.exclusive = stay
}

// report tells all that is wrong, if it has changed. The first time it waits until all is known,
// since it takes back what was said before a restart of this program.
func (s *Supervisor) report(version uint64) {
	settled, _ := s.settled(version)
	if version == 0 || !s.told && !settled {
		return
	}
	facts := s.facts()
	if s.told && slices.Equal(facts, s.reported) {
		return
	}
	s.told, s.reported = true, facts
	s.cfg.Report(slices.Clone(facts))
}

// facts are ordered, and their texts do not change while nothing else does.
func (s *Supervisor) facts() []health.Fact {
	var out []health.Fact
	add := func(class health.Class, kind health.Kind, uuid gpu.UUID, text string) {
		out = append(out, health.Fact{GPU: uuid, Kind: kind, Class: class, Text: text})
	}
	for _, k := range s.keepers {
		d, state := k.now()
		for _, uuid := range d.uuids() {
			if state.down != "" {
				add(health.ClassReset, health.KindMPSDown, uuid, "the MPS control daemon of "+d.Resource+": "+state.down)
			}
			if state.limits != "" {
				add(health.ClassWatch, KindLimits, uuid, "the MPS control daemon of "+d.Resource+" did not take its limits: "+state.limits)
			}
			if why := state.modes[uuid]; why != "" {
				add(health.ClassWatch, KindComputeMode, uuid, "not in EXCLUSIVE_PROCESS, so that programs beside MPS can use it: "+why)
			}
		}
	}
	slices.SortFunc(out, func(a, b health.Fact) int { return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Kind, b.Kind)) })
	return out
}
