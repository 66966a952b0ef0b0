// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// tell is a division in lines that a table can hold.
func tell(d Division) []string {
	name := func(h Holder) string {
		name := h.Pod
		if h.Container != "" && h.Container != "main" {
			name += "/" + h.Container
		}
		if h.PodUID != "" {
			name += "#" + h.PodUID
		}
		if name == "" {
			return "-"
		}
		return name
	}
	var lines []string
	for _, s := range d.Shares {
		line := fmt.Sprintf("%s %s %s %s", s.Device, name(s.Holder), s.Mode, s.Part)
		if len(s.SeatIDs) > 0 {
			line += fmt.Sprintf(" seats %v of %d", s.SeatIDs, s.Of)
		}
		if len(s.SeatIDs) > 0 && len(s.SeatIDs) != s.Seats || len(s.SeatIDs) == 0 && (s.Seats != 1 || s.Of != 1) {
			line += fmt.Sprintf(" BUT %d of %d", s.Seats, s.Of)
		}
		if !s.Part.Equal(s.Weight.Scale(s.Seats, s.Of)) {
			line += fmt.Sprintf(" BUT weight %s", s.Weight)
		}
		lines = append(lines, line)
	}
	for _, u := range d.Unallocated {
		device := u.Device
		if device == "" {
			device = u.Card
		}
		line := fmt.Sprintf("%s %s %s", device, u.Cause, u.Part)
		if u.Holder != (Holder{}) {
			line += " held by " + name(u.Holder)
		}
		lines = append(lines, line)
	}
	for _, c := range d.Conflicts {
		lines = append(lines, fmt.Sprintf("%s conflict %s: %s loses to %s", c.Device, c.Kind, name(c.Loser), name(c.Winner)))
	}
	for _, u := range d.Unmatched {
		lines = append(lines, fmt.Sprintf("%s of %s: %s", u.Allocation.DeviceID, name(u.Allocation.Holder), u.Reason))
	}
	return lines
}

type story struct {
	name    string
	devices []gpu.Device
	// advertised were seen once, before.
	advertised  []Advertised
	allocations []Allocation
	unhealthy   []gpu.UUID
	policy      Policy
	unobserved  bool
	want        []string
}

func (s story) situation() Situation {
	unhealthy := make(map[gpu.UUID]bool)
	for _, u := range s.unhealthy {
		unhealthy[u] = true
	}
	return Situation{
		Devices: s.devices, Observed: !s.unobserved, Allocations: s.allocations, Unhealthy: unhealthy, Policy: s.policy,
		Seats: Seats{}.Observe(noon, NewIndex(s.devices), s.advertised),
	}
}

func runStories(t *testing.T, stories []story) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			t.Helper()
			d := Attribute(s.situation())
			if diff := cmp.Diff(s.want, tell(d)); diff != "" {
				t.Errorf("division (-want +got):\n%s", diff)
			}
			if err := d.Check(s.devices); err != nil {
				t.Error(err)
			}
		})
	}
}

func by(a Allocation, change func(*Allocation)) Allocation {
	change(&a)
	return a
}

func ended(a Allocation) Allocation { return by(a, func(a *Allocation) { a.Terminal = true }) }

func since(a Allocation, minutes int) Allocation {
	return by(a, func(a *Allocation) { a.Since = noon.Add(time.Duration(minutes) * time.Minute) })
}

func in(a Allocation, container string) Allocation {
	return by(a, func(a *Allocation) { a.Holder.Container = container })
}

func uid(a Allocation, uid string) Allocation {
	return by(a, func(a *Allocation) { a.Holder.PodUID = uid })
}

func as(a Allocation, resource string) Allocation {
	return by(a, func(a *Allocation) { a.Resource = resource })
}

