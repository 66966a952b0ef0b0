// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

// encode is the list as it goes over the wire.
func encode(l *List) *healthv1.NodeHealth {
	return &healthv1.NodeHealth{
		Epoch:     text(l.Epoch),
		Version:   l.Report.Version,
		Node:      text(l.Node),
		Source:    text(l.Source),
		Time:      instant(l.Report.Time),
		BootId:    text(l.Report.BootID),
		Devices:   each(l.Devices, encodeDevice),
		Verdicts:  each(l.Report.Verdicts, encodeVerdict),
		Records:   each(l.Report.Records, encodeRecord),
		Clearings: each(l.Report.Clearings, encodeClearing),
		Ended:     each(l.Report.Ended, encodeEnding),

		Repartition: encodeRepartition(l.Report.Repartition),
	}
}

func encodeRepartition(r health.Repartition) *healthv1.Repartition {
	if r == (health.Repartition{}) {
		return nil
	}
	return &healthv1.Repartition{
		State: text(string(r.State)), Since: instant(r.Since), Began: instant(r.Began), Until: instant(r.Until), Paused: r.Paused, Overdue: r.Overdue,
	}
}

func encodeDevice(d Device) *healthv1.Device {
	out := &healthv1.Device{
		Uuid:              text(string(d.UUID)),
		Parent:            text(string(d.Parent)),
		Index:             int32Of(d.Index),
		Minor:             known(d.Minor),
		PciBusId:          text(d.PCIBusID),
		Model:             text(d.Model),
		MigEnabled:        d.MIGEnabled,
		Lost:              d.Lost,
		GpuInstanceId:     known(d.GPUInstance),
		ComputeInstanceId: known(d.ComputeInstance),
		InstanceEntity:    known(d.InstanceEntity),
		Placement:         encodePlacement(d.Placement),
		ComputeCapability: text(d.ComputeCapability),
	}
	if d.Profile != (gpu.Profile{}) {
		out.Profile = &healthv1.Profile{
			Name:                           text(d.Profile.Name),
			ComputeSlices:                  int32Of(d.Profile.Compute),
			MemorySlices:                   int32Of(d.Profile.Memory),
			Multiprocessors:                int32Of(d.Profile.SMs),
			ComputeInstanceSlices:          int32Of(d.Profile.ComputeInstanceSlices),
			ComputeInstanceMultiprocessors: int32Of(d.Profile.ComputeInstanceSMs),
		}
	}
	if d.MemoryBytes > 0 {
		out.MemoryBytes = &d.MemoryBytes
	}
	for _, peer := range slices.Sorted(maps.Keys(d.Peers)) {
		if n := d.Peers[peer]; n > 0 {
			out.Peers = append(out.Peers, &healthv1.Peer{Uuid: text(string(peer)), Nvlinks: int32Of(n)})
		}
	}
	return out
}

func encodePlacement(p gpu.Placement) *healthv1.Placement {
	if p == (gpu.Placement{}) {
		return nil
	}
	return &healthv1.Placement{Start: int32Of(p.Start), Size: int32Of(p.Size)}
}

func encodeVerdict(v health.Verdict) *healthv1.Verdict {
	return &healthv1.Verdict{
		Device:     text(string(v.Device)),
		Card:       text(string(v.Card)),
		Status:     encodeStatus(v.Status),
		Since:      instant(v.Since),
		Avoid:      v.Avoid,
		Reason:     text(v.Reason),
		Conditions: each(v.Conditions, encodeCondition),
	}
}

func encodeStatus(s health.Status) healthv1.Status {
	switch s {
	case health.Healthy:
		return healthv1.Status_STATUS_HEALTHY
	case health.Unhealthy:
		return healthv1.Status_STATUS_UNHEALTHY
	default:
		return healthv1.Status_STATUS_UNKNOWN
	}
}

// encodeClass is the class under its number on the wire, which is health's own.
func encodeClass(c health.Class) healthv1.Class {
	if slices.Contains(health.Classes(), c) {
		return healthv1.Class(c)
	}
	return healthv1.Class_CLASS_UNSPECIFIED
}

func encodeCondition(c health.Condition) *healthv1.Condition {
	return &healthv1.Condition{
		Gpu:               text(string(c.GPU)),
		GpuInstanceId:     known(c.GPUInstance),
		ComputeInstanceId: known(c.ComputeInstance),
		Placement:         encodePlacement(c.Placement),
		Kind:              text(string(c.Kind)),
		Class:             encodeClass(c.Class),
		Since:             instant(c.Since),
		Last:              instant(c.Last),
		Count:             c.Count,
		BootId:            text(c.BootID),
		Xid:               int32Of(c.XID),
		Evidence:          text(c.Evidence),
		Recovery:          text(c.Recovery),
		RecoveringSince:   instant(c.RecoveringSince),
	}
}

func encodeRecord(r health.Record) *healthv1.Record {
	out := &healthv1.Record{Device: text(string(r.Device)), Unhealthy: durationpb.New(r.Unhealthy), Clearings: r.Clearings}
	if len(r.Transitions) > 0 {
		out.Transitions = make(map[string]uint64, len(r.Transitions))
		for word, n := range r.Transitions {
			out.Transitions[text(word)] = n
		}
	}
	return out
}

func encodeClearing(c health.Clearing) *healthv1.Clearing {
	return &healthv1.Clearing{
		Device:   text(string(c.Device)),
		Reason:   text(c.Reason),
		By:       text(c.By),
		Time:     instant(c.Time),
		Ended:    each(c.Ended, encodeCondition),
		Standing: each(c.Standing, encodeCondition),
	}
}

func encodeEnding(e health.Ending) *healthv1.Ending {
	return &healthv1.Ending{
		Gpu: text(string(e.GPU)), GpuInstanceId: known(e.GPUInstance), ComputeInstanceId: known(e.ComputeInstance),
		Placement: encodePlacement(e.Placement), Kind: text(string(e.Kind)), Ended: instant(e.Ended),
	}
}

func encodeFact(f health.Fact) *healthv1.Fact {
	return &healthv1.Fact{Gpu: text(string(f.GPU)), Kind: text(string(f.Kind)), Class: encodeClass(f.Class), Text: text(f.Text)}
}

// each converts a slice; none stays nil.
func each[From, To any](from []From, convert func(From) To) []To {
	if len(from) == 0 {
		return nil
	}
	to := make([]To, len(from))
	for i := range from {
		to[i] = convert(from[i])
	}
	return to
}

// text is s as the wire takes it: foreign text need not be UTF-8, and one bad model name
// would cost the whole message.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// instant is t, nil where there is none.
func instant(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// known is n, nil where that is negative and so stands for none.
func known(n int) *int32 {
	if n < 0 {
		return nil
	}
	out := int32Of(n)
	return &out
}

// int32Of is n, or the nearest number to it that there is.
func int32Of(n int) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }
