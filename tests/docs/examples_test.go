// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

var update = flag.Bool("update", false, "write the worked examples into docs/sharing-and-charging.md")

// card is an H100 80GB; with MIG it has seven compute and eight memory slices.
func card() gpu.Device {
	return gpu.Device{
		UUID: "GPU-a", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, Model: "NVIDIA H100 80GB HBM3",
		Capacity: gpu.Slices{Compute: 7, Memory: 8, SMs: 132},
		MIGProfiles: []gpu.MIGProfile{
			kind("1g.10gb", 1, 1, 16, 7, 0, 1, 2, 3, 4, 5, 6), kind("1g.20gb", 1, 2, 26, 4, 0, 2, 4, 6), kind("2g.20gb", 2, 2, 32, 3, 0, 2, 4),
			kind("3g.40gb", 3, 4, 60, 2, 0, 4), kind("4g.40gb", 4, 4, 64, 1, 0), kind("7g.80gb", 7, 8, 132, 1, 0),
		},
	}
}

func kind(name string, compute, memory, sms, most int, starts ...int) gpu.MIGProfile {
	return gpu.MIGProfile{Name: name, Slices: gpu.Slices{Compute: compute, Memory: memory, SMs: sms}, Max: most, Starts: starts, Size: memory}
}

// instance is a MIG device of a profile that begins at a memory slice of the card.
func instance(c gpu.Device, uuid gpu.UUID, profile string, start, id int) gpu.Device {
	for _, p := range c.MIGProfiles {
		if p.Name == profile {
			f := gpu.Profile{Name: p.Name, Slices: p.Slices, ComputeInstanceSlices: p.Compute, ComputeInstanceSMs: p.SMs}
			return gpu.Device{UUID: uuid, Parent: c.UUID, GPUInstance: id, Profile: f, Placement: gpu.Placement{Start: start, Size: p.Memory}}
		}
	}
	return gpu.Device{}
}

// cut is a card in MIG mode with its instances.
func cut(profiles ...string) []gpu.Device {
	c := card()
	c.MIGEnabled = true
	devices := []gpu.Device{c}
	at := 0
	for i, p := range profiles {
		d := instance(c, gpu.UUID(fmt.Sprintf("MIG-%d", i+1)), p, at, i+1)
		at += d.Placement.Size
		devices = append(devices, d)
	}
	return devices
}

func holds(pod, resource string, ids ...string) []sharing.Allocation {
	var list []sharing.Allocation
	for _, id := range ids {
		list = append(list, sharing.Allocation{
			Holder: sharing.Holder{Namespace: "team", Pod: pod, Container: "main"}, Resource: "nvidia.com/" + resource, DeviceID: id,
		})
	}
	return list
}

func seats(resource string, device gpu.UUID, n int) []sharing.Advertised {
	var list []sharing.Advertised
	for i := range n {
		list = append(list, sharing.Advertised{Resource: "nvidia.com/" + resource, DeviceID: fmt.Sprintf("%s::%d", device, i)})
	}
	return list
}

// situations are the worked examples, by name.
func situations() map[string]sharing.Situation {
	slices := cut("3g.40gb", "1g.10gb", "1g.10gb")
	ofSlice := seats("mig-1g.10gb.shared", "MIG-2", 4)
	four := seats("gpu.shared", "GPU-a", 4)
	all := func(lists ...[]sharing.Allocation) (joined []sharing.Allocation) {
		for _, l := range lists {
			joined = append(joined, l...)
		}
		return joined
	}
	shared := all(holds("train", "gpu.shared", "GPU-a::0", "GPU-a::1"), holds("chat", "gpu.shared", "GPU-a::3"))
	return map[string]sharing.Situation{
		"whole":      {Devices: []gpu.Device{card()}, Allocations: holds("train", "gpu", "GPU-a")},
		"shared":     {Devices: []gpu.Device{card()}, Allocations: shared, Seats: remembered([]gpu.Device{card()}, four)},
		"broken":     {Devices: []gpu.Device{card()}, Allocations: shared, Seats: remembered([]gpu.Device{card()}, four), Unhealthy: map[gpu.UUID]bool{"GPU-a": true}},
		"mig":        {Devices: slices, Allocations: all(holds("train", "mig-3g.40gb", "MIG-1"), holds("chat", "mig-1g.10gb", "MIG-2"))},
		"mig-shared": {Devices: slices, Allocations: holds("chat", "mig-1g.10gb.shared", "MIG-2::0"), Seats: remembered(slices, ofSlice)},
		"stranded":   {Devices: cut("3g.40gb", "3g.40gb"), Allocations: all(holds("left", "mig-3g.40gb", "MIG-1"), holds("right", "mig-3g.40gb", "MIG-2"))},
	}
}

