// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/nvml"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// The names of the sources of GPU readings.
const (
	SourceDCGM = "dcgm"
	SourceNVML = "nvml"
	SourceSim  = "sim"
)

const (
	// openPatience bounds the opening of a library, which hangs when the driver does. An engine
	// on a node full of MIG instances takes seconds.
	openPatience = 30 * time.Second
	// closePatience bounds the end: a call that hangs in the driver must not keep the process.
	closePatience = 5 * time.Second
	// releasePatience bounds letting go of the driver and taking it up again.
	releasePatience = 30 * time.Second
)

// Driver is a source of GPU readings with what the programs want of it beside them.
type Driver interface {
	meter.Telemetry
	// Origin is what library and engine the readings come from, and the driver's version.
	Origin() gpu.Origin
	// Facts are lines about it for people, such as the library's path.
	Facts() []string
}

// Candidate is one way to read GPUs.
type Candidate struct {
	// Name is SourceDCGM, SourceNVML or SourceSim.
	Name string
	// Open opens it, at most once; later calls answer the same. It is bounded in time: a
	// library that hangs with its driver is an error.
	Open func() (Driver, error)
}

// Chosen is the source that was taken.
type Chosen struct {
	Name   string
	Driver Driver
	// Reason says in a few words why it was taken, as gpumeter_source_info has it.
	Reason string
	// Passed are the candidates that had to be passed over, with why.
	Passed []Passed
}

// Passed is a candidate that could not be opened.
type Passed struct {
	Name string
	Err  error
}

// Sources opens what GPUs can be read through. Nothing is opened before it is asked for.
// Close closes whatever was; the other methods are safe for concurrent use.
type Sources struct {
	cfg Config
	log *slog.Logger

	dcgm, nvml, sim func() (Driver, error)

	// patience bounds each opening.
	patience time.Duration

	mu     sync.Mutex
	opened []namedDriver
	// node is the simulated one, once it was opened.
	node *sim.Node

	// kubelet is where a simulated node's kubelet keeps and serves what it has; nil with real
	// sources, without pods, and where the operator named a socket.
	kubelet *kubeletDir
}

type namedDriver struct {
	name string
	Driver
}

// NewSources makes Sources for a configuration whose values are valid.
func NewSources(cfg Config, log *slog.Logger) *Sources {
	s := &Sources{cfg: cfg, log: log, patience: openPatience}
	s.nvml = s.once(SourceNVML, s.openNVML)
	engine := s.once(SourceDCGM, s.openDCGM)
	s.dcgm = func() (Driver, error) {
		// NVML is wanted beside DCGM, and has its own time to come.
		_, _ = s.nvml()
		return engine()
	}
	s.sim = s.once(SourceSim, s.openSim)
	if cfg.Source == SourceSim && cfg.Kubernetes && !cfg.KubeletSet {
		s.kubelet = newKubeletDir()
	}
	return s
}

// Candidates are the ways that the configuration admits, in the order in which the exporter
// tries them. NVML is one of them only where it could take the place of DCGM.
func (s *Sources) Candidates() []Candidate {
	viaDCGM, viaNVML := Candidate{SourceDCGM, s.dcgm}, Candidate{SourceNVML, s.nvml}
	switch s.cfg.Source {
	case SourceSim:
		return []Candidate{{SourceSim, s.sim}}
	case SourceDCGM:
		return []Candidate{viaDCGM}
	case SourceNVML:
		return []Candidate{viaNVML}
	}
	if s.cfg.HostEngine != "" {
		// NVML would show this machine's GPUs, which may not be those that were asked for.
		return []Candidate{viaDCGM}
	}
	return []Candidate{viaDCGM, viaNVML}
}

// Beside is NVML, opened beside DCGM for what only it tells of MIG devices, or why it is not there.
func (s *Sources) Beside() (Driver, error) { return s.nvml() }

// Choose opens the first candidate that can be. The error says all that was looked for.
func (s *Sources) Choose() (Chosen, error) {
	var passed []Passed
	for _, c := range s.Candidates() {
		driver, err := c.Open()
		if err == nil {
			return Chosen{Name: c.Name, Driver: driver, Reason: s.reason(c.Name, passed), Passed: passed}, nil
		}
		passed = append(passed, Passed{c.Name, err})
	}
	return Chosen{}, s.nothing(passed)
}

// reason is why a source is taken after others had to be passed over. It is a label's value, so
// it has none of the loader's words.
func (s *Sources) reason(name string, passed []Passed) string {
	switch {
	case s.cfg.Source != "auto":
		return "asked for by --source"
	case s.cfg.HostEngine != "":
		return "a host engine was named"
	case name == SourceDCGM:
		return "libdcgm is there"
	case len(passed) > 0 && !errors.Is(passed[0].Err, dcgm.ErrNoLibrary):
		return "the engine of libdcgm does not start"
	}
	return "there is no libdcgm"
}

