// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// An alert can only see that a GPU has gone silent if the time of its values stands still.
func TestTheTimeOfASilentGPUIsThatOfItsLastValues(t *testing.T) {
	for name, silence := range map[string]struct{ begin, end func(*machine) }{
		"hangs": {func(m *machine) { m.hang(0) }, func(m *machine) { m.unhang(0) }},
		"lost": {
			func(m *machine) { m.change(0, func(b *board) { b.lost = true }) },
			func(m *machine) { m.change(0, func(b *board) { b.lost = false }) },
		},
		"lost midway": {
			func(m *machine) {
				m.change(0, func(b *board) { b.refused["nvmlDeviceGetPowerUsage"] = nvml.ERROR_GPU_IS_LOST })
			},
			func(m *machine) { m.change(0, func(b *board) { clear(b.refused) }) },
		},
		"not permitted": {
			func(m *machine) {
				m.change(0, func(b *board) { b.refused["nvmlDeviceGetHandleByIndex"] = nvml.ERROR_NO_PERMISSION })
			},
			func(m *machine) { m.change(0, func(b *board) { clear(b.refused) }) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(modelH100())
				mixed(m, 0)
				s := m.source(t, Config{})
				read(t, s, 155, 252)
				time.Sleep(time.Second)
				last := time.Now()
				read(t, s, 155, 252)
				silence.begin(m)
				for range 5 {
					time.Sleep(time.Second)
					r := read(t, s, 155, 252)
					for i, sample := range r.Samples {
						silent := sample.Entity.GPU == r.Devices[0].UUID
						if silent != sample.Time.Equal(last) || silent == (r.Time.Sub(sample.Time) < time.Second) {
							t.Errorf("sample %d of %+v is of %s in a reading at %s; the last values are of %s", i, sample.Entity, sample.Time, r.Time, last)
						}
					}
				}
				silence.end(m)
				time.Sleep(time.Second)
				synctest.Wait()
				for _, sample := range read(t, s, 155, 252).Samples {
					if !sample.Time.Equal(time.Now()) {
						t.Errorf("%+v answers again, and is of %s", sample.Entity, sample.Time)
					}
				}
			})
		})
	}
}

// What is remembered of a GPU, its serial number and last XID, is no sign of life.
func TestAGPUWhoseEveryCallFailsHasTheTimeOfItsLastValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		m.change(1, func(b *board) { b.refused["nvmlDeviceGetPowerUsage"] = nvml.ERROR_UNKNOWN })
		if r := read(t, s, 155); !r.Samples[1].Time.IsZero() || r.Samples[0].Time.IsZero() {
			t.Errorf("one that never gave a value is of %s, another of %s", r.Samples[1].Time, r.Samples[0].Time)
		}
		last := time.Now()
		read(t, s, 53, 54, 155, 230)
		time.Sleep(time.Second)
		r := read(t, s, 53, 54, 155, 230)
		if serial := valueOf(t, r, 1, 53); !serial.Present() || !r.Samples[1].Time.Equal(last) || !r.Samples[0].Time.Equal(time.Now()) {
			t.Errorf("it is of %s, and its serial number %s was read at %s", r.Samples[1].Time, show(serial), last)
		}
	})
}

// A GPU that is asked for nothing, or only for what it does not have, has answered.
func TestAGPUThatHasNothingToAnswerIsNotSilent(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	s := m.source(t, Config{})
	for _, fields := range [][]gpu.FieldID{nil, {fieldFanSpeed}, {gpu.FieldDriverVersion}, {155}, {gpu.FieldName}} {
		for _, sample := range read(t, s, fields...).Samples {
			if sample.Time.IsZero() {
				t.Errorf("fields %v: %+v has no time", fields, sample.Entity)
			}
		}
	}
}
