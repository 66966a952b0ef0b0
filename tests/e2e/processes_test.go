// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// processes are the programs that run. What ends without being told to fails the test.
type processes struct {
	t    *testing.T
	logs string
	env  []string

	mu      sync.Mutex
	running map[string]*process
}

type process struct {
	command *exec.Cmd
	done    chan struct{}
	err     error
}

func newProcesses(t *testing.T, logs, path string) *processes {
	t.Helper()
	p := &processes{t: t, logs: logs, running: map[string]*process{}}
	p.env = append(os.Environ(), "PATH="+path)
	t.Cleanup(func() {
		for name := range p.running {
			p.kill(name)
		}
	})
	return p
}

// start runs a program; its output is added to a file that has its name.
func (p *processes) start(name string, argv ...string) {
	p.t.Helper()
	log, err := os.OpenFile(filepath.Join(p.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.Command(argv[0], argv[1:]...)
	command.Env, command.Stdout, command.Stderr = p.env, log, log
	if err := command.Start(); err != nil {
		p.t.Fatalf("start %s: %v", name, err)
	}
	started := &process{command: command, done: make(chan struct{})}
	go func() {
		started.err = errors.Join(command.Wait(), log.Close())
		close(started.done)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[name] = started
}

// stop ends a program as a service manager does, and waits until it is gone.
func (p *processes) stop(name string) {
	p.t.Helper()
	const patience = 15 * time.Second
	stopped := p.take(name)
	if stopped == nil {
		p.t.Fatalf("%s does not run", name)
	}
	if err := stopped.command.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("%s had ended by itself: %v", name, err)
	}
	select {
	case <-stopped.done:
	case <-time.After(patience):
		p.t.Errorf("%s did not end within %v of SIGTERM", name, patience)
		_ = stopped.command.Process.Kill()
		<-stopped.done
	}
}

// kill ends a program without asking it.
func (p *processes) kill(name string) {
	if killed := p.take(name); killed != nil {
		_ = killed.command.Process.Kill()
		<-killed.done
	}
}

func (p *processes) take(name string) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.running[name]
	delete(p.running, name)
	return taken
}

// ended is an error if a program ended that nobody stopped.
func (p *processes) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, running := range p.running {
		select {
		case <-running.done:
			return fmt.Errorf("%s ended by itself (%w), see %s.log", name, running.err, name)
		default:
		}
	}
	return nil
}

// eventually waits until a condition holds, and fails the test when that takes too long. It
// returns how long it took.
func (p *processes) eventually(limit time.Duration, what string, condition func() error) time.Duration {
	p.t.Helper()
	const pause = 20 * time.Millisecond
	start := time.Now()
	for {
		err := condition()
		took := time.Since(start)
		if err == nil {
			p.t.Logf("%6.2f s  %s", took.Seconds(), what)
			return took
		}
		if dead := p.ended(); dead != nil {
			p.t.Fatalf("while waiting for: %s: %v", what, dead)
		}
		if took > limit {
			p.t.Fatalf("not within %v: %s: %v", limit, what, err)
		}
		time.Sleep(pause)
	}
}

// stays fails the test if a condition does not hold all of the time.
func (p *processes) stays(span time.Duration, what string, condition func() error) {
	p.t.Helper()
	// The kubelet answers a hundred questions a second, whoever asks.
	const pause = 50 * time.Millisecond
	for start := time.Now(); time.Since(start) < span; time.Sleep(pause) {
		if err := errors.Join(condition(), p.ended()); err != nil {
			p.t.Fatalf("%v into it no more: %s: %v", time.Since(start), what, err)
		}
	}
	p.t.Logf("%6.2f s  %s", span.Seconds(), what)
}
