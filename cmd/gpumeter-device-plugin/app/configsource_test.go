// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/cluster"
)

func write(t *testing.T, file, data string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhichConfigANodeHas(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a100", "h100", "default"} {
		write(t, filepath.Join(dir, name), "# "+name)
	}
	single := t.TempDir()
	write(t, filepath.Join(single, "only"), "# only")
	two := t.TempDir()
	write(t, filepath.Join(two, "x"), "")
	write(t, filepath.Join(two, "y"), "")
	const label = "nvidia.com/device-plugin.config"
	for _, c := range []struct {
		name string
		cfg  config
		// label is the node's, empty for none.
		label, want, from, err string
	}{
		{"no file", config{}, "", "", fromNothing, ""},
		{"a file", config{configFile: filepath.Join(dir, "a100")}, "", dir + "/a100", fromFile, ""},
		{"a file that is not there", config{configFile: "/nowhere/c.yaml"}, "", "", fromFile, "/nowhere/c.yaml: no such file"},
		{"the label", config{configDir: dir}, "h100", dir + "/h100", fromLabel, ""},
		{"the label before the default", config{configDir: dir, defaultConfig: "a100"}, "h100", dir + "/h100", fromLabel, ""},
		{"a label that is misspelt", config{configDir: dir, nodeName: "n1"}, "h10", "", fromLabel, `node n1: no config "h10" in ` + dir + "; did you mean h100?"},
		{"a label that names nothing", config{configDir: dir, nodeName: "n1"}, "nope", "", fromLabel, "which has: a100, default, h100"},
		{"a label that leads out", config{configDir: dir, nodeName: "n1"}, "../a100", "", fromLabel, `no config "../a100"`},
		{"the default", config{configDir: dir, defaultConfig: "a100"}, "", dir + "/a100", fromDefault, ""},
		{"a default that is not there", config{configDir: dir, defaultConfig: "b100"}, "", "", fromDefault, `--default-config: no config "b100"`},
		{"the file called default", config{configDir: dir, fallbacks: fallbackWords()}, "", dir + "/default", fromFallback, ""},
		{"the only file", config{configDir: single, fallbacks: fallbackWords()}, "", single + "/only", fromFallback, ""},
		{"none at all", config{configDir: two, fallbacks: fallbackWords()}, "", "", fromFallback, ""},
		{"nothing that stands in", config{configDir: two, fallbacks: []string{"named", "single"}}, "", "", fromFallback, "no --fallback-strategies gives a config"},
		{"a folder that is not there", config{configDir: "/nowhere"}, "x", "", fromLabel, "--config-dir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.nodeLabel = label
			state := cluster.NodeState{Synced: true}
			if c.label != "" {
				state.Labels = map[string]string{label: c.label}
			}
			r := (&configSource{cfg: c.cfg}).read(state)
			if r.from != c.from {
				t.Errorf("from %s, want %s", r.from, c.from)
			}
			if c.err != "" {
				if r.err == nil || !strings.Contains(r.err.Error(), c.err) {
					t.Errorf("error %v, want %s", r.err, c.err)
				}
				return
			}
			if r.err != nil || r.name != c.want {
				t.Errorf("%q, %v; want %q", r.name, r.err, c.want)
			}
		})
	}
}

// NVIDIA's config-manager links the null device where a node is to have no config.
func TestALinkToTheNullDeviceIsAnEmptyConfig(t *testing.T) {
	link := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.Symlink(os.DevNull, link); err != nil {
		t.Fatal(err)
	}
	r := (&configSource{cfg: config{configFile: link}}).read(cluster.NodeState{})
	if r.err != nil || r.name != link || len(r.data) != 0 {
		t.Fatalf("read as %+v", r)
	}
	if e := mustEffective(t, nil, nil, string(r.data)); e.hash != mustEffective(t, nil, nil, "").hash {
		t.Error("it is not the default")
	}
	if r := (&configSource{cfg: config{configFile: "/dev/zero"}}).read(cluster.NodeState{}); r.err == nil {
		t.Error("another device is a config")
	}
}

// TestTheFoldersOfAConfigMapAreNoConfigs is about what the kubelet makes of a ConfigMap: files that are links
// into a folder with a date, which a link called ..data leads to.
func TestTheFoldersOfAConfigMapAreNoConfigs(t *testing.T) {
	dir := configMap(t, map[string]string{"a": "# a"})
	write(t, filepath.Join(dir, ".a.swp"), "")
	names, err := (&configSource{cfg: config{configDir: dir}}).names()
	if err != nil || strings.Join(names, " ") != "a" {
		t.Errorf("names %v, %v", names, err)
	}
}

