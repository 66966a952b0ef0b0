// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/nvml"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

const (
	// openPatience bounds the opening of NVML, which hangs when the driver does.
	openPatience = 30 * time.Second
	// firstOpenPause and longestOpenPause are between two attempts to open it: a driver that is
	// being installed comes within minutes, and costs an attempt every half minute until then.
	firstOpenPause   = time.Second
	longestOpenPause = 30 * time.Second
	// readPatience bounds a reading. A GPU that hangs does not make it later than that.
	readPatience = 5 * time.Second
)

// The fields beside health's that an inventory is made of.
const (
	fieldMemoryMiB         = gpu.FieldID(250)
	fieldComputeCapability = gpu.FieldID(63)
)

// readingFields are what is asked of a node's own GPUs.
func readingFields() []gpu.FieldID {
	return append(health.Fields(), fieldMemoryMiB, fieldComputeCapability, fieldCUDAVersion, gpu.FieldP2PStatus)
}

// look is one look at the node's own GPUs.
type look struct {
	reading gpu.Reading
	at      time.Time
	// bootID is the kernel's at that time.
	bootID string
	// err is why there is no reading; opened says that the source is there all the same.
	err    error
	opened bool
}

// gpuSource is what GPUs are read through.
type gpuSource interface {
	Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error)
}

// telemetry reads the node's own GPUs.
type telemetry struct {
	log      *slog.Logger
	name     string
	interval time.Duration
	open     func() (gpuSource, error)
	bootID   func() string
}

// newTelemetry is the one that the config asks for; nil where the stream is the only source.
// driverRoot is where the plugin sees the driver's files.
func newTelemetry(c config, driverRoot func() string, log *slog.Logger) (*telemetry, error) {
	t := &telemetry{log: log, interval: c.interval, bootID: kernelBootID}
	switch c.source {
	case sourceStream:
		return nil, nil
	case sourceSim:
		node, err := openSim(c, log)
		if err != nil {
			return nil, err
		}
		t.name = sourceSim
		t.open = func() (gpuSource, error) { return node, nil }
		t.bootID = func() string { return node.BootID(node.Elapsed()) }
	default:
		t.name = sourceNVML
		t.open = func() (gpuSource, error) {
			var errs []error
			for _, library := range nvmlLibraries(c.nvml, driverRoot()) {
				source, err := openNVML(library, log)
				if err == nil {
					return source, nil
				}
				errs = append(errs, err)
			}
			return nil, errors.Join(errs...)
		}
	}
	return t, nil
}

func openSim(c config, log *slog.Logger) (*sim.Node, error) {
	scenario, err := sim.Open(c.scenario)
	if err != nil {
		return nil, fmt.Errorf("--sim-scenario: %w", err)
	}
	o := sim.Options{Start: time.Now(), Log: log}
	if c.nodeName != "" {
		seed := sim.SeedOf(c.nodeName)
		o.Seed = &seed
	}
	node, err := sim.NewNode(scenario, o)
	if err != nil {
		return nil, fmt.Errorf("--sim-scenario %s: %w", c.scenario, err)
	}
	return node, nil
}

// nvmlLibraries are the libraries to try, the empty one being where the loader finds it: the one that
// was named; else the one of the driver root, as with NVIDIA's plugin, which a container may have
// beside none or an older one of its own.
func nvmlLibraries(named, driverRoot string) []string {
	if named != "" {
		return []string{named}
	}
	if driverRoot != "" && driverRoot != "/" {
		for _, folder := range []string{
			"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
		} {
			if library := filepath.Join(driverRoot, folder, "libnvidia-ml.so.1"); exists(library) {
				return []string{library, ""}
			}
		}
	}
	return []string{""}
}

// openNVML opens NVML within openPatience. One that comes later is closed by itself.
func openNVML(library string, log *slog.Logger) (gpuSource, error) {
	type answer struct {
		source *nvml.Source
		err    error
	}
	came := make(chan answer, 1)
	go func() {
		s, err := nvml.Open(nvml.Config{Library: library, Log: log})
		came <- answer{s, err}
	}()
	select {
	case a := <-came:
		if a.err != nil {
			return nil, a.err
		}
		return a.source, nil
	case <-time.After(openPatience):
		go func() {
			if a := <-came; a.err == nil {
				_ = a.source.Close()
			}
		}()
		return nil, fmt.Errorf("NVML does not open within %v: the GPU driver may hang; see dmesg for NVRM and Xid lines", openPatience)
	}
}

// kernelBootID names the kernel's life; empty where there is no such file.
func kernelBootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// run opens the source, with patience, and hands on what it reads until ctx ends. It returns nil
// then, also while a call hangs: that is left behind.
func (t *telemetry) run(ctx context.Context, hand func(look)) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		source := t.await(ctx, hand)
		if source == nil {
			return
		}
		t.follow(ctx, source, hand)
		if c, ok := source.(interface{ Close() error }); ok {
			if err := c.Close(); err != nil {
				t.log.Warn("close the source of GPU readings", "source", t.name, "error", err)
			}
		}
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(readPatience + time.Second):
	}
	return nil
}

// await opens the source; nil when ctx ended before.
func (t *telemetry) await(ctx context.Context, hand func(look)) gpuSource {
	said := ""
	for pause := firstOpenPause; ctx.Err() == nil; pause = min(2*pause, longestOpenPause) {
		source, err := t.open()
		if err == nil {
			t.log.Info("GPUs are read by the plugin itself", "source", t.name)
			return source
		}
		if err.Error() != said {
			level := slog.LevelWarn
			if errors.Is(err, nvml.ErrNoLibrary) {
				level = slog.LevelInfo
			}
			t.log.Log(ctx, level, "GPUs cannot be read by the plugin itself; it goes on trying", "source", t.name, "error", err)
			said = err.Error()
		}
		hand(look{at: time.Now(), bootID: t.bootID(), err: err})
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (t *telemetry) follow(ctx context.Context, source gpuSource, hand func(look)) {
	ticker := time.NewTicker(t.interval)
	defer ticker.Stop()
	fields := readingFields()
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, readPatience)
		reading, err := source.Read(bounded, fields)
		cancel()
		if ctx.Err() != nil {
			return
		}
		hand(look{reading: reading, at: time.Now(), bootID: t.bootID(), err: err, opened: true})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}
