// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

type (
	pod       = podresources.PodResources
	container = podresources.ContainerResources
	devices   = podresources.ContainerDevices
	dynamic   = podresources.DynamicResource
	claimed   = podresources.ClaimResource
)

func merged(pods ...*pod) sharing.Listing { return mergedWith(nil, pods...) }

func mergedWith(r *record, pods ...*pod) sharing.Listing {
	m := merger{cfg: &Config{Resources: nvidia{}, DRADrivers: []string{DefaultDRADriver}}, record: r, seen: make(map[sharing.Allocation]struct{})}
	for _, p := range pods {
		m.pod(p)
	}
	return m.out
}

func one(namespace, name, c string, d ...*devices) *pod {
	return &pod{Namespace: namespace, Name: name, Containers: []*container{{Name: c, Devices: d}}}
}

func gpus(ids ...string) *devices {
	return &devices{ResourceName: "nvidia.com/gpu", DeviceIds: ids}
}

func TestUnusableEntriesCostThemselves(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	good := one("n", "good", "c", gpus("GPU-good"))
	for name, c := range map[string]struct {
		bad  *pod
		want map[string]int
	}{
		"nil pod":              {nil, map[string]int{SkippedNil: 1}},
		"nil container":        {&pod{Namespace: "n", Name: "p", Containers: []*container{nil}}, map[string]int{SkippedNil: 1}},
		"nil devices":          {one("n", "p", "c", nil), map[string]int{SkippedNil: 1}},
		"no namespace":         {one("", "p", "c", gpus("GPU-a")), map[string]int{SkippedEmptyName: 1}},
		"no pod":               {one("n", "", "c", gpus("GPU-a")), map[string]int{SkippedEmptyName: 1}},
		"no container":         {one("n", "p", "", gpus("GPU-a")), map[string]int{SkippedEmptyName: 1}},
		"no resource":          {one("n", "p", "c", &devices{DeviceIds: []string{"a"}}), map[string]int{SkippedEmptyName: 1}},
		"no ids":               {one("n", "p", "c", gpus()), nil},
		"empty ids":            {one("n", "p", "c", gpus("", "")), map[string]int{SkippedEmptyID: 2}},
		"other resource":       {one("n", "p", "c", &devices{ResourceName: "example.com/nic", DeviceIds: []string{"", "eth0"}}), nil},
		"invalid UTF-8 in pod": {one("n", "p\xff", "c", gpus("GPU-a")), map[string]int{SkippedInvalidUTF8: 1}},
		"invalid UTF-8 in id":  {one("n", "p", "c", gpus("GPU-\xc3\x28")), map[string]int{SkippedInvalidUTF8: 1}},
		"long namespace":       {one(long, "p", "c", gpus("GPU-a")), map[string]int{SkippedTooLong: 1}},
		"long id":              {one("n", "p", "c", gpus(long)), map[string]int{SkippedTooLong: 1}},
		"claims": {&pod{Namespace: "n", Name: "p", Containers: []*container{{Name: "c", DynamicResources: []*dynamic{
			nil,
			{ClaimName: "c", ClaimNamespace: "n", ClaimResources: []*claimed{
				nil,
				{DriverName: DefaultDRADriver, PoolName: "node"},
				{DriverName: DefaultDRADriver, DeviceName: "gpu-0"},
				{DriverName: "net.example.com"},
			}},
			{ClaimName: "c", ClaimResources: []*claimed{{DriverName: DefaultDRADriver, PoolName: "node", DeviceName: "gpu-0"}}},
		}}}}, map[string]int{SkippedNil: 2, SkippedEmptyID: 2, SkippedEmptyName: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got := merged(c.bad, good)
			if diff := cmp.Diff(c.want, got.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
			want := []sharing.Allocation{held("n/good/c", "", "nvidia.com/gpu", "GPU-good")}
			if diff := cmp.Diff(want, got.Allocations); diff != "" {
				t.Errorf("allocations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLongestUsableText(t *testing.T) {
	id := strings.Repeat("x", maxText)
	if got := merged(one("n", "p", "c", gpus(id))); len(got.Allocations) != 1 || got.Skipped != nil {
		t.Errorf("%d bytes were skipped: %v", len(id), got.Skipped)
	}
}

func TestClaimBecomesAllocation(t *testing.T) {
	gpu := &claimed{DriverName: DefaultDRADriver, PoolName: "node-a", DeviceName: "gpu-0"}
	shared := func(id string) *claimed {
		return &claimed{DriverName: DefaultDRADriver, PoolName: "node-a", DeviceName: "gpu-1", ShareId: &id}
	}
	c := &container{Name: "c", DynamicResources: []*dynamic{
		{ClaimNamespace: "n", ClaimName: "one", ClaimResources: []*claimed{gpu, gpu}},
		{ClaimNamespace: "n", ClaimName: "two", ClaimResources: []*claimed{gpu, shared("s1"), shared("s2"), shared("")}},
	}}
	got := merged(&pod{Namespace: "n", Name: "p", Containers: []*container{c}})
	first := held("n/p/c", "", DefaultDRADriver, "node-a/gpu-0")
	first.Claim = "n/one"
	second := first
	second.Claim = "n/two"
	share1, share2 := second, second
	share1.DeviceID, share2.DeviceID = "node-a/gpu-1/s1", "node-a/gpu-1/s2"
	if diff := cmp.Diff([]sharing.Allocation{first, second, share1, share2}, got.Allocations); diff != "" {
		t.Errorf("allocations (-want +got):\n%s", diff)
	}
}

// A kubelet states a container's devices in one entry or in one per id and NUMA
// node; it must not matter which.
func TestNUMANodesDoNotMultiply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`GPU-[0-9a-f]::[0-9]`), 1, 6, rapid.ID[string])
		whole := rapid.Custom(func(t *rapid.T) *pod {
			p := &pod{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), Name: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "pod")}
			for _, name := range []string{"main", "sidecar"} {
				p.Containers = append(p.Containers, &container{Name: name, Devices: []*devices{
					{ResourceName: rapid.SampledFrom([]string{"nvidia.com/gpu", "nvidia.com/gpu.shared", "other"}).Draw(t, "resource"), DeviceIds: ids.Draw(t, "ids")},
				}})
			}
			return p
		})
		pods := rapid.SliceOfN(whole, 0, 4).Draw(t, "pods")
		nodes := rapid.IntRange(1, 3).Draw(t, "nodes")
		var split []*pod
		for _, p := range pods {
			s := &pod{Namespace: p.Namespace, Name: p.Name}
			for _, c := range p.Containers {
				sc := &container{Name: c.Name}
				for range nodes {
					for _, id := range c.Devices[0].DeviceIds {
						sc.Devices = append(sc.Devices, &devices{ResourceName: c.Devices[0].ResourceName, DeviceIds: []string{id}})
					}
				}
				s.Containers = append(s.Containers, sc)
			}
			split = append(split, s)
		}
		if diff := cmp.Diff(merged(pods...), merged(split...)); diff != "" {
			t.Fatalf("whole entries and entries per NUMA node differ (-whole +split):\n%s", diff)
		}
	})
}

