// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestAnXIDIsLoggedOnceAndItsRepeatsInNumbers(t *testing.T) {
	m := newMachine()
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	happen := func(events ...gpu.Event) { m.set(func(m *machine) { m.reading.Events = events }) }
	xid := func(instance, code int) gpu.Event {
		return gpu.Event{Kind: gpu.EventXID, GPU: "GPU-a", GPUInstance: instance, ComputeInstance: gpu.NoInstance, Code: code}
	}
	turning(t, m, func(c *Config) { c.Log, c.Interval = log, time.Second }, func(t *testing.T, mt *Meter) {
		happen(xid(gpu.NoInstance, 31), xid(3, 94), gpu.Event{Kind: gpu.EventECCSingleBit, GPU: "GPU-a"})
		after(time.Second)
		happen(xid(gpu.NoInstance, 31))
		after(10 * time.Second)
		happen()
		after(3 * time.Minute)
		happen(xid(gpu.NoInstance, 31))
		after(time.Second)
	})
	var lines []string
	for line := range strings.Lines(buf.String()) {
		if _, words, ok := strings.Cut(line, "level=WARN msg=XID "); ok {
			lines = append(lines, strings.TrimSpace(words))
		}
	}
	want := []string{"xid=31 gpu=GPU-a", "xid=94 gpu=GPU-a gpu_instance=3", "xid=31 gpu=GPU-a times=10", "xid=31 gpu=GPU-a"}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestANodeFullOfXIDsDoesNotFillTheLog(t *testing.T) {
	var buf bytes.Buffer
	l := newXIDLog(slog.New(slog.NewTextHandler(&buf, nil)))
	var events []gpu.Event
	for code := range 100 {
		events = append(events, gpu.Event{Kind: gpu.EventXID, GPU: gpu.UUID(fmt.Sprint("GPU-", code)), Code: code + 1})
	}
	now := time.Unix(1e9, 0)
	l.report(events, now)
	if n := strings.Count(buf.String(), "\n"); n != xidLogLimit+1 || !strings.Contains(buf.String(), "more=68") {
		t.Errorf("%d lines:\n%s", n, buf.String())
	}
	buf.Reset()
	late := now.Add(90 * time.Second)
	l.report([]gpu.Event{{Kind: gpu.EventXID, GPU: "GPU-0", Code: 1, Time: now.Add(7 * time.Second)}}, late)
	if !strings.Contains(buf.String(), "at="+now.Add(7*time.Second).Format("2006-01-02T15:04:05.000")) {
		t.Errorf("no time of the error itself: %s", buf.String())
	}
	l.report(nil, late.Add(2*logPause))
	if len(l.told) != 0 {
		t.Errorf("%d XIDs are remembered for ever", len(l.told))
	}
}
