// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// labelStage is a stage whose labels are caught.
func labelStage(t *testing.T, change func(*config)) (*stage, func() map[string]string) {
	t.Helper()
	s := newStage(t, change)
	s.director.cfg.hostRoot = t.TempDir()
	var got map[string]string
	s.label = func(labels map[string]string) { got = labels }
	return s, func() map[string]string { return got }
}

// The labels of the shipped pretend nodes, with the configs that their stories speak of.
func TestLabelsOfTheScenariosGolden(t *testing.T) {
	const shared4 = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
	for _, c := range []struct{ scenario, config, strategy string }{
		{"h100x8-exclusive", "", "none"},
		{"h100x8-timeslice4", shared4, "none"},
		{"h100x8-timeslice4-renamed", "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n", "none"},
		{"a100x8-mig-mixed", "", "mixed"},
		{"h100x8-mig-timeslice", "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 3}]}}\n", "mixed"},
		{"bad-day", shared4, "none"},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			scenario, err := sim.Open(c.scenario)
			if err != nil {
				t.Fatal(err)
			}
			node, err := sim.NewNode(scenario, sim.Options{Start: noon})
			if err != nil {
				t.Fatal(err)
			}
			reading, err := node.Read(t.Context(), readingFields())
			if err != nil {
				t.Fatal(err)
			}
			s, got := labelStage(t, func(c *config) { c.source, c.healthSocket = sourceSim, "" })
			s.takeLook(look{reading: reading, at: noon})
			e := mustEffective(t, nil, map[string]string{"MIG_STRATEGY": c.strategy}, c.config)
			s.effective = e
			s.director.settle(noon.Add(time.Minute))
			var b strings.Builder
			for _, name := range slices.Sorted(maps.Keys(got())) {
				fmt.Fprintf(&b, "%s=%s\n", name, got()[name])
			}
			golden(t, "labels-"+c.scenario+".txt", b.String())
		})
	}
}

func TestLabelsFollowTheConfigAndTheLayoutAndNotHealth(t *testing.T) {
	s, got := labelStage(t, func(c *config) { c.healthSocket = "" })
	is := func(when, name, want string) {
		t.Helper()
		if got()["nvidia.com/"+name] != want {
			t.Errorf("%s: %s is %q, want %q", when, name, got()["nvidia.com/"+name], want)
		}
	}
	s.config("").look(4)
	is("at first", "gpu.count", "4")
	is("at first", "gpu.replicas", "1")
	stamp := got()["nvidia.com/gfd.timestamp"]

	s.pass(time.Hour).look(4, xidOn("GPU-1", 79, noon))
	is("with a broken GPU", "gpu.count", "4")
	is("with a broken GPU", "gfd.timestamp", stamp)

	s.pass(time.Minute).look(3)
	is("with a GPU that is not listed", "gpu.count", "4")
	s.takeLook(look{at: s.now, err: errors.New("the driver is away")})
	s.pass(time.Minute)
	is("without a driver", "gpu.count", "4")

	s.config("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 50}]}}")
	is("shared", "gpu.replicas", "50")
	is("shared", "gpu.sharing-strategy", "time-slicing")
	if got()["nvidia.com/gfd.timestamp"] == stamp {
		t.Error("labels change and their time does not")
	}
}

func TestAGPUThatAnOperatorTookOutIsNotCounted(t *testing.T) {
	s, got := labelStage(t, func(c *config) { c.healthSocket = "" })
	s.config("").look(4).pass(time.Minute).look(3)
	state, _, err := s.engine.rules.Clear(s.engine.state, health.Clearing{Device: "GPU-3", Reason: "sold", Time: s.now})
	if err != nil {
		t.Fatal(err)
	}
	s.engine.state = state
	if s.pass(time.Minute).look(3); got()["nvidia.com/gpu.count"] != "3" {
		t.Errorf("count %s", got()["nvidia.com/gpu.count"])
	}
}

func TestAReadingWithoutAnyGPUTakesNoLabelAway(t *testing.T) {
	s, got := labelStage(t, func(c *config) { c.healthSocket = "" })
	s.config("").look(2)
	before := got()
	if s.pass(time.Minute).look(0).pass(time.Minute).look(0); !maps.Equal(got(), before) {
		t.Errorf("%v", got())
	}
}

func TestAnExporterThatTellsOfNoGPUTakesNoLabelAway(t *testing.T) {
	s, got := labelStage(t, func(c *config) { c.source = sourceStream })
	s.config("").list(listOf(healthy, healthy))
	before := got()
	if len(before) == 0 {
		t.Fatal("there are no labels")
	}
	s.list(listOf()).pass(2 * emptyPatience).list(listOf())
	if len(s.stock.devices) != 0 || !maps.Equal(got(), before) {
		t.Errorf("%d devices, %v", len(s.stock.devices), got())
	}
}

