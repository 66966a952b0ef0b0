// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/run"

	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// app is one device plugin, ready to run.
type app struct {
	cfg       config
	log       *slog.Logger
	manager   *deviceplugin.Manager
	director  *director
	telemetry *telemetry
	// client is nil without a health socket, node where the API server is not asked, labels where none are to be written.
	client *healthstream.Client
	node   *cluster.NodeWatch
	labels *labelWriter
	facts  *factBoard
	heir   *handOver
	// remembered is the config of before a restart, nil for none.
	remembered *configRead
	specs      *specs
	mps        mpsDaemons
	// keepers save what must outlive a restart.
	keepers []func(context.Context) error
	// holds is the config that holds, nil before the first.
	holds atomic.Pointer[effective]
	web   *webServer

	configs chan configRead
	looks   chan look
	hangups chan os.Signal
}

// serve runs the program until ctx ends. An error is a config that cannot work.
func serve(ctx context.Context, c config, logs io.Writer) error {
	a, err := newApp(ctx, c, c.logger(logs))
	if err != nil {
		return err
	}
	return a.run(ctx)
}

func newApp(ctx context.Context, c config, log *slog.Logger) (*app, error) {
	a := &app{
		cfg: c, log: log, facts: newFactBoard(), heir: newHandOver(), specs: &specs{cfg: c, log: log},
		configs: make(chan configRead), looks: make(chan look), hangups: make(chan os.Signal, 1),
	}
	var err error
	if a.telemetry, err = newTelemetry(c, a.driverRootHere, log); err != nil {
		return nil, err
	}
	if err := a.meetNode(); err != nil {
		return nil, err
	}
	a.mps = newMPS(c, a.driverRootHere, func(facts []health.Fact) { a.facts.report(reporterMPS, facts) }, log)
	dir, socket := c.pluginDir()
	a.manager = deviceplugin.NewManager(deviceplugin.ManagerConfig{KubeletDir: dir, KubeletSocket: socket, Prepare: a.prepare, Log: log})
	if a.director, err = a.direct(); err != nil {
		return nil, err
	}
	from := observed{labels: a.labels.stats, status: a.director.status.Load, manager: a.manager.Stats, reconnects: a.reconnects, specs: a.specs.problem, registers: socket != ""}
	if a.web, err = listenWeb(ctx, c, handler(from, log), log); err != nil {
		return nil, err
	}
	return a, nil
}

// direct makes the director with what outlived a restart.
func (a *app) direct() (*director, error) {
	d := newDirector(a.cfg, a.log, a.manager, time.Now())
	d.use, d.handOver = a.use, a.heir.set
	if a.labels != nil {
		d.label = a.labels.put
	}
	if a.telemetry != nil {
		var err error
		if d.engine, err = newEngine(a.cfg, a.log); err != nil {
			return nil, err
		}
		if a.node != nil {
			d.engine.migState = func() health.MIGState {
				node, _ := a.node.Watch()
				return health.MIGStateOf(node.Labels, node.Exists)
			}
		}
		if d.engine.store != nil {
			k := newKeeper("conditions of GPUs", d.engine.store.Save, a.log)
			a.keepers = append(a.keepers, k.run)
			d.engine.keep = func(state health.State, isNew bool) {
				if isNew {
					k.putNow(state)
				} else {
					k.put(state)
				}
			}
		}
	}
	if a.cfg.stateDir != "" && a.cfg.configDir != "" {
		m, remembered, err := openMemory(a.cfg.stateDir)
		if err != nil {
			a.log.Warn("the config of before is not known", "error", err)
		}
		k := newKeeper("the node's config", m.save, a.log)
		a.remembered, a.keepers = remembered, append(a.keepers, k.run)
		d.keepConfig = func(c rememberedConfig) { k.put(c) }
	}
	if a.cfg.healthSocket == "" {
		return d, nil
	}
	a.client = healthstream.NewClient(healthstream.ClientConfig{Socket: a.cfg.healthSocket, Log: a.log})
	if a.cfg.stateDir != "" {
		held, list, err := openHeld(a.cfg.stateDir)
		if err != nil {
			a.log.Warn("the exporter's verdicts of before are not known", "error", err)
		}
		k := newKeeper("the health stream's last list", held.save, a.log)
		d.stream.list, a.keepers = list, append(a.keepers, k.run)
		d.keepList = func(list *healthstream.List) { k.put(list) }
	}
	return d, nil
}

