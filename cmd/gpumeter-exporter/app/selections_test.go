// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// divided is a node with two whole GPUs and one with two GPU instances.
func divided() *gpu.Reading {
	mig := func(uuid gpu.UUID, gi, entity int) gpu.Device {
		return gpu.Device{UUID: uuid, Parent: "GPU-2", Index: 2, GPUInstance: gi, InstanceEntity: entity}
	}
	return &gpu.Reading{Devices: []gpu.Device{
		{UUID: "GPU-0", Index: 0, InstanceEntity: gpu.NoInstance},
		{UUID: "GPU-1", Index: 1, Lost: true, InstanceEntity: gpu.NoInstance},
		{UUID: "GPU-2", Index: 2, MIGEnabled: true, InstanceEntity: gpu.NoInstance},
		mig("MIG-a", 1, 14), mig("MIG-b", 1, 14), mig("MIG-c", 9, 15),
	}}
}

func TestSelectionsAreHeldAgainstTheNode(t *testing.T) {
	tests := []struct {
		devices string
		// warned has a part of each warning; failed a part of the error.
		warned []string
		failed string
	}{
		{"f", nil, ""},
		{"g", nil, ""},
		{"g:1", nil, ""},
		{"i", nil, ""},
		{"i:14", nil, ""},
		{"g:0,5", []string{"--devices g:0,5: there is no GPU 5; this node has GPUs 0-2"}, ""},
		{"g:0+i:3,15", []string{"there is no GPU instance 3; this node has GPU instances 14-15"}, ""},
		{"g:7+i:15", []string{"there is no GPU 7; this node has GPUs 0-2"}, ""},
		{"g:9,5,1,7-8,5", []string{"there is no GPU 5, 7-9; this node has GPUs 0-2"}, ""},
		{"g:7", nil, "--devices g:7 selects nothing here: this node has GPUs 0-2 and GPU instances 14-15"},
		{"i:0-3", nil, "--devices i:0-3 selects nothing here"},
	}
	for _, tt := range tests {
		c := Defaults()
		c.Devices = tt.devices
		warned, err := c.Misselected(divided(), newCard("dcgm"))
		switch {
		case tt.failed != "" && (err == nil || !strings.Contains(err.Error(), tt.failed)), tt.failed == "" && err != nil:
			t.Errorf("%s: error %v, want %q", tt.devices, err, tt.failed)
		case len(warned) != len(tt.warned):
			t.Errorf("%s: warnings %q, want %q", tt.devices, warned, tt.warned)
		}
		for i, w := range tt.warned {
			if i < len(warned) && !strings.Contains(warned[i], w) {
				t.Errorf("%s: warning %q, want %q", tt.devices, warned[i], w)
			}
		}
	}
}

// A host engine may be up before its GPUs are.
func TestANodeWithoutGPUsIsNotMisselected(t *testing.T) {
	c := Defaults()
	c.Devices = "g:7"
	if warned, err := c.Misselected(&gpu.Reading{}, newCard("dcgm")); err != nil || len(warned) > 0 {
		t.Errorf("%q, %v", warned, err)
	}
}

// A GPU that hangs from the start is not listed yet.
func TestWhatMayOnlyBeSlowIsNotMisselected(t *testing.T) {
	c := Defaults()
	c.Devices = "g:7"
	r := divided()
	r.Troubles = []gpu.Trouble{{Reason: gpu.ReasonTimeout, Text: "a call for GPU 7 has not come back"}}
	if warned, err := c.Misselected(r, newCard("dcgm")); err != nil || len(warned) > 0 {
		t.Errorf("%q, %v", warned, err)
	}
	r.Troubles[0].GPU = "GPU-0"
	if _, err := c.Misselected(r, newCard("dcgm")); err == nil {
		t.Error("GPU 0 has said who it is, and is no reason to wait")
	}
}

// wholeNode is a driver that knows what is there beside what is selected.
type wholeNode struct {
	*card
	entities map[gpu.Kind][]int
}

func (n wholeNode) Entities(kind gpu.Kind) ([]int, bool) {
	ids, known := n.entities[kind]
	return ids, known
}

