// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

func TestEveryKindOfBlankIsAbsentForItsReason(t *testing.T) {
	m := node(t, "gpus 1 h100",
		"field 0 150 41", "field 0 155 0", "field 0 100 blank", "field 0 101 notfound", "field 0 140 notsupported", "field 0 202 notperm",
		"field 0 157 blank", "field 0 160 notfound", "field 0 161 notsupported", "field 0 162 notperm", "field 0 163 nan",
		"field 0 51 blank", "field 0 53 notfound", "field 0 85 notsupported", "field 0 82 notperm", "text 0 80 2.0 rev",
		"status 0 203 -17", "status 0 204 -14", "status 0 206 -6", "status 0 207 -3", "status 0 190 -57", "status 0 191 -15",
		"field 0 156 2147483632",
	)
	want := map[gpu.FieldID]string{
		150: "41", 155: "0", 100: "(blank)", 101: "(not_found)", 140: "(not_supported)", 202: "(not_permitted)",
		157: "(blank)", 160: "(not_found)", 161: "(not_supported)", 162: "(not_permitted)", 163: "(implausible)",
		51: "(blank)", 53: "(not_found)", 85: "(not_supported)", 82: "(not_permitted)", 80: "2.0 rev",
		203: "(not_permitted)", 204: "(blank)", 206: "(not_supported)", 207: "(error)", 190: "(timeout)", 191: "(stale)",
		156: "2147483632", gpu.FieldXID: "0",
		// What libdcgm has no number for, what is not a number, and what no GPU has.
		64999: "(not_supported)", 220: "(not_supported)", 858: "(scope)", 1110: "(scope)", gpu.FieldHealthStatus: "(scope)",
	}
	var fields []gpu.FieldID
	for id := range want {
		fields = append(fields, id)
	}
	r := m.read(fields...)
	for id, text := range want {
		if got := cell(r, 0, id); got != text {
			t.Errorf("field %d is %s, want %s", id, got, text)
		}
	}
}

func TestAFieldAskedForTwiceIsAnsweredTwice(t *testing.T) {
	m := node(t, "gpus 1 h100", "field 0 150 41", "field 0 155 300")
	r := m.read(150, 155, 150, 64999, 64999, gpu.FieldUUID, gpu.FieldUUID)
	if got := fmt.Sprint(r.Fields); got != "[150 155 150 64999 64999 54 54]" {
		t.Errorf("columns %s", got)
	}
	v := r.Samples[0].Values
	if v[0] != v[2] || v[3] != v[4] || v[5] != v[6] || !v[0].Present() || !v[5].Present() || v[3].Reason() != gpu.ReasonNotSupported {
		t.Errorf("values %+v", v)
	}
}

func TestWhatTheNodeHasStandsOnEveryDevice(t *testing.T) {
	m := node(t, "driver 580.1.2", "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci")
	r := m.read(gpu.FieldDriverVersion, 155)
	if len(r.Samples) != 3 {
		t.Fatalf("samples: %+v", r.Samples)
	}
	for _, s := range r.Samples {
		if text, _ := s.Values[0].AsText(); text != "580.1.2" {
			t.Errorf("the driver by %+v is %+v", s.Entity, s.Values[0])
		}
	}
}

// The watches of what the node has go with those of one GPU.
func TestWhatTheNodeHasOutlivesAGPU(t *testing.T) {
	for _, version := range []string{"4.5.0", "4.6.0"} {
		t.Run(version, func(t *testing.T) {
			m := node(t, "version "+version, "text global 1 580.1", "gpus 4 h100")
			fields := []gpu.FieldID{gpu.FieldDriverVersion, 155}
			says := func(r gpu.Reading, want string) string {
				for _, i := range []int{0, 1, 3} {
					if got := cell(r, i, gpu.FieldDriverVersion); got != want {
						return fmt.Sprintf("the driver by GPU %d is %s, want %s", i, got, want)
					}
				}
				return ""
			}
			m.until("all GPUs", fields, func(r gpu.Reading) string { return says(r, "580.1") })
			m.do("detach 2")
			for range 4 {
				if why := says(m.read(fields...), "580.1"); why != "" {
					t.Error(why)
				}
			}
			// What is remembered would stay as it was.
			m.do("text global 1 580.2")
			m.until("it is watched again", fields, func(r gpu.Reading) string { return says(r, "580.2") })
			before, err := m.sim.Calls()
			if err != nil {
				t.Fatal(err)
			}
			m.read(fields...)
			if after, _ := m.sim.Calls(); after["dcgmWatchFields"] != before["dcgmWatchFields"] {
				t.Error("it is watched anew at each reading")
			}
		})
	}
}

