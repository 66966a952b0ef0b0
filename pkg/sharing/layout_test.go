// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

// bench is a card in the making: an account of its slices that shares nothing with
// the code under test.
type bench struct {
	card    gpu.Device
	used    uint64
	compute int
	placed  []place
}

func (b bench) profile(name string) gpu.MIGProfile {
	return b.card.MIGProfiles[slices.IndexFunc(b.card.MIGProfiles, func(p gpu.MIGProfile) bool { return p.Name == name })]
}

// add is b with one more instance, or false where the rules of MIG forbid it.
func (b bench) add(p gpu.MIGProfile, start int) (bench, bool) {
	mask := (uint64(1)<<p.Size - 1) << start
	same, unit := 0, 0
	for _, other := range b.placed {
		if other.profile == p.Name {
			same++
		}
		if p.Exclusive != "" && b.profile(other.profile).Exclusive == p.Exclusive {
			unit++
		}
	}
	if b.used&mask != 0 || b.compute+p.Compute > b.card.Capacity.Compute || start+p.Size > b.card.Capacity.Memory ||
		same >= p.Max || unit > 0 || !slices.Contains(p.Starts, start) {
		return b, false
	}
	b.used |= mask
	b.compute += p.Compute
	b.placed = append(slices.Clip(b.placed), place{profile: p.Name, start: start})
	return b, true
}

// heaviest is the largest weight that can be added to b.
func (b bench) heaviest(p Policy) Fraction {
	best := Fraction{}
	for _, f := range b.card.MIGProfiles {
		for _, start := range f.Starts {
			next, ok := b.add(f, start)
			if !ok || len(next.placed) > len(b.placed)+1 {
				continue
			}
			w, ok := p.Weight(b.card, migDevice("MIG-x", b.card, f.Name, 1, start, 0))
			if !ok {
				continue
			}
			// Places in ascending order only: every set is then tried once.
			if sum := w.Add(next.after(start + f.Size).heaviest(p)); sum.Cmp(best) > 0 {
				best = sum
			}
		}
	}
	return best
}

// after is b with the slices before start out of reach.
func (b bench) after(start int) bench {
	b.used |= uint64(1)<<start - 1
	return b
}

