// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"testing"

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
	if r := m.read(252); len(r.Devices) != 1 {
		t.Errorf("before anything was sampled there is %+v", r.Devices[1])
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

func TestSamplesOfAFormerInstanceAreNotItsSuccessors(t *testing.T) {
	const memory, sampled = 252, 100
	cols := newColumns([]gpu.FieldID{memory}, func(id gpu.FieldID) (fieldMeta, bool) {
		f, ok := gpu.FieldByID(id)
		return fieldMeta{id: id, kind: f.Type}, ok
	})
	c := &card{
		settings: &settings{}, formerUntil: sampled, cols: cols,
		devices: []gpu.Device{{UUID: "GPU-0"}, {UUID: "MIG-new", Parent: "GPU-0", GPUInstance: 1, InstanceEntity: 7}},
	}
	c.layOut(cols)
	ci := entity{groupComputeInstance, 7}
	for _, look := range []struct {
		ts          int64
		uuid        string
		blank, anew bool
	}{
		{sampled - 1, "MIG-old", true, false},
		{sampled, "MIG-old", true, false},
		{sampled + 1, "MIG-new", false, true},
	} {
		c.rows.empty()
		c.seen.begin()
		c.put(nil, gpu.ScopeGPUInstance, 0, record{entity: entity{groupGPUInstance, 7}, field: memory, kind: gpu.FieldInt, ts: look.ts})
		c.noticeUUID(record{entity: ci, field: gpu.FieldUUID, kind: gpu.FieldText, ts: look.ts, text: look.uuid}, false)
		if got := c.rows.row(1)[0].Reason() == gpu.ReasonBlank; got != look.blank || c.seen.changed != look.anew {
			t.Errorf("%+v: absent for %q, described anew %v", look, c.rows.row(1)[0].Reason(), c.seen.changed)
		}
	}
	// The clock is set back: what is sampled then is not of the former.
	c.noticeUUID(record{entity: entity{groupGPU, 0}, field: gpu.FieldUUID, kind: gpu.FieldText, ts: 5, text: "GPU-0"}, true)
	if c.former(record{entity: ci, ts: 6}) {
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
