// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// kindOf is the word that an error is counted by.
func kindOf(err error) string {
	var k interface{ Kind() string }
	if errors.As(err, &k) {
		return k.Kind()
	}
	return ""
}

func TestAGPUThatHangsHoldsOneCall(t *testing.T) {
	m := node(t, "gpus 8 h100")
	m.read(155)
	m.do("hang 3")
	for range 5 {
		ctx, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
		r, err := m.Read(ctx, []gpu.FieldID{155})
		done()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			if got := cell(r, i, 155); (got == "(timeout)") != (i == 3) {
				t.Errorf("power of GPU %d is %s", i, got)
			}
		}
		if len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonTimeout || r.Troubles[0].GPU != r.Devices[3].UUID {
			t.Errorf("troubles: %+v", r.Troubles)
		}
		if state, err := m.sim.State(); err != nil || state.Blocked != 1 {
			t.Errorf("%d calls are stuck (%v), want 1", state.Blocked, err)
		}
	}
	m.do("unhang 3")
	m.until("GPU 3 answers", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if got := cell(r, 3, 155); got[0] == '(' || len(r.Troubles) > 0 {
			return fmt.Sprintf("%s, %+v", got, r.Troubles)
		}
		return ""
	})
}

// A GPU that hangs from the start has no name yet.
func TestAGPUThatHangsFromTheStartIsTroubleWithoutAName(t *testing.T) {
	m := node(t, "gpus 2 h100", "hang 0")
	r := m.read(155)
	if len(r.Devices) != 1 || r.Devices[0].Index != 1 || cell(r, 1, 155)[0] == '(' {
		t.Errorf("devices %+v, power %s", r.Devices, cell(r, 1, 155))
	}
	if len(r.Troubles) != 1 || r.Troubles[0].GPU != "" || r.Troubles[0].Reason != gpu.ReasonTimeout ||
		!strings.HasPrefix(r.Troubles[0].Text, "GPU 0 (no UUID known yet): ") || !strings.Contains(r.Troubles[0].Text, "dmesg") {
		t.Errorf("troubles: %+v", r.Troubles)
	}
	if r := m.read(155); len(r.Troubles) != 1 || !strings.HasPrefix(r.Troubles[0].Text, "GPU 0 (no UUID known yet): ") {
		t.Errorf("later troubles: %+v", r.Troubles)
	}
	m.do("unhang 0")
	m.until("both", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Devices) != 2 || cell(r, 0, 155)[0] == '(' {
			return fmt.Sprintf("%+v", r.Devices)
		}
		return ""
	})
}

// Another GPU's repartition must not wait for the one that hangs, on old engines either, which
// sample what is new only when told to.
func TestARepartitionBesideAHangGoesOn(t *testing.T) {
	for _, version := range []string{"4.2.3", "4.6.0"} {
		t.Run(version, func(t *testing.T) {
			m := node(t, "version "+version, "gpus 3 h100", "mig 2 on", "gi 2 profile 1g.10gb nvml 7 ci")
			m.read(155, 252)
			m.do("hang 0", "gi 2 profile 2g.20gb nvml 3 placement 2 ci")
			r := m.until("the new instance", []gpu.FieldID{155, 252}, func(r gpu.Reading) string {
				s, ok := sampleOf(r, gpu.KindGPUInstance, 2, 3)
				if got := shown(r, s, ok, 252); got[0] == '(' {
					return got
				}
				return ""
			})
			if cell(r, 1, 155)[0] == '(' || cell(r, 2, 155)[0] == '(' || cell(r, 0, 155) != "(timeout)" {
				t.Errorf("power is %s, %s and %s", cell(r, 0, 155), cell(r, 1, 155), cell(r, 2, 155))
			}
			m.do("unhang all")
		})
	}
}

// The engine as a whole hangs: what is known stays, and says so.
func TestAnInventoryThatHangsKeepsTheLast(t *testing.T) {
	m := node(t, "gpus 2 h100")
	m.read(155)
	m.do("hang call dcgmGetAllDevices")
	for range 3 {
		r := m.read(155)
		if len(r.Devices) != 2 || cell(r, 0, 155)[0] == '(' || len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonTimeout {
			t.Errorf("devices %+v, power %s, troubles %+v", r.Devices, cell(r, 0, 155), r.Troubles)
		}
	}
	m.do("unhang all")
	m.until("it answers", nil, func(r gpu.Reading) string { return fmt.Sprint(r.Troubles)[len("[") : len(fmt.Sprint(r.Troubles))-1] })
}

func TestAnEngineThatNeverSaysWhatThereIsHasNoReading(t *testing.T) {
	m := node(t, "gpus 2 h100", "hang call dcgmGetAllDevices")
	for range 2 {
		ctx, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := m.Read(ctx, nil); kindOf(err) != "timeout" {
			t.Errorf("read: %v", err)
		}
		done()
	}
	m.do("unhang all")
	m.until("it answers", nil, func(r gpu.Reading) string {
		if len(r.Devices) != 2 {
			return "not all devices"
		}
		return ""
	})
}

