// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/dcgm"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// BenchmarkDayDCGM is a day of a node at speed, one second an operation: eight GPUs behind libdcgm's interface, a tick and a page
// each second, an XID every five minutes, a repartition every ten. With -benchtime 86400x it is a whole day. It reports the
// resident memory after the first hour (or the first tenth) and at the end, and fails where a GPU does not answer any more, an XID
// was not counted, or DCGM holds more for us than before.
func BenchmarkDayDCGM(b *testing.B) {
	pretend, err := dcgmsim.New(b.TempDir(), "gpus 8 h100\nclock frozen\nmig 1 on\n")
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	source, err := dcgm.Open(dcgm.Config{Library: pretend.Path, Interval: time.Second})
	if err != nil {
		b.Fatal(errors.Join(err, pretend.Err()))
	}
	defer source.Close()
	data, err := etc.ReadFile("default-counters.csv")
	if err != nil {
		b.Fatal(err)
	}
	counters, _ := exporter.ParseCounters("default-counters.csv", data)
	m, err := meter.New(meter.Config{Telemetry: source, Fields: counters.Fields(), Interval: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	e, err := exporter.New(m, counters, exporter.Config{Hostname: "node"})
	if err != nil {
		b.Fatal(err)
	}
	do := func(commands ...string) {
		if err := pretend.Do(commands...); err != nil {
			b.Fatal(err)
		}
	}
	layouts := [][]string{
		{"gi 1 profile 3g.40gb nvml 1 placement 4 ci", "gi 1 profile 1g.10gb nvml 7 placement 0 ci"},
		{"gi 1 remove 1", "gi 1 remove 7"},
	}
	second := 0
	live := func() {
		second++
		do("advance 1s")
		if second%300 == 0 {
			do(fmt.Sprintf("xid %d 31", second/300%8))
		}
		if second%600 == 0 {
			do(layouts[(second/600+1)%2]...)
		}
		m.Tick(b.Context())
		if err := e.WritePage(io.Discard, exporter.FormatText); err != nil {
			b.Fatal(err)
		}
	}
	warm := min(3600, max(b.N/10, 100))
	for range warm {
		live()
	}
	rss, state := residentMiB(b), held(b, pretend)
	for b.Loop() {
		live()
	}
	s := m.Latest()
	cards := 0
	for _, sample := range s.Reading.Samples {
		if sample.Entity.ID == 0 && sample.Values[0].Present() {
			cards++
		}
	}
	var xids uint64
	for _, n := range s.Totals.XIDs {
		xids += n
	}
	if cards != 8 || xids != uint64(second/300) {
		b.Errorf("after %d s %d GPUs answer and %d XIDs are counted, want 8 and %d; faults %v", second, cards, xids, second/300, s.Faults)
	}
	b.ReportMetric(rss, "MiB-early")
	b.ReportMetric(residentMiB(b), "MiB-late")
	b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
	if late := held(b, pretend); second/600%2 == warm/600%2 && late != state {
		b.Errorf("DCGM held %v groups, field groups and watches early and %v late, of the same layout", state, late)
	}
}

// held is what the engine keeps for its clients.
func held(b *testing.B, pretend *dcgmsim.Sim) [3]int {
	b.Helper()
	s, err := pretend.State()
	if err != nil {
		b.Fatal(err)
	}
	return [3]int{s.Groups, s.FieldGroups, s.Watches}
}

// residentMiB is the process' resident memory after a collection.
func residentMiB(b *testing.B) float64 {
	b.Helper()
	runtime.GC()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
