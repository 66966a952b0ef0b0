// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// programs is the folder with the pretend driver's programs.
var programs string //nolint:gochecknoglobals // built once for all tests

func TestMain(m *testing.M) { os.Exit(withPrograms(m)) }

func withPrograms(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	for _, program := range []string{Program, ComputeModeProgram} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, program), "./testdata/pretend").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the pretend %s: %v\n%s", program, err, out)
			return 1
		}
	}
	return m.Run()
}

const shared = "nvidia.com/gpu.shared"

// patience is for what must come about, however slow the machine.
const patience = time.Minute

// node is a machine with pretend programs of the driver, and a supervisor.
type node struct {
	t    *testing.T
	root string
	home string
	cfg  Config

	mu     sync.Mutex
	facts  []health.Fact
	told   int
	log    strings.Builder
	absent bool
}

func newNode(t *testing.T) *node {
	t.Helper()
	// A socket's path is short.
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, root: filepath.Join(dir, "r"), home: dir}
	if err := os.MkdirAll(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=" + dir}
	n.cfg = Config{
		Environ: environ,
		Find: func() (string, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.absent {
				return FindIn(Program, "/nowhere")
			}
			return FindIn(Program, "/nowhere", programs)
		},
		SetExclusive: SetExclusiveBy(func() (string, error) { return FindIn(ComputeModeProgram, programs) }, environ),
		Report: func(facts []health.Fact) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.facts = facts
			n.told++
		},
		Log: slog.New(slog.NewTextHandler(n, nil)),
		pace: pace{
			start: patience, quit: patience, ask: 20 * time.Millisecond, answer: patience, misses: 2,
			again: 10 * time.Millisecond, againMost: 40 * time.Millisecond, stands: time.Hour,
		},
	}
	return n
}

// Write is the log.
func (n *node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(p)
}

// run runs a supervisor until stop or the end of the test.
func (n *node) run() (s *Supervisor, stop func()) {
	n.t.Helper()
	s = New(n.cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("the supervisor ended: %v", err)
		}
	})
	n.t.Cleanup(func() {
		stop()
		n.noneLeft()
		if n.t.Failed() {
			n.t.Log(n.log.String())
		}
	})
	return s, stop
}

// ensure waits for a plan.
func (n *node) ensure(s *Supervisor, daemons ...Daemon) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	if s.Ensure(ctx, Plan{Root: n.root, Daemons: daemons}); ctx.Err() != nil {
		n.t.Fatal("the plan was not carried out")
	}
}

// sharing is a daemon for GPU-0, GPU-1 and so on.
func sharing(resource string, percent int, memory uint64, gpus ...int) Daemon {
	d := Daemon{Resource: resource, ThreadPercent: percent}
	for _, i := range gpus {
		d.Devices = append(d.Devices, Device{UUID: uuid(i), MemoryMiB: memory})
	}
	return d
}

func uuid(i int) gpu.UUID { return gpu.UUID("GPU-" + strconv.Itoa(i)) }

// lines are those of a file in a resource's folder.
func (n *node) lines(resource, file string) []string {
	data, err := os.ReadFile(filepath.Join(n.root, resource, file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// commands are what the daemon was told beside the question whether it lives.
func (n *node) commands(resource string) string {
	var out []string
	for _, line := range n.lines(resource, "commands") {
		if line != cmdPercent {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// pid is the newest daemon's.
func (n *node) pid(resource string) int {
	n.t.Helper()
	pids := n.lines(resource, "pids")
	if len(pids) == 0 {
		n.t.Fatalf("%s has no daemon", resource)
	}
	pid, err := strconv.Atoi(pids[len(pids)-1])
	if err != nil {
		n.t.Fatal(err)
	}
	return pid
}

func (n *node) smi() string {
	data, _ := os.ReadFile(filepath.Join(n.home, "smi"))
	return string(data)
}

// does has the daemon of a resource do something, or no more.
func (n *node) does(resource, what string, on bool) {
	n.t.Helper()
	path := filepath.Join(n.root, resource, what)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if on {
		err = errors.Join(err, os.WriteFile(path, nil, 0o644))
	} else {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) kill(resource string) {
	n.t.Helper()
	if err := syscall.Kill(n.pid(resource), syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
}

// said are the facts now, and how often any were told.
func (n *node) said() (facts []health.Fact, told int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts, n.told
}

// await waits until something is so.
func (n *node) await(what string, good func() bool) {
	n.t.Helper()
	for limit := time.Now().Add(patience); !good(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			facts, _ := n.said()
			n.t.Fatalf("%s did not come about; facts: %+v", what, facts)
		}
	}
}

// down waits for facts of a dead daemon about so many GPUs, whose text has some words.
func (n *node) down(gpus int, words string) {
	n.t.Helper()
	n.await("a fact that says "+words, func() bool {
		facts, _ := n.said()
		if len(facts) != gpus {
			return false
		}
		for i, f := range facts {
			if f.Kind != health.KindMPSDown || f.Class != health.ClassReset || f.GPU != uuid(i) || !strings.Contains(f.Text, words) {
				return false
			}
		}
		return true
	})
}

// well waits until all was said to be well.
func (n *node) well() {
	n.t.Helper()
	n.await("that all is well", func() bool {
		facts, told := n.said()
		return told > 0 && len(facts) == 0
	})
}

// noneLeft finds daemons that outlived their supervisor.
func (n *node) noneLeft() {
	n.t.Helper()
	files, err := filepath.Glob(filepath.Join(n.root, "*", "*", "pids"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range files {
		resource, err := filepath.Rel(n.root, filepath.Dir(file))
		if err != nil {
			n.t.Fatal(err)
		}
		for _, pid := range n.lines(resource, "pids") {
			// The process is gone, or somebody else's by now.
			command, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			if err == nil && strings.Contains(string(command), programs) {
				n.t.Errorf("the daemon %s of %s is left: %q", pid, resource, command)
			}
		}
	}
}
