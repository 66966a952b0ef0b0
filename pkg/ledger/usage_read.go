// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

// vanishedAfter is how long a ledger may say nothing before its node counts as gone.
const vanishedAfter = 10 * time.Minute

// Usage answers a question of this ledger alone. The error says what cannot be read; what is only missing is in
// the answer.
func (r *Reader) Usage(ctx context.Context, q Query) (Usage, error) {
	return ReadUsage(ctx, []*Reader{r}, q)
}

// ReadUsage answers a question of several ledgers, some of them at a time. One that cannot be read is missing in the
// answer, by name; the error says so where none can. Of copies of one ledger one counts, as Distinct says.
func ReadUsage(ctx context.Context, readers []*Reader, q Query) (Usage, error) {
	if err := q.check(); err != nil {
		return Usage{}, err
	}
	kept, err := distinct(ctx, readers, q.Nodes)
	if err != nil {
		return Usage{}, err
	}
	answers := make([]*nodeAnswer, len(kept))
	errs := make([]error, len(kept))
	progress := newShares(len(kept), q.Progress)
	slots := make(chan struct{}, max(1, runtime.GOMAXPROCS(0)))
	var working sync.WaitGroup
	for i, r := range kept {
		working.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if errs[i] = ctx.Err(); errs[i] != nil {
				return
			}
			if answers[i], errs[i] = r.answer(ctx, &q); errs[i] == nil {
				r.miss(answers[i])
			}
			progress.done(1, r.dir)
		})
	}
	working.Wait()
	if err := ctx.Err(); err != nil {
		return Usage{}, err
	}
	if err := errors.Join(errs...); err != nil && !slices.ContainsFunc(errs, func(err error) bool { return err == nil }) {
		return Usage{}, err
	}
	for i, err := range errs {
		if err != nil {
			answers[i] = unreadable(kept[i].Reader, &q, err)
		}
	}
	return joinAnswers(answers, &q), nil
}

// unreadable is the answer of a ledger that gives none: nobody knows whose it is.
func unreadable(r *Reader, q *Query, err error) *nodeAnswer {
	n := len(q.Boundaries)
	return &nodeAnswer{q: q, unknown: true, node: NodeUsage{
		Node: r.dir, Readings: make([]time.Time, n),
		Missing: []Missing{{From: q.Boundaries[0], To: q.Boundaries[n-1], Reason: "unreadable", Text: err.Error()}},
	}}
}

// check says what is wrong with a question.
func (q *Query) check() error {
	if len(q.Boundaries) < 2 {
		return fmt.Errorf("read usage: %d boundaries, and it takes two to make a window", len(q.Boundaries))
	}
	for i := 1; i < len(q.Boundaries); i++ {
		if !q.Boundaries[i].After(q.Boundaries[i-1]) {
			return fmt.Errorf("read usage: boundary %s is not after %s", q.Boundaries[i], q.Boundaries[i-1])
		}
	}
	return nil
}

// wants reports whether what somebody holds is asked for.
func (q *Query) wants(namespace, pod string) bool {
	return (len(q.Namespaces) == 0 || slices.Contains(q.Namespaces, namespace)) &&
		(len(q.Pods) == 0 || q.Detail != DetailPods || slices.Contains(q.Pods, pod))
}

// joinAnswers puts what several ledgers said together.
func joinAnswers(answers []*nodeAnswer, q *Query) Usage {
	u := Usage{Source: "ledger", Boundaries: q.Boundaries}
	for _, a := range answers {
		if len(q.Nodes) > 0 && !a.unknown && !slices.Contains(q.Nodes, a.node.Node) {
			continue
		}
		n := len(u.Nodes)
		u.Nodes = append(u.Nodes, a.node)
		for j := range a.held {
			a.held[j].Node = n
		}
		for j := range a.rest {
			a.rest[j].Node = n
		}
		for j := range a.corrections {
			a.corrections[j].Node, a.corrections[j].Held.Node = n, n
		}
		u.Held = append(u.Held, a.held...)
		u.Rest = append(u.Rest, a.rest...)
		u.Corrections = append(u.Corrections, a.corrections...)
		u.Notes = append(u.Notes, a.notes...)
	}
	return u
}

// nodeAnswer is what one ledger says.
type nodeAnswer struct {
	q           *Query
	node        NodeUsage
	held        []Held
	rest        []Rest
	corrections []Corrected
	notes       []string
	// unknown says that nobody knows which node's it is.
	unknown bool

	// last is the showing of the boundary before.
	last showing
}

