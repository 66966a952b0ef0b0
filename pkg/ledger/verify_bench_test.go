// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// yearOf writes the ledger of a busy node: eight GPUs, a beat every ten seconds, a use every minute, a thousand pods a day.
// Turning its pages is left to the writer of this, as a day each.
func yearOf(b *testing.B, days int) string {
	b.Helper()
	dir := b.TempDir()
	book := filepath.Join(dir, bookFolder)
	if err := os.Mkdir(book, 0o755); err != nil {
		b.Fatal(err)
	}
	d := &desk{t: b, dir: dir, account: NewAccount(), at: Instant{"boot-1", 0, deskStart.UnixMilli()}, w: &logWriter{disk: osDisk{hasty: true}, dir: book}}
	rnd := rand.New(rand.NewPCG(1, 2))
	var cards [][]Line
	energy, busy := map[gpu.UUID]int64{}, map[gpu.UUID]int64{}
	for i := range 8 {
		uuid := gpu.UUID(fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i))
		d.cards = append(d.cards, Card{UUID: uuid, Index: i, Model: "NVIDIA H100 80GB HBM3", Memory: 81559})
		busy[uuid] = 500_000
		free := left(sharing.CauseFree, 1, 1)
		free.Card = uuid
		cards = append(cards, []Line{free})
	}
	d.begin()
	pods := 0
	for range days {
		for tick := range 8640 {
			d.pass(10 * time.Second)
			// Two changes a pod: its beginning and its end.
			if rnd.IntN(8640) < 2000 {
				i := rnd.IntN(len(cards))
				if l := cards[i][0]; l.Cause != "" {
					pods++
					l = whole(fmt.Sprintf("a-training-job-%07d", pods))
					l.Card, l.Device = d.cards[i].UUID, d.cards[i].UUID
					cards[i] = []Line{l}
				} else {
					free := left(sharing.CauseFree, 1, 1)
					free.Card = d.cards[i].UUID
					cards[i] = []Line{free}
				}
			}
			o := Observation{At: d.at, Cards: d.cards, Energy: map[gpu.UUID]int64{}, Busy: busy, Basis: BasisEngine}
			for i := range cards {
				o.Lines = append(o.Lines, cards[i]...)
				energy[d.cards[i].UUID] += 5_000_000
				o.Energy[d.cards[i].UUID] = energy[d.cards[i].UUID]
			}
			d.write(d.account.Observe(o))
			if tick == 8639 {
				d.turn()
			}
		}
		d.flush()
	}
	return dir
}

func BenchmarkVerify(b *testing.B) {
	for _, days := range []int{31, 365} {
		b.Run(fmt.Sprintf("%d days", days), func(b *testing.B) {
			r, err := OpenReader(yearOf(b, days))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				v, err := r.Verify(context.Background(), nil)
				if err != nil || len(v.Problems) > 0 {
					b.Fatalf("%+v, %v", v, err)
				}
				b.ReportMetric(float64(v.Records), "records")
			}
		})
	}
}

func BenchmarkUsageOfAMonth(b *testing.B) {
	r, err := OpenReader(yearOf(b, 31))
	if err != nil {
		b.Fatal(err)
	}
	r.now = func() time.Time { return deskStart.Add(31 * 24 * time.Hour) }
	var hours []time.Time
	for h := range 31*24 + 1 {
		hours = append(hours, deskStart.Add(time.Duration(h)*time.Hour))
	}
	for name, q := range map[string]Query{
		"series":          {Boundaries: []time.Time{hours[0], hours[len(hours)-1]}},
		"series by hours": {Boundaries: hours},
		"pods":            {Boundaries: []time.Time{hours[0], hours[len(hours)-1]}, Detail: DetailPods},
		"pods by hours":   {Boundaries: hours, Detail: DetailPods},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if u, err := r.Usage(context.Background(), q); err != nil || len(u.Held) == 0 {
					b.Fatalf("%d, %v", len(u.Held), err)
				}
			}
		})
	}
}
