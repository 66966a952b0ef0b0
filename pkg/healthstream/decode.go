// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

// decode is the list that came over the wire. What cannot be told apart costs itself only: a
// device or a verdict without a name, and all but the first of one name, are left out.
func decode(n *healthv1.NodeHealth) *List {
	return &List{
		Epoch:   n.GetEpoch(),
		Node:    n.GetNode(),
		Source:  n.GetSource(),
		Devices: named(each(n.GetDevices(), decodeDevice), func(d Device) gpu.UUID { return d.UUID }),
		Report: health.Report{
			Time:      timeOf(n.GetTime()),
			BootID:    n.GetBootId(),
			Version:   n.GetVersion(),
			Verdicts:  named(each(n.GetVerdicts(), decodeVerdict), func(v health.Verdict) gpu.UUID { return v.Device }),
			Records:   named(each(n.GetRecords(), decodeRecord), func(r health.Record) gpu.UUID { return r.Device }),
			Clearings: each(n.GetClearings(), decodeClearing),
			Ended:     each(n.GetEnded(), decodeEnding),

			Repartition: decodeRepartition(n.GetRepartition()),
		},
	}
}

func decodeRepartition(r *healthv1.Repartition) health.Repartition {
	return health.Repartition{
		State: health.MIGState(r.GetState()), Since: timeOf(r.GetSince()), Began: timeOf(r.GetBegan()), Until: timeOf(r.GetUntil()),
		Paused: r.GetPaused(), Overdue: r.GetOverdue(),
	}
}

// named are those of all that have a name, each name once.
func named[T any](all []T, name func(T) gpu.UUID) []T {
	seen := make(map[gpu.UUID]bool, len(all))
	all = slices.DeleteFunc(all, func(one T) bool {
		n := name(one)
		drop := n == "" || seen[n]
		seen[n] = true
		return drop
	})
	if len(all) == 0 {
		return nil
	}
	return all
}

func decodeDevice(d *healthv1.Device) Device {
	out := Device{
		Device: gpu.Device{
			UUID:            gpu.UUID(d.GetUuid()),
			Parent:          gpu.UUID(d.GetParent()),
			Index:           int(d.GetIndex()),
			Minor:           orNone(d.Minor),
			PCIBusID:        d.GetPciBusId(),
			Model:           d.GetModel(),
			MIGEnabled:      d.GetMigEnabled(),
			Lost:            d.GetLost(),
			GPUInstance:     orNone(d.GpuInstanceId),
			ComputeInstance: orNone(d.ComputeInstanceId),
			InstanceEntity:  orNone(d.InstanceEntity),
			Profile:         decodeProfile(d.GetProfile()),
			Placement:       decodePlacement(d.GetPlacement()),
		},
		MemoryBytes:       d.GetMemoryBytes(),
		ComputeCapability: d.GetComputeCapability(),
	}
	for _, p := range d.GetPeers() {
		if p.GetUuid() == "" || p.GetNvlinks() <= 0 {
			continue
		}
		if out.Peers == nil {
			out.Peers = make(map[gpu.UUID]int, len(d.GetPeers()))
		}
		out.Peers[gpu.UUID(p.GetUuid())] = int(p.GetNvlinks())
	}
	return out
}

func decodeProfile(p *healthv1.Profile) gpu.Profile {
	return gpu.Profile{
		Name: p.GetName(),
		Slices: gpu.Slices{
			Compute: int(p.GetComputeSlices()), Memory: int(p.GetMemorySlices()), SMs: int(p.GetMultiprocessors()),
		},
		ComputeInstanceSlices: int(p.GetComputeInstanceSlices()),
		ComputeInstanceSMs:    int(p.GetComputeInstanceMultiprocessors()),
	}
}

func decodePlacement(p *healthv1.Placement) gpu.Placement {
	return gpu.Placement{Start: int(p.GetStart()), Size: int(p.GetSize())}
}

func decodeVerdict(v *healthv1.Verdict) health.Verdict {
	return health.Verdict{
		Device:     gpu.UUID(v.GetDevice()),
		Card:       gpu.UUID(v.GetCard()),
		Status:     decodeStatus(v.GetStatus()),
		Since:      timeOf(v.GetSince()),
		Avoid:      v.GetAvoid(),
		Reason:     v.GetReason(),
		Conditions: each(v.GetConditions(), decodeCondition),
	}
}

// decodeStatus is Unknown for what only a newer server knows.
func decodeStatus(s healthv1.Status) health.Status {
	switch s {
	case healthv1.Status_STATUS_HEALTHY:
		return health.Healthy
	case healthv1.Status_STATUS_UNHEALTHY:
		return health.Unhealthy
	default:
		return health.Unknown
	}
}

// decodeClass is none for what only a newer server knows; the verdict's status is what counts.
func decodeClass(c healthv1.Class) health.Class {
	if c < 0 || c > healthv1.Class_CLASS_HARDWARE {
		return 0
	}
	return health.Class(c)
}

func decodeCondition(c *healthv1.Condition) health.Condition {
	return health.Condition{
		Subject: health.Subject{
			GPU:             gpu.UUID(c.GetGpu()),
			GPUInstance:     orNone(c.GpuInstanceId),
			ComputeInstance: orNone(c.ComputeInstanceId),
			Placement:       decodePlacement(c.GetPlacement()),
		},
		Kind:            health.Kind(c.GetKind()),
		Class:           decodeClass(c.GetClass()),
		Since:           timeOf(c.GetSince()),
		Last:            timeOf(c.GetLast()),
		Count:           c.GetCount(),
		BootID:          c.GetBootId(),
		XID:             int(c.GetXid()),
		Evidence:        c.GetEvidence(),
		Recovery:        c.GetRecovery(),
		RecoveringSince: timeOf(c.GetRecoveringSince()),
	}
}

func decodeRecord(r *healthv1.Record) health.Record {
	return health.Record{
		Device: gpu.UUID(r.GetDevice()), Transitions: maps.Clone(r.GetTransitions()),
		Unhealthy: r.GetUnhealthy().AsDuration(), Clearings: r.GetClearings(),
	}
}

func decodeClearing(c *healthv1.Clearing) health.Clearing {
	return health.Clearing{
		Device: gpu.UUID(c.GetDevice()), Reason: c.GetReason(), By: c.GetBy(), Time: timeOf(c.GetTime()),
		Ended: each(c.GetEnded(), decodeCondition), Standing: each(c.GetStanding(), decodeCondition),
	}
}

func decodeEnding(e *healthv1.Ending) health.Ending {
	return health.Ending{
		Subject: health.Subject{
			GPU: gpu.UUID(e.GetGpu()), GPUInstance: orNone(e.GpuInstanceId), ComputeInstance: orNone(e.ComputeInstanceId),
			Placement: decodePlacement(e.GetPlacement()),
		},
		Kind: health.Kind(e.GetKind()), Ended: timeOf(e.GetEnded()),
	}
}

func decodeFact(f *healthv1.Fact) health.Fact {
	return health.Fact{
		GPU: gpu.UUID(f.GetGpu()), Kind: health.Kind(f.GetKind()), Class: decodeClass(f.GetClass()), Text: f.GetText(),
	}
}

// timeOf is the time in UTC, zero where there is none or none that exists.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil || t.CheckValid() != nil {
		return time.Time{}
	}
	return t.AsTime()
}

// orNone is the number, or gpu.NoInstance, which is also what an unknown minor number is.
func orNone(n *int32) int {
	if n == nil || *n < 0 {
		return gpu.NoInstance
	}
	return int(*n)
}
