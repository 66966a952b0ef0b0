// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"flag"
	"testing"
)

var ask = flag.String("ask", "", "a query to try on the fleet, with -run TestAsk -v")

// TestAsk tries a query on the fleet, for who designs a panel: go test -run TestAsk -v -args -ask 'up'.
func TestAsk(t *testing.T) {
	if *ask == "" {
		t.Skip("no -ask")
	}
	r := theRig(t)
	q, err := r.engine.NewInstantQuery(t.Context(), r.db, nil, *ask, r.now)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	t.Logf("\n%s", q.Exec(t.Context()))
}
