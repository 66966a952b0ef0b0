// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

var updatePlans = flag.Bool("update", false, "write the golden files anew")

// printed is a plan as a person reads it.
func printed(p Plan, problems []error) string {
	var b strings.Builder
	for _, r := range p.Resources {
		fmt.Fprintf(&b, "%s: %d seats, sharing %s, replicas %d, list %d bytes\n", r.Name, len(r.Seats), r.Sharing, r.Replicas, ListBytes(r))
		for _, s := range r.Seats {
			fmt.Fprintf(&b, "  %s  of %s, replica %d\n", s.ID, s.Device, s.Replica)
		}
	}
	for _, err := range problems {
		fmt.Fprintf(&b, "problem: %v\n", err)
	}
	return b.String()
}

func TestPlansAreTheGoldenOnes(t *testing.T) {
	mixed := Settings{MIGStrategy: MIGMixed}
	someShared := Settings{Sharing: SharingTimeSlicing, RenameByDefault: true, SharedResources: []SharedResource{
		{Name: "nvidia.com/gpu", Devices: []string{"0", string(card(2))}, Replicas: 4},
		{Name: "nvidia.com/gpu", Count: 1, Rename: "pair", Replicas: 2},
	}}
	renamed := shareAll(Settings{RenameByDefault: true}, SharingTimeSlicing, "nvidia.com/gpu", 4)
	cases := []struct {
		name     string
		rack     *rack
		settings Settings
	}{
		{"eight-gpus", new(rack).gpus(8), Settings{}},
		{"eight-gpus-time-sliced", new(rack).gpus(8), shareAll(Settings{}, SharingTimeSlicing, "gpu", 4)},
		{"eight-gpus-time-sliced-renamed", new(rack).gpus(8), renamed},
		{"mig-mixed-time-sliced", eightCut(), shareAll(mixed, SharingTimeSlicing, "nvidia.com/mig-1g.10gb", 4)},
		{"mps", new(rack).gpus(2), shareAll(Settings{RenameByDefault: true}, SharingMPS, "nvidia.com/gpu", 3)},
		{"per-gpu", new(rack).gpus(4), someShared},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := printed(NewPlan(c.rack.Inventory, c.settings))
			golden := filepath.Join("testdata", "plans", c.name+".golden")
			if *updatePlans {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func eightCut() *rack {
	r := new(rack)
	for range 8 {
		r.gpus(1).cut(slots(7, "1g.10gb")...)
	}
	return r
}

// summary is a plan as "name*replicas=seats", and the kinds of its problems.
func summary(p Plan, problems []error) string {
	var words []string
	for _, r := range p.Resources {
		words = append(words, fmt.Sprintf("%s*%d=%d", strings.TrimPrefix(r.Name, "nvidia.com/"), r.Replicas, len(r.Seats)))
	}
	for _, err := range problems {
		if problem, ok := errors.AsType[*Problem](err); ok {
			words = append(words, "!"+string(problem.Kind))
		}
	}
	return strings.Join(words, " ")
}

func TestEachMIGStrategyHandsOutWhatIsValid(t *testing.T) {
	whole := func() *rack { return new(rack).gpus(2) }
	cut := func() *rack { return new(rack).gpus(1).cut("1g.10gb", "1g.10gb").gpus(1).cut("1g.10gb") }
	half := func() *rack { return new(rack).gpus(2).cut("1g.10gb", "1g.10gb") }
	uneven := func() *rack { return new(rack).gpus(1).cut("3g.40gb", "1g.10gb", "1g.10gb") }
	hollow := func() *rack { return new(rack).gpus(2).cut() }
	odd := func() *rack { return new(rack).gpus(1).cut("1c.3g.40gb", "1g.10gb", "1g.10gb+me") }
	nameless := func() *rack { return new(rack).gpus(1).cut("", "1g.10gb") }
	for _, c := range []struct {
		name string
		rack *rack
		want map[MIGStrategy]string
	}{
		{"no GPU in MIG mode", whole(), map[MIGStrategy]string{"none": "gpu*1=2", "": "gpu*1=2", "single": "gpu*1=2", "mixed": "gpu*1=2"}},
		{"all alike", cut(), map[MIGStrategy]string{"none": "gpu*1=2 !mig !mig", "single": "gpu*1=3", "mixed": "mig-1g.10gb*1=3"}},
		{"one of two in MIG mode", half(), map[MIGStrategy]string{"none": "gpu*1=2 !mig", "single": "gpu*1=2 !mig", "mixed": "gpu*1=1 mig-1g.10gb*1=2"}},
		{"unlike instances", uneven(), map[MIGStrategy]string{"single": "gpu*1=2 !mig", "mixed": "mig-1g.10gb*1=2 mig-3g.40gb*1=1"}},
		{"MIG mode without an instance", hollow(), map[MIGStrategy]string{"none": "gpu*1=2 !mig", "single": "gpu*1=1 !mig", "mixed": "gpu*1=1 !mig"}},
		{"a compute instance that does not span", odd(), map[MIGStrategy]string{"mixed": "mig-1c.3g.40gb*1=1 mig-1g.10gb*1=1 mig-1g.10gb.me*1=1"}},
		{"a profile without a name", nameless(), map[MIGStrategy]string{"mixed": "mig-1g.10gb*1=1 !resource_name"}},
		{"no GPU at all", new(rack), map[MIGStrategy]string{"none": "", "single": "", "mixed": ""}},
		{"a strategy that is none", whole(), map[MIGStrategy]string{"both": "gpu*1=2 !settings"}},
	} {
		for strategy, want := range c.want {
			if got := summary(NewPlan(c.rack.Inventory, Settings{MIGStrategy: strategy})); got != want {
				t.Errorf("%s, %q: %s, want %s", c.name, strategy, got, want)
			}
		}
	}
}

func TestALostGPUStaysInThePlan(t *testing.T) {
	r := new(rack).gpus(2)
	r.Devices[1].Lost, r.Devices[1].Nodes = true, nil
	if got := summary(NewPlan(r.Inventory, Settings{})); got != "gpu*1=2" {
		t.Errorf("plan %s, want both GPUs", got)
	}
}

func TestWhatCannotBeToldApartIsLeftOut(t *testing.T) {
	r := new(rack).gpus(3)
	r.Devices[1].UUID, r.Devices[2].UUID = r.Devices[0].UUID, ""
	plan, problems := NewPlan(r.Inventory, Settings{})
	if got := summary(plan, problems); got != "gpu*1=1 !inventory !inventory" {
		t.Errorf("plan %s", got)
	}
}

func TestResourcesAreNamedByTheFirstRuleThatMatches(t *testing.T) {
	r := new(rack).gpus(3).cut("1g.10gb", "1g.10gb+me", "3g.40gb")
	r.Devices[0].Model, r.Devices[1].Model = "NVIDIA A100-SXM4-40GB", "Tesla T4 [odd/name]"
	for _, c := range []struct {
		name     string
		settings Settings
		want     string
	}{
		{"no rule", Settings{}, "gpu*1=2 mig-1g.10gb*1=1 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1"},
		{"a wildcard", Settings{GPUNames: []NameRule{{"*A100*", "a100"}}}, "a100*1=1 gpu*1=1 mig-1g.10gb*1=1 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1"},
		{"the first of two", Settings{GPUNames: []NameRule{{"Tesla T?*", "t4"}, {"*", "other"}}}, "other*1=1 t4*1=1 mig-1g.10gb*1=1 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1"},
		{"all of the text or nothing", Settings{GPUNames: []NameRule{{"NVIDIA", "part"}, {"tesla*", "case"}}}, "gpu*1=2 mig-1g.10gb*1=1 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1"},
		{"signs that are no wildcards", Settings{GPUNames: []NameRule{{"Tesla T4 [odd/name]", "odd"}}}, "gpu*1=1 mig-1g.10gb*1=1 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1 odd*1=1"},
		{"a MIG profile exactly", Settings{MIGNames: []NameRule{{"1g.10gb", "small"}}}, "gpu*1=2 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1 small*1=1"},
		{"MIG profiles by wildcard, own domain", Settings{MIGNames: []NameRule{{"1g.*", "example.com/small"}}}, "example.com/small*1=2 gpu*1=2 mig-3g.40gb*1=1"},
		{"a name that Kubernetes refuses costs its devices", Settings{MIGNames: []NameRule{{"1g.10gb", "_"}}}, "gpu*1=2 mig-1g.10gb.me*1=1 mig-3g.40gb*1=1 !resource_name"},
	} {
		c.settings.MIGStrategy = MIGMixed
		got := strings.Fields(summary(NewPlan(r.Inventory, c.settings)))
		want := strings.Fields(c.want)
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestSharingConcernsWhatItSelects(t *testing.T) {
	gpus := func() *rack { return new(rack).gpus(3) }
	of := func(entries ...SharedResource) Settings {
		return Settings{MIGStrategy: MIGMixed, Sharing: SharingTimeSlicing, SharedResources: entries}
	}
	entry := func(replicas int, devices ...string) SharedResource {
		return SharedResource{Name: "nvidia.com/gpu", Devices: devices, Replicas: replicas}
	}
	all := SharedResource{Name: "gpu", All: true, Replicas: 4}
	renamed := func(s Settings, name string) Settings {
		s.RenameByDefault = name == ""
		s.SharedResources[0].Rename = name
		return s
	}
	named := func(s Settings) Settings {
		s.GPUNames = []NameRule{{Pattern: "*V100*", Name: "v100"}}
		return s
	}
	counted := SharedResource{Name: "gpu", Count: 2, Replicas: 3}
	tooMany := SharedResource{Name: "gpu", Count: 9, Replicas: 3}
	none := SharedResource{Name: "gpu", Replicas: 3}
	long := strings.Repeat("x", 60)
	for _, c := range []struct {
		name     string
		rack     *rack
		settings Settings
		want     string
	}{
		{"all", gpus(), of(all), "gpu*4=12"},
		{"all, renamed by default", gpus(), renamed(of(all), ""), "gpu.shared*4=12"},
		{"all, renamed", gpus(), renamed(of(all), "slice"), "slice*4=12"},
		{"one replica is as it is", gpus(), renamed(of(entry(1, "0", "1", "2")), ""), "gpu*1=3"},
		{"no replica", gpus(), of(entry(0, "0")), "gpu*1=2 !replicas"},
		{"one by index", gpus(), of(entry(4, "0")), "gpu*4=6"},
		{"one by index, renamed", gpus(), renamed(of(entry(4, "0")), ""), "gpu*1=2 gpu.shared*4=4"},
		{"by UUID, and twice the same", gpus(), renamed(of(entry(4, string(card(1)), "1")), ""), "gpu*1=2 gpu.shared*4=4"},
		{"one that is not there", gpus(), of(entry(4, "0", "7")), "gpu*4=6 !device_selection"},
		{"so many", gpus(), renamed(of(counted), ""), "gpu*1=1 gpu.shared*3=6"},
		{"more than there are", gpus(), of(tooMany), "gpu*3=9 !device_selection"},
		{"nothing selected", gpus(), of(none), "gpu*1=3 !device_selection"},
		{"a profile that other nodes have", gpus(), of(SharedResource{Name: "mig-1c.3g.20gb.me.all", All: true, Replicas: 2}), "gpu*1=3"},
		{"GPUs that other nodes have whole", new(rack).gpus(1).cut("1g.10gb"), of(all), "mig-1g.10gb*1=1"},
		{"a name that other nodes have by a rule", gpus(), named(of(SharedResource{Name: "v100", All: true, Replicas: 2})), "gpu*1=3"},
		{"a name that no node has", gpus(), of(SharedResource{Name: "gpus", All: true, Replicas: 2}), "gpu*1=3 !device_selection"},
		{"the name of replicas", gpus(), of(SharedResource{Name: "mig-1g.10gb.shared", All: true, Replicas: 2}), "gpu*1=3 !device_selection"},
		{"what an entry before has taken", gpus(), of(all, all), "gpu*4=12 !device_selection"},
		{"a name that is too long when shared", gpus(), renamed(of(all), long), "!resource_name"},
		{"a name that is none", gpus(), of(SharedResource{Name: "a/b/c", All: true, Replicas: 2}), "gpu*1=3 !resource_name"},
		{"unlike replicas by two entries", gpus(), of(entry(4, "0"), entry(2, "1")), "gpu*4=7"},
		{"a device in two entries is the first's", gpus(), of(entry(4, "0"), entry(2, "0")), "gpu*4=6 !device_selection"},
		{"the rest", gpus(), of(entry(4, "0"), SharedResource{Name: "gpu", All: true, Replicas: 2}), "gpu*4=8"},
		{"a MIG device by index", new(rack).gpus(1).cut("1g.10gb", "1g.10gb"), renamed(of(SharedResource{Name: "mig-1g.10gb", Devices: []string{"0:1"}, Replicas: 2}), ""), "mig-1g.10gb*1=1 mig-1g.10gb.shared*2=2"},
		{"a kind that is none", gpus(), Settings{Sharing: "luck", SharedResources: []SharedResource{all}}, "gpu*1=3 !settings"},
	} {
		if got := summary(NewPlan(c.rack.Inventory, c.settings)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestMPSSharesWhatItCan(t *testing.T) {
	for _, c := range []struct {
		capability string
		replicas   int
		want       string
	}{
		{"9.0", 48, "gpu*48=48"},
		{"9.0", 49, "!mps"},
		{"7.0", 48, "gpu*48=48"},
		{"10.3", 48, "gpu*48=48"},
		{"6.1", 16, "gpu*16=16"},
		{"6.1", 17, "!mps"},
		{"", 48, "gpu*48=48"},
		{"", 49, "!mps"},
	} {
		r := new(rack).gpus(1)
		r.Devices[0].ComputeCapability = c.capability
		if got := summary(NewPlan(r.Inventory, shareAll(Settings{}, SharingMPS, "gpu", c.replicas))); got != c.want {
			t.Errorf("capability %q, %d replicas: %s, want %s", c.capability, c.replicas, got, c.want)
		}
	}
	twice := Settings{Sharing: SharingMPS, SharedResources: []SharedResource{{Name: "gpu", Devices: []string{"0", string(card(0))}, Replicas: 99}}}
	if got := summary(NewPlan(new(rack).gpus(1).Inventory, twice)); got != "!mps" {
		t.Errorf("a device that is named twice: %s", got)
	}
	cut := new(rack).gpus(1).cut("1g.10gb", "1g.10gb")
	plan, problems := NewPlan(cut.Inventory, shareAll(Settings{MIGStrategy: MIGMixed}, SharingMPS, "mig-1g.10gb", 2))
	if got := summary(plan, problems); got != "!mps !mps" {
		t.Errorf("MIG devices shared by MPS: %s", got)
	}
	if !strings.Contains(problems[0].Error(), string(part(0, 0))) {
		t.Errorf("%q does not name the MIG device", problems[0])
	}
}

func TestAListThatTheKubeletCannotTakeIsNotMade(t *testing.T) {
	settings := shareAll(Settings{RenameByDefault: true}, SharingTimeSlicing, "gpu", 8192)
	plan, problems := NewPlan(new(rack).gpus(16).Inventory, settings)
	if got := summary(plan, problems); got != "!list_size" {
		t.Fatalf("plan %s", got)
	}
	if text := problems[0].Error(); !strings.Contains(text, "131072 seats") || !strings.Contains(text, "bytes") {
		t.Errorf("%q does not say how long the list is", text)
	}
}

// Replicas that nobody can count cost neither memory nor time, and no card is handed out whole in their place.
func TestAHugeNumberOfReplicasCostsNothing(t *testing.T) {
	for _, replicas := range []int{MostReplicas + 1, 20_000_000, 1 << 62} {
		for _, sharing := range []Sharing{SharingTimeSlicing, SharingMPS} {
			var plan Plan
			var problems []error
			allocated := testing.AllocsPerRun(1, func() {
				plan, problems = NewPlan(new(rack).gpus(16).Inventory, shareAll(Settings{}, sharing, "gpu", replicas))
			})
			if len(plan.Resources) > 0 || len(problems) == 0 || allocated > 10_000 {
				t.Errorf("%d replicas by %s: %s, %v allocations", replicas, sharing, summary(plan, problems), allocated)
			}
			for _, err := range problems {
				if problem, ok := errors.AsType[*Problem](err); !ok || !problem.Unshares {
					t.Errorf("%d replicas by %s: a problem that does not say that it unshares: %v", replicas, sharing, err)
				}
			}
		}
	}
}

// The size that decides is known before the list is made, and is the list's.
func TestTheSizeOfAListIsKnownBeforeItIsMade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		device := gpu.UUID(strings.Repeat("x", rapid.IntRange(1, 200).Draw(t, "id")))
		replicas := rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 20_000)).Draw(t, "replicas")
		if got, want := unitBytes(device, replicas), ListBytes(Resource{Seats: seatsOf(device, replicas)}); got != want {
			t.Fatalf("%d replicas: %d bytes, in fact %d", replicas, got, want)
		}
	})
}

func TestTheSizeOfAListIsWhatTheKubeletGets(t *testing.T) {
	var lists []Resource
	for _, replicas := range []int{1, 3, 1000} {
		plan, _ := NewPlan(new(rack).gpus(3).Inventory, shareAll(Settings{}, SharingTimeSlicing, "gpu", replicas))
		lists = append(lists, plan.Resources...)
	}
	for n := range 200 { // also where a length gets another byte
		lists = append(lists, Resource{Seats: []Seat{{ID: strings.Repeat("x", n+1)}}})
	}
	for _, list := range lists {
		answer := &pluginapi.ListAndWatchResponse{}
		for _, seat := range list.Seats {
			answer.Devices = append(answer.Devices, &pluginapi.Device{
				ID: seat.ID, Health: "Unhealthy", Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1<<31 - 1}}},
			})
		}
		if got, want := ListBytes(list), proto.Size(answer); got != want {
			t.Errorf("%d seats, the first %s: %d bytes, and in fact %d", len(list.Seats), list.Seats[0].ID, got, want)
		}
	}
}

