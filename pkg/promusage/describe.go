// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// longestWindow is how much of a series is read at once where all its samples within a window are.
const longestWindow = 24 * time.Hour

// peaks are what pods' registers came to before the first window, and within each. A pod's series end a while after the
// pod does, so that its last value in a window need not be one at the end of it. One without a UID may come again
// and goes on from where it was, and so does one whose UID nobody told for a while.
func (r *report) peaks(ctx context.Context, t task, found []sighting) ([]sighting, map[string][]float64, error) {
	all := map[string][]float64{}
	for _, s := range found {
		all[s.key()] = nothing(len(t.batch.at))
	}
	see := func(g register, to time.Time, part time.Duration, window int) error {
		seen, err := r.asker.read(ctx, g, t.batch.ids, []time.Time{to}, lookbacks{part, part})
		for _, s := range seen {
			key := s.key()
			if all[key] == nil {
				all[key] = nothing(len(t.batch.at))
				found = append(found, sighting{ledger: s.ledger, id: s.id, values: nothing(len(t.batch.moments))})
			}
			all[key][window] = higher(all[key][window], s.values[0])
		}
		return err
	}
	for w := range len(t.batch.at) - 1 {
		if t.batch.at[w+1] < 0 {
			continue
		}
		start, end := r.boundaries[w], t.batch.moments[t.batch.at[w+1]]
		if from := t.batch.at[w]; from >= 0 {
			start = t.batch.moments[from]
		}
		for start.Before(end) {
			part := min(longestWindow, end.Sub(start))
			start = start.Add(part)
			if err := see(t.register, start, part, w+1); err != nil {
				return nil, nil, err
			}
		}
	}
	if t.batch.at[0] < 0 {
		return found, all, nil // There was no ledger before.
	}
	for _, before := range t.register.ofPods(found) {
		if err := see(before, t.batch.moments[0], r.source.cfg.Search, 0); err != nil {
			return nil, nil, err
		}
	}
	return found, all, nil
}

// uidsPerQuery keep a query well below the length that servers take.
const uidsPerQuery = 500

// ofPods is the register of all pods without a UID, and of those pods that have no value yet at the first moment.
func (r register) ofPods(found []sighting) []register {
	uid := slices.Index(r.labels, "pod_uid")
	late := map[string]bool{}
	for _, s := range found {
		if math.IsNaN(s.values[0]) && s.id[uid] != "" {
			late[escapeRegexp(s.id[uid])] = true
		}
	}
	r.matcher = `pod_uid=""`
	all := []register{r}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(late)), uidsPerQuery) {
		r.matcher = "pod_uid=~" + strconv.Quote(strings.Join(some, "|"))
		all = append(all, r)
	}
	return all
}

func nothing(n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = math.NaN()
	}
	return values
}

// describe reads what is known of ledgers, cards and pods beside their registers.
func (r *report) describe(ctx context.Context, c *cells) error {
	for _, b := range r.batches() {
		last := b.moments[len(b.moments)-1:]
		created, err := r.asker.read(ctx, r.registers.created, b.ids, last, r.source.lookbacks())
		if err != nil {
			return err
		}
		for _, s := range created {
			if a := r.account(s.ledger); a != nil && !math.IsNaN(s.values[0]) {
				a.Created = wallTime(s.values[0])
			}
		}
		if err := r.describeLedgers(ctx, b); err != nil {
			return err
		}
		labels, err := r.asker.read(ctx, r.registers.nodeLabels, b.ids, last, r.source.lookbacks())
		if err != nil {
			return err
		}
		for _, s := range labels {
			if a := r.account(s.ledger); a != nil {
				if a.Labels == nil {
					a.Labels = map[string]string{}
				}
				a.Labels[s.id[0]] = s.id[1]
			}
		}
		if r.query.Detail == ledger.DetailPods {
			if err := r.describePods(ctx, b, c); err != nil {
				return err
			}
		}
	}
	if err := r.resets(ctx); err != nil {
		return err
	}
	if err := r.kubeNodes(ctx); err != nil {
		return err
	}
	if err := r.kubePods(ctx, c); err != nil {
		return err
	}
	return r.indexCards(ctx, c)
}

