// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// A repartition, a mode switched off and on, a GPU unbound and lost, other fields: whatever is
// made for it is ended with it.
func TestAThousandReconfigurationsLeaveNothingBehind(t *testing.T) {
	m := node(t, "gpus 3 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci")
	m.settings.pauses.rewatch = 0
	fields := []gpu.FieldID{155, 252, 1001, 1009}
	settle := func() dcgmsim.State {
		m.until("all GPUs", fields, func(r gpu.Reading) string {
			s, ok := sampleOf(r, gpu.KindGPUInstance, 1, 7)
			if got := cell(r, 0, 155) + cell(r, 2, 155) + shown(r, s, ok, 252); len(r.Devices) != 4 || len(r.Troubles) > 0 || slices.Contains([]byte(got), '(') {
				return fmt.Sprintf("%d devices, %s, %+v", len(r.Devices), got, r.Troubles)
			}
			return ""
		})
		state, err := m.sim.State()
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	before := settle()
	if before.Groups != 5 {
		t.Errorf("%d groups for two whole cards and a divided one, want 5", before.Groups)
	}
	for round := range 125 {
		for _, step := range [][]string{
			{"gi 1 profile 2g.20gb nvml 3 placement 2 ci"},
			{"gi 1 remove 7"},
			{"mig 1 off", "detach 0"},
			{"attach 0", "lost 2"},
			{"mig 1 on", "back 2"},
			{"gi 1 profile 1g.10gb nvml 7 ci", "gi 1 profile 1g.10gb nvml 8 placement 1 ci"},
			{"gi 1 remove 8", "detach 2", "attach 2"},
		} {
			m.do(step...)
			m.read(fields...)
		}
		m.read(155, gpu.FieldID(100+round%2))
	}
	if after := settle(); after.Groups != before.Groups || after.FieldGroups != before.FieldGroups || after.Watches != before.Watches {
		t.Errorf("before %+v, after %+v", before, after)
	}
	calls, err := m.sim.Calls()
	if err != nil || calls["dcgmGroupCreate"] < 1000 {
		t.Errorf("only %d groups were made (%v): that is no thousand reconfigurations", calls["dcgmGroupCreate"], err)
	}
}

func TestFieldsThatWereWatchedHaveNoGap(t *testing.T) {
	m := node(t, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci")
	sets := [][]gpu.FieldID{
		{155, 150, 252, 1001}, {155, 252, 1001, 1004}, {1001, 252, 155, 100, 101}, {155, 252, 1001, 1004, 1009}, {252, 155, 1001},
	}
	common := []gpu.FieldID{155, 252, 1001}
	m.until("the first sample of profiling", sets[0], func(r gpu.Reading) string {
		s, ok := sampleOf(r, gpu.KindGPUInstance, 1, 7)
		if got := cell(r, 0, 1001) + shown(r, s, ok, 1001); slices.Contains([]byte(got), '(') {
			return got
		}
		return ""
	})
	for i := range 20 {
		fields := sets[i%len(sets)]
		r := m.read(fields...)
		for _, id := range common {
			s, ok := sampleOf(r, gpu.KindGPUInstance, 1, 7)
			if whole := cell(r, 0, id); whole[0] == '(' || id != 155 && shown(r, s, ok, id)[0] == '(' {
				t.Fatalf("change %d to %v: field %d is %s and %s", i, fields, id, whole, shown(r, s, ok, id))
			}
		}
	}
	// What is no longer asked for is no longer watched.
	m.read()
	empty, _ := m.sim.State()
	m.read(sets[3]...)
	m.read()
	m.state("as few watches as before", func(s dcgmsim.State) bool { return s.Watches == empty.Watches && s.FieldGroups == empty.FieldGroups })
}

// The engine is everybody's: where its groups are used up, the GPUs that have theirs go on.
func TestAnEngineWithoutRoomCostsTheGPUsThatHaveNone(t *testing.T) {
	m := node(t, "gpus 4 h100", "maxgroups 4")
	m.settings.pauses.mend = 5 * interval
	r := m.read(155)
	there := 0
	for i := range 4 {
		if cell(r, i, 155)[0] != '(' {
			there++
		} else if got := cell(r, i, 155); got != "(error)" {
			t.Errorf("power of GPU %d is %s", i, got)
		}
	}
	if there != 2 || len(r.Devices) != 4 || len(r.Troubles) != 2 {
		t.Errorf("%d GPUs answer, %d devices, troubles %+v", there, len(r.Devices), r.Troubles)
	}
	m.do("maxgroups 64")
	m.until("all answer", []gpu.FieldID{155}, func(r gpu.Reading) string {
		if len(r.Troubles) > 0 {
			return fmt.Sprintf("%+v", r.Troubles)
		}
		return ""
	})
}

func TestCloseLeavesNothingInAHostEngine(t *testing.T) {
	sim := pretend(t, "strict on", "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci")
	cfg := Config{Library: sim.Path, Interval: interval}
	cfg.Endpoint, _ = ParseEndpoint(socket)
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), []gpu.FieldID{155, 252, 1001}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if state, err := sim.State(); err != nil || state.Groups+state.FieldGroups+state.Watches+state.Connections > 0 {
		t.Errorf("it has %+v (%v)", state, err)
	}
}

func TestCloseLeavesNoGoroutineBehind(t *testing.T) {
	sim := pretend(t, "strict on", "gpus 4 h100")
	before := runtime.NumGoroutine()
	for range 10 {
		s, err := Open(Config{Library: sim.Path, Interval: interval})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(t.Context(), []gpu.FieldID{155, 858, gpu.FieldHealthStatus, gpu.FieldP2PStatus}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	end := time.Now().Add(patience)
	for ; runtime.NumGoroutine() > before && time.Now().Before(end); time.Sleep(interval) {
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, before there were %d", after, before)
	}
}

// Each field of each entity has one watch: a second one would change what the first one keeps.
func TestNoFieldIsWatchedTwiceOnAnEntity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := gpu.Fields()
		fields := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) gpu.FieldID {
			if rapid.Bool().Draw(t, "own") {
				return rapid.SampledFrom(append(statics(), glance(true)...)).Draw(t, "id")
			}
			return all[rapid.IntRange(0, len(all)-1).Draw(t, "field")].ID
		}), 0, 200).Draw(t, "fields")
		bind := rapid.Bool().Draw(t, "bind")
		cols := newColumns(fields, func(id gpu.FieldID) (fieldMeta, bool) {
			f, ok := gpu.FieldByID(id)
			return fieldMeta{id: id, kind: f.Type}, ok && (bind || id != gpu.FieldBindEvent)
		})
		var instances []instance
		for i := range rapid.IntRange(0, 7).Draw(t, "instances") {
			instances = append(instances, instance{id: i, nvml: i, parts: []part{{id: i}}})
		}
		selection, _ := gpu.ParseSelection(rapid.SampledFrom([]string{"f", "g", "i", "g:1", "i:0-2", "g:0+i:1"}).Draw(t, "selection"))
		plan := cardPlan{
			id: 0, instances: instances, cols: cols, gpus: selection, bind: bind,
			crowded: rapid.Bool().Draw(t, "crowded"), offered: func(id gpu.FieldID) bool { return id%2 == 0 },
		}
		type place struct {
			entity
			field gpu.FieldID
		}
		watched := map[place]kindOfWatch{}
		sets := plan.sets()
		for _, s := range sets {
			for kind, ids := range s.watches {
				for _, id := range ids {
					for _, e := range s.members {
						if before, twice := watched[place{e, id}]; twice {
							t.Fatalf("field %d of %s is watched for %s and for %s", id, e, before, kindOfWatch(kind))
						}
						watched[place{e, id}] = kindOfWatch(kind)
					}
				}
			}
		}
		for _, s := range sets {
			if !slices.IsSorted(s.read) || len(slices.Compact(slices.Clone(s.read))) != len(s.read) {
				t.Fatalf("read are %v", s.read)
			}
			for _, id := range s.read {
				for _, e := range s.members {
					if _, ok := watched[place{e, id}]; !ok {
						t.Fatalf("field %d of %s is read, and not watched", id, e)
					}
				}
			}
		}
		if _, ok := watched[place{entity{groupGPU, 0}, gpu.FieldXID}]; !ok || sets[0].members[0] != (entity{groupGPU, 0}) {
			t.Fatal("the first group does not watch the card's XIDs")
		}
	})
}

