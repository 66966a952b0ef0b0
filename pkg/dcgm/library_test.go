// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// machine is a pretend libdcgm with an embedded engine.
type machine struct {
	*handle
	sim *dcgmsim.Sim
}

func newSim(t testing.TB, scenario ...string) *dcgmsim.Sim {
	t.Helper()
	sim, err := dcgmsim.New(t.TempDir(), strings.Join(append(scenario, "strict on"), "\n"))
	if errors.Is(err, dcgmsim.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

func newMachine(t testing.TB, scenario ...string) machine {
	t.Helper()
	sim := newSim(t, scenario...)
	l, err := load(sim.Path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.startEmbedded(embedded{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := h.close()
		if err != nil && !errors.Is(err, errInFlight) {
			t.Error(err)
		}
	})
	return machine{h, sim}
}

func (m machine) do(t testing.TB, commands ...string) {
	t.Helper()
	if err := m.sim.Do(commands...); err != nil {
		t.Fatal(err)
	}
}

// watched makes a group and a field group and watches them.
func (m machine) watched(t testing.TB, members []entity, ids ...gpu.FieldID) (groupID, fieldGroupID) {
	t.Helper()
	group, err := m.createGroup("watched", members)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := m.createFieldGroup(fmt.Sprintf("watched-%d", group), ids)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.watch(group, fields, time.Second, time.Hour, 100), m.update(true)); err != nil {
		t.Fatal(err)
	}
	return group, fields
}

func gpus(ids ...uint32) []entity {
	var members []entity
	for _, id := range ids {
		members = append(members, entity{groupGPU, id})
	}
	return members
}

func TestTheLibraryAndItsEngineTellTheirVersions(t *testing.T) {
	m := newMachine(t, "version 4.5.0", "gpus 1 h100")
	if m.library.path() != m.sim.Path {
		t.Errorf("the library is %s, want %s", m.library.path(), m.sim.Path)
	}
	if version, err := m.library.version(); err != nil || version != "4.5.0" {
		t.Errorf("the library's version is %q, %v", version, err)
	}
	if version, err := m.engineVersion(); err != nil || version != "4.5.0" {
		t.Errorf("the engine's version is %q, %v", version, err)
	}
	modules, err := m.moduleStatuses()
	if err != nil || !slices.Contains(modules, module{"core", "loaded"}) || !slices.ContainsFunc(modules, func(m module) bool { return m.name == "profiling" }) {
		t.Errorf("the modules are %v, %v", modules, err)
	}
}

func TestFieldsAreDescribedByTheLibrary(t *testing.T) {
	m := newMachine(t, "gpus 1 h100")
	for id, want := range map[gpu.FieldID]fieldMeta{
		1:    {id: 1, kind: gpu.FieldText, level: groupNone, global: true},
		150:  {id: 150, kind: gpu.FieldInt, level: groupGPU},
		155:  {id: 155, kind: gpu.FieldFloat, level: groupGPU},
		1005: {id: 1005, kind: gpu.FieldFloat, level: groupGPUInstance},
	} {
		if got, ok := m.library.field(id); !ok || got != want {
			t.Errorf("field %d is %+v (%t), want %+v", id, got, ok, want)
		}
	}
	for _, id := range []gpu.FieldID{9001, 65535} {
		if meta, ok := m.library.field(id); ok {
			t.Errorf("field %d is %+v, and there is none", id, meta)
		}
	}
	old := newMachine(t, "version 4.0.0")
	if _, ok := old.library.field(1524); ok {
		t.Error("DCGM 4.0 knows a field of 4.6")
	}
}

func TestGPUsAreListedAndDescribed(t *testing.T) {
	m := newMachine(t, `driver 580.95.05`, `gpu 0 h100 uuid GPU-0a pci 00000000:18:00.0 serial 165 fb 81559`, `gpu 3 a100`, "mig 3 on")
	if ids, err := m.allDevices(); err != nil || !slices.Equal(ids, []uint32{0, 3}) {
		t.Errorf("all GPUs are %v, %v", ids, err)
	}
	m.do(t, "detach 3")
	if ids, err := m.supportedDevices(); err != nil || !slices.Equal(ids, []uint32{0}) {
		t.Errorf("the usable GPUs are %v, %v", ids, err)
	}
	for id, want := range map[uint32]int32{0: gpuOK, 3: gpuDetached} {
		if status, err := m.gpuStatus(id); err != nil || status != want {
			t.Errorf("GPU %d is %d, %v, want %d", id, status, err, want)
		}
	}
	m.do(t, "attach 3")
	got, err := m.attributes(0)
	if err != nil || got.uuid != "GPU-0a" || got.pciBusID != "00000000:18:00.0" || got.driver != "580.95.05" ||
		got.fbTotalMiB != 81559 || got.migEnabled || !strings.Contains(got.name, "H100") {
		t.Errorf("GPU 0 is %+v, %v", got, err)
	}
	if got, err := m.attributes(3); err != nil || !got.migEnabled {
		t.Errorf("GPU 3 is %+v, %v", got, err)
	}
	if got, err := m.attributes(7); err != nil || got != (attributes{}) {
		t.Errorf("a GPU that is not there is %+v, %v", got, err)
	}
}

func TestMIGDevicesAreListedWithNVMLsNumbers(t *testing.T) {
	m := newMachine(t, "gpu 0 h100", "gpu 1 h100 uuid GPU-1b", "mig 1 on",
		"gi 1 profile 2g.20gb nvml 5", "gi 1 profile 1g.10gb nvml 9", "ci 1 gi 5 nvml 0 slices 2", "ci 1 gi 9 nvml 0")
	entities, err := m.hierarchy()
	if err != nil || len(entities) != 4 {
		t.Fatalf("%+v, %v", entities, err)
	}
	instances := make(map[entity]migEntity)
	for _, e := range entities {
		switch e.entity.group {
		case groupGPUInstance:
			instances[e.entity] = e
			if e.parent != (entity{groupGPU, 1}) || e.computeInstance != gpu.NoInstance {
				t.Errorf("GPU instance %+v", e)
			}
		case groupComputeInstance:
			if of, ok := instances[e.parent]; !ok || of.gpuInstance != e.gpuInstance || e.computeInstance != 0 || of.slices != e.slices {
				t.Errorf("compute instance %+v of %+v", e, of)
			}
		default:
			t.Errorf("%+v is no MIG device", e)
		}
	}
	slicesOf := make(map[int]int)
	for _, e := range instances {
		slicesOf[e.gpuInstance] = e.slices
	}
	if len(slicesOf) != 2 || slicesOf[5] != 2 || slicesOf[9] != 1 {
		t.Errorf("slices by GPU instance: %v", slicesOf)
	}
}

func TestEntitiesOfEachKindAreListed(t *testing.T) {
	m := newMachine(t, "gpus 2 h100", "switch 0 ports 4", "cpu 0 cores 72", "cpu 1 cores 72")
	for group, want := range map[entityGroup]int{groupGPU: 2, groupSwitch: 1, groupGPUInstance: 0, groupCPU: 2, groupCPUCore: 144} {
		if ids, err := m.entities(group); err != nil || len(ids) != want {
			t.Errorf("%d of %s, %v, want %d", len(ids), group, err, want)
		}
	}
	if _, err := m.entities(groupLink); returned(err) != stNotSupported {
		t.Errorf("links: %v", err)
	}
	cpus, err := m.cpuCores()
	if err != nil || len(cpus) != 2 || len(cpus[1].cores) != 72 || cpus[1].cores[0] != 72 || cpus[1].cores[71] != 143 {
		t.Errorf("CPUs %+v, %v", cpus, err)
	}
	none := newMachine(t, "gpus 1 l4")
	if _, err := none.cpuCores(); returned(err) != stModuleNotLoaded {
		t.Errorf("CPUs that DCGM cannot see into: %v", err)
	}
}

func TestLinksAreListedWithTheirState(t *testing.T) {
	m := newMachine(t, "gpu 0 h100 links 4", "gpu 1 l4 links 0", "switch 0 ports 2", "link 0 3 down", "link switch:0 1 disabled")
	links, err := m.links()
	if err != nil {
		t.Fatal(err)
	}
	state := make(map[link]bool)
	for _, l := range links {
		state[l] = true
	}
	for port := range 4 {
		want := linkUp
		if port == 3 {
			want = linkDown
		}
		if !state[link{entity{groupGPU, 0}, port, want}] {
			t.Errorf("port %d of GPU 0 is not in state %d: %+v", port, want, links)
		}
	}
	if !state[link{entity{groupSwitch, 0}, 0, linkUp}] || !state[link{entity{groupSwitch, 0}, 1, linkDisabled}] {
		t.Errorf("ports of switch 0: %+v", links)
	}
	if slices.ContainsFunc(links, func(l link) bool { return l.parent == (entity{groupGPU, 1}) }) {
		t.Errorf("a GPU without NVLink has links: %+v", links)
	}
	group, err := m.createGroup("links", []entity{links[0].entity()})
	if err != nil {
		t.Errorf("the number of a link is refused: %v", err)
	}
	if err := m.destroyGroup(group); err != nil {
		t.Error(err)
	}
}

func TestPeersAreListedBothWays(t *testing.T) {
	m := newMachine(t, "gpus 3 h100", "peer 0 2 1")
	peers, err := m.peers()
	if err != nil || len(peers) != 6 {
		t.Fatalf("%+v, %v", peers, err)
	}
	for _, p := range []peer{{0, 2, 1}, {2, 0, 1}} {
		if !slices.Contains(peers, p) {
			t.Errorf("%+v is not among %+v", p, peers)
		}
	}
}

func TestDirectLinksAreCounted(t *testing.T) {
	m := newMachine(t, "gpus 4 a100", "peer 0 2 0 links 4", "peer 1 3 0 links 12")
	links, err := m.directLinks(2)
	if err != nil || !maps.Equal(links, map[uint32]int{0: 4}) {
		t.Errorf("the links of GPU 2 are %v, %v", links, err)
	}
	all, err := m.allDirectLinks([]uint32{0, 1, 2, 7})
	if want := map[[2]uint32]int{{0, 2}: 4, {2, 0}: 4, {1, 3}: 12}; !maps.Equal(all, want) {
		t.Errorf("all links are %v, want %v", all, want)
	}
	if returned(err) != -1 {
		t.Errorf("a GPU that is not there: %v", err)
	}
}

func TestAGroupWithAnUnknownEntityLeavesNothing(t *testing.T) {
	m := newMachine(t, "gpus 2 h100")
	before, err := m.groupIDs()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.createGroup("two", gpus(0, 9)); err == nil || !strings.Contains(err.Error(), "adding GPU 9") || returned(err) != -1 {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if after, err := m.groupIDs(); err != nil || !slices.Equal(after, before) {
		t.Errorf("the groups were %v and are %v, %v", before, after, err)
	}
	group, err := m.createGroup("two", gpus(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := m.groupIDs(); err != nil || !slices.Contains(ids, group) {
		t.Errorf("%s is not among %v, %v", group, ids, err)
	}
	if err := m.destroyGroup(group); err != nil {
		t.Error(err)
	}
}

func TestGroupsThatAreTooManyAreToldWithTheRemedy(t *testing.T) {
	m := newMachine(t, "gpus 1 h100")
	made := 0
	for {
		_, err := m.createGroup("many", gpus(0))
		if err == nil {
			made++
			continue
		}
		if returned(err) != stMaxLimit || !strings.Contains(err.Error(), "64 groups") {
			t.Error(err)
		}
		break
	}
	if made != 62 {
		t.Errorf("%d groups were made", made)
	}
}

func TestFieldGroupsTakeWhatDCGMTakes(t *testing.T) {
	m := newMachine(t, "gpus 1 h100")
	many := slices.Repeat([]gpu.FieldID{150}, maxFields+1)
	for name, c := range map[string]struct {
		ids  []gpu.FieldID
		want string
	}{
		"none":    {nil, "0 fields, and DCGM takes 1 to 127"},
		"128":     {many, "128 fields, and DCGM takes 1 to 127"},
		"unknown": {[]gpu.FieldID{150, 9001}, "dcgmFieldGroupCreate of unknown"},
	} {
		if _, err := m.createFieldGroup(name, c.ids); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	group, err := m.createFieldGroup("127", many[:maxFields])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.createFieldGroup("127", many[:1]); returned(err) != -26 {
		t.Errorf("a name that is taken: %v", err)
	}
	if err := m.destroyFieldGroup(group); err != nil {
		t.Error(err)
	}
	m.do(t, "strict off")
	if err := m.destroyFieldGroup(group); returned(err) != stNoData {
		t.Errorf("a field group that is not there is destroyed: %v", err)
	}
}

func TestLatestValuesComeInTheOrderOfGroupAndFields(t *testing.T) {
	m := newMachine(t, "gpus 3 h100", "field 0 150 40", "field 1 150 41", "field 2 150 42",
		"field 0 155 100.5", "field 1 155 notsupported", "field 2 155 notperm", "text 0 54 GPU-a", "text 1 54 GPU-b",
		"field 0 156 blank", "field 1 156 notfound", "status 2 156 -18")
	ids := []gpu.FieldID{155, 54, 150, 156, 230}
	group, fields := m.watched(t, gpus(2, 0, 1), ids...)
	var r records
	defer r.free()
	if err := m.latest(group, fields, &r); err != nil || r.len() != 3*len(ids) {
		t.Fatalf("%d records, %v", r.len(), err)
	}
	uuid := r.at(1).value()
	want := []gpu.Value{
		gpu.Absent(gpu.ReasonNotPermitted), uuid, gpu.Int(42), gpu.Absent(gpu.ReasonLost), gpu.Absent(gpu.ReasonBlank),
		gpu.Float(100.5), gpu.Text("GPU-a"), gpu.Int(40), gpu.Absent(gpu.ReasonBlank), gpu.Absent(gpu.ReasonBlank),
		gpu.Absent(gpu.ReasonNotSupported), gpu.Text("GPU-b"), gpu.Int(41), gpu.Absent(gpu.ReasonNotFound), gpu.Absent(gpu.ReasonBlank),
	}
	for i := range r.len() {
		got := r.at(i)
		if got.entity != gpus(2, 0, 1)[i/len(ids)] || got.field != ids[i%len(ids)] || got.value() != want[i] {
			t.Errorf("record %d is %+v with %+v, want %+v", i, got, got.value(), want[i])
		}
		if age := time.Since(time.UnixMicro(got.ts)); got.status == 0 && (age < 0 || age > time.Minute) {
			t.Errorf("record %d is %v old", i, age)
		}
	}
	if got := r.at(4); got.status != stNoData || got.ts != 0 {
		t.Errorf("before the first XID, the record is %+v", got)
	}
	if err := m.unwatch(group, fields); err != nil {
		t.Error(err)
	}
	if err := m.latest(group, fields, &r); err != nil || r.at(2).status != stNotWatched || r.at(2).value() != gpu.Absent(gpu.ReasonNotFound) {
		t.Errorf("after unwatch: %+v, %v", r.at(2), err)
	}
}

func TestEverySampleSinceATimeIsThereOnce(t *testing.T) {
	m := newMachine(t, "gpus 2 h100")
	group, fields := m.watched(t, gpus(0, 1), gpu.FieldXID)
	m.do(t, "xid 0 79", "xid 0 13", "xid 0 13", "xid 1 94")
	var r records
	defer r.free()
	codes := func(since int64) (codes []int64, next int64) {
		next, err := m.since(group, fields, since, &r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.len() {
			code, ok := r.at(i).value().AsInt()
			if !ok {
				t.Errorf("%+v is no code", r.at(i))
			}
			codes = append(codes, code)
		}
		return codes, next
	}
	got, next := codes(0)
	if !slices.Equal(got, []int64{79, 13, 13, 94}) || next == 0 {
		t.Errorf("XIDs %v, next %d", got, next)
	}
	if got, _ := codes(next); len(got) != 0 {
		t.Errorf("XIDs %v are told again", got)
	}
	m.do(t, "xid 1 48")
	if got, _ := codes(next); !slices.Equal(got, []int64{48}) {
		t.Errorf("XIDs %v after the first", got)
	}
	other, err := m.createFieldGroup("not watched", []gpu.FieldID{150})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.since(group, other, 0, &r); returned(err) != stNotWatched {
		t.Errorf("of a field that is not watched: %v", err)
	}
}

func TestProfilingFieldsAreToldForEachGPU(t *testing.T) {
	m := newMachine(t, "gpus 2 h100", "prof 0 1001,1002,1005", "prof 1 none")
	if ids, err := m.metricGroups(0); err != nil || !slices.Equal(ids, []gpu.FieldID{1001, 1002, 1005}) {
		t.Errorf("GPU 0 offers %v, %v", ids, err)
	}
	if ids, err := m.metricGroups(1); returned(err) != stModuleNotLoaded || !strings.Contains(err.Error(), "GPU 1") {
		t.Errorf("GPU 1 offers %v, %v", ids, err)
	}
	group, err := m.createGroup("profiling", gpus(1))
	if err != nil {
		t.Fatal(err)
	}
	fields, err := m.createFieldGroup("profiling", []gpu.FieldID{1001})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.watch(group, fields, time.Second, time.Minute, 1); returned(err) != stModuleNotLoaded {
		t.Errorf("watching what GPU 1 does not offer: %v", err)
	}
}

func TestHealthIncidentsAreListed(t *testing.T) {
	m := newMachine(t, "gpus 2 h100")
	group, err := m.createGroup("health", gpus(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.setHealth(group, 0xffffffff, 30*time.Second, time.Hour); err != nil {
		t.Fatal(err)
	}
	if incidents, err := m.checkHealth(group); err != nil || len(incidents) != 0 {
		t.Errorf("%+v, %v", incidents, err)
	}
	m.do(t, `health 1 memory fail 81 "An uncontained error"`, `health 0 pcie warn 3 "Replays"`)
	incidents, err := m.checkHealth(group)
	if err != nil || len(incidents) != 2 {
		t.Fatalf("%+v, %v", incidents, err)
	}
	for _, want := range []incident{
		{entity: entity{groupGPU, 1}, system: 0x10, health: 20, code: 81, text: "An uncontained error"},
		{entity: entity{groupGPU, 0}, system: 0x1, health: 10, code: 3, text: "Replays"},
	} {
		if !slices.Contains(incidents, want) {
			t.Errorf("%+v is not among %+v", want, incidents)
		}
	}
}

func TestTheDriverIsDetachedAndAttached(t *testing.T) {
	m := newMachine(t, "gpus 2 h100")
	if err := m.detachDriver(); err != nil {
		t.Fatal(err)
	}
	if ids, err := m.supportedDevices(); err != nil || len(ids) != 0 {
		t.Errorf("with the driver detached, %v can be used, %v", ids, err)
	}
	if err := m.attachDriver(); err != nil {
		t.Fatal(err)
	}
	if ids, err := m.supportedDevices(); err != nil || len(ids) != 2 {
		t.Errorf("with the driver attached, %v can be used, %v", ids, err)
	}
}

func TestEveryDCGM4IsSpokenTo(t *testing.T) {
	for _, version := range dcgmsim.Versions() {
		t.Run(version, func(t *testing.T) {
			m := newMachine(t, "version "+version, "gpus 2 h100", "mig 1 on", "gi 1 profile 1g.10gb nvml 7 ci", "switch 0 ports 2", "cpu 0 cores 4")
			group, fields := m.watched(t, gpus(0, 1), 54, 150, 155, 1)
			var r records
			defer r.free()
			_, attributes := m.attributes(1)
			_, hierarchy := m.hierarchy()
			_, cpus := m.cpuCores()
			_, links := m.links()
			_, groups := m.metricGroups(0)
			_, modules := m.moduleStatuses()
			health := m.setHealth(group, 1, time.Second, time.Minute)
			_, checked := m.checkHealth(group)
			err := errors.Join(attributes, hierarchy, cpus, links, groups, modules, health, checked, m.latest(group, fields, &r))
			if err != nil {
				t.Error(err)
			}
			for i := range r.len() {
				if !r.at(i).value().Present() {
					t.Errorf("%+v has no value", r.at(i))
				}
			}
			_, status := m.gpuStatus(0)
			if old := version < "4.5.0"; errors.Is(status, errMissing) != old || errors.Is(m.detachDriver(), errMissing) != old {
				t.Errorf("the state of a GPU: %v", status)
			}
			_, peers := m.peers()
			if old := version < "4.3.0"; errors.Is(peers, errMissing) != old {
				t.Errorf("peers: %v", peers)
			}
		})
	}
}

func TestALostConnectionIsTold(t *testing.T) {
	sim := newSim(t, "gpus 1 h100")
	l, err := load(sim.Path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.connect("localhost:5555", false, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := h.allDevices(); err != nil || len(ids) != 1 {
		t.Errorf("%v, %v", ids, err)
	}
	if err := sim.Do("down"); err != nil {
		t.Fatal(err)
	}
	_, err = h.allDevices()
	if e, ok := errors.AsType[*returnError](err); !ok || e.Kind() != "connection" || !strings.Contains(err.Error(), "nv-hostengine") {
		t.Errorf("with the engine down: %v", err)
	}
	if _, err := l.connect("unix", true, time.Second); returned(err) != stConnectionNotValid {
		t.Errorf("connecting to an engine that is down: %v", err)
	}
	_ = h.close()
	if err := sim.Do("up"); err != nil {
		t.Fatal(err)
	}
	h, err = l.connect("/run/nv-hostengine.sock", true, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.createGroup("mine", gpus(0)); err != nil {
		t.Error(err)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
	if state, err := sim.State(); err != nil || state.Connections != 0 || state.Groups != 0 {
		t.Errorf("after close there are %+v, %v", state, err)
	}
}

func TestTheAddressIsTheCallers(t *testing.T) {
	for served, c := range map[string]struct {
		address string
		unix    bool
	}{
		"unix:/run/dcgm.sock": {"/run/dcgm.sock", true},
		"10.0.0.7:5556":       {"10.0.0.7:5556", false},
	} {
		sim := newSim(t, "gpus 1 h100", "engine remote "+served)
		l, err := load(sim.Path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.connect(c.address, !c.unix, time.Second); returned(err) != stConnectionNotValid {
			t.Errorf("%s is also reached as another kind of address: %v", served, err)
		}
		h, err := l.connect(c.address, c.unix, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWatchesKeepWhatTheyAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		keep    time.Duration
		samples int32
		want    int
	}{
		"three samples":  {time.Hour, 3, 3},
		"half a minute":  {35 * time.Second, 0, 4},
		"every sample":   {time.Hour, 0, 11},
		"the first rule": {35 * time.Second, 2, 2},
	} {
		m := newMachine(t, "clock frozen", "gpus 1 h100")
		group, err := m.createGroup(name, gpus(0))
		if err != nil {
			t.Fatal(err)
		}
		fields, err := m.createFieldGroup(name, []gpu.FieldID{150})
		if err != nil {
			t.Fatal(err)
		}
		const period = 10 * time.Second
		if err := m.watch(group, fields, period, c.keep, c.samples); err != nil {
			t.Fatal(err)
		}
		var r records
		defer r.free()
		for range 20 {
			m.do(t, "advance 5s")
			if err := m.latest(group, fields, &r); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.since(group, fields, 0, &r); err != nil || r.len() != c.want {
			t.Errorf("%s: %d samples, %v, want %d", name, r.len(), err, c.want)
		}
		for i := 1; i < r.len(); i++ {
			if apart := r.at(i).ts - r.at(i-1).ts; apart != period.Microseconds() {
				t.Errorf("%s: samples are %d µs apart", name, apart)
			}
		}
	}
}

func TestTheEmbeddedEngineStopsAndStartsAgain(t *testing.T) {
	m := newMachine(t, "gpus 1 h100")
	for range 3 {
		if err := m.close(); err != nil {
			t.Fatal(err)
		}
		if state, err := m.sim.State(); err != nil || state.Embedded {
			t.Fatalf("after close: %+v, %v", state, err)
		}
		if _, err := m.allDevices(); !errors.Is(err, errClosed) {
			t.Errorf("after close: %v", err)
		}
		h, err := m.library.startEmbedded(embedded{LogFile: "-", Severity: 2})
		if err != nil {
			t.Fatal(err)
		}
		m.handle = h
	}
	if err := m.close(); err != nil {
		t.Error(err)
	}
	refusing := newSim(t, "engine remote")
	l, err := load(refusing.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.startEmbedded(embedded{}); returned(err) != -7 || !strings.Contains(err.Error(), "dcgmStartEmbedded_v2") {
		t.Errorf("an engine that does not start: %v", err)
	}
}

func TestAGPUThatHangsCostsOnlyItsOwnCall(t *testing.T) {
	m := newMachine(t, "gpus 2 h100")
	hanging, hangingFields := m.watched(t, gpus(0), 150)
	well, wellFields := m.watched(t, gpus(1), 150)
	m.do(t, "hang 0")
	back := make(chan error)
	go func() {
		var r records
		defer r.free()
		back <- m.latest(hanging, hangingFields, &r)
	}()
	if err := m.sim.Wait(time.Minute, func(s dcgmsim.State) bool { return s.Blocked == 1 }); err != nil {
		t.Fatal(err)
	}
	var r records
	defer r.free()
	for range 100 {
		if err := m.latest(well, wellFields, &r); err != nil || !r.at(0).value().Present() {
			t.Fatalf("the other GPU: %v", err)
		}
	}
	if err := m.close(); !errors.Is(err, errInFlight) {
		t.Errorf("close during the call: %v", err)
	}
	m.do(t, "unhang 0")
	if err := <-back; err != nil {
		t.Errorf("the call that hung: %v", err)
	}
	if err := m.sim.Wait(time.Minute, func(s dcgmsim.State) bool { return !s.Embedded }); err != nil {
		t.Errorf("the engine goes on: %v", err)
	}
}

func BenchmarkLatest(b *testing.B) {
	m := newMachine(b, "gpus 8 h100")
	ids := []gpu.FieldID{
		1, 100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 251, 252, 253, 393, 394, 395, 449, 526, 1001, 1004, 1005, 1009, 1010,
	}
	group, fields := m.watched(b, gpus(0, 1, 2, 3, 4, 5, 6, 7), ids...)
	var r records
	defer r.free()
	b.ReportAllocs()
	for b.Loop() {
		if err := m.latest(group, fields, &r); err != nil || r.len() != 8*len(ids) {
			b.Fatal(r.len(), err)
		}
		for i := range r.len() {
			_ = r.at(i).value()
		}
	}
}