// describeLedgers reads what the ledgers said of themselves at the beginning and at the end.
func (r *report) describeLedgers(ctx context.Context, b batch) error {
	ends := []time.Time{b.moments[0], b.moments[len(b.moments)-1]}
	if len(b.moments) == 1 {
		ends = ends[:1]
	}
	infos, err := r.asker.read(ctx, r.registers.info, b.ids, ends, r.source.lookbacks())
	if err != nil {
		return err
	}
	for _, s := range infos {
		a := r.account(s.ledger)
		if a == nil {
			continue
		}
		node, cluster, policy := s.id[0], s.id[1], s.id[2]
		if !math.IsNaN(s.values[len(ends)-1]) {
			a.Node, a.Cluster = node, cluster
		}
		if i, known := slices.BinarySearch(a.Policies, policy); !known && policy != "" {
			a.Policies = slices.Insert(a.Policies, i, policy)
		}
	}
	return nil
}

// readings are when what was read was committed. Where a moment is not a boundary, that is not known yet.
func (r *report) readings(ctx context.Context, b batch) error {
	commits, err := r.asker.read(ctx, r.registers.commit, b.ids, b.moments, r.source.lookbacks())
	if err != nil {
		return err
	}
	for _, s := range commits {
		a := r.account(s.ledger)
		for i, at := range b.at {
			if a != nil && at >= 0 && !math.IsNaN(s.values[at]) {
				a.Readings[i] = wallTime(s.values[at])
			}
		}
	}
	return nil
}

// indexCards reads the cards' indexes, which are for people only.
func (r *report) indexCards(ctx context.Context, c *cells) error {
	last := r.boundaries[len(r.boundaries)-1]
	devices := r.registers.devices
	v, err := r.asker.instant(ctx, fmt.Sprintf("max by (UUID, gpu) (last_over_time(%s{GPU_I_ID=\"\"}[%s]) or last_over_time(%s[%s]))",
		devices.metric, span(r.source.cfg.Lookback), devices.rule, span(r.source.cfg.RuleLookback)), last)
	if errors.Is(err, errTooMuch) {
		r.usage.Notes = append(r.usage.Notes, "the indexes of the GPUs are not known: "+err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	index := map[gpu.UUID]int{}
	for _, sample := range v {
		if n, err := strconv.Atoi(string(sample.Metric["gpu"])); err == nil {
			index[gpu.UUID(sample.Metric["UUID"])] = n
		}
	}
	for _, x := range c.rest {
		x.Index = index[x.Card]
	}
	return nil
}

type podKey struct {
	node                int
	namespace, pod, uid string
}

// describePods reads what the API server said of the pods at any time within the period.
func (r *report) describePods(ctx context.Context, b batch, c *cells) error {
	infos := map[podKey]identity{}
	from, to := r.boundaries[0], b.moments[len(b.moments)-1]
	for start := from; start.Before(to); start = start.Add(longestWindow) {
		part := min(longestWindow, to.Sub(start))
		seen, err := r.asker.read(ctx, r.registers.podsInfo, b.ids, []time.Time{start.Add(part)}, lookbacks{part, part})
		if err != nil {
			return err
		}
		for _, s := range seen {
			if node, ok := r.byID[s.ledger]; ok {
				infos[podKey{node, s.id[0], s.id[1], s.id[2]}] = s.id
			}
		}
	}
	for key, h := range c.held {
		if id, ok := infos[podKey{key.node, key.Namespace, key.Pod, key.PodUID}]; ok {
			h.Workload, h.WorkloadKind = id[3], id[4]
		}
	}
	return nil
}

// collect puts the cells in order: by node, window and name.
func (r *report) collect(c *cells) {
	for _, h := range c.held {
		if h.Used = ledger.KnownUse(h.Used, h.GPU); h.Used != nil || h.Quantity != (ledger.Quantity{}) {
			r.usage.Held = append(r.usage.Held, *h)
		}
	}
	slices.SortFunc(r.usage.Held, func(x, y ledger.Held) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Window, y.Window), cmp.Compare(x.Namespace, y.Namespace),
			cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.PodUID, y.PodUID), cmp.Compare(x.Container, y.Container),
			cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Mode, y.Mode), cmp.Compare(x.Model, y.Model),
			cmp.Compare(x.Profile, y.Profile), cmp.Compare(x.Card, y.Card), cmp.Compare(x.GPUInstance, y.GPUInstance))
	})
	for _, x := range c.rest {
		x.Model = r.modelOf(cardKey{x.Node, x.Card}, x.Window)
		r.usage.Rest = append(r.usage.Rest, *x)
	}
	slices.SortFunc(r.usage.Rest, func(x, y ledger.Rest) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Window, y.Window), cmp.Compare(x.Index, y.Index),
			cmp.Compare(x.Card, y.Card), cmp.Compare(x.Cause, y.Cause), cmp.Compare(btoi(x.Corrected), btoi(y.Corrected)))
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