// nothing is the error of having nothing to read GPUs through.
func (s *Sources) nothing(passed []Passed) error {
	switch {
	case s.cfg.Source == SourceSim:
		return passed[0].Err
	case s.cfg.Source == SourceDCGM:
		return fmt.Errorf("--source=dcgm: %w; --source=auto would fall back on NVML", passed[0].Err)
	case s.cfg.Source == SourceNVML:
		return fmt.Errorf("--source=nvml: %w", passed[0].Err)
	case s.cfg.HostEngine != "":
		return fmt.Errorf("--remote-hostengine-info %s: %w", s.cfg.HostEngine, passed[0].Err)
	}
	return &noSourceError{passed}
}

// noSourceError says that --source=auto found nothing.
type noSourceError struct{ passed []Passed }

func (e *noSourceError) Error() string {
	lines := []string{"--source=auto found nothing to read GPUs through:"}
	for _, p := range e.passed {
		lines = append(lines, fmt.Sprintf("%s: %v", p.Name, p.Err))
	}
	lines = append(lines, "without a GPU: --source=sim, or `gpumeter demo`, plays a pretend node and needs none")
	return strings.Join(lines, "\n  ")
}

func (e *noSourceError) Unwrap() []error {
	errs := make([]error, len(e.passed))
	for i, p := range e.passed {
		errs[i] = p.Err
	}
	return errs
}

// dcgmConfig is how DCGM is opened, but for NVML's part.
func (c Config) dcgmConfig() (dcgm.Config, error) {
	interval, err := c.interval()
	if err != nil {
		return dcgm.Config{}, err
	}
	endpoint, err := c.endpoint()
	if err != nil {
		return dcgm.Config{}, err
	}
	selected, err := c.selections()
	if err != nil {
		return dcgm.Config{}, err
	}
	out := dcgm.Config{
		Library: c.DCGMLibrary, Endpoint: endpoint, Interval: interval,
		GPUs: selected.gpus, Switches: selected.switches, CPUs: selected.cpus,
	}
	if c.DCGMLog {
		// "-" is libdcgm's word for the standard output.
		out.LogFile, out.LogLevel = "-", c.dcgmLogLevel()
	}
	return out, nil
}

func (s *Sources) openDCGM() (Driver, error) {
	c, err := s.cfg.dcgmConfig()
	if err != nil {
		return nil, err
	}
	c.Log = s.log
	beside, missing := s.nvml()
	if n, ok := beside.(*nvml.Source); ok {
		c.Parts = n.Parts
	}
	d, err := dcgm.Open(c)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		s.log.Info("NVML is not there beside DCGM: placement and profiles of MIG devices are as DCGM has them", "because", missing)
	}
	return d, nil
}

func (s *Sources) openNVML() (Driver, error) {
	selected, err := s.cfg.selections()
	if err != nil {
		return nil, err
	}
	n, err := nvml.Open(nvml.Config{Library: s.cfg.NVMLLibrary, GPUs: selected.gpus, Switches: selected.switches, Log: s.log})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// releaser is a driver that can let go of the GPUs and take them up again.
type releaser interface {
	Release(ctx context.Context) error
	Resume(ctx context.Context) error
}

// errNothingToRelease is the answer of a source that holds no driver.
var errNothingToRelease = errors.New("this source holds no GPU driver")

// Release lets go of the driver in everything that is open. Readings fail until Resume.
func (s *Sources) Release(ctx context.Context) error {
	return s.eachReleaser(ctx, releaser.Release)
}

// Resume takes up again what Release let go of.
func (s *Sources) Resume(ctx context.Context) error {
	return s.eachReleaser(ctx, releaser.Resume)
}

func (s *Sources) eachReleaser(ctx context.Context, do func(releaser, context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	var errs []error
	found := false
	for _, d := range s.open() {
		r, ok := d.Driver.(releaser)
		if !ok {
			continue
		}
		found = true
		done := make(chan error, 1)
		go func() { done <- do(r, ctx) }()
		var err error
		select {
		case err = <-done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.name, err))
		}
	}
	if !found {
		return errNothingToRelease
	}
	return errors.Join(errs...)
}

func (s *Sources) open() []namedDriver {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.opened)
}

// Close closes everything that was opened, within seconds: what hangs is left behind, for the end
// of the process to take.
func (s *Sources) Close() error {
	s.mu.Lock()
	opened := s.opened
	s.opened = nil
	s.mu.Unlock()
	var errs []error
	for _, d := range slices.Backward(opened) {
		if err := closeDriver(d.Driver); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", d.name, err))
		}
	}
	if s.kubelet != nil {
		errs = append(errs, s.kubelet.remove())
	}
	return errors.Join(errs...)
}

func closeDriver(d Driver) error {
	c, ok := d.(interface{ Close() error })
	if !ok {
		return nil
	}
	return within(c.Close)
}

// within gives up on f after closePatience; f goes on by itself.
func within(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(closePatience):
		return fmt.Errorf("no end within %v; it is left behind", closePatience)
	}
}
