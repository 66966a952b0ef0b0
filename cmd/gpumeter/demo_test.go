// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

// screen is a terminal that can be read while it is written to.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func gpumeter(ctx context.Context, out io.Writer, args ...string) error {
	return command(out, out, time.Now).Run(ctx, append([]string{"gpumeter"}, args...))
}

func TestDemoSaysWhatItSimulatesAndAddsUp(t *testing.T) {
	var out screen
	err := gpumeter(t.Context(), &out, "demo", "--address", "127.0.0.1:0", "--month=false", "--for", "2s", "--collect-interval", "100ms")
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"pretend GPU node", "/metrics", "/readyz", "who held how much", "of 8 GPUs", "nobody", "capacity", "add up to the capacity exactly"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "level=WARN") {
		t.Errorf("the demo warns:\n%s", out.String())
	}
}

func TestDemoServesUntilItIsStopped(t *testing.T) {
	var out screen
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- gpumeter(ctx, &out, "demo", "--address", "127.0.0.1:0", "--month=false", "--collect-interval", "100ms", "--scenario", "h100x8-timeslice4")
	}()
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`)
	page := ""
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && !strings.Contains(page, "gpumeter_allocation_share{"); time.Sleep(20 * time.Millisecond) {
		at := url.FindString(out.String())
		if at == "" {
			continue
		}
		resp, err := http.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		page = string(b)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stopped by Ctrl-C: %v", err)
	}
	if n := strings.Count(page, "\ngpumeter_allocation_share{"); n != 32 {
		t.Errorf("%d holders on the page, want 32\n%s", n, out.String())
	}
}

func TestDemoRefusesWhatItCannotPlay(t *testing.T) {
	for _, args := range [][]string{
		{"demo", "--scenario", "nope"}, {"demo", "--for", "-1s"}, {"demo", "stray"}, {"demo", "--speed", "0"}, {"demo", "--collect-interval", "1"},
	} {
		var out screen
		if err := gpumeter(t.Context(), &out, args...); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestScenariosAreListedWithWhatTheyAre(t *testing.T) {
	var out screen
	if err := gpumeter(t.Context(), &out, "scenarios"); err != nil {
		t.Fatal(err)
	}
	for _, name := range sim.Shipped() {
		if !strings.Contains(out.String(), name+"\n    ") {
			t.Errorf("%s is not listed:\n%s", name, out.String())
		}
	}
}

func TestTallyRefusesPartsThatDoNotAddUp(t *testing.T) {
	at := time.Unix(0, 0)
	snapshot := func(d time.Duration, part sharing.Fraction) *meter.Snapshot {
		return &meter.Snapshot{
			Reading:  gpu.Reading{Time: at.Add(d), Devices: []gpu.Device{{UUID: "GPU-a"}}},
			Division: sharing.Division{Shares: []sharing.Share{{Card: "GPU-a", Device: "GPU-a", Part: part}}},
		}
	}
	good, bad := newTally(), newTally()
	good.add(snapshot(0, sharing.One()))
	good.add(snapshot(time.Minute, sharing.One()))
	bad.add(snapshot(0, sharing.NewFraction(1, 3)))
	bad.add(snapshot(time.Minute, sharing.NewFraction(1, 3)))
	if err := good.print(io.Discard); err != nil {
		t.Errorf("one GPU held whole: %v", err)
	}
	if err := bad.print(io.Discard); err == nil {
		t.Error("a third of a GPU held and the rest nowhere passes for the whole")
	}
}