func TestWhatNobodyHolds(t *testing.T) {
	a, migEmpty := plain("GPU-a", 0), h100("GPU-a", 0)
	migEmpty.MIGEnabled = true
	noProfiles := cut(h100("GPU-a", 0), place{profile: "3g.40gb", start: 4})
	noProfiles[0].MIGProfiles = nil
	seven := cut(h100("GPU-a", 0), place{profile: "1g.10gb", start: 0}, place{profile: "1g.10gb", start: 1}, place{profile: "1g.10gb", start: 2},
		place{profile: "1g.10gb", start: 3}, place{profile: "1g.10gb", start: 4}, place{profile: "1g.10gb", start: 5}, place{profile: "1g.10gb", start: 6})
	runStories(t, []story{
		{name: "a card", devices: []gpu.Device{a}, want: []string{"GPU-a free 1"}},
		{name: "a card with replicas", devices: []gpu.Device{a}, advertised: replicas("nvidia.com/gpu", "GPU-a", 4), want: []string{"GPU-a unrequested 1"}},
		{name: "nobody could see", devices: seven, unobserved: true, unhealthy: []gpu.UUID{"GPU-a"}, allocations: []Allocation{held("p", "MIG-a-1")},
			want: []string{"GPU-a unobserved 1"}},
		{name: "MIG without instances", devices: []gpu.Device{migEmpty}, want: []string{"GPU-a free 1"}},
		{name: "MIG without instances under a table that fills no card", devices: []gpu.Device{migEmpty},
			policy: table(t, map[string]string{"1g.10gb": "1/10"}), want: []string{"GPU-a free 7/10", "GPU-a stranded 3/10"}},
		{name: "MIG without instances, replicas of the card", devices: []gpu.Device{migEmpty}, advertised: replicas("x", "GPU-a", 2),
			want: []string{"GPU-a unrequested 1"}},
		{name: "seven small instances strand memory", devices: seven, allocations: []Allocation{held("p", "MIG-a-1")}, want: []string{
			"MIG-a-1 p mig 15/112", "GPU-a stranded 1/16",
			"MIG-a-2 free 15/112", "MIG-a-3 free 15/112", "MIG-a-4 free 15/112", "MIG-a-5 free 15/112", "MIG-a-6 free 15/112", "MIG-a-7 free 15/112",
		}},
		{name: "two halves of memory strand a compute slice",
			devices: cut(h100("GPU-a", 0), place{profile: "3g.40gb", start: 0}, place{profile: "3g.40gb", start: 4}),
			want:    []string{"GPU-a stranded 1/14", "MIG-a-1 free 13/28", "MIG-a-2 free 13/28"}},
		// A small instance in the middle of the upper half leaves no place for 3g.40gb there.
		{name: "the place counts", devices: cut(h100("GPU-a", 0), place{profile: "4g.40gb", start: 0}, place{profile: "1g.10gb", start: 5}),
			policy: policy(t, "memory"), want: []string{"GPU-a free 3/8", "MIG-a-1 free 1/2", "MIG-a-2 free 1/8"}},
		{name: "profiles not known", devices: noProfiles, want: []string{"GPU-a free 15/28", "MIG-a-1 free 13/28"}},
		{name: "compute slices of a GPU instance that no compute instance has",
			devices: cut(h100("GPU-a", 0), place{profile: "3g.40gb", start: 0, slices: 1}, place{profile: "3g.40gb", start: 4}),
			want:    []string{"GPU-a free 13/42", "GPU-a stranded 1/14", "MIG-a-1 free 13/84", "MIG-a-2 free 13/28"}},
		{name: "replicas of a MIG device", devices: cut(a30("GPU-a", 0), place{profile: "2g.12gb", start: 0}), advertised: replicas("x", "MIG-a-1", 2),
			allocations: []Allocation{held("p", "MIG-a-1::1")},
			want:        []string{"MIG-a-1 p mig-shared 1/4 seats [1] of 2", "GPU-a free 1/2", "MIG-a-1 unrequested 1/4"}},
	})
}

