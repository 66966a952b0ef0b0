// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// TestNoCounterFileStopsARunningExporter puts in the place of a good counter file what none should be: the last good counters stay, the page says
// that the file was not taken, and a good one is taken again.
func TestNoCounterFileStopsARunningExporter(t *testing.T) {
	const good = "DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n"
	name := filepath.Join(t.TempDir(), "counters.csv")
	put := func(content string) func() error {
		return func() error { return os.WriteFile(name, []byte(content), 0o600) }
	}
	if err := put(good)(); err != nil {
		t.Fatal(err)
	}
	v := attacked(t, func(c *app.Config) { c.Collectors, c.CollectorsSet = name, true })
	for _, test := range []struct {
		name  string
		make  func() error
		taken bool
	}{
		{"a file of 1 GB", func() error {
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(1 << 30)
		}, false},
		{"a pipe that nobody writes to", func() error { return syscall.Mkfifo(name, 0o600) }, false},
		{"a device without end", func() error { return os.Symlink("/dev/zero", name) }, false},
		{"a folder", func() error { return os.Mkdir(name, 0o700) }, false},
		{"a link to itself", func() error { return os.Symlink(name, name) }, false},
		{"nothing at all", func() error { return nil }, false},
		{"one row of 1 MB", put(strings.Repeat("x", 1<<20)), false},
		{"a quote that is not closed", put(`DCGM_FI_DEV_GPU_TEMP, gauge, "` + strings.Repeat("x", 1<<19)), false},
		{"half a million commas", put(strings.Repeat(",", 1<<19)), false},
		{"forty thousand wrong names", put(strings.Repeat("DCGM_FI_DEV_GPU_TEMQ, gauge, x\n", 32000)), false},
		{"the same row thirty thousand times", put(strings.Repeat("DCGM_FI_DEV_GPU_TEMP, gauge, x\n", 32000)), true},
		{"every field that there is", put(every()), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
			if err := test.make(); err != nil {
				t.Fatal(err)
			}
			v.t = t
			v.reloads(map[bool]float64{true: 1, false: 0}[test.taken])
			v.goesOn()
			if n := len(v.page()["DCGM_FI_DEV_GPU_TEMP"]); n == 0 {
				t.Error("the counters of before are gone")
			}
			if n := v.size(); n > 8<<20 {
				t.Errorf("the page has %d bytes", n)
			}
			if err := errors.Join(os.RemoveAll(name), put(good)()); err != nil {
				t.Fatal(err)
			}
			v.reloads(1)
		})
	}
}

// every is a counter file with all fields.
func every() string {
	var b strings.Builder
	for _, f := range gpu.Fields() {
		fmt.Fprintf(&b, "%s, gauge, x\n", f.Name)
	}
	return "DCGM_FI_DEV_GPU_TEMP, gauge, x\n" + b.String()
}

// reloads asks for the file to be read again until the page says whether it was taken.
func (v *victim) reloads(successful float64) {
	v.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			v.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if v.page().value("gpumeter_config_last_reload_successful") == successful {
			return
		}
		if time.Now().After(end) {
			v.t.Fatalf("gpumeter_config_last_reload_successful is not %v", successful)
		}
	}
}