// answer reads one ledger.
func (r *Reader) answer(ctx context.Context, q *Query) (*nodeAnswer, error) {
	a := &nodeAnswer{q: q}
	a.node.Readings = make([]time.Time, len(q.Boundaries))
	extent, err := r.extent()
	if err != nil {
		return nil, err
	}
	segments := extent.segments
	t, err := readTimeline(segments)
	if err != nil {
		return nil, err
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("read the ledger in %s: no segment of it can be read; gpumeter verify says what is wrong", r.dir)
	}
	moments, before := t.moments(q.Boundaries)
	oldest := moments[0].segment
	if before == 0 {
		oldest = moments[1].segment
	}
	needed := begin(segments, oldest)
	trust, err := examine(ctx, segments[needed:min(moments[len(moments)-1].segment+2, len(segments))])
	if err == nil {
		err = a.read(ctx, segments, moments, before, manner{q.Detail == DetailPods, trust.carries, extent.carry(), extent.cut > 0})
	}
	if err != nil {
		return nil, fmt.Errorf("read the ledger in %s: %w", r.dir, err)
	}
	events := eventReader{answer: a, moments: moments[1:]}
	if err := events.read(ctx, segments, before); err != nil {
		return nil, fmt.Errorf("read the ledger in %s: %w", r.dir, err)
	}
	a.judge(t, r.now(), extent.at)
	a.distrust(trust, &extent, r.now())
	a.ends(&extent)
	a.asides(r.dir)
	return a, nil
}

// moments are where the boundaries are in the log, after the oldest record, whose index is that of the last of them that
// are before everything that is kept. So many of them there are.
func (t timeline) moments(boundaries []time.Time) ([]moment, int) {
	oldest := t[0].start
	moments := []moment{{index: -1, wall: oldest.wall, place: place{t[0].segment, oldest, oldest.seq}}}
	before := 0
	for i, b := range boundaries {
		wall := b.UnixMilli()
		at, ok := t.locate(wall)
		if !ok {
			before++
			continue
		}
		moments = append(moments, moment{i, wall, at})
	}
	return moments, before
}

// read takes the readings. Those of the series need no more than the segments that boundaries are in; pods come and go
// between.
func (a *nodeAnswer) read(ctx context.Context, segments []segment, moments []moment, before int, how manner) error {
	for i := range before {
		a.add(i, showing{})
	}
	if before == 0 {
		moments = moments[1:]
	}
	wrong := func(err error) { a.lost(err) }
	if how.pods {
		return readMoments(ctx, segments[begin(segments, moments[0].segment):], moments, how, a.add, wrong)
	}
	found := map[int]showing{}
	for len(moments) > 0 {
		n := 1
		for n < len(moments) && moments[n].segment == moments[0].segment {
			n++
		}
		keep := func(i int, s showing) { found[i] = s }
		if err := readMoments(ctx, segments[begin(segments, moments[0].segment):], moments[:n], how, keep, wrong); err != nil {
			return err
		}
		moments = moments[n:]
	}
	for _, i := range slices.Sorted(maps.Keys(found)) {
		a.add(i, found[i])
	}
	return nil
}

// add takes the showing of a boundary; -1 is that of the oldest record, from which on is counted where nothing
// older is kept.
func (a *nodeAnswer) add(index int, s showing) {
	if index >= 0 && s.known {
		a.node.Readings[index] = time.UnixMilli(s.at).UTC()
		a.window(index-1, &a.last, &s)
	}
	if s.known {
		a.node.Cluster, a.node.Node, a.node.LedgerID = s.cluster, s.node, s.id
		a.node.Created, a.node.Labels = s.created, s.labels
		a.weighed(s.policy)
	}
	a.last = s
}

// weighed notes how MIG devices were weighed at some time.
func (a *nodeAnswer) weighed(policy string) {
	if i, known := slices.BinarySearch(a.node.Policies, policy); !known && policy != "" {
		a.node.Policies = slices.Insert(a.node.Policies, i, policy)
	}
}

// window adds what came between two showings.
func (a *nodeAnswer) window(w int, from, to *showing) {
	if w < 0 {
		return
	}
	if a.q.Detail == DetailPods {
		a.pods(w, from, to)
	} else {
		a.series(w, from, to)
	}
	cards := slices.SortedFunc(maps.Values(to.cards), func(x, y cardShowing) int {
		return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.UUID, y.UUID))
	})
	for _, c := range cards {
		before := from.cards[c.UUID]
		rest := Rest{Window: w, Card: c.UUID, Index: c.Index, Model: c.Model}
		a.leave(rest, c.capacity.since(before.capacity))
		for _, cause := range slices.Sorted(maps.Keys(c.unallocated)) {
			rest.Cause = cause
			a.leave(rest, c.unallocated[cause].since(before.unallocated[cause]))
		}
		for _, cause := range slices.Sorted(maps.Keys(c.corrected)) {
			rest.Cause, rest.Corrected = cause, true
			a.leave(rest, c.corrected[cause].since(before.corrected[cause]))
		}
	}
}

