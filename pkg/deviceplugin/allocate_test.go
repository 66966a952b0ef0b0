// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// answering is the allocator of the only resource, or of the named one.
func answering(t testing.TB, inv Inventory, s Settings, name ...string) *Allocator {
	t.Helper()
	plan, problems := NewPlan(inv, s)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := plan.Resources[0].Name
	if len(name) > 0 {
		want = defaultDomain + name[0]
	}
	r, ok := plan.Resource(want)
	if !ok {
		t.Fatalf("no resource %s among %v", want, plan.Resources)
	}
	return NewAllocator(inv, s, r, Names{})
}

func idsFrom(devices ...gpu.UUID) []string {
	ids := make([]string, len(devices))
	for i, d := range devices {
		ids[i] = string(d)
	}
	return ids
}

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-00000001-0000-0000-0000-000000000000"
	mig0 = "MIG-00000002-0000-0000-0000-000000000000"
	mig1 = "MIG-00000002-0001-0000-0000-000000000000"
	cdi0 = "k8s.device-plugin.nvidia.com/gpu=" + gpu0
	cdi1 = "k8s.device-plugin.nvidia.com/gpu=" + gpu1
)

func TestNoContainerStartsWithoutTheDeviceNodesItNeeds(t *testing.T) {
	cdi, envvar, mounts := []ListStrategy{ListCDICRI}, []ListStrategy{ListEnvvar}, []ListStrategy{ListVolumeMounts, ListCDIAnnotations}
	for _, c := range []struct {
		name     string
		settings Settings
		physical bool
		refused  bool
	}{
		{"CDI", Settings{ListStrategies: cdi}, true, true},
		{"one of several ways", Settings{ListStrategies: mounts}, true, true},
		{"device specs", Settings{ListStrategies: envvar, PassDeviceSpecs: true}, true, true},
		{"the NVIDIA runtime brings them", Settings{ListStrategies: envvar}, true, false},
		{"no settings", Settings{}, true, false},
		{"a pretend GPU", Settings{ListStrategies: cdi}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inv := new(rack).gpus(3).Inventory
			inv.Physical = c.physical
			inv.Devices[0].Nodes, inv.Devices[1].Nodes = []string{"/dev/nvidia0"}, nil
			inv.Devices[2].Nodes, inv.Devices[2].Lost = nil, true
			plan, problems := NewPlan(inv, c.settings)
			var bare []gpu.UUID
			for _, p := range problems {
				if problem, ok := errors.AsType[*Problem](p); ok && problem.Kind == ProblemNodes {
					bare = append(bare, problem.Device)
				}
			}
			if (len(bare) == 1 && bare[0] == gpu1) != c.refused || len(plan.Resources[0].Seats) != 3 {
				t.Errorf("problems %v, %d seats", problems, len(plan.Resources[0].Seats))
			}
			a := NewAllocator(inv, c.settings, plan.Resources[0], Names{})
			if _, err := a.Allocate([]string{gpu0}, nil); err != nil {
				t.Errorf("a GPU with its node: %v", err)
			}
			_, err := a.Allocate([]string{gpu1}, nil)
			refusal, _ := errors.AsType[*AllocateError](err)
			if (refusal != nil && refusal.Reason == ReasonNodes && strings.Contains(refusal.Text, "device node")) != c.refused || (err != nil) != c.refused {
				t.Errorf("a GPU without: %v", err)
			}
		})
	}
}