// configMap is a folder as the kubelet makes it.
func configMap(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	turnOver(t, dir, "..2026_1", files)
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// turnOver puts other content into a ConfigMap's folder, at once.
func turnOver(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		write(t, filepath.Join(dir, version, name), data)
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(version, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// following runs a source until the test ends, in a synctest bubble, and gives what was handed over.
func following(t *testing.T, s *configSource) func() []configRead {
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var reads []configRead
	done := make(chan error)
	go func() {
		done <- s.run(ctx, func(r configRead) {
			mu.Lock()
			defer mu.Unlock()
			reads = append(reads, r)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() []configRead {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return append([]configRead(nil), reads...)
	}
}

func TestAChangeOfTheConfigIsHandedOverOnce(t *testing.T) {
	dir := configMap(t, map[string]string{"c.yaml": "# one"})
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan os.Signal, 1)
		reads := following(t, &configSource{cfg: config{configFile: filepath.Join(dir, "c.yaml")}, log: slog.New(slog.DiscardHandler), asked: asked})
		if got := reads(); len(got) != 1 || string(got[0].data) != "# one" {
			t.Fatalf("at first: %v", got)
		}
		time.Sleep(time.Minute)
		if got := reads(); len(got) != 1 {
			t.Fatalf("without a change: %v", got)
		}
		turnOver(t, dir, "..2026_2", map[string]string{"c.yaml": "# two"})
		time.Sleep(configPause)
		if got := reads(); len(got) != 1 {
			t.Fatalf("after one look at a change, which may be half of it: %v", got)
		}
		time.Sleep(configPause)
		if got := reads(); len(got) != 2 || string(got[1].data) != "# two" || got[1].asked {
			t.Fatalf("after a change: %v", got)
		}
		asked <- syscall.SIGHUP
		if got := reads(); len(got) != 3 || !got[2].asked {
			t.Fatalf("after a signal: %v", got)
		}
		if err := os.Remove(filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := reads(); len(got) != 4 || got[3].err == nil {
			t.Fatalf("after the file went: %v", got)
		}
	})
}

// fakeNode is a node whose labels a test sets.
type fakeNode struct {
	mu      sync.Mutex
	state   cluster.NodeState
	changed chan struct{}
}

func newFakeNode() *fakeNode { return &fakeNode{changed: make(chan struct{})} }

func (n *fakeNode) watch() (cluster.NodeState, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state, n.changed
}

func (n *fakeNode) set(labels map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = cluster.NodeState{Synced: true, Exists: true, Labels: labels}
	close(n.changed)
	n.changed = make(chan struct{})
}

func labelled(t *testing.T) config {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(dir, name), "# "+name)
	}
	return config{configDir: dir, defaultConfig: "a", nodeLabel: "config", nodeName: "n"}
}

func TestTheDefaultIsNeverAppliedToANodeWithALabel(t *testing.T) {
	cfg := labelled(t)
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		reads := following(t, &configSource{cfg: cfg, log: slog.New(slog.DiscardHandler), node: node.watch})
		time.Sleep(labelPatience / 2)
		if got := reads(); len(got) != 0 {
			t.Fatalf("applied before the label was known: %v", got)
		}
		node.set(map[string]string{"config": "b"})
		if got := reads(); len(got) != 1 || filepath.Base(got[0].name) != "b" {
			t.Fatalf("with the label: %v", got)
		}
		node.set(map[string]string{"config": "a"})
		if got := reads(); len(got) != 2 || filepath.Base(got[1].name) != "a" {
			t.Fatalf("with another label: %v", got)
		}
	})
}

func TestANodeWhoseLabelNobodyTellsGetsTheDefaultInTheEnd(t *testing.T) {
	cfg := labelled(t)
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		reads := following(t, &configSource{cfg: cfg, log: slog.New(slog.DiscardHandler), node: node.watch})
		time.Sleep(labelPatience)
		if got := reads(); len(got) != 1 || filepath.Base(got[0].name) != "a" {
			t.Fatalf("without a label: %v", got)
		}
		node.set(map[string]string{"config": "b"})
		if got := reads(); len(got) != 2 || filepath.Base(got[1].name) != "b" {
			t.Fatalf("with the label that came late: %v", got)
		}
	})
}
