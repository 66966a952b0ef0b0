// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
	"github.com/gpumeter/gpumeter/pkg/sim"
)

func simNode(t *testing.T, scenario string) *sim.Node {
	t.Helper()
	s, err := sim.Parse("story", []byte(scenario))
	if err != nil {
		t.Fatal(err)
	}
	node, err := sim.NewNode(s, sim.Options{Start: noon})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func TestAReadingTellsWhatSharingNeeds(t *testing.T) {
	r := gpu.Reading{
		Fields:  []gpu.FieldID{112, fieldMemoryMiB, fieldComputeCapability},
		Devices: cards(2),
		Samples: []gpu.Sample{
			{Entity: entity(gpu.KindGPU, "GPU-0", 0), Values: []gpu.Value{gpu.Int(0), gpu.Int(81559), gpu.Int(9 << 16)}},
			{Entity: entity(gpu.KindGPU, "GPU-1", 0), Values: []gpu.Value{gpu.Int(0), gpu.Absent(gpu.ReasonLost), gpu.Absent(gpu.ReasonLost)}},
			{Entity: entity(gpu.KindGPUInstance, "GPU-1", 3), Values: []gpu.Value{gpu.Int(0), gpu.Int(9856), gpu.Int(8<<16 | 6)}},
		},
		Peers: []gpu.Peer{
			{From: "GPU-1", To: "GPU-0", NVLinks: 4}, {From: "GPU-0", To: "GPU-1", NVLinks: 4}, {From: "GPU-0", To: "GPU-0", NVLinks: 1},
			{From: "GPU-0", To: "GPU-2"},
		},
	}
	r.Devices = append(r.Devices, gpu.Device{UUID: "MIG-3", Parent: "GPU-1", GPUInstance: 3})
	s := stockOfReading(r)
	want := []deviceplugin.Device{
		{Device: r.Devices[0], NUMANode: -1, MemoryBytes: 81559 << 20, ComputeCapability: "9.0"},
		{Device: r.Devices[1], NUMANode: -1, ComputeCapability: "8.6"},
		{Device: r.Devices[2], NUMANode: -1, MemoryBytes: 9856 << 20, ComputeCapability: "8.6"},
	}
	if diff := cmp.Diff(want, s.devices); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]deviceplugin.Link{{A: "GPU-0", B: "GPU-1", NVLinks: 4}}, s.links); diff != "" {
		t.Error(diff)
	}
}

func TestAListTellsTheSame(t *testing.T) {
	l := &healthstream.List{Devices: []healthstream.Device{
		{Device: cards(2)[0], MemoryBytes: 1 << 30, ComputeCapability: "9.0", Peers: map[gpu.UUID]int{"GPU-1": 2}},
		{Device: cards(2)[1], Peers: map[gpu.UUID]int{"GPU-0": 2}},
	}}
	s := stockOfList(l)
	if d := s.devices[0]; d.MemoryBytes != 1<<30 || d.ComputeCapability != "9.0" || d.NUMANode != -1 {
		t.Errorf("device %+v", d)
	}
	if diff := cmp.Diff([]deviceplugin.Link{{A: "GPU-0", B: "GPU-1", NVLinks: 2}}, s.links); diff != "" {
		t.Error(diff)
	}
}

// What changes from reading to reading without a change of the node must not look like one.
func TestAnInventoryIsTheSameFromReadingToReading(t *testing.T) {
	node := simNode(t, "gpus: [{model: H100-80, count: 2}, {model: H100-80, mig: [3g.40gb, 1g.10gb]}]\nevents: [{at: 1h, do: repartition, gpu: 2, layout: [2g.20gb]}]\n")
	at := func(d time.Duration) stock { return stockOfReading(node.ReadingAt(d, readingFields())) }
	if a, b := at(time.Minute), at(30*time.Minute); !a.same(b) {
		t.Errorf("the inventory changed: %s", cmp.Diff(a.devices, b.devices))
	}
	if a, b := at(time.Minute), at(2*time.Hour); a.same(b) {
		t.Error("a repartition is not seen")
	}
	if got := at(0).String(); got != "3 GPUs, 2 MIG devices" {
		t.Errorf("it is summed up as %s", got)
	}
}
