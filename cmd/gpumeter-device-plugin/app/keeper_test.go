// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// disk takes what is saved, unless it is full; it hangs for as long as it is told.
type disk struct {
	mu    sync.Mutex
	full  bool
	slow  time.Duration
	saved []string
}

func (d *disk) save(n int) error {
	d.mu.Lock()
	full, slow := d.full, d.slow
	d.mu.Unlock()
	time.Sleep(slow)
	d.mu.Lock()
	defer d.mu.Unlock()
	if full {
		return errors.New("no space")
	}
	d.saved = append(d.saved, fmt.Sprint(n))
	return nil
}

func (d *disk) set(full bool, slow time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.slow = full, slow
}

func (d *disk) has() string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.saved, " ")
}

func TestTheNewestIsSavedAndNobodyWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &disk{}
		k := newKeeper("numbers", d.save, slog.New(slog.DiscardHandler))
		done := make(chan error)
		go func() { done <- k.run(ctx) }()
		k.put(1)
		if got := d.has(); got != "1" {
			t.Fatalf("saved %q", got)
		}
		d.set(false, time.Hour)
		k.put(2)
		synctest.Wait()
		for n := range 100 {
			k.put(100 + n)
		}
		d.set(false, 0)
		time.Sleep(2 * time.Hour)
		if got := d.has(); got != "1 2 199" {
			t.Fatalf("after a disk that hung: %q", got)
		}
		d.set(true, 0)
		k.put(3)
		time.Sleep(time.Minute)
		d.set(false, 0)
		time.Sleep(keepPause)
		if got := d.has(); got != "1 2 199 3" {
			t.Fatalf("after a disk that was full: %q", got)
		}
		d.set(false, time.Second)
		k.put(4)
		synctest.Wait()
		k.put(5)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := d.has(); got != "1 2 199 3 4 5" {
			t.Errorf("at the end: %q", got)
		}
	})
}

func TestADiskThatHangsDoesNotKeepTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &disk{slow: time.Hour}
		k := newKeeper("numbers", d.save, slog.New(slog.DiscardHandler))
		done := make(chan error)
		go func() { done <- k.run(ctx) }()
		k.put(1)
		synctest.Wait()
		began := time.Now()
		cancel()
		<-done
		if took := time.Since(began); took > lastSave {
			t.Errorf("the end took %v", took)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestWhatIsAnnouncedIsSavedBeforeUnlessTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &disk{slow: savePatience / 2}
		k := newKeeper("numbers", d.save, slog.New(slog.DiscardHandler))
		done := make(chan error)
		go func() { done <- k.run(ctx) }()
		took := func(n int) time.Duration {
			began := time.Now()
			k.putNow(n)
			return time.Since(began)
		}
		if was, got := took(1), d.has(); was != savePatience/2 || got != "1" {
			t.Errorf("a slow disk: %q saved when it went on after %v", got, was)
		}
		d.set(true, 0)
		if was := took(2); was != 0 {
			t.Errorf("a full disk: waited %v, and it would not have helped", was)
		}
		d.set(false, time.Hour)
		if was := took(3); was != savePatience {
			t.Errorf("a disk that hangs: waited %v", was)
		}
		if was := took(4); was != 0 {
			t.Errorf("a disk that hangs already: waited %v", was)
		}
		d.set(false, 0)
		time.Sleep(2 * time.Hour)
		d.set(false, time.Millisecond)
		if was, got := took(5), d.has(); was != time.Millisecond || !strings.HasSuffix(got, " 5") {
			t.Errorf("a disk that is well again: %q saved when it went on after %v", got, was)
		}
		cancel()
		<-done
	})
}
