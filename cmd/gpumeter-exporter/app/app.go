// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/common/version"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/kubelet"
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
	// node is the simulated one, nil with real sources; kubeletDir holds what its kubelet serves and
	// keeps, where it is not an operator's.
	node               *sim.Node
	kubeletDir         string
	socket, checkpoint string
	bound              chan struct{}
	addr               net.Addr
}

// New wires an App. An error says what is wrong with the configuration and what
// to do; warnings go to logs, the App's log.
func New(cfg Config, logs io.Writer) (*App, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, log: cfg.logger(logs), bound: make(chan struct{})}
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

// wire makes the sources, the meter and the exporter.
func (a *App) wire() error {
	interval, err := a.cfg.interval()
	if err != nil {
		return err
	}
	policy, err := a.cfg.policy()
	if err != nil {
		return err
	}
	telemetry, err := a.telemetry()
	if err != nil {
		return err
	}
	mc := meter.Config{
		Telemetry: telemetry, Fields: a.counters.current.Fields(), Policy: policy,
		Interval: interval, ListingMaxAge: a.cfg.KubeletMaxAge, Log: a.log,
	}
	if a.cfg.Kubernetes {
		if a.kubelet, err = a.dialKubelet(); err != nil {
			return err
		}
		mc.Allocations = a.kubelet
	} else {
		a.log.Info("pods are not mapped, so who holds the GPUs is unobserved; --kubernetes maps them")
	}
	if a.meter, err = meter.New(mc); err != nil {
		return err
	}
	simulated := ""
	if a.node != nil {
		simulated = a.node.Scenario().Node
	}
	host, err := a.cfg.hostname(simulated)
	if err != nil {
		return err
	}
	var links []exporter.Link
	if a.cfg.EnablePprof {
		links = append(links, exporter.Link{Path: "/debug/pprof/", Text: "profiles of the exporter itself"})
	}
	a.exporter, err = exporter.New(a.meter, a.counters.current, exporter.Config{
		Hostname: host, HostnameLabel: a.cfg.HostnameLabel, OldNamespace: a.cfg.UseOldNamespace,
		VirtualGPUs: a.cfg.VirtualGPUs, PodUID: a.cfg.EnablePodUID, ReplaceBlanksInModelName: a.cfg.ReplaceBlanks,
		Build: exporter.BuildInfo{Version: Version(), Revision: version.GetRevision(), GoVersion: runtime.Version()},
		Links: links,
	})
	if err != nil {
		return err
	}
	a.exporter.Reload(a.counters.current, a.counters.problems, time.Now())
	return nil
}

// telemetry is the source of GPU readings.
func (a *App) telemetry() (meter.Telemetry, error) {
	switch a.cfg.Source {
	case "sim":
	case "auto":
		return nil, errors.New("no GPU source: this build reads no real hardware yet (DCGM and NVML come next); " +
			"run with --source=sim, or `gpumeter demo`, which need no GPU")
	default:
		return nil, fmt.Errorf("--source %q: want auto or sim", a.cfg.Source)
	}
	scenario, err := sim.Open(a.cfg.Scenario)
	if err != nil {
		return nil, fmt.Errorf("--scenario: %w", err)
	}
	if a.cfg.Kubernetes && !a.cfg.KubeletSet {
		// A unix socket's path has room for 107 bytes, so it lives in the short place. Run makes the directory.
		a.kubeletDir = filepath.Join(os.TempDir(), "gpumeter-sim-"+rand.Text()[:10])
		a.socket = filepath.Join(a.kubeletDir, "kubelet.sock")
		a.checkpoint = filepath.Join(a.kubeletDir, "kubelet_internal_checkpoint")
	}
	o := sim.Options{Start: time.Now(), Speed: a.cfg.Speed, Checkpoint: a.checkpoint, Log: a.log}
	if a.cfg.SeedSet {
		o.Seed = &a.cfg.Seed
	}
	if a.node, err = sim.NewNode(scenario, o); err != nil {
		return nil, fmt.Errorf("--scenario %s: %w", a.cfg.Scenario, err)
	}
	a.log.Info("the node is simulated", "scenario", a.cfg.Scenario, "speed", a.cfg.Speed)
	return a.node, nil
}

// dialKubelet makes the client of the kubelet: a simulated node's own, unless the
// operator named a socket.
func (a *App) dialKubelet() (*kubelet.Client, error) {
	resources, err := a.cfg.resources()
	if err != nil {
		return nil, err
	}
	kc := kubelet.Config{
		Socket: a.cfg.KubeletSocket, Resources: resources, Checkpoint: a.cfg.Checkpoint, Log: a.log,
		PodName: a.cfg.PodName, PodNamespace: a.cfg.PodNamespace, StartingLimit: a.cfg.KubeletMaxAge,
	}
	if kc.PodName == "" {
		// In a pod without the host's network this is the pod's name; elsewhere no pod has it.
		kc.PodName, _ = os.Hostname()
	}
	if a.socket != "" {
		kc.Socket, kc.Checkpoint = a.socket, a.checkpoint
	}
	return kubelet.New(kc)
}

// Meter is the App's, for those who watch what it measures.
func (a *App) Meter() *meter.Meter { return a.meter }

// Node is the simulated node, or nil.
func (a *App) Node() *sim.Node { return a.node }

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
	if a.socket != "" {
		if err := os.Mkdir(a.kubeletDir, 0o700); err != nil {
			return fmt.Errorf("directory for the simulated kubelet's socket: %w", err)
		}
		until(func(ctx context.Context) error { return a.node.ServeKubelet(ctx, a.socket) })
	}
	until(func(ctx context.Context) error {
		a.awaitKubelet(ctx)
		return a.meter.Run(ctx)
	})
	until(a.watchCounters)
	if err := a.addServer(&g); err != nil {
		return err
	}
	if err := g.Run(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// awaitKubelet gives a simulated kubelet the moment it needs to listen: the story is
// not to begin with a fault that no real node has.
func (a *App) awaitKubelet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for a.socket != "" && ctx.Err() == nil {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", a.socket); err == nil {
			_ = c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (a *App) close() error {
	var errs []error
	if a.kubelet != nil {
		errs = append(errs, a.kubelet.Close())
	}
	if a.kubeletDir != "" {
		errs = append(errs, os.RemoveAll(a.kubeletDir))
	}
	return errors.Join(errs...)
}
