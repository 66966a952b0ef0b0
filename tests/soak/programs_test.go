// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// program is one of the processes, which is started again whenever it has ended.
type program struct {
	name string
	// command makes the process; prepare, which may be nil, is called before each start.
	command func() *exec.Cmd
	prepare func() error
	logs    string
	book    *book

	mu      sync.Mutex
	process *os.Process
	done    chan struct{}
	// life counts the starts; wanted says that the process should be running.
	life   int
	began  time.Time
	wanted bool
}

// start begins the next life.
func (p *program) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prepare != nil {
		if err := p.prepare(); err != nil {
			return fmt.Errorf("before starting %s: %w", p.name, err)
		}
	}
	log, err := os.OpenFile(filepath.Join(p.logs, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.life++
	fmt.Fprintf(log, "--- life %d\n", p.life)
	c := p.command()
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.process, p.began, p.wanted = c.Process, time.Now(), true
	done := make(chan struct{})
	p.done = done
	go func() {
		err := c.Wait()
		p.mu.Lock()
		unasked := p.wanted
		p.mu.Unlock()
		if unasked {
			p.book.violation("%s ended by itself: %v", p.name, err)
		}
		close(done)
	}()
	return nil
}

// end sends a signal, and waits until the process has ended.
func (p *program) end(signal syscall.Signal) {
	p.mu.Lock()
	p.wanted = false
	process, done := p.process, p.done
	p.mu.Unlock()
	_ = process.Signal(signal)
	select {
	case <-done:
		return
	case <-time.After(20 * time.Second):
	}
	p.book.violation("%s does not end within 20 s of %v", p.name, signal)
	_ = process.Kill()
	<-done
}

// signal sends a signal that does not end the process.
func (p *program) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.process.Signal(s)
}

// revive starts the process where it has ended by itself.
func (p *program) revive() error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	select {
	case <-done:
		return p.start()
	default:
		return nil
	}
}

// now is the process' number, its life and since when it lives.
func (p *program) now() (pid, life int, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process.Pid, p.life, p.began
}
