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
	"github.com/gpumeter/gpumeter/pkg/health"
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
	want := []string{"xid=31 gpu=GPU-a index=0", "xid=94 gpu=GPU-a index=0 gpu_instance=3", "xid=31 gpu=GPU-a index=0 times=10", "xid=31 gpu=GPU-a index=0"}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestANodeFullOfXIDsDoesNotFillTheLog(t *testing.T) {
	var buf bytes.Buffer
	l := newXIDLog(slog.New(slog.NewTextHandler(&buf, nil)), nil)
	var events []gpu.Event
	for code := range 100 {
		events = append(events, gpu.Event{Kind: gpu.EventXID, GPU: gpu.UUID(fmt.Sprint("GPU-", code)), Code: code + 1})
	}
	now := time.Unix(1e9, 0)
	l.report(events, nil, now)
	if n := strings.Count(buf.String(), "\n"); n != xidLogLimit+1 || !strings.Contains(buf.String(), "more=68") {
		t.Errorf("%d lines:\n%s", n, buf.String())
	}
	buf.Reset()
	late := now.Add(90 * time.Second)
	l.report([]gpu.Event{{Kind: gpu.EventXID, GPU: "GPU-0", Code: 1, Time: now.Add(7 * time.Second)}}, nil, late)
	if !strings.Contains(buf.String(), "at="+now.Add(7*time.Second).Format("2006-01-02T15:04:05.000")) {
		t.Errorf("no time of the error itself: %s", buf.String())
	}
	l.report(nil, nil, late.Add(2*logPause))
	if len(l.told) != 0 {
		t.Errorf("%d XIDs are remembered for ever", len(l.told))
	}
}

func TestAnXIDIsLoggedWithItsNameAndWhereItWas(t *testing.T) {
	var buf bytes.Buffer
	table, err := health.NewXIDTable([]health.XID{{Code: 79, Name: "GPU fell off the bus", Class: health.ClassNode}})
	if err != nil {
		t.Fatal(err)
	}
	l := newXIDLog(slog.New(slog.NewTextHandler(&buf, nil)), table)
	node := []gpu.Device{{UUID: "GPU-a", Index: 5, PCIBusID: "00000000:4E:00.0"}}
	l.report([]gpu.Event{{Kind: gpu.EventXID, GPU: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Code: 79}}, node, time.Unix(1e9, 0))
	if want := `xid=79 name="GPU fell off the bus" class=node gpu=GPU-a index=5 pci=00000000:4E:00.0`; !strings.Contains(buf.String(), want) {
		t.Errorf("told %swant %s", buf.String(), want)
	}
}
