// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// short are the ids as a person tells them apart: "3", "1::2", "m1:0".
func short(ids []string) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		uuid, replica, shared := ParseID(id)
		var a, b int
		if n, _ := fmt.Sscanf(string(uuid), "MIG-%08d-%04d", &a, &b); n == 2 {
			words[i] = fmt.Sprintf("m%d:%d", a, b)
		} else if n, _ := fmt.Sscanf(string(uuid), "GPU-%08d", &a); n == 1 {
			words[i] = fmt.Sprint(a)
		} else {
			words[i] = id
		}
		if shared {
			words[i] += fmt.Sprintf("::%d", replica)
		}
	}
	return strings.Join(words, " ")
}

// long is the reverse for whole GPUs and their replicas.
func long(text string) []string {
	var ids []string
	for word := range strings.FieldsSeq(text) {
		number, replica, shared := strings.Cut(word, replicaMark)
		var n, m int
		id := ""
		if c, _ := fmt.Sscanf(number, "m%d:%d", &n, &m); c == 2 {
			id = string(part(n, m))
		} else {
			n, _ = strconv.Atoi(number)
			id = string(card(n))
		}
		if shared {
			id += replicaMark + replica
		}
		ids = append(ids, id)
	}
	return ids
}

// pairs links GPU 0 with 1, 2 with 3 and so on, and neighbours of pairs by fewer links.
func pairs(r *rack) *rack {
	for i := 0; i+1 < len(r.Devices); i += 2 {
		r.Links = append(r.Links, Link{A: card(i), B: card(i + 1), NVLinks: 4})
		if i > 0 {
			r.Links = append(r.Links, Link{A: card(i), B: card(i - 1), NVLinks: 1})
		}
	}
	return r
}

// switched gives GPUs two to a PCI switch, and four to a NUMA node.
func switched(r *rack) *rack {
	for i := range r.Devices {
		d := &r.Devices[i]
		d.NUMANode = i / 4
		d.PCIPath = fmt.Sprintf("pci0000:%02d/0000:%02d:01.0/0000:%02d:00.0/0000:%02d:00.0", i/4, i/2, i/2, 16+i)
	}
	return r
}

