// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
)

const (
	// conditionsFile is the engine's, in the state folder. The exporter's has another name.
	conditionsFile = "device-plugin-conditions"
	// saveEvery is how often the running seconds are saved, which alone are no reason to.
	saveEvery = time.Minute
	// silentAfter is how many intervals without a reading make devices Unknown.
	silentAfter = 3
)

// engine is the plugin's own judge of health: the same rules as the exporter's on the plugin's own
// readings. It is for one goroutine.
type engine struct {
	rules *health.Rules
	log   *slog.Logger
	state health.State
	// store is the file of the state, nil for none. keep has a state saved to it, before it
	// returns if there is something new in it.
	store *ledger.Conditions
	keep  func(state health.State, isNew bool)
	// kept is the durable part that was handed to keep last, at a time.
	kept   uint64
	keptAt time.Time

	interval time.Duration
	reading  gpu.Reading
	answered time.Time
	facts    map[string][]health.Fact
	// migState is what the node's MIG manager says.
	migState func() health.MIGState
	// heardMIG is that word as the exporter tells it, for a plugin that may not read the node's labels.
	heardMIG health.MIGState
	// folded says that there was a reading.
	folded bool
}

// newEngine makes an engine that goes on where the last one of the state folder ended.
func newEngine(c config, log *slog.Logger) (*engine, error) {
	table, notes, err := ownXIDs(c.xidFile, c.env)
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		log.Warn(n)
	}
	rules, err := health.NewRules(health.Config{XIDs: table, HoldDown: c.holdDown, RepartitionFor: cmp.Or(c.repartition, -1)})
	if err != nil {
		return nil, fmt.Errorf("--health-*: %w", err)
	}
	e := &engine{rules: rules, log: log, interval: c.interval, facts: map[string][]health.Fact{}, keep: func(health.State, bool) {}, migState: func() health.MIGState { return health.MIGUnsaid }}
	if c.stateDir == "" {
		return e, nil
	}
	store, state, problems := ledger.OpenConditions(c.stateDir, conditionsFile)
	for _, p := range problems {
		log.Warn("conditions of GPUs of before", "error", p)
	}
	e.store, e.state, e.kept = store, state, state.Durable()
	return e, nil
}

// look folds one look at the GPUs. The report is nil before the first reading.
func (e *engine) look(l look) *health.Report {
	fresh := l.err == nil
	if fresh {
		e.reading, e.answered, e.folded = l.reading, l.at, true
	}
	if !e.folded {
		return nil
	}
	e.state = e.rules.Fold(e.state, health.Evidence{
		Time: l.at, BootID: l.bootID, Reading: e.reading, Fresh: fresh,
		Silent: l.at.Sub(e.answered) > silentAfter*e.interval+readPatience, Facts: e.facts, MIGState: cmp.Or(e.migState(), e.heardMIG),
	})
	e.save(l.at)
	return e.state.Report()
}

// save has what must outlive a restart saved, if it changed: before anybody hears of it, so that a
// plugin that ends then does not hand out again what it has withdrawn.
func (e *engine) save(now time.Time) {
	durable := e.state.Durable()
	if durable == e.kept && now.Sub(e.keptAt) < saveEvery {
		return
	}
	e.keep(e.state, durable != e.kept)
	e.kept, e.keptAt = durable, now
}

// follow takes over what the exporter knows to be over: what operators ended, and evidence that it saw,
// must not come back when its stream is lost. So it does what it hears of a repartition.
func (e *engine) follow(told *health.Report) {
	e.heardMIG = told.Repartition.State
	e.state = e.rules.Release(e.state, told.Ended)
	report := e.state.Report()
	for _, w := range told.Clearings {
		if cleared(report.Clearings, w) || happenedSince(report, w) {
			continue
		}
		next, _, err := e.rules.Clear(e.state, w)
		if err == nil {
			e.state = next
		}
	}
}

// happenedSince says whether something has happened to the device after the word: that one was not of it.
func happenedSince(r *health.Report, w health.Clearing) bool {
	return slices.ContainsFunc(r.Verdicts, func(v health.Verdict) bool {
		return (v.Device == w.Device || v.Card == w.Device) && slices.ContainsFunc(v.Conditions, func(q health.Condition) bool {
			return (q.XID > 0 || q.Kind == health.KindFlapping) && q.Last.After(w.Time)
		})
	})
}

func cleared(known []health.Clearing, w health.Clearing) bool {
	for _, k := range known {
		if k.Device == w.Device && !k.Time.Before(w.Time) {
			return true
		}
	}
	return false
}

// close lets go of the state folder.
func (e *engine) close() {
	if e.store == nil {
		return
	}
	if err := e.store.Close(); err != nil {
		e.log.Warn("close the conditions of GPUs", "error", err)
	}
}