func TestSeats(t *testing.T) {
	a := plain("GPU-a", 0)
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	runStories(t, []story{
		{name: "old ids after fewer replicas", devices: []gpu.Device{a}, advertised: four[:2],
			allocations: []Allocation{held("p", "GPU-a::5"), held("q", "GPU-a::6"), held("r", "GPU-a::0")},
			want:        []string{"GPU-a p shared 1/3 seats [5] of 3", "GPU-a q shared 1/3 seats [6] of 3", "GPU-a r shared 1/3 seats [0] of 3"}},
		// The meter began while the plugin was away: one seat that is held may be one of many.
		{name: "never advertised", devices: []gpu.Device{a, plain("GPU-b", 1)}, advertised: replicas("nvidia.com/gpu", "GPU-b", 2),
			allocations: []Allocation{held("p", "GPU-a::2"), held("q", "GPU-b::0")},
			want:        []string{"GPU-b q shared 1/2 seats [0] of 2", "GPU-a unattributed 1 held by p", "GPU-b unrequested 1/2"}},
		{name: "never advertised, of two holders and a MIG device", devices: cut(a30("GPU-a", 0), place{profile: "2g.12gb", start: 0}),
			allocations: []Allocation{held("p", "MIG-a-1::1"), held("q", "MIG-a-1::0"), held("q", "MIG-a-1::3")},
			want:        []string{"GPU-a free 1/2", "MIG-a-1 unattributed 1/6 held by p", "MIG-a-1 unattributed 1/3 held by q"}},
		{name: "two names of the resource", devices: []gpu.Device{a}, advertised: four,
			allocations: []Allocation{held("p", "GPU-a::2"), as(held("p", "GPU-a::1"), "nvidia.com/gpu.shared"), held("p", "GPU-a::0")},
			want:        []string{"GPU-a p shared 1/2 seats [0 2] of 4", "GPU-a p shared 1/4 seats [1] of 4", "GPU-a unrequested 1/4"}},
		{name: "two containers of a pod", devices: []gpu.Device{a}, advertised: four,
			allocations: []Allocation{held("p", "GPU-a::2"), in(held("p", "GPU-a::1"), "side")},
			want:        []string{"GPU-a p shared 1/4 seats [2] of 4", "GPU-a p/side shared 1/4 seats [1] of 4", "GPU-a unrequested 1/2"}},
		{name: "one seat spelt twice", devices: []gpu.Device{a}, advertised: four,
			allocations: []Allocation{held("p", "GPU-a::2"), held("p", "nvidia0/vgpu2")},
			want:        []string{"GPU-a p shared 1/4 seats [2] of 4", "GPU-a unrequested 3/4"}},
		{name: "a seat of a pod that ended", devices: []gpu.Device{a}, advertised: four,
			allocations: []Allocation{ended(held("p", "GPU-a::2")), held("q", "GPU-a::1")},
			want:        []string{"GPU-a q shared 1/4 seats [1] of 4", "GPU-a unrequested 3/4"}},
	})
}

