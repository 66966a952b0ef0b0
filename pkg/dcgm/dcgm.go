// SPDX-License-Identifier: Apache-2.0

// Package dcgm reads GPUs through NVIDIA's Data Center GPU Manager: an engine inside this
// process, or a host engine somewhere else. libdcgm is loaded at run time, so that a program
// with this package starts without it.
//
// # Isolation
//
// A call into libdcgm can hang, and cannot be cancelled. Each GPU has a worker of its own that
// makes all calls that can hang because of it; its health has another, since a
// check can take long; one worker each looks at the inventory, at links and switches, and at
// CPUs. A Read waits for them as long as its context allows,
// and goes on without those that are late: their GPU is in trouble, and they get nothing more
// to do until they are back. So there is never more than one stuck thread per GPU, and one more
// where its health check hangs.
//
// # Groups and watches
//
// A GPU is one DCGM group, or three where it has MIG instances: the card, the instances, and
// both with the compute instances for what happens to them. What is watched is kept for two
// samples, but XIDs for an hour. Each reading asks each group once, with one field group for
// all fields.
//
// # Alarms
//
// Between readings each GPU is asked once a second, in one call, for its last XID and for the levels of
// health that may withdraw it, and the engine for the GPUs that can be used: it knows all of that without
// the driver. What was not told raises the alarm; the next reading tells it. The recovery action is
// sampled each 2 s at least for that, other levels of health each 10 s.
//
// # When the engine goes
//
// An engine that is gone is looked for again, after one second, then less and less often up
// to every 30. Everything is set up anew in the one that is found. How far XIDs were told is
// remembered, so that none is told twice.
package dcgm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// SourceName is the name of the source in its readings.
const SourceName = "dcgm"

// ErrNoLibrary is in the chain of Open's error where libdcgm could not be loaded.
var ErrNoLibrary = errors.New("libdcgm could not be loaded")

// Config is how a Source is opened. Only Interval is required.
type Config struct {
	// Library is the path or name of libdcgm; empty is libdcgm.so.4, where the dynamic linker
	// finds it.
	Library string
	// Endpoint is the host engine to ask; the zero Endpoint is an engine in this process.
	Endpoint Endpoint
	// LogFile is where the engine in this process logs to, LogLevel from which level on: NONE,
	// FATAL, ERROR, WARN, INFO, DEBUG or VERB; empty is NONE.
	LogFile, LogLevel string
	// Interval is how often DCGM takes samples: the time between two readings.
	Interval time.Duration
	// GPUs, Switches and CPUs say of what readings have samples. The inventory is always whole.
	GPUs, Switches, CPUs gpu.Selection
	// Parts describes a card and its MIG devices as somebody sees them who knows more than
	// DCGM, such as NVML: placements, multiprocessors, profiles on offer. It may be nil, and
	// may fail.
	Parts func(context.Context, gpu.UUID) ([]gpu.Device, error)
	// Log is told when an engine is found; nil is silent. Errors are returned, not logged.
	Log *slog.Logger
}

// settings are what the workers know. Never modified.
type settings struct {
	interval time.Duration
	// staleAfter is how long a GPU may go without a new sample, frozenAfter a single value. DCGM
	// samples some fields, as those of the InfoROM, each 30 s at most, whatever it is told.
	staleAfter, frozenAfter time.Duration
	pauses                  pauses
	gpus, switches, cpus    gpu.Selection
	parts                   func(context.Context, gpu.UUID) ([]gpu.Device, error)
	log                     *slog.Logger
}

// pauses are the least times between what must not be done at each reading.
type pauses struct {
	// mend: tries of what DCGM refused, so that a refusal that stays does not cost more each time.
	mend time.Duration
	// rewatch: watching again where watches have vanished, which is rarely refused.
	rewatch time.Duration
	// relook: looks for new links, switches and CPUs, and starts of an engine that sees no GPU.
	relook time.Duration
	// round: rounds of health checks, more often than which DCGM does not look, and looks for
	// ways between GPUs.
	round time.Duration
	// overdue is how long a health check may take before it is told, forget how old its result
	// may become.
	overdue, forget time.Duration
}

func usualPauses() pauses {
	return pauses{
		mend: 30 * time.Second, rewatch: 5 * time.Second, relook: time.Minute, round: 30 * time.Second,
		overdue: time.Minute, forget: 3 * time.Minute,
	}
}