func TestWhatTheDriverSaysOfItselfIsLabelled(t *testing.T) {
	o := originOf(gpu.Reading{
		Origin: gpu.Origin{Driver: "580.95.05"}, Fields: []gpu.FieldID{150, fieldCUDAVersion},
		Samples: []gpu.Sample{
			{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-0"}, Values: []gpu.Value{gpu.Int(40), gpu.Absent(gpu.ReasonBlank)}},
			{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: "GPU-1"}, Values: []gpu.Value{gpu.Int(40), gpu.Int(13000)}},
		},
	})
	if o != (origin{"580.95.05", 13000}) {
		t.Errorf("%+v", o)
	}
}

func TestAReadingThatLacksTheDriversVersionTakesNoLabelAway(t *testing.T) {
	s, got := labelStage(t, func(c *config) { c.healthSocket = "" })
	s.config("")
	look := func(driver string, cuda gpu.Value) {
		l := lookAt(s.now, "boot", 2)
		l.reading.Origin.Driver, l.reading.Fields = driver, []gpu.FieldID{fieldCUDAVersion}
		for i := range l.reading.Samples {
			l.reading.Samples[i].Values = []gpu.Value{cuda}
		}
		s.takeLook(l)
		s.pass(time.Minute)
	}
	is := func(driver, cuda string) {
		t.Helper()
		if has := got()["nvidia.com/cuda.driver-version.full"]; has != driver {
			t.Errorf("the driver is %q, want %q", has, driver)
		}
		if has := got()["nvidia.com/cuda.runtime-version.full"]; has != cuda {
			t.Errorf("CUDA is %q, want %q", has, cuda)
		}
	}
	look("580.95.05", gpu.Int(13000))
	is("580.95.05", "13.0")
	look("", gpu.Absent(gpu.ReasonTimeout))
	is("580.95.05", "13.0")
	look("590.10", gpu.Int(13010))
	is("590.10", "13.1")
}

func TestTheFileForNodeFeatureDiscoveryIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gpumeter")
	for _, labels := range []map[string]string{{"nvidia.com/gpu.count": "8", "nvidia.com/a": "b"}, {"nvidia.com/gpu.count": "7"}} {
		if err := writeFeatureFile(path, labels); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	before := info.ModTime()
	if err := os.Chtimes(path, before.Add(-time.Hour), before.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := writeFeatureFile(path, map[string]string{"nvidia.com/gpu.count": "7"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != "nvidia.com/gpu.count=7\n" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err = os.Stat(path); err != nil || !info.ModTime().Equal(before.Add(-time.Hour)) || info.Mode().Perm() != 0o644 {
		t.Errorf("it was written again, or cannot be read: %v %v", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
	if err := writeFeatureFile(filepath.Join(dir, "no/gpumeter"), nil); err == nil || !strings.Contains(err.Error(), "mount its folder features.d") {
		t.Errorf("without the folder: %v", err)
	}
}

func TestLabelsAreWrittenUntilTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var fails error
		var all []map[string]string
		log := &syncBuffer{}
		w := newLabelWriter(func(_ context.Context, labels map[string]string) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, labels)
			return fails
		}, slog.New(slog.NewTextHandler(log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.run(ctx) }()
		fail := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fails = err
		}
		// written are all attempts once there is nothing to do for the writer.
		written := func() []map[string]string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		fail(errors.New("forbidden"))
		w.put(map[string]string{"a/b": "1"})
		time.Sleep(8 * time.Second)
		wrote := written()
		if s := w.stats(); s.written || !s.wanted || len(wrote) != 4 || strings.Count(log.String(), "forbidden") != 1 {
			t.Errorf("%+v after %d attempts: %s", s, len(wrote), log)
		}
		fail(nil)
		w.put(map[string]string{"a/b": "2"})
		wrote = written()
		if s := w.stats(); !s.written || s.labels != 1 || s.at.IsZero() || wrote[len(wrote)-1]["a/b"] != "2" {
			t.Errorf("%+v, %v", s, wrote)
		}
		n := len(wrote)
		time.Sleep(featureRepeat + time.Second)
		if again := len(written()) - n; again != 1 {
			t.Errorf("written %d times in ten minutes", again)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestLabelsGoToTheFileThatIsNamed(t *testing.T) {
	s := newSite(t)
	file := s.path("gpumeter")
	p := s.start("--source=sim", "--sim-scenario=h100x8-exclusive", "--health-socket=", "--feature-labels=file", "--feature-file="+file)
	p.metrics("gpumeter_device_plugin_feature_labels_written 1")
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "nvidia.com/gpu.count=8\n") {
		t.Errorf("%s, %v", text, err)
	}
	p.stop()
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the labels went with the plugin: %v", err)
	}
}