func TestConflicts(t *testing.T) {
	a := plain("GPU-a", 0)
	four := replicas("nvidia.com/gpu", "GPU-a", 4)
	mig := cut(a30("GPU-a", 0), place{profile: "4g.24gb", start: 0})
	card := []gpu.Device{a}
	runStories(t, []story{
		{name: "the later wins", devices: card, allocations: []Allocation{since(held("p", "GPU-a"), 1), since(held("q", "GPU-a"), 2), held("r", "GPU-a")},
			want: []string{"GPU-a q exclusive 1", "GPU-a conflict exclusive: p loses to q", "GPU-a conflict exclusive: r loses to q"}},
		{name: "the smaller name wins a tie", devices: card, allocations: []Allocation{held("q", "GPU-a"), held("p", "GPU-a")},
			want: []string{"GPU-a p exclusive 1", "GPU-a conflict exclusive: q loses to p"}},
		{name: "the live pod wins over the later", devices: card, allocations: []Allocation{ended(since(held("p", "GPU-a"), 9)), held("q", "GPU-a")},
			want: []string{"GPU-a q exclusive 1", "GPU-a conflict exclusive: p loses to q"}},
		{name: "only ended pods", devices: card, allocations: []Allocation{ended(held("p", "GPU-a")), ended(held("q", "GPU-a"))},
			want: []string{"GPU-a free 1"}},
		{name: "two containers of a pod, the last counts", devices: card, allocations: []Allocation{in(held("p", "GPU-a"), "z-init"), held("p", "GPU-a")},
			want: []string{"GPU-a p exclusive 1"}},
		{name: "one name, two pods", devices: card, allocations: []Allocation{uid(held("p", "GPU-a"), "1"), since(uid(held("p", "GPU-a"), "2"), 1)},
			want: []string{"GPU-a p#2 exclusive 1", "GPU-a conflict exclusive: p#1 loses to p#2"}},
		{name: "one seat, two pods", devices: card, advertised: four,
			allocations: []Allocation{held("p", "GPU-a::0"), since(held("q", "GPU-a::0"), 1), held("p", "GPU-a::1"), since(held("q", "GPU-a::1"), 1), held("p", "GPU-a::2")},
			want: []string{
				"GPU-a p shared 1/4 seats [2] of 4", "GPU-a q shared 1/2 seats [0 1] of 4", "GPU-a unrequested 1/4",
				"GPU-a conflict seat: p loses to q",
			}},
		{name: "whole wins a tie with replicas", devices: card, advertised: four,
			allocations: []Allocation{held("a", "GPU-a::0"), held("a", "GPU-a::1"), held("w", "GPU-a"), held("b", "GPU-a::2")},
			want:        []string{"GPU-a w exclusive 1", "GPU-a conflict whole_and_replicas: a loses to w", "GPU-a conflict whole_and_replicas: b loses to w"}},
		{name: "later replicas win over whole", devices: card, advertised: four,
			allocations: []Allocation{held("a", "GPU-a::0"), held("w", "GPU-a"), held("v", "GPU-a"), since(held("b", "GPU-a::2"), 1)},
			want: []string{
				"GPU-a a shared 1/4 seats [0] of 4", "GPU-a b shared 1/4 seats [2] of 4", "GPU-a unrequested 1/2",
				"GPU-a conflict whole_and_replicas: v loses to b", "GPU-a conflict whole_and_replicas: w loses to b",
			}},
		{name: "an ended pod has no whole", devices: card, advertised: four,
			allocations: []Allocation{held("a", "GPU-a::0"), ended(since(held("w", "GPU-a"), 5))},
			want:        []string{"GPU-a a shared 1/4 seats [0] of 4", "GPU-a unrequested 3/4"}},
		{name: "a GPU with MIG devices", devices: mig,
			allocations: []Allocation{held("q", "GPU-a"), held("p", "nvidia0/vgpu1"), held("p", "GPU-a::3"), ended(held("r", "GPU-a")), held("m", "MIG-a-1")},
			want:        []string{"MIG-a-1 m mig 1", "GPU-a conflict mig_parent: p loses to -", "GPU-a conflict mig_parent: q loses to -"}},
	})
}