// Source reads GPUs through DCGM. Make it with Open. Read is for one caller at a time; the
// other methods are safe for concurrent use.
type Source struct {
	cfg        Config
	settings   settings
	library    *library
	version    string
	connection *connection

	ctx    context.Context //nolint:containedctx // it is the life of the source, ended by Close
	cancel context.CancelFunc
	// disconnect ends the connection, which outlives the last reading.
	disconnect context.CancelFunc
	// turn has room for one: the reading or the look for news under way, whose is all that follows.
	turn chan struct{}
	// alarm has room for one.
	alarm chan struct{}

	cols  *columns
	clerk *worker[clerkJob, clerkAnswer]
	last  *survey
	cards []*cardState
	// fabric has the links and switches, host the CPUs and cores.
	fabric, host shelfState
	health       healthDesk
	peers        peersDesk
	events       eventQueue
	// devices is the last inventory, named the GPUs in it that are not lost.
	devices []gpu.Device
	named   map[uint32]gpu.UUID
	// marks are when the entities of the last reading answered last.
	marks map[gpu.Entity]mark
	// node is the last that was known of what the node has, in the session nodeOf.
	nodeOf *session
	node   map[gpu.FieldID]gpu.Value

	closing sync.Once
	// asking says that Facts has a question to the engine under way.
	asking atomic.Bool
	// mu guards driver, which is empty until a GPU has told it, and what there is on the shelves.
	mu     sync.Mutex
	driver string
}

