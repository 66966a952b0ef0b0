// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

const (
	// verdictPatience is how long the first list waits for a verdict, so that the kubelet does not hear
	// first that a broken GPU is healthy; registration is to be done within two seconds all the same.
	verdictPatience = 1500 * time.Millisecond
	// surveyPause is the time between two looks at what the kernel knows of the devices: device nodes
	// can come after the devices.
	surveyPause = 10 * time.Second
	// mostSurveySaid bounds what is remembered to have been logged.
	mostSurveySaid = 1000
	// emptyPatience is for how long a stream must tell of no devices before those that it told of go.
	emptyPatience = 10 * time.Second
)

// consumer takes the state of the node, the deviceplugin.Manager.
type consumer interface {
	Set(deviceplugin.NodeState)
}

// surveyor adds what the kernel knows of devices.
type surveyor func([]deviceplugin.Device, []deviceplugin.Link) (deviceplugin.Inventory, []error)

// director brings together config, inventory and verdicts, each as it changes, and hands the
// whole to the consumer. Its methods are for one goroutine; only status may be read by others.
type director struct {
	cfg    config
	log    *slog.Logger
	to     consumer
	survey surveyor
	// use is told of each config that is taken, before the consumer is.
	use func(*effective)
	// engine is nil where the stream is the only source.
	engine *engine
	// handOver has the exporter told of what it does not know.
	handOver func([]health.Condition)
	// keepConfig has a config that the node's label chose remembered.
	keepConfig func(rememberedConfig)
	// keepList has the stream's last list saved.
	keepList func(*healthstream.List)
	// began is when the program started.
	began time.Time

	effective *effective
	// blank says that its file has nothing in it.
	blank bool
	// impossible is why the first config cannot be followed on this node.
	impossible error
	stream     heard
	own        *health.Report
	ownStock   *stock
	// facts are what each part of the plugin says beside the driver.
	facts map[string][]health.Fact
	// ownErr is why there is no reading of the plugin's own.
	ownErr error

	stock stock
	// stockFrom says where the stock is from, empty before there is one.
	stockFrom string
	// emptySince is from when the stream has told of nothing, while the stock is its.
	emptySince time.Time
	inventory  deviceplugin.Inventory
	surveyed   time.Time
	surveySaid map[string]bool

	// label has the node's labels written; nil where nobody wants them.
	label     func(map[string]string)
	described described
	// origin is what the node's own GPUs say of their driver.
	origin origin

	judged judgement
	// said are the verdicts of the last state that was handed over, asked is its config, and set
	// says that there was one.
	said  map[gpu.UUID]standing
	asked revision
	set   bool

	config configStatus
	status atomic.Pointer[status]
}

func newDirector(cfg config, log *slog.Logger, to consumer, now time.Time) *director {
	d := &director{cfg: cfg, log: log, to: to, use: func(*effective) {}, keepList: func(*healthstream.List) {}, handOver: func([]health.Condition) {}, keepConfig: func(rememberedConfig) {}, began: now, surveySaid: map[string]bool{}, facts: map[string][]health.Fact{}}
	d.survey = func(devices []deviceplugin.Device, links []deviceplugin.Link) (deviceplugin.Inventory, []error) {
		return surveyed(cfg, d.effective, devices, links)
	}
	d.stream.since = now
	d.status.Store(&status{verdicts: verdictNone, config: configStatus{from: fromNothing}})
	return d
}

// takeLook takes one look at the node's own GPUs.
func (d *director) takeLook(l look) {
	if d.engine != nil {
		d.own = d.engine.look(l)
	}
	d.ownErr = l.err
	if l.err == nil {
		s := stockOfReading(l.reading)
		d.ownStock, d.origin = &s, originOf(l.reading).knowing(d.origin)
	}
}

// takeStream takes what the client knows of the health stream.
func (d *director) takeStream(s healthstream.ClientState) {
	// An exporter that has read nothing yet knows no devices and no verdicts.
	told := s.List != nil && (s.List.Source != "" || len(s.List.Devices) > 0)
	if up := s.Up && told; up != d.stream.up {
		d.stream.up, d.stream.since = up, s.Since
	}
	if !told {
		return
	}
	list := &s.List.List
	if d.stream.list == list {
		return
	}
	d.stream.list = list
	if d.engine != nil {
		d.engine.follow(&list.Report)
		if d.own != nil {
			d.own = d.engine.state.Report()
		}
	}
	d.keepList(list)
}

// takeFacts takes what somebody beside the driver knows of the GPUs.
func (d *director) takeFacts(f factsRead) {
	d.facts[f.reporter] = f.facts
	if d.engine != nil {
		d.engine.facts[f.reporter] = f.facts
	}
}

// ownFacts are those of all parts, in a fixed order.
func (d *director) ownFacts() []health.Fact {
	var out []health.Fact
	for _, reporter := range slices.Sorted(maps.Keys(d.facts)) {
		out = append(out, d.facts[reporter]...)
	}
	return out
}

// fatal is why the program cannot go on, nil mostly: GPUs cannot be read, nobody else could tell of them,
// and the config says not to wait; or the config that it began with shares what cannot be shared.
func (d *director) fatal() error {
	if d.impossible != nil {
		return fmt.Errorf("the config cannot be followed on this node:\n%w", d.impossible)
	}
	alone := d.cfg.source == sourceNVML || d.cfg.healthSocket == ""
	if d.ownErr == nil || d.ownStock != nil || !alone || d.effective == nil || !d.effective.values.boolean("fail-on-init-error") {
		return nil
	}
	return fmt.Errorf("GPUs cannot be read: %w (--fail-on-init-error=false waits for the driver)", d.ownErr)
}

