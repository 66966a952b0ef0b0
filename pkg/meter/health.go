// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

const (
	// clearingLimit and reporterLimit bound what may wait for the next tick.
	clearingLimit = 64
	reporterLimit = 64
)

// vigil is the Meter's part that folds evidence into verdicts. What others ask of it waits under the
// mutex for the loop, which alone touches the rest.
type vigil struct {
	// rules may be nil: then nothing is folded, and the report stays empty.
	rules    *health.Rules
	bootID   func() string
	migState func() health.MIGState
	log      *slog.Logger

	state health.State
	// folded says that a tick has been; before it no device is known.
	folded bool
	// answered are the clearings of this tick, told when its snapshot is there.
	answered []*clearing

	// hasten has room for the wish for a tick before its time, news for that of facts which are new.
	hasten, news chan struct{}

	mu        sync.Mutex
	clearings []*clearing
	facts     map[string][]health.Fact
	// witnessed are conditions that others hand over.
	witnessed map[string][]health.Condition
	// heard are the latest of them, folded or not.
	heard map[string][]health.Condition
	// said are the latest facts of each reporter, folded or not.
	said map[string][]health.Fact
}

// clearing is an operator's word on its way to the loop and back.
type clearing struct {
	// ctx says whether somebody still wants it.
	ctx  context.Context
	word health.Clearing
	err  error
	done chan struct{}
}

func newVigil(cfg Config) *vigil {
	if cfg.BootID == nil {
		cfg.BootID = func() string { return "" }
	}
	if cfg.MIGState == nil {
		cfg.MIGState = func() health.MIGState { return health.MIGUnsaid }
	}
	return &vigil{
		rules: cfg.Health, bootID: cfg.BootID, migState: cfg.MIGState, log: cfg.Log, state: cfg.HealthState,
		hasten: make(chan struct{}, 1), news: make(chan struct{}, 1), said: map[string][]health.Fact{}, heard: map[string][]health.Condition{},
	}
}

// report is what is known now, never nil.
func (v *vigil) report() *health.Report {
	if v.rules == nil {
		return &health.Report{}
	}
	return v.state.Report()
}

// fold takes in the evidence of a tick, after the words of operators, so that what this tick sees
// stands against them.
func (v *vigil) fold(e health.Evidence) {
	if v.rules == nil {
		return
	}
	e.BootID, e.MIGState = v.bootID(), v.migState()
	var words []*clearing
	v.mu.Lock()
	e.Facts, v.facts = v.facts, nil
	e.Witnessed, v.witnessed = v.witnessed, nil
	select {
	case <-v.news:
	default:
	}
	if v.folded {
		words, v.clearings = v.clearings, nil
	}
	v.mu.Unlock()
	for _, w := range words {
		v.clear(w, e.Time)
	}
	before := v.state.Report().Repartition
	v.state = v.rules.Fold(v.state, e)
	v.folded = true
	tellRepartition(v.log, before, v.state.Report().Repartition)
}

func (v *vigil) clear(c *clearing, at time.Time) {
	v.answered = append(v.answered, c)
	if c.err = c.ctx.Err(); c.err != nil {
		return
	}
	c.word.Time = at
	state, word, err := v.rules.Clear(v.state, c.word)
	if c.err = err; err != nil {
		return
	}
	v.state, c.word = state, word
	ended := make([]string, len(word.Ended))
	for i, e := range word.Ended {
		ended[i] = string(e.Kind)
	}
	v.log.Warn("an operator cleared a device", "device", string(word.Device), "reason", word.Reason, "by", word.By, "ended", ended)
}

// answer tells those who asked for clearings how they went.
func (v *vigil) answer() {
	for _, c := range v.answered {
		close(c.done)
	}
	v.answered = nil
}

// unhealthy are the devices that are out of service. One whose health is unknown is not.
func unhealthy(r *health.Report) map[gpu.UUID]bool {
	var out map[gpu.UUID]bool
	for i := range r.Verdicts {
		if r.Verdicts[i].Status != health.Unhealthy {
			continue
		}
		if out == nil {
			out = map[gpu.UUID]bool{}
		}
		out[r.Verdicts[i].Device] = true
	}
	return out
}

