// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Instance is one GPU instance of a layout.
type Instance struct {
	Profile   gpu.MIGProfile
	Placement gpu.Placement
}

// Layout is one way to cut a card into GPU instances, in the order of their places.
type Layout []Instance

// String is the layout's profiles, "1g.10gb + 2g.20gb + 4g.40gb".
func (l Layout) String() string {
	names := make([]string, len(l))
	for i, instance := range l {
		names[i] = instance.Profile.Name
	}
	return strings.Join(names, " + ")
}

// Real cards need some ten thousand steps, and some thousand; the profiles are what
// a driver says, and ones that make no sense must not stop the meter.
const (
	maxLayoutSteps   = 1 << 18
	maxHeaviestSteps = 1 << 16
)

// Layouts are the legal layouts of a card: every multiset of its profiles that can
// exist at once, each with one example of the places, the empty one left out. A
// layout is legal where its instances begin at one of their profile's starts,
// overlap nowhere, have no more compute slices together than the card, and keep
// each profile's limit and each exclusive unit. There are none where the card's
// profiles or capacity are not known. The layouts are not to be modified.
//
// The search ends after some 260 000 steps, far more than any card needs.
func Layouts(card gpu.Device) iter.Seq[Layout] {
	return func(yield func(Layout) bool) {
		search, ok := newLayoutSearch(&card)
		if !ok {
			return
		}
		seen := make(map[string]bool)
		search.walk(0, func() bool {
			key := fmt.Sprint(search.counts)
			if seen[key] {
				return true
			}
			seen[key] = true
			return yield(slices.Clone(search.chosen))
		})
	}
}

// layoutSearch walks the sets of instances that can be added to those there are.
type layoutSearch struct {
	profiles []gpu.MIGProfile
	memory   int
	// free are the memory slices nobody has, compute the compute slices left.
	free    []bool
	compute int
	counts  []int
	units   map[string]bool
	chosen  Layout
	steps   int
}

func newLayoutSearch(card *gpu.Device) (*layoutSearch, bool) {
	total := card.Capacity
	if total.Compute <= 0 || total.Memory <= 0 || len(card.MIGProfiles) == 0 {
		return nil, false
	}
	s := &layoutSearch{
		profiles: card.MIGProfiles,
		memory:   total.Memory,
		free:     slices.Repeat([]bool{true}, min(total.Memory, maxMemorySlices)),
		compute:  total.Compute,
		counts:   make([]int, len(card.MIGProfiles)),
		units:    make(map[string]bool),
	}
	return s, total.Memory <= maxMemorySlices
}

// The largest cards have 8; more than this is not a card.
const maxMemorySlices = 64

// walk adds each instance that fits at or after a memory slice, calls visit, goes
// on from its end, and takes it back. It returns false once visit did or the steps
// are used up.
func (s *layoutSearch) walk(from int, visit func() bool) bool {
	for start := from; start < s.memory; start++ {
		for i := range s.profiles {
			p := &s.profiles[i]
			if !s.fits(i, start) {
				continue
			}
			s.take(i, start, true)
			s.chosen = append(s.chosen, Instance{Profile: *p, Placement: gpu.Placement{Start: start, Size: p.Size}})
			s.steps++
			goOn := s.steps < maxLayoutSteps && visit() && s.walk(start+p.Size, visit)
			s.chosen = s.chosen[:len(s.chosen)-1]
			s.take(i, start, false)
			if !goOn {
				return false
			}
		}
	}
	return true
}

func (s *layoutSearch) fits(profile, start int) bool {
	p := &s.profiles[profile]
	if p.Size <= 0 || p.Compute <= 0 || start+p.Size > s.memory || p.Compute > s.compute ||
		p.Max > 0 && s.counts[profile] >= p.Max || p.Exclusive != "" && s.units[p.Exclusive] ||
		!slices.Contains(p.Starts, start) {
		return false
	}
	return !slices.Contains(s.free[start:start+p.Size], false)
}

