// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// defaultPatience is how long a reading waits whose context has no deadline.
const defaultPatience = 10 * time.Second

// cardState is what readings know of one GPU of DCGM's numbering.
type cardState struct {
	id     uint32
	worker *worker[cardJob, cardAnswer]
	// devices are the last that were known, empty for a GPU that is gone; listed are those that
	// the last inventory has.
	devices, listed []gpu.Device
	lost            bool
	// told says that the worker has had a job since the GPU was last gone.
	told bool
	// answer is that of this reading, valid where answered is set.
	answer   cardAnswer
	answered bool
}

// Read answers the fields of every GPU, GPU instance, link, switch, CPU and core that there is
// and that is selected. It waits at most nine tenths of the time that ctx leaves, and 10 s
// where ctx has no deadline; what has not answered by then is absent, and its GPU in trouble.
// An error has a Kind: "connection" where the engine is gone, "released" after Release,
// "timeout" where the engine has never said which GPUs there are. Events wait for a Read that
// returns no error.
func (s *Source) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Reading{}, fmt.Errorf("read DCGM: %w", err)
	}
	left := s.connection.leaving()
	if isClosed(left) {
		return gpu.Reading{}, s.connection.outage()
	}
	if err := s.takeTurn(ctx, left); err != nil {
		return gpu.Reading{}, fmt.Errorf("read DCGM: %w", err)
	}
	defer s.giveTurn()
	wait, done := s.patience(ctx)
	defer done()

	ss, err := s.connection.current(wait)
	if err != nil {
		return gpu.Reading{}, err
	}
	if s.cols == nil || !slices.Equal(s.cols.fields, fields) {
		s.cols = newColumns(fields, s.library.field)
	}
	seen, err := s.surveyed(wait, ss)
	if seen == nil {
		return gpu.Reading{}, s.why(ctx, ss, err)
	}
	s.ask(ss, seen)
	s.collect(wait, seen)
	s.sample(wait, ss, seen)
	if ss.over() || isClosed(left) || s.ctx.Err() != nil || errors.Is(ctx.Err(), context.Canceled) {
		return gpu.Reading{}, s.why(ctx, ss, ctx.Err())
	}
	return s.assemble(seen, err), nil
}

// why is the reason that there is no reading.
func (s *Source) why(ctx context.Context, ss *session, err error) error {
	if s.ctx.Err() != nil {
		return closedOutage()
	}
	if ss.over() || isClosed(s.connection.leaving()) {
		return s.connection.outage()
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("read DCGM: %w", ctx.Err())
	}
	return err
}

// takeTurn waits for the reading before, until left closes.
func (s *Source) takeTurn(ctx context.Context, left <-chan struct{}) error {
	select {
	case s.turn <- struct{}{}:
		if s.ctx.Err() != nil {
			s.giveTurn()
			return closedOutage()
		}
		return nil
	case <-s.ctx.Done():
		return closedOutage()
	case <-left:
		return s.connection.outage()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Source) giveTurn() { <-s.turn }

// patience is a context that ends a little before ctx, so that what has answered can still be
// told, and with the source.
func (s *Source) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	left := defaultPatience
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
		left -= left / 10
	}
	wait, cancel := context.WithTimeout(ctx, left)
	stop := context.AfterFunc(s.ctx, cancel)
	return wait, func() {
		stop()
		cancel()
	}
}

// remaining is the time until ctx's deadline.
func remaining(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline)
}

// ask begins the jobs of this reading. A worker that is behind with an earlier one gets none.
func (s *Source) ask(ss *session, seen *survey) {
	for _, id := range seen.all {
		if i, found := s.card(id); !found {
			c := &card{settings: &s.settings, id: id}
			s.cards = slices.Insert(s.cards, i, &cardState{id: id, worker: newWorker(c.read, c.free)})
		}
	}
	for _, c := range s.cards {
		s.hear(c)
		c.answered = false
		listed := slices.Contains(seen.all, c.id)
		if c.worker.busy() || !listed && !c.told {
			continue
		}
		c.told = true
		c.worker.begin(s.job(c, seen))
	}
	for _, f := range s.shelves() {
		if a, ok := f.worker.late(); ok {
			f.spots = a.rows.spots
		}
		f.answered = false
		if len(s.cols.ids(f.scopes...)) > 0 && !f.worker.busy() {
			f.worker.begin(shelfJob{ss: ss, cols: s.cols, gpus: seen.supported})
		}
	}
}

