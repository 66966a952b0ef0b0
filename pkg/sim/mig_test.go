// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func modelNamed(t testing.TB, key string) *model {
	for _, m := range builtinModels() {
		if m.key == key {
			return &m
		}
	}
	t.Fatalf("no model %s", key)
	return nil
}

func TestPlaceLayouts(t *testing.T) {
	for _, tc := range []struct {
		model, layout string
		// want is "profile@start#instance" in the order of instances, or a part of the error.
		want, fails string
	}{
		{"H100-80", "3g.40gb 2g.20gb 1g.10gb 1g.10gb", "3g.40gb@4#2 2g.20gb@0#3 1g.10gb@2#9 1g.10gb@3#10", ""},
		{"H100-80", "4g.40gb 3g.40gb", "4g.40gb@0#1 3g.40gb@4#2", ""},
		{"H100-80", "3g.40gb 4g.40gb", "4g.40gb@0#1 3g.40gb@4#2", ""},
		{"H100-80", "7g.80gb", "7g.80gb@0#0", ""},
		{"H100-80", "1g.20gb 1g.20gb 1g.20gb 1g.20gb", "1g.20gb@0#3 1g.20gb@2#4 1g.20gb@4#5 1g.20gb@6#6", ""},
		{"H100-80", "1g.10gb@6 3g.40gb@0", "3g.40gb@0#1 1g.10gb@6#13", ""},
		{"H100-80", "1g.10gb+me 1g.10gb", "1g.10gb+me@0#7 1g.10gb@1#8", ""},
		{"A30-24", "2g.12gb 1g.6gb 1g.6gb", "2g.12gb@0#1 1g.6gb@2#5 1g.6gb@3#6", ""},
		{"RTX-PRO-6000", "2g.48gb-me 1g.24gb+gfx 1g.24gb+me.all", "2g.48gb-me@0#1 1g.24gb+gfx@2#5 1g.24gb+me.all@3#6", ""},
		{"H100-80", "", "", ""},

		{"H100-80", "4g.40gb 4g.40gb", "", "do not fit together"},
		{"H100-80", "3g.40gb 3g.40gb 1g.10gb", "", "do not fit together"},
		{"H100-80", "7g.80gb 1g.10gb", "", "do not fit together"},
		{"H100-80", "4g.40gb 2g.20gb 2g.20gb", "", "do not fit together"},
		{"H100-80", "1g.10gb+me 1g.10gb+me", "", "do not fit together"},
		{"H100-80", "3g.40gb@2", "", "cannot start at memory slice"},
		{"H100-80", "3g.40gb@x", "", "cannot start at memory slice"},
		{"H100-80", strings.Repeat("1g.10gb ", 9), "", "more than"},
		{"A100-SXM4-40GB", "3g.40gb", "", "did you mean"},
		{"RTX-PRO-6000", "1g.24gb+me 1g.24gb+me.all", "", "do not fit together"},
	} {
		t.Run(tc.model+" "+tc.layout, func(t *testing.T) {
			m := modelNamed(t, tc.model)
			slots, err := m.place(strings.Fields(tc.layout))
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("error %v, want one with %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := slotWords(m, slots); got != tc.want {
				t.Fatalf("placed %q, want %q", got, tc.want)
			}
		})
	}
}

func slotWords(m *model, slots []slot) string {
	var words []string
	for _, s := range slots {
		words = append(words, s.profile.Name+"@"+strconv.Itoa(s.start)+"#"+strconv.Itoa(s.instanceID(m.capacity.Memory)))
	}
	return strings.Join(words, " ")
}

// Whatever can be placed never overlaps, never exceeds the card, and has instance
// ids of its own; its memory fits into the card's.
func TestPlacedLayoutsAreLegal(t *testing.T) {
	models := builtinModels()
	rapid.Check(t, func(t *rapid.T) {
		m := &models[rapid.IntRange(0, len(models)-1).Draw(t, "model")]
		layout := rapid.SliceOfN(rapid.SampledFrom(m.profileNames()), 0, 7).Draw(t, "layout")
		slots, err := m.place(layout)
		if err != nil {
			return
		}
		if len(slots) != len(layout) {
			t.Fatalf("%d slots for %v", len(slots), layout)
		}
		memory, ids, compute, mib := map[int]bool{}, map[int]bool{}, 0, 0
		for _, s := range slots {
			for k := range s.profile.Size {
				if memory[s.start+k] || s.start+k >= m.capacity.Memory {
					t.Fatalf("%v overlap or overrun at slice %d", slots, s.start+k)
				}
				memory[s.start+k] = true
			}
			id := s.instanceID(m.capacity.Memory)
			if ids[id] {
				t.Fatalf("instance id %d twice in %v", id, slots)
			}
			ids[id] = true
			compute += s.profile.Compute
			mib += m.instanceMiB[s.profile.Name]
		}
		if compute > m.capacity.Compute || mib > m.memoryMiB {
			t.Fatalf("%v has %d compute slices and %d MiB", layout, compute, mib)
		}
	})
}

// The largest profile of each card is the card's capacity.
func TestCapacityIsTheLargestProfile(t *testing.T) {
	for _, m := range builtinModels() {
		largest := m.profiles[0]
		for _, p := range m.profiles {
			if p.Compute > largest.Compute {
				largest = p
			}
			if p.Size != p.Memory || p.Name == "" || len(p.Starts) == 0 {
				t.Errorf("%s: odd profile %+v", m.key, p)
			}
		}
		if largest.Slices != m.capacity {
			t.Errorf("%s: capacity %+v, largest profile %+v", m.key, m.capacity, largest.Slices)
		}
	}
}
