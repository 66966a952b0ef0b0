// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gpumeter/gpumeter/pkg/meter"
)

// swapped is a Snapshots whose snapshot changes.
type swapped struct{ atomic.Pointer[meter.Snapshot] }

func (s *swapped) Latest() *meter.Snapshot { return s.Load() }

// seen takes the bytes that are written without copying them.
type seen struct{ first *byte }

func (w *seen) Write(b []byte) (int, error) {
	w.first = unsafe.SliceData(b)
	return len(b), nil
}

func written(t testing.TB, e *Exporter, f Format) *byte {
	t.Helper()
	var w seen
	if err := e.WritePage(&w, f); err != nil {
		t.Fatal(err)
	}
	return w.first
}

func TestPageIsMadeOncePerSnapshotAndConfiguration(t *testing.T) {
	var source swapped
	source.Store(mixedNode())
	e, err := New(&source, rowsOf(t, mixedCounters), mixedConfig())
	if err != nil {
		t.Fatal(err)
	}
	first := written(t, e, FormatText)
	if written(t, e, FormatOpenMetrics) == first {
		t.Error("two formats share a page")
	}
	if written(t, e, FormatText) != first {
		t.Error("a second page was made for one snapshot")
	}
	source.Store(mixedNode())
	second := written(t, e, FormatText)
	if second == first {
		t.Error("a new snapshot has the old page")
	}
	e.Reload(rowsOf(t, tempOnly), nil, time.Now())
	third := written(t, e, FormatText)
	if third == second {
		t.Error("a new configuration has the old page")
	}
	e.ReloadFailed(errors.New("no such file"), time.Now())
	if written(t, e, FormatText) == third {
		t.Error("a failed reload does not show")
	}
}

func TestConcurrentFirstScrapesMakeOnePage(t *testing.T) {
	for range 20 {
		e := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig())
		pages := make([]*byte, 8)
		var ready, done sync.WaitGroup
		ready.Add(len(pages))
		for i := range pages {
			done.Go(func() {
				ready.Done()
				ready.Wait()
				pages[i] = written(t, e, FormatText)
			})
		}
		done.Wait()
		for _, p := range pages[1:] {
			if p != pages[0] {
				t.Fatal("two first scrapes made two pages")
			}
		}
	}
}

// TestScrapesDuringTicks is for the race detector: readers of every form while the
// snapshot and the configuration change. Each page must be whole, of one snapshot.
func TestScrapesDuringTicks(t *testing.T) {
	var source swapped
	begun := mixedNode()
	begun.Totals.LateTicks = begun.Totals.Ticks
	source.Store(begun)
	counters := rowsOf(t, mixedCounters)
	e, err := New(&source, counters, mixedConfig())
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			s := mixedNode()
			s.Totals.Ticks, s.Totals.LateTicks = i, i
			source.Store(s)
			if i%8 == 0 {
				e.Reload(counters, nil, noon)
			}
		}
	})
	for r := range 6 {
		readers.Go(func() {
			for range 60 {
				var b bytes.Buffer
				if err := e.WritePage(&b, Format(r)%formatCount); err != nil {
					t.Error(err)
				}
				e.current().body(FormatText, coding(1+r%2))
				if Format(r)%formatCount != FormatText {
					continue
				}
				page := b.String()
				ticks, late := seriesOf(page, "gpumeter_ticks_total"), seriesOf(page, "gpumeter_late_ticks_total")
				if len(ticks) != 1 || len(late) != 1 || strings.Fields(ticks[0])[1] != strings.Fields(late[0])[1] {
					t.Errorf("page of two snapshots: %v, %v", ticks, late)
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
}

// TestOldSnapshotIsLetGo: a node's past must not pile up behind its page.
func TestOldSnapshotIsLetGo(t *testing.T) {
	var source swapped
	old := mixedNode()
	past := weak.Make(old)
	source.Store(old)
	e, err := New(&source, rowsOf(t, mixedCounters), mixedConfig())
	if err != nil {
		t.Fatal(err)
	}
	for c := range codingCount {
		e.current().body(FormatText, c)
	}
	old = nil
	source.Store(mixedNode())
	e.current().body(FormatText, codingGzip)
	runtime.GC()
	runtime.GC()
	if past.Value() != nil {
		t.Error("the snapshot before the last is still reachable")
	}
	runtime.KeepAlive(e)
}

func TestCodingsCarryTheSamePage(t *testing.T) {
	e := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig())
	// A second round runs with the compressors and sizes of the first.
	for range 2 {
		for f := range formatCount {
			p := e.current()
			plain := p.body(f, codingIdentity).bytes
			r, err := gzip.NewReader(bytes.NewReader(p.body(f, codingGzip).bytes))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("format %d: gzip differs, %v", f, err)
			}
			d, err := zstd.NewReader(nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := d.DecodeAll(p.body(f, codingZstd).bytes, nil); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("format %d: zstd differs, %v", f, err)
			}
			d.Close()
		}
		e.Reload(rowsOf(t, mixedCounters), nil, noon)
	}
}

func TestReloadIsShown(t *testing.T) {
	e := exporterOf(t, mixedNode(), rowsOf(t, tempOnly), Config{})
	state := func(want ...string) {
		t.Helper()
		page := writtenPage(t, e, FormatText)
		for _, line := range want {
			if !strings.Contains(page, line+"\n") {
				t.Errorf("page lacks %s", line)
			}
		}
	}
	state("gpumeter_config_last_reload_successful 1", "gpumeter_config_last_reload_success_timestamp_seconds 1741089600",
		`gpumeter_config_problems{severity="error"} 0`, `gpumeter_config_problems{severity="warning"} 0`)

	c, problems := ParseCounters("f", []byte("NO_SUCH_FIELD,gauge\nDCGM_FI_DEV_POWER_USAGE,gauge\nNEITHER,gauge\nDCGM_FI_DEV_FB_USED,summary\n"))
	e.Reload(c, problems, noon.Add(time.Minute))
	state("gpumeter_config_last_reload_successful 1", "gpumeter_config_last_reload_success_timestamp_seconds 1741089660",
		`gpumeter_config_problems{severity="error"} 2`, `gpumeter_config_problems{severity="warning"} 1`, "# TYPE DCGM_FI_DEV_POWER_USAGE gauge")

	e.ReloadFailed(errors.New("read counters.csv: permission denied"), noon.Add(2*time.Minute))
	state("gpumeter_config_last_reload_successful 0", "gpumeter_config_last_reload_success_timestamp_seconds 1741089660",
		`gpumeter_config_problems{severity="error"} 2`, "# TYPE DCGM_FI_DEV_POWER_USAGE gauge")

	e.Reload(c, nil, noon.Add(3*time.Minute))
	e.ReloadFailed(errors.New("late news"), noon.Add(2*time.Minute))
	state("gpumeter_config_last_reload_successful 1", "gpumeter_config_last_reload_success_timestamp_seconds 1741089780")
}

func TestNewRefusesWhatItCannotShow(t *testing.T) {
	if _, err := New(nil, nil, Config{}); err == nil {
		t.Error("no snapshots pass")
	}
	if _, err := New(latest{}, nil, Config{HostnameLabel: "gpu"}); err == nil || !strings.Contains(err.Error(), `"gpu"`) {
		t.Errorf("host name label: %v", err)
	}
	if err := exporterOf(t, mixedNode(), nil, Config{}).WritePage(io.Discard, formatCount); err == nil {
		t.Error("a format that does not exist passes")
	}
}
