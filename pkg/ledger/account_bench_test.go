// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// fullObservation is what a node of eight cards with seven MIG devices of four seats each shows: 224 seats that are held.
func fullObservation(at Instant) Observation {
	o := Observation{At: at, Energy: map[gpu.UUID]int64{}, Busy: map[gpu.UUID]int64{}, Basis: BasisEngine, NodeLabels: map[string]string{"pool": "a100"}}
	weight := fraction(15, 112)
	for n := range 8 {
		c := a100(n)
		o.Cards = append(o.Cards, c)
		o.Energy[c.UUID] = at.Boot * 400
		for i := range 7 {
			for seat := range 4 {
				h := pod(fmt.Sprintf("pod-%d-%d-%d", n, i, seat))
				h.Namespace = fmt.Sprintf("team-%d", i)
				l := migLine(c, i+1, h, weight, fraction(1, 8))
				l.Mode, l.Of = sharing.ModeMIGShared, 4
				l.Part, l.Memory = weight.Scale(1, 4), fraction(1, 32)
				o.Lines = append(o.Lines, l)
				o.Busy[l.Device] = 500_000
				o.Pods = append(o.Pods, Pod{
					Namespace: h.Namespace, Name: h.Pod, UID: h.PodUID, WorkloadKind: "Deployment", Workload: "trainer",
					Labels: map[string]string{"app": "trainer", "team": "vision", "pod-template-hash": "5d4f", "tier": "gold", "stage": "prod"},
				})
			}
		}
		o.Lines = append(o.Lines, restLine(c, sharing.CauseStranded, fraction(7, 112), fraction(1, 8)))
	}
	return o
}

// fullAccount is an account that has seen a full node and a day of pods that came and went on it.
func fullAccount() (*Account, Observation) {
	a := begun(instant("b", 0))
	for i := range int64(500) {
		o := fullObservation(instant("b", 1+i*minute))
		o.Lines[i%200].Holder.PodUID = fmt.Sprintf("uid-%d", i)
		a.Observe(o)
	}
	return a, fullObservation(instant("b", 501*minute))
}

func BenchmarkAccountObserve(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	b.ReportAllocs()
	for b.Loop() {
		o.At.Boot += 1000
		if records := a.Observe(o); len(records) != 1 {
			b.Fatal(kinds(records))
		}
	}
}

func BenchmarkAccountObserveAChange(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o.At.Boot += 1000
		o.Lines[i%200].Holder.PodUID = fmt.Sprintf("other-%d", i)
		a.Observe(o)
	}
}

func BenchmarkAccountTotals(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	b.ReportAllocs()
	for b.Loop() {
		if t := a.Totals(); len(t.Pods) < 224 {
			b.Fatal(len(t.Pods))
		}
	}
}

func BenchmarkApplyBeat(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	beat := &Beat{}
	b.ReportAllocs()
	for b.Loop() {
		at := a.at
		at.Boot += 10
		if err := a.Apply(Record{Seq: a.seq + 1, At: at, Body: beat}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMarshalAccount(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	b.ReportAllocs()
	for b.Loop() {
		data, err := a.MarshalJSON()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(data)))
	}
}

func BenchmarkUnmarshalAccount(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	data, err := a.MarshalJSON()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := NewAccount().UnmarshalJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLines(b *testing.B) {
	devices, time, memory := dividedNode()
	b.ReportAllocs()
	for b.Loop() {
		Lines(devices, nil, time, memory)
	}
}

func BenchmarkApplyUse(b *testing.B) {
	a, o := fullAccount()
	a.Observe(o)
	u := &Use{Energy: map[int]int64{}, Counters: map[int]int64{}, Busy: map[gpu.UUID]int64{}, Basis: BasisEngine}
	for n := 1; n <= 8; n++ {
		u.Energy[n], u.Counters[n] = 1000, 1000
	}
	for device := range o.Busy {
		u.Busy[device] = 5000
	}
	b.ReportAllocs()
	for b.Loop() {
		at := a.at
		at.Boot += 10
		if err := a.Apply(Record{Seq: a.seq + 1, At: at, Body: u}); err != nil {
			b.Fatal(err)
		}
	}
}