func (a *nodeAnswer) leave(rest Rest, q Quantity) {
	if rest.Quantity = q; !q.nothing() {
		a.rest = append(a.rest, rest)
	}
}

func (a *nodeAnswer) series(w int, from, to *showing) {
	keys := slices.SortedFunc(maps.Keys(to.series), func(x, y Series) int { return x.compare(&y) })
	for _, key := range keys {
		used := to.series[key].since(from.series[key])
		a.hold(Held{Window: w, Series: key, GPUInstance: noInstance}, used)
	}
}

func (a *nodeAnswer) pods(w int, from, to *showing) {
	all := maps.Clone(to.pods)
	for key, h := range to.gone {
		all[key] = all[key].plus(h)
	}
	keys := slices.SortedFunc(maps.Keys(all), func(x, y PodSeries) int { return x.compare(&y) })
	for _, key := range keys {
		pod := to.facts[key]
		a.hold(Held{
			Window: w, Series: key.Series, Pod: key.Pod, PodUID: key.PodUID, Container: key.Container, Card: key.Card,
			GPUInstance: key.GPUInstance, WorkloadKind: pod.WorkloadKind, Workload: pod.Workload, Labels: pod.Labels,
		}, all[key].since(from.pods[key]))
	}
}

func (a *nodeAnswer) hold(h Held, used heldShowing) {
	h.Quantity, h.Used = used.Quantity, used.used
	if used.nothing() && len(used.used) == 0 || !a.q.wants(h.Namespace, h.Pod) {
		return
	}
	if used.fell() {
		a.miss(Missing{
			From: a.q.Boundaries[h.Window], To: a.q.Boundaries[h.Window+1], Reason: "reset",
			Text: fmt.Sprintf("what %s/%s holds was less at the end than at the start: gpumeter verify says what is wrong", h.Namespace, h.Pod),
		})
		return
	}
	a.held = append(a.held, h)
}

// miss notes what is missing, once.
func (a *nodeAnswer) miss(m Missing) {
	if !slices.Contains(a.node.Missing, m) {
		a.node.Missing = append(a.node.Missing, m)
	}
}

// lost notes damage that was met.
func (a *nodeAnswer) lost(err error) {
	text := "a part of the log cannot be read (" + err.Error() + "); gpumeter verify says more"
	if !slices.Contains(a.notes, text) {
		a.notes = append(a.notes, text)
	}
}

// judge says what the answer lacks of the time before the oldest and after the newest record.
func (a *nodeAnswer) judge(t timeline, now time.Time, totals Instant) {
	first, last := a.q.Boundaries[0], a.q.Boundaries[len(a.q.Boundaries)-1]
	oldest := time.UnixMilli(t[0].start.wall).UTC()
	if start := later(first, a.node.Created); oldest.After(start) && !a.node.Created.IsZero() && last.After(start) {
		a.miss(Missing{
			From: start.UTC(), To: earlier(oldest, last).UTC(), Reason: "retention",
			Text: fmt.Sprintf("node %s: the ledger is older than what is kept of it, and the answer begins with its oldest record: "+
				"take a later period, or a copy of the ledger that is older", a.node.Node),
		})
	}
	end := time.UnixMilli(t[len(t)-1].end).UTC()
	for i := range t {
		if at := time.UnixMilli(t[i].end).UTC(); !t[i].wrong {
			end = later(end, at)
		}
	}
	// What the log lost of the time up to its totals is told apart.
	end = later(end, time.UnixMilli(totals.Wall).UTC())
	if until := earlier(last, now); until.Sub(end) > vanishedAfter {
		a.miss(Missing{
			From: later(end, first).UTC(), To: until.UTC(), Reason: "node_vanished",
			Text: fmt.Sprintf("node %s: its ledger ends here, and what was consumed after that is not in it: "+
				"if the node is gone for good, this is all there is; if not, see why its exporter does not write", a.node.Node),
		})
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// shares tells how much is done of several works that are done at a time.
type shares struct {
	mu    sync.Mutex
	sum   float64
	whole float64
	tell  func(float64, string)
}

func newShares(works int, tell func(float64, string)) *shares {
	return &shares{whole: float64(max(works, 1)), tell: tell}
}

// done tells that so much of one work is done, 1 being all of it.
func (s *shares) done(part float64, what string) {
	if s.tell == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += part
	s.tell(min(1, s.sum/s.whole), what)
}
