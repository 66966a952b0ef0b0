// SPDX-License-Identifier: Apache-2.0

package app

import (
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
		{"g:0,5", []string{"--devices g:0,5 names what this node does not have: GPU 5 (it has GPUs 0-2)"}, ""},
		{"g:0+i:3,15", []string{"GPU instance 3 (it has GPU instances 14-15)"}, ""},
		{"g:7+i:15", []string{"GPU 7 (it has GPUs 0-2)"}, ""},
		{"g:7", nil, "--devices g:7 selects nothing here: this node has GPUs 0-2 and GPU instances 14-15"},
		{"i:0-3", nil, "--devices i:0-3 selects nothing here"},
	}
	for _, tt := range tests {
		c := Defaults()
		c.Devices = tt.devices
		warned, err := c.Misselected(divided())
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
	if warned, err := c.Misselected(&gpu.Reading{}); err != nil || len(warned) > 0 {
		t.Errorf("%q, %v", warned, err)
	}
}

func TestSwitchesAndCPUsAreMissedOnlyWhereAFieldAsksForThem(t *testing.T) {
	var fieldOf [gpu.ScopeConnectX + 1]gpu.FieldID
	for id := gpu.FieldID(1); id < 2000; id++ {
		if f, ok := gpu.FieldByID(id); ok && fieldOf[f.Scope] == 0 {
			fieldOf[f.Scope] = id
		}
	}
	c := Defaults()
	c.SwitchDevices, c.CPUDevices = "g:0,4+i:1", "g:2"
	r := divided()
	if warned, err := c.Misselected(r); err != nil || len(warned) > 0 {
		t.Errorf("no field of theirs is read: %q, %v", warned, err)
	}
	r.Fields = []gpu.FieldID{fieldOf[gpu.ScopeSwitch], fieldOf[gpu.ScopeLink], fieldOf[gpu.ScopeCPU]}
	r.Samples = []gpu.Sample{
		{Entity: gpu.Entity{Kind: gpu.KindSwitch, ID: 0}}, {Entity: gpu.Entity{Kind: gpu.KindLink, ID: 1}}, {Entity: gpu.Entity{Kind: gpu.KindLink, ID: 1}},
	}
	warned, err := c.Misselected(r)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(warned, "\n")
	for _, want := range []string{"switch 4 (it has switch 0)", "CPU 2 (it has no CPU)"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
	if len(warned) != 2 {
		t.Errorf("warnings %q", warned)
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
	eventuallySays(t, r.logs, "--devices g:1,3,9 names what this node does not have: GPU 9")
	if code, _ := get(t, http.DefaultClient, r.url+"/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
}
