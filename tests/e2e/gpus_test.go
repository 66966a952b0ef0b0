// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/tests/dcgmsim"
)

// The cards of the node: two whole ones, one that is shared, one in slices.
const (
	cards      = 4
	sharedCard = 2
	migCard    = 3
)

// instances are the GPU instances of the card in slices, as NVML counts them.
var instances = [...]int{7, 8}

// cardID is the UUID of a card, sliceID that of a MIG device.
func cardID(i int) string  { return fmt.Sprintf("GPU-e2e00000-0000-4000-8000-00000000000%d", i) }
func sliceID(i int) string { return fmt.Sprintf("MIG-e2e00000-0000-4000-8000-00000000001%d", i) }

// gpus are the cards as libdcgm has them.
type gpus struct {
	t   *testing.T
	sim *dcgmsim.Sim
}

func newGPUs(t *testing.T) *gpus {
	t.Helper()
	sim, err := dcgmsim.New(work, machine())
	if err != nil {
		t.Fatal(err)
	}
	return &gpus{t, sim}
}

func machine() string {
	var b strings.Builder
	fmt.Fprintf(&b, "gpus %d h100\n", cards)
	for i := range cards {
		fmt.Fprintf(&b, "gpu %d uuid %s\n", i, cardID(i))
	}
	fmt.Fprintf(&b, "mig %d on\n", migCard)
	for i, instance := range instances {
		fmt.Fprintf(&b, "gi %d profile 1g.10gb nvml %d placement %d uuid %s ci\n", migCard, instance, i, sliceID(i))
	}
	return b.String()
}

// do changes the cards.
func (g *gpus) do(commands ...string) {
	g.t.Helper()
	if err := g.sim.Do(commands...); err != nil {
		g.t.Fatal(err)
	}
}

// forget takes back what has happened: a library that is loaded anew reads all that it was
// ever told, and a driver does not tell again. Nobody may have the library loaded.
func (g *gpus) forget() {
	g.t.Helper()
	if err := os.WriteFile(g.sim.Path+".scenario", []byte(machine()), 0o600); err != nil {
		g.t.Fatal(err)
	}
}
