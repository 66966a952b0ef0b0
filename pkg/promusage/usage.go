// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// task is one register of a batch to be read, and what takes its values up.
type task struct {
	register register
	batch    batch
	take     func(node int, id identity, window int, difference float64)
	// pods live shorter than windows, and their series with them.
	pods bool
	// models says that it is kept by the name of the card's model too.
	models bool
	// whole is the value as the integer that was shown; nil for registers that are not for billing.
	whole func(float64) int64
}

// heldKey tells Held apart.
type heldKey struct {
	node, window int
	ledger.PodSeries
}

// restKey tells Rest apart.
type restKey struct {
	node, window int
	card         gpu.UUID
	cause        sharing.Cause
	corrected    bool
}

// cells are what a report adds up, in no order.
type cells struct {
	held map[heldKey]*ledger.Held
	rest map[restKey]*ledger.Rest
}

// fill reads the registers and makes Usage of their differences.
func (r *report) fill(ctx context.Context) error {
	c := &cells{held: map[heldKey]*ledger.Held{}, rest: map[restKey]*ledger.Rest{}}
	var tasks []task
	for _, b := range r.batches() {
		if err := r.readings(ctx, b); err != nil {
			return err
		}
		tasks = append(tasks, r.tasks(b, c)...)
	}
	r.total = len(tasks) + 1
	if err := r.parallel(ctx, tasks); err != nil {
		return err
	}
	if err := r.describe(ctx, c); err != nil {
		return err
	}
	r.collect(c)
	return nil
}

func (r *report) tasks(b batch, c *cells) []task {
	g := r.registers
	held, heldUsed, pods := g.namespaces, g.namespacesUsed, false
	if r.query.Detail == ledger.DetailPods {
		held, heldUsed, pods = g.pods, g.podsUsed, true
	}
	holder := func(into func(*ledger.Held, identity, float64)) func(int, identity, int, float64) {
		return func(node int, id identity, window int, d float64) {
			if h := c.holder(r.query, node, id, window, pods); h != nil {
				into(h, id, d)
			}
		}
	}
	add := func(g register, take func(int, identity, int, float64), whole func(float64) int64) task {
		return task{register: g, batch: b, take: take, whole: whole}
	}
	all := []task{
		add(held.gpu, holder(func(h *ledger.Held, _ identity, d float64) { h.GPU += int64(d) }), millionths),
		add(held.memory, holder(func(h *ledger.Held, _ identity, d float64) { h.Memory += d / (1 << 30) }), nil),
		add(held.energy, holder(func(h *ledger.Held, _ identity, d float64) { h.Energy += int64(d) }), microjoules),
		add(heldUsed, holder(addUsed), millionths),
	}
	for i := range all {
		all[i].pods = pods
	}
	all = append(all, add(g.gaps, r.gap, millionths))
	for _, kind := range []struct {
		quantity
		corrected bool
	}{{g.capacity, false}, {g.rest, false}, {g.corrected, true}} {
		card := func(into func(*ledger.Rest, float64)) func(int, identity, int, float64) {
			return func(node int, id identity, window int, d float64) { into(c.card(node, id, window, kind.corrected), d) }
		}
		all = append(all,
			add(kind.gpu, card(func(x *ledger.Rest, d float64) { x.GPU += int64(d) }), millionths),
			add(kind.memory, card(func(x *ledger.Rest, d float64) { x.Memory += d / (1 << 30) }), nil),
			add(kind.energy, card(func(x *ledger.Rest, d float64) { x.Energy += int64(d) }), microjoules))
	}
	for i := range all {
		if all[i].register.metric == g.models.metric {
			all[i].register, all[i].models = g.models, true
		}
	}
	return all
}

func addUsed(h *ledger.Held, id identity, d float64) {
	if h.Used == nil {
		h.Used = map[ledger.Basis]int64{}
	}
	h.Used[ledger.Basis(id[len(id)-1])] += int64(d)
}

func (c *cells) holder(q ledger.Query, node int, id identity, window int, pods bool) *ledger.Held {
	key := heldKey{node: node, window: window}
	if pods {
		key.PodSeries = ledger.PodSeries{
			Series: ledger.Series{Namespace: id[0], Resource: id[6], Mode: sharing.Mode(id[7]), Model: id[8], Profile: id[9]},
			Pod:    id[1], PodUID: id[2], Container: id[3], Card: gpu.UUID(id[4]), GPUInstance: instance(id[5]),
		}
		if len(q.Pods) > 0 && !slices.Contains(q.Pods, key.Pod) {
			return nil
		}
	} else {
		key.Series = ledger.Series{Namespace: id[0], Resource: id[1], Mode: sharing.Mode(id[2]), Model: id[3], Profile: id[4]}
		key.GPUInstance = gpu.NoInstance
	}
	if len(q.Namespaces) > 0 && !slices.Contains(q.Namespaces, key.Namespace) {
		return nil
	}
	h := c.held[key]
	if h == nil {
		h = &ledger.Held{
			Node: node, Window: window, Series: key.Series, Pod: key.Pod, PodUID: key.PodUID, Container: key.Container,
			Card: key.Card, GPUInstance: key.GPUInstance,
		}
		c.held[key] = h
	}
	return h
}

