// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// The levels of which a health verdict is made follow their events, end with them, and go
// through a reset as the hardware's do.
func TestLevelsFollowTheirEvents(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, count: 3}]
events:
  - {at: 1m, do: recovery_action, gpu: 0, action: drain_and_reset, for: 1m}
  - {at: 1m, do: row_remap, gpu: 0, state: pending}
  - {at: 1m, do: row_remap, gpu: 0, state: failed}
  - {at: 1m, do: retired_pages, gpu: 0, count: 2}
  - {at: 1m, do: sram_threshold, gpu: 0, for: 10m}
  - {at: 1m, do: memory_unrepairable, gpu: 0}
  - {at: 1m, do: slowdown, gpu: 0, reason: power, for: 1m}
  - {at: 1m, do: recovery_action, gpu: 1, action: reboot}
  - {at: 1m, do: row_remap, gpu: 2, state: pending, for: 1m}
  - {at: 3m, do: retired_pages, gpu: 0}
  - {at: 4m, do: gpu_reset, gpu: 0}
  - {at: 5m, do: reboot, for: 10s}
`)
	levels := []gpu.FieldID{346, 391, 392, 395, 396, 1507, 1523}
	for _, tc := range []struct {
		at   time.Duration
		card int
		want string
	}{
		{0, 0, "[0 0 0 0 0 0 0]"},
		{time.Minute, 0, "[1 2 1 1 1 1 4]"},
		{2 * time.Minute, 0, "[1 2 1 1 1 1 0]"},
		{3 * time.Minute, 0, "[1 3 1 1 1 1 0]"},
		// A reset retires and remaps what waited; what is broken stays broken.
		{4 * time.Minute, 0, "[1 3 0 1 0 1 0]"},
		{11 * time.Minute, 0, "[0 3 0 1 0 1 0]"},
		{4 * time.Minute, 1, "[0 0 0 0 0 0 2]"},
		{5 * time.Minute, 1, "[0 0 0 0 0 0 0]"},
		{time.Minute, 2, "[0 0 0 0 1 0 0]"},
		{2 * time.Minute, 2, "[0 0 0 0 0 0 0]"},
	} {
		var got []float64
		for _, id := range levels {
			got = append(got, number(t, value(t, n, tc.at, tc.card, -1, id)))
		}
		if fmt.Sprint(got) != tc.want {
			t.Errorf("GPU %d at %s has %v of %v, want %s", tc.card, tc.at, got, levels, tc.want)
		}
	}
	for at, want := range map[time.Duration]int64{0: 1, time.Minute: 0x89, 2 * time.Minute: 1} {
		if got, _ := value(t, n, at, 0, -1, gpu.FieldClockReasons).AsInt(); got != want {
			t.Errorf("at %s idle GPU 0 has the clock reasons %#x, want %#x", at, got, want)
		}
	}
	if v, _ := value(t, n, 0, 0, -1, 63).AsInt(); v != 9<<16 {
		t.Errorf("the compute capability is %#x, want 9.0", v)
	}
}

// The driver tells each change of what a card needs once, also the change that a reset makes.
func TestChangesOfTheRecoveryActionAreTold(t *testing.T) {
	n := parsed(t, `
loop: 10m
gpus: [{model: H100-80, count: 2}]
events:
  - {at: 1m, do: recovery_action, gpu: 0, action: reset, for: 5m}
  - {at: 2m, do: recovery_action, gpu: 0, action: reboot}
  - {at: 2m, do: recovery_action, gpu: 1, action: drain_p2p}
  - {at: 3m, do: xid, gpu: 1, code: 94}
  - {at: 4m, do: gpu_reset, gpu: 0}
  - {at: 4m, do: gpu_reset, gpu: 0}
  - {at: 5m, do: reboot, for: 10s}
