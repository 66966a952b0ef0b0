// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/common/version"

	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/hpc"
	"github.com/gpumeter/gpumeter/pkg/kubelet"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// Version is what was stamped into the program by `make build`.
func Version() string { return cmp.Or(version.Version, "devel") }

// App is one exporter, ready to run. Nothing is listening, dialled or sampled
// before Run.
type App struct {
	cfg      Config
	log      *slog.Logger
	meter    *meter.Meter
	exporter *exporter.Exporter
	counters *counterFile
	kubelet  *kubelet.Client
	sources  *Sources
	source   Chosen
	// fields are what the counters asked for at the start.
	fields []gpu.FieldID
	// host names the node, as the hostname label does.
	host string
	xids *health.XIDTable
	// conditions is nil where nothing is kept.
	conditions *ledger.Conditions
	// stream is nil where the verdicts are told to nobody.
	stream    *stream
	inventory *ledger.Inventory
	// book has the charges, in memory where nothing is kept.
	book *ledger.Book
	// pods is nil where pods are not mapped, node where the API server is not asked.
	pods *podMap
	node *cluster.NodeWatch
	// jobs is nil where no batch scheduler is asked.
	jobs *hpc.Folder
	// released says that the driver is let go of; it is watchRelease's.
	released bool
	bound    chan struct{}
	addr     net.Addr
}

// New wires an App. An error says what is wrong with the configuration and what
// to do; warnings go to logs, the App's log.
func New(cfg Config, logs io.Writer) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, log: cfg.logger(logs), bound: make(chan struct{})}
	a.sources = NewSources(cfg, a.log)
	for _, f := range cfg.NotYet {
		a.log.Warn("accepted for compatibility with dcgm-exporter, but without effect yet", "flag", f)
	}
	var err error
	if a.counters, err = openCounters(cfg, a.log); err != nil {
		return nil, err
	}
	if err := a.wire(); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// Serve makes an App and runs it until ctx ends, also while it is still being made: a driver