func TestOutOfService(t *testing.T) {
	a, lost := plain("GPU-a", 0), plain("GPU-a", 0)
	lost.Lost = true
	mig := cut(h100("GPU-a", 0), place{profile: "4g.40gb", start: 0}, place{profile: "2g.20gb", start: 4})
	runStories(t, []story{
		{name: "a whole card", devices: []gpu.Device{a}, unhealthy: []gpu.UUID{"GPU-a"}, allocations: []Allocation{held("p", "GPU-a")},
			want: []string{"GPU-a unhealthy 1 held by p"}},
		{name: "a lost card", devices: []gpu.Device{lost}, allocations: []Allocation{held("p", "GPU-a")},
			want: []string{"GPU-a unhealthy 1 held by p"}},
		{name: "nobody holds it", devices: []gpu.Device{lost}, want: []string{"GPU-a unhealthy 1"}},
		{name: "a shared card", devices: []gpu.Device{a}, unhealthy: []gpu.UUID{"GPU-a"}, advertised: replicas("x", "GPU-a", 4),
			allocations: []Allocation{held("p", "GPU-a::0"), held("p", "GPU-a::1"), as(held("p", "GPU-a::2"), "other")},
			want:        []string{"GPU-a unhealthy 1/4", "GPU-a unhealthy 3/4 held by p"}},
		{name: "a card in MIG mode", devices: mig, unhealthy: []gpu.UUID{"GPU-a"}, allocations: []Allocation{held("p", "MIG-a-1")},
			want: []string{"GPU-a unhealthy 11/56", "MIG-a-1 unhealthy 15/28 held by p", "MIG-a-2 unhealthy 15/56"}},
		{name: "one MIG device", devices: mig, unhealthy: []gpu.UUID{"MIG-a-1"}, allocations: []Allocation{held("p", "MIG-a-1"), held("q", "MIG-a-2")},
			want: []string{"MIG-a-2 q mig 15/56", "GPU-a free 11/56", "MIG-a-1 unhealthy 15/28 held by p"}},
	})
}

func TestUnknownAndImpossibleWeights(t *testing.T) {
	mig := cut(h100("GPU-a", 0), place{profile: "4g.40gb", start: 0}, place{profile: "2g.20gb", start: 4})
	mig[2].Profile.Memory = 0
	replicated := replicas("x", "MIG-a-2", 2)
	twice := cut(h100("GPU-a", 0), place{profile: "4g.40gb", start: 0}, place{profile: "4g.40gb", start: 4})
	runStories(t, []story{
		{name: "held", devices: mig, allocations: []Allocation{held("p", "MIG-a-1"), held("q", "MIG-a-2")},
			want: []string{"MIG-a-1 p mig 15/28", "GPU-a unattributed 13/28", "MIG-a-2 unattributed 0 held by q"}},
		{name: "held in replicas", devices: mig, advertised: replicated, allocations: []Allocation{held("q", "MIG-a-2::1"), held("p", "MIG-a-2::0")},
			want: []string{"GPU-a unattributed 13/28", "MIG-a-1 free 15/28", "MIG-a-2 unattributed 0 held by p", "MIG-a-2 unattributed 0 held by q"}},
		{name: "not held", devices: mig, want: []string{"GPU-a free 13/28", "MIG-a-1 free 15/28"}},
		{name: "unhealthy", devices: mig, unhealthy: []gpu.UUID{"MIG-a-2"}, want: []string{"GPU-a unattributed 13/28", "MIG-a-1 free 15/28"}},
		{name: "held and unhealthy", devices: mig, unhealthy: []gpu.UUID{"MIG-a-2"}, allocations: []Allocation{held("q", "MIG-a-2")},
			want: []string{"GPU-a unattributed 13/28", "MIG-a-1 free 15/28", "MIG-a-2 unhealthy 0 held by q"}},
		{name: "held on an unhealthy card", devices: mig, unhealthy: []gpu.UUID{"GPU-a"}, allocations: []Allocation{held("q", "MIG-a-2")},
			want: []string{"GPU-a unhealthy 13/28", "MIG-a-1 unhealthy 15/28", "MIG-a-2 unhealthy 0 held by q"}},
		{name: "more than the card", devices: twice, allocations: []Allocation{held("p", "MIG-a-2"), held("q", "MIG-a-1::0"), held("q", "MIG-a-1::1")},
			want: []string{"GPU-a unattributed 1", "MIG-a-1 conflict overweight: q loses to -", "MIG-a-2 conflict overweight: p loses to -"}},
		{name: "more than the card, none held", devices: twice,
			want: []string{"GPU-a unattributed 1", "GPU-a conflict overweight: - loses to -"}},
		{name: "more than the card, unhealthy", devices: twice, unhealthy: []gpu.UUID{"GPU-a"},
			want: []string{"GPU-a unhealthy 1", "GPU-a conflict overweight: - loses to -"}},
	})
}

