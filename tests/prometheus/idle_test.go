// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// Who holds a GPU and does nothing with it used 0 of it, and not an amount that nobody knows.
func TestWhatIsHeldAndIdleIsTold(t *testing.T) {
	db := openStorage(t)
	m := meterOf{id: "l1", node: "n1", born: epoch.Add(-30 * time.Hour)}
	target := newTarget(db, "a", nil)
	for at := epoch.Add(-time.Minute); !at.After(epoch.Add(time.Hour)); at = at.Add(time.Minute) {
		page := m.page(at)
		for key := range page {
			if strings.Contains(key, "used_gpu_seconds") {
				page[key] = 0
			}
		}
		target.scrape(t, at, page)
	}
	u, err := reader(t, &web{storage: db}, nil).Usage(t.Context(), ledger.Query{Boundaries: hours(0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Held) != 1 || u.Held[0].GPU == 0 || !maps.Equal(u.Held[0].Used, map[ledger.Basis]int64{ledger.BasisEqual: 0}) {
		t.Errorf("held %+v", u.Held)
	}
}
