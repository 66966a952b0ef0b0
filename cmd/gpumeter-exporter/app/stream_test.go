// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// told is a meter whose snapshots the test makes.
type told struct{ snapshot *meter.Snapshot }

func (m *told) Watch() (*meter.Snapshot, <-chan struct{}) { return m.snapshot, nil }

func TestAListInWhichNothingChangedKeepsItsVersionAndTellsTheTime(t *testing.T) {
	card := gpu.Device{UUID: "GPU-1", GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance}
	at := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	m := &told{}
	tick := func(version uint64, memory int64) {
		seq := uint64(1)
		if m.snapshot != nil {
			seq = m.snapshot.Seq + 1
		}
		m.snapshot = &meter.Snapshot{
			Seq: seq,
			Reading: gpu.Reading{
				Source: "sim", Devices: []gpu.Device{card}, Fields: []gpu.FieldID{fieldFBTotal},
				Samples: []gpu.Sample{{Entity: gpu.Entity{Kind: gpu.KindGPU, GPU: card.UUID}, Values: []gpu.Value{gpu.Int(memory)}}},
			},
			Health: &health.Report{Time: at.Add(time.Duration(seq) * time.Second), Version: version},
		}
	}
	s := newStreamSource(m, "node")

	tick(7, 80000)
	first, _ := s.Watch()
	tick(7, 80000)
	second, _ := s.Watch()
	if second.Report.Version != first.Report.Version || !second.Report.Time.After(first.Report.Time) {
		t.Errorf("the second list has version %d of %v, the first had %d of %v: want the same version, later",
			second.Report.Version, second.Report.Time, first.Report.Version, first.Report.Time)
	}
	if again, _ := s.Watch(); again != second {
		t.Error("a snapshot that was looked at is made into a list again")
	}

	tick(7, 40000)
	third, _ := s.Watch()
	if third.Report.Version != second.Report.Version+1 || third.Devices[0].MemoryBytes != 40000<<20 {
		t.Errorf("another memory size came as version %d with %d bytes, want version %d", third.Report.Version, third.Devices[0].MemoryBytes, second.Report.Version+1)
	}
	tick(8, 40000)
	if fourth, _ := s.Watch(); fourth.Report.Version <= third.Report.Version {
		t.Errorf("another verdict came as version %d after %d", fourth.Report.Version, third.Report.Version)
	}
	tick(8, 40000)
	fourth, _ := s.Watch()
	tick(8, 40000)
	if fifth, _ := s.Watch(); fifth.Report.Version != fourth.Report.Version {
		t.Errorf("nothing new came as version %d after %d", fifth.Report.Version, fourth.Report.Version)
	}
}