// One GPU offers everything, one a few fields, one none; profiling of the others must not suffer.
func TestAMixedNodeKeepsProfilingWhereItWorks(t *testing.T) {
	m := node(t, "gpus 3 h100", "prof 1 1001,1009", "prof 2 none")
	fields := []gpu.FieldID{155, 1001, 1004, 1009}
	r := m.until("profiling", fields, func(r gpu.Reading) string {
		if cell(r, 0, 1001)[0] == '(' || cell(r, 1, 1001)[0] == '(' {
			return cell(r, 0, 1001) + cell(r, 1, 1001)
		}
		return ""
	})
	for i, offered := range []map[gpu.FieldID]bool{{1001: true, 1004: true, 1009: true}, {1001: true, 1009: true}, {}} {
		for _, id := range fields {
			got := cell(r, i, id)
			if absent := got[0] == '('; absent == (offered[id] || id == 155) || absent && got != "(not_supported)" {
				t.Errorf("field %d of GPU %d is %s", id, i, got)
			}
		}
	}
	if len(r.Troubles) > 0 {
		t.Errorf("troubles: %+v", r.Troubles)
	}
}

func TestProfilingThatIsRefusedCostsTheProfilingFields(t *testing.T) {
	for _, tc := range []struct {
		call, want string
		troubled   bool
	}{
		{"fail dcgmProfGetSupportedMetricGroups -17", "(not_permitted)", false},
		{"fail dcgmProfGetSupportedMetricGroups -33", "(not_supported)", false},
		{"fail dcgmProfGetSupportedMetricGroups -3", "(error)", true},
	} {
		m := node(t, "gpus 1 h100", tc.call)
		r := m.read(155, 1001)
		if cell(r, 0, 155)[0] == '(' || cell(r, 0, 1001) != tc.want || len(r.Troubles) > 0 != tc.troubled {
			t.Errorf("%s: power %s, profiling %s, troubles %+v; want %s", tc.call, cell(r, 0, 155), cell(r, 0, 1001), r.Troubles, tc.want)
		}
	}
}

func TestAWatchThatIsRefusedIsToldAndTriedAgain(t *testing.T) {
	m := node(t, "gpus 1 h100", "fail dcgmWatchFields -17")
	m.settings.pauses = pauses{mend: 10 * interval, rewatch: 10 * interval}
	r := m.read(155, 1001)
	if cell(r, 0, 155) != "(not_permitted)" || cell(r, 0, 1001) != "(not_permitted)" {
		t.Errorf("unwatched fields are %s and %s", cell(r, 0, 155), cell(r, 0, 1001))
	}
	if len(r.Troubles) == 0 || r.Troubles[0].Reason != gpu.ReasonNotPermitted || !strings.Contains(r.Troubles[0].Text, "watching") || strings.Contains(r.Troubles[0].Text, "\n") {
		t.Errorf("troubles: %+v", r.Troubles)
	}
	m.do("fail dcgmWatchFields 0")
	m.until("the next try", []gpu.FieldID{155, 1001}, func(r gpu.Reading) string {
		if cell(r, 0, 155)[0] == '(' || len(r.Troubles) > 0 {
			return fmt.Sprintf("%s, %+v", cell(r, 0, 155), r.Troubles)
		}
		return ""
	})
}

// What the metric groups offer need not be what can be watched: another client may have it.
func TestAProfilingWatchThatFailsCostsTheProfilingFields(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155, 1001)
	m.do("prof 0 none")
	fields := []gpu.FieldID{155, 100, 1001, 1004}
	r := m.until("profiling of the other GPU", fields, func(r gpu.Reading) string {
		if cell(r, 1, 1004)[0] == '(' {
			return cell(r, 1, 1004)
		}
		return ""
	})
	if cell(r, 0, 155)[0] == '(' || cell(r, 0, 100)[0] == '(' || cell(r, 0, 1004) != "(not_supported)" || len(r.Troubles) > 0 {
		t.Errorf("power %s, clock %s, profiling %s, troubles %+v", cell(r, 0, 155), cell(r, 0, 100), cell(r, 0, 1004), r.Troubles)
	}
}

// A single field that the engine no longer samples, while the others go on. Its times are only
// seen to move: the driver's clock or another host's may be anywhere.
func TestAFieldThatIsNoLongerSampledIsStale(t *testing.T) {
	for _, moves := range []struct {
		name     string
		temp     func(second int) int64
		staleAt  int
		patience time.Duration
	}{
		{"sampled each second", func(s int) int64 { return int64(s) * 1e6 }, 0, 3 * time.Second},
		{"sampled no more after the 5th second", func(s int) int64 { return int64(min(s, 5)) * 1e6 }, 9, 3 * time.Second},
		{"sampled each 30 s, as the InfoROM is", func(s int) int64 { return int64(s/30) * 30e6 }, 0, 90 * time.Second},
		{"on a clock that is set back", func(s int) int64 { return int64(1e9 - s) }, 0, 3 * time.Second},
		{"on a clock that hardly moves", func(s int) int64 { return 7 + int64(s) }, 0, 3 * time.Second},
	} {
		t.Run(moves.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cols := newColumns([]gpu.FieldID{150, 155}, func(id gpu.FieldID) (fieldMeta, bool) {
					f, ok := gpu.FieldByID(id)
					return fieldMeta{id: id, kind: f.Type}, ok
				})
				c := &card{settings: &settings{frozenAfter: moves.patience}, cols: cols, devices: []gpu.Device{{UUID: "GPU-0"}}}
				c.layOut(cols)
				for second := range 200 {
					c.rows.empty()
					c.put(nil, gpu.ScopeGPU, 0, record{entity: entity{groupGPU, 0}, field: 150, kind: gpu.FieldInt, ts: moves.temp(second)})
					c.put(nil, gpu.ScopeGPU, 1, record{entity: entity{groupGPU, 0}, field: 155, kind: gpu.FieldFloat, ts: int64(second) * 1e6})
					stale := moves.staleAt > 0 && second >= moves.staleAt
					if got := c.rows.row(0)[0].Reason() == gpu.ReasonStale; got != stale || c.rows.row(0)[1].Reason() != gpu.ReasonNone {
						t.Fatalf("second %d: stale is %v; the other is absent for %q", second, got, c.rows.row(0)[1].Reason())
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// What the node has is not sampled at each turn: the results of a diagnosis are there once.
func TestTheResultOfADiagnosisStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const result = 350
		cols := newColumns([]gpu.FieldID{result}, func(id gpu.FieldID) (fieldMeta, bool) {
			return fieldMeta{id: id, kind: gpu.FieldInt, global: true}, true
		})
		c := &card{settings: &settings{frozenAfter: time.Second}, cols: cols, devices: []gpu.Device{{UUID: "GPU-0"}}}
		c.layOut(cols)
		for range 3 {
			c.rows.empty()
			c.put(nil, gpu.ScopeNode, 0, record{entity: entity{groupGPU, 0}, field: result, kind: gpu.FieldInt, ts: 1e6, bits: 1})
			if n, ok := c.rows.row(0)[0].AsInt(); !ok || n != 1 {
				t.Fatalf("the result is absent for %q", c.rows.row(0)[0].Reason())
			}
			time.Sleep(time.Hour)
		}
	})
}

// An engine whose own thread hangs in the driver still answers, with what it last had.
func TestValuesOfWhichNoNewSampleComesAreStale(t *testing.T) {
	sim := pretend(t, "strict on", "gpus 1 h100", "clock frozen")
	m := openOn(t, sim, nil)
	m.settings.staleAfter = 100 * time.Millisecond
	if r := m.read(155); cell(r, 0, 155)[0] == '(' {
		t.Fatalf("power is %s", cell(r, 0, 155))
	}
	r := m.until("it is stale", []gpu.FieldID{155, gpu.FieldDriverVersion}, func(r gpu.Reading) string {
		if cell(r, 0, 155) != "(stale)" {
			return cell(r, 0, 155)
		}
		return ""
	})
	if len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonStale {
		t.Errorf("troubles: %+v", r.Troubles)
	}
	m.do("advance 1s")
	if r := m.read(155); cell(r, 0, 155)[0] == '(' || len(r.Troubles) > 0 {
		t.Errorf("with a new sample power is %s, troubles %+v", cell(r, 0, 155), r.Troubles)
	}
}

func TestThreeHundredFieldsAreSplit(t *testing.T) {
	m := node(t, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci")
	var fields []gpu.FieldID
	for _, f := range gpu.Fields() {
		numeric := f.Type == gpu.FieldInt || f.Type == gpu.FieldFloat
		if numeric && f.Scope == gpu.ScopeGPU && !f.ID.Profiling() && f.ID != 155 && f.ID != gpu.FieldXID && len(fields) < 300 {
			fields = append(fields, f.ID)
		}
	}
	for i := 0; i < len(fields); i += 7 {
		m.do(fmt.Sprintf("field 0 %d %d", fields[i], 1000+i))
	}
	fields = append(fields, 155, 1001)
	r := m.read(fields...)
	if cell(r, 0, 155)[0] == '(' || cell(r, 1, 155)[0] == '(' || len(r.Troubles) > 0 {
		t.Errorf("power %s and %s, troubles %+v", cell(r, 0, 155), cell(r, 1, 155), r.Troubles)
	}
	for i := 0; i < 300; i += 7 {
		if got, want := cell(r, 0, fields[i]), fmt.Sprint(1000+i); got != want {
			t.Errorf("field %d, the %dth, is %s, want %s", fields[i], i, got, want)
		}
	}
	m.state("few field groups", func(s dcgmsim.State) bool { return s.FieldGroups <= 20 })
}
