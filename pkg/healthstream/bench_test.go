// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// full is a node of 8 GPUs, each cut into 7, the first of which has fallen off the bus.
func full(version uint64) *List {
	at := time.Unix(1_700_000_000, 0).UTC()
	list := &List{Epoch: "2026-01-01T00:00:00Z-1", Node: "node-1", Source: "dcgm", Report: health.Report{Time: at, BootID: "boot", Version: version}}
	for i := range 8 {
		card := gpu.UUID(fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i))
		var conditions []health.Condition
		if i == 0 {
			conditions = []health.Condition{{
				Subject: health.WholeCard(card), Kind: health.XIDKind(79), Class: health.ClassNode, Since: at, Last: at, Count: 1,
				BootID: "boot", XID: 79, Evidence: "XID 79: GPU has fallen off the bus",
			}}
		}
		for part := range 8 {
			d := Device{Device: gpu.Device{
				UUID: card, Index: i, Minor: i, PCIBusID: "00000000:18:00.0", Model: "NVIDIA H100 80GB HBM3", MIGEnabled: true,
				GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, InstanceEntity: gpu.NoInstance,
			}, MemoryBytes: 85 << 30, ComputeCapability: "9.0"}
			if part > 0 {
				d.UUID, d.Parent = gpu.UUID(fmt.Sprintf("MIG-00000000-0000-0000-000%d-%012d", part, i)), card
				d.GPUInstance, d.ComputeInstance, d.InstanceEntity = part+6, 0, i*7+part
				d.Profile = gpu.Profile{Name: "1g.10gb", Slices: gpu.Slices{Compute: 1, Memory: 1, SMs: 16}, ComputeInstanceSlices: 1, ComputeInstanceSMs: 16}
				d.Placement = gpu.Placement{Start: part - 1, Size: 1}
			}
			list.Devices = append(list.Devices, d)
			v := health.Verdict{Device: d.UUID, Card: card, Status: health.Healthy, Since: at, Conditions: conditions}
			if i == 0 {
				v.Status, v.Reason = health.Unhealthy, conditions[0].Evidence
			}
			list.Report.Verdicts = append(list.Report.Verdicts, v)
			list.Report.Records = append(list.Report.Records, health.Record{Device: d.UUID, Transitions: map[string]uint64{"healthy": 1}})
		}
	}
	return list
}

func BenchmarkEncode(b *testing.B) {
	list := full(1)
	size := 0
	b.ReportAllocs()
	for b.Loop() {
		data, err := proto.Marshal(encode(list))
		if err != nil {
			b.Fatal(err)
		}
		size = len(data)
	}
	b.ReportMetric(float64(size), "bytes/list")
}

func BenchmarkDecode(b *testing.B) {
	wire := encode(full(1))
	b.ReportAllocs()
	for b.Loop() {
		decode(wire)
	}
}

// BenchmarkChange is the way of one change from the source to a client.
func BenchmarkChange(b *testing.B) {
	socket, source := socketIn(b), newBoard(full(0))
	serve(b, NewServer(ServerConfig{Source: source}), socket)
	c := follow(b, ClientConfig{Socket: socket})
	version := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		version++
		source.pin(full(version))
		waitState(b, c, "the change", func(s ClientState) bool { return s.List != nil && s.List.Report.Version == version })
	}
}
