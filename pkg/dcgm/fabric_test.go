// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// The fields of a switch, a CPU and a core.
const (
	switchTemp gpu.FieldID = 858
	cpuTemp    gpu.FieldID = 1110
	coreUtil   gpu.FieldID = 1100
)

// fieldOfScope is a numeric field of a scope that the library knows.
func (m *station) fieldOfScope(scope gpu.Scope) gpu.FieldID {
	m.Helper()
	for _, f := range gpu.Fields() {
		meta, ok := m.library.field(f.ID)
		if ok && f.Scope == scope && (meta.kind == gpu.FieldInt || meta.kind == gpu.FieldFloat) {
			return f.ID
		}
	}
	m.Fatalf("no field has scope %d", scope)
	return 0
}

func entities(r gpu.Reading) []string {
	index := map[gpu.UUID]int{}
	for _, d := range r.Devices {
		if !d.IsMIG() {
			index[d.UUID] = d.Index
		}
	}
	var out []string
	for _, s := range r.Samples {
		e := s.Entity
		switch e.Kind {
		case gpu.KindLink:
			if e.GPU == "" {
				out = append(out, fmt.Sprintf("link switch%d/%d", e.Parent, e.ID))
			} else {
				out = append(out, fmt.Sprintf("link gpu%d/%d", index[e.GPU], e.ID))
			}
		case gpu.KindSwitch:
			out = append(out, fmt.Sprintf("switch%d", e.ID))
		case gpu.KindCPU:
			out = append(out, fmt.Sprintf("cpu%d", e.ID))
		case gpu.KindCPUCore:
			out = append(out, fmt.Sprintf("core%d/%d", e.Parent, e.ID))
		default:
			out = append(out, fmt.Sprintf("gpu%d", index[e.GPU]))
		}
	}
	return out
}

func fabricNode() []string {
	return []string{
		"strict on", "gpu 0 h100", "gpu 1 h100", "switch 0 ports 2", "switch 1 ports 1", "cpu 0 cores 2", "cpu 1 cores 1",
		"link 0 0 down",
	}
}

func TestLinksSwitchesAndCPUsFollowTheCards(t *testing.T) {
	m := node(t, fabricNode()...)
	link := m.fieldOfScope(gpu.ScopeLink)
	r := m.read(155, link, switchTemp, cpuTemp, coreUtil)
	got := entities(r)
	var want []string
	want = append(want, "gpu0", "gpu1")
	for g := range 2 {
		for port := range 18 {
			want = append(want, fmt.Sprintf("link gpu%d/%d", g, port))
		}
	}
	want = append(want, "link switch0/0", "link switch0/1", "link switch1/0", "switch0", "switch1", "cpu0", "cpu1", "core0/0", "core0/1", "core1/2")
	if !slices.Equal(got, want) {
		t.Fatalf("samples of %v, want %v", got, want)
	}
	for _, s := range r.Samples {
		for i, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindLink, gpu.KindSwitch, gpu.KindCPU, gpu.KindCPUCore} {
			if v := s.Values[i]; v.Present() != (s.Entity.Kind == kind) || !v.Present() && v.Reason() != gpu.ReasonScope {
				t.Errorf("field %d of %+v is %+v", r.Fields[i], s.Entity, v)
			}
		}
	}
	if len(r.Troubles) > 0 {
		t.Errorf("troubles: %+v", r.Troubles)
	}
}

func TestTheyAreLookedForOnlyWhenAskedFor(t *testing.T) {
	m := node(t, fabricNode()...)
	link := m.fieldOfScope(gpu.ScopeLink)
	m.read(155)
	calls, err := m.sim.Calls()
	if err != nil || calls["dcgmGetNvLinkLinkStatus"]+calls["dcgmGetCpuHierarchy"]+calls["dcgmGetEntityGroupEntities"] > 0 {
		t.Errorf("looked for them: %v, %v", calls, err)
	}
	before, _ := m.sim.State()
	m.read(155, link, switchTemp, coreUtil)
	during, _ := m.sim.State()
	if during.Groups != before.Groups+3 {
		t.Errorf("%d groups, then %d", before.Groups, during.Groups)
	}
	if got := entities(m.read(155)); !slices.Equal(got, []string{"gpu0", "gpu1"}) {
		t.Errorf("samples of %v", got)
	}
}

func TestSelectionsOfSwitchesAndCPUs(t *testing.T) {
	for _, tc := range []struct {
		switches, cpus string
		want           []string
	}{
		{"g:1", "g:0", []string{"switch1", "cpu0"}},
		{"i:1", "i:2", []string{"link gpu0/1", "link gpu1/1", "link switch0/1", "core1/2"}},
		{"g:0+i:0", "g+i", []string{"link gpu0/0", "link gpu1/0", "link switch0/0", "link switch1/0", "switch0", "cpu0", "cpu1", "core0/0", "core0/1", "core1/2"}},
	} {
		m := openOn(t, pretend(t, fabricNode()...), func(c *Config) {
			c.Switches, _ = gpu.ParseSelection(tc.switches)
			c.CPUs, _ = gpu.ParseSelection(tc.cpus)
			c.GPUs, _ = gpu.ParseSelection("g:9")
		})
		r := m.read(m.fieldOfScope(gpu.ScopeLink), switchTemp, cpuTemp, coreUtil, 155)
		if got := entities(r); !slices.Equal(got, tc.want) || len(r.Devices) != 2 {
			t.Errorf("switches %s, CPUs %s: samples of %v of %d devices, want %v", tc.switches, tc.cpus, got, len(r.Devices), tc.want)
		}
	}
}