// Open loads libdcgm and takes an engine. One in this process is started now, and Open fails
// if it does not start; a host engine is connected to in the background, and Open does not
// fail because it is absent. An error whose chain has ErrNoLibrary says where libdcgm was
// looked for. The Source must be closed.
func Open(cfg Config) (*Source, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Interval <= 0 {
		return nil, fmt.Errorf("open DCGM: an interval of %s; it must be longer than zero", cfg.Interval)
	}
	severity, err := severityOf(cfg.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("open DCGM: %w", err)
	}
	l, err := load(cfg.Library)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	version, err := l.version()
	if err != nil {
		return nil, fmt.Errorf("open DCGM: asking %s for its version: %w", l.path(), err)
	}
	const quiet, frozen = 10 * time.Second, 90 * time.Second
	s := &Source{
		cfg: cfg, library: l, version: version,
		settings: settings{
			interval: cfg.Interval, staleAfter: max(3*cfg.Interval, quiet), frozenAfter: max(3*cfg.Interval, frozen), pauses: usualPauses(),
			gpus: cfg.GPUs, switches: cfg.Switches, cpus: cfg.CPUs, parts: cfg.Parts, log: cfg.Log,
		},
		connection: newConnection(l, version, &cfg, severity),
		turn:       make(chan struct{}, 1),
		alarm:      make(chan struct{}, 1),
		marks:      map[gpu.Entity]mark{},
		node:       map[gpu.FieldID]gpu.Value{},
	}
	if cfg.Endpoint.Embedded() {
		if s.connection.try(); s.connection.err != nil {
			return nil, fmt.Errorf("open DCGM: starting the engine of %s: %w", l.path(), s.connection.err)
		}
	} else {
		// Readings wait for the first try.
		s.connection.trying = make(chan struct{})
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.clerk = newWorker(look, nil)
	fabric := &shelf{settings: &s.settings, kinds: fabricKinds()}
	host := &shelf{settings: &s.settings, kinds: hostKinds()}
	s.fabric = shelfState{
		name: "links and switches", scopes: []gpu.Scope{gpu.ScopeLink, gpu.ScopeSwitch},
		worker: newWorker(fabric.read, fabric.records.free),
	}
	s.host = shelfState{
		name: "CPUs", scopes: []gpu.Scope{gpu.ScopeCPU, gpu.ScopeCPUCore},
		worker: newWorker(host.read, host.records.free),
	}
	s.health.settings = &s.settings
	var keep context.Context
	keep, s.disconnect = context.WithCancel(context.Background())
	go s.connection.run(keep)
	go s.listen()
	return s, nil
}

// severityOf is DCGM's number of a log level.
func severityOf(level string) (int, error) {
	levels := []string{"NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "VERB"}
	if level == "" {
		return 0, nil
	}
	if i := slices.Index(levels, strings.ToUpper(level)); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("%q is no log level of DCGM: %s", level, strings.Join(levels, ", "))
}

// Kinds are the words, beside the general ones, that errors and troubles are counted by.
func (s *Source) Kinds() []string {
	return []string{
		kindConnection, kindReleased, gpu.ReasonStale.String(), gpu.ReasonNotFound.String(),
		gpu.ReasonNotSupported.String(), gpu.ReasonNotPermitted.String(),
	}
}

// Supports reports whether this libdcgm has what a field needs beside samples: the ways between GPUs take a
// call that older ones lack. What the samples of other fields have only readings tell.
func (s *Source) Supports(id gpu.FieldID) bool {
	return id != gpu.FieldP2PStatus || s.library.tellsPeers()
}

// Origin is where readings come from. What is not known yet is empty.
func (s *Source) Origin() gpu.Origin {
	o := gpu.Origin{Library: "libdcgm " + s.version, Engine: s.cfg.Endpoint.String()}
	s.connection.mu.Lock()
	if ss := s.connection.session; ss != nil && !s.cfg.Endpoint.Embedded() {
		o.Engine += " " + ss.engine
	}
	s.connection.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	o.Driver = s.driver
	return o
}

// Facts are what there is to say about library and engine, a line each.
func (s *Source) Facts() []string {
	facts := []string{fmt.Sprintf("library %s, DCGM %s", s.library.path(), s.version)}
	s.connection.mu.Lock()
	ss := s.connection.session
	s.connection.mu.Unlock()
	if ss == nil {
		return append(facts, "engine "+s.cfg.Endpoint.String()+": "+s.connection.outage().Error())
	}
	facts = append(facts, fmt.Sprintf("engine %s, DCGM %s", s.cfg.Endpoint, ss.engine))
	if driver := s.Origin().Driver; driver != "" {
		facts = append(facts, "driver "+driver)
	}
	const patience = 2 * time.Second
	unknown := "modules and groups: DCGM does not say within " + patience.String()
	if !s.asking.CompareAndSwap(false, true) {
		return append(facts, unknown)
	}
	answer := make(chan []string, 1)
	go func() {
		defer s.asking.Store(false)
		answer <- ss.facts()
	}()
	select {
	case more := <-answer:
		return append(facts, more...)
	case <-time.After(patience):
		return append(facts, unknown)
	}
}

func (ss *session) facts() []string {
	var facts []string
	if modules, err := ss.moduleStatuses(); err != nil {
		facts = append(facts, "modules: "+err.Error())
	} else {
		var words []string
		for _, m := range modules {
			words = append(words, m.name+" "+m.status)
		}
		facts = append(facts, "modules: "+strings.Join(words, ", "))
	}
	if groups, err := ss.groupIDs(); err != nil {
		facts = append(facts, "groups: "+err.Error())
	} else {
		facts = append(facts, fmt.Sprintf("groups: %d of 64 in use by all clients of the engine", len(groups)))
	}
	return facts
}

// Close ends the source: a Read under way returns, and the engine is let go of. Calls that
// hang are left behind with the engine or connection that they are in, which is an error. A
// second Close does nothing.
func (s *Source) Close() error {
	var err error
	s.closing.Do(func() { err = s.close() })
	return err
}

func (s *Source) close() error {
	s.cancel()
	// A Read under way gives its turn back at once, and nobody takes it after that.
	s.turn <- struct{}{}
	defer s.giveTurn()
	ctx, done := context.WithTimeout(context.Background(), closePatience)
	defer done()
	s.settle(ctx)
	ctx, done = context.WithTimeout(context.Background(), closePatience)
	defer done()
	s.disconnect()
	for _, c := range s.cards {
		c.worker.end()
	}
	s.clerk.end()
	s.fabric.worker.end()
	s.host.worker.end()
	for _, r := range s.health.rounds {
		r.worker.end()
	}
	select {
	case <-s.connection.done:
		return s.connection.ended
	case <-ctx.Done():
		return fmt.Errorf("close DCGM (%s): a call has not come back and is left behind", s.cfg.Endpoint)
	}
}

// closePatience is how long Close waits for calls under way, and then for the engine.
const closePatience = time.Second

func (s *Source) shelves() [2]*shelfState { return [2]*shelfState{&s.fabric, &s.host} }

// busy reports whether calls are under way.
func (s *Source) busy() bool {
	busy := s.clerk.busy() || s.fabric.worker.busy() || s.host.worker.busy()
	busy = busy || slices.ContainsFunc(s.health.rounds, func(r *healthRound) bool { return r.worker.busy() })
	return busy || slices.ContainsFunc(s.cards, func(c *cardState) bool { return c.worker.busy() })
}

// settle waits for the calls under way until ctx ends.
func (s *Source) settle(ctx context.Context) {
	for _, c := range s.cards {
		if c.worker.busy() {
			if a, ok := c.worker.take(ctx.Done()); ok {
				s.absorb(c, a)
			}
		}
	}
	if s.clerk.busy() {
		if a, ok := s.clerk.take(ctx.Done()); ok {
			s.filed(a)
		}
	}
	for _, f := range s.shelves() {
		if f.worker.busy() {
			f.worker.take(ctx.Done())
		}
	}
	for _, r := range s.health.rounds {
		if r.worker.busy() {
			r.worker.take(ctx.Done())
		}
	}
}