// settle hands the consumer the node's state, if there is one and it changed.
func (d *director) settle(now time.Time) {
	if d.effective == nil {
		d.publish(nil)
		return
	}
	changed := d.restock(now)
	d.judge(now)
	d.describe(now)
	if d.stockFrom == "" || d.waits(now) {
		d.publish(nil)
		return
	}
	said := standings(d.judged.report)
	asks := revision{d.effective.hash, d.config.from}
	if !d.config.good {
		asks.from = d.asked.from
	}
	if d.set && !changed && asks == d.asked && maps.Equal(said, d.said) {
		d.publish(nil)
		return
	}
	if !d.set {
		if d.impossible = unshared(deviceplugin.NewPlan(d.inventory, d.effective.settings)); d.impossible != nil {
			return
		}
	}
	d.tell(said)
	replanned := changed || !d.set || asks.hash != d.asked.hash
	d.said, d.asked, d.set = said, asks, true
	state := deviceplugin.NodeState{Inventory: d.inventory, Settings: d.effective.settings, Revision: asks.String(), Report: d.judged.report}
	d.to.Set(state)
	if replanned {
		plan, problems := deviceplugin.NewPlan(state.Inventory, state.Settings)
		d.publish(&planned{plan, problems})
		return
	}
	d.publish(nil)
}

// waits says that the first verdict is still worth waiting for.
func (d *director) waits(now time.Time) bool {
	if d.set || now.Sub(d.began) >= verdictPatience {
		return false
	}
	switch d.judged.source {
	case verdictStream, verdictHeld, verdictPolicy:
		return false
	case verdictOwn:
		// The exporter may know more.
		return d.cfg.healthSocket != ""
	}
	return true
}

// deadline is when settle has something to do even if nothing comes; zero for never.
func (d *director) deadline(now time.Time) time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if !d.set {
		sooner(d.began.Add(verdictPatience))
	}
	if d.stockFrom != "" {
		sooner(d.surveyed.Add(surveyPause))
	}
	if !d.emptySince.IsZero() {
		sooner(d.emptySince.Add(emptyPatience))
	}
	if d.cfg.lostAfter > 0 && !d.stream.up {
		sooner(d.stream.since.Add(d.cfg.lostAfter))
	}
	return at
}

// restock takes the inventory from the best source there is, and reports whether it changed.
func (d *director) restock(now time.Time) (changed bool) {
	next, from := d.sourceOfStock(now)
	if from == "" {
		return false
	}
	same := from == d.stockFrom && next.same(d.stock)
	if same && now.Sub(d.surveyed) < surveyPause {
		return false
	}
	inventory, problems := d.survey(next.devices, next.links)
	inventory.Physical = from == sourceNVML
	d.tellSurvey(problems)
	d.tellBare(inventory)
	d.surveyed = now
	if !same {
		d.log.Info("the inventory changed", "from", from, "has", next.String(), "had", d.stock.String())
	}
	changed = !same || !reflect.DeepEqual(inventory, d.inventory)
	d.stock, d.stockFrom, d.inventory = next, from, inventory
	return changed
}

// sourceOfStock is the inventory and where it is from, empty for nowhere yet.
func (d *director) sourceOfStock(now time.Time) (stock, string) {
	if d.ownStock != nil {
		return *d.ownStock, d.cfg.ownSource()
	}
	if d.stream.list == nil || d.cfg.source == sourceNVML || d.cfg.source == sourceSim {
		return stock{}, ""
	}
	next := stockOfList(d.stream.list)
	if d.stockFrom == sourceStream && len(next.devices) > 0 {
		next = next.withKept(d.stock, func(id gpu.UUID) bool {
			_, judged := d.stream.list.Report.Verdict(id)
			return judged
		})
	}
	if len(next.devices) > 0 || d.stockFrom != sourceStream || len(d.stock.devices) == 0 {
		d.emptySince = time.Time{}
		return next, sourceStream
	}
	if d.emptySince.IsZero() {
		d.emptySince = now
	}
	if now.Sub(d.emptySince) < emptyPatience {
		return d.stock, sourceStream
	}
	return next, sourceStream
}

// ownSource is what the plugin itself reads GPUs through.
func (c config) ownSource() string {
	if c.source == sourceSim {
		return sourceSim
	}
	return sourceNVML
}

func (d *director) judge(now time.Time) {
	before := d.judged.source
	d.judged = judge(d.stock.plain(), d.stream, d.own, d.ownFacts(), lostPolicy{d.cfg.lostPolicy == policyUnhealthy, d.cfg.lostAfter}, now)
	d.handOver(d.judged.unanswered)
	if d.judged.source == before || before == "" && d.judged.source == verdictNone {
		return
	}
	level := slog.LevelInfo
	if d.judged.source == verdictHeld || d.judged.source == verdictPolicy {
		level = slog.LevelWarn
	}
	d.log.Log(context.Background(), level, "whose verdicts hold changed", "now", d.judged.source, "before", before)
}

// tell logs each device whose status changes.
func (d *director) tell(next map[gpu.UUID]standing) {
	for _, v := range d.judged.report.Verdicts {
		now, was := next[v.Device], d.said[v.Device]
		switch {
		case now.status == health.Unhealthy && was.status != health.Unhealthy:
			d.log.Warn("a device is withdrawn", "device", v.Device, "reason", v.Reason, "says", d.judged.source)
		case now.status != health.Unhealthy && was.status == health.Unhealthy:
			d.log.Info("a device is handed out again", "device", v.Device, "status", v.Status.String(), "reason", v.Reason, "says", d.judged.source)
		}
	}
}
