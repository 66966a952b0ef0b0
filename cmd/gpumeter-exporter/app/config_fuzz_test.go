// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/meter"
)

// FuzzIntervals reads times as dcgm-exporter's users write them: what is taken is within what the meter can do.
func FuzzIntervals(f *testing.F) {
	for _, text := range []string{"30000", "30s", "1ms", "-1", "0", " 5m ", "9223372036854775807", "1e3", "1h1h", "86400001", "99999999h", "0.0001s", "٣"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := (Config{Interval: text}).interval(); err == nil && (d < meter.MinInterval || d > time.Hour) {
			t.Errorf("--collect-interval %q is taken for %v", text, d)
		}
		if d, err := window("w", text); err == nil && (d < time.Millisecond || d > maxWindow) {
			t.Errorf("a window of %q is taken for %v", text, d)
		}
	})
}

// FuzzMIGWeights reads --mig-weight: what is taken makes a policy or is refused with the flag's name.
func FuzzMIGWeights(f *testing.F) {
	for _, text := range []string{"1g.10gb=1/8", "=1", "a=", "a==1", "1g.10gb=1/0", "1g.10gb=-1", "x=1e99", "7g.80gb=1"} {
		f.Add(text, "2g.20gb=1/4")
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		c := Config{MIGPolicy: "table", MIGWeights: []string{one, two}}
		p, err := c.Policy()
		if err == nil && p.Name() == "" {
			t.Errorf("%q and %q are taken for no policy", one, two)
		}
	})
}