func (l Layout) multiset() string {
	names := strings.Split(l.String(), " + ")
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestLayoutsOfSevenSlices(t *testing.T) {
	for _, c := range []gpu.Device{a100x40("GPU-a", 0), a100x80("GPU-a", 0), h100("GPU-a", 0)} {
		all := slices.Collect(Layouts(c))
		// 127 multisets are there with one +me among the profiles and without the
		// empty one; without +me there are 77, of which 28 are maximal.
		if len(all) != 127 || len(maximal(all)) != 44 {
			t.Errorf("%s: %d layouts, %d maximal; want 127 and 44", c.MIGProfiles[0].Name, len(all), len(maximal(all)))
		}
		c.MIGProfiles = slices.DeleteFunc(slices.Clone(c.MIGProfiles), func(p gpu.MIGProfile) bool { return p.Exclusive != "" })
		if all = slices.Collect(Layouts(c)); len(all) != 77 || len(maximal(all)) != 28 {
			t.Errorf("%s without +me: %d layouts, %d maximal; want 77 and 28", c.MIGProfiles[0].Name, len(all), len(maximal(all)))
		}
	}
}

// maximal are the layouts that are part of no other.
func maximal(all []Layout) []Layout {
	counts := make(map[string]map[string]int)
	for _, l := range all {
		n := make(map[string]int)
		for _, instance := range l {
			n[instance.Profile.Name]++
		}
		counts[l.multiset()] = n
	}
	return slices.DeleteFunc(slices.Clone(all), func(l Layout) bool {
		return slices.ContainsFunc(all, func(larger Layout) bool {
			for name, n := range counts[l.multiset()] {
				if counts[larger.multiset()][name] < n {
					return false
				}
			}
			return len(larger) > len(l)
		})
	})
}

func TestLayoutsAreLegalAndDistinct(t *testing.T) {
	for _, c := range []gpu.Device{a30("GPU-a", 0), a100x40("GPU-a", 0), a100x80("GPU-a", 0), h100("GPU-a", 0), rtxPro6000("GPU-a", 0)} {
		seen := make(map[string]bool)
		for l := range Layouts(c) {
			if seen[l.multiset()] {
				t.Errorf("%s comes twice", l)
			}
			seen[l.multiset()] = true
			b, ok := bench{card: c}, true
			for _, instance := range l {
				if b, ok = b.add(instance.Profile, instance.Placement.Start); !ok || instance.Placement.Size != instance.Profile.Size {
					t.Errorf("%s is not legal at %s", l, instance.Profile.Name)
				}
			}
		}
		// Whatever random hands can build is among them.
		rapid.Check(t, func(t *rapid.T) {
			if b := drawLayout(t, c); len(b.placed) > 0 {
				var names []string
				for _, p := range b.placed {
					names = append(names, p.profile)
				}
				slices.Sort(names)
				if !seen[strings.Join(names, " ")] {
					t.Fatalf("%v is not among the layouts", names)
				}
			}
		})
	}
}

// drawLayout places instances at random where they fit.
func drawLayout(t *rapid.T, c gpu.Device) bench {
	b := bench{card: c}
	for range rapid.IntRange(0, 12).Draw(t, "tries") {
		p := rapid.SampledFrom(c.MIGProfiles).Draw(t, "profile")
		b, _ = b.add(p, rapid.SampledFrom(p.Starts).Draw(t, "start"))
	}
	return b
}

func TestLayoutsOfCardsThatSayNothing(t *testing.T) {
	noCapacity, noProfiles, endless, absurd := h100("GPU-a", 0), h100("GPU-a", 0), h100("GPU-a", 0), h100("GPU-a", 0)
	noCapacity.Capacity = gpu.Slices{}
	noProfiles.MIGProfiles = nil
	absurd.MIGProfiles = []gpu.MIGProfile{profile("0g", 0, 0, 0, 0, 0), profile("9g", 9, 8, 1, 0, 0), profile("1g", 1, 1, 1, 0, -1, 8, 99)}
	endless.Capacity.Memory = 1 << 30
	for i, c := range []gpu.Device{noCapacity, noProfiles, absurd, endless, plain("GPU-a", 0)} {
		for l := range Layouts(c) {
			t.Errorf("card %d has layout %s", i, l)
		}
	}
	for range Layouts(h100("GPU-a", 0)) {
		break
	}
}

// monster is a card whose layouts no machine can list.
func monster() gpu.Device {
	c := card("GPU-a", 0)
	c.Capacity = gpu.Slices{Compute: 64, Memory: 64, SMs: 64}
	for i := range 8 {
		p := profile(fmt.Sprintf("1g.%dgb", i), 1, 1, 1, 0)
		for start := range 64 {
			p.Starts = append(p.Starts, start)
		}
		c.MIGProfiles = append(c.MIGProfiles, p)
	}
	return c
}

func TestASearchWithoutEndEnds(t *testing.T) {
	c := monster()
	if err := ValidateTable(c, policy(t, "blend")); err == nil || !strings.Contains(err.Error(), "too many layouts") {
		t.Errorf("ValidateTable: %v", err)
	}
	devices := cut(c, place{profile: "1g.0gb", start: 0})
	d := Attribute(Situation{Devices: devices, Observed: true, Policy: policy(t, "blend")})
	if err := d.Check(devices); err != nil {
		t.Error(err)
	}
}

func TestEveryLinearPolicyFitsEveryCard(t *testing.T) {
	for _, c := range []gpu.Device{a30("GPU-a", 0), a100x40("GPU-a", 0), a100x80("GPU-a", 0), h100("GPU-a", 0), rtxPro6000("GPU-a", 0), plain("GPU-a", 0)} {
		for _, name := range []string{"blend", "compute", "memory", "sm"} {
			if err := ValidateTable(c, policy(t, name)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestValidateTable(t *testing.T) {
	blend := map[string]string{
		"1g.10gb": "15/112", "1g.10gb+me": "15/112", "1g.20gb": "11/56", "2g.20gb": "15/56",
		"3g.40gb": "13/28", "4g.40gb": "15/28", "7g.80gb": "1",
	}
	with := func(changes ...string) map[string]string {
		weights := make(map[string]string)
		maps.Copy(weights, blend)
		for i := 0; i < len(changes); i += 2 {
			weights[changes[i]] = changes[i+1]
			if changes[i+1] == "" {
				delete(weights, changes[i])
			}
		}
		return weights
	}
	for _, tt := range []struct {
		what    string
		weights map[string]string
		want    string
	}{
		{"blend as a table", blend, ""},
		// The larger of the two shares: the worst layout of the reference, 1.107.
		{"max", with("1g.10gb", "1/7", "1g.10gb+me", "1/7", "1g.20gb", "1/4", "2g.20gb", "2/7", "3g.40gb", "1/2", "4g.40gb", "4/7"),
			"weighs 31/28, more than the card"},
		{"two profiles missing", with("2g.20gb", "", "7g.80gb", ""), "no weight for 2g.20gb, 7g.80gb"},
		{"only 4g + 3g too much", with("4g.40gb", "0.54"), "layout 4g.40gb + 3g.40gb weighs 703/700"},
		{"compute instance within its part", with("1c.3g.40gb", "13/84"), ""},
		{"compute instance too dear", with("1c.3g.40gb", "13/83"), "1c.3g.40gb weighs 13/83, more than its part 13/84"},
	} {
		err := ValidateTable(h100("GPU-a", 0), table(t, tt.weights))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want %q", tt.what, err, tt.want)
		}
	}
	unknown := h100("GPU-a", 0)
	unknown.Capacity = gpu.Slices{}
	if err := ValidateTable(unknown, table(t, blend)); err == nil {
		t.Error("a card of unknown capacity fits the table")
	}
}

// Charging the larger of the compute and the memory share looks fair and charges
// more than the card on most full layouts.
func TestTheLargerShareWouldChargeMoreThanTheCard(t *testing.T) {
	c := h100("GPU-a", 0)
	weights := make(map[string]Fraction)
	for _, p := range c.MIGProfiles {
		compute, memory := NewFraction(int64(p.Compute), 7), NewFraction(int64(p.Memory), 8)
		weights[p.Name] = compute
		if memory.Cmp(compute) > 0 {
			weights[p.Name] = memory
		}
	}
	p, err := NewTablePolicy(weights)
	if err != nil {
		t.Fatal(err)
	}
	full := maximal(slices.Collect(Layouts(c)))
	over := 0
	for _, l := range full {
		sum := Fraction{}
		for _, instance := range l {
			sum = sum.Add(weights[instance.Profile.Name])
		}
		if sum.Cmp(One()) > 0 {
			over++
		}
	}
	if over != 28 {
		t.Errorf("%d of %d maximal layouts weigh more than the card, want 28", over, len(full))
	}
	if err := ValidateTable(c, p); err == nil || !strings.Contains(err.Error(), " + 1g.20gb weighs 31/28") {
		t.Errorf("the worst layout is in error %v, want 6 x 1g.10gb + 1g.20gb", err)
	}
}
