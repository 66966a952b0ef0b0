// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestTheLogNamesWhatCameAndWent(t *testing.T) {
	var log bytes.Buffer
	m := openOn(t, pretend(t, "strict on", "gpus 3 h100"), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	before := m.read(155)
	m.do("detach 1")
	m.until("it is gone", nil, func(r gpu.Reading) string {
		if len(r.Devices) != 2 {
			return "it is there"
		}
		return ""
	})
	if want := fmt.Sprintf(`came=none went="GPU 1 %s"`, before.Devices[1].UUID); !strings.Contains(log.String(), want) {
		t.Errorf("no %s in %s", want, log.String())
	}
	many := make([]gpu.Device, 1000)
	for i := range many {
		many[i] = gpu.Device{UUID: gpu.UUID(strings.Repeat("x", 500) + fmt.Sprint(i)), Index: i}
	}
	if text := without(many, nil); len(text) > 2000 || !strings.HasSuffix(text, "and 984 more") {
		t.Errorf("%d bytes for a thousand devices: %s", len(text), text)
	}
	lost := without(lostDevices(before.Devices[:1]), before.Devices)
	if want := fmt.Sprintf("GPU 0 %s (lost)", before.Devices[0].UUID); lost != want {
		t.Errorf("a GPU that was lost is %q, want %q", lost, want)
	}
}