// job is a reading of one GPU.
func (s *Source) job(c *cardState, seen *survey) cardJob {
	return cardJob{
		ss: seen.ss, cols: s.cols, instances: seen.instances[c.id],
		listed: slices.Contains(seen.all, c.id), supported: seen.has(c.id), crowded: seen.crowded(),
	}
}

// card is where a GPU is, or belongs, among the cards.
func (s *Source) card(id uint32) (int, bool) {
	return slices.BinarySearchFunc(s.cards, id, func(c *cardState, id uint32) int { return cmp.Compare(c.id, id) })
}

// hear takes in what a GPU's worker answered after its reading was over. The values are of a
// time that has passed; the events are not to be lost.
func (s *Source) hear(c *cardState) {
	if a, ok := c.worker.late(); ok {
		s.absorb(c, a)
	}
}

func (s *Source) absorb(c *cardState, a cardAnswer) {
	if a.listened {
		if a.news {
			s.raise()
		}
		return
	}
	s.events.add(a.events)
	c.devices, c.lost = a.devices, a.lost
	c.told = !a.gone
	if a.driver != "" {
		s.setDriver(a.driver)
	}
}

// collect waits for the answers of this reading.
func (s *Source) collect(wait context.Context, seen *survey) {
	for _, c := range s.cards {
		for c.worker.busy() {
			a, ok := c.worker.take(wait.Done())
			if !ok {
				break
			}
			s.absorb(c, a)
			if a.listened {
				// It was slow, and is over: now for the reading.
				c.worker.begin(s.job(c, seen))
				continue
			}
			c.answer, c.answered = a, true
		}
	}
	for _, f := range s.shelves() {
		if !f.worker.busy() {
			continue
		}
		if a, ok := f.worker.take(wait.Done()); ok {
			f.answer, f.answered, f.spots = a, true, a.rows.spots
			s.setThere(f, a.there)
		}
	}
}

// sample has the engine sample what is newly watched, where it does not do so by itself, and
// reads those GPUs again. It is the clerk's errand, because it waits for all GPUs, of which one
// may hang.
func (s *Source) sample(wait context.Context, ss *session, seen *survey) {
	unsampled := func(c *cardState) bool { return c.answered && c.answer.unsampled }
	if s.clerk.busy() || !slices.ContainsFunc(s.cards, unsampled) {
		return
	}
	half, done := context.WithTimeout(wait, remaining(wait)/2)
	defer done()
	s.clerk.begin(clerkJob{ss: ss, what: errandSample})
	if _, ok := s.clerk.take(half.Done()); !ok {
		return
	}
	for _, c := range s.cards {
		if unsampled(c) {
			c.answered = false
			c.worker.begin(s.job(c, seen))
		}
	}
	s.collect(wait, seen)
}

// assemble makes the reading out of the answers; surveyErr is why the inventory is an older one.
func (s *Source) assemble(seen *survey, surveyErr error) gpu.Reading {
	r := gpu.Reading{
		Time: time.Now(), Source: SourceName, Origin: s.Origin(),
		Fields: s.cols.fields, Devices: s.inventory(),
	}
	if surveyErr != nil {
		r.Troubles = append(r.Troubles, troubleOf(surveyErr).of(""))
	}
	if len(seen.all) == 0 {
		r.Troubles = append(r.Troubles, s.noGPU(seen.ss))
	}
	b := s.builder(&r, seen.ss)
	for _, c := range s.cards {
		b.addCard(c)
	}
	for _, f := range s.shelves() {
		if len(s.cols.ids(f.scopes...)) > 0 {
			b.addShelf(f)
		}
	}
	b.forget()
	var dropped int
	if r.Events, dropped = s.events.take(); dropped > 0 {
		r.Troubles = append(r.Troubles, gpu.Trouble{Reason: gpu.ReasonError, Text: fmt.Sprintf("%d events were dropped, because no reading took them", dropped)})
	}
	s.addHealth(&r, seen)
	s.addPeers(&r, seen)
	return r
}