func TestWholeGPUsAreTakenNearToEachOther(t *testing.T) {
	const all = "0 1 2 3 4 5 6 7"
	avoid := func(numbers ...int) func(gpu.UUID) bool {
		return func(uuid gpu.UUID) bool {
			return slices.ContainsFunc(numbers, func(n int) bool { return card(n) == uuid })
		}
	}
	flat, linked, wired := new(rack).gpus(8), pairs(new(rack).gpus(8)), switched(new(rack).gpus(8))
	nowhere := new(rack).gpus(4)
	nowhere.Devices[2].NUMANode, nowhere.Devices[3].NUMANode = 0, 0
	both := switched(new(rack).gpus(8))
	both.Links = []Link{{A: card(0), B: card(7), NVLinks: 1}}
	for _, c := range []struct {
		name            string
		rack            *rack
		available, must string
		size            int
		avoid           func(gpu.UUID) bool
		want            string
	}{
		{"without topology by order", flat, all, "", 3, nil, "0 1 2"},
		{"a pair with most NVLinks", linked, "1 2 4 5 7", "", 2, nil, "4 5"},
		{"two pairs that are linked, and leave two others", linked, all, "", 4, nil, "0 1 2 3"},
		{"a lonely GPU rather than half a pair", linked, "0 1 3 6 7", "", 1, nil, "3"},
		{"the pair that leaves others together", linked, "1 2 3 4 5 6 7", "", 2, nil, "6 7"},
		{"what goes with the one that must be", linked, all, "5", 2, nil, "5 4"},
		{"below the same switch", wired, "1 3 4 6 7", "", 2, nil, "6 7"},
		{"on the same NUMA node", wired, "1 3 4", "", 2, nil, "1 3"},
		{"nowhere is no NUMA node", nowhere, "0 1 2 3", "", 2, nil, "2 3"},
		{"one NVLink is more than all PCI", both, all, "", 2, nil, "0 7"},
		{"not the avoided half", linked, all, "", 2, avoid(2, 3, 4), "0 1"},
		{"not the avoided, be it far", wired, "0 1 2 6", "", 2, avoid(1, 2), "0 6"},
		{"the avoided if the others do not suffice", linked, "0 2 3 5", "", 3, avoid(2, 3), "0 5 2"},
		{"the one that must be, be it avoided", linked, all, "2", 2, avoid(2, 3), "2 1"},
		{"all that there are", linked, "3 1", "", 5, nil, "1 3"},
		{"nothing", linked, all, "", 0, nil, ""},
		{"nothing of nothing", linked, "", "", 2, nil, ""},
		{"no more than must be", linked, all, "6 7", 2, nil, "6 7"},
		{"one that must be and is not there", linked, "1 2", "7", 2, nil, "1 2"},
	} {
		a := answering(t, c.rack.Inventory, Settings{})
		if got := short(a.Prefer(long(c.available), long(c.must), c.size, c.avoid, nil)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestOneLostGPUCostsTheOthersNothing(t *testing.T) {
	r := pairs(new(rack).gpus(4))
	r.Devices[2].Lost = true
	got := answering(t, r.Inventory, Settings{}).Prefer(long("0 1 3"), nil, 2, nil, nil)
	if short(got) != "0 1" {
		t.Errorf("preferred %s", short(got))
	}
}

func TestReplicasAreSpreadOrPacked(t *testing.T) {
	const full = "0::0 0::1 0::2 0::3 1::0 1::1 1::2 1::3"
	for _, c := range []struct {
		name            string
		policy          SharedPolicy
		available, must string
		size            int
		avoid           bool
		want            string
	}{
		{"distributed by default", "", "0::2 0::3 1::1 1::2 1::3", "", 1, false, "1::1"},
		{"distributed", Distributed, "0::2 0::3 1::1 1::2 1::3", "", 1, false, "1::1"},
		{"packed", Packed, "0::2 0::3 1::1 1::2 1::3", "", 1, false, "0::2"},
		{"two shares are of two GPUs", Distributed, full, "", 2, false, "0::0 1::0"},
		{"two shares are of two GPUs, be one fuller", Distributed, "0::3 1::0 1::1 1::2 1::3", "", 2, false, "1::0 0::3"},
		{"three", Distributed, full, "", 3, false, "0::0 1::0 0::1"},
		{"two packed are of one GPU", Packed, full, "", 2, false, "0::0 0::1"},
		{"packed goes on with the next", Packed, "0::3 1::1 1::2 1::3", "", 2, false, "0::3 1::1"},
		{"the one that must be counts as used", Distributed, full, "0::2", 2, false, "0::2 1::0"},
		{"the one that must be draws the rest", Packed, full, "1::2", 2, false, "1::2 1::0"},
		{"an avoided GPU comes last", Packed, "0::3 1::0 1::1 1::2 1::3", "", 1, true, "1::0"},
		{"an avoided GPU is better than none", Packed, "0::3 1::0", "", 2, true, "1::0 0::3"},
		{"size of all", Distributed, "1::3 0::1", "", 9, false, "0::1 1::3"},
	} {
		a := answering(t, new(rack).gpus(2).Inventory, shareAll(Settings{SharedPolicy: c.policy}, SharingTimeSlicing, "gpu", 4))
		avoid := func(uuid gpu.UUID) bool { return c.avoid && uuid == card(0) }
		if got := short(a.Prefer(long(c.available), long(c.must), c.size, avoid, nil)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestMIGDevicesAreSpreadOrPackedOverTheirCards(t *testing.T) {
	r := new(rack).gpus(1).cut(slots(3, "1g.10gb")...).gpus(1).cut(slots(3, "1g.10gb")...)
	sick := func(uuid gpu.UUID) health.Status {
		if uuid == part(0, 0) || uuid == part(0, 1) {
			return health.Unhealthy
		}
		return health.Healthy
	}
	for _, c := range []struct {
		name      string
		policy    SharedPolicy
		available string
		size      int
		status    func(gpu.UUID) health.Status
		want      string
	}{
		{"the emptier card", Distributed, "m0:2 m1:1 m1:2", 1, nil, "m1:1"},
		{"the fuller card", Packed, "m0:2 m1:1 m1:2", 1, nil, "m0:2"},
		{"two of two cards", Distributed, "m0:2 m1:1 m1:2", 2, nil, "m1:1 m0:2"},
		{"Unhealthy ones are not given away", Distributed, "m0:2 m1:1 m1:2", 1, sick, "m0:2"},
	} {
		a := answering(t, r.Inventory, Settings{MIGStrategy: MIGMixed, SharedPolicy: c.policy})
		if got := short(a.Prefer(long(c.available), nil, c.size, nil, c.status)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// scoreOf is how near a set is inside.
func scoreOf(t *topology, set []candidate) int {
	sum := 0
	for i, x := range set {
		for _, y := range set[:i] {
			sum += t.near(x.Device, y.Device)
		}
	}
	return sum
}

func anyLinks(t *rapid.T, r *rack) {
	for i := range r.Devices {
		r.Devices[i].NUMANode = rapid.IntRange(-1, 1).Draw(t, "NUMA node")
		r.Devices[i].PCIPath = rapid.SampledFrom([]string{"", "a/b/c/", "a/b/d/", "a/e/", "f/"}).Draw(t, "PCI") + string(card(i))
		for j := range i {
			if n := rapid.IntRange(0, 2).Draw(t, "NVLinks"); n > 0 {
				r.Links = append(r.Links, Link{A: card(i), B: card(j), NVLinks: n})
			}
		}
	}
}

func TestTheNearestSetIsFoundAmongAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := new(rack).gpus(rapid.IntRange(1, 7).Draw(t, "gpus"))
		anyLinks(t, r)
		plan, _ := NewPlan(r.Inventory, Settings{})
		a := NewAllocator(r.Inventory, Settings{}, plan.Resources[0], Names{})
		var from []candidate
		for _, seat := range plan.Resources[0].Seats {
			from = append(from, a.candidate(seat.ID))
		}
		need := rapid.IntRange(1, len(from)).Draw(t, "need")
		best := -1
		for mask := range 1 << len(from) {
			var set []candidate
			for i := range from {
				if mask>>i&1 == 1 {
					set = append(set, from[i])
				}
			}
			if len(set) == need {
				best = max(best, scoreOf(a.topology, set))
			}
		}
		if got := scoreOf(a.topology, a.topology.nearest(nil, from, need)); got != best {
			t.Fatalf("%d of %d: a set of nearness %d, and the nearest has %d", need, len(from), got, best)
		}
	})
}

func TestOfManyGPUsTheIslandIsStillFound(t *testing.T) {
	r := new(rack).gpus(24)
	for i := 15; i < 23; i++ {
		for j := 15; j < i; j++ {
			r.Links = append(r.Links, Link{A: card(i), B: card(j), NVLinks: 2})
		}
	}
	a := answering(t, r.Inventory, Settings{})
	var all []string
	for _, s := range a.Resource().Seats {
		all = append(all, s.ID)
	}
	if got := short(a.Prefer(all, nil, 8, nil, nil)); got != "15 16 17 18 19 20 21 22" {
		t.Errorf("preferred %s", got)
	}
}

func TestPreferKeepsItsLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, s := anyRack(t), anySettings(t)
		s.SharedPolicy = rapid.SampledFrom([]SharedPolicy{"", Distributed, Packed}).Draw(t, "policy")
		plan, _ := NewPlan(r.Inventory, s)
		if len(plan.Resources) == 0 {
			return
		}
		resource := rapid.SampledFrom(plan.Resources).Draw(t, "resource")
		a := NewAllocator(r.Inventory, s, resource, Names{})
		names := []string{"GPU-of-another-node"}
		for _, seat := range resource.Seats {
			names = append(names, seat.ID)
		}
		available := rapid.SliceOf(rapid.SampledFrom(names)).Draw(t, "available")
		must := rapid.SliceOfN(rapid.SampledFrom(names), 0, 3).Draw(t, "must")
		size := rapid.IntRange(-1, len(names)+2).Draw(t, "size")
		mask := rapid.Uint64().Draw(t, "avoided")
		avoid := func(uuid gpu.UUID) bool { return mask>>(len(uuid)+int(uuid[len(uuid)-30]))%64&1 == 1 }
		if len(available) > 0 && len(available[0]) < 30 {
			avoid = nil
		}
		got := a.Prefer(available, must, size, avoid, nil)
		distinct := slices.Compact(slices.Sorted(slices.Values(available)))
		if want := min(max(size, 0), len(distinct)); len(got) != want {
			t.Fatalf("%d ids, want %d", len(got), want)
		}
		if n := len(slices.Compact(slices.Sorted(slices.Values(got)))); n != len(got) {
			t.Fatalf("an id twice in %v", got)
		}
		for _, id := range got {
			if !slices.Contains(available, id) {
				t.Fatalf("%s is not available", id)
			}
		}
		wanted := 0
		for _, id := range slices.Compact(slices.Sorted(slices.Values(must))) {
			if slices.Contains(available, id) {
				wanted++
			}
		}
		kept := 0
		for _, id := range got {
			if slices.Contains(must, id) {
				kept++
			}
		}
		if kept < min(wanted, len(got)) {
			t.Fatalf("%d of %d ids that must be are there", kept, wanted)
		}
		shuffled := rapid.Permutation(available).Draw(t, "shuffled")
		if again := a.Prefer(shuffled, must, size, avoid, nil); !cmp.Equal(got, again) {
			t.Fatalf("the same in another order: %v, then %v", got, again)
		}
	})
}

func BenchmarkPrefer(b *testing.B) {
	all := func(a *Allocator) []string {
		var ids []string
		for _, s := range a.Resource().Seats {
			ids = append(ids, s.ID)
		}
		return ids
	}
	flat := new(rack).gpus(16)
	wired := switched(pairs(new(rack).gpus(16)))
	for name, a := range map[string]*Allocator{
		"8of16/flat":     answering(b, flat.Inventory, Settings{}),
		"8of16/switched": answering(b, wired.Inventory, Settings{}),
		"8of16x48":       answering(b, flat.Inventory, shareAll(Settings{}, SharingTimeSlicing, "gpu", 48)),
	} {
		b.Run(name, func(b *testing.B) {
			ids := all(a)
			b.ReportAllocs()
			for b.Loop() {
				a.Prefer(ids, nil, 8, nil, nil)
			}
		})
	}
}
