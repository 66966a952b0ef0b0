// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// longestGap is for how long a state is believed to go on unseen. After a longer gap between two
// readings evidence of recovery starts to stand anew, and of a longer one no more than this
// counts as time unhealthy.
const longestGap = 5 * time.Minute

// fold is one call of Fold. d is the new state, written here alone; what it shares with the old
// one is not written to.
type fold struct {
	cfg *Config
	e   *Evidence
	now time.Time
	// elapsed is the time since the fold before, longestGap at most.
	elapsed time.Duration
	// heard is the fresh reading before this one. unseen says that nobody looked for longer
	// than longestGap since, setBack that the clock was.
	heard           time.Time
	unseen, setBack bool
	// boot is the boot id as told now, empty where it is not known.
	boot string
	// blind says that the reading lists no GPU at all.
	blind bool
	// unnamed says that the source waits for a GPU of which it does not know which one it is.
	unnamed bool
	// paused says that a repartition is under way: nobody is missed, and nothing is over.
	paused bool
	old    *data
	d      *data
	seen   []seen
	// durable says that something changed that must survive a restart.
	durable bool
	// recording says that the records are this fold's own.
	recording bool
}

// Fold is the state after a tick. s is not modified. Whatever the evidence contains, it costs
// what it concerns and no more: an event of no GPU, a value that cannot be, a foreign text.
//
// While a MIG manager divides the node's GPUs anew, resets and absences are its doing: no GPU is lost or stuck then, and
// none recovers. Whatever else is seen counts.
//
// The order in one fold is: which cards are there, what their levels say, what health checks found, what
// happened, what others saw happen, what they report, what has recovered. So what a reading says of recovery counts for what
// happened before it only.
func (r *Rules) Fold(s State, e Evidence) State {
	f := &fold{cfg: &r.cfg, e: &e, now: utc(e.Time), old: s.data, d: successor(s.data)}
	old := s.data
	if old != nil {
		f.elapsed = min(max(f.now.Sub(old.Time), 0), longestGap)
		f.heard = old.Heard
	}
	f.d.Time = f.now
	if old != nil && f.now.Before(old.Time) {
		f.rewind()
	}
	if f.boot = word(e.BootID); f.boot != "" && f.boot != f.d.BootID {
		f.restarted()
	}
	f.repartition()
	f.takeFacts()
	if e.Fresh {
		f.read()
	} else if e.Silent {
		f.silence()
	}
	f.witnesses()
	for i := range f.d.Cards {
		f.factsOf(&f.d.Cards[i])
		f.settle(&f.d.Cards[i])
	}
	f.forget()
	f.conclude()
	return State{f.d}
}

// restarted takes in that the kernel is another one. What reporters said of the time before is over, and
// evidence of recovery must stand within one boot.
func (f *fold) restarted() {
	if f.d.BootID != "" {
		f.d.Facts = nil
		f.standAnew()
	}
	f.d.BootID, f.durable = f.boot, true
}

// read takes in a fresh reading.
func (f *fold) read() {
	if f.d.Silent {
		f.d.Silent, f.durable = f.e.Silent, true
	}
	if gap := f.now.Sub(f.heard); gap > longestGap || gap < 0 {
		f.unseen = true
		f.standAnew()
	}
	f.d.Heard = f.now
	f.blind = !slices.ContainsFunc(f.e.Reading.Devices, func(d gpu.Device) bool { return !d.IsMIG() })
	f.arrange()
	f.look()
	for i := range f.seen {
		c := &f.d.Cards[i]
		f.presence(c, &f.seen[i])
		f.answering(c, &f.seen[i])
		f.levels(c, &f.seen[i])
	}
	f.links()
	f.checks()
	f.events()
	f.d.restored = false
}

// silence keeps what is known to be broken, and lets nothing recover unseen.
func (f *fold) silence() {
	if !f.d.Silent {
		f.d.Silent, f.durable = true, true
	}
	f.standAnew()
}

// standAnew makes evidence of recovery stand from the next look on, and of an absence or a silence
// that nothing has borne out yet likewise.
func (f *fold) standAnew() {
	for i := range f.d.Cards {
		c := &f.d.Cards[i]
		if !c.Gone && !c.Away.IsZero() {
			c.Away, f.durable = time.Time{}, true
		}
		if !c.Mute.IsZero() {
			f.mute(c, f.now)
		}
		for j := range f.d.Cards[i].Conditions {
			f.void(&f.d.Cards[i].Conditions[j])
		}
	}
}

// successor is a copy of the state whose cards and conditions can be written to. Parts, past
// and the times of a condition are shared still.
func successor(old *data) *data {
	if old == nil {
		return &data{}
	}
	d := *old
	d.Cards = slices.Clone(old.Cards)
	for i := range d.Cards {
		d.Cards[i].Conditions = slices.Clone(d.Cards[i].Conditions)
	}
	return &d
}