// noGPU is the trouble of an engine that has never seen a GPU. One in this process is started
// again from time to time, since it may have come before the driver.
func (s *Source) noGPU(ss *session) gpu.Trouble {
	t := gpu.Trouble{Reason: gpu.ReasonNotFound, Text: fmt.Sprintf("DCGM (%s) sees no GPU; is the NVIDIA driver loaded?", s.cfg.Endpoint)}
	if s.cfg.Endpoint.Embedded() && time.Since(ss.began) >= s.settings.pauses.relook {
		ss.renew(errors.New("it saw no GPU and is started again"))
	}
	return t
}

// inventory are all devices: the last slice where nothing has changed.
func (s *Source) inventory() []gpu.Device {
	changed := false
	for _, c := range s.cards {
		changed = changed || !sameSlice(c.devices, c.listed)
		c.listed = c.devices
	}
	if !changed {
		return s.devices
	}
	before := s.devices
	s.devices, s.named = nil, map[uint32]gpu.UUID{}
	for _, c := range s.cards {
		s.devices = append(s.devices, c.devices...)
		if len(c.devices) > 0 && !c.lost {
			s.named[c.id] = c.devices[0].UUID
		}
	}
	s.settings.log.Info("the inventory has changed", "gpus", len(s.named), "devices", len(s.devices),
		"came", without(s.devices, before), "went", without(before, s.devices))
	return s.devices
}

// addHealth adds the last round of health checks, if it is asked for.
func (s *Source) addHealth(r *gpu.Reading, seen *survey) {
	if !s.cols.health {
		s.health.stop(seen.ss)
		return
	}
	s.health.tend(seen, maps.Clone(s.named), func(id uint32) bool {
		i, found := s.card(id)
		return found && s.cards[i].worker.busy()
	})
	r.Health = s.health.report()
	if r.Health.Time.After(r.Time) {
		r.Time = r.Health.Time
	}
	r.Troubles = append(r.Troubles, s.health.troubles()...)
}

// addPeers adds the ways between the GPUs, if they are asked for.
func (s *Source) addPeers(r *gpu.Reading, seen *survey) {
	if !s.cols.peers {
		return
	}
	s.hearClerk()
	r.Peers = s.peers.peers(s.named)
	// A library that cannot tell them is older, and not in trouble.
	if s.peers.err != nil && !errors.Is(s.peers.err, errMissing) {
		r.Troubles = append(r.Troubles, troubleOf(fmt.Errorf("asking for the ways between GPUs: %w", s.peers.err)).of(""))
	}
	if !s.clerk.busy() && s.peers.due(seen, s.settings.pauses.round) {
		// A GPU that hangs would keep the clerk from everything else.
		hangs := slices.ContainsFunc(s.cards, func(c *cardState) bool { return c.worker.busy() })
		s.clerk.begin(clerkJob{ss: seen.ss, what: errandPeers, before: seen, links: !hangs && s.peers.unlinked(seen)})
	}
}

// setThere notes which entities there are of a shelf's kinds.
func (s *Source) setThere(f *shelfState, there map[gpu.Kind][]int) {
	s.mu.Lock()
	f.there = there
	s.mu.Unlock()
}

// Entities are the numbers of all links, switches, CPUs or cores that there are, selected or
// not, ascending and the caller's own; false where no reading has looked for them, because no
// field of theirs was asked for or DCGM cannot list them. Safe for concurrent use.
func (s *Source) Entities(kind gpu.Kind) ([]int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.shelves() {
		if there, known := f.there[kind]; known {
			return slices.Clone(there), true
		}
	}
	return nil, false
}

// setDriver notes the driver's version, where the engine has said it.
func (s *Source) setDriver(driver string) {
	s.mu.Lock()
	s.driver = driver
	s.mu.Unlock()
}