// DCGM's modules for profiling, switches and CPUs end all watches of a group or of a client when
// one is ended, so that none may be begun before.
func TestWatchesEndBeforeOthersBegin(t *testing.T) {
	for _, change := range []struct {
		name          string
		before, after []gpu.FieldID
		anew          int
	}{
		{"profiling", []gpu.FieldID{1001, 1004}, []gpu.FieldID{1004, 1005}, 1},
		{"CPUs and cores", []gpu.FieldID{cpuTemp, coreUtil}, []gpu.FieldID{cpuTemp, coreUtil + 1}, 2},
	} {
		t.Run(change.name, func(t *testing.T) {
			m := node(t, "gpus 1 h100", "cpu 0 cores 2")
			m.read(change.before...)
			watches := func() int {
				calls, err := m.sim.Calls()
				if err != nil {
					t.Fatal(err)
				}
				return calls["dcgmWatchFields"]
			}
			first := watches()
			m.do("hang call dcgmUnwatchFields")
			_, _ = m.tryRead(change.after...)
			m.state("a watch is being ended", func(s dcgmsim.State) bool { return s.Blocked == 1 })
			if n := watches() - first; n > 0 {
				t.Errorf("%d were begun before", n)
			}
			m.do("unhang all")
			m.until("an answer", change.after, func(r gpu.Reading) string {
				if len(r.Troubles) > 0 {
					return r.Troubles[0].Text
				}
				return ""
			})
			if n := watches() - first; n != change.anew {
				t.Errorf("%d were begun, want %d", n, change.anew)
			}
		})
	}
}