// The pods of a node come in any order; the order changes nothing but the order.
func TestOrderOfPodsDoesNotMatter(t *testing.T) {
	var list podresources.ListPodResourcesResponse
	capture(t, "list_dra.json", &list)
	byID := func(a, b sharing.Allocation) int {
		return strings.Compare(a.Holder.Pod+a.DeviceID, b.Holder.Pod+b.DeviceID)
	}
	want := merged(list.PodResources...)
	slices.SortFunc(want.Allocations, byID)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		rng.Shuffle(len(list.PodResources), func(i, j int) {
			list.PodResources[i], list.PodResources[j] = list.PodResources[j], list.PodResources[i]
		})
		got := merged(list.PodResources...)
		slices.SortFunc(got.Allocations, byID)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("listing (-want +got):\n%s", diff)
		}
	}
}

func FuzzMerge(f *testing.F) {
	for _, name := range []string{"list.json", "list_dra.json"} {
		var list podresources.ListPodResourcesResponse
		capture(f, name, &list)
		data, err := proto.Marshal(&list)
		must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var list podresources.ListPodResourcesResponse
		if proto.Unmarshal(data, &list) != nil {
			t.Skip()
		}
		got := merged(list.PodResources...)
		seen := make(map[sharing.Allocation]bool)
		for _, a := range got.Allocations {
			if seen[a] {
				t.Errorf("twice: %+v", a)
			}
			seen[a] = true
			if a.Holder.Namespace == "" || a.Holder.Pod == "" || a.Holder.Container == "" || a.Resource == "" || a.DeviceID == "" {
				t.Errorf("incomplete: %+v", a)
			}
			if a.Claim == "" && !(nvidia{}).Match(a.Resource) {
				t.Errorf("not asked for: %+v", a)
			}
		}
		if again := merged(append(list.PodResources, list.PodResources...)...); len(again.Allocations) != len(got.Allocations) {
			t.Errorf("said twice: %d allocations, once: %d", len(again.Allocations), len(got.Allocations))
		}
	})
}