func instance(label string) int {
	n, err := strconv.Atoi(label)
	if err != nil {
		return gpu.NoInstance
	}
	return n
}

func (c *cells) card(node int, id identity, window int, corrected bool) *ledger.Rest {
	key := restKey{node: node, window: window, card: gpu.UUID(id[0]), corrected: corrected}
	if len(id) > 1 {
		key.cause = sharing.Cause(id[1])
	}
	x := c.rest[key]
	if x == nil {
		x = &ledger.Rest{Node: node, Window: window, Card: key.card, Cause: key.cause, Corrected: corrected}
		c.rest[key] = x
	}
	return x
}

func (r *report) gap(node int, id identity, window int, d float64) {
	a := r.accounts[node]
	from := a.Readings[window]
	if from.IsZero() {
		// It was born within the window.
		from = later(r.boundaries[window], a.Created)
	}
	a.Gaps = append(a.Gaps, ledger.Missing{
		From: from, To: a.Readings[window+1], Reason: id[0],
		Text: fmt.Sprintf("nobody looked for %s within this time", time.Duration(int64(d))*time.Microsecond),
	})
}

// parallel runs the tasks, some at once, and takes their values up one after the other.
func (r *report) parallel(ctx context.Context, tasks []task) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan task)
	var workers sync.WaitGroup
	for range r.source.cfg.Parallel {
		workers.Go(func() {
			for t := range next {
				if err := r.perform(ctx, t); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, t := range tasks {
		if ctx.Err() != nil {
			break
		}
		next <- t
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

func (r *report) perform(ctx context.Context, t task) error {
	found, err := r.asker.read(ctx, t.register, t.batch.ids, t.batch.moments, r.source.lookbacks())
	if err != nil {
		return err
	}
	if t.models {
		found = r.newest(t.batch, found)
	}
	var peaks map[string][]float64
	if t.pods {
		if found, peaks, err = r.peaks(ctx, t, found); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range found {
		node, ok := r.byID[s.ledger]
		if ok {
			r.takeUp(t, node, s, peaks[s.key()])
		}
	}
	r.done++
	r.progress(float64(r.done)/float64(r.total), strings.TrimPrefix(t.register.metric, "gpumeter_"))
	return nil
}

func (s sighting) key() string { return s.ledger + "\xff" + strings.Join(s.id, "\xff") }

// takeUp hands the difference of each window on, in whole units where the register has them. peaks are, for a register whose series may end
// within a window, what it came to before the first window and within each.
func (r *report) takeUp(t task, node int, s sighting, peaks []float64) {
	highest := math.NaN()
	if peaks != nil {
		highest = peaks[0]
	}
	for w := range len(t.batch.at) - 1 {
		start, end := r.shown(t.batch, s, w), r.shown(t.batch, s, w+1)
		if peaks != nil {
			start = higher(start, highest)
			end = higher(end, peaks[w+1])
			highest = higher(start, end)
		}
		if math.IsNaN(end) {
			if !math.IsNaN(start) && peaks == nil && t.batch.at[w+1] >= 0 {
				r.reset(node, t.register, w)
			}
			continue
		}
		if math.IsNaN(start) {
			start = 0
		}
		difference := end - start
		if t.whole != nil {
			difference = float64(t.whole(end) - t.whole(start))
		}
		switch {
		case difference < 0:
			r.reset(node, t.register, w)
		case difference > 0 || t.register.zeros:
			t.take(node, s.id, w, difference)
		}
	}
}

// higher is the higher of two values of which either may be none.
func higher(a, b float64) float64 {
	if math.IsNaN(a) || b > a {
		return b
	}
	return a
}

// shown is a register at a boundary: NaN where it was not there.
func (r *report) shown(b batch, s sighting, boundary int) float64 {
	if b.at[boundary] < 0 {
		return math.NaN()
	}
	return s.values[b.at[boundary]]
}

// reset says that a register fell, which none of a whole ledger ever does.
func (r *report) reset(node int, g register, window int) {
	a := r.accounts[node]
	text := fmt.Sprintf("%s of this ledger fell or is gone: the ledger was put back to an older state, or something else writes its series; what was consumed is not known from here, ask the ledger (--ledger)", g.metric)
	for _, m := range a.Missing {
		if m.Reason == "reset" && m.Text == text {
			return
		}
	}
	a.Missing = append(a.Missing, ledger.Missing{From: r.boundaries[window], To: r.boundaries[window+1], Reason: "reset", Text: text})
}