// that hangs when it is opened does not keep the process.
func Serve(ctx context.Context, cfg Config, logs io.Writer) error {
	type made struct {
		app *App
		err error
	}
	ready := make(chan made, 1)
	go func() {
		a, err := New(cfg, logs)
		ready <- made{a, err}
	}()
	select {
	case m := <-ready:
		if m.err != nil {
			return m.err
		}
		return m.app.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// wire makes the sources, the meter and the exporter.
func (a *App) wire() error {
	interval, err := a.cfg.interval()
	if err != nil {
		return err
	}
	policy, err := a.cfg.Policy()
	if err != nil {
		return err
	}
	xidWindow, clockWindow, err := a.cfg.windows()
	if err != nil {
		return err
	}
	if err := a.choose(); err != nil {
		return err
	}
	a.fields = a.counters.current.Fields()
	mc := meter.Config{
		Telemetry: a.source.Driver, Fields: a.fields, Policy: policy,
		Interval: interval, ListingMaxAge: a.cfg.KubeletMaxAge, EventWindow: xidWindow, ClockWindow: clockWindow, Log: a.log,
	}
	if err := a.mapHolders(&mc); err != nil {
		return err
	}
	if err := a.watchHealth(&mc); err != nil {
		return err
	}
	a.remember(&mc)
	if err := a.nameHost(); err != nil {
		return err
	}
	if err := a.keepBook(&mc); err != nil {
		return err
	}
	if a.cfg.healthSocket() != "" {
		mc.Also = streamFields()
	}
	if a.meter, err = meter.New(mc); err != nil {
		return fmt.Errorf("--clock-events-count-window-size or --collect-interval: %w", err)
	}
	return a.show(policy.Name(), xidWindow, clockWindow)
}

// mapHolders gives the meter who holds what: pods, or else a batch scheduler's jobs.
func (a *App) mapHolders(mc *meter.Config) error {
	if a.cfg.JobFolder != "" {
		var log *slog.Logger
		if a.cfg.Kubernetes {
			log = a.log
		}
		a.jobs = hpc.Open(a.cfg.JobFolder, a.cfg.KubeletPoll, log)
		mc.Jobs = a.jobs.Jobs
	}
	switch {
	case a.cfg.Kubernetes:
		return a.mapPods(mc)
	case a.jobs != nil:
		mc.Allocations = a.jobs
	default:
		a.log.Info("pods are not mapped, so who holds the GPUs is unobserved; --kubernetes maps them")
	}
	return nil
}

// mapPods gives the meter who holds what: the kubelet, with what the API server says of the pods.
func (a *App) mapPods(mc *meter.Config) error {
	var err error
	if a.kubelet, err = a.sources.DialKubelet(); err != nil {
		return err
	}
	mode := a.cfg.PodWatch
	if a.cfg.Source == SourceSim && mode == PodWatchAuto {
		// No API server knows a pretend node.
		mode = PodWatchOff
	}
	client, pods, err := watchPods(mode, a.cfg.Kubeconfig, a.cfg.NodeName, a.log)
	if err != nil {
		return err
	}
	if client != nil {
		a.node = client.WatchNode(a.cfg.NodeName, a.log)
	}
	if pods == nil && a.cfg.PodLabels {
		a.log.Warn("--kubernetes-enable-pod-labels has no effect: the API server is not asked for pods; see --kubernetes-pod-watch")
	}
	a.pods = newPodMap(a.kubelet, pods)
	mc.Allocations = a.pods
	return nil
}

// nameHost finds the node's name.
func (a *App) nameHost() error {
	simulated := ""
	if node := a.sources.Node(); node != nil {
		simulated = node.Scenario().Node
	}
	var err error
	a.host, err = a.cfg.Hostname(simulated)
	return err
}

// longestFirstTick is how long a scrape waits for the first tick at most.
const longestFirstTick = 5 * time.Second

// show makes the exporter of what the meter measures.
func (a *App) show(policy string, xidWindow, clockWindow time.Duration) error {
	if a.cfg.healthSocket() != "" {
		a.stream = a.newStream()
	}
	var links []exporter.Link
	if a.cfg.EnablePprof {
		links = append(links, exporter.Link{Path: "/debug/pprof/", Text: "profiles of the exporter itself"})
	}
	allowed, err := a.cfg.podLabels()
	if err != nil {
		return err
	}
	a.exporter, err = exporter.New(a.meter, a.counters.current, exporter.Config{
		Hostname: a.host, HostnameLabel: a.cfg.HostnameLabel, OldNamespace: a.cfg.UseOldNamespace,
		VirtualGPUs: a.cfg.VirtualGPUs, PodUID: a.cfg.EnablePodUID, PodLabels: allowed, ReplaceBlanksInModelName: a.cfg.ReplaceBlanks,
		Build: exporter.BuildInfo{Version: Version(), Revision: version.GetRevision(), GoVersion: runtime.Version()},
		Links: links,
		XIDs:  a.xids, XIDWindow: xidWindow, ClockWindow: clockWindow, SourceReason: a.source.Reason,
		FirstTick: min(longestFirstTick, a.cfg.WriteTimeout/2),
		Stream:    a.stream.state(), Restored: a.restored(),
		Policy: policy, NoPodCharges: !a.cfg.Ledger.PodSeconds,
	})
	if err != nil {
		return err
	}
	a.exporter.Reload(a.counters.current, a.counters.problems, time.Now())
	return nil
}

// choose opens the source of GPU readings and says which it is.
func (a *App) choose() error {
	var err error
	if a.source, err = a.sources.Choose(); err != nil {
		return err
	}
	for _, p := range a.source.Passed {
		level := slog.LevelWarn
		if errors.Is(p.Err, dcgm.ErrNoLibrary) {
			level = slog.LevelInfo
		}
		a.log.Log(context.Background(), level, "GPUs cannot be read through "+p.Name, "error", p.Err)
	}
	if o := a.source.Driver.Origin(); a.connects() {
		a.log.Info("GPUs will be read from "+o.Engine, a.described(o)...)
	} else {
		a.log.Info("GPUs are read", a.described(o)...)
	}
	if a.cfg.HostEngine != "" && a.source.Name != SourceDCGM {
		a.log.Warn("--remote-hostengine-info has no effect with this source", "source", a.source.Name, "address", a.cfg.HostEngine)
	}
	return nil
}

// connects reports whether the source was not reached when it was opened, but is being connected to.
func (a *App) connects() bool { return a.cfg.HostEngine != "" && a.source.Name == SourceDCGM }

// described is the source for the log, without what is not known of it.
func (a *App) described(o gpu.Origin) []any {
	out := []any{"source", a.source.Name, "because", a.source.Reason}
	for _, part := range [][2]string{{"library", o.Library}, {"engine", o.Engine}, {"driver", o.Driver}} {
		if part[1] != "" {
			out = append(out, part[0], part[1])
		}
	}
	return out
}

// tellConnected logs the first answer of a source that is connected to.
func (a *App) tellConnected(ctx context.Context) error {
	for a.connects() {
		s, stale := a.meter.Watch()
		if s.Reading.Source != "" {
			a.log.Info("GPUs are read", a.described(s.Reading.Origin)...)
			break
		}
		select {
		case <-stale:
		case <-ctx.Done():
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// Meter is the App's, for those who watch what it measures.
func (a *App) Meter() *meter.Meter { return a.meter }

// Node is the simulated node, or nil.
func (a *App) Node() *sim.Node { return a.sources.Node() }

// Addr waits until the App listens and says where.
func (a *App) Addr(ctx context.Context) (net.Addr, error) {
	select {
	case <-a.bound:
		return a.addr, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Run serves until ctx ends and then stops gracefully; or until a part of it fails, which is the error. It may be called once.
func (a *App) Run(ctx context.Context) error {
	defer func() {
		if err := a.close(); err != nil {
			a.log.Warn("close", "error", err)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	until := func(f func(context.Context) error) {
		actor, stop := context.WithCancel(ctx)
		g.Add(func() error { return f(actor) }, func(error) { stop() })
	}
	until(func(ctx context.Context) error { <-ctx.Done(); return nil })
	if a.sources.Pretends() {
		until(a.sources.ServeKubelet)
	}
	until(func(ctx context.Context) error {
		a.sources.AwaitKubelet(ctx)
		return a.meter.Run(ctx)
	})
	if a.pods != nil {
		until(a.pods.Run)
	}
	if a.node != nil {
		until(a.node.Run)
	}
	if a.jobs != nil {
		until(a.jobs.Run)
	}
	until(a.tellConnected)
	if a.stream != nil {
		until(a.serveHealth)
	}
	until(a.watchSelections)
	// From before anything says that the App is ready: a signal that comes then is not lost, nor is it the end.
	usr1, hup := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	defer signal.Stop(usr1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	until(func(ctx context.Context) error { return a.watchRelease(ctx, usr1) })
	until(func(ctx context.Context) error { return a.watchCounters(ctx, hup) })
	if err := a.addServer(&g); err != nil {
		return err
	}
	if err := g.Run(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (a *App) close() error {
	var errs []error
	if a.kubelet != nil {
		errs = append(errs, a.kubelet.Close())
	}
	if a.conditions != nil {
		// A disk that hangs must not keep the process.
		errs = append(errs, within(a.conditions.Close))
	}
	if a.book != nil {
		errs = append(errs, within(a.book.Close))
	}
	if a.inventory != nil {
		errs = append(errs, within(a.inventory.Close))
	}
	errs = append(errs, a.sources.Close())
	return errors.Join(errs...)
}
