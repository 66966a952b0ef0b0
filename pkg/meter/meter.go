// SPDX-License-Identifier: Apache-2.0

// Package meter has the Snapshot, the node at one instant, and the Meter, the one
// loop that makes it. Nothing else in the program samples, and nothing else writes
// a Snapshot: readers load the latest one and keep it as long as they like.
//
// A source that fails, hangs or lies costs what it concerns and becomes a Fault in
// the Snapshot; the tick goes on and the snapshot is published in time.
package meter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// MinInterval is the shortest time between ticks. It guards against an interval
// meant as seconds and read as milliseconds.
const MinInterval = 100 * time.Millisecond

// listingPatience is the least time a call for a listing has: one that is cut off in
// each tick before it can answer would never be heard.
const listingPatience = 5 * time.Second

// Telemetry reads the GPUs.
//
// Read returns every device of the node with the values of the given fields, which
// it must not modify or keep beyond the call's successor. One device's failure is a
// Trouble inside the Reading; an error means that there is no reading at all. Calls
// never overlap. Read should return when ctx ends; where it cannot, the Meter goes
// on without it and asks again once it has come back. An error with a method
// Kind() string is counted under that word. Sources need not log their errors: the
// Meter does, once per change. One with alarms may implement Alarms.
type Telemetry interface {
	Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error)
}

// Allocations lists who holds which devices. The contract of calls is Telemetry's, but
// for their time: a listing comes whole or not at all, so ctx leaves it five seconds
// even where ticks are closer, and one that misses its tick counts in a later one. One that knows of
// changes may implement Alarms; one that knows more of the pods, a method Pods() []ledger.Pod, which must not block.
type Allocations interface {
	List(ctx context.Context) (sharing.Listing, error)
}

// Config is what a Meter is made of.
type Config struct {
	// Telemetry is required.
	Telemetry Telemetry
	// Allocations may be nil: then nobody looks, and every GPU is unobserved.
	Allocations Allocations
	// Fields are asked for until Want says otherwise.
	Fields []gpu.FieldID
	// Also are asked for beside those that are wanted, behind them; with Health, so are
	// health.Fields.
	Also []gpu.FieldID
	// Policy weighs MIG devices.
	Policy sharing.Policy
	// Interval between ticks, at least MinInterval.
	Interval time.Duration
	// Deadline bounds a tick's wait for its sources; 0 is three quarters of the interval,
	// at most 10 s.
	Deadline time.Duration
	// ReadingMaxAge is how old values may get when telemetry fails; beyond it only
	// the inventory is kept. 0 is two and a half intervals.
	ReadingMaxAge time.Duration
	// ListingMaxAge is how long the last good listing stands in for a source that
	// fails; beyond it nobody is charged. 0 is five minutes: a device is fixed for a
	// container's life, and no container starts while the kubelet is away.
	ListingMaxAge time.Duration
	// EventWindow is how long an event stays in Snapshot.Recent, ClockWindow how far back
	// Snapshot.RecentClocks looks, both on the telemetry source's clock; 0 is five minutes.
	// A ClockWindow can hold 131072 intervals at most.
	EventWindow, ClockWindow time.Duration
	// XIDs says in the log what the driver's error codes mean; nil for the codes alone.
	XIDs *health.XIDTable
	// Health makes verdicts of what is read; nil for none.
	Health *health.Rules
	// HealthState is what was known of the node's health when it was last saved.
	HealthState health.State
	// BootID is the kernel's boot id now, empty where it is not known; it is asked for in each tick and
	// must not block. Nil says that it is not known.
	BootID func() string
	// MIGState is what the node's MIG manager says now, health.MIGUnsaid where that is not known; it is asked for in each
	// tick and must not block. Nil says that nobody asks.
	MIGState func() health.MIGState
	// Conditions keeps the state of health; nil to forget it with the process.
	Conditions Store
	// Known are the node's devices and their replicas as they were last saved.
	Known sharing.Inventory
	// Inventory keeps those; nil to forget them with the process.
	Inventory InventoryStore
	// Book keeps the charges; nil for none. What it measures use by is then asked for beside Fields.
	Book Book
	// CommitEvery is how long what a Book heard may wait for the disk; 0 is ten seconds.
	CommitEvery time.Duration
	// Clock is the node's clocks, asked in each tick; it must not block. Nil counts from New on.
	Clock func() ledger.Instant
	// NodeLabels are the node's labels where they are known, asked in each tick; it must not block, and may be nil.
	NodeLabels func() map[string]string
	// Jobs are a batch scheduler's, for Snapshot.Jobs, asked in each tick; it must not block, and may be nil.
	Jobs func() []sharing.Job
	Log  *slog.Logger
}

// Meter is the loop. Make it with New and turn it with Run; the other methods are
// safe for concurrent use.
type Meter struct {
	cfg     Config
	fields  atomic.Pointer[[]gpu.FieldID]
	current atomic.Pointer[cell]

	telemetry   *source[gpu.Reading]
	allocations *source[sharing.Listing]
	seats       sharing.Seats
	reading     gpu.Reading
	listing     sharing.Listing
	index       *sharing.Index
	tally       *tally
	vigil       *vigil
	urgency     *urgency
	keeper      *keeper
	roster      roster
	recorder    *recorder
	bookkeeper  *bookkeeper
	also        []gpu.FieldID
	faults      *faultLog
	xids        *xidLog
	verdicts    *verdictLog
	// legality has what is wrong with a table of weights on a kind of card.
	legality map[string]string
}

