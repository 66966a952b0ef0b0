// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// lateDriver is a driver that comes after some attempts to reach it.
type lateDriver struct {
	mu     sync.Mutex
	late   int
	opens  int
	closed bool
	hang   bool
}

func (d *lateDriver) open() (gpuSource, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opens++; d.opens <= d.late {
		return nil, errors.New("no driver")
	}
	return d, nil
}

func (d *lateDriver) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	if d.hang {
		// A call into the driver cannot be cancelled.
		time.Sleep(time.Hour)
	}
	return gpu.Reading{Fields: fields, Devices: cards(8)}, ctx.Err()
}

func (d *lateDriver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

func read(t *testing.T, d *lateDriver) (looks func() []look, stop func() time.Duration) {
	telemetry := &telemetry{log: slog.New(slog.DiscardHandler), name: "nvml", interval: time.Second, open: d.open, bootID: func() string { return "boot" }}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var all []look
	done := make(chan error, 1)
	go func() {
		done <- telemetry.run(ctx, func(l look) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, l)
		})
	}()
	looks = func() []look {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return append([]look(nil), all...)
	}
	stop = func() time.Duration {
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	return looks, stop
}

// P27: a driver that is not there when the node boots is waited for, without a restart.
func TestADriverThatComesLateIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateDriver{late: 5}
		looks, stop := read(t, d)
		time.Sleep(5 * longestOpenPause)
		all := looks()
		for i, l := range all[:5] {
			if l.err == nil || l.opened {
				t.Errorf("look %d of a driver that is away: %+v", i, l)
			}
		}
		if last := all[len(all)-1]; last.err != nil || !last.opened || len(last.reading.Devices) != 8 || last.bootID != "boot" {
			t.Errorf("in the end: %+v", last)
		}
		stop()
		if !d.closed {
			t.Error("the driver was not let go of")
		}
	})
}

func TestADriverThatHangsDoesNotKeepTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, stop := read(t, &lateDriver{hang: true})
		time.Sleep(time.Minute)
		if took := stop(); took > 2*readPatience {
			t.Errorf("the end took %v", took)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestNVMLIsTakenFromTheDriverRootWhereItIsThere(t *testing.T) {
	root := t.TempDir()
	if got := nvmlLibraries("", root); len(got) != 1 || got[0] != "" {
		t.Errorf("an empty root: %q", got)
	}
	library := filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
	if err := os.MkdirAll(filepath.Dir(library), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, library, "")
	if got := nvmlLibraries("", root); len(got) != 2 || got[0] != library || got[1] != "" {
		t.Errorf("a root with the library: %q", got)
	}
	if got := nvmlLibraries("/mine.so", root); len(got) != 1 || got[0] != "/mine.so" {
		t.Errorf("a library that was named: %q", got)
	}
	for _, none := range []string{"", "/"} {
		if got := nvmlLibraries("", none); len(got) != 1 || got[0] != "" {
			t.Errorf("root %q: %q", none, got)
		}
	}
}
