// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// slot is one GPU instance in its place.
type slot struct {
	profile gpu.MIGProfile
	start   int
	// entry is its place in the layout as written.
	entry int
}

// instance tells the GPU instances that a card can have apart: profiles of one size
// have the same ids.
type instance struct {
	id      int
	profile string
}

func (c *cardSpec) instance(s slot) instance {
	return instance{s.instanceID(c.model.capacity.Memory), s.profile.Name}
}

// instanceID numbers GPU instances as the nodes of a binary tree over the card's
// memory slices, which is how NVML's ids come out: 0 is the whole card, 1 and 2 are
// the halves, and so on.
func (s slot) instanceID(memorySlices int) int {
	return memorySlices/s.profile.Size - 1 + s.start/s.profile.Size
}

// layoutLimit is above what any geometry holds, so that a search stays short.
const layoutLimit = 8

// place finds a place for each profile of a layout. An entry is a profile's name,
// or "name@start" where the place matters. The slots come in the order of their
// instance ids.
func (m *model) place(layout []string) ([]slot, error) {
	if len(m.profiles) == 0 {
		return nil, fmt.Errorf("%s has no MIG", m.product)
	}
	if len(layout) > layoutLimit {
		return nil, fmt.Errorf("%d instances are more than %s holds", len(layout), m.product)
	}
	type wish struct {
		profile gpu.MIGProfile
		starts  []int
		entry   int
	}
	wishes := make([]wish, 0, len(layout))
	for i, entry := range layout {
		name, at, fixed := strings.Cut(entry, "@")
		p, ok := m.profile(name)
		if !ok {
			return nil, &unknownWordError{what: "MIG profile of " + m.product, word: name, known: m.profileNames()}
		}
		w := wish{p, p.Starts, i}
		if fixed {
			start, err := strconv.Atoi(at)
			if err != nil || !slices.Contains(p.Starts, start) {
				return nil, fmt.Errorf("%s cannot start at memory slice %q, only at %v", name, at, p.Starts)
			}
			w.starts = []int{start}
		}
		wishes = append(wishes, w)
	}
	// The most constrained first: the search then hardly ever turns back.
	slices.SortStableFunc(wishes, func(a, b wish) int {
		if len(a.starts) != len(b.starts) {
			return len(a.starts) - len(b.starts)
		}
		return b.profile.Size - a.profile.Size
	})
	slots := make([]slot, 0, len(wishes))
	var search func() bool
	search = func() bool {
		i := len(slots)
		if i == len(wishes) {
			return true
		}
		for _, start := range wishes[i].starts {
			s := slot{wishes[i].profile, start, wishes[i].entry}
			if !fits(slots, s) {
				continue
			}
			slots = append(slots, s)
			if search() {
				return true
			}
			slots = slots[:i]
		}
		return false
	}
	if !search() {
		return nil, fmt.Errorf("%s do not fit together on %s", strings.Join(layout, " + "), m.product)
	}
	slices.SortFunc(slots, func(a, b slot) int {
		return a.instanceID(m.capacity.Memory) - b.instanceID(m.capacity.Memory)
	})
	return slots, nil
}

// fits reports whether an instance can be made beside others. Compute slices need
// no count of their own: the places keep them within the card's, because no small
// instance begins at the last memory slice of a card with fewer of them than of memory.
func fits(slots []slot, s slot) bool {
	same := 1
	for _, o := range slots {
		if s.start < o.start+o.profile.Size && o.start < s.start+s.profile.Size {
			return false
		}
		if s.profile.Exclusive != "" && o.profile.Exclusive == s.profile.Exclusive {
			return false
		}
		if o.profile.Name == s.profile.Name {
			same++
		}
	}
	return s.profile.Max == 0 || same <= s.profile.Max
}

// migResource is the device plugin's resource name of a profile.
func migResource(profile string) string {
	return "nvidia.com/mig-" + strings.ReplaceAll(profile, "+", ".")
}