// cell is a snapshot together with the news of its staleness, so that one load
// gives a reader both.
type cell struct {
	snapshot *Snapshot
	stale    chan struct{}
}

// New makes a Meter that has not ticked yet. It does no I/O.
func New(cfg Config) (*Meter, error) {
	if cfg.Telemetry == nil {
		return nil, errors.New("meter: no telemetry source")
	}
	if cfg.Interval < MinInterval {
		return nil, fmt.Errorf("meter: interval %v is shorter than %v", cfg.Interval, MinInterval)
	}
	if cfg.Deadline <= 0 {
		cfg.Deadline = min(cfg.Interval*3/4, 10*time.Second)
	}
	if cfg.ReadingMaxAge <= 0 {
		cfg.ReadingMaxAge = cfg.Interval * 5 / 2
	}
	if cfg.ListingMaxAge <= 0 {
		cfg.ListingMaxAge = 5 * time.Minute
	}
	if cfg.EventWindow <= 0 {
		cfg.EventWindow = defaultWindow
	}
	if cfg.ClockWindow <= 0 {
		cfg.ClockWindow = defaultWindow
	}
	if cfg.CommitEvery <= 0 {
		cfg.CommitEvery = defaultCommitEvery
	}
	if cfg.Clock == nil {
		cfg.Clock = processClock()
	}
	if longest := cfg.Interval * clockSamplesLimit; cfg.ClockWindow > longest {
		return nil, fmt.Errorf("meter: clock window %v is longer than %v, the most for an interval of %v", cfg.ClockWindow, longest, cfg.Interval)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Meter{
		cfg: cfg, tally: newTally(cfg.EventWindow, cfg.ClockWindow), vigil: newVigil(cfg), urgency: newUrgency(cfg), also: slices.Clone(cfg.Also),
		faults: newFaultLog(cfg.Log), xids: newXIDLog(cfg.Log, cfg.XIDs), verdicts: newVerdictLog(cfg.Log), legality: map[string]string{},
	}
	if cfg.Health != nil {
		m.also = append(m.also, health.Fields()...)
	}
	if cfg.Health != nil && cfg.Conditions != nil {
		m.keeper = newKeeper(cfg)
	}
	m.seats, m.roster.known = cfg.Known.Seats, cfg.Known.Devices
	if cfg.Inventory != nil {
		m.recorder = newRecorder(cfg)
	}
	if cfg.Book != nil {
		var err error
		if m.bookkeeper, err = newBookkeeper(cfg); err != nil {
			return nil, err
		}
		m.also = append(m.also, bookFields()...)
	}
	m.Want(cfg.Fields)
	m.telemetry = newSource(SourceTelemetry, func(ctx context.Context) (gpu.Reading, error) {
		m.urgency.settle()
		return cfg.Telemetry.Read(ctx, *m.fields.Load())
	})
	if cfg.Allocations != nil {
		m.allocations = newSource(SourceAllocations, func(ctx context.Context) (sharing.Listing, error) {
			m.urgency.list()
			return cfg.Allocations.List(ctx)
		})
	}
	m.index = sharing.NewIndex(nil)
	m.current.Store(&cell{
		snapshot: &Snapshot{Interval: cfg.Interval, Totals: Totals{Faults: expected(cfg)}, Health: &health.Report{}},
		stale:    make(chan struct{}),
	})
	return m, nil
}

// expected are the faults that are counted from 0 on, because the first step of a counter that
// was not there is lost to who asks for its increase: those every source can have, and those a
// source says that it can have by a method Kinds.
func expected(cfg Config) map[FaultKey]uint64 {
	counts := map[FaultKey]uint64{
		{SourceTelemetry, gpu.ReasonLost.String()}: 0,
		{SourceTelemetry, "malformed"}:             0,
		{SourceTelemetry, kindEventsDropped}:       0,
		{SourceAttribution, "conservation"}:        0,
		{SourceAttribution, kindPolicy}:            0,
	}
	add := func(source string, from any) {
		kinds := []string{"timeout", "error"}
		if k, ok := from.(interface{ Kinds() []string }); ok {
			kinds = append(kinds, k.Kinds()...)
		}
		for _, kind := range kinds {
			counts[FaultKey{source, kind}] = 0
		}
	}
	add(SourceTelemetry, cfg.Telemetry)
	if cfg.Allocations != nil {
		add(SourceAllocations, cfg.Allocations)
	}
	if cfg.Health != nil && cfg.Conditions != nil {
		add(SourceConditions, cfg.Conditions)
	}
	if cfg.Health != nil && cfg.MIGState != nil {
		counts[FaultKey{SourceRepartition, kindOverdue}] = 0
	}
	if cfg.Inventory != nil {
		add(SourceInventory, cfg.Inventory)
	}
	if cfg.Book != nil {
		add(SourceLedger, cfg.Book)
	}
	return counts
}

// Want sets the fields to ask for from the next tick on, beside those that are always asked for.
func (m *Meter) Want(fields []gpu.FieldID) {
	f := slices.Clone(fields)
	for _, id := range m.also {
		if !slices.Contains(f, id) {
			f = append(f, id)
		}
	}
	m.fields.Store(&f)
}

// Latest is the present snapshot, never nil: before the first tick it has Seq 0.
func (m *Meter) Latest() *Snapshot { return m.current.Load().snapshot }

// Watch is the present snapshot and a channel that closes when there is a newer one.
func (m *Meter) Watch() (*Snapshot, <-chan struct{}) {
	c := m.current.Load()
	return c.snapshot, c.stale
}

// Run ticks until ctx ends, the first time at once, and then returns nil. Ticks stay on the
// grid of the interval: one that comes late does not move the next. A call that does not
// heed ctx is left behind. Between two of them there may be others that Clear asks for, or an alarm of
// the telemetry or new facts, at most one a second. Run must be called once.
func (m *Meter) Run(ctx context.Context) error {
	moment := time.Now()
	for planned := moment; ; {
		m.tick(ctx, planned, m.cfg.Deadline)
		// After a tick that overran its interval, the next one skips the moments that
		// were missed, and is late by as much.
		planned = moment.Add(m.cfg.Interval)
		missed := max(time.Since(moment)/m.cfg.Interval, 0)
		moment = planned.Add(missed * m.cfg.Interval)
		if !m.await(ctx, moment) {
			m.keeper.last(m.vigil.state)
			m.bookkeeper.close()
			return nil
		}
	}
}

// Tick does one tick now, for those who turn the loop themselves; it must not be
// called beside Run or from two goroutines at once.
func (m *Meter) Tick(ctx context.Context) { m.tick(ctx, time.Now(), m.cfg.Deadline) }

// tick is the product: read, fold, attribute, save, publish. It waits for its sources until deadline
// is over.
func (m *Meter) tick(ctx context.Context, planned time.Time, deadline time.Duration) {
	began := time.Now()
	waiting, done := context.WithTimeout(ctx, deadline)
	defer done()
	// A source that heeds its context gets to say what it was waiting for.
	calling := deadline - deadline/10
	m.telemetry.start(ctx, calling)
	m.allocations.start(ctx, max(calling, listingPatience))
	m.telemetry.wait(waiting.Done())
	m.allocations.wait(waiting.Done())
	if ctx.Err() != nil {
		return
	}

	now := time.Now()
	var faults []Fault
	faults = m.takeReading(now, faults)
	m.vigil.fold(m.evidence(now))
	m.urgency.told = false
	m.follow()
	faults, observed := m.takeListing(now, faults)
	m.recorder.begin(sharing.Inventory{Devices: m.roster.known, Seats: m.seats})
	gone := m.roster.held(m.index, m.listing.Allocations)
	devices := joined(m.reading.Devices, gone)
	situation := sharing.Situation{
		Devices:     devices,
		Observed:    observed,
		Allocations: m.listing.Allocations,
		Seats:       m.seats,
		Unhealthy:   unhealthy(m.vigil.report()),
		Policy:      m.cfg.Policy,
	}
	division := sharing.Attribute(situation)
	if err := division.Check(devices); err != nil {
		faults = append(faults, Fault{Source: SourceAttribution, Kind: "conservation", Text: err.Error()})
	}
	faults = append(append(append(faults, missed(gone)...), m.illegal()...), overdue(m.vigil.report())...)
	weight := weights(devices, m.cfg.Policy, &division)
	pods := m.pods(&division)
	m.bookkeeper.hear(m.scene(situation, &division, weight, pods))
	stored, unsaved := m.keeper.keep(m.vigil.state, time.Now())
	faults = append(append(faults, unsaved...), m.recorder.finish()...)
	view, xids, unwritten := m.bookkeeper.finish(m.tally.xids)
	m.publish(planned, began, &Snapshot{
		Gone: gone, Observed: observed, Division: division, Weights: weight, Pods: pods,
		HealthStore: stored, Ledger: view, XIDs: xids, Faults: append(faults, unwritten...),
	})
}

// pods are what the allocation source knows of those who hold something in the division.
func (m *Meter) pods(d *sharing.Division) []ledger.Pod {
	if p, ok := m.cfg.Allocations.(interface{ Pods() []ledger.Pod }); ok {
		return holding(p.Pods(), d)
	}
	return nil
}

// scene is this tick for the Book.
func (m *Meter) scene(s sharing.Situation, d *sharing.Division, weights map[gpu.UUID]sharing.Fraction, pods []ledger.Pod) *scene {
	_, fresh := m.telemetry.good()
	var asked time.Time
	if m.allocations != nil {
		asked = m.allocations.asked
	}
	return &scene{
		asked: asked, pods: pods,
		situation: s, division: d, weights: weights, reading: &m.reading, fresh: fresh, answered: !m.telemetry.lastSuccess.IsZero(),
		report: m.vigil.report(), xids: m.tally.xids,
	}
}