`)
	want := []string{"1m GPU 0 action 1", "2m GPU 0 action 2", "2m GPU 1 action 3", "3m GPU 1 xid 94", "4m GPU 0 action 0", "5m GPU 1 action 0"}
	if diff := cmp.Diff(want, eventWords(n, n.Events(-1, 10*time.Minute-1))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A card that is gone is not there at all: no device, no sample, no way to it, no id to hand
// out. It comes back under its old number.
func TestAGoneGPUIsNotListed(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80}, {model: H100-80, mig: [1g.10gb, 1g.10gb]}, {model: H100-80}]
pods: [{name: small, resource: nvidia.com/mig-1g.10gb, copies: 2}]
events:
  - {at: 1m, do: gpu_gone, gpu: 1, for: 1m}
  - {at: 3m, do: gpu_lost, gpu: 0}
  - {at: 4m, do: gpu_gone, gpu: 0}
`)
	fields := []gpu.FieldID{fieldPower, gpu.FieldHealthStatus, gpu.FieldP2PStatus}
	names := func(at time.Duration) string {
		r := n.ReadingAt(at, fields)
		var out []string
		for _, d := range r.Devices {
			out = append(out, fmt.Sprint(d.Index))
		}
		out = append(out, fmt.Sprintf("samples %d peers %d checked %d processes %d troubles %d ids %d",
			len(r.Samples), len(r.Peers), len(r.Health.Checked), len(r.Processes), len(r.Troubles), len(n.Advertised(at))))
		return strings.Join(out, " ")
	}
	whole := "0 1 1 1 2 samples 5 peers 6 checked 3 processes 2 troubles 0 ids 4"
	for at, want := range map[time.Duration]string{
		59 * time.Second: whole,
		time.Minute:      "0 2 samples 2 peers 2 checked 2 processes 0 troubles 0 ids 2",
		2 * time.Minute:  whole,
		3 * time.Minute:  "0 1 1 1 2 samples 5 peers 6 checked 3 processes 2 troubles 1 ids 3",
		4 * time.Minute:  "1 1 1 2 samples 4 peers 2 checked 2 processes 2 troubles 0 ids 3",
	} {
		if got := names(at); got != want {
			t.Errorf("at %s: %s, want %s", at, got, want)
		}
	}
}

// A reboot brings another boot id, takes the kubelet away, and brings lost cards back. Rounds of a
// story are no reboots of their own.
func TestARebootChangesTheBootID(t *testing.T) {
	n := parsed(t, `
loop: 10m
gpus: [{model: H100-80, count: 2}, {model: H100-80, lost: true}]
events:
  - {at: 1m, do: gpu_lost, gpu: 0}
  - {at: 2m, do: reboot, for: 30s}
  - {at: 8m, do: reboot, for: 30s}
`)
	var ids []string
	for _, at := range []time.Duration{0, 2*time.Minute - 1, 2 * time.Minute, 8 * time.Minute, 10 * time.Minute, 12 * time.Minute} {
		ids = append(ids, n.BootID(at))
	}
	if ids[0] == "" || ids[0] != ids[1] || ids[3] != ids[4] {
		t.Errorf("the boot id changes without a reboot: %q", ids)
	}
	if distinct := slices.Compact(slices.Clone(ids)); len(distinct) != 4 {
		t.Errorf("the boot ids are %q, want another from each reboot on", ids)
	}
	for at, want := range map[time.Duration][]int{time.Minute: {0, 2}, 2 * time.Minute: {2}} {
		var got []int
		for _, d := range n.ReadingAt(at, nil).Devices {
			if d.Lost {
				got = append(got, d.Index)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("at %s GPUs %v are lost, want %v", at, got, want)
		}
	}
	for at, want := range map[time.Duration]bool{time.Minute: false, 2 * time.Minute: true, 2*time.Minute + 30*time.Second: false} {
		if got := n.line.at(at).state.kubeletDown; got != want {
			t.Errorf("at %s the kubelet is down: %v, want %v", at, got, want)
		}
	}
}

// The state of each NVLink is a sample of its own where it is asked for, and only then.
func TestNVLinksAreUpUntilOneIsDown(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, count: 2}, {model: A30-24}]
events:
  - {at: 1m, do: nvlink_down, gpu: 1, link: 7, for: 1m}
  - {at: 1m, do: gpu_lost, gpu: 0, for: 1m}
