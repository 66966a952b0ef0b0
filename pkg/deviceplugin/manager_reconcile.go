// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"time"
)

// idle is how long the Manager waits when nothing is due.
const idle = time.Hour

// reconciler makes what is handed out what the newest state asks for. The Manager's loop alone
// has it.
type reconciler struct {
	manager *Manager
	ctx     context.Context
	running *sync.WaitGroup

	// applied is the state that is followed, nil before the first, with its verdicts.
	applied  *NodeState
	verdicts *book
	version  uint64
	// seen is the newest version known of; since, when the first of those not followed came.
	seen  uint64
	since time.Time

	// present is what is handed out. next is to follow once it is prepared, nil for none.
	present scheme
	next    *scheme
	served  map[string]*endpoint
	// ending are endpoints on their way out, which tell their names on ended.
	ending map[string]bool
	ended  chan string
	// held are the resources that wait for their first Prepare, each with since when.
	held map[string]time.Time

	// inForce is the revision that the Stats have.
	inForce string

	prepare preparation
	// preparing has the end of the Prepare that runs, nil while none does.
	preparing chan prepared
}

func newReconciler(ctx context.Context, m *Manager, running *sync.WaitGroup) *reconciler {
	p := m.host.pace
	return &reconciler{
		manager: m, ctx: ctx, running: running,
		served: map[string]*endpoint{}, ending: map[string]bool{}, ended: make(chan string), held: map[string]time.Time{},
		prepare: preparation{needed: m.config.Prepare != nil, retry: backoff{least: p.prepareLeast, most: p.prepareMost}},
	}
}

// step does what is due, and says for how long nothing else will be.
func (r *reconciler) step(now time.Time) time.Duration {
	wait := r.follow(now)
	if r.applied == nil {
		return wait
	}
	wait = min(wait, r.startPrepare(now))
	return min(wait, r.reconcile(now))
}

// follow takes over the newest state: at once if it is the first or if it withdraws something,
// and else after a moment, so that changes which come together go together.
func (r *reconciler) follow(now time.Time) time.Duration {
	state, verdicts, version := r.manager.latest()
	if version == r.version {
		return idle
	}
	if r.seen == r.version {
		r.since = now
	}
	r.seen = version
	due := r.since.Add(r.manager.host.pace.gather)
	if r.applied != nil && now.Before(due) && !verdicts.worseThan(r.verdicts) {
		return due.Sub(now)
	}
	old := r.applied
	r.applied, r.verdicts, r.version = state, verdicts, version
	if old == nil || !reflect.DeepEqual(old.Inventory, state.Inventory) || !reflect.DeepEqual(old.Settings, state.Settings) {
		r.replan()
	} else {
		r.rename(state.Revision)
	}
	return idle
}

// rename follows settings that have another name and are the same here: what Prepare makes of them
// may be other all the same.
func (r *reconciler) rename(revision string) {
	next := r.present
	if r.next != nil {
		next = *r.next
	}
	if next.revision == revision {
		return
	}
	next.revision = revision
	if !r.prepare.needed {
		r.present = next
		return
	}
	r.next = &next
	r.prepare.due(time.Time{})
}

// replan finds out what is to be handed out now.
func (r *reconciler) replan() {
	next, problems := newScheme(*r.applied, r.manager.config.CDI)
	next.keep(r.present, problems)
	if r.prepare.speaks(next.settings) {
		r.present, r.next = next, nil
	} else {
		r.present, r.next = r.present.without(next.devices), &next
	}
	r.prepare.due(time.Time{})
	r.manager.note(func(s *Stats) { s.Problems = problems })
	for _, problem := range problems {
		r.manager.log.Warn("not everything can be handed out as it should be", "problem", problem)
	}
}

// reconcile tells each endpoint what it has, starts those that are missing, and ends the others. It
// says for how long none of those that are held back is to start.
func (r *reconciler) reconcile(now time.Time) time.Duration {
	wait := idle
	for name, endpoint := range r.served {
		if _, ok := r.present.offers[name]; !ok {
			r.end(name, endpoint)
		}
	}
	for name, o := range r.present.offers {
		seats := r.prepare.ready(o.Seats, r.verdicts)
		l := newList(seats, r.present.devices, r.verdicts)
		if endpoint := r.served[name]; endpoint != nil {
			endpoint.publish(l, o.allocator)
			continue
		}
		// One that is on its way out has to be out first: two of a name confuse the kubelet.
		if len(seats) == 0 || r.ending[name] {
			continue
		}
		if left := r.hold(name, o.Seats, now); left > 0 {
			wait = min(wait, left)
			continue
		}
		r.start(name, l, o.allocator)
	}
	maps.DeleteFunc(r.held, func(name string, _ time.Time) bool { _, ok := r.present.offers[name]; return !ok })
	if r.inForce != r.present.revision {
		r.inForce = r.present.revision
		r.manager.note(func(s *Stats) { s.Revision = r.inForce })
	}
	return wait
}

// hold says for how long yet a resource that is not handed out waits for the first Prepare of all its
// devices: a first list with a part of them would look to the kubelet as if the others were gone.
func (r *reconciler) hold(name string, seats []Seat, now time.Time) time.Duration {
	if !r.prepare.pending(seats, r.verdicts) {
		return 0
	}
	since, ok := r.held[name]
	if !ok {
		since, r.held[name] = now, now
	}
	return since.Add(r.manager.host.pace.firstList).Sub(now)
}

func (r *reconciler) start(name string, l *list, a allocator) {
	m := r.manager
	endpoint := newEndpoint(name, m.host, m.tally(name), m.log, l, a)
	r.served[name] = endpoint
	delete(r.held, name)
	m.log.Info("handing out a resource", "resource", name, "healthy", l.healthy, "unhealthy", l.unhealthy)
	r.running.Go(func() { endpoint.run(r.ctx) })
}

func (r *reconciler) end(name string, endpoint *endpoint) {
	r.manager.log.Info("not handing out a resource any more", "resource", name)
	delete(r.served, name)
	r.ending[name] = true
	endpoint.retire()
	r.running.Go(func() {
		<-endpoint.done
		select {
		case r.ended <- name:
		case <-r.ctx.Done():
		}
	})
}