// take occupies what an instance needs, or gives it back.
func (s *layoutSearch) take(profile, start int, on bool) {
	p := &s.profiles[profile]
	for m := start; m < start+p.Size; m++ {
		s.free[m] = !on
	}
	if p.Exclusive != "" {
		s.units[p.Exclusive] = on
	}
	if on {
		s.compute -= p.Compute
		s.counts[profile]++
	} else {
		s.compute += p.Compute
		s.counts[profile]--
	}
}

// ValidateTable reports whether the policy fits a card: the error names the
// profiles that have no weight, the legal layout that weighs most where it weighs
// more than the card, and a compute instance that weighs more than its part of the
// GPU instance. It holds for every policy, but only tables can fail. A card without
// MIG profiles has nothing to check.
func ValidateTable(card gpu.Device, policy Policy) error {
	if len(card.MIGProfiles) == 0 {
		return nil
	}
	search, ok := newLayoutSearch(&card)
	if !ok {
		return fmt.Errorf("check policy %s on %s: the card's slices are not known", policy.Name(), card.Model)
	}
	weights, lacking := policy.profileWeights(&card)
	if len(lacking) > 0 {
		return fmt.Errorf("check policy %s on %s: no weight for %s; add one for each profile",
			policy.Name(), card.Model, strings.Join(lacking, ", "))
	}
	worst, worstSum := Layout(nil), Fraction{}
	complete := search.walk(0, func() bool {
		sum := search.weight(weights)
		if order := sum.Cmp(worstSum); order > 0 || order == 0 && len(search.chosen) < len(worst) {
			worst, worstSum = slices.Clone(search.chosen), sum
		}
		return true
	})
	if !complete {
		return fmt.Errorf("check policy %s on %s: the card's profiles allow too many layouts", policy.Name(), card.Model)
	}
	if worstSum.Cmp(One()) > 0 {
		return fmt.Errorf("check policy %s on %s: layout %s weighs %s, more than the card; lower the weights",
			policy.Name(), card.Model, worst, worstSum)
	}
	return policy.checkComputeInstances(&card, weights)
}

// checkComputeInstances holds the weights of compute instances to their part of the
// GPU instance, which keeps every combination of them within it.
func (p Policy) checkComputeInstances(card *gpu.Device, weights []Fraction) error {
	for i := range card.MIGProfiles {
		f := &card.MIGProfiles[i]
		for c := 1; c < f.Compute; c++ {
			name := fmt.Sprintf("%dc.%s", c, f.Name)
			w, ok := p.entry(card.Model, name)
			if limit := weights[i].Scale(c, f.Compute); ok && w.Cmp(limit) > 0 {
				return fmt.Errorf("check policy %s on %s: %s weighs %s, more than its part %s of %s; lower the weight",
					p.Name(), card.Model, name, w, limit, f.Name)
			}
		}
	}
	return nil
}

// profileWeights are the weights of the card's profiles, zero for those without
// one, whose names come second.
func (p Policy) profileWeights(card *gpu.Device) (weights []Fraction, lacking []string) {
	weights = make([]Fraction, len(card.MIGProfiles))
	for i := range card.MIGProfiles {
		f := &card.MIGProfiles[i]
		w, ok := p.instanceWeight(card, f.Name, f.Slices)
		if !ok {
			lacking = append(lacking, f.Name)
		}
		weights[i] = w
	}
	return weights, lacking
}

// instanceWeight is the weight of a GPU instance with one compute instance.
func (p Policy) instanceWeight(card *gpu.Device, name string, s gpu.Slices) (Fraction, bool) {
	return p.Weight(*card, gpu.Device{Profile: gpu.Profile{
		Name: name, Slices: s, ComputeInstanceSlices: s.Compute, ComputeInstanceSMs: s.SMs,
	}})
}

func (s *layoutSearch) weight(weights []Fraction) Fraction {
	sum := Fraction{}
	for i, n := range s.counts {
		if n > 0 {
			sum = sum.Add(weights[i].Scale(n, 1))
		}
	}
	return sum
}
