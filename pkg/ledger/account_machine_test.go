// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
	"pgregory.net/rapid"
)

// step is one thing that happens in a history: a meter begins, or one observes.
type step struct {
	begin bool
	o     Observation
}

// machine makes histories.
type machine struct {
	t       *rapid.T
	boot    int
	clock   int64
	skew    int64
	cards   []Card
	lines   map[gpu.UUID][]Line
	energy  map[gpu.UUID]int64
	unnamed bool
	// mayBlind says that nobody may be able to see who holds anything for a while, blind that it is so.
	mayBlind, blind bool
}

func (m *machine) chance(percent int, what string) bool {
	return rapid.IntRange(1, 100).Draw(m.t, what) > 100-percent
}

func (m *machine) holder() sharing.Holder {
	h := sharing.Holder{
		Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(m.t, "namespace"),
		Pod:       fmt.Sprintf("pod-%d", rapid.IntRange(0, 3).Draw(m.t, "pod")),
		Container: "main",
	}
	h.PodUID = "uid-" + h.Namespace + h.Pod
	if m.chance(20, "recreated") {
		h.PodUID += "-2"
	}
	return h
}

// divide cuts a card anew.
func (m *machine) divide(c Card) []Line {
	switch rapid.IntRange(0, 3).Draw(m.t, "division") {
	case 0:
		return []Line{freeLine(c)}
	case 1:
		return []Line{wholeLine(c, m.holder())}
	case 2:
		return m.seats(c)
	}
	return m.slices(c)
}

func (m *machine) seats(c Card) []Line {
	of := rapid.SampledFrom([]int{2, 3, 5, 7, 10}).Draw(m.t, "seats")
	left := of
	var lines []Line
	taken := map[sharing.Holder]bool{}
	for left > 0 && m.chance(70, "another seat") {
		h := m.holder()
		if taken[h] {
			break
		}
		taken[h] = true
		n := rapid.IntRange(1, left).Draw(m.t, "held")
		lines = append(lines, seatLine(c, h, n, of))
		left -= n
	}
	if left > 0 {
		part := fraction(int64(left), int64(of))
		lines = append(lines, restLine(c, sharing.CauseUnrequested, part, part))
	}
	return lines
}

func (m *machine) slices(c Card) []Line {
	var lines []Line
	n := rapid.IntRange(1, 7).Draw(m.t, "instances")
	for i := range n {
		part, memory := fraction(15, 112), fraction(1, 8)
		l := migLine(c, i+1, m.holder(), part, memory)
		if m.chance(40, "unheld") {
			l.Holder, l.Resource, l.Mode, l.Seats, l.Of, l.Cause = sharing.Holder{}, "", "", 0, 0, sharing.CauseFree
		}
		lines = append(lines, l)
	}
	left := sharing.One().Sub(fraction(15*int64(n), 112))
	return append(lines, restLine(c, sharing.CauseStranded, left, sharing.One().Sub(fraction(int64(n), 8))))
}

func (m *machine) instant() Instant {
	return Instant{BootID: fmt.Sprintf("boot-%d", m.boot), Boot: m.clock, Wall: epoch + m.clock + m.skew}
}

// step lets something happen.
func (m *machine) step() step {
	m.clock += rapid.SampledFrom([]int64{0, 1, 999, 1000, 10_000, 33_333, 60_000, 299_999, 300_001, 3_000_000}).Draw(m.t, "passed")
	s := step{begin: m.chance(15, "restart")}
	if s.begin && m.chance(30, "reboot") {
		m.boot++
		m.clock = rapid.Int64Range(0, 200_000).Draw(m.t, "up for")
		m.energy = map[gpu.UUID]int64{}
	}
	if m.chance(10, "clock step") {
		m.skew = rapid.Int64Range(-2*hour, 2*hour).Draw(m.t, "skew")
	}
	if m.chance(20, "unnamed") {
		m.unnamed = !m.unnamed
	}
	if m.mayBlind && m.chance(25, "blind") {
		m.blind = !m.blind
	}
	at := m.instant()
	if m.chance(3, "glitch") {
		at.Boot = max(0, at.Boot-rapid.Int64Range(1, 100_000).Draw(m.t, "back"))
	}
	s.o = Observation{
		At: at, Energy: map[gpu.UUID]int64{}, Busy: map[gpu.UUID]int64{}, XIDs: map[XID]uint64{},
		Basis: rapid.SampledFrom([]Basis{BasisEngine, BasisEngine, BasisUtil}).Draw(m.t, "basis"),
	}
	for i, c := range m.cards {
		if m.chance(3, "tells otherwise") {
			m.cards[i].Model = rapid.SampledFrom([]string{"A100", "A100X"}).Draw(m.t, "model")
			m.cards[i].Memory = rapid.SampledFrom([]int64{40960, 81920, 0}).Draw(m.t, "memory")
		}
		m.card(c, &s.o)
	}
	if m.chance(10, "XID") {
		s.o.XIDs[XID{GPU: m.cards[0].UUID, GPUInstance: -1, ComputeInstance: -1, Code: 31}] = 2
	}
	return s
}

func (m *machine) card(c Card, o *Observation) {
	if m.chance(4, "away") {
		return
	}
	if m.lines[c.UUID] == nil || m.chance(30, "changes") {
		m.lines[c.UUID] = m.divide(c)
	}
	o.Cards = append(o.Cards, c)
	lines := m.lines[c.UUID]
	if m.blind {
		lines = []Line{restLine(c, sharing.CauseUnobserved, sharing.One(), sharing.One())}
	}
	for _, l := range lines {
		if m.unnamed {
			l.Holder.PodUID = ""
		}
		o.Lines = append(o.Lines, l)
		if l.Device != "" && m.chance(80, "tells busy") {
			o.Busy[l.Device] = rapid.Int64Range(-10, 1_000_010).Draw(m.t, "busy")
		}
	}
	m.energy[c.UUID] += rapid.Int64Range(0, 700_000).Draw(m.t, "energy")
	if m.chance(3, "driver") {
		m.energy[c.UUID] = rapid.Int64Range(0, 1000).Draw(m.t, "new driver")
	}
	if m.chance(90, "tells energy") {
		o.Energy[c.UUID] = m.energy[c.UUID]
	}
}

// history is what happens to a machine whose holders can always be seen, anyHistory what happens to any.
func history(t *rapid.T) []step    { return happens(t, false) }
func anyHistory(t *rapid.T) []step { return happens(t, true) }

func happens(t *rapid.T, mayBlind bool) []step {
	m := &machine{t: t, mayBlind: mayBlind, clock: 5000, cards: []Card{a100(0), a100(1)}, lines: map[gpu.UUID][]Line{}, energy: map[gpu.UUID]int64{}}
	steps := []step{{begin: true, o: m.step().o}}
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		steps = append(steps, m.step())
	}
	return steps
}

// take lets an account see a step.
func (s *step) take(a *Account) []Record {
	var records []Record
	if s.begin {
		records = a.Begin(Begin{LedgerID: "ledger", Node: "node"}, s.o.At)
	}
	return append(records, a.Observe(s.o)...)
}
