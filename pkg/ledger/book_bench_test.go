// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// fullNode is a node of 8 cards with 28 holders each: 224 open charges.
func fullNode() *busyNode {
	const seats = 28
	n := newBusyNode(1, 8)
	n.calm = 10
	for i := range n.lines {
		uuid := n.cards[i].UUID
		n.lines[i] = nil
		for seat := range seats {
			part := sharing.NewFraction(1, seats)
			n.lines[i] = append(n.lines[i], Line{
				Card: uuid, Device: uuid, GPUInstance: gpu.NoInstance, Resource: "nvidia.com/gpu.shared", Mode: sharing.ModeShared,
				Holder: sharing.Holder{
					Namespace: fmt.Sprintf("team-%d", seat%10), Pod: fmt.Sprintf("trainer-%d-%d-7d9f8b6c5d-x2x4z", i, seat),
					PodUID: fmt.Sprintf("1f0d6b52-6e16-5967-8c3e-%012d", i*seats+seat), Container: "main",
				},
				Seats: 1, Of: seats, Weight: sharing.One(), Part: part, Memory: part,
			})
		}
	}
	return n
}

// One commit of ten ticks, of a node with 224 open charges: "work" without any wait for the disk, "disk" with both.
func BenchmarkCommit(b *testing.B) {
	for name, d := range map[string]osDisk{"work": {hasty: true}, "disk": {}} {
		b.Run(name, func(b *testing.B) {
			book, n := openBook(BookConfig{Dir: b.TempDir()}, d), fullNode()
			defer book.Close()
			observe(book, n, 1)
			committed(b, book)
			for b.Loop() {
				b.StopTimer()
				observe(book, n, 10)
				b.StartTimer()
				committed(b, book)
			}
		})
	}
}

func BenchmarkObserve(b *testing.B) {
	book, n := openBook(BookConfig{}, osDisk{}), fullNode()
	for b.Loop() {
		book.Observe(n.tick())
	}
}

func BenchmarkView(b *testing.B) {
	book, n := openBook(BookConfig{}, osDisk{}), fullNode()
	observe(book, n, 1)
	committed(b, book)
	for b.Loop() {
		b.StopTimer()
		observe(book, n, 1)
		b.StartTimer()
		book.View()
	}
}

// The start of an exporter reads one day of the log.
func BenchmarkOpen(b *testing.B) {
	dir, n := b.TempDir(), fullNode()
	book := openBook(BookConfig{Dir: dir}, osDisk{hasty: true})
	for range 8640 {
		observe(book, n, 1)
		n.at.Boot, n.at.Wall = n.at.Boot+8000, n.at.Wall+8000
		if n.rnd.IntN(30) == 0 {
			card := n.rnd.IntN(8)
			n.lines[card] = n.divide(card)
		}
		committed(b, book)
	}
	if err := book.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		book := openBook(BookConfig{Dir: dir}, osDisk{hasty: true})
		committed(b, book)
		if err := book.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
