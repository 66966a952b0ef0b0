// SPDX-License-Identifier: Apache-2.0

package app

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestALibraryThatHangsIsNamed while it does: until then the log would be all that there is, and empty.
func TestALibraryThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Defaults()
		cfg.DCGMLibrary = "/opt/libdcgm.so.4"
		var out *logs
		opening := func(name string, takes time.Duration) string {
			out = &logs{}
			s := NewSources(cfg, slog.New(slog.NewTextHandler(out, nil)))
			_, _ = s.once(name, func() (Driver, error) { time.Sleep(takes); return newCard(name), nil })()
			return out.String()
		}
		told := opening(SourceDCGM, 6*time.Second)
		first, later, _ := strings.Cut(told, "\n")
		if !strings.Contains(first, "level=INFO") || !strings.Contains(first, "library=/opt/libdcgm.so.4") ||
			!strings.Contains(later, "level=WARN") || !strings.Contains(later, "library=/opt/libdcgm.so.4") {
			t.Errorf("told:\n%s", told)
		}
		if told := opening(SourceNVML, 4*time.Second); strings.Count(told, "\n") != 1 || !strings.Contains(told, "library=libnvidia-ml.so.1") {
			t.Errorf("told:\n%s", told)
		}
		if told := opening(SourceSim, 6*time.Second); told != "" {
			t.Errorf("a simulated node has no library:\n%s", told)
		}
		time.Sleep(openQuiet)
		synctest.Wait()
		if strings.Contains(out.String(), "still being opened") {
			t.Errorf("told after it was opened:\n%s", out.String())
		}
	})
}
