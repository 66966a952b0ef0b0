// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The words by which Read's errors are counted.
const (
	kindDriver   = "driver"
	kindReleased = "released"
	kindClosed   = "closed"
	kindTimeout  = "timeout"
)

// failure is an error that is counted under a word.
type failure struct {
	kind string
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }
func (f *failure) Kind() string  { return f.kind }

func failed(kind, format string, args ...any) error {
	return &failure{kind, fmt.Errorf(format, args...)}
}

// longestWait is how long is waited for GPUs where the caller sets no time.
const longestWait = 10 * time.Second

// waiting is a caller's context with a little less time, so that what is there when it runs out
// can still be handed over.
type waiting struct {
	context.Context
	// caller is the caller's own context.
	caller context.Context
	end    func()
}

// wait bounds the wait for GPUs by a caller's context and the life of the source.
func (s *Source) wait(caller context.Context) *waiting {
	patience := longestWait
	if deadline, ok := caller.Deadline(); ok {
		left := time.Until(deadline)
		patience = min(patience, left-left/10)
	}
	ctx, cancel := context.WithTimeout(caller, patience)
	stop := context.AfterFunc(s.life, cancel)
	return &waiting{Context: ctx, caller: caller, end: func() { stop(); cancel() }}
}

// cancelled is why nobody waits for an answer any more, or nil. One that is a little late is
// still an answer, and what it hands over is not lost.
func (s *Source) cancelled(w *waiting) error {
	if errors.Is(w.caller.Err(), context.DeadlineExceeded) && s.life.Err() == nil {
		return nil
	}
	return s.over(w)
}

// over is why the caller need not be answered any more, or nil.
func (s *Source) over(w *waiting) error {
	if s.life.Err() != nil {
		return failed(kindClosed, "the NVML source is closed")
	}
	if err := w.caller.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return failed(kindTimeout, "read GPUs through NVML: %w", err)
		}
		return fmt.Errorf("read GPUs through NVML: %w", err)
	}
	return nil
}
