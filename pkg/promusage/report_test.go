// SPDX-License-Identifier: Apache-2.0

package promusage

import (
	"testing"

	"github.com/prometheus/common/model"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

func TestOnlyLedgersOfNodesAskedForAreCounted(t *testing.T) {
	samples := model.Vector{
		{Metric: model.Metric{ledgerLabel: "l1"}}, {Metric: model.Metric{ledgerLabel: "l2"}}, {Metric: model.Metric{ledgerLabel: "of another node"}},
	}
	if n := asked(samples, []ledger.NodeUsage{{LedgerID: "l1"}, {LedgerID: "l2"}, {LedgerID: "l3"}}); n != 2 {
		t.Errorf("%d are counted, want 2", n)
	}
}
