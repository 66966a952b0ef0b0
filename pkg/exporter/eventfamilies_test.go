// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestXIDCountersAreBornAtZero(t *testing.T) {
	s := dividedNode()
	none := gpu.NoInstance
	family := "gpumeter_xid_errors_total"
	wantSeries(t, pageOf(t, s, nil, Config{}), family)
	wantSeries(t, pageOf(t, s, nil, Config{XIDs: knownXIDs(t)}), family,
		`{UUID="GPU-0",xid="48",class="reset"} 0`, `{UUID="GPU-0",xid="79",class="node"} 0`,
		`{UUID="GPU-1",xid="48",class="reset"} 0`, `{UUID="GPU-1",xid="79",class="node"} 0`)

	s.Totals.XIDs = map[meter.XIDKey]uint64{
		{GPU: "GPU-0", GPUInstance: none, ComputeInstance: none, XID: 48}:  2,
		{GPU: "GPU-0", GPUInstance: none, ComputeInstance: none, XID: 777}: 1,
		{GPU: "GPU-0", GPUInstance: none, ComputeInstance: none, XID: 31}:  3,
		{GPU: "GPU-1", GPUInstance: 2, ComputeInstance: none, XID: 79}:     5,
		{GPU: "GPU-1", GPUInstance: 1, ComputeInstance: 3, XID: 31}:        4,
		// A card that has left keeps what was counted of it.
		{GPU: "GPU-away", GPUInstance: none, ComputeInstance: none, XID: 79}: 6,
	}
	wantSeries(t, pageOf(t, s, nil, Config{XIDs: knownXIDs(t)}), family,
		`{UUID="GPU-0",xid="48",class="reset"} 2`, `{UUID="GPU-0",xid="79",class="node"} 0`,
		`{UUID="GPU-1",xid="48",class="reset"} 0`, `{UUID="GPU-1",xid="79",class="node"} 0`,
		`{UUID="GPU-away",xid="79",class="node"} 6`,
		`{UUID="GPU-0",xid="31",class="app"} 3`, `{UUID="GPU-0",xid="777",class="watch"} 1`,
		`{UUID="GPU-1",GPU_I_ID="1",GPU_CI_ID="3",xid="31",class="app"} 4`, `{UUID="GPU-1",GPU_I_ID="2",xid="79",class="node"} 5`)
	wantSeries(t, pageOf(t, s, nil, Config{}), family,
		`{UUID="GPU-away",xid="79",class="watch"} 6`,
		`{UUID="GPU-0",xid="31",class="watch"} 3`, `{UUID="GPU-0",xid="48",class="watch"} 2`, `{UUID="GPU-0",xid="777",class="watch"} 1`,
		`{UUID="GPU-1",GPU_I_ID="1",GPU_CI_ID="3",xid="31",class="watch"} 4`, `{UUID="GPU-1",GPU_I_ID="2",xid="79",class="watch"} 5`)
}

// TestABlockedHealthCheckShows: the time of the last round stands still.
func TestABlockedHealthCheckShows(t *testing.T) {
	s := dividedNode()
	s.Reading.Health.Time = noon.Add(-time.Hour)
	const family = "gpumeter_health_check_timestamp_seconds"
	wantSeries(t, pageOf(t, s, rowsOf(t, computedCounters), Config{}), family, " 1741086000")
	wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), Config{}), family)
	s.Reading.Health.Time = time.Time{}
	wantSeries(t, pageOf(t, s, rowsOf(t, computedCounters), Config{}), family)
}

func TestThePageSaysWhereItsValuesComeFrom(t *testing.T) {
	s := ticked(gpu.Reading{}, sharing.Division{})
	wantSeries(t, pageOf(t, s, nil, Config{}), "gpumeter_source_info", `{source="sim"} 1`)
	s.Reading.Source = "dcgm"
	s.Reading.Origin = gpu.Origin{Library: "libdcgm 4.6.0", Engine: "unix:///run/engine.sock 4.6.0", Driver: "570.86.15"}
	wantSeries(t, pageOf(t, s, nil, Config{SourceReason: "a host engine is named"}), "gpumeter_source_info",
		`{source="dcgm",library="libdcgm 4.6.0",engine="unix:///run/engine.sock 4.6.0",driver="570.86.15",reason="a host engine is named"} 1`)
	// Why is known before what.
	wantSeries(t, pageOf(t, &meter.Snapshot{}, nil, Config{SourceReason: "no libdcgm.so.4"}), "gpumeter_source_info", `{reason="no libdcgm.so.4"} 1`)
	wantSeries(t, pageOf(t, &meter.Snapshot{}, nil, Config{}), "gpumeter_source_info")
}
