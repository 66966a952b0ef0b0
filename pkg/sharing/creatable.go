// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// creatable is the largest weight that further GPU instances can have on a card
// beside those of its MIG devices migs, each GPU instance once, or false where the
// geometry is not known. A profile without a weight counts as one that cannot be
// created.
func (p Policy) creatable(card *gpu.Device, migs []*gpu.Device) (Fraction, bool) {
	if p.memo == nil {
		return p.searchCreatable(card, migs)
	}
	var space [512]byte
	key := layoutKey(space[:0], card, migs)
	if c, ok := p.memo.get(key); ok {
		return c.weight, c.known
	}
	w, known := p.searchCreatable(card, migs)
	p.memo.put(key, creatable{weight: w, known: known})
	return w, known
}

func (p Policy) searchCreatable(card *gpu.Device, migs []*gpu.Device) (Fraction, bool) {
	search, ok := newLayoutSearch(card)
	if !ok {
		return Fraction{}, false
	}
	weights, lacking := p.profileWeights(card)
	if len(lacking) == len(weights) {
		return Fraction{}, false
	}
	for _, m := range migs {
		if !search.occupy(m) {
			return Fraction{}, false
		}
	}
	return search.heaviest(0, weights, make(map[string]Fraction))
}

// heaviest is the largest weight of instances that can be added at or after a
// memory slice, or false once the steps are used up. What can be added depends on
// the slice and the counts alone, by which found remembers it.
func (s *layoutSearch) heaviest(start int, weights []Fraction, found map[string]Fraction) (Fraction, bool) {
	if start >= s.memory {
		return Fraction{}, true
	}
	var space [64]byte
	key := binary.AppendUvarint(space[:0], uint64(start))
	for _, n := range s.counts {
		key = binary.AppendUvarint(key, uint64(n))
	}
	if w, ok := found[string(key)]; ok {
		return w, true
	}
	if s.steps++; s.steps > maxHeaviestSteps {
		return Fraction{}, false
	}
	best, ok := s.heaviest(start+1, weights, found)
	for i := range s.profiles {
		if !ok {
			return Fraction{}, false
		}
		if weights[i].IsZero() || !s.fits(i, start) {
			continue
		}
		var w Fraction
		s.take(i, start, true)
		w, ok = s.heaviest(start+s.profiles[i].Size, weights, found)
		s.take(i, start, false)
		if w = w.Add(weights[i]); w.Cmp(best) > 0 {
			best = w
		}
	}
	if ok {
		found[string(key)] = best
	}
	return best, ok
}

// occupy takes what the GPU instance of a MIG device has, or returns false where
// its place is not known.
func (s *layoutSearch) occupy(mig *gpu.Device) bool {
	at := mig.Placement
	if at.Size <= 0 || at.Start < 0 || at.Start+at.Size > s.memory {
		return false
	}
	for m := at.Start; m < at.Start+at.Size; m++ {
		s.free[m] = false
	}
	s.compute -= mig.Profile.Compute
	if i := s.profileOf(mig); i >= 0 {
		s.counts[i]++
		if unit := s.profiles[i].Exclusive; unit != "" {
			s.units[unit] = true
		}
	}
	return true
}

// profileOf is the profile of a device's GPU instance, or -1. Drivers and their
// tools do not agree on the size in a name (7g.79gb for 7g.80gb), so that slices
// have the second word.
func (s *layoutSearch) profileOf(mig *gpu.Device) int {
	name := instanceName(mig.Profile.Name)
	if i := slices.IndexFunc(s.profiles, func(p gpu.MIGProfile) bool { return p.Name == name }); i >= 0 {
		return i
	}
	return slices.IndexFunc(s.profiles, func(p gpu.MIGProfile) bool {
		return p.Exclusive == "" && p.Compute == mig.Profile.Compute && p.Size == mig.Placement.Size
	})
}

type creatable struct {
	weight Fraction
	known  bool
}

// layoutMemo keeps what searchCreatable found, because cards are cut anew far less
// often than the meter ticks.
type layoutMemo struct {
	mu    sync.Mutex
	found map[string]creatable
}

const maxMemo = 4096

func newLayoutMemo() *layoutMemo { return &layoutMemo{found: make(map[string]creatable)} }

func (m *layoutMemo) get(key []byte) (creatable, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.found[string(key)]
	return c, ok
}

func (m *layoutMemo) put(key []byte, c creatable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.found) >= maxMemo {
		clear(m.found)
	}
	m.found[string(key)] = c
}

// layoutKey appends everything that searchCreatable looks at.
func layoutKey(b []byte, card *gpu.Device, migs []*gpu.Device) []byte {
	number := func(v int) { b = binary.AppendVarint(b, int64(v)) }
	text := func(s string) { number(len(s)); b = append(b, s...) }
	slicesOf := func(s gpu.Slices) { number(s.Compute); number(s.Memory); number(s.SMs) }
	text(card.Model)
	slicesOf(card.Capacity)
	number(len(card.MIGProfiles))
	for i := range card.MIGProfiles {
		p := &card.MIGProfiles[i]
		text(p.Name)
		slicesOf(p.Slices)
		number(p.Max)
		number(len(p.Starts))
		for _, start := range p.Starts {
			number(start)
		}
		number(p.Size)
		text(p.Exclusive)
	}
	for _, m := range migs {
		text(m.Profile.Name)
		slicesOf(m.Profile.Slices)
		number(m.Placement.Start)
		number(m.Placement.Size)
	}
	return b
}

// byPlace orders MIG devices by where they lie, so that one layout has one key.
func byPlace(a, b *gpu.Device) int {
	return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.GPUInstance, b.GPUInstance))
}
