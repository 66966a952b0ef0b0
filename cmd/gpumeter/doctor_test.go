// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden holds got against a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

const shippedCounters = "../../etc/default-counters.csv"

// node is a /proc with this process, whose capabilities are the mask, and with programs by their pid.
func node(mask string, programs map[string]string) fstest.MapFS {
	proc := fstest.MapFS{
		"self/status": {Data: []byte("Name:\tgpumeter\nCapInh:\t0000000000000000\nCapEff:\t" + mask + "\nCapBnd:\tffffffffffffffff\n")},
		"42/cmdline":  {Data: []byte("gpumeter\x00doctor\x00")},
		"meminfo":     {Data: []byte("MemTotal: 1 kB\n")},
	}
	for pid, program := range programs {
		proc[pid+"/cmdline"] = &fstest.MapFile{Data: []byte(program + "\x00--some\x00")}
	}
	return proc
}

const (
	allCapabilities = "000001ffffffffff"
	noCapabilities  = "0000000000000000"
)

// examined is what the doctor says on a node, and its exit code.
func examined(t *testing.T, proc fstest.MapFS, asJSON bool, change func(*app.Config)) (string, int) {
	t.Helper()
	cfg := app.Defaults()
	cfg.KubeletSocket = "/nowhere/kubelet.sock"
	cfg.Collectors, cfg.CollectorsSet, cfg.Interval = shippedCounters, true, "100ms"
	cfg.DCGMLibrary, cfg.NVMLLibrary = "/nowhere/libdcgm.so.4", "/nowhere/libnvidia-ml.so.1"
	change(&cfg)
	d := &doctor{cfg: cfg, sources: app.NewSources(cfg, slog.New(slog.DiscardHandler)), proc: proc, pause: 100 * time.Millisecond}
	var out, noise bytes.Buffer
	err := d.run(t.Context(), asJSON, &out, &noise)
	if noise.Len() > 0 {
		t.Errorf("beside its findings it says %q", noise.String())
	}
	return out.String(), exitCode(err, &noise)
}

func TestDoctorOnAPretendNodeGolden(t *testing.T) {
	for _, tt := range []struct {
		name string
		code int
		file string
	}{
		{"default", 0, "doctor-default.txt"},
		{"h100x8-mig-timeslice", 0, "doctor-mig-timeslice.txt"},
		{"testdata/doctor-node.yaml", 1, "doctor-node.txt"},
	} {
		out, code := examined(t, node(noCapabilities, nil), false, func(c *app.Config) {
			c.Source, c.Scenario, c.Kubernetes = "sim", tt.name, true
		})
		golden(t, tt.file, out)
		if code != tt.code {
			t.Errorf("%s: exit code %d, want %d", tt.name, code, tt.code)
		}
	}
}

func TestDoctorInJSONGolden(t *testing.T) {
	out, code := examined(t, node(noCapabilities, nil), true, func(c *app.Config) {
		c.Source, c.Scenario, c.Kubernetes = "sim", "testdata/doctor-node.yaml", true
	})
	golden(t, "doctor-node.json", out)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}

func TestDoctorWithoutAnythingGolden(t *testing.T) {
	out, code := examined(t, node(allCapabilities, nil), false, func(c *app.Config) {
		c.Kubernetes, c.KubeletSocket = true, "/nowhere/kubelet.sock"
	})
	golden(t, "doctor-nothing.txt", out)
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
}

// pretendDCGM is a machine behind a libdcgm of its own.
func pretendDCGM(t *testing.T, scenario string) string {
	t.Helper()
	s, err := dcgmsim.New(t.TempDir(), scenario)
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.Path
}

