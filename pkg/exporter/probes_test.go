// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// TestNotReadyWhereNoGPUAnswers: a page of lost and stuck GPUs has nothing to say of them.
func TestNotReadyWhereNoGPUAnswers(t *testing.T) {
	a, b := card(0), card(1)
	lost := b
	lost.Lost = true
	fault := func(subject gpu.UUID, reason gpu.Reason, text string) meter.Fault {
		return meter.Fault{Source: meter.SourceTelemetry, Subject: subject, Kind: reason.String(), Text: text}
	}
	stuck := fault(a.UUID, gpu.ReasonTimeout, "GPU 0 hangs")
	gone := gpu.Absent(gpu.ReasonTimeout)
	tests := []struct {
		name    string
		devices []gpu.Device
		values  []gpu.Value
		faults  []meter.Fault
		down    bool
		want    string
	}{
		{"all well", []gpu.Device{a, b}, []gpu.Value{gpu.Int(40), gpu.Int(41)}, nil, false, "ready"},
		{"one stuck", []gpu.Device{a, b}, []gpu.Value{gone, gpu.Int(41)}, []meter.Fault{stuck}, false, "ready"},
		{"all stuck or lost", []gpu.Device{a, lost}, []gpu.Value{gone, gone}, []meter.Fault{stuck, fault(lost.UUID, gpu.ReasonLost, "off the bus")}, false, "not ready: no GPU answers: GPU 0 hangs"},
		{"a call that timed out beside values", []gpu.Device{a}, []gpu.Value{gpu.Int(40)}, []meter.Fault{stuck}, false, "ready"},
		{"the one that is not stuck is not selected", []gpu.Device{a, b}, []gpu.Value{gone}, []meter.Fault{stuck}, false, "ready"},
		{"none listed, since they hang", nil, nil, []meter.Fault{fault("", gpu.ReasonTimeout, "a call for\nGPU 3 has not come back")}, false, "not ready: no GPU answers: a call for GPU 3 has not come back"},
		{"none there", nil, nil, []meter.Fault{fault("", gpu.ReasonNotFound, "DCGM sees no GPU")}, false, "ready"},
		{"none there, all well", nil, nil, nil, false, "ready"},
		{"the pods' source hangs", []gpu.Device{a}, []gpu.Value{gone}, []meter.Fault{{Source: meter.SourceAllocations, Kind: "timeout"}}, false, "ready"},
		{"none there, and now the source is away", nil, nil, []meter.Fault{fault("", gpu.ReasonError, "away")}, true, "ready with earlier values, since the telemetry source does not answer: away"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var samples []gpu.Sample
			for i, v := range tt.values {
				samples = append(samples, onGPU(tt.devices[i], v))
			}
			s := ticked(temps(tt.devices, samples), sharing.Division{})
			s.Time, s.Sources[0].Up, s.Faults = time.Now(), !tt.down, tt.faults
			e := exporterOf(t, s, rowsOf(t, tempOnly), Config{})
			if ok, got := e.ready(s); got != tt.want || ok != strings.HasPrefix(tt.want, "ready") {
				t.Errorf("ready %v: %s, want %s", ok, got, tt.want)
			}
		})
	}
}

// TestAFaultWithoutAGPUIsTold: a GPU that hung from the start has no UUID yet.
func TestAFaultWithoutAGPUIsTold(t *testing.T) {
	s := ticked(temps([]gpu.Device{card(0)}, []gpu.Sample{onGPU(card(0), gpu.Int(40))}), sharing.Division{})
	s.Time, s.Sources[0].Up = time.Now(), true
	s.Faults = []meter.Fault{
		{Source: meter.SourceTelemetry, Kind: "timeout", Text: "a call for GPU 3 has not come back"},
		{Source: meter.SourceAllocations, Kind: "timeout", Text: "no answer"},
	}
	h := exporterOf(t, s, rowsOf(t, tempOnly), Config{}).Handler()
	r := get(h, "GET", "/readyz")
	if body := bodyOf(t, r); r.StatusCode != http.StatusOK || !strings.HasSuffix(body, "\ntelemetry: timeout: a call for GPU 3 has not come back\n") {
		t.Errorf("status %d:\n%s", r.StatusCode, body)
	}
}
