// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// TestSharesAddUp: what the exposition says of a card adds up to one, because equal
// label sets are summed before they are rounded.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := bare(card(0))
		of := rapid.IntRange(1, 48).Draw(t, "of")
		held := rapid.IntRange(0, of).Draw(t, "held")
		var div sharing.Division
		for seat := range held {
			pod := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "pod")
			div.Shares = append(div.Shares, seats(d, holder("ns", pod), sharing.One(), of, seat))
		}
		div.Unallocated = []sharing.Unallocated{{Card: d.UUID, Cause: sharing.CauseUnrequested, Part: sharing.NewFraction(int64(of-held), int64(of))}}
		families := buildContent(&Config{HostnameLabel: "hostname"}, &settings{}, ticked(temps([]gpu.Device{d}, nil), div), extent{})
		sum, pods := 0.0, 0
		for _, f := range families.families {
			for _, s := range families.samples[f.first:f.end] {
				switch f.name {
				case "gpumeter_allocation_share":
					pods++
					sum += s.float()
				case "gpumeter_unallocated_share":
					sum += s.float()
				}
			}
		}
		if pods > 3 {
			t.Fatalf("%d series for three pods", pods)
		}
		if diff := sum - 1; diff > 1e-15 || diff < -1e-15 {
			t.Fatalf("parts add up to 1%+g", diff)
		}
	})
}

func TestInstanceProfileNames(t *testing.T) {
	for name, want := range map[string]string{
		"1g.10gb": "1g.10gb", "1c.3g.40gb": "3g.40gb", "2c.7g.80gb": "7g.80gb", "1g.10gb+me": "1g.10gb+me", "": "", "c.x": "c.x", "xc.y": "xc.y",
	} {
		if got := instanceProfileName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestProcessesPerDevice(t *testing.T) {
	d, lost := bare(card(0)), bare(card(1))
	lost.Lost = true
	s1 := slice(d, 1, "3g.40gb", 3)
	s := ticked(temps([]gpu.Device{d, s1, lost}, nil), sharing.Division{})
	wantSeries(t, pageOf(t, s, nil, Config{}), "gpumeter_device_processes")
	s.Reading.Processes = []gpu.Process{{GPU: "GPU-0", GPUInstance: 1}, {GPU: "GPU-0", GPUInstance: 1}, {GPU: "GPU-0", GPUInstance: gpu.NoInstance}}
	wantSeries(t, pageOf(t, s, nil, Config{}), "gpumeter_device_processes", `{UUID="GPU-0"} 1`, `{UUID="GPU-0",GPU_I_ID="1"} 2`)
}

func TestUnobservedNodeSaysNothingOfTheKubelet(t *testing.T) {
	s := mixedNode()
	s.Observed = false
	page := pageOf(t, s, nil, Config{})
	for _, name := range []string{"gpumeter_kubelet_pods", "gpumeter_kubelet_containers", "gpumeter_skipped_allocations"} {
		wantSeries(t, page, name)
	}
}

func TestASourceThatNeverFinishedACallHasNoDuration(t *testing.T) {
	s := mixedNode()
	s.Sources = []meter.SourceState{
		{Name: "waiting", Age: -time.Second, Outstanding: time.Second},
		{Name: "failing", Age: -time.Second, Took: 2 * time.Second},
	}
	page := pageOf(t, s, rowsOf(t, mixedCounters), Config{})
	if strings.Contains(page, `gpumeter_source_call_duration_seconds{source="waiting"}`) {
		t.Error("a call that has not finished took no time")
	}
	for _, want := range []string{`gpumeter_source_outstanding_seconds{source="waiting"} 1`, `gpumeter_source_call_duration_seconds{source="failing"} 2`} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("page lacks %s", want)
		}
	}
}