// arrange puts the cards into the order of the reading, adds those that are new, and takes
// over the MIG devices of each.
func (f *fold) arrange() {
	devices := f.e.Reading.Devices
	cards := f.d.Cards[:0:0]
	for i := range devices {
		d := &devices[i]
		if d.IsMIG() || d.UUID == "" || len(d.UUID) > mostWord || len(cards) == mostCards || has(cards, d.UUID) {
			continue
		}
		c := newCard(d.UUID)
		if k := slices.IndexFunc(f.d.Cards, func(c card) bool { return c.UUID == d.UUID }); k >= 0 {
			c = f.d.Cards[k]
		} else {
			f.durable = true
		}
		if !c.Met {
			f.exchange(d)
		}
		if bus := word(d.PCIBusID); bus != c.Bus {
			c.Bus, f.durable = bus, true
		}
		c.MIG = d.MIGEnabled
		c.Remaps = c.Remaps || d.MIGEnabled || len(d.MIGProfiles) > 0
		f.takeParts(&c, devices[i+1:])
		cards = append(cards, c)
	}
	listed := len(cards)
	for _, c := range f.d.Cards {
		if !has(cards[:listed], c.UUID) {
			cards = append(cards, c)
		}
	}
	f.d.Cards = cards
	f.seen = make([]seen, len(cards))
	for i := range devices {
		if k := f.card(devices[i].UUID, i); k >= 0 && !devices[i].IsMIG() && k < listed {
			f.seen[k].device = &devices[i]
		}
	}
}

func has(cards []card, id gpu.UUID) bool {
	return slices.ContainsFunc(cards, func(c card) bool { return c.UUID == id })
}

// card is the place of a card, -1 for none. hint is where it may be.
func (f *fold) card(id gpu.UUID, hint int) int {
	if hint < len(f.d.Cards) && f.d.Cards[hint].UUID == id {
		return hint
	}
	return slices.IndexFunc(f.d.Cards, func(c card) bool { return c.UUID == id })
}

// takeParts takes over the MIG devices that a reading lists for a card, among what follows
// it. Their statuses stay; the slice is written anew only if they differ.
func (f *fold) takeParts(c *card, rest []gpu.Device) {
	n, same := 0, true
	for i := range rest {
		d := &rest[i]
		if d.Parent != c.UUID || d.UUID == "" || len(d.UUID) > mostWord {
			continue
		}
		same = same && n < len(c.Parts) && c.Parts[n].isThe(d)
		n++
	}
	if same && n == len(c.Parts) {
		return
	}
	f.durable = true
	parts := make([]device, 0, min(n, mostParts))
	for i := range rest {
		d := &rest[i]
		if d.Parent != c.UUID || d.UUID == "" || len(d.UUID) > mostWord || len(parts) == mostParts {
			continue
		}
		p := device{UUID: d.UUID}
		if k := slices.IndexFunc(c.Parts, func(p device) bool { return p.UUID == d.UUID }); k >= 0 {
			p = c.Parts[k]
		}
		p.GPUInstance, p.ComputeInstance, p.Placement = d.GPUInstance, d.ComputeInstance, d.Placement
		parts = append(parts, p)
	}
	c.Parts = parts
}

func (p *device) isThe(d *gpu.Device) bool {
	return p.UUID == d.UUID && p.GPUInstance == d.GPUInstance && p.ComputeInstance == d.ComputeInstance && p.Placement == d.Placement
}

// exchange forgets a card in whose place on the bus there is another one now: that one, never seen
// before, is where it was. The place must tell cards apart, which it does not on every system.
func (f *fold) exchange(by *gpu.Device) {
	at := func(d gpu.Device) bool { return !d.IsMIG() && d.PCIBusID == by.PCIBusID }
	devices := f.e.Reading.Devices
	if i := slices.IndexFunc(devices, at); by.PCIBusID == "" || slices.ContainsFunc(devices[i+1:], at) {
		return
	}
	f.d.Cards = slices.DeleteFunc(f.d.Cards, func(c card) bool {
		return c.UUID != by.UUID && c.Bus == word(by.PCIBusID) && !slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.UUID == c.UUID })
	})
}

// forget drops what was never listed or is cleared and is not broken, and keeps the number of the
// others in bounds.
func (f *fold) forget() {
	if !slices.ContainsFunc(f.d.Cards, func(c card) bool { return !c.Listed }) {
		return
	}
	before := len(f.d.Cards)
	f.d.Cards = slices.DeleteFunc(f.d.Cards, func(c card) bool { return !c.Listed && !c.Met && len(c.Conditions) == 0 })
	if over := len(f.d.Cards) - mostCards; over > 0 {
		f.d.Cards = slices.DeleteFunc(f.d.Cards, func(c card) bool {
			drop := over > 0 && !c.Listed
			if drop {
				over--
			}
			return drop
		})
	}
	f.durable = f.durable || len(f.d.Cards) != before
}

func utc(t time.Time) time.Time { return t.UTC().Round(0) }
