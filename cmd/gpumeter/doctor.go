// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// doctor examines a node: one check after the other, each bounded in time.
type doctor struct {
	cfg     app.Config
	sources *app.Sources
	// proc is the node's /proc.
	proc fs.FS
	// pause is the time between two readings.
	pause time.Duration
	// told is called with each finding as it is made, doing with what takes its time now.
	told  func(finding)
	doing func(string)
}

// exam is what the checks have learnt so far. A check reads it, and changes it only through the
// function that it returns: one that comes too late has no say.
type exam struct {
	counters *exporter.Counters
	chosen   *app.Chosen
	reading  *gpu.Reading
	listing  *sharing.Listing
	division *sharing.Division
	absent   []absentField
}

// check is one step.
type check struct {
	name string
	// doing is what is said while it lasts.
	doing string
	// patience is how long it may take; overdue is how bad it is if it takes longer.
	patience time.Duration
	overdue  status
	run      func(ctx context.Context, e exam) outcome
}

// outcome is what a check found, and what later checks may know of it.
type outcome struct {
	findings []finding
	learn    func(*exam)
}

// found is an outcome that teaches nothing.
func found(findings ...finding) outcome { return outcome{findings: findings} }

const (
	// openingPatience is longer than the sources' own, so that they get to say what hangs; DCGM
	// has NVML opened beside it.
	openingPatience = 65 * time.Second
	readingPatience = 30 * time.Second
	kubeletPatience = 20 * time.Second
	quickPatience   = 10 * time.Second
)

// checks are the steps in their order.
func (d *doctor) checks() []check {
	list := []check{{"counters", "reading the counter file", quickPatience, statusFail, d.checkCounters}}
	beside := false
	for _, c := range d.sources.Candidates() {
		beside = c.Name == app.SourceDCGM
		if c.Name == app.SourceSim {
			continue
		}
		list = append(list, check{c.Name, "opening " + c.Name, openingPatience, statusWarn, d.checkCandidate(c)})
	}
	if beside {
		list = append(list, check{app.SourceNVML, "opening nvml", openingPatience, statusWarn, d.checkBeside})
	}
	list = append(list,
		check{"source", "choosing a source", openingPatience, statusFail, d.checkSource},
		check{"devices", "reading the GPUs", readingPatience, statusFail, d.checkDevices},
		check{"fields", "reading the GPUs again", readingPatience, statusWarn, d.checkFields},
		check{"permissions", "looking at /proc/self/status", quickPatience, statusWarn, d.checkPermissions},
		check{"profilers", "looking for other profilers", quickPatience, statusWarn, d.checkProfilers},
		check{"kubelet", "asking the kubelet", kubeletPatience, statusWarn, d.checkKubelet},
		check{"pods", "", quickPatience, statusWarn, d.checkPods},
		check{"device-ids", "", quickPatience, statusWarn, d.checkDeviceIDs},
	)
	if d.asksAPI() {
		list = append(list, check{"node", "asking the API server", quickPatience, statusInfo, d.checkNode})
	}
	return list
}

// examine runs the checks. It ends early when ctx does.
func (d *doctor) examine(ctx context.Context) (examination, error) {
	r := newExamination()
	var e exam
	for _, c := range d.checks() {
		if c.doing != "" {
			d.doing(c.doing)
		}
		o := c.bounded(ctx, e)
		if err := ctx.Err(); err != nil {
			return r, fmt.Errorf("the examination was ended during the check %q: %w", c.name, err)
		}
		if o.learn != nil {
			o.learn(&e)
		}
		for _, f := range o.findings {
			f.Check = c.name
			r.add(f)
			d.told(f)
		}
	}
	r.describe(e)
	simulated := ""
	if node := d.sources.Node(); node != nil {
		simulated = node.Scenario().Node
	}
	// A node without a name is examined all the same.
	r.Node, _ = d.cfg.Hostname(simulated)
	return r, nil
}

// bounded runs the check for as long as it may take. One that hangs is left behind.
func (c check) bounded(ctx context.Context, e exam) outcome {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	done := make(chan outcome, 1)
	go func() { done <- c.run(ctx, e) }()
	select {
	case o := <-done:
		return o
	case <-ctx.Done():
	}
	// What heeds its context gets to say what it was waiting for.
	select {
	case o := <-done:
		return o
	case <-time.After(time.Second):
		return found(finding{Status: c.overdue, Text: fmt.Sprintf("no end within %v: %s hangs", c.patience, c.doing),
			Remedy: "the GPU driver may hang; see dmesg for NVRM and Xid lines"})
	}
}

// doctorCommand examines the node that it runs on.
func doctorCommand(stdout, stderr io.Writer) *cli.Command {
	cfg := app.Defaults()
	flags, note := cfg.ReadingFlags()
	var asJSON, debug bool
	return &cli.Command{
		Name:  "doctor",
		Usage: "say what works on this node, what does not, and what to do about it",
		Description: "Give it the exporter's flags or environment. It ends with 0 where all is well, 1 where something is missing " +
			"and 2 where GPUs cannot be read.",
		// One would be "degraded".
		OnUsageError: func(_ context.Context, _ *cli.Command, err error, _ bool) error {
			return &exitError{code: 2, err: fmt.Errorf("%w; see gpumeter doctor --help", err)}
		},
		Flags: append(flags,
			&cli.BoolFlag{Name: "json", Usage: "one JSON document instead of lines (docs/doctor.md has its schema)", Destination: &asJSON},
			&cli.BoolFlag{Name: "debug", Usage: "log details to the standard error", Destination: &debug},
		),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			note(cmd)
			if cmd.NArg() > 0 {
				return &exitError{code: 2, err: fmt.Errorf("%q is no flag; see gpumeter doctor --help", cmd.Args().First())}
			}
			// Two readings a second apart are to differ.
			cfg.Interval = "1s"
			log := slog.New(slog.DiscardHandler)
			if debug {
				log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			d := &doctor{cfg: cfg, sources: app.NewSources(cfg, log), proc: os.DirFS("/proc"), pause: time.Second}
			return d.run(ctx, asJSON, stdout, stderr)
		},
	}
}

// run examines the node and writes what it found; the error has the exit code.
func (d *doctor) run(ctx context.Context, asJSON bool, stdout, stderr io.Writer) error {
	if err := d.cfg.Validate(); err != nil {
		return &exitError{code: 2, err: err}
	}
	defer func() {
		// What cannot be closed ends with the process, and the findings say what hangs.
		_ = d.sources.Close()
	}()
	line := newProgress(stderr)
	d.doing = line.say
	d.told = func(f finding) {
		line.clear()
		if !asJSON {
			fmt.Fprintln(stdout, f.line())
		}
	}
	r, err := d.examine(ctx)
	line.clear()
	if err != nil {
		return &exitError{code: 2, err: err}
	}
	if asJSON {
		err = r.writeJSON(stdout)
	} else {
		_, err = fmt.Fprintf(stdout, "\n%s\n", r.summary())
	}
	if err != nil {
		return &exitError{code: 2, err: fmt.Errorf("write the findings: %w", err)}
	}
	if r.ExitCode != 0 {
		return &exitError{code: r.ExitCode}
	}
	return nil
}

// exitError is an exit code other than 1, with what to say, if anything is left to be said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }
