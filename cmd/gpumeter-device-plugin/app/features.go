// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// Where the node's labels go that say what its GPUs are.
const (
	featuresOff = "off"
	// featuresFile: into a file that node feature discovery reads.
	featuresFile = "file"
	// featuresNode: onto the node itself.
	featuresNode = "node"
)

const (
	// featureManager is who has the labels on the node.
	featureManager = "gpumeter-device-plugin"
	// featureRepeat is how often labels are written although they are as before: somebody may have taken them away.
	featureRepeat = 10 * time.Minute
	// firstFeaturePause and longestFeaturePause are between two attempts to write them.
	firstFeaturePause   = time.Second
	longestFeaturePause = 5 * time.Minute
	fieldCUDAVersion    = gpu.FieldID(5)
	machineFile         = "sys/class/dmi/id/product_name"
)

// featureConfig is what is to be said of the node's GPUs, and where.
type featureConfig struct{ labels, file string }

func (c *config) featureFlags() []cli.Flag {
	return []cli.Flag{
		c.str(&c.features.labels, "write the labels that NVIDIA's GPU feature discovery writes: off, file (for node feature discovery), node (onto the node itself, which needs patch of nodes)", "feature-labels", "GPUMETER_FEATURE_LABELS"),
		c.str(&c.features.file, "with --feature-labels=file: the `FILE`, in the folder that node feature discovery reads", "feature-file", "GPUMETER_FEATURE_FILE"),
	}
}

// described is what the labels were made of last.
type described struct {
	stock  stock
	hash   string
	origin origin
	// labels lack the time at which they changed, which is at.
	labels map[string]string
	at     time.Time
}

// origin is what a reading says of the driver.
type origin struct {
	driver string
	cuda   int
}

// originOf is that of the node's own GPUs.
func originOf(r gpu.Reading) origin {
	o := origin{driver: r.Origin.Driver}
	column := slices.Index(r.Fields, fieldCUDAVersion)
	for i := range r.Samples {
		if s := &r.Samples[i]; s.Entity.Kind == gpu.KindGPU && column >= 0 && column < len(s.Values) {
			if v, ok := s.Values[column].AsInt(); ok {
				o.cuda = int(v)
				break
			}
		}
	}
	return o
}

// knowing is o with what was known before of the same driver and is not told now.
func (o origin) knowing(before origin) origin {
	if o.driver == "" || o.driver == before.driver {
		return origin{before.driver, cmp.Or(o.cuda, before.cuda)}
	}
	return o
}

// describe hands on the labels of the node, if they are others than before. What is there counts, not what works: a GPU that is
// not listed any more is there for as long as there is a verdict on it. A reading without any GPU says nothing.
func (d *director) describe(now time.Time) {
	if d.label == nil || d.stockFrom == "" || len(d.stock.devices) == 0 {
		return
	}
	there := d.stock.withKept(d.described.stock, d.judgedAnywhere).knowing(d.described.stock)
	if there.same(d.described.stock) && d.described.hash == d.effective.hash && d.described.origin == d.origin {
		return
	}
	d.described.stock, d.described.hash, d.described.origin = there, d.effective.hash, d.origin
	inventory := d.inventory
	if !there.same(d.stock) {
		inventory, _ = d.survey(there.devices, there.links)
	}
	facts := deviceplugin.NodeFacts{
		DriverVersion: d.origin.driver, CUDAVersion: d.origin.cuda, Machine: machineName(d.cfg.hostRoot), MIGKnown: d.stockFrom != sourceStream,
	}
	labels := deviceplugin.Features(inventory, d.effective.settings, facts)
	if maps.Equal(labels, d.described.labels) {
		return
	}
	d.described.labels, d.described.at = labels, now
	facts.Changed = now
	d.label(deviceplugin.Features(inventory, d.effective.settings, facts))
}

// knowing is s with what was known of its devices before and is not told now.
func (s stock) knowing(before stock) stock {
	out := stock{devices: slices.Clone(s.devices), links: s.links}
	for i := range out.devices {
		d := &out.devices[i]
		k := slices.IndexFunc(before.devices, func(o deviceplugin.Device) bool { return o.UUID == d.UUID })
		if k < 0 {
			continue
		}
		was := &before.devices[k]
		d.MemoryBytes, d.ComputeCapability = cmp.Or(d.MemoryBytes, was.MemoryBytes), cmp.Or(d.ComputeCapability, was.ComputeCapability)
	}
	return out
}

// judgedAnywhere says whether somebody has a verdict on a device.
func (d *director) judgedAnywhere(id gpu.UUID) bool {
	reports := []*health.Report{d.own}
	if d.stream.list != nil {
		reports = append(reports, &d.stream.list.Report)
	}
	return slices.ContainsFunc(reports, func(r *health.Report) bool {
		_, judged := verdictOf(r, id)
		return judged
	})
}

// machineName is the firmware's word, empty where there is none.
func machineName(hostRoot string) string {
	text, err := os.ReadFile(filepath.Join(hostRoot, machineFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// labelWriter has the newest labels written. It is safe for concurrent use.
type labelWriter struct {
	write func(context.Context, map[string]string) error
	log   *slog.Logger

	mu     sync.Mutex
	labels map[string]string
	state  labelState
	newer  chan struct{}
}

// labelState is how writing goes. The zero labelState has nothing to write.
type labelState struct {
	// wanted says that there are labels, written that the newest are where they are to be, since at.
	wanted, written bool
	labels          int
	at              time.Time
}

func newLabelWriter(write func(context.Context, map[string]string) error, log *slog.Logger) *labelWriter {
	return &labelWriter{write: write, log: log, newer: make(chan struct{}, 1)}
}

// put makes labels those to write.
func (w *labelWriter) put(labels map[string]string) {
	w.mu.Lock()
	w.labels = labels
	w.state.wanted, w.state.written, w.state.labels = true, false, len(labels)
	w.mu.Unlock()
	select {
	case w.newer <- struct{}{}:
	default:
	}
}

// stats is how writing goes.
func (w *labelWriter) stats() labelState {
	if w == nil {
		return labelState{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// run writes until ctx ends, and returns nil then. The labels stay: a plugin that is away for a moment takes no GPU along.
func (w *labelWriter) run(ctx context.Context) error {
	pause, trouble := firstFeaturePause, ""
	for again := (<-chan time.Time)(nil); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-w.newer:
			pause = firstFeaturePause
		case <-again:
		}
		w.mu.Lock()
		labels := w.labels
		w.mu.Unlock()
		err := w.write(ctx, labels)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if err.Error() != trouble {
				w.log.Warn("the node's labels are not written; it is tried again", "error", err)
				trouble = err.Error()
			}
			w.done(labels, false)
			again, pause = time.After(pause), min(2*pause, longestFeaturePause)
		default:
			if w.done(labels, true) || trouble != "" {
				w.log.Info("the node's labels are written", "labels", len(labels))
			}
			trouble, pause = "", firstFeaturePause
			again = time.After(featureRepeat)
		}
	}
}

// done notes an attempt, and says whether those labels are written for the first time.
func (w *labelWriter) done(labels map[string]string, well bool) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !reflect.DeepEqual(labels, w.labels) {
		return false
	}
	first = well && !w.state.written
	w.state.written = well
	if well {
		w.state.at = time.Now()
	}
	return first
}

// writeFeatureFile replaces the file for node feature discovery, which reads every file of its folder but hidden ones. A file
// that is as it should be is left alone.
func writeFeatureFile(path string, labels map[string]string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "%s=%s\n", name, labels[name])
	}
	if now, err := os.ReadFile(path); err == nil && string(now) == b.String() {
		return nil
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".gpumeter-*")
	if err != nil {
		return fmt.Errorf("labels for node feature discovery: %w (mount its folder features.d, or give --feature-file)", err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString(b.String())
	for _, step := range []func() error{func() error { return file.Chmod(0o644) }, file.Sync} {
		if err == nil {
			err = step()
		}
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("labels for node feature discovery in %s: %w", path, err)
	}
	return nil
}
