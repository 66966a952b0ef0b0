// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// units are what parts of a card are counted in here: every part in these stories is a whole number of them, so that the
// truth needs no fractions and is added up in integers.
const units = 112 * 60

// slot is something of a card that can be handed out: the card itself or a MIG device, in seats where it is shared.
type slot struct {
	device   gpu.UUID
	instance int
	profile  string
	weight   int64 // of units
	of       int64 // seats; 1 where it is not shared
	resource string
	mode     sharing.Mode
	tenants  []tenant
}

type tenant struct {
	holder sharing.Holder
	seats  int64
	until  int // the tick of its end
}

// box is a card with all that is on it.
type box struct {
	ledger.Card
	slots     []slot
	unhealthy bool
}

// part is one line of a card in units: what the truth is made of.
type part struct {
	key   string
	proof string // who held what, for a gap to be bridged by; empty where nobody did
	card  gpu.UUID
	units int64
	line  ledger.Line
}

// stretch is a time in which nothing changed. proven is what became known at its end of a gap before.
type stretch struct {
	ms     int64
	parts  []part
	proven []unproven
}

// unproven is what a pod held before a gap, and perhaps within: that it is the same pod after it would prove it.
type unproven struct {
	part
	ms, age int64
}

// history is a node's life: what happens, the book that is kept of it, and the truth beside.
type history struct {
	t       *testing.T
	rand    *rand.Rand
	boxes   []*box
	pods    int
	layouts int
	silent  int // ticks for which the kubelet says nothing
	tick    int

	now     time.Time // of the world, which Prometheus has
	booted  time.Time
	boots   int
	offset  time.Duration // of the node's wall clock
	stepped bool

	book *ledger.Book
	dir  string
	exp  *exporter.Exporter
	page *meter.Snapshot

	// stretches are the truth up to the last observation, seen what it saw; committed is how many stretches are on disk,
	// kept what was seen then.
	stretches []stretch
	seen      []part
	seenAt    time.Time
	committed int
	kept      []part
	keptAt    time.Time
	keptWall  time.Time
	rebooted  bool
	// late may still be proven; keptLate is what was so at the last commit.
	late, keptLate []unproven
	// hidden was held when nobody could see any more who holds its card; keptHidden is what was so at the last commit.
	hidden, keptHidden []unproven
	energy             map[gpu.UUID]int64
}

// Latest is the exporter's source.
func (h *history) Latest() *meter.Snapshot { return h.page }

