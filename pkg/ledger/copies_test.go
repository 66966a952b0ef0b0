// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// keptDisk is a ledger's folder that is kept by one exporter after the other, on this node or that.
type keptDisk struct {
	t   *testing.T
	dir string
	at  Instant
}

func newKeptDisk(t *testing.T) *keptDisk {
	t.Helper()
	return &keptDisk{t, t.TempDir(), Instant{"boot-1", 1_000_000, deskStart.UnixMilli()}}
}

// keep has an exporter on a node run for a while.
func (d *keptDisk) keep(node string, span time.Duration) {
	d.t.Helper()
	book := OpenBook(BookConfig{Dir: d.dir, Node: node, Cluster: "c", Policy: "blend"})
	if err := book.Commit(); err != nil {
		d.t.Fatal(err)
	}
	cards := []Card{{UUID: "GPU-0", Index: 0, Model: "H100", Memory: 80 * 1024}}
	for ; span >= 0; span -= time.Minute {
		book.Observe(Observation{At: d.at, Cards: cards, Lines: []Line{whole("a-1")}})
		if span > 0 {
			d.at.Boot += time.Minute.Milliseconds()
			d.at.Wall += time.Minute.Milliseconds()
		}
	}
	if err := book.Close(); err != nil {
		d.t.Fatal(err)
	}
}

// copied is a copy of the disk as it is now.
func (d *keptDisk) copied() *keptDisk {
	d.t.Helper()
	c := &keptDisk{d.t, filepath.Join(d.t.TempDir(), "copy"), d.at}
	if err := os.CopyFS(c.dir, os.DirFS(d.dir)); err != nil {
		d.t.Fatal(err)
	}
	return c
}

func (d *keptDisk) reader() *Reader {
	d.t.Helper()
	r, err := OpenReader(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	r.now = func() time.Time { return deskStart.Add(3 * time.Hour) }
	return r
}

func TestABackupOfALedgerBesideItIsCountedOnce(t *testing.T) {
	disk := newKeptDisk(t)
	disk.keep("node-1", time.Hour)
	backup := disk.copied()
	same := disk.copied()
	disk.keep("node-1", time.Hour)
	moved := disk.copied()
	moved.keep("node-2", time.Hour)
	for _, tt := range []struct {
		name    string
		readers []*Reader
		end     time.Duration
		notes   int
		from    *Reader
	}{
		{"the older one is first", []*Reader{backup.reader(), disk.reader()}, 2 * time.Hour, 1, disk.reader()},
		{"the older one is last", []*Reader{disk.reader(), backup.reader()}, 2 * time.Hour, 1, disk.reader()},
		{"two of one age", []*Reader{same.reader(), backup.reader()}, time.Hour, 1, same.reader()},
		{"it went on elsewhere", []*Reader{backup.reader(), disk.reader(), moved.reader()}, 3 * time.Hour, 2, moved.reader()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := ReadUsage(t.Context(), tt.readers, Query{Boundaries: deskTimes(0, tt.end)})
			if err != nil {
				t.Fatal(err)
			}
			if len(u.Nodes) != 1 || len(u.Nodes[0].Missing) > 0 || heldOf(u, "team-a", 0) != micros(tt.end) {
				t.Errorf("held %d, nodes %+v", heldOf(u, "team-a", 0), u.Nodes)
			}
			if len(u.Notes) != tt.notes || !strings.HasPrefix(u.Notes[0], tt.from.Dir()+" and ") {
				t.Errorf("notes %q", u.Notes)
			}
			kept, err := Distinct(t.Context(), tt.readers, nil)
			if err != nil || len(kept) != 1 || kept[0].Dir() != tt.from.Dir() {
				t.Errorf("kept %v, %v", kept, err)
			}
		})
	}
}

func TestCopiesOfALedgerThatBothWentOnAreNoSmallerBill(t *testing.T) {
	disk, alone := newKeptDisk(t), newKeptDisk(t)
	disk.keep("node-1", time.Hour)
	clone := disk.copied()
	disk.keep("node-1", time.Hour)
	clone.keep("node-2", 30*time.Minute)
	clone.keep("node-2", 10*time.Minute)
	alone.keep("node-3", 2*time.Hour)
	parted := deskStart.Add(time.Hour)
	for _, tt := range []struct {
		name     string
		readers  []*Reader
		nodes    []string
		from, to time.Duration
		missing  bool
		node     string
		held     time.Duration
	}{
		{"the copy last", []*Reader{disk.reader(), clone.reader()}, nil, 0, 2 * time.Hour, true, "node-1", 2 * time.Hour},
		{"the copy first", []*Reader{clone.reader(), disk.reader()}, nil, 0, 2 * time.Hour, true, "node-1", 2 * time.Hour},
		{"before they parted", []*Reader{clone.reader(), disk.reader()}, nil, 0, time.Hour, false, "node-1", time.Hour},
		{"the copy's node is asked for", []*Reader{disk.reader(), clone.reader()}, []string{"node-2"}, 0, 100 * time.Minute, true, "node-2", 100 * time.Minute},
		{"beside another", []*Reader{disk.reader(), clone.reader(), alone.reader()}, nil, 0, 2 * time.Hour, true, "node-1", 4 * time.Hour},
		{"the copy alone", []*Reader{clone.reader()}, nil, 0, 100 * time.Minute, false, "node-2", 100 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := ReadUsage(t.Context(), tt.readers, Query{Boundaries: deskTimes(tt.from, tt.to), Nodes: tt.nodes})
			if err != nil {
				t.Fatal(err)
			}
			if len(u.Nodes) == 0 || u.Nodes[0].Node != tt.node || heldOf(u, "team-a", 0) != micros(tt.held) {
				t.Fatalf("held %d, nodes %+v", heldOf(u, "team-a", 0), u.Nodes)
			}
			at := slices.IndexFunc(u.Nodes[0].Missing, func(m Missing) bool { return m.Reason == "cloned" })
			if (at >= 0) != tt.missing {
				t.Fatalf("missing %+v", u.Nodes[0].Missing)
			}
			if !tt.missing {
				return
			}
			m := u.Nodes[0].Missing[at]
			if !m.From.Equal(parted) || !m.To.Equal(deskStart.Add(tt.to)) {
				t.Errorf("missing from %v to %v", m.From, m.To)
			}
			for _, want := range []string{"node-1", "node-2", disk.reader().Dir(), clone.reader().Dir(), "ledger of its own"} {
				if !strings.Contains(m.Text, want) {
					t.Errorf("no %q in %q", want, m.Text)
				}
			}
		})
	}
}
