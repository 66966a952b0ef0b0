// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

func TestADaemonIsStartedWithItsGPUsAndLimits(t *testing.T) {
	n := newNode(t)
	s, stop := n.run()
	// As the kubelet makes a hostPath that is missing.
	if err := os.Mkdir(filepath.Join(n.root, "shm"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.ensure(s, sharing(shared, 25, 20480, 0, 1), sharing("nvidia.com/big", 50, 0, 2))
	n.well()
	if got, want := n.lines(shared, "starts"), "GPU-0,GPU-1 "+filepath.Join(n.root, shared, "log"); len(got) != 1 || got[0] != want {
		t.Errorf("started as %q, want %q", got, want)
	}
	want := "set_default_device_pinned_mem_limit 0 20480M\nset_default_device_pinned_mem_limit 1 20480M\nset_default_active_thread_percentage 25\nget_server_list"
	if got := n.commands(shared); got != want {
		t.Errorf("told\n%s\nwant\n%s", got, want)
	}
	if got := n.commands("nvidia.com/big"); got != "set_default_active_thread_percentage 50\nget_server_list" {
		t.Errorf("a daemon of GPUs whose memory nobody knows was told\n%s", got)
	}
	for _, mode := range []string{"-i GPU-0 -c EXCLUSIVE_PROCESS\n", "-i GPU-1 -c EXCLUSIVE_PROCESS\n", "-i GPU-2 -c EXCLUSIVE_PROCESS\n"} {
		if !strings.Contains(n.smi(), mode) {
			t.Errorf("nvidia-smi was not called with %q", mode)
		}
	}
	if info, err := os.Stat(filepath.Join(n.root, "shm")); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("the shared memory: %v, %v", info, err)
	}
	stop()
	if got := n.commands(shared); !strings.HasSuffix(got, "\nquit") {
		t.Errorf("was not told to quit:\n%s", got)
	}
	for _, mode := range []string{"-i GPU-0 -c DEFAULT\n", "-i GPU-2 -c DEFAULT\n"} {
		if !strings.Contains(n.smi(), mode) {
			t.Errorf("nvidia-smi was not called with %q at the end", mode)
		}
	}
}

func TestADaemonThatDiesIsAFactUntilItIsBack(t *testing.T) {
	n := newNode(t)
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0, 1), sharing("nvidia.com/big", 50, 0, 2))
	n.well()
	n.does(shared, "ends-at-once", true)
	n.kill(shared)
	n.down(2, "signal: killed")
	n.down(2, "exit status 3 (it said: no CUDA-capable device is detected)")
	if got := n.lines("nvidia.com/big", "starts"); len(got) != 1 {
		t.Errorf("the other daemon was started %d times", len(got))
	}
	n.does(shared, "ends-at-once", false)
	n.well()
	if got := n.commands(shared); strings.Count(got, "set_default_active_thread_percentage 25") != 2 {
		t.Errorf("a new daemon was not told the limits:\n%s", got)
	}
}

func TestADaemonThatHangsIsKilledAndStartedAgain(t *testing.T) {
	n := newNode(t)
	n.cfg.pace.answer, n.cfg.pace.misses = 2*time.Second, 1
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.well()
	before := n.pid(shared)
	n.does(shared, "hangs", true)
	n.down(1, "it hangs")
	n.does(shared, "hangs", false)
	n.well()
	if n.pid(shared) == before {
		t.Error("the daemon that hung still runs")
	}
}

func TestADaemonThatIsSlowOnceIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.cfg.pace.answer, n.cfg.pace.misses = 2*time.Second, 1000
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.well()
	n.does(shared, "hangs", true)
	time.Sleep(n.cfg.pace.answer + n.cfg.pace.answer/2)
	n.does(shared, "hangs", false)
	asked := len(n.lines(shared, "commands"))
	n.await("the next question", func() bool { return len(n.lines(shared, "commands")) > asked+2 })
	if facts, told := n.said(); len(facts) > 0 || told != 1 || len(n.lines(shared, "starts")) != 1 {
		t.Errorf("facts %+v told %d times, %d starts", facts, told, len(n.lines(shared, "starts")))
	}
}