func TestReadWaitsOnlyForItsTurn(t *testing.T) {
	m := node(t, "gpus 1 h100", "hang 0")
	held := make(chan error)
	go func() {
		_, err := m.Read(context.Background(), nil)
		held <- err
	}()
	m.state("a call hangs", func(s dcgmsim.State) bool { return s.Blocked > 0 })
	ctx, done := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer done()
	if _, err := m.Read(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second reading: %v", err)
	}
	m.do("unhang 0")
	if err := <-held; err != nil {
		t.Error(err)
	}
}

func TestCloseDoesNotWaitForAHang(t *testing.T) {
	sim := pretend(t, "strict on", "gpus 2 h100", "hang 0")
	s, err := Open(Config{Library: sim.Path, Interval: interval})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := s.Read(context.Background(), nil)
		read <- err
	}()
	if err := sim.Wait(patience, func(s dcgmsim.State) bool { return s.Blocked > 0 }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, errInFlight) {
		t.Errorf("close: %v", err)
	}
	if err := <-read; kindOf(err) != kindClosed {
		t.Errorf("the reading under way: %v", err)
	}
	if _, err := s.Read(t.Context(), nil); kindOf(err) != kindClosed {
		t.Errorf("a reading afterwards: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
	// The call that comes back at last finds everything it uses, and lets go of the engine.
	if err := sim.Do("unhang 0"); err != nil {
		t.Fatal(err)
	}
	if err := sim.Wait(patience, func(s dcgmsim.State) bool { return !s.Embedded && s.Blocked == 0 }); err != nil {
		t.Error(err)
	}
}

func TestHealthChecksThatBlockHurtNobody(t *testing.T) {
	sim := pretend(t, "strict on", "gpus 2 h100", `health 0 memory fail 81 "uncontained"`)
	m := openOn(t, sim, nil)
	m.settings.pauses.round = 10 * interval
	fields := []gpu.FieldID{155, gpu.FieldHealthStatus}
	first := m.until("a round", fields, func(r gpu.Reading) string {
		if r.Health.Time.IsZero() {
			return "none"
		}
		return ""
	})
	want := gpu.HealthIncident{
		GPU: first.Devices[0].UUID, GPUInstance: gpu.NoInstance,
		System: gpu.HealthMemory, Result: gpu.HealthFail, Code: 81, Text: "uncontained",
	}
	if len(first.Health.Incidents) != 1 || first.Health.Incidents[0] != want || len(first.Health.Checked) != 2 {
		t.Errorf("the report is %+v", first.Health)
	}
	m.do("hang call dcgmHealthCheck", "health 0 clear")
	m.state("the checks hang", func(s dcgmsim.State) bool { m.read(fields...); return s.Blocked == 2 })
	for range 20 {
		r := m.read(fields...)
		if cell(r, 0, 155)[0] == '(' || len(r.Troubles) > 0 || len(r.Health.Incidents) != 1 {
			t.Fatalf("power %s, troubles %+v, health %+v", cell(r, 0, 155), r.Troubles, r.Health)
		}
		time.Sleep(interval)
	}
	if state, _ := m.sim.State(); state.Blocked != 2 {
		t.Errorf("%d calls are stuck, want one for each GPU", state.Blocked)
	}
	m.do("unhang all")
	m.until("a new round", fields, func(r gpu.Reading) string {
		if len(r.Health.Incidents) > 0 {
			return fmt.Sprintf("%+v", r.Health)
		}
		return ""
	})
	// Nobody asks any more: the groups go.
	before, _ := m.sim.State()
	m.read(155)
	m.state("the groups of the checks are gone", func(s dcgmsim.State) bool { m.read(155); return s.Groups == before.Groups-2 })
}

// A GPU whose check hangs keeps no other from its own, is told, and is no longer said to be well.
func TestACheckThatHangsCostsItsGPUOnly(t *testing.T) {
	for _, how := range []string{"hang call dcgmHealthCheck", "hang 3"} {
		t.Run(how, func(t *testing.T) {
			m := openOn(t, pretend(t, "strict on", "gpus 4 h100"), nil)
			m.settings.pauses.round, m.settings.pauses.overdue, m.settings.pauses.forget = interval, 5*interval, 3*time.Second
			fields := []gpu.FieldID{155, gpu.FieldHealthStatus}
			m.until("all are checked", fields, func(r gpu.Reading) string { return checked(r, 0, 1, 2, 3) })
			m.do(how)
			if how == "hang 3" {
				m.do(`health 0 memory fail 81 "uncontained"`)
				r := m.until("GPU 3 is no longer said to be well", fields, func(r gpu.Reading) string { return checked(r, 0, 1, 2) })
				if len(r.Health.Incidents) != 1 || r.Health.Incidents[0].GPU != r.Devices[0].UUID {
					t.Errorf("the others' incidents are %+v", r.Health.Incidents)
				}
				if state, _ := m.sim.State(); state.Blocked < 1 || state.Blocked > 2 {
					t.Errorf("%d calls are stuck", state.Blocked)
				}
			} else {
				r := m.until("none is said to be well", fields, func(r gpu.Reading) string { return checked(r) })
				if len(r.Troubles) != 4 || r.Troubles[3].GPU != r.Devices[3].UUID || r.Troubles[3].Reason != gpu.ReasonTimeout ||
					!strings.Contains(r.Troubles[3].Text, "health check of GPU 3 has not come back since") {
					t.Errorf("troubles: %+v", r.Troubles)
				}
				if state, _ := m.sim.State(); state.Blocked != 4 {
					t.Errorf("%d calls are stuck, want one for each GPU", state.Blocked)
				}
			}
			m.do("unhang all")
			m.until("all are checked again", fields, func(r gpu.Reading) string {
				return checked(r, 0, 1, 2, 3) + strings.Trim(fmt.Sprint(r.Troubles), "[]")
			})
		})
	}
}

// checked says how the GPUs that were checked differ from those wanted.
func checked(r gpu.Reading, want ...int) string {
	var got []int
	for _, d := range r.Devices {
		if slices.Contains(r.Health.Checked, d.UUID) {
			got = append(got, d.Index)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Sprintf("checked are %v, want %v", got, want)
	}
	return ""
}

// An engine has 62 groups for its clients.
func TestManyGPUsShareAHealthGroup(t *testing.T) {
	for n, each := range map[int]bool{1: true, 8: true, 14: true, 15: false, 18: false, 19: true, 28: true, 29: false, 32: false} {
		s := &survey{all: make([]uint32, n)}
		groups, health := 3*n, 1
		if s.crowded() {
			groups = n
		}
		if s.roomy() {
			health = n
		}
		if s.roomy() != each || groups+health > 62 {
			t.Errorf("%d GPUs have %d groups and %d for health", n, groups, health)
		}
	}
	m := openOn(t, pretend(t, "strict on", "gpus 16 h100"), nil)
	var all []int
	for i := range 16 {
		all = append(all, i)
	}
	m.until("all are checked", []gpu.FieldID{gpu.FieldHealthStatus}, func(r gpu.Reading) string { return checked(r, all...) })
	m.state("one group for all", func(s dcgmsim.State) bool { return s.Groups == 16+1 })
}

func TestHealthThatCannotBeCheckedIsTold(t *testing.T) {
	m := node(t, "gpus 2 h100", "fail dcgmHealthSet_v2 -33")
	r := m.until("trouble", []gpu.FieldID{155, gpu.FieldHealthStatus}, func(r gpu.Reading) string {
		if len(r.Troubles) == 0 {
			return "none"
		}
		return ""
	})
	if r.Troubles[0].GPU != "" || r.Troubles[0].Reason != gpu.ReasonNotSupported || cell(r, 0, 155)[0] == '(' || !r.Health.Time.IsZero() {
		t.Errorf("troubles %+v, health %+v", r.Troubles, r.Health)
	}
}

func TestIncidentsArePlacedAndInOrder(t *testing.T) {
	job := healthJob{
		cards:     map[uint32]gpu.UUID{0: "GPU-a", 1: "GPU-b"},
		instances: map[uint32][]instance{1: {{id: 7, nvml: 9, parts: []part{{id: 12, nvml: 0}}}}, 5: {{id: 35, nvml: 1}}},
	}
	got := ""
	for _, i := range job.incidents([]incident{
		{entity: entity{groupComputeInstance, 12}, system: 0x20, health: 10, code: 40, text: "part"},
		{entity: entity{groupGPUInstance, 7}, system: 0x10, health: 20, code: 4, text: "instance"},
		{entity: entity{groupGPU, 1}, system: 0x1, health: 10, code: 3, text: "second"},
		{entity: entity{groupGPU, 1}, system: 0x1, health: 10, code: 2, text: "first"},
		{entity: entity{groupGPU, 0}, system: 0xffffffff, health: 20, code: 120, text: "all"},
		{entity: entity{groupGPU, 0}, system: 0x3, health: 10, code: 1, text: "two bits"},
		{entity: entity{groupSwitch, 0}, system: 0x800, health: 20, code: 15, text: "a switch"},
		{entity: entity{groupGPU, 6}, system: 0x1, health: 20, code: 3, text: "an unknown GPU"},
		{entity: entity{groupGPUInstance, 35}, system: 0x1, health: 20, code: 3, text: "its instance"},
	}) {
		got += fmt.Sprintf("%s/%d %s %d %d %s; ", i.GPU, i.GPUInstance, i.System, i.Result, i.Code, i.Text)
	}
	want := "GPU-a/-1 ALL 10 1 two bits; GPU-a/-1 ALL 20 120 all; GPU-b/-1 PCIE 10 2 first; GPU-b/-1 PCIE 10 3 second; " +
		"GPU-b/9 MEM 20 4 instance; GPU-b/9 SM 10 40 part; "
	if got != want {
		t.Errorf("incidents %q, want %q", got, want)
	}
}

func TestEveryHealthSystemOfAGPUHasABit(t *testing.T) {
	seen := map[gpu.HealthSystem]bool{}
	for bit := range 32 {
		seen[systemOf(1<<bit)] = true
	}
	for _, s := range gpu.HealthSystems() {
		if !seen[s] {
			t.Errorf("no bit means %s", s)
		}
	}
}
