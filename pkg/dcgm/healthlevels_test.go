// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// What a verdict on health goes by is what the engine says; what it does not say is absent, with
// its reason, and never 0.
func TestLevelsOfHealthAreWhatTheEngineSays(t *testing.T) {
	fields := []gpu.FieldID{311, 312, 346, 390, 391, 392, 395, 396, 1507, 1523, 112, 250, 63}
	m := node(t, "gpus 2 h100",
		"field 0 311 2", "field 0 312 9", "field 0 346 1", "field 0 390 3", "field 0 391 4", "field 0 392 1", "field 0 395 1", "field 0 396 1",
		"field 0 1507 1", "field 0 1523 2", "field 0 112 72", "field 0 250 81559", "field 0 63 589824",
		"field 1 311 0", "field 1 312 blank", "field 1 346 notsupported", "field 1 390 notfound", "field 1 391 notsupported", "field 1 392 blank",
		"field 1 395 notsupported", "field 1 396 notsupported", "field 1 1507 notsupported", "field 1 1523 notperm", "field 1 112 0",
		"field 1 250 81559", "field 1 63 524288")
	want := [][]string{
		{"2", "9", "1", "3", "4", "1", "1", "1", "1", "2", "72", "81559", "589824"},
		{
			"0", "(blank)", "(not_supported)", "(not_found)", "(not_supported)", "(blank)", "(not_supported)", "(not_supported)",
			"(not_supported)", "(not_permitted)", "0", "81559", "524288",
		},
	}
	m.until("the levels", fields, func(r gpu.Reading) string {
		for i, row := range want {
			for col, id := range fields {
				if got := cell(r, i, id); got != row[col] {
					return fmt.Sprintf("field %d of GPU %d is %s, want %s", id, i, got, row[col])
				}
			}
		}
		return ""
	})
}

// An engine that is older than a field does not have it, and a GPU in need is not one that is well.
func TestAnOldEngineDoesNotSayWhatAGPUNeeds(t *testing.T) {
	m := node(t, "version 4.2.3", "gpus 1 h100")
	m.until("what there was then", []gpu.FieldID{395, 1507, 1523}, func(r gpu.Reading) string {
		if got := cell(r, 0, 395) + cell(r, 0, 1507) + cell(r, 0, 1523); got != "0(not_supported)(not_supported)" {
			return got
		}
		return ""
	})
}

// waysOf are the ways of a reading, from index to index, as status and links.
func waysOf(r gpu.Reading) string {
	at := map[gpu.UUID]int{}
	for _, d := range r.Devices {
		at[d.UUID] = d.Index
	}
	out := ""
	for _, p := range r.Peers {
		out += fmt.Sprintf("%d-%d %d/%d ", at[p.From], at[p.To], p.Status, p.NVLinks)
	}
	return out
}

// Direct links are counted, but for a GPU that hangs: it keeps nobody from the ways that are
// known without it, and its links are counted when it is back.
func TestDirectNVLinksAreCountedWhenAllAnswer(t *testing.T) {
	m := node(t, "gpus 3 a100", "peer 0 1 0 links 4", "peer 1 2 5")
	fields := []gpu.FieldID{155, gpu.FieldP2PStatus}
	ways := func(want string) func(gpu.Reading) string {
		return func(r gpu.Reading) string {
			if got := waysOf(r); got != want {
				return fmt.Sprintf("%s, want %s", got, want)
			}
			return ""
		}
	}
	m.read(155)
	m.settings.pauses.round = time.Millisecond
	m.do("hang 2")
	m.read(155)
	m.until("the ways without links", fields, ways("0-1 0/0 0-2 0/0 1-0 0/0 1-2 5/0 2-0 0/0 2-1 5/0 "))
	if _, err := m.tryRead(fields...); err != nil {
		t.Error(err)
	}
	m.do("unhang 2")
	m.until("the ways with links", fields, ways("0-1 0/4 0-2 0/0 1-0 0/4 1-2 5/0 2-0 0/0 2-1 5/0 "))
	// They are not asked for again while the GPUs are the same.
	m.do("hang call dcgmGetDeviceTopology")
	for range 5 {
		m.read(fields...)
		time.Sleep(interval)
	}
	if state, err := m.sim.State(); err != nil || state.Blocked != 0 {
		t.Errorf("%d calls are stuck (%v), want none", state.Blocked, err)
	}
	m.do("unhang all")
}
