// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// A card that is gone and held is on the page in all that the division says, and in no series of its own.
func TestACardThatIsGoneIsOnThePageWithItsHolders(t *testing.T) {
	s := mixedNode()
	gone := card(9)
	gone.Lost = true
	s.Gone = []gpu.Device{gone}
	s.Division.Unallocated = append(slices.Clone(s.Division.Unallocated),
		sharing.Unallocated{Card: gone.UUID, Cause: sharing.CauseUnhealthy, Holder: holder("ml", "stranded"), Part: sharing.NewFraction(1, 4)},
		sharing.Unallocated{Card: gone.UUID, Cause: sharing.CauseUnhealthy, Part: sharing.NewFraction(3, 4)})
	page := pageOf(t, s, rowsOf(t, mixedCounters), mixedConfig())
	for _, want := range []string{
		`gpumeter_unallocated_share{UUID="GPU-9",reason="unhealthy"} 1`, `gpumeter_device_info{UUID="GPU-9",gpu="9"`,
		`gpumeter_uncharged_share{UUID="GPU-9",reason="unhealthy",namespace="ml",pod="stranded"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "DCGM_FI_") && strings.Contains(line, "GPU-9") {
			t.Errorf("a value of a card that is not there: %s", line)
		}
	}
}