func newHistory(t *testing.T, seed uint64, cards int) *history {
	h := &history{t: t, rand: rand.New(rand.NewPCG(seed, 7)), now: epoch, booted: epoch.Add(-time.Hour), dir: t.TempDir(), energy: map[gpu.UUID]int64{}}
	for i := range cards {
		b := &box{Card: ledger.Card{UUID: gpu.UUID(fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", seed, i)), Index: i, Model: []string{"H100", "A100"}[i%2], Memory: 80 << 10}}
		h.boxes = append(h.boxes, b)
		h.partition(b)
	}
	h.open()
	e, err := exporter.New(h, counters(t), exporter.Config{Hostname: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	h.exp = e
	return h
}

func (h *history) open() {
	h.book = ledger.OpenBook(ledger.BookConfig{Dir: h.dir, Node: "node-1", Version: "test", Policy: "blend"})
	book := h.book
	h.t.Cleanup(func() { _ = book.Close() })
}

// partition cuts a card anew: whole, shared, or in MIG devices, some of them shared.
func (h *history) partition(b *box) {
	h.layouts++
	seats := func() int64 { return []int64{2, 3, 4, 5, 10}[h.rand.IntN(5)] }
	switch h.rand.IntN(3) {
	case 0:
		b.slots = []slot{{device: b.UUID, instance: gpu.NoInstance, weight: units, of: 1, resource: "nvidia.com/gpu", mode: sharing.ModeExclusive}}
	case 1:
		b.slots = []slot{{device: b.UUID, instance: gpu.NoInstance, weight: units, of: seats(), resource: "nvidia.com/gpu.shared", mode: sharing.ModeShared}}
	case 2:
		b.slots = nil
		for i, weight := range []int64{15 * units / 112, 15 * units / 112, 30 * units / 112, 52 * units / 112} {
			s := slot{device: gpu.UUID(fmt.Sprintf("MIG-%s-%d-%d", b.UUID[4:], h.layouts, i)), instance: i, profile: []string{"1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"}[i], weight: weight, of: 1, mode: sharing.ModeMIG}
			s.resource = "nvidia.com/mig-" + s.profile
			if h.rand.IntN(3) == 0 {
				s.of, s.mode, s.resource = 2, sharing.ModeMIGShared, s.resource+".shared"
			}
			b.slots = append(b.slots, s)
		}
		if h.rand.IntN(2) == 0 {
			b.slots = b.slots[:3]
		}
	}
}

// happen is what one tick's time brings.
func (h *history) happen() {
	h.tick++
	h.now = h.now.Add(15 * time.Second)
	for _, b := range h.boxes {
		for i := range b.slots {
			s := &b.slots[i]
			s.tenants = slices.DeleteFunc(s.tenants, func(x tenant) bool { return x.until <= h.tick })
			free := s.of
			for _, x := range s.tenants {
				free -= x.seats
			}
			if free > 0 && h.rand.IntN(6) == 0 {
				h.admit(s, free)
			}
			// Replicas are added live: nobody loses a seat, but every part is smaller.
			if s.of > 1 && s.of < 10 && h.rand.IntN(150) == 0 {
				s.of = map[int64]int64{2: 4, 3: 5, 4: 5, 5: 10}[s.of]
			}
		}
		switch r := h.rand.IntN(400); {
		case r == 0:
			h.partition(b)
		case r < 3:
			b.unhealthy = !b.unhealthy
		}
		h.energy[b.UUID] += h.rand.Int64N(10_000_000)
	}
	if h.silent > 0 {
		h.silent--
	} else if h.rand.IntN(120) == 0 {
		h.silent = 1 + h.rand.IntN(10)
	}
}

// admit lets a pod in, for one tick or for days.
func (h *history) admit(s *slot, free int64) {
	h.pods++
	uid := fmt.Sprintf("uid-%d", h.pods)
	if h.rand.IntN(10) == 0 {
		uid = "" // The API server is away, and the kubelet's checkpoint does not tell.
	}
	lives := []int{1, 2, 5, 40, 400, 4000}[h.rand.IntN(6)]
	s.tenants = append(s.tenants, tenant{
		holder: sharing.Holder{Namespace: fmt.Sprintf("team-%d", h.rand.IntN(4)), Pod: fmt.Sprintf("job-%d", h.pods), PodUID: uid, Container: "main"},
		seats:  1 + h.rand.Int64N(min(free, 2)), until: h.tick + lives,
	})
}

// parts is how the node is divided now.
func (h *history) parts() []part {
	var all []part
	for _, b := range h.boxes {
		left := int64(units)
		put := func(s *slot, holder sharing.Holder, seats int64, cause sharing.Cause, n int64) {
			if n == 0 {
				return
			}
			left -= n
			all = append(all, piece(b, s, holder, seats, cause, n))
		}
		switch {
		case b.unhealthy:
			put(nil, sharing.Holder{}, 0, sharing.CauseUnhealthy, units)
		case h.silent > 0:
			put(nil, sharing.Holder{}, 0, sharing.CauseUnobserved, units)
		default:
			for i := range b.slots {
				s := &b.slots[i]
				rest := s.weight
				for _, x := range s.tenants {
					n := s.weight * x.seats / s.of
					rest -= n
					put(s, x.holder, x.seats, "", n)
				}
				cause := sharing.CauseFree
				if s.of > 1 {
					cause = sharing.CauseUnrequested
				}
				put(s, sharing.Holder{}, 0, cause, rest)
			}
			put(nil, sharing.Holder{}, 0, sharing.CauseStranded, left)
		}
	}
	return all
}

func piece(b *box, s *slot, holder sharing.Holder, seats int64, cause sharing.Cause, n int64) part {
	l := ledger.Line{Card: b.UUID, GPUInstance: gpu.NoInstance, Cause: cause, Part: sharing.NewFraction(n, units), Memory: sharing.NewFraction(n, units), Weight: sharing.One()}
	p := part{card: b.UUID, units: n, key: fmt.Sprintf("rest %s %s", b.UUID, cause)}
	if s != nil {
		l.Weight = sharing.NewFraction(s.weight, units)
		if s.device != b.UUID {
			l.Device, l.GPUInstance, l.Profile = s.device, s.instance, s.profile
		}
	}
	if cause == "" {
		l.Device, l.Holder, l.Resource, l.Mode, l.Seats, l.Of = s.device, holder, s.resource, s.mode, int(seats), int(s.of)
		p.key = heldText(ledger.Series{Namespace: holder.Namespace, Resource: s.resource, Mode: s.mode, Model: b.Model, Profile: s.profile})
		if holder.PodUID != "" {
			p.proof = fmt.Sprint(holder, l.Device, s.resource, s.mode)
		}
	}
	p.line = l
	return p
}

func heldText(s ledger.Series) string { return fmt.Sprintf("held %+v", s) }

func restText(x ledger.Rest) string {
	switch {
	case x.Corrected:
		return fmt.Sprintf("corrected %s %s", x.Card, x.Cause)
	case x.Cause == "":
		return fmt.Sprintf("capacity %s", x.Card)
	}
	return fmt.Sprintf("rest %s %s", x.Card, x.Cause)
}

func (h *history) instant() ledger.Instant {
	return ledger.Instant{BootID: fmt.Sprintf("boot-%d", h.boots), Boot: h.now.Sub(h.booted).Milliseconds(), Wall: h.now.Add(h.offset).UnixMilli()}
}

// observe has the book see the node, and the truth note what was between.
func (h *history) observe() {
	parts := h.parts()
	o := ledger.Observation{At: h.instant(), Energy: map[gpu.UUID]int64{}, Busy: map[gpu.UUID]int64{}, Basis: ledger.BasisEngine}
	for _, b := range h.boxes {
		o.Cards = append(o.Cards, b.Card)
		o.Energy[b.UUID] = h.energy[b.UUID]
		for _, s := range b.slots {
			o.Busy[s.device] = h.rand.Int64N(1_000_001)
		}
	}
	for _, p := range parts {
		o.Lines = append(o.Lines, p.line)
	}
	if h.seen != nil {
		s, gap := h.between(parts)
		h.stretches = append(h.stretches, s)
		h.hide(parts, gap)
		h.stretches[len(h.stretches)-1].proven = h.prove(parts)
	}
	h.seen, h.seenAt, h.rebooted = parts, h.now, false
	h.book.Observe(o)
}

// stallAfter is from when on a time between two observations proves nothing by itself.
const stallAfter = 5 * time.Minute

// between is what is true of the time since the last observation that counts.
func (h *history) between(now []part) (s stretch, gap bool) {
	if h.rebooted {
		h.hidden = nil
		return stretch{ms: h.now.Sub(h.booted).Milliseconds(), parts: bridged(h.seen, nil)}, true
	}
	s = stretch{ms: h.now.Sub(h.seenAt).Milliseconds(), parts: h.seen}
	if h.now.Sub(h.seenAt) > stallAfter || h.book != nil && h.crashed() {
		s.parts = bridged(h.seen, now)
		for _, p := range h.seen {
			if p.proof != "" && !slices.ContainsFunc(s.parts, func(b part) bool { return b.proof == p.proof && b.card == p.card }) {
				h.late = append(slices.Clone(h.late), unproven{p, s.ms, h.age() + s.ms})
			}
		}
		return s, true
	}
	return s, false
}

// hide notes what is held of cards that nobody can see the holders of from now on, and that what was hidden until now may
// be proven, on cards that somebody can see or after a gap.
func (h *history) hide(now []part, gap bool) {
	blind := map[gpu.UUID]bool{}
	for _, p := range now {
		blind[p.card] = blind[p.card] || p.line.Cause == sharing.CauseUnobserved
	}
	var hidden []unproven
	for _, u := range h.hidden {
		if blind[u.card] && !gap {
			hidden = append(hidden, u)
			continue
		}
		h.late = append(slices.Clone(h.late), unproven{u.part, h.age() - u.age, h.age()})
	}
	for _, p := range h.seen {
		if p.proof != "" && blind[p.card] && !gap {
			hidden = append(hidden, unproven{p, 0, h.age()})
		}
	}
	h.hidden = hidden
}

// age is all the time that was charged.
func (h *history) age() int64 {
	var sum int64
	for _, s := range h.stretches {
		sum += s.ms
	}
	return sum
}

// prove finds pods that are seen again within an hour.
func (h *history) prove(now []part) []unproven {
	var proven, left []unproven
	for _, l := range h.late {
		if h.age()-l.age > time.Hour.Milliseconds() {
			continue
		}
		i := slices.IndexFunc(now, func(p part) bool { return p.proof == l.proof && p.card == l.card })
		if i < 0 {
			left = append(left, l)
			continue
		}
		l.units = min(l.units, now[i].units)
		proven = append(proven, l)
	}
	h.late = left
	return proven
}

// crashed says that another process saw the node last.
func (h *history) crashed() bool { return h.keptAt.Equal(h.seenAt) && h.page == nil }

// bridged is what is known of a time that nobody saw: what a pod held before and after, it held all the while.
func bridged(before, after []part) []part {
	left := map[gpu.UUID]int64{}
	for _, p := range before {
		left[p.card] = units
	}
	var all []part
	for _, p := range before {
		for _, q := range after {
			if p.proof != "" && p.proof == q.proof && p.line.Device == q.line.Device {
				b := p
				b.units = min(p.units, q.units)
				left[p.card] -= b.units
				all = append(all, b)
			}
		}
	}
	for card, n := range left {
		if n > 0 {
			all = append(all, part{key: fmt.Sprintf("rest %s %s", card, sharing.CauseUnobserved), card: card, units: n})
		}
	}
	return all
}

// commit makes what was seen durable, and shows it.
func (h *history) commit() {
	if err := h.book.Commit(); err != nil {
		h.t.Fatal(err)
	}
	h.committed, h.kept, h.keptAt, h.keptWall = len(h.stretches), h.seen, h.seenAt, h.now.Add(h.offset)
	h.keptLate, h.keptHidden = h.late, h.hidden
	h.page = &meter.Snapshot{Seq: uint64(h.tick), Interval: 15 * time.Second, Observed: true, Time: h.now.Add(h.offset), Ledger: h.book.View()}
}

// kill ends the exporter between two commits, as the kernel would: what was not committed is forgotten. Another one
// begins after a while.
func (h *history) kill(away time.Duration, reboot bool) {
	dir := h.t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "book"), os.DirFS(filepath.Join(h.dir, "book"))); err != nil {
		h.t.Fatal(err)
	}
	h.dir = dir
	h.open()
	h.page = nil
	h.stretches, h.seen, h.seenAt = h.stretches[:h.committed], h.kept, h.keptAt
	h.late, h.hidden = h.keptLate, h.keptHidden
	h.pass(away)
	if reboot {
		h.boots++
		h.booted, h.rebooted = h.now.Add(-time.Minute), true
		for card := range h.energy {
			h.energy[card] = 0 // The driver counts anew.
		}
	}
}

// pass lets time pass that nobody looks at.
func (h *history) pass(away time.Duration) {
	for range int(away / (15 * time.Second)) {
		h.happen()
	}
}

// truth is what the registers must show after so many stretches, in whole microseconds.
func (h *history) truth(stretches int) map[string]int64 {
	sums := map[string]int64{}
	for _, s := range h.stretches[:stretches] {
		cards := map[gpu.UUID]bool{}
		for _, p := range s.parts {
			sums[p.key] += s.ms * p.units
			if !cards[p.card] {
				cards[p.card] = true
				sums[fmt.Sprintf("capacity %s", p.card)] += s.ms * units
			}
		}
		for _, p := range s.proven {
			sums[p.key] += p.ms * p.units
			sums[fmt.Sprintf("corrected %s %s", p.card, sharing.CauseUnobserved)] += p.ms * p.units
		}
	}
	for k := range sums {
		sums[k] = sums[k] * 1000 / units
	}
	return sums
}
