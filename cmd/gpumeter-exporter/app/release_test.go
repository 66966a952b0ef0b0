// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serving is an App that runs on cards until the test ends.
func serving(t *testing.T, cfg Config, d *card) running {
	t.Helper()
	cfg = aloof(cfg)
	cfg.Address, cfg.Interval = "127.0.0.1:0", "100ms"
	l := &logs{}
	a := &App{cfg: cfg, log: slog.New(slog.NewTextHandler(l, nil)), bound: make(chan struct{})}
	a.sources = machine(cfg, d, errors.New("no NVML"))
	var err error
	if a.counters, err = openCounters(cfg, a.log); err != nil {
		t.Fatal(err)
	}
	if err := a.wire(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
	addr, err := a.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return running{App: a, url: "http://" + addr.String(), logs: l}
}

// signalUntil sends SIGUSR1 and waits until the log has a text. Who is ready hears the first one.
func signalUntil(t *testing.T, l *logs, text string) {
	t.Helper()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	eventuallySays(t, l, text)
}

func TestSIGUSR1LetsGoOfTheDriverAndTheNextTakesItUp(t *testing.T) {
	d := newCard("dcgm")
	r := serving(t, with(func(c *Config) { c.DCGMRelease = true }), d)
	eventually(t, r.url+"/metrics", "DCGM_FI_DEV_GPU_TEMP{")

	signalUntil(t, r.logs, "is let go of")
	page := eventually(t, r.url+"/metrics", `gpumeter_source_up{source="telemetry"} 0`)
	if !strings.Contains(page, "gpumeter_device_info{") {
		t.Error("the inventory is gone with the driver")
	}

	d.breaks(errors.New("the driver is being upgraded"))
	signalUntil(t, r.logs, "cannot be taken up again")
	d.breaks(nil)
	signalUntil(t, r.logs, "is taken up again")
	eventually(t, r.url+"/metrics", `gpumeter_source_up{source="telemetry"} 1`)
	if code, _ := get(t, http.DefaultClient, r.url+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}
	signalUntil(t, r.logs, "is let go of")
	eventually(t, r.url+"/metrics", `gpumeter_source_up{source="telemetry"} 0`)
}

func TestSIGUSR1IsIgnoredUnlessItIsAskedFor(t *testing.T) {
	d := newCard("dcgm")
	r := serving(t, Defaults(), d)
	eventually(t, r.url+"/readyz", "ready\n")
	signalUntil(t, r.logs, "SIGUSR1 is ignored; with --dcgm-release")
	if told := d.told(); len(told) > 0 {
		t.Errorf("it did %v", told)
	}
}

func TestAHangingReleaseIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	d := newCard("dcgm")
	d.hang = make(chan struct{})
	defer close(d.hang)
	s := machine(Defaults(), d, errors.New("no NVML"))
	if _, err := s.Choose(); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
