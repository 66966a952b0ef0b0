// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progressEvery is the least time between two showings of how far something has come.
const progressEvery = 100 * time.Millisecond

// progress is one line on a terminal that says what takes its time, and how far it has come; elsewhere it is
// silent. It is safe for concurrent use.
type progress struct {
	// w is nil where nobody looks.
	w io.Writer

	mu    sync.Mutex
	shown bool
	last  time.Time
}

func newProgress(w io.Writer) *progress {
	if isTerminal(w) {
		return &progress{w: w}
	}
	return &progress{}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (p *progress) say(what string) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "\r\x1b[K%s …", what)
	p.shown = true
}

// step is a function to be told how much of a step is done, 0 to 1, and what is being done; nil where nobody looks.
func (p *progress) step(name string) func(done float64, what string) {
	if p.w == nil {
		return nil
	}
	return func(done float64, what string) {
		p.mu.Lock()
		due := time.Since(p.last) >= progressEvery || done >= 1
		if due {
			p.last = time.Now()
		}
		p.mu.Unlock()
		if due {
			p.say(fmt.Sprintf("%s: %.0f %% %s", name, 100*min(max(done, 0), 1), what))
		}
	}
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