func TestNothingIsDroppedSilently(t *testing.T) {
	claim := held("p", "GPU-a")
	claim.Claim = "team/claim"
	runStories(t, []story{{
		name: "ids of nothing", devices: []gpu.Device{plain("GPU-a", 0)},
		allocations: []Allocation{held("p", "tegra"), claim, held("p", "GPU-z::1"), held("a", "GPU-a::x"), held("p", "nvidia7"), held("p", "nvidia0/gi1")},
		want: []string{
			"GPU-a free 1",
			"GPU-a::x of a: malformed_replica", "GPU-a of p: claim_unresolved", "GPU-z::1 of p: unknown_device",
			"nvidia0/gi1 of p: no_gpu_instance", "nvidia7 of p: unknown_device", "tegra of p: malformed_id",
		},
	}})
}

func TestOrderOfADivision(t *testing.T) {
	b := cut(h100("GPU-b", 1), place{profile: "3g.40gb", start: 4}, place{profile: "1g.10gb", start: 0})
	b[1].GPUInstance, b[2].GPUInstance = 9, 2
	runStories(t, []story{{
		name:    "cards by index, MIG devices by GPU instance, holders by name",
		devices: append(b, plain("GPU-c", 0), plain("GPU-a", 0)), advertised: replicas("x", "GPU-c", 3),
		allocations: []Allocation{held("z", "MIG-b-1"), held("y", "MIG-b-2"), held("x", "GPU-c::0"), held("w", "GPU-c::1"), held("v", "GPU-a")},
		want: []string{
			"GPU-a v exclusive 1", "GPU-c w shared 1/3 seats [1] of 3", "GPU-c x shared 1/3 seats [0] of 3",
			"MIG-b-2 y mig 15/112", "MIG-b-1 z mig 13/28",
			"GPU-c unrequested 1/3", "GPU-b free 45/112",
		},
	}})
}

func TestNodesWithoutGPUs(t *testing.T) {
	if d := Attribute(Situation{Observed: true}); len(tell(d)) != 0 || d.Check(nil) != nil {
		t.Errorf("a node without GPUs: %v", tell(d))
	}
	if diff := cmp.Diff(Division{}, Attribute(Situation{Observed: true, Devices: []gpu.Device{{}}})); diff != "" {
		t.Errorf("a device without a UUID (-want +got):\n%s", diff)
	}
}

func TestCheckFindsWhatDoesNotAddUp(t *testing.T) {
	devices := cut(h100("GPU-a", 0), place{profile: "1g.10gb", start: 0})
	half := Unallocated{Card: "GPU-a", Cause: CauseFree, Part: NewFraction(1, 2)}
	for _, tt := range []struct {
		what string
		d    Division
		want string
	}{
		{"nothing", Division{}, "GPU-a add up to 0"},
		{"half", Division{Unallocated: []Unallocated{half}}, "GPU-a add up to 1/2"},
		{"two halves", Division{Unallocated: []Unallocated{half, half}}, ""},
		{"a half held", Division{Unallocated: []Unallocated{half}, Shares: []Share{{Card: "GPU-a", Part: NewFraction(1, 2)}}}, ""},
		{"too much", Division{Unallocated: []Unallocated{half}, Shares: []Share{{Card: "GPU-a", Part: NewFraction(2, 3)}}}, "GPU-a add up to 7/6"},
		{"a negative part", Division{Unallocated: []Unallocated{half, {Card: "GPU-a", Part: NewFraction(-1, 2)}}, Shares: []Share{{Card: "GPU-a", Part: One()}}}, "GPU-a is negative: -1/2"},
		{"another card", Division{Unallocated: []Unallocated{half, half, {Card: "GPU-b"}}}, "GPU-b, which is not"},
	} {
		err := tt.d.Check(devices)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want %q", tt.what, err, tt.want)
		}
	}
}
