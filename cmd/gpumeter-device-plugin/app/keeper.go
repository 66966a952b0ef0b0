// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// keepPause is the time until what could not be saved is tried again.
	keepPause = 5 * time.Second
	// lastSave bounds the last saving, when the program ends.
	lastSave = 2 * time.Second
	// savePatience is how long who announces something waits until a restart would know of it.
	savePatience = time.Second
)

// keeper saves the newest of several values in the background: a disk that hangs must not keep a
// verdict from the kubelet for long. It is safe for concurrent use.
type keeper[T any] struct {
	what string
	save func(T) error
	log  *slog.Logger

	mu    sync.Mutex
	value *T
	// tried is closed when the newest value has been saved, or could not be; nil for no value.
	tried chan struct{}
	// hangs says that somebody has waited for an attempt in vain.
	hangs  bool
	newer  chan struct{}
	failed string
}

func newKeeper[T any](what string, save func(T) error, log *slog.Logger) *keeper[T] {
	return &keeper[T]{what: what, save: save, log: log, newer: make(chan struct{}, 1)}
}

// put has a value saved, instead of one that is not saved yet. What it returns is closed after the attempt.
func (k *keeper[T]) put(v T) (tried <-chan struct{}) {
	k.mu.Lock()
	k.value = &v
	if k.tried == nil {
		k.tried = make(chan struct{})
	}
	tried = k.tried
	k.mu.Unlock()
	select {
	case k.newer <- struct{}{}:
	default:
	}
	return tried
}

// putNow has a value saved and waits for that, but no longer than savePatience, and not at all for
// a disk that hangs already.
func (k *keeper[T]) putNow(v T) {
	tried := k.put(v)
	k.mu.Lock()
	hangs := k.hangs
	k.mu.Unlock()
	if hangs {
		return
	}
	select {
	case <-tried:
	case <-time.After(savePatience):
		k.mu.Lock()
		k.hangs = true
		k.mu.Unlock()
		k.log.Warn("saving takes long; nobody waits for it any more", "what", k.what, "waited", savePatience)
	}
}

// take is the newest value that is not saved yet, nil for none, and what to close after the attempt.
func (k *keeper[T]) take() (*T, chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, tried := k.value, k.tried
	k.value, k.tried = nil, nil
	return v, tried
}

// giveBack keeps a value for the next attempt, unless there is a newer one.
func (k *keeper[T]) giveBack(v *T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value == nil {
		k.value = v
	}
}

// run saves until ctx ends, and then once more what is left, unless that takes too long. It returns nil.
func (k *keeper[T]) run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.loop(ctx)
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(lastSave):
		k.log.Warn("not saved before the end", "what", k.what, "waited", lastSave)
	}
	return nil
}

func (k *keeper[T]) loop(ctx context.Context) {
	for ctx.Err() == nil {
		var again <-chan time.Time
		if !k.try() {
			again = time.After(keepPause)
		}
		select {
		case <-k.newer:
		case <-again:
		case <-ctx.Done():
		}
	}
	k.try()
}

// attempted tells who waits that an attempt is over.
func (k *keeper[T]) attempted(tried chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangs = false
	if tried != nil {
		close(tried)
	}
}

// try saves what there is to save, and reports whether it did.
func (k *keeper[T]) try() bool {
	v, tried := k.take()
	if v == nil {
		return true
	}
	err := k.save(*v)
	k.attempted(tried)
	if err == nil {
		if k.failed != "" {
			k.log.Info("saved again", "what", k.what)
		}
		k.failed = ""
		return true
	}
	if err.Error() != k.failed {
		k.log.Error("not saved: a restart would not know of it", "what", k.what, "error", err)
	}
	k.failed = err.Error()
	k.giveBack(v)
	return false
}