func TestSwitchesAndCPUsAreMissedWhereTheyCanBeKnown(t *testing.T) {
	var fieldOf [gpu.ScopeConnectX + 1]gpu.FieldID
	for id := gpu.FieldID(1); id < 2000; id++ {
		if f, ok := gpu.FieldByID(id); ok && fieldOf[f.Scope] == 0 {
			fieldOf[f.Scope] = id
		}
	}
	all := []gpu.FieldID{fieldOf[gpu.ScopeSwitch], fieldOf[gpu.ScopeLink], fieldOf[gpu.ScopeCPU], fieldOf[gpu.ScopeCPUCore]}
	two := map[gpu.Kind][]int{gpu.KindSwitch: {1, 0}, gpu.KindLink: {0, 1, 0, 1}}
	of := func(kind gpu.Kind, id int) gpu.Sample { return gpu.Sample{Entity: gpu.Entity{Kind: kind, ID: id}} }
	tests := []struct {
		name           string
		fields         []gpu.FieldID
		switches, cpus string
		samples        []gpu.Sample
		entities       map[gpu.Kind][]int
		warned         []string
		failed         string
	}{
		{"no field of theirs is read", nil, "g:0,4+i:1", "g:2", nil, two, nil, ""},
		{"everything", all, "f", "f", nil, two, nil, ""},
		{"one is not there", all, "g:9,0,4+i:1", "f", []gpu.Sample{of(gpu.KindSwitch, 0), of(gpu.KindLink, 1), of(gpu.KindLink, 1)}, nil,
			[]string{"--switch-devices g:9,0,4+i:1: there is no switch 4, 9"}, ""},
		{"one is not there, and the driver knows which are", all, "g:0,4", "f", []gpu.Sample{of(gpu.KindSwitch, 0)}, two,
			[]string{"--switch-devices g:0,4: there is no switch 4; this node has switches 0-1"}, ""},
		{"none is there, as far as it is known", all, "f", "g:2+i:1,0", nil, nil,
			[]string{"--cpu-devices g:2+i:1,0: no CPU 2 was found", "--cpu-devices g:2+i:1,0: no core 0-1 was found"}, ""},
		{"none is there", all, "g:0", "f", nil, map[gpu.Kind][]int{gpu.KindSwitch: {}}, []string{"--switch-devices g:0: this node has no switches"}, ""},
		{"nothing is selected", all, "g:9", "f", nil, two, nil, "--switch-devices g:9 selects nothing here: this node has switches 0-1 and links 0-1"},
		{"only the other kind has fields", []gpu.FieldID{fieldOf[gpu.ScopeCPUCore]}, "f", "g:0", nil, two,
			[]string{"--cpu-devices g:0 has no cores, and the counter file no field of a CPU: none is read"}, ""},
		{"a link is selected", all, "g:9+i:0", "f", []gpu.Sample{of(gpu.KindLink, 0)}, two, []string{"there is no switch 9; this node has switches 0-1"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Defaults()
			c.SwitchDevices, c.CPUDevices = tt.switches, tt.cpus
			r := divided()
			r.Fields, r.Samples = tt.fields, tt.samples
			warned, err := c.Misselected(r, wholeNode{newCard("dcgm"), tt.entities})
			if got := fmt.Sprint(err); tt.failed == "" && err != nil || tt.failed != "" && got != tt.failed {
				t.Errorf("error %s, want %q", got, tt.failed)
			}
			if len(warned) != len(tt.warned) {
				t.Fatalf("warnings %q, want %q", warned, tt.warned)
			}
			for i, want := range tt.warned {
				if !strings.Contains(warned[i], want) {
					t.Errorf("warning %q, want %q", warned[i], want)
				}
			}
		})
	}
}

func TestRangesAreWrittenAsPeopleDo(t *testing.T) {
	for want, in := range map[string][]int{"": nil, "3": {3}, "0-1": {0, 1}, "0-3, 5, 7-8": {0, 1, 2, 3, 5, 7, 8}} {
		if got := Ranges(in); got != want {
			t.Errorf("%v: %q, want %q", in, got, want)
		}
	}
}

func TestSelectedGPUsHaveSeriesAndTheOthersShares(t *testing.T) {
	cfg := simulated()
	cfg.Devices = "g:1,3,9"
	r := start(t, cfg)
	page := eventually(t, r.url+"/metrics", "DCGM_FI_DEV_GPU_TEMP{")
	for number, want := range map[string]bool{"0": false, "1": true, "2": false, "3": true} {
		if got := strings.Contains(page, `DCGM_FI_DEV_GPU_TEMP{gpu="`+number+`"`); got != want {
			t.Errorf("GPU %s has a temperature: %v, want %v", number, got, want)
		}
	}
	if n := strings.Count(page, "\ngpumeter_unallocated_share{"); n < 5 {
		t.Errorf("%d unallocated parts: a selection must not take GPUs out of the account", n)
	}
	eventuallySays(t, r.logs, "--devices g:1,3,9: there is no GPU 9")
	if code, _ := get(t, http.DefaultClient, r.url+"/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
}