// evidence is what this tick has to say about health. Its time is the telemetry source's clock, which
// a simulated node's times of samples and events are on.
func (m *Meter) evidence(now time.Time) health.Evidence {
	_, fresh := m.telemetry.good()
	e := health.Evidence{Time: now, Reading: m.reading, Fresh: fresh}
	if !m.reading.Time.IsZero() {
		e.Time = now.Add(m.reading.Time.Sub(m.telemetry.lastSuccess))
	}
	e.Silent = !fresh && now.Sub(m.telemetry.lastSuccess) > m.cfg.ReadingMaxAge
	return e
}

// Clear takes an operator's word that a device is good, in a tick that it hastens, and returns what
// it ended once the snapshot of that tick is published. The Meter dates and logs it. An error says
// that nothing was done; one of ctx, that it may still have been.
func (m *Meter) Clear(ctx context.Context, word health.Clearing) (health.Clearing, error) {
	v := m.vigil
	if v.rules == nil {
		return health.Clearing{}, errors.New("there are no verdicts here to clear")
	}
	c := &clearing{ctx: ctx, word: word, done: make(chan struct{})}
	v.mu.Lock()
	full := len(v.clearings) >= clearingLimit
	if !full {
		v.clearings = append(v.clearings, c)
	}
	v.mu.Unlock()
	if full {
		return health.Clearing{}, fmt.Errorf("%d clearings wait for the next tick already; try again later", clearingLimit)
	}
	select {
	case v.hasten <- struct{}{}:
	default:
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return health.Clearing{}, fmt.Errorf("clear %s: no tick yet; look whether it was done: %w", word.Device, ctx.Err())
	}
	if c.err != nil {
		return health.Clearing{}, c.err
	}
	return c.word, nil
}

// Report takes the faults that somebody beside the driver knows of, all that stand now; none takes back
// what the reporter said before. They count from the next tick on, which is hastened where they are
// not what the reporter said last. It neither blocks nor keeps facts.
func (m *Meter) Report(reporter string, facts []health.Fact) {
	v := m.vigil
	if v.rules == nil {
		return
	}
	own := append([]health.Fact{}, facts...)
	v.mu.Lock()
	if v.facts == nil {
		v.facts = map[string][]health.Fact{}
	}
	_, again := v.facts[reporter]
	full := !again && len(v.facts) >= reporterLimit
	if !full {
		v.facts[reporter] = own
		v.hear(reporter, own)
	}
	v.mu.Unlock()
	if full {
		v.log.Warn("facts are not heard: too many reporters between two ticks", "reporter", reporter, "limit", reporterLimit)
	}
}

// Witness takes withdrawing conditions that a reporter has heard itself. They count from the next tick on,
// which is hastened where they are not what the reporter said last. It neither blocks nor keeps the slice.
func (m *Meter) Witness(reporter string, seen []health.Condition) {
	v := m.vigil
	if v.rules == nil || len(seen) == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, again := v.witnessed[reporter]; !again && len(v.witnessed) >= reporterLimit {
		return // who hands over does so again
	}
	if v.witnessed == nil {
		v.witnessed = map[string][]health.Condition{}
	}
	own := slices.Clone(seen)
	v.witnessed[reporter] = own
	before, known := v.heard[reporter]
	if known && slices.Equal(before, own) {
		return
	}
	if !known && len(v.heard) >= reporterLimit {
		clear(v.heard)
	}
	v.heard[reporter] = own
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// hear asks for a tick where a reporter says something else than before. The caller has the mutex.
func (v *vigil) hear(reporter string, facts []health.Fact) {
	before, known := v.said[reporter]
	if known && slices.Equal(before, facts) {
		return
	}
	if !known && len(v.said) >= reporterLimit {
		// Reporters that come and go for ever cost a tick now and then, and no more.
		clear(v.said)
	}
	v.said[reporter] = facts
	select {
	case v.news <- struct{}{}:
	default:
	}
}
