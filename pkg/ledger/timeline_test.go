// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A moment is never further back in the log than an earlier one, whatever the clocks did: so windows follow each other.
func TestLaterMomentsAreLaterInTheLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var log timeline
		seq, wall := uint64(1), rapid.Int64Range(-1000, 1000).Draw(rt, "first")
		for i := range rapid.IntRange(1, 8).Draw(rt, "pieces") {
			length := rapid.Int64Range(0, 500).Draw(rt, "length")
			log = append(log, piece{
				segment: i, start: head{seq: seq, wall: wall}, last: seq + 9, end: wall + length, run: i, wrong: rapid.IntRange(0, 9).Draw(rt, "wrong") == 0,
			})
			seq += 10
			wall += length + rapid.Int64Range(-700, 700).Draw(rt, "step")
		}
		var before uint64
		for at := int64(-5000); at < 9000; at += 7 {
			found, ok := log.locate(at)
			if !ok {
				if before > 0 {
					rt.Fatalf("%d is before all records, and an earlier moment is not", at)
				}
				continue
			}
			if found.last < before {
				rt.Fatalf("%d is at record %d, and an earlier moment at %d", at, found.last, before)
			}
			before = found.last
		}
	})
}

func TestPagesBetweenWhichTheClocksWentAlikeAreOnePieceEach(t *testing.T) {
	d := newDesk(t)
	for range 3 {
		d.stand(time.Hour, whole("a-1"))
		d.turn()
	}
	d.flush()
	segments, err := listSegments(filepath.Join(d.dir, bookFolder))
	if err != nil {
		t.Fatal(err)
	}
	log, err := readTimeline(segments)
	if err != nil {
		t.Fatal(err)
	}
	if len(log) != 4 || log[3].run != 0 || log[0].last != log[1].start.seq-1 {
		t.Errorf("timeline %+v", log)
	}
}

// Whatever is in the files, they are read to their end.
func FuzzReader(f *testing.F) {
	d := newDesk(f)
	d.stand(time.Minute, whole("a-1"))
	d.turn()
	d.stand(time.Minute, whole("b-1"))
	d.step(-time.Hour)
	d.stand(time.Minute, whole("b-1"))
	for _, path := range d.segments() {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\n\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, segmentName(1)), data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := OpenReader(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
		from, to := deskStart.Add(-time.Hour), deskStart.Add(time.Hour)
		u, err := r.Usage(t.Context(), Query{Boundaries: []time.Time{from, deskStart, to}, Detail: DetailPods})
		for _, h := range u.Held {
			if err != nil || h.GPU < 0 {
				t.Errorf("held %+v, %v", h, err)
			}
		}
		for i, err := range r.Intervals(t.Context(), nil, from, to) {
			if err == nil && i.Span <= 0 {
				t.Errorf("interval %+v", i)
			}
		}
		for e, err := range r.Events(t.Context(), from, to) {
			if err == nil && e.Text == "" {
				t.Errorf("event %+v", e)
			}
		}
	})
}
