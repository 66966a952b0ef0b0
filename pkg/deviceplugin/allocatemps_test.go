// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAnMPSDaemonGivesNoMoreThanOneShareWhereOneIsAllAContainerMayHave(t *testing.T) {
	for _, c := range []struct {
		name    string
		refuses bool
		percent int
		memory  uint64
	}{
		{"one replica at most", true, 25, 20480},
		{"any number of replicas", false, 100, 81920},
	} {
		inv := new(rack).gpus(2).Inventory
		settings := shareAll(Settings{RenameByDefault: true, FailRequestsGreaterThanOne: c.refuses}, SharingMPS, "gpu", 4)
		plan, _ := NewPlan(inv, settings)
		want := []MPSDaemon{{
			Resource: "nvidia.com/gpu.shared", ThreadPercent: c.percent,
			Devices: []MPSDevice{{card(0), c.memory}, {card(1), c.memory}},
		}}
		if diff := cmp.Diff(want, MPSDaemons(inv, settings, plan)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestADeviceThatIsHandedOutWholeHasNoMPSDaemon(t *testing.T) {
	inv := new(rack).gpus(3).Inventory
	inv.Devices[2].MemoryBytes = 0
	settings := Settings{Sharing: SharingMPS, FailRequestsGreaterThanOne: true, SharedResources: []SharedResource{
		{Name: "gpu", Devices: []string{"1"}, Replicas: 2}, {Name: "gpu", Devices: []string{"2"}, Replicas: 4},
	}}
	plan, _ := NewPlan(inv, settings)
	// The percentage is one for all GPUs of a daemon: the larger share must be possible.
	want := []MPSDaemon{{Resource: "nvidia.com/gpu", ThreadPercent: 50, Devices: []MPSDevice{{card(1), 40960}, {card(2), 0}}}}
	if diff := cmp.Diff(want, MPSDaemons(inv, settings, plan)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, sharing := range []Sharing{SharingTimeSlicing, SharingNone} {
		settings.Sharing = sharing
		plan, _ = NewPlan(inv, settings)
		if got := MPSDaemons(inv, settings, plan); len(got) != 0 {
			t.Errorf("%s: %+v", sharing, got)
		}
	}
}

// A client's limits are the lower ones of its daemon's and its environment's: whatever Allocate
// answers must be below what the daemon gives, or it would not be had.
func TestAContainerHasOfMPSWhatAllocateAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := new(rack).gpus(rapid.IntRange(1, 4).Draw(t, "gpus")).Inventory
		replicas := rapid.IntRange(2, 48).Draw(t, "replicas")
		refuses := rapid.Bool().Draw(t, "refuses")
		settings := shareAll(Settings{MPSRoot: "/m", FailRequestsGreaterThanOne: refuses}, SharingMPS, "gpu", replicas)
		plan, _ := NewPlan(inv, settings)
		daemon := MPSDaemons(inv, settings, plan)[0]
		most := 1
		if !refuses {
			most = replicas
		}
		var ids []string
		for i := range rapid.IntRange(1, most).Draw(t, "asked") {
			ids = append(ids, fmt.Sprintf("%s::%d", inv.Devices[0].UUID, i))
		}
		r, err := NewAllocator(inv, settings, plan.Resources[0], Names{}).Allocate(ids, nil)
		if err != nil {
			t.Fatal(err)
		}
		percent, _ := strconv.Atoi(r.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
		memory, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(r.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0="), "M"), 10, 64)
		if percent < 1 || percent > daemon.ThreadPercent || memory < 1 || memory > daemon.Devices[0].MemoryMiB {
			t.Fatalf("%d of %d replicas: %v, its daemon gives %+v", len(ids), replicas, r.Env, daemon)
		}
	})
}