func TestDoctorOnDCGMGolden(t *testing.T) {
	for file, tt := range map[string]struct {
		scenario string
		proc     fstest.MapFS
		change   func(*app.Config)
		code     int
	}{
		"doctor-dcgm.txt": {
			"gpus 2 h100\nprof 1 none\nstatus 0 1001 -17\nfield 0 150 blank\nfield 1 203 notfound\n",
			node(noCapabilities, map[string]string{"7": "/usr/bin/nv-hostengine", "1": "/usr/local/bin/gpumeter-exporter", "99": "/bin/sh"}),
			func(*app.Config) {}, 1,
		},
		"doctor-dcgm-fine.txt": {
			"gpus 2 h100\nmig 1 on\ngi 1 profile 3g.40gb nvml 2 placement 4 ci\n", node(allCapabilities, nil), func(*app.Config) {}, 0,
		},
		"doctor-dcgm-no-engine.txt": {
			"gpus 2 h100\nfail dcgmStartEmbedded_v2 -7 100\n", node(allCapabilities, nil), func(*app.Config) {}, 2,
		},
		"doctor-dcgm-all-lost.txt": {
			"gpus 1 h100\nlost 0\n", node(allCapabilities, nil), func(*app.Config) {}, 2,
		},
		"doctor-dcgm-older.txt": {
			"version 4.2.3\ngpus 2 h100\n", node(allCapabilities, nil), func(c *app.Config) { c.Collectors = "testdata/computed.csv" }, 1,
		},
		"doctor-dcgm-remote.txt": {
			"gpus 1 h100\n", node(noCapabilities, map[string]string{"7": "nv-hostengine", "8": "/usr/bin/dcgm-exporter"}),
			func(c *app.Config) { c.HostEngine = "unix:///run/nvhostengine.sock" }, 1,
		},
		"doctor-dcgm-misselected.txt": {
			"gpus 2 h100\n", node(allCapabilities, nil), func(c *app.Config) { c.Devices = "g:7" }, 2,
		},
	} {
		t.Run(file, func(t *testing.T) {
			path := pretendDCGM(t, tt.scenario)
			out, code := examined(t, tt.proc, false, func(c *app.Config) {
				c.DCGMLibrary = path
				tt.change(c)
			})
			golden(t, file, strings.ReplaceAll(out, path, "/opt/libdcgm.so.4"))
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
		})
	}
}

// TestDoctorOnAGPUThatDoesNotAnswer from the start, and so has no UUID yet.
func TestDoctorOnAGPUThatDoesNotAnswer(t *testing.T) {
	for scenario, text := range map[string]string{"hang 3": "GPU 3", "slow 1 3s": "GPU 1"} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			path := pretendDCGM(t, "gpus 4 h100\n"+scenario+"\n")
			document, code := examined(t, node(allCapabilities, nil), true, func(c *app.Config) { c.DCGMLibrary = path })
			var r examination
			if err := json.Unmarshal([]byte(document), &r); err != nil {
				t.Fatal(err)
			}
			warned := false
			for _, f := range r.Findings {
				warned = warned || f.Check == "devices" && f.Status == statusWarn && strings.Contains(f.Text, text) && f.Remedy != ""
				if f.Check == "fields" && f.Status == statusOK && !strings.HasSuffix(f.Text, "which not all do") {
					t.Errorf("the count hides it: %s", f.Text)
				}
			}
			if !warned || code != 1 {
				t.Errorf("exit code %d, warned %v:\n%s", code, warned, document)
			}
		})
	}
}

func TestDoctorsWordsAreTheWholeOfItsJSON(t *testing.T) {
	change := func(c *app.Config) { c.Source, c.Scenario, c.Kubernetes = "sim", "testdata/doctor-node.yaml", true }
	lines, _ := examined(t, node(noCapabilities, nil), false, change)
	document, _ := examined(t, node(noCapabilities, nil), true, change)
	var r examination
	if err := json.Unmarshal([]byte(document), &r); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, f := range r.Findings {
		want.WriteString(f.line() + "\n")
	}
	want.WriteString("\n" + r.summary() + "\n")
	if d := cmp.Diff(want.String(), lines); d != "" {
		t.Errorf("(-JSON +lines):\n%s", d)
	}
}

