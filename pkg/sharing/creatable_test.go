// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"pgregory.net/rapid"
)

func TestCreatableIsWhatCanStillBeBuilt(t *testing.T) {
	cards := []gpu.Device{a30("GPU-a", 0), a100x40("GPU-a", 0), h100("GPU-a", 0), rtxPro6000("GPU-a", 0)}
	policies := []Policy{policy(t, "blend"), policy(t, "compute"), policy(t, "memory"), policy(t, "sm"), {},
		table(t, map[string]string{"1g.10gb": "0.1", "3g.40gb": "0.4", "1g.6gb": "0.2", "1g.24gb+gfx": "0.3", "1g.5gb": "1/9"})}
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(cards).Draw(t, "card")
		p := rapid.SampledFrom(policies).Draw(t, "policy")
		b := drawLayout(t, c)
		devices := cut(c, b.placed...)
		var migs []*gpu.Device
		for i := range devices[1:] {
			migs = append(migs, &devices[1+i])
		}
		want := b.heaviest(p)
		for range 2 {
			if got, known := p.creatable(&devices[0], migs); !known || !got.Equal(want) {
				t.Fatalf("policy %s beside %v: %s (%t) can be created, want %s", p.Name(), b.placed, got, known, want)
			}
		}
	})
}

// On real cards the places alone keep most rules; on this one each rule does
// something of its own. All cases share one memo.
func TestEachRuleOfALayoutCounts(t *testing.T) {
	p := table(t, map[string]string{"1g": "1/10", "1g+me": "1/7", "2g": "1/4"})
	for _, tt := range []struct {
		what      string
		change    func(c *gpu.Device)
		present   []place
		creatable string
		layouts   int
	}{
		{"four places", func(*gpu.Device) {}, nil, "1/2", 14},
		{"one taken", func(*gpu.Device) {}, []place{{profile: "1g", start: 0}}, "11/28", 14},
		{"one taken elsewhere", func(*gpu.Device) {}, []place{{profile: "1g", start: 1}}, "11/28", 14},
		{"2g has one place", func(c *gpu.Device) { c.MIGProfiles[2].Starts = []int{0} }, []place{{profile: "1g", start: 3}}, "11/28", 13},
		{"2g has one place, taken", func(c *gpu.Device) { c.MIGProfiles[2].Starts = []int{0} }, []place{{profile: "1g", start: 0}}, "12/35", 13},
		{"the unit is taken", func(*gpu.Device) {}, []place{{profile: "1g+me", start: 0}}, "7/20", 14},
		{"no such unit", func(c *gpu.Device) { c.MIGProfiles[1].Exclusive = "" }, []place{{profile: "1g+me", start: 0}}, "3/7", 21},
		{"two compute slices", func(c *gpu.Device) { c.Capacity.Compute = 2 }, nil, "1/4", 5},
		{"two compute slices, one taken", func(c *gpu.Device) { c.Capacity.Compute = 2 }, []place{{profile: "1g", start: 0}}, "1/7", 5},
		{"two compute slices, both taken", func(c *gpu.Device) { c.Capacity.Compute = 2 }, []place{{profile: "2g", start: 0}}, "0", 5},
		{"at most two of 1g", func(c *gpu.Device) { c.MIGProfiles[0].Max = 2 }, nil, "1/2", 11},
		{"two of 1g", func(*gpu.Device) {}, []place{{profile: "1g", start: 0}, {profile: "1g", start: 2}}, "17/70", 14},
		{"two of 1g, and no more", func(c *gpu.Device) { c.MIGProfiles[0].Max = 2 }, []place{{profile: "1g", start: 0}, {profile: "1g", start: 2}}, "1/7", 11},
	} {
		c := card("GPU-a", 0)
		c.Capacity = gpu.Slices{Compute: 4, Memory: 4, SMs: 4}
		one := profile("1g", 1, 1, 1, 0, 0, 1, 2, 3)
		c.MIGProfiles = []gpu.MIGProfile{one, once(one, "+me", "me"), profile("2g", 2, 2, 2, 0, 0, 2)}
		c.MIGProfiles[1].Max = 0
		tt.change(&c)
		devices := cut(c, tt.present...)
		var migs []*gpu.Device
		for i := range devices[1:] {
			migs = append(migs, &devices[1+i])
		}
		if got, known := p.creatable(&devices[0], migs); !known || got.String() != tt.creatable {
			t.Errorf("%s: %s (%t) can be created, want %s", tt.what, got, known, tt.creatable)
		}
		if got := len(slices.Collect(Layouts(c))); got != tt.layouts {
			t.Errorf("%s: %d layouts, want %d", tt.what, got, tt.layouts)
		}
	}
}

func TestTheMemoIsBoundedAndSafe(t *testing.T) {
	p := policy(t, "blend")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range maxMemo {
				p.memo.put(fmt.Appendf(nil, "%d/%d", g, i), creatable{})
			}
			c := h100("GPU-a", 0)
			if got, known := p.creatable(&c, nil); !known || !got.IsOne() {
				t.Errorf("an empty card can hold %s, %t", got, known)
			}
		})
	}
	wg.Wait()
	if n := len(p.memo.found); n > maxMemo {
		t.Errorf("the memo has %d entries", n)
	}
}

func TestCardsOfOneLayoutShareNoMemoByMistake(t *testing.T) {
	p := policy(t, "blend")
	small, large := h100("GPU-a", 0), h100("GPU-b", 1)
	small.MIGProfiles = small.MIGProfiles[:6]
	one, _ := p.creatable(&large, nil)
	if other, _ := p.creatable(&small, nil); other.Cmp(One()) > 0 || one.Cmp(One()) != 0 {
		t.Errorf("with 7g.80gb %s, without %s", one, other)
	}
	large.MIGProfiles = large.MIGProfiles[:2]
	if seven, _ := p.creatable(&large, nil); seven.String() != "15/16" {
		t.Errorf("with 1g.10gb alone %s can be created, want 15/16", seven)
	}
}

func BenchmarkCreatable(b *testing.B) {
	for _, c := range []gpu.Device{h100("GPU-a", 0), rtxPro6000("GPU-a", 0)} {
		for _, memo := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/memo=%t", c.MIGProfiles[0].Name, memo), func(b *testing.B) {
				p := Policy{}
				if memo {
					p = policy(b, "blend")
				}
				b.ReportAllocs()
				for b.Loop() {
					p.creatable(&c, nil)
				}
			})
		}
	}
}
