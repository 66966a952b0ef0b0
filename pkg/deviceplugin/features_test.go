// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// of are those labels of a resource that speak of counts and sharing.
func of(labels map[string]string, resource string) map[string]string {
	out := map[string]string{}
	for _, word := range []string{"product", "count", "replicas", "sharing-strategy"} {
		if v, ok := labels[resource+"."+word]; ok {
			out[word] = v
		}
	}
	return out
}

func TestLabelsSayWhatIsHandedOut(t *testing.T) {
	single := Settings{MIGStrategy: MIGSingle}
	mixed := Settings{MIGStrategy: MIGMixed}
	h100, gpuLabels := "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu"
	want := func(product, count, replicas, strategy string) map[string]string {
		out := map[string]string{"product": product, "count": count, "replicas": replicas, "sharing-strategy": strategy}
		maps.DeleteFunc(out, func(_, v string) bool { return v == "" })
		return out
	}
	for _, c := range []struct {
		name     string
		rack     *rack
		settings Settings
		resource string
		want     map[string]string
	}{
		{"whole GPUs", new(rack).gpus(8), Settings{}, gpuLabels, want(h100, "8", "1", "none")},
		{"fifty replicas of each", new(rack).gpus(8), shareAll(Settings{}, SharingTimeSlicing, "gpu", 50), gpuLabels, want(h100+"-SHARED", "8", "50", "time-slicing")},
		{"replicas by another name", new(rack).gpus(8), shareAll(Settings{RenameByDefault: true}, SharingTimeSlicing, "nvidia.com/gpu", 4), gpuLabels, want(h100, "8", "4", "time-slicing")},
		{"MPS", new(rack).gpus(2), shareAll(Settings{}, SharingMPS, "nvidia.com/gpu", 3), gpuLabels, want(h100+"-SHARED", "2", "3", "mps")},
		{"replicas of some GPUs only", new(rack).gpus(4), Settings{Sharing: SharingTimeSlicing, SharedResources: []SharedResource{{Name: "nvidia.com/gpu", Devices: []string{"0"}, Replicas: 4}}},
			gpuLabels, want(h100+"-SHARED", "4", "", "time-slicing")},
		{"replicas that cannot be handed out", new(rack).gpus(1), shareAll(Settings{}, SharingMPS, "nvidia.com/gpu", 100), gpuLabels, want(h100, "1", "0", "none")},
		{"one GPU is divided", new(rack).gpus(2).cut("1g.10gb", "1g.10gb"), mixed, gpuLabels, want(h100, "2", "1", "none")},
		{"all GPUs are divided", new(rack).gpus(1).cut("1g.10gb"), mixed, gpuLabels, want(h100, "1", "0", "none")},
		{"slices by their profile", new(rack).gpus(1).cut("1g.10gb", "1g.10gb", "2g.20gb"), mixed, "nvidia.com/mig-1g.10gb", want(h100+"-MIG-1g.10gb", "2", "1", "none")},
		{"shared slices", new(rack).gpus(1).cut("1g.10gb+me"), shareAll(mixed, SharingTimeSlicing, "nvidia.com/mig-1g.10gb.me", 7), "nvidia.com/mig-1g.10gb.me",
			want(h100+"-MIG-1g.10gb.me-SHARED", "1", "7", "time-slicing")},
		{"slices as GPUs", new(rack).gpus(1).cut(slots(7, "1g.10gb")...), single, gpuLabels, want(h100+"-MIG-1g.10gb", "7", "1", "none")},
		{"slices that are not all alike", new(rack).gpus(1).cut("1g.10gb", "1g.10gb", "2g.20gb"), single, gpuLabels, want(h100+"-MIG-1g.10gb", "2", "1", "none")},
		{"GPUs with a name of their own", new(rack).gpus(2), Settings{GPUNames: []NameRule{{"*H100*", "h100"}}}, gpuLabels, want(h100, "2", "1", "none")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, of(Features(c.rack.Inventory, c.settings, NodeFacts{}), c.resource)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGPUsThatDifferAreCountedAndNotDescribed(t *testing.T) {
	r := new(rack).gpus(3)
	r.Devices[2].Model, r.Devices[2].MemoryBytes, r.Devices[2].ComputeCapability = "NVIDIA L4", 24<<30, "8.9"
	got := Features(r.Inventory, Settings{}, NodeFacts{})
	if diff := cmp.Diff(map[string]string{
		"nvidia.com/gpu.count": "3", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mps.capable": "false",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhetherAGPUWorksChangesNoLabel(t *testing.T) {
	r := new(rack).gpus(2).cut("1g.10gb")
	before := Features(r.Inventory, Settings{MIGStrategy: MIGMixed}, NodeFacts{})
	r.Devices[0].Lost, r.Devices[0].MemoryBytes, r.Devices[0].ComputeCapability = true, 0, ""
	if diff := cmp.Diff(before, Features(r.Inventory, Settings{MIGStrategy: MIGMixed}, NodeFacts{})); diff != "" {
		t.Errorf("(-well +lost):\n%s", diff)
	}
}

func TestWhatIsNotKnownHasNoLabel(t *testing.T) {
	r := new(rack).gpus(1)
	r.Devices[0].Model, r.Devices[0].MemoryBytes, r.Devices[0].ComputeCapability = "", 0, "99.0"
	for name := range Features(r.Inventory, Settings{}, NodeFacts{DriverVersion: "odd"}) {
		for _, word := range []string{"product", "memory", "family", "driver", "runtime", "machine", "mode", "capable", "timestamp", "engines", "clique"} {
			if strings.Contains(name, word) && name != "nvidia.com/mps.capable" {
				t.Errorf("there is a label %s", name)
			}
		}
	}
	if got := Features(Inventory{}, Settings{MIGStrategy: MIGMixed}, NodeFacts{Machine: "m"}); len(got) != 0 {
		t.Errorf("a node without GPUs has %v", got)
	}
}

func TestMIGIsToldApartFromWhatIsNotKnown(t *testing.T) {
	r := new(rack).gpus(1)
	for _, c := range []struct {
		known    bool
		profiles int
		want     string
	}{{false, 0, ""}, {true, 0, "false"}, {false, 1, "true"}} {
		r.Devices[0].MIGProfiles = make([]gpu.MIGProfile, c.profiles)
		if got := Features(r.Inventory, Settings{}, NodeFacts{MIGKnown: c.known})[labelMIGCapable]; got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestNodeFactsHaveTheWordsOfFeatureDiscovery(t *testing.T) {
	r := new(rack).gpus(2)
	r.Devices[0].PCIClass, r.Devices[1].PCIClass = 0x030200, 0x030200
	got := Features(r.Inventory, Settings{}, NodeFacts{
		DriverVersion: "580.95.05", CUDAVersion: 12080, Machine: "  Super Micro / X13 (rev. 2)_",
	})
	want := map[string]string{
		"cuda.driver-version.full": "580.95.05", "cuda.driver-version.major": "580", "cuda.driver-version.minor": "95", "cuda.driver-version.revision": "05",
		"cuda.driver.major": "580", "cuda.driver.minor": "95", "cuda.driver.rev": "05",
		"cuda.runtime-version.full": "12.8", "cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "8", "cuda.runtime.major": "12", "cuda.runtime.minor": "8",
		"gpu.machine": "Super-Micro-X13-rev.-2", "gpu.mode": "compute", "gpu.compute.major": "9", "gpu.compute.minor": "0", "gpu.family": "hopper", "gpu.memory": "81920",
	}
	for name, value := range want {
		if got["nvidia.com/"+name] != value {
			t.Errorf("%s is %q, want %q", name, got["nvidia.com/"+name], value)
		}
	}
}

func TestALongModelLeavesRoomForWhatFollows(t *testing.T) {
	r := new(rack).gpus(1).cut("1g.10gb")
	r.Devices[0].Model = strings.Repeat("NVIDIA RTX PRO ", 8)
	got := Features(r.Inventory, shareAll(Settings{MIGStrategy: MIGMixed}, SharingTimeSlicing, "mig-1g.10gb", 2), NodeFacts{})["nvidia.com/mig-1g.10gb.product"]
	if !strings.HasPrefix(got, "NVIDIA-RTX-PRO-") || !strings.HasSuffix(got, "-MIG-1g.10gb-SHARED") || len(got) > 63 {
		t.Errorf("%q", got)
	}
}

// Whatever the driver calls its GPUs, Kubernetes takes each label, and counts and replicas are those of the plan.
func TestLabelsAreValidAndAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := new(rack)
		for range rapid.IntRange(0, 4).Draw(t, "gpus") {
			r.gpus(1)
			r.Devices[len(r.Devices)-1].Model = rapid.OneOf(rapid.Just("NVIDIA A100"), rapid.String()).Draw(t, "model")
			if rapid.Bool().Draw(t, "mig") {
				r.cut(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom([]string{"1g.10gb", "2g.20gb", "1g.10gb+me"}), rapid.String()), 0, 4).Draw(t, "profiles")...)
			}
		}
		s := Settings{MIGStrategy: rapid.SampledFrom([]MIGStrategy{MIGNone, MIGSingle, MIGMixed}).Draw(t, "strategy")}
		if rapid.Bool().Draw(t, "shared") {
			s = shareAll(s, SharingTimeSlicing, rapid.SampledFrom([]string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}).Draw(t, "what"), rapid.IntRange(1, 9).Draw(t, "replicas"))
		}
		labels := Features(r.Inventory, s, NodeFacts{Machine: rapid.String().Draw(t, "machine"), DriverVersion: rapid.String().Draw(t, "driver"), CUDAVersion: rapid.Int().Draw(t, "cuda")})
		for name, value := range labels {
			if bad := append(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)...); len(bad) > 0 || value == "" {
				t.Fatalf("%s=%q: %v", name, value, bad)
			}
		}
		if len(r.Devices) == 0 {
			return
		}
		count, _ := strconv.Atoi(labels["nvidia.com/gpu.count"])
		if s.MIGStrategy != MIGSingle && count != len(r.cards()) {
			t.Fatalf("count %d of %d GPUs", count, len(r.cards()))
		}
		replicas, known := labels["nvidia.com/gpu.replicas"]
		plan, _ := NewPlan(r.Inventory, s)
		each := map[gpu.UUID]int{}
		for _, resource := range plan.Resources {
			for _, seat := range resource.Seats {
				if s.MIGStrategy == MIGSingle || !seat.Device.IsMIG() {
					each[seat.Device]++
				}
			}
		}
		for device, n := range each {
			if known && replicas != strconv.Itoa(n) {
				t.Fatalf("%s has %d seats and the label says %s", device, n, replicas)
			}
		}
	})
}

func TestThePCIClassIsReadAndItsLackIsNoTrouble(t *testing.T) {
	h := newTree(t).pci("pci0000:16/0000:10:00.0", "0\n").pci("pci0000:16/0000:11:00.0", "0\n").pci("pci0000:16/0000:12:00.0", "0\n").
		file("/sys/devices/pci0000:16/0000:10:00.0/class", "0x030200\n").file("/sys/devices/pci0000:16/0000:11:00.0/class", "odd\n")
	r := new(rack).gpus(3)
	inv, errs := Survey(h.root, r.Devices, nil)
	got := []uint32{inv.Devices[0].PCIClass, inv.Devices[1].PCIClass, inv.Devices[2].PCIClass}
	if diff := cmp.Diff([]uint32{0x030200, 0, 0}, got); diff != "" || len(errs) > 0 {
		t.Errorf("%s%v", diff, errs)
	}
}