func TestARequiredIMEXChannelThatIsMissingIsAProblem(t *testing.T) {
	r := new(rack).gpus(1)
	settings := Settings{IMEXChannels: []int{0}, IMEXRequired: true}
	if got := summary(NewPlan(r.Inventory, settings)); got != "gpu*1=1 !imex" {
		t.Errorf("without the channel: %s", got)
	}
	r.IMEXChannels = []int{0}
	if got := summary(NewPlan(r.Inventory, settings)); got != "gpu*1=1" {
		t.Errorf("with the channel: %s", got)
	}
}

// anyRack is an inventory with whole GPUs, cut ones and hollow ones.
func anyRack(t *rapid.T) *rack {
	r := new(rack)
	profiles := rapid.SampledFrom([]string{"1g.10gb", "1g.10gb+me", "3g.40gb", ""})
	for range rapid.IntRange(0, 6).Draw(t, "gpus") {
		r.gpus(1)
		if rapid.Bool().Draw(t, "MIG mode") {
			r.cut(rapid.SliceOfN(profiles, 0, 3).Draw(t, "profiles")...)
		}
	}
	return r
}

func anySettings(t *rapid.T) Settings {
	s := Settings{
		MIGStrategy:     rapid.SampledFrom([]MIGStrategy{MIGNone, MIGSingle, MIGMixed}).Draw(t, "strategy"),
		Sharing:         rapid.SampledFrom([]Sharing{SharingNone, SharingTimeSlicing, SharingMPS}).Draw(t, "sharing"),
		RenameByDefault: rapid.Bool().Draw(t, "renamed"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "entries") {
		e := SharedResource{
			Name:     rapid.SampledFrom([]string{"gpu", "mig-1g.10gb", "nvidia.com/mig-3g.40gb"}).Draw(t, "name"),
			Rename:   rapid.SampledFrom([]string{"", "", "gpu", "other"}).Draw(t, "rename"),
			All:      rapid.Bool().Draw(t, "all"),
			Replicas: rapid.IntRange(0, 5).Draw(t, "replicas"),
		}
		e.Devices = rapid.SliceOfN(rapid.SampledFrom([]string{"0", "1", "0:0", "1:1", string(card(2))}), 0, 3).Draw(t, "devices")
		e.Count = rapid.IntRange(0, 3).Draw(t, "count")
		s.SharedResources = append(s.SharedResources, e)
	}
	return s
}

func TestEveryDeviceHasAllItsSeatsInOneResource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, s := anyRack(t), anySettings(t)
		plan, problems := NewPlan(r.Inventory, s)
		ids, home, perDevice := map[string]bool{}, map[gpu.UUID]string{}, map[gpu.UUID]int{}
		for _, resource := range plan.Resources {
			if len(resource.Seats) == 0 {
				t.Fatalf("%s has no seats", resource.Name)
			}
			for _, seat := range resource.Seats {
				if ids[seat.ID] {
					t.Fatalf("id %s twice", seat.ID)
				}
				ids[seat.ID] = true
				if at, ok := home[seat.Device]; ok && at != resource.Name {
					t.Fatalf("%s is in %s and in %s", seat.Device, at, resource.Name)
				}
				home[seat.Device] = resource.Name
				perDevice[seat.Device]++
				if device, replica, _ := ParseID(seat.ID); device != seat.Device || replica != seat.Replica {
					t.Fatalf("id %s is of %s, %d", seat.ID, seat.Device, seat.Replica)
				}
			}
		}
		if !slices.IsSortedFunc(plan.Resources, func(a, b Resource) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatal("resources are not ordered")
		}
		for _, d := range r.Devices {
			used := s.MIGStrategy != MIGNone && d.IsMIG() || s.MIGStrategy == MIGNone && !d.IsMIG() || !d.IsMIG() && !d.MIGEnabled
			if used && perDevice[d.UUID] == 0 && len(problems) == 0 {
				t.Fatalf("%s is not handed out, and nobody says why", d.UUID)
			}
		}
		again, _ := NewPlan(r.Inventory, s)
		if diff := cmp.Diff(plan, again); diff != "" {
			t.Fatalf("the same twice:\n%s", diff)
		}
	})
}

func BenchmarkNewPlan(b *testing.B) {
	for name, replicas := range map[string]int{"16x48": 48, "16x1": 1} {
		b.Run(name, func(b *testing.B) {
			inv, s := new(rack).gpus(16).Inventory, shareAll(Settings{}, SharingTimeSlicing, "gpu", replicas)
			b.ReportAllocs()
			for b.Loop() {
				NewPlan(inv, s)
			}
		})
	}
}
