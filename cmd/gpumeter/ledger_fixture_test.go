// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// bookStart is when the ledgers of these tests begin.
var bookStart = time.Date(2026, 11, 10, 8, 0, 0, 0, time.UTC)

// bookkeeper writes a ledger as an exporter does.
type bookkeeper struct {
	t    *testing.T
	dir  string
	book *ledger.Book
	at   ledger.Instant
	// card is the GPU that lines and observations are of.
	card gpu.UUID
}

func newBookkeeper(t *testing.T, node string) *bookkeeper {
	t.Helper()
	k := &bookkeeper{t: t, card: "GPU-0", dir: t.TempDir(), at: ledger.Instant{BootID: "boot-1", Boot: 5_000_000, Wall: bookStart.UnixMilli()}}
	k.open(node)
	return k
}

func (k *bookkeeper) open(node string) {
	k.book = ledger.OpenBook(ledger.BookConfig{Dir: k.dir, Node: node, Cluster: "lab", Policy: "blend"})
}

func (k *bookkeeper) close() {
	k.t.Helper()
	if err := k.book.Close(); err != nil {
		k.t.Fatal(err)
	}
}

// stand observes lines every ten seconds for a while, and makes them durable.
func (k *bookkeeper) stand(span time.Duration, facts []ledger.Fact, lines ...ledger.Line) {
	k.t.Helper()
	if err := k.book.Commit(); err != nil {
		k.t.Fatal(err)
	}
	for i := range lines {
		lines[i].Card = k.card
		if lines[i].Device != "" {
			lines[i].Device = k.card
		}
	}
	cards := []ledger.Card{{UUID: k.card, Index: 0, Model: "NVIDIA H100 80GB HBM3", Memory: 81920}}
	for left := span; ; left -= 10 * time.Second {
		k.book.Observe(ledger.Observation{At: k.at, Cards: cards, Lines: lines, Facts: facts})
		facts = nil
		if left <= 0 {
			break
		}
		k.pass(10 * time.Second)
	}
	if err := k.book.Commit(); err != nil {
		k.t.Fatal(err)
	}
}

func (k *bookkeeper) pass(span time.Duration) {
	k.at.Boot += span.Milliseconds()
	k.at.Wall += span.Milliseconds()
}

// replica is a pod's line of one of four replicas; rest is what nobody has of so many.
func replica(namespace, pod string) ledger.Line {
	part := sharing.NewFraction(1, 4)
	return ledger.Line{
		Card: "GPU-0", Device: "GPU-0", GPUInstance: gpu.NoInstance, Resource: "nvidia.com/gpu.shared", Mode: sharing.ModeShared,
		Holder: sharing.Holder{Namespace: namespace, Pod: pod, PodUID: "uid-" + pod, Container: "main"},
		Seats:  1, Of: 4, Weight: sharing.One(), Part: part, Memory: part,
	}
}

func rest(seats int64) ledger.Line {
	part := sharing.NewFraction(seats, 4)
	return ledger.Line{Card: "GPU-0", GPUInstance: gpu.NoInstance, Cause: sharing.CauseUnrequested, Weight: sharing.One(), Part: part, Memory: part}
}

// shift is a ledger of a morning: two pods, one that ends, and a restart that one is proven to have lived through.
func shift(t *testing.T) string {
	t.Helper()
	k := newBookkeeper(t, "node-1")
	k.stand(time.Hour, nil, replica("ml", "train-0"), replica("web", "serve-0"), rest(2))
	k.close()
	k.pass(2 * time.Minute)
	k.open("node-1")
	k.stand(30*time.Minute, []ledger.Fact{{What: ledger.FactHealth, Device: "GPU-0", Text: "healthy again"}}, replica("ml", "train-0"), rest(3))
	k.stand(30*time.Minute, nil, rest(4))
	k.close()
	return k.dir
}

// newestSegment is the last file of a ledger's log.
func newestSegment(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "book", "log-*.gml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	return names[len(names)-1]
}

func rewrite(t *testing.T, path string, edit func(string) string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(edit(string(data))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// settled is an output without what is different each time: folders and ids.
func settled(out, dir, id string) string {
	return strings.NewReplacer(dir, "DIR", id, "LEDGER").Replace(out)
}

// idOf is the id of the ledger in a folder.
func idOf(t *testing.T, dir string) string {
	t.Helper()
	r, err := ledger.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.LedgerID
}