func TestDoctorsPageHasEveryKeyOfTheJSON(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("testdata/doctor-node.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(document, &all); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				// The resources and reasons of these are data.
				if key == "advertised" || key == "skipped" {
					value = nil
				}
				if !bytes.Contains(page, []byte("`"+key+"`")) {
					t.Errorf("docs/doctor.md does not explain %q", key)
				}
				walk(value)
			}
		case []any:
			for _, value := range v {
				walk(value)
			}
		}
	}
	walk(all)
	d := &doctor{cfg: app.Defaults(), sources: app.NewSources(app.Defaults(), slog.New(slog.DiscardHandler))}
	for _, c := range d.checks() {
		if !bytes.Contains(page, []byte("`"+c.name+"`")) {
			t.Errorf("docs/doctor.md does not explain the check %q", c.name)
		}
	}
}

func TestDoctorsExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"doctor", "--source=sim", "-f", shippedCounters}, 0, "Fine"},
		{[]string{"doctor", "--source=sim", "-f", shippedCounters, "--scenario", "testdata/doctor-node.yaml"}, 1, "Degraded"},
		{[]string{"doctor", "--source=sim", "-f", "/nowhere.csv"}, 2, "Broken"},
		{[]string{"doctor", "--source=sim", "-f", shippedCounters, "--scenario", "nope"}, 2, "Broken"},
		{[]string{"doctor", "--source=rocm"}, 2, "--source \"rocm\""},
		{[]string{"doctor", "--no-such-flag"}, 2, "see gpumeter doctor --help"},
		{[]string{"doctor", "stray"}, 2, "\"stray\" is no flag"},
		{[]string{"demo", "stray"}, 1, "stray"},
	} {
		var out screen
		code := exitCode(gpumeter(t.Context(), &out, tt.args...), &out)
		if code != tt.code || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%v: exit code %d, want %d, with %q:\n%s", tt.args, code, tt.code, tt.says, out.String())
		}
	}
}

func TestACheckThatHangsGivesALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		came := make(chan struct{})
		c := check{"devices", "reading the GPUs", readingPatience, statusFail, func(context.Context, exam) outcome {
			<-came
			return found(finding{Status: statusOK, Text: "late"})
		}}
		began := time.Now()
		o := c.bounded(t.Context(), exam{})
		if took := time.Since(began); took > readingPatience+2*time.Second {
			t.Errorf("after %v", took)
		}
		if len(o.findings) != 1 || o.findings[0].Status != statusFail || !strings.Contains(o.findings[0].Text, "no end within 30s: reading the GPUs hangs") || o.learn != nil {
			t.Errorf("found %+v", o)
		}
		close(came)
	})
}

func TestACheckThatHeedsItsTimeSaysWhatItWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := check{"kubelet", "asking the kubelet", kubeletPatience, statusWarn, func(ctx context.Context, _ exam) outcome {
			<-ctx.Done()
			return found(finding{Status: statusWarn, Text: "the kubelet does not answer"})
		}}
		if o := c.bounded(t.Context(), exam{}); o.findings[0].Text != "the kubelet does not answer" {
			t.Errorf("found %+v", o)
		}
	})
}

func TestDoctorEndsWhenItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out screen
	err := gpumeter(ctx, &out, "doctor", "--source=sim", "-f", shippedCounters)
	if code := exitCode(err, &out); code != 2 || !errors.Is(err, context.Canceled) {
		t.Errorf("exit code %d, error %v", code, err)
	}
}

func TestForeignTextAddsNoLines(t *testing.T) {
	f := finding{Check: "devices", Status: statusOK, Text: "GPU 0\nok    source  \x1b[31mall is well\u0085", Remedy: "a\r\nb"}
	if got, want := f.line(), "ok    devices      GPU 0 ok source [31mall is well  → a b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