func TestWhatThereIsIsKnownWhateverIsSelected(t *testing.T) {
	m := openOn(t, pretend(t, fabricNode()...), func(c *Config) {
		c.Switches, _ = gpu.ParseSelection("g:9")
		c.CPUs, _ = gpu.ParseSelection("g:9")
	})
	m.read(155)
	if ids, known := m.Entities(gpu.KindSwitch); known {
		t.Errorf("switches %v are known, and nobody looked", ids)
	}
	m.read(switchTemp, coreUtil)
	for kind, want := range map[gpu.Kind][]int{gpu.KindSwitch: {0, 1}, gpu.KindCPUCore: {0, 1, 2}} {
		if ids, known := m.Entities(kind); !known || !slices.Equal(ids, want) {
			t.Errorf("kind %d: %v, %v; want %v", kind, ids, known, want)
		}
	}
	if ids, known := m.Entities(gpu.KindCPU); known {
		t.Errorf("CPUs %v are known, and nobody looked", ids)
	}
}

// No switches, no CPUs that can be seen into, and a libdcgm that numbers links otherwise: no
// samples, and nothing that is wrong.
func TestWhatANodeDoesNotHaveIsNoTrouble(t *testing.T) {
	m := node(t, "version 4.2.3", "gpus 1 h100")
	link := m.fieldOfScope(gpu.ScopeLink)
	r := m.read(155, link, switchTemp, cpuTemp, coreUtil)
	if got := entities(r); !slices.Equal(got, []string{"gpu0"}) || len(r.Troubles) > 0 {
		t.Errorf("samples of %v, troubles %+v", got, r.Troubles)
	}
}

func TestLinksThatHangHangAlone(t *testing.T) {
	m := node(t, fabricNode()...)
	link := m.fieldOfScope(gpu.ScopeLink)
	m.read(155, link, cpuTemp)
	m.settings.pauses.relook = 0
	m.do("hang call dcgmGetNvLinkLinkStatus")
	r := m.read(155, link, cpuTemp)
	if len(r.Samples) != 2+18*2+3+2 || len(r.Troubles) != 1 || r.Troubles[0].Reason != gpu.ReasonTimeout || r.Troubles[0].GPU != "" {
		t.Errorf("%d samples, troubles %+v", len(r.Samples), r.Troubles)
	}
	for _, s := range r.Samples {
		for i, v := range s.Values {
			want := gpu.ReasonNone
			if s.Entity.Kind == gpu.KindLink {
				want = gpu.ReasonTimeout
			}
			if v.Reason() != gpu.ReasonScope && v.Reason() != want {
				t.Errorf("field %d of %+v is %+v", r.Fields[i], s.Entity, v)
			}
		}
	}
	m.do("unhang all")
	m.until("they answer", []gpu.FieldID{155, link, cpuTemp}, func(r gpu.Reading) string {
		if len(r.Troubles) > 0 {
			return r.Troubles[0].Text
		}
		return ""
	})
}

func TestAFabricThatFailsIsToldAndTriedAgain(t *testing.T) {
	m := node(t, append(fabricNode(), "fail dcgmGetNvLinkLinkStatus -3 2")...)
	m.settings.pauses.rewatch = interval
	link := m.fieldOfScope(gpu.ScopeLink)
	r := m.read(155, link, switchTemp)
	if len(r.Samples) != 4 || len(r.Troubles) != 1 || cell(r, 0, 155)[0] == '(' {
		t.Errorf("samples of %v, troubles %+v", entities(r), r.Troubles)
	}
	m.until("the links", []gpu.FieldID{155, link, switchTemp}, func(r gpu.Reading) string {
		if len(r.Samples) != 4+18*2+3 || len(r.Troubles) > 0 {
			return fmt.Sprintf("%d samples, %+v", len(r.Samples), r.Troubles)
		}
		return ""
	})
}

func TestTheLinksOfAGPUThatIsGoneAreGone(t *testing.T) {
	m := node(t, fabricNode()...)
	link := m.fieldOfScope(gpu.ScopeLink)
	m.read(155, link)
	m.do("detach 1")
	m.until("they are gone", []gpu.FieldID{155, link}, func(r gpu.Reading) string {
		if len(r.Samples) != 1+18+3 {
			return fmt.Sprint(entities(r))
		}
		return ""
	})
	before, _ := m.sim.State()
	for range 5 {
		time.Sleep(interval)
		m.read(155, link)
	}
	m.state("no more groups", func(s dcgmsim.State) bool { return s.Groups == before.Groups })
}
