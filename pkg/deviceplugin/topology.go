// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// topology is how near the GPUs of a node are to each other.
type topology struct {
	nearness map[pair]int
}

type pair struct{ a, b gpu.UUID }

func pairOf(a, b gpu.UUID) pair {
	if a > b {
		a, b = b, a
	}
	return pair{a: a, b: b}
}

// What makes two GPUs near. One NVLink outweighs all that PCI can add up to in any set of GPUs
// of a node; a bridge more in common outweighs the NUMA node.
const (
	nearNUMA   = 1
	nearBridge = 2
	mostBridge = 20
	nearNVLink = 1_000_000
)

func newTopology(devices map[gpu.UUID]*allotted, links []Link) *topology {
	t := &topology{nearness: make(map[pair]int)}
	for _, a := range devices {
		for _, b := range devices {
			if a.UUID < b.UUID {
				if n := nearByPCI(a.Device, b.Device); n > 0 {
					t.nearness[pairOf(a.UUID, b.UUID)] = n
				}
			}
		}
	}
	for _, l := range links {
		if devices[l.A] != nil && devices[l.B] != nil && l.A != l.B && l.NVLinks > 0 {
			t.nearness[pairOf(l.A, l.B)] += nearNVLink * l.NVLinks
		}
	}
	return t
}

func nearByPCI(a, b *Device) int {
	near := 0
	if a.NUMANode >= 0 && a.NUMANode == b.NUMANode {
		near += nearNUMA
	}
	return near + nearBridge*min(commonBridges(a.PCIPath, b.PCIPath), mostBridge)
}

// commonBridges is how many steps two ways through the PCI bridges have in common.
func commonBridges(a, b string) int {
	if a == "" || b == "" {
		return 0
	}
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return n
}

func (t *topology) near(a, b gpu.UUID) int { return t.nearness[pairOf(a, b)] }

// searchLimit is how many GPUs are searched for the best set; of more a good set is built.
const searchLimit = 16

// nearest are so many of from that lie nearest to each other and to those that are chosen
// already. Of equally near sets it is the one that is the least near to what remains, so that
// the remaining GPUs stay together; of equals again the first in order.
func (t *topology) nearest(chosen, from []candidate, need int) []candidate {
	s := newSearch(t, chosen, from, need)
	if len(from) <= searchLimit {
		s.descend(0, 0, 0)
	} else {
		s.build()
	}
	best := make([]candidate, len(s.best))
	for i, at := range s.best {
		best[i] = from[at]
	}
	return best
}

// search looks for the best set among candidates that are known by their place.
type search struct {
	need int
	// near is how near two candidates are, toChosen a candidate to all that is chosen already,
	// toOthers to all other candidates.
	near               [][]int
	toChosen, toOthers []int
	// mostNear and mostChosen are the largest of their kind, the least that of toOthers.
	mostNear, mostChosen, leastOthers int

	picked, best         []int
	bestInside, bestDraw int
}

func newSearch(t *topology, chosen, from []candidate, need int) *search {
	s := &search{need: need, toChosen: make([]int, len(from)), toOthers: make([]int, len(from))}
	for i, x := range from {
		row := make([]int, len(from))
		for j, y := range from {
			if i != j {
				row[j] = t.near(x.Device, y.Device)
			}
			s.toOthers[i] += row[j]
			s.mostNear = max(s.mostNear, row[j])
		}
		s.near = append(s.near, row)
		for _, y := range chosen {
			s.toChosen[i] += t.near(x.Device, y.Device)
		}
		s.mostChosen = max(s.mostChosen, s.toChosen[i])
		if i == 0 || s.toOthers[i] < s.leastOthers {
			s.leastOthers = s.toOthers[i]
		}
	}
	return s
}

// gain is what the candidate adds to the nearness inside the picked set.
func (s *search) gain(at int) int {
	sum := s.toChosen[at]
	for _, other := range s.picked {
		sum += s.near[at][other]
	}
	return sum
}

// offer keeps the picked set if it is better than the best so far.
func (s *search) offer(inside, draw int) {
	if s.best == nil || inside > s.bestInside || inside == s.bestInside && draw < s.bestDraw {
		s.best, s.bestInside, s.bestDraw = append([]int(nil), s.picked...), inside, draw
	}
}

// descend tries all sets that begin with the picked ones, and turns back where none can be
// better than the best so far.
func (s *search) descend(from, inside, draw int) {
	left := s.need - len(s.picked)
	if left == 0 {
		s.offer(inside, draw)
		return
	}
	if s.best != nil {
		pairs := left*len(s.picked) + left*(left-1)/2
		most := inside + left*s.mostChosen + pairs*s.mostNear
		if most < s.bestInside || most == s.bestInside && draw+left*s.leastOthers >= s.bestDraw {
			return
		}
	}
	for at := from; at <= len(s.near)-left; at++ {
		gain := s.gain(at)
		s.picked = append(s.picked, at)
		s.descend(at+1, inside+gain, draw+s.toOthers[at])
		s.picked = s.picked[:len(s.picked)-1]
	}
}

// build grows a set from each candidate by the nearest next one, and keeps the best.
func (s *search) build() {
	for start := range s.near {
		s.picked = append(s.picked[:0], start)
		inside, draw := s.toChosen[start], s.toOthers[start]
		for len(s.picked) < s.need {
			next, most := -1, 0
			for at := range s.near {
				if slices.Contains(s.picked, at) {
					continue
				}
				if gain := s.gain(at); next < 0 || gain > most || gain == most && s.toOthers[at] < s.toOthers[next] {
					next, most = at, gain
				}
			}
			s.picked = append(s.picked, next)
			inside, draw = inside+most, draw+s.toOthers[next]
		}
		s.offer(inside, draw)
	}
	slices.Sort(s.best)
}
