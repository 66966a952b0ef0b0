// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// The cards: four whole ones, two that are shared, two that are cut.
const (
	cards      = 8
	firstCut   = 6
	sharedList = `["4", "5"]`
)

// instance is a MIG device of a layout.
type instance struct {
	profile         string
	nvml, placement int
}

// layouts are how a card can be cut.
func layouts() [][]instance {
	var sevenths []instance
	for i := range 7 {
		sevenths = append(sevenths, instance{"1g.10gb", 7 + i, i})
	}
	return [][]instance{
		sevenths,
		{{"3g.40gb", 1, 4}, {"2g.20gb", 3, 0}, {"1g.10gb", 9, 2}},
		{{"2g.20gb", 3, 0}, {"2g.20gb", 4, 2}, {"1g.10gb", 11, 4}},
		{},
	}
}

// machine is what has become of the cards, as a driver knows it: it outlives the exporter's process, and events do not.
type machine struct {
	sim *dcgmsim.Sim

	mu     sync.Mutex
	lost   [cards]bool
	layout [cards]int
	// errs are what the library did not understand, which is the test's fault.
	errs []error
}

func newMachine(dir string) (*machine, error) {
	m := &machine{}
	for card := firstCut; card < cards; card++ {
		m.layout[card] = card - firstCut
	}
	var err error
	m.sim, err = dcgmsim.New(dir, m.description())
	return m, err
}

// description is the machine as the library reads it when it is loaded.
func (m *machine) description() string {
	var b strings.Builder
	fmt.Fprintf(&b, "gpus %d h100\n", cards)
	for card := range cards {
		fmt.Fprintf(&b, "gpu %d uuid GPU-50a60000-0000-4000-8000-00000000000%d\n", card, card)
	}
	for card := firstCut; card < cards; card++ {
		fmt.Fprintf(&b, "mig %d on\n", card)
		for _, line := range sliced(card, m.layout[card]) {
			fmt.Fprintln(&b, line)
		}
	}
	for card, lost := range m.lost {
		if lost {
			fmt.Fprintf(&b, "lost %d\n", card)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// sliced are the lines that make a card's instances. The same instance has the same UUID whenever it is made.
func sliced(card, layout int) []string {
	var lines []string
	for _, i := range layouts()[layout] {
		lines = append(lines, fmt.Sprintf("gi %d profile %s nvml %d placement %d uuid MIG-50a60000-0000-4000-8000-%02d%c%08d%d ci",
			card, i.profile, i.nvml, i.placement, card, i.profile[0], i.nvml, i.placement))
	}
	return lines
}

func (m *machine) do(commands ...string) {
	if err := m.sim.Do(commands...); err != nil {
		m.errs = append(m.errs, err)
	}
}

// xid is an error that the driver reports.
func (m *machine) xid(r *rand.Rand) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	card, code := r.IntN(cards), []int{13, 31, 43, 45, 63, 92, 94}[r.IntN(7)]
	m.do(fmt.Sprintf("xid %d %d", card, code))
	return fmt.Sprintf("XID %d on GPU %d", code, card)
}

// lose takes a card off the bus for some time.
func (m *machine) lose(r *rand.Rand) string {
	card, away := r.IntN(cards), time.Second+time.Duration(r.Int64N(int64(19*time.Second)))
	m.setLost(card, true)
	time.AfterFunc(away, func() { m.setLost(card, false) })
	return fmt.Sprintf("GPU %d lost for %v", card, away.Round(time.Second))
}

func (m *machine) setLost(card int, lost bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost[card] = lost
	m.do(fmt.Sprintf("%s %d", map[bool]string{true: "lost", false: "back"}[lost], card))
}

// hang makes the driver hang, or answer late, for calls about one card.
func (m *machine) hang(r *rand.Rand) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	card, span := r.IntN(cards), time.Second+time.Duration(r.Int64N(int64(9*time.Second)))
	begin, end, what := fmt.Sprintf("hang %d", card), fmt.Sprintf("unhang %d", card), "hangs"
	if r.IntN(2) == 0 {
		begin, end, what = fmt.Sprintf("slow %d 400ms", card), fmt.Sprintf("slow %d 0ms", card), "is slow"
	}
	m.do(begin)
	time.AfterFunc(span, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.do(end)
	})
	return fmt.Sprintf("GPU %d %s for %v", card, what, span.Round(time.Second))
}

// repartition cuts a card anew.
func (m *machine) repartition(r *rand.Rand) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	card, layout := firstCut+r.IntN(cards-firstCut), r.IntN(len(layouts()))
	var lines []string
	for _, i := range layouts()[m.layout[card]] {
		lines = append(lines, fmt.Sprintf("gi %d remove %d", card, i.nvml))
	}
	m.layout[card] = layout
	m.do(append(lines, sliced(card, layout)...)...)
	return fmt.Sprintf("GPU %d cut into %d", card, len(layouts()[layout]))
}

// forget takes back what has happened: a library that is loaded anew reads all that it was ever told, and a driver does not tell again. Nobody may
// have the library loaded.
func (m *machine) forget() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return os.WriteFile(m.sim.Path+".scenario", []byte(m.description()+"\n"), 0o600)
}

func (m *machine) problems() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.errs
}