func TestOtherLimitsAreToldAndOtherGPUsNeedANewDaemon(t *testing.T) {
	n := newNode(t)
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	first := n.pid(shared)
	if err := os.WriteFile(filepath.Join(n.root, shared, "servers"), []byte("4711\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.ensure(s, sharing(shared, 12, 10240, 0))
	told := "set_default_device_pinned_mem_limit 0 10240M\nset_default_active_thread_percentage 12\nget_server_list\n" +
		"set_device_pinned_mem_limit 4711 0 10240M\nset_active_thread_percentage 4711 12"
	n.await("the new limits", func() bool { return strings.HasSuffix(n.commands(shared), told) })
	if n.pid(shared) != first {
		t.Error("the daemon was started anew for other limits")
	}
	n.ensure(s, sharing(shared, 12, 10240, 1))
	if n.pid(shared) == first {
		t.Error("the daemon of other GPUs is the same")
	}
	if got := n.lines(shared, "starts"); len(got) != 2 || !strings.HasPrefix(got[1], "GPU-1 ") {
		t.Errorf("starts %q", got)
	}
	if !strings.Contains(n.smi(), "-i GPU-0 -c DEFAULT\n-i GPU-1 -c EXCLUSIVE_PROCESS\n") {
		t.Errorf("compute modes:\n%s", n.smi())
	}
	n.ensure(s)
	if !strings.HasSuffix(n.smi(), "-i GPU-1 -c DEFAULT\n") {
		t.Errorf("compute modes without MPS:\n%s", n.smi())
	}
	n.noneLeft()
	if facts, _ := n.said(); len(facts) > 0 {
		t.Errorf("facts of an ordered change: %+v", facts)
	}
}

func TestTheSamePlanAgainDisturbsNothing(t *testing.T) {
	n := newNode(t)
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	before := n.commands(shared)
	n.ensure(s, sharing(shared, 25, 20480, 0))
	if after := n.commands(shared); after != before {
		t.Errorf("told\n%s\nafter\n%s", after, before)
	}
}

func TestADaemonThatDoesNotQuitIsKilled(t *testing.T) {
	n := newNode(t)
	n.cfg.pace.quit = time.Second
	s, stop := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.does(shared, "deaf-to-quit", true)
	stop()
	n.noneLeft()
	if !strings.Contains(n.log.String(), "is killed") {
		t.Error("the log does not say so")
	}
}

func TestWithoutTheProgramTheFactSaysWhatToInstall(t *testing.T) {
	n := newNode(t)
	n.absent = true
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.down(1, "no nvidia-cuda-mps-control in /nowhere")
	n.mu.Lock()
	n.absent = false
	n.mu.Unlock()
	n.well()
}

func TestWhatDoesNotKeepContainersFromRunningIsWatched(t *testing.T) {
	n := newNode(t)
	n.does(shared, "takes-no-limits", true)
	if err := os.WriteFile(filepath.Join(n.home, "smi-fails"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.await("both facts", func() bool { facts, _ := n.said(); return len(facts) == 2 })
	facts, _ := n.said()
	for i, want := range []struct {
		kind health.Kind
		says string
	}{{KindComputeMode, "Insufficient Permissions"}, {KindLimits, "is 100 and should be 25"}} {
		if f := facts[i]; f.Kind != want.kind || f.Class != health.ClassWatch || f.GPU != uuid(0) || !strings.Contains(f.Text, want.says) {
			t.Errorf("fact %+v, want %+v", f, want)
		}
	}
	n.does(shared, "takes-no-limits", false)
	n.await("the limits at another try", func() bool { facts, _ := n.said(); return len(facts) == 1 })
}

// orphan starts a daemon as somebody else does.
func (n *node) orphan(resource, gpus string) {
	n.t.Helper()
	n.does(resource, "pipe/x", true)
	ctx, cancel := context.WithCancel(context.Background())
	daemon := exec.CommandContext(ctx, filepath.Join(programs, Program), "-f")
	daemon.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(n.root, resource, "pipe"), "CUDA_VISIBLE_DEVICES=" + gpus}
	if err := daemon.Start(); err != nil {
		n.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = daemon.Wait()
	}()
	n.t.Cleanup(func() { cancel(); <-ended })
	n.await("the other daemon", func() bool { return len(n.lines(resource, "pids")) > 0 })
}

func TestADaemonThatAnswersAlreadyIsUsed(t *testing.T) {
	for _, c := range []struct {
		name, record string
		starts       int
		limits, quit bool
	}{
		{"somebody else's", "", 1, false, false},
		{"ours of before a crash", "GPU-0\n", 1, true, true},
		{"ours for other GPUs", "GPU-0,GPU-1\n", 2, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.orphan(shared, "GPU-0")
			if c.record != "" {
				if err := os.WriteFile(filepath.Join(n.root, shared, "gpumeter-devices"), []byte(c.record), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s, stop := n.run()
			n.ensure(s, sharing(shared, 25, 20480, 0))
			n.well()
			if got := len(n.lines(shared, "starts")); got != c.starts {
				t.Errorf("%d daemons were started", got)
			}
			if got := strings.Contains(n.commands(shared), cmdSetPercent); got != c.limits {
				t.Errorf("told its limits: %v", got)
			}
			stop()
			if got := strings.HasSuffix(n.commands(shared), cmdQuit); got != c.quit {
				t.Errorf("told to quit at the end: %v", got)
			}
			if !c.quit {
				// It is the test's to end.
				n.kill(shared)
			}
			n.await("its end", func() bool { return n.control().alive(t.Context()) != nil })
		})
	}
}

func (n *node) control() *control {
	return &control{find: n.cfg.Find, environ: n.cfg.Environ, place: place{n.root, shared}, answer: patience}
}

func TestSomebodyElsesDaemonIsReplacedWhenItIsGone(t *testing.T) {
	n := newNode(t)
	n.orphan(shared, "GPU-0")
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.well()
	n.kill(shared)
	n.await("a daemon of our own", func() bool { return len(n.lines(shared, "starts")) == 2 })
	n.well()
}

func TestAnExternalDaemonIsOnlyWatched(t *testing.T) {
	n := newNode(t)
	n.cfg.External, n.cfg.pace.misses = true, 1_000_000
	s, stop := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.down(1, "it is not there")
	n.orphan(shared, "GPU-0")
	n.well()
	n.kill(shared)
	n.down(1, "it is ")
	n.orphan(shared, "GPU-0")
	n.well()
	stop()
	if n.commands(shared) != "" || n.smi() != "" {
		t.Errorf("the daemon was told\n%s\nnvidia-smi\n%s", n.commands(shared), n.smi())
	}
	if n.control().alive(t.Context()) != nil {
		t.Error("somebody else's daemon ended with the supervisor")
	}
	n.kill(shared)
	n.await("its end", func() bool { return n.control().alive(t.Context()) != nil })
}

func TestAnExternalDaemonIsSeenByItsSocketWhereTheProgramIsNotAtHand(t *testing.T) {
	n := newNode(t)
	n.cfg.External, n.absent = true, true
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.down(1, "no such file")
	n.does(shared, "pipe/control", true)
	n.well()
}

func TestNothingIsSaidBeforeADaemonHasAnsweredOrFailed(t *testing.T) {
	n := newNode(t)
	n.does(shared, "hangs", true)
	s, _ := n.run()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Ensure(t.Context(), Plan{Root: n.root, Daemons: []Daemon{sharing(shared, 25, 20480, 0)}})
	}()
	n.await("its start", func() bool { return len(n.lines(shared, "pids")) > 0 })
	// What was said before this program's start must not be taken back too early.
	if _, told := n.said(); told != 0 {
		t.Error("something was said before anything was known")
	}
	select {
	case <-done:
		t.Error("nobody waited for the daemon")
	default:
	}
	n.does(shared, "hangs", false)
	<-done
	n.well()
}

func TestAFactThatStandsOutlivesANewPlan(t *testing.T) {
	n := newNode(t)
	n.does(shared, "ends-at-once", true)
	s, _ := n.run()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	n.down(1, "no CUDA-capable device")
	_, before := n.said()
	n.ensure(s, sharing(shared, 25, 20480, 0, 1))
	n.down(2, "no CUDA-capable device")
	if _, after := n.said(); after != before+1 {
		t.Errorf("told %d times after %d", after, before)
	}
	n.does(shared, "ends-at-once", false)
	n.well()
}

func TestNobodyWaitsForASupervisorThatHasEnded(t *testing.T) {
	n := newNode(t)
	s, stop := n.run()
	stop()
	n.ensure(s, sharing(shared, 25, 20480, 0))
	if len(n.lines(shared, "starts")) > 0 {
		t.Error("a daemon was started")
	}
}