func (a *app) reconnects() uint64 {
	if a.client == nil {
		return 0
	}
	state, _ := a.client.Watch()
	return state.Reconnects
}

// reporterMPS is who reports facts about MPS daemons.
const reporterMPS = "gpumeter-device-plugin/mps"

// use takes the config that holds from now on, before the manager hears of it.
func (a *app) use(e *effective) {
	a.holds.Store(e)
	a.specs.use(e)
}

// driverRootHere is where the plugin sees the driver's files.
func (a *app) driverRootHere() string {
	if e := a.holds.Load(); e != nil {
		return e.values.text("driver-root-ctr-path")
	}
	return a.cfg.driverRootHere()
}

// driverRootHere is where the plugin sees the driver's files as long as no file says otherwise.
func (c config) driverRootHere() string {
	v, _ := choose(c.flags, c.env, configFile{})
	return v.text("driver-root-ctr-path")
}

// prepare makes ready what containers need of a plan.
func (a *app) prepare(inventory deviceplugin.Inventory, plan deviceplugin.Plan) error {
	return errors.Join(a.specs.write(inventory), a.mps.Ensure(a.holds.Load().settings, inventory, plan))
}

// run serves until ctx ends and then stops gracefully; or until a part of it fails, which is the error.
func (a *app) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	until := func(f func(context.Context) error) {
		actor, stop := context.WithCancel(ctx)
		g.Add(func() error { return f(actor) }, func(error) { stop() })
	}
	until(func(ctx context.Context) error { <-ctx.Done(); return nil })
	until(a.manager.Run)
	until(a.direction)
	until(a.readConfig)
	until(a.mps.Run)
	for _, keep := range a.keepers {
		until(keep)
	}
	until(a.web.run)
	if a.telemetry != nil {
		until(func(ctx context.Context) error {
			return a.telemetry.run(ctx, func(l look) { hand(ctx, a.looks, l) })
		})
	}
	if a.client != nil {
		until(a.client.Run)
		until(func(ctx context.Context) error { return a.facts.tell(ctx, a.client, a.log) })
		until(func(ctx context.Context) error { return a.heir.run(ctx, a.client, a.log) })
	}
	if a.node != nil {
		until(a.node.Run)
	}
	if a.labels != nil {
		until(a.labels.run)
	}
	a.log.Info("the device plugin runs", "version", Version(), "address", a.web.listener.Addr().String())
	if a.director.engine != nil {
		defer a.director.engine.close()
	}
	if err := g.Run(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// hand gives a value to who waits for it, unless ctx ends before.
func hand[T any](ctx context.Context, to chan<- T, v T) {
	select {
	case to <- v:
	case <-ctx.Done():
	}
}

// readConfig follows the config, also at a SIGHUP, as NVIDIA's plugin is told.
func (a *app) readConfig(ctx context.Context) error {
	signal.Notify(a.hangups, syscall.SIGHUP)
	defer signal.Stop(a.hangups)
	source := &configSource{cfg: a.cfg, log: a.log, asked: a.hangups, remembered: a.remembered}
	if a.cfg.configDir != "" {
		source.node = a.node.Watch
	}
	return source.run(ctx, func(r configRead) { hand(ctx, a.configs, r) })
}

// direction is the director's loop.
func (a *app) direction(ctx context.Context) error {
	d := a.director
	for {
		facts, changedFacts := a.facts.all()
		for _, f := range facts {
			d.takeFacts(f)
		}
		var moved <-chan struct{}
		if a.client != nil {
			var state healthstream.ClientState
			state, moved = a.client.Watch()
			d.takeStream(state)
		}
		if err := d.fatal(); err != nil {
			return err
		}
		now := time.Now()
		d.settle(now)
		if err := d.fatal(); err != nil {
			return err
		}
		if err := a.await(ctx, d, now, changedFacts, moved); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// await waits for the next thing to settle, and takes it.
func (a *app) await(ctx context.Context, d *director, now time.Time, facts, moved <-chan struct{}) error {
	var due <-chan time.Time
	if at := d.deadline(now); !at.IsZero() {
		timer := time.NewTimer(at.Sub(now))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case r := <-a.configs:
		return d.takeConfig(r, time.Now())
	case l := <-a.looks:
		d.takeLook(l)
	case <-facts:
	case <-moved:
	case <-due:
	}
	return nil
}
