// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// DCGM gives the numbers of instances that are gone to others, and shows what it sampled of the
// former until it has sampled the new.
func TestAnInstanceHasNothingOfTheOneBeforeIt(t *testing.T) {
	m := node(t, "gpus 1 h100", "clock frozen", "mig 0 on", "gi 0 profile 3g.40gb nvml 1 uuid MIG-old ci")
	if r := m.read(252); len(r.Devices) != 2 {
		t.Fatalf("devices: %+v", r.Devices)
	}
	m.do("mig 0 on", "gi 0 profile 1g.10gb nvml 7 uuid MIG-new ci")
	m.until("the former is gone", []gpu.FieldID{252}, func(r gpu.Reading) string {
		if len(r.Devices) > 1 && r.Devices[1].UUID == "MIG-old" {
			return "it is there"
		}
		return ""
	})
	if r := m.read(252); len(r.Devices) > 1 && (r.Devices[1].UUID != "MIG-new" || r.Devices[1].Profile.Name != "1g.10gb") {
		t.Errorf("before much was sampled there is %+v", r.Devices[1])
	}
	m.do("advance 1s")
	r := m.until("the new one", []gpu.FieldID{252}, func(r gpu.Reading) string {
		if len(r.Devices) != 2 {
			return fmt.Sprintf("%d devices", len(r.Devices))
		}
		return ""
	})
	if d := r.Devices[1]; d.UUID != "MIG-new" || d.GPUInstance != 7 || d.Profile.Name != "1g.10gb" || d.Profile.Memory != 1 {
		t.Errorf("it is %+v", d)
	}
}

// Wherever between two samples it falls, and though the engine drops the watches of all numbers
// that were not there for a moment.
func TestASecondRepartitionIsNotTakenForTheFirst(t *testing.T) {
	const slow = 200 * time.Millisecond
	for phase := range 4 {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			t.Parallel()
			m := openOn(t, pretend(t, "strict on", "gpus 2 h100"), func(c *Config) { c.Interval = slow })
			// Nothing is left to a later repair.
			m.settings.pauses.rewatch, m.settings.pauses.mend = time.Hour, time.Hour
			fields := []gpu.FieldID{155, 252, 250}
			m.read(fields...)
			m.do("mig 1 on", "gi 1 profile 1g.10gb nvml 7 uuid MIG-a ci", "gi 1 profile 3g.40gb nvml 1 uuid MIG-b ci")
			parts := func(r gpu.Reading) string {
				text := ""
				for _, d := range r.Devices {
					if d.IsMIG() {
						s, ok := sampleOf(r, gpu.KindGPUInstance, 1, d.GPUInstance)
						text += fmt.Sprintf("%d %s %s %s;", d.GPUInstance, d.UUID, d.Profile.Name, shown(r, s, ok, 250))
					}
				}
				return text
			}
			is := func(want string) func(gpu.Reading) string {
				return func(r gpu.Reading) string {
					if got := parts(r); got != want {
						return got
					}
					return ""
				}
			}
			m.until("the first", fields, is("1 MIG-b 3g.40gb 40779;7 MIG-a 1g.10gb 10194;"))
			time.Sleep(slow*2 + time.Duration(phase)*slow/4)
			m.do("gi 1 remove 7", "gi 1 profile 2g.20gb nvml 3 uuid MIG-c ci")
			const right = "1 MIG-b 3g.40gb 40779;3 MIG-c 2g.20gb 20389;"
			m.until("the second", fields, func(r gpu.Reading) string {
				for _, d := range r.Devices {
					if d.GPUInstance == 3 && (d.UUID != "MIG-c" || d.Profile.Name != "2g.20gb") {
						t.Errorf("GPU instance 3 is %+v", d)
					}
				}
				if !strings.Contains(parts(r), "1 MIG-b 3g.40gb") {
					t.Errorf("the untouched instance is not there: %s", parts(r))
				}
				return is(right)(r)
			})
			for range 4 {
				time.Sleep(slow)
				if why := is(right)(m.read(fields...)); why != "" {
					t.Errorf("later: %s", why)
				}
			}
		})
	}
}

func TestSamplesOfAFormerInstanceAreNotItsSuccessors(t *testing.T) {
	const memory, sampled = 252, 100
	cols := newColumns([]gpu.FieldID{memory}, func(id gpu.FieldID) (fieldMeta, bool) {
		f, ok := gpu.FieldByID(id)
		return fieldMeta{id: id, kind: f.Type}, ok
	})
	self, of := entity{groupGPU, 0}, entity{groupComputeInstance, 7}
	c := &card{
		settings: &settings{interval: 10 * time.Microsecond}, cols: cols,
		devices: []gpu.Device{{UUID: "GPU-0"}, {UUID: "MIG-new", Parent: "GPU-0", GPUInstance: 2, InstanceEntity: 7}},
		told: description{
			instances: []instance{{id: 7, nvml: 1, parts: []part{{id: 7}}}},
			static:    map[entity]map[gpu.FieldID]gpu.Value{of: {gpu.FieldUUID: gpu.Text("MIG-old")}},
		},
	}
	c.seen.clock, c.seen.self = sampled, sampled
	c.layOut(cols)
	c.renumber([]instance{{id: 7, nvml: 2, parts: []part{{id: 7}}}})
	for _, look := range []struct {
		ts          int64
		uuid        string
		blank, anew bool
	}{
		{sampled - 1, "MIG-old", true, false},
		{sampled, "MIG-old", true, false},
		// Sampled after our last look and before the change.
		{sampled + 10, "MIG-old", true, false},
		{sampled + 20, "MIG-new", true, true},
		{sampled + 30, "MIG-new", false, true},
	} {
		c.rows.empty()
		c.seen.begin()
		c.put(nil, gpu.ScopeGPUInstance, 0, record{entity: entity{groupGPUInstance, 7}, field: memory, kind: gpu.FieldInt, ts: look.ts})
		c.noticeUUID(record{entity: of, field: gpu.FieldUUID, kind: gpu.FieldText, ts: look.ts, text: look.uuid}, false)
		if got := c.rows.row(1)[0].Reason() == gpu.ReasonBlank; got != look.blank || c.seen.changed != look.anew {
			t.Errorf("%+v: absent for %q, described anew %v", look, c.rows.row(1)[0].Reason(), c.seen.changed)
		}
	}
	// The clock is set back: what is sampled then is not of the former.
	c.noticeUUID(record{entity: self, field: gpu.FieldUUID, kind: gpu.FieldText, ts: 5, text: "GPU-0"}, true)
	if c.former(record{entity: of, ts: 6}) {
		t.Error("after the clock was set back, samples are still of the former")
	}
}

// DCGM has no slices for a card out of MIG mode, and still has none a while after it came into it.
func TestTheSlicesOfACardAreLookedForUntilTheyAreThere(t *testing.T) {
	m := node(t, "gpus 1 h100", "clock frozen", "field gpu:0 69 0")
	m.settings.pauses.mend = interval
	if r := m.read(155); r.Devices[0].Capacity != (gpu.Slices{}) {
		t.Fatalf("out of MIG mode it has %+v", r.Devices[0].Capacity)
	}
	m.do("mig 0 on", "advance 1s")
	m.until("MIG mode", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if !r.Devices[0].MIGEnabled {
			return "not in MIG mode"
		}
		return ""
	})
	m.do("field gpu:0 69 7", "advance 61s")
	m.until("its slices", []gpu.FieldID{155, 69}, func(r gpu.Reading) string {
		if r.Devices[0].Capacity != (gpu.Slices{Compute: 7, Memory: 8}) {
			return fmt.Sprintf("%+v", r.Devices[0].Capacity)
		}
		return ""
	})
}
