// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// awaits waits until a text is on the screen.
func awaits(t *testing.T, s *screen, want string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if strings.Contains(s.String(), want) {
			return
		}
	}
	t.Fatalf("no %q in:\n%s", want, s)
}

func watching(t *testing.T, socket string, asJSON bool) *screen {
	t.Helper()
	s := new(screen)
	d := &healthDesk{socket: socket, asJSON: asJSON, stdout: s, now: func() time.Time { return healthTime }}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestHealthWatchGolden(t *testing.T) {
	w := newWard(only(wellGPU, lostGPU))
	s := watching(t, exporterWith(t, w), false)
	awaits(t, s, "as of")

	back := only(wellGPU, lostGPU, cutGPU)
	back.Report.Version, back.Report.Verdicts[1].Status, back.Report.Verdicts[1].Conditions = 13, health.Healthy, nil
	back.Report.Verdicts[1].Reason = ""
	w.pin(back)
	awaits(t, s, "(new)")

	without := only(wellGPU, cutGPU)
	without.Report.Version = 14
	w.pin(without)
	awaits(t, s, "not listed any more")
	golden(t, "health-watch.txt", s.String())
}

func TestHealthWatchSaysThatTheExporterIsAway(t *testing.T) {
	dir := t.TempDir()
	s := watching(t, filepath.Join(dir, "s"), false)
	awaits(t, s, "the exporter does not answer")
	if got := s.String(); strings.Contains(got, "the last verdicts stand") || !strings.Contains(got, "kubectl exec") {
		t.Errorf("without any verdict it says %q", got)
	}

	f := follower{desk: &healthDesk{stdout: new(screen), now: time.Now}}
	s = f.desk.stdout.(*screen)
	list := &healthstream.Received{List: *healthList()}
	for _, state := range []healthstream.ClientState{
		{List: list, Up: true}, {List: list, Err: errors.New("it was lost")}, {List: list, Err: os.ErrNotExist}, {List: list, Up: true},
	} {
		if err := f.write(state); err != nil {
			t.Fatal(err)
		}
	}
	got := s.String()
	if strings.Count(got, "it was lost; the last verdicts stand") != 1 || strings.Contains(got, "not exist") || strings.Count(got, "the exporter answers") != 1 || strings.Count(got, "as of") != 1 {
		t.Errorf("it says\n%s", got)
	}
}

func TestHealthWatchInJSONIsOneListALine(t *testing.T) {
	w := newWard(only(wellGPU))
	s := watching(t, exporterWith(t, w), true)
	awaits(t, s, `"version":12`)
	next := only(wellGPU)
	next.Report.Version = 13
	w.pin(next)
	awaits(t, s, `"version":13`)
	for line := range strings.SplitSeq(strings.TrimSpace(s.String()), "\n") {
		if err := json.Unmarshal([]byte(line), new(healthView)); err != nil {
			t.Errorf("%v in %q", err, line)
		}
	}
}