// remembered are the seats that the kubelet advertises.
func remembered(devices []gpu.Device, list []sharing.Advertised) sharing.Seats {
	return sharing.Seats{}.Observe(time.Unix(0, 0), sharing.NewIndex(devices), list)
}

// told is a division in words: what is held first, then the rest by reason, then the sum.
func told(s sharing.Situation) string {
	s.Observed = true
	d := sharing.Attribute(s)
	var b strings.Builder
	sum := sharing.Fraction{}
	row := func(who, what string, part sharing.Fraction) {
		fmt.Fprintf(&b, "| %s | %s | %s | %.4f |\n", who, what, part, part.Float64())
		sum = sum.Add(part)
	}
	b.WriteString("| pod | holds | part of the card | in decimals |\n|---|---|---|---|\n")
	for _, share := range d.Shares {
		what := profile(s, share.Device)
		if share.Of > 1 {
			what = fmt.Sprintf("%d of %d replicas of %s", share.Seats, share.Of, what)
		}
		row(share.Holder.Pod, what, share.Part)
	}
	for _, u := range d.Unallocated {
		who := "–"
		if u.Holder.Pod != "" {
			who = u.Holder.Pod
		}
		what := "`" + string(u.Cause) + "`"
		if u.Device != "" {
			what += " in a " + profile(s, u.Device)
		}
		row(who, what, u.Part)
	}
	fmt.Fprintf(&b, "| | all | **%s** | |\n", sum)
	return b.String()
}

func profile(s sharing.Situation, uuid gpu.UUID) string {
	for _, d := range s.Devices {
		if d.UUID == uuid && d.Parent != "" {
			return d.Profile.Name
		}
	}
	return "the GPU"
}

// weights is what each profile of the card weighs under each policy, and what a full card of seven small ones comes to.
func weights() string {
	var b strings.Builder
	names := []string{"blend", "compute", "memory", "sm"}
	fmt.Fprintf(&b, "| profile | compute slices of 7 | memory slices of 8 | `%s` |\n|---|---|---|---|---|---|---|\n", strings.Join(names, "` | `"))
	c := card()
	c.MIGEnabled = true
	for _, p := range c.MIGProfiles {
		fmt.Fprintf(&b, "| `%s` | %d | %d |", p.Name, p.Compute, p.Memory)
		for _, name := range names {
			policy, err := sharing.ParsePolicy(name)
			if err != nil {
				return err.Error()
			}
			w, _ := policy.Weight(c, instance(c, "MIG-1", p.Name, 0, 1))
			fmt.Fprintf(&b, " %s |", w)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// money is what hours of a part cost, at 2.50 for an hour of a card.
func money() string {
	shared := situations()["shared"]
	shared.Observed = true
	var b strings.Builder
	b.WriteString("| pod | part | GPU-hours in 100 h | cost |\n|---|---|---|---|\n")
	row := func(who string, part sharing.Fraction) {
		hours, _ := new(big.Rat).SetString(part.String())
		hours.Mul(hours, big.NewRat(100, 1))
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", who, part, hours.FloatString(2), new(big.Rat).Mul(hours, big.NewRat(5, 2)).FloatString(2))
	}
	d := sharing.Attribute(shared)
	for _, s := range d.Shares {
		row(s.Holder.Pod, s.Part)
	}
	for _, u := range d.Unallocated {
		row("`"+string(u.Cause)+"`, paid by the platform", u.Part)
	}
	row("all", sharing.One())
	return b.String()
}

// TestTheWorkedExamplesAreWhatTheProgramComputes holds docs/sharing-and-charging.md to pkg/sharing.
func TestTheWorkedExamplesAreWhatTheProgramComputes(t *testing.T) {
	name := filepath.Join(root, "docs", "sharing-and-charging.md")
	data, err := os.ReadFile(name)
	must(t, err)
	is, want := string(data), string(data)
	computed := map[string]string{"weights": weights(), "money": money()}
	for name, s := range situations() {
		computed[name] = told(s)
	}
	for example, text := range computed {
		begin, end := "<!-- example: "+example+" -->\n", "<!-- to here -->"
		before, rest, found := strings.Cut(want, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Errorf("%s lacks the example %s", name, example)
			continue
		}
		want = before + begin + text + end + after
	}
	if *update {
		must(t, os.WriteFile(name, []byte(want), 0o644))
	} else if is != want {
		t.Errorf("%s is not what pkg/sharing computes: go -C tests/docs test -run WorkedExamples . -update", name)
	}
}
