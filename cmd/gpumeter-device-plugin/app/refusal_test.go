// SPDX-License-Identifier: Apache-2.0

package app

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// A pod may hold a replica of any card: a config that would hand the card itself to another one is not taken.
func TestAConfigThatCannotShareIsNotTaken(t *testing.T) {
	const good = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
	for name, c := range map[string]struct {
		bad, says string
		// early says that the file alone tells that it is bad.
		early bool
	}{
		"a number that nobody can count": {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 20000000}]}}", "c.yaml:1:59: sharing.timeSlicing.resources[0].replicas is 20000000", true},
		"more than the kubelet takes":    {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 60000}]}}", "the kubelet takes", false},
		"MPS beyond its clients":         {"flags: {mpsRoot: /x}\nsharing: {mps: {resources: [{name: gpu, replicas: 49}]}}", "MPS takes 48", false},
		"a name that is too long":        {"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: " + strings.Repeat("x", 48) + ", replicas: 2}]}}", "63", false},
		"nothing in it":                  {"", "is empty", false},
		"comments alone":                 {"# version: v1\n---\n", "is empty", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(c *config) { c.healthSocket = "" }).config(good).look(2)
			before := s.to.last(t)
			s.config(c.bad)
			if s.look(2); len(s.to.states) != 1 || s.to.last(t).Revision != before.Revision {
				t.Errorf("handed over %d times, the last %+v", len(s.to.states), s.to.last(t).Settings.SharedResources)
			}
			if st := s.status.Load(); st.config.good || !strings.Contains(st.config.problem, c.says) {
				t.Errorf("the problem is %q, want %q in it", st.config.problem, c.says)
			}
			if s.config("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"); !s.status.Load().config.good {
				t.Errorf("then a good one is not taken: %s", s.status.Load().config.problem)
			}
			if strings.Contains(c.says, "empty") {
				return
			}
			first := newStage(t, func(c *config) { c.healthSocket = "" })
			err := first.takeConfig(configRead{name: "c.yaml", from: fromFile, data: []byte(c.bad)}, first.now)
			if (err != nil) != c.early {
				t.Errorf("at the start: %v", err)
			}
			if err == nil {
				first.look(2)
				if err := first.fatal(); err == nil || !strings.Contains(err.Error(), c.says) || len(first.to.states) > 0 {
					t.Errorf("at the start, with GPUs: %v, handed over %d times", err, len(first.to.states))
				}
			}
		})
	}
}

func TestAnEmptyFileAtTheStartIsNVIDIAsDefaults(t *testing.T) {
	s := newStage(t, func(c *config) { c.healthSocket = "" }).config("").look(1)
	if len(s.effective.warnings) == 0 || !strings.Contains(strings.Join(s.effective.warnings, "\n"), "c.yaml is empty") {
		t.Errorf("warnings %q", s.effective.warnings)
	}
	if s.config("# still nothing"); !s.status.Load().config.good {
		t.Errorf("nothing after nothing: %s", s.status.Load().config.problem)
	}
	s = newStage(t, func(c *config) { c.healthSocket = "" }).config("version: v1").look(1)
	if err := s.takeConfig(configRead{name: "c.yaml", from: fromFile, nothing: true}, s.now); err != nil || !s.status.Load().config.good {
		t.Errorf("the null device, which says that there is no config: %v", err)
	}
}

// A reading that lacks a GPU for once costs no capacity while the exporter still has a verdict about it.
func TestADeviceStaysWhileTheStreamHasAVerdictAboutIt(t *testing.T) {
	names := func(s *stage) string {
		var out []string
		for _, d := range s.to.last(t).Inventory.Devices {
			out = append(out, string(d.UUID))
		}
		return strings.Join(out, " ")
	}
	s := newStage(t, func(c *config) { c.source = sourceStream }).config("").list(listOf(healthy, healthy, healthy))
	full := names(s)
	gap := listOf(healthy, unknown, healthy)
	gap.Devices = append(gap.Devices[:1:1], gap.Devices[2:]...)
	if s.pass(time.Second).list(gap); names(s) != full {
		t.Errorf("during the gap: %s, want %s", names(s), full)
	}
	if s.list(listOf(healthy, healthy, healthy)); names(s) != full {
		t.Errorf("after it: %s", names(s))
	}
	gap.Report.Verdicts = append(gap.Report.Verdicts[:1:1], gap.Report.Verdicts[2:]...)
	if s.pass(time.Second).list(gap); names(s) != "GPU-0 GPU-2" {
		t.Errorf("without a verdict: %s", names(s))
	}
}

func TestAMIGDeviceThatStaysFollowsItsCard(t *testing.T) {
	part := gpu.Device{UUID: "MIG-1", Parent: "GPU-1", Index: 1}
	all := append(cards(2), part, cards(3)[2])
	kept := func(missing ...int) string {
		var next, before stock
		verdict := map[gpu.UUID]bool{}
		for i, d := range all {
			before.devices = append(before.devices, deviceplugin.Device{Device: d, NUMANode: -1})
			verdict[d.UUID] = true
			gone := false
			for _, m := range missing {
				gone = gone || m == i
			}
			if !gone {
				next.devices = append(next.devices, deviceplugin.Device{Device: d, NUMANode: -1})
			}
		}
		var out []string
		for _, d := range next.withKept(before, func(id gpu.UUID) bool { return verdict[id] }).devices {
			out = append(out, string(d.UUID))
		}
		return strings.Join(out, " ")
	}
	for _, missing := range [][]int{{}, {0}, {1}, {2}, {1, 2}, {3}, {0, 1, 2}, {0, 3}} {
		if got := kept(missing...); got != "GPU-0 GPU-1 MIG-1 GPU-2" {
			t.Errorf("without %v: %s", missing, got)
		}
	}
}