`)
	down := func(at time.Duration) string {
		links, off := 0, []string{}
		for _, s := range n.ReadingAt(at, []gpu.FieldID{fieldPower, fieldLinkState}).Samples {
			if s.Entity.Kind != gpu.KindLink {
				continue
			}
			links++
			if v, _ := s.Values[1].AsInt(); v != 1 {
				off = append(off, fmt.Sprintf("%d/%d", slices.IndexFunc(n.cards, func(c card) bool { return c.uuid == s.Entity.GPU }), s.Entity.ID))
			}
		}
		return fmt.Sprint(links, off)
	}
	for at, want := range map[time.Duration]string{0: "36 []", time.Minute: "18 [1/7]", 2 * time.Minute: "36 []"} {
		if got := down(at); got != want {
			t.Errorf("at %s the links and those down are %s, want %s", at, got, want)
		}
	}
	if samples := n.ReadingAt(0, []gpu.FieldID{fieldPower}).Samples; len(samples) != 3 {
		t.Errorf("%d samples where no link is asked for, want 3", len(samples))
	}
}

// A health check finds what the levels say, and what the story has it find.
func TestHealthChecksFindTheDefects(t *testing.T) {
	n := parsed(t, `
gpus: [{model: H100-80, count: 2}]
events:
  - {at: 1m, do: incident, gpu: 0, system: PCIE, code: 104, result: warn, for: 2m}
  - {at: 1m, do: row_remap, gpu: 0, state: pending}
  - {at: 1m, do: row_remap, gpu: 0, state: failed}
  - {at: 1m, do: retired_pages, gpu: 0}
  - {at: 1m, do: sram_threshold, gpu: 0}
  - {at: 1m, do: nvlink_down, gpu: 0, link: 3}
  - {at: 1m, do: recovery_action, gpu: 0, action: reboot}
  - {at: 1m, do: slowdown, gpu: 1, reason: thermal}
  - {at: 1m, do: incident, gpu: 1, system: SM, code: 57}
`)
	found := func(at time.Duration) []string {
		var out []string
		for _, i := range n.ReadingAt(at, []gpu.FieldID{gpu.FieldHealthStatus}).Health.Incidents {
			out = append(out, fmt.Sprintf("%d %s %d %d", slices.IndexFunc(n.cards, func(c card) bool { return c.uuid == i.GPU }), i.System, i.Result, i.Code))
		}
		return out
	}
	want := []string{
		"0 PCIE 10 104", "0 NVLINK 20 14", "0 MEM 10 6", "0 MEM 20 80", "0 MEM 10 85", "0 MEM 20 118", "0 ALL 20 126",
		"1 SM 20 57", "1 THERMAL 10 10",
	}
	if got := found(0); got != nil {
		t.Errorf("at first: %q", got)
	}
	if diff := cmp.Diff(want, found(time.Minute)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[1:], found(3*time.Minute)); diff != "" {
		t.Errorf("after the incident (-want +got):\n%s", diff)
	}
}

// What a verb does not take is an error with the words that it does.
func TestVerbsOfHealthAreStrict(t *testing.T) {
	for event, want := range map[string]string{
		"{at: 1m, do: recovery_action, gpu: 0, action: resett}":             "did you mean reset?",
		"{at: 1m, do: recovery_action, gpu: 0}":                             "recovery_action without action",
		"{at: 1m, do: row_remap, gpu: 0, state: maybe}":                     "known: pending, failed",
		"{at: 1m, do: slowdown, gpu: 0, reason: cold}":                      "known: power, software_thermal, thermal",
		"{at: 1m, do: incident, gpu: 0, system: MEMORY, code: 4}":           "did you mean MEM?",
		"{at: 1m, do: incident, gpu: 0, system: MEM, code: 4, result: bad}": "unknown result",
		"{at: 1m, do: nvlink_down, gpu: 0, link: 64}":                       "link must be a whole number from 0 to 63",
		"{at: 1m, do: reboot}":                                              "reboot without for",
		"{at: 1m, do: gpu_reset, gpu: 0, for: 1m}":                          "gpu_reset has no use for",
	} {
		_, err := Parse("x.yaml", []byte("gpus: [{model: H100-80}]\nevents:\n  - "+event+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", event, err, want)
		}
	}
}