func TestAContainerIsToldItsDevicesInEachWay(t *testing.T) {
	inv := new(rack).gpus(3).cut("1g.10gb", "1g.10gb").Inventory
	inv.ControlNodes, inv.IMEXChannels = []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}, []int{0}
	null := func(name string) Mount {
		return Mount{Host: "/dev/null", Container: "/var/run/nvidia-container-devices/" + name}
	}
	rw := func(root string, paths ...string) []Node {
		var nodes []Node
		for _, p := range paths {
			nodes = append(nodes, Node{Host: root + p, Container: p, Permissions: "rw"})
		}
		return nodes
	}
	gpus, parts := []string{gpu1, gpu0}, []string{mig1, mig0}
	env := func(devices string) map[string]string { return map[string]string{"NVIDIA_VISIBLE_DEVICES": devices} }
	for _, c := range []struct {
		name     string
		settings Settings
		ids      []string
		want     Response
	}{
		{"envvar unless told otherwise", Settings{}, gpus, Response{Env: env(gpu0 + "," + gpu1)}},
		{"envvar by index", Settings{IDStrategy: IDIndex}, gpus, Response{Env: env("0,1")}},
		{"envvar of MIG devices by index", Settings{IDStrategy: IDIndex}, parts, Response{Env: env("2:0,2:1")}},
		{"volume mounts", Settings{ListStrategies: []ListStrategy{ListVolumeMounts}}, gpus, Response{
			Env: env("/var/run/nvidia-container-devices"), Mounts: []Mount{null(gpu0), null(gpu1)},
		}},
		{"volume mounts win the variable", Settings{ListStrategies: []ListStrategy{ListVolumeMounts, ListEnvvar}}, parts, Response{
			Env: env("/var/run/nvidia-container-devices"), Mounts: []Mount{null(mig0), null(mig1)},
		}},
		{"CDI by the CRI alone", Settings{ListStrategies: []ListStrategy{ListCDICRI}, PassDeviceSpecs: true, GDS: true, MOFED: true, GDRCopy: true}, gpus, Response{
			Env: map[string]string{"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled", "NVIDIA_GDRCOPY": "enabled"},
			CDIDevices: []string{
				cdi0, cdi1, "k8s.device-plugin.nvidia.com/gdrcopy=all", "k8s.device-plugin.nvidia.com/gds=all", "k8s.device-plugin.nvidia.com/mofed=all",
			},
		}},
		{"CDI by index", Settings{ListStrategies: []ListStrategy{ListCDICRI}, IDStrategy: IDIndex}, parts, Response{
			CDIDevices: []string{"k8s.device-plugin.nvidia.com/gpu=2:0", "k8s.device-plugin.nvidia.com/gpu=2:1"},
		}},
		{"CDI and envvar", Settings{ListStrategies: []ListStrategy{ListEnvvar, ListCDICRI}}, []string{gpu0}, Response{Env: env(gpu0), CDIDevices: []string{cdi0}}},
		{"device nodes", Settings{PassDeviceSpecs: true, DevRoot: "/run/nvidia/driver"}, gpus, Response{
			Env: env(gpu0 + "," + gpu1), Nodes: rw("/run/nvidia/driver", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"),
		}},
		{"device nodes of MIG devices, the card's once", Settings{PassDeviceSpecs: true}, parts, Response{
			Env:   env(mig0 + "," + mig1),
			Nodes: rw("", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21"),
		}},
		{"what all containers get", Settings{GDS: true, MOFED: true, GDRCopy: true}, []string{gpu0}, Response{Env: map[string]string{
			"NVIDIA_VISIBLE_DEVICES": gpu0, "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled", "NVIDIA_GDRCOPY": "enabled",
		}}},
		{"an IMEX channel", Settings{IMEXChannels: []int{0}, PassDeviceSpecs: true}, []string{gpu0}, Response{
			Env:   map[string]string{"NVIDIA_VISIBLE_DEVICES": gpu0, "NVIDIA_IMEX_CHANNELS": "0"},
			Nodes: rw("", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia-caps-imex-channels/channel0"),
		}},
		{"an IMEX channel by mount and CDI", Settings{IMEXChannels: []int{0}, ListStrategies: []ListStrategy{ListVolumeMounts, ListCDICRI}}, []string{gpu0}, Response{
			Env: env("/var/run/nvidia-container-devices"), Mounts: []Mount{null(gpu0), null("imex/0")},
			CDIDevices: []string{cdi0, "k8s.device-plugin.nvidia.com/imex-channel=0"},
		}},
		{"an IMEX channel that is not there", Settings{IMEXChannels: []int{7}}, []string{gpu0}, Response{Env: env(gpu0)}},
	} {
		c.settings.MIGStrategy = MIGMixed
		resource := "gpu"
		if strings.HasPrefix(c.ids[0], "MIG") {
			resource = "mig-1g.10gb"
		}
		got, err := answering(t, inv, c.settings, resource).Allocate(c.ids, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestAnnotationsNameTheDevicesAndTellResourcesApart(t *testing.T) {
	inv := new(rack).gpus(3).cut("1g.10gb").Inventory
	settings := Settings{MIGStrategy: MIGMixed, ListStrategies: []ListStrategy{ListCDIAnnotations}}
	annotations := func(s Settings, resource string, ids ...string) (key, value string) {
		got, err := answering(t, inv, s, resource).Allocate(ids, nil)
		if err != nil || len(got.Annotations) != 1 || len(got.Env)+len(got.CDIDevices) != 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		for key, value = range got.Annotations {
		}
		return key, value
	}
	key, value := annotations(settings, "gpu", gpu1, gpu0)
	if !strings.HasPrefix(key, "cdi.k8s.io/nvidia-device-plugin_") || len(key) != len("cdi.k8s.io/nvidia-device-plugin_")+36 || value != cdi0+","+cdi1 {
		t.Errorf("annotation %s: %s", key, value)
	}
	if again, _ := annotations(settings, "gpu", gpu0, gpu1); again != key {
		t.Errorf("the same request again: %s", again)
	}
	if other, _ := annotations(settings, "mig-1g.10gb", mig0); other == key {
		t.Error("another resource in the same container has the same annotation")
	}
	settings.CDIAnnotationPrefix = "example.com/"
	if key, _ := annotations(settings, "gpu", gpu0); !strings.HasPrefix(key, "example.com/nvidia-device-plugin_") {
		t.Errorf("with a prefix of its own: %s", key)
	}
}

func TestReplicasOfOneGPUAreOneGPUToTheContainer(t *testing.T) {
	a := answering(t, new(rack).gpus(2).Inventory, shareAll(Settings{PassDeviceSpecs: true}, SharingTimeSlicing, "gpu", 4))
	got, err := a.Allocate([]string{gpu1 + "::3", gpu0 + "::1", gpu1 + "::0"}, nil)
	if err != nil || got.Env["NVIDIA_VISIBLE_DEVICES"] != gpu0+","+gpu1 || len(got.Nodes) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMPSHoldsAContainerToItsShares(t *testing.T) {
	type want struct{ percent, memory string }
	for _, c := range []struct {
		name  string
		mixed bool
		ids   []string
		want  want
	}{
		{"one of four", false, []string{gpu0 + "::2"}, want{"25", "0=20480M"}},
		{"two of four", false, []string{gpu0 + "::2", gpu0 + "::0"}, want{"50", "0=40960M"}},
		{"all of four", false, []string{gpu0 + "::0", gpu0 + "::1", gpu0 + "::2", gpu0 + "::3"}, want{"100", "0=81920M"}},
		{"of two GPUs, the smaller share", false, []string{gpu1 + "::0", gpu0 + "::0", gpu1 + "::1"}, want{"25", "0=20480M,1=40960M"}},
		{"of a GPU whose memory nobody knows", true, []string{gpu0 + "::0", gpu1 + "::0"}, want{"25", "0=20480M"}},
	} {
		inv := new(rack).gpus(2).Inventory
		if c.mixed {
			inv.Devices[1].MemoryBytes = 0
		}
		a := answering(t, inv, shareAll(Settings{MPSRoot: "/run/nvidia/mps", RenameByDefault: true}, SharingMPS, "gpu", 4))
		got, err := a.Allocate(c.ids, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if is := (want{got.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], got.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]}); is != c.want {
			t.Errorf("%s: %v, want %v", c.name, is, c.want)
		}
		if got.Env["CUDA_MPS_PIPE_DIRECTORY"] != "/mps/nvidia.com/gpu.shared/pipe" {
			t.Errorf("%s: pipe directory %s", c.name, got.Env["CUDA_MPS_PIPE_DIRECTORY"])
		}
		mounts := []Mount{
			{Host: "/run/nvidia/mps/nvidia.com/gpu.shared/pipe", Container: "/mps/nvidia.com/gpu.shared/pipe"},
			{Host: "/run/nvidia/mps/shm", Container: "/dev/shm"},
		}
		if diff := cmp.Diff(mounts, got.Mounts); diff != "" {
			t.Errorf("%s: mounts (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestAGPUThatIsNotSharedKnowsNothingOfMPS(t *testing.T) {
	settings := Settings{Sharing: SharingMPS, MPSRoot: "/mps", SharedResources: []SharedResource{{Name: "gpu", Devices: []string{"0"}, Replicas: 2}}}
	a := answering(t, new(rack).gpus(2).Inventory, settings)
	got, err := a.Allocate([]string{gpu1}, nil)
	if diff := cmp.Diff(Response{Env: map[string]string{"NVIDIA_VISIBLE_DEVICES": gpu1}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestARequestIsRefusedWithTheReasonAUserNeeds(t *testing.T) {
	shared := func(how Sharing, fail bool) *Allocator {
		return answering(t, new(rack).gpus(2).Inventory, shareAll(Settings{FailRequestsGreaterThanOne: fail, MPSRoot: "/mps"}, how, "gpu", 4))
	}
	whole := answering(t, new(rack).gpus(3).Inventory, Settings{FailRequestsGreaterThanOne: true})
	imex := new(rack).gpus(1).Inventory
	plan, _ := NewPlan(imex, Settings{})
	unconnected := NewAllocator(imex, Settings{IMEXChannels: []int{0}, IMEXRequired: true}, plan.Resources[0], Names{})
	two := []string{gpu0 + "::0", gpu0 + "::1"}
	sick := func(uuid gpu.UUID) health.Status {
		if uuid == gpu1 {
			return health.Unhealthy
		}
		return health.Unknown
	}
	for _, c := range []struct {
		name   string
		a      *Allocator
		ids    []string
		reason string
		says   []string
	}{
		{"two replicas where one is allowed", shared(SharingTimeSlicing, true), two, ReasonTooManyReplicas, []string{"asks for 2", "no", "sharing.timeSlicing.failRequestsGreaterThanOne: false"}},
		{"the same for MPS", shared(SharingMPS, true), two, ReasonTooManyReplicas, []string{"asks for 2", "sharing.mps.failRequestsGreaterThanOne: false"}},
		{"two replicas where they are allowed", shared(SharingTimeSlicing, false), two, "", nil},
		{"two whole GPUs", whole, idsFrom(card(0), card(2)), "", nil},
		{"an id of another node", whole, []string{"GPU-x"}, ReasonUnknownID, []string{"GPU-x"}},
		{"a replica of a GPU that has none", whole, []string{gpu0 + "::0"}, ReasonUnknownID, []string{gpu0 + "::0"}},
		{"an endless id", whole, []string{strings.Repeat("\xffx", 9999)}, ReasonUnknownID, nil},
		{"the same id twice", whole, []string{gpu0, gpu0}, ReasonDuplicateID, []string{gpu0}},
		{"nothing", whole, nil, ReasonNothing, nil},
		{"an Unhealthy one among others", whole, []string{gpu0, gpu1}, ReasonUnhealthy, []string{gpu1}},
		{"an Unhealthy replica", shared(SharingTimeSlicing, false), []string{gpu1 + "::2"}, ReasonUnhealthy, []string{gpu1 + "::2"}},
		{"a node without the IMEX channel it needs", unconnected, []string{gpu0}, ReasonIMEX, []string{"channel 0"}},
	} {
		_, err := c.a.Allocate(c.ids, sick)
		refused, ok := errors.AsType[*AllocateError](err)
		if (err != nil) != (c.reason != "") || ok && refused.Reason != c.reason {
			t.Errorf("%s: %v, want reason %q", c.name, err, c.reason)
			continue
		}
		for _, word := range c.says {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not say %q", c.name, err, word)
			}
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "nvidia.com/gpu: ") || len(err.Error()) > 500) {
			t.Errorf("%s: %q", c.name, err)
		}
	}
}

func TestAllocateLeavesWhatItAnswersFromAlone(t *testing.T) {
	inv := new(rack).gpus(2).Inventory
	inv.ControlNodes = slices.Grow([]string{"/dev/nvidiactl"}, 8)
	a := answering(t, inv, Settings{PassDeviceSpecs: true})
	first, _ := a.Allocate([]string{gpu0}, nil)
	want, _ := a.Allocate([]string{gpu1}, nil)
	first.Env["NVIDIA_VISIBLE_DEVICES"], first.Nodes[0].Host = "all", "/dev/sda"
	if behind := inv.ControlNodes[:2]; behind[1] != "" {
		t.Errorf("%s was written behind the inventory's control nodes", behind[1])
	}
	if got, _ := a.Allocate([]string{gpu1}, nil); !cmp.Equal(want, got) {
		t.Error(cmp.Diff(want, got))
	}
}
