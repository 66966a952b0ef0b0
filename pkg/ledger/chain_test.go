// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// oneOfEach has a record of every kind.
func oneOfEach() []Record {
	bodies := []Body{
		&Begin{LedgerID: "l-1", Node: "node-1", BootID: "boot", Version: "1.0", Policy: "slices"},
		&CardSeen{N: 1, Card: Card{UUID: "GPU-1", Index: 3, Model: "NVIDIA H100 80GB HBM3", Memory: 81559}},
		&Open{ID: 1, Card: 1, Device: "GPU-1", GPUInstance: gpu.NoInstance, Namespace: "team\na", Pod: "<p>", Container: "c", Seats: 1, Of: 4, Part: "1/4", Memory: "1/4"},
		&Open{ID: 2, Card: 1, Cause: sharing.CauseUnrequested, Part: "3/4", Memory: "3/4"},
		&Beat{},
		&Use{Energy: map[int]int64{1: 700_000}, Busy: map[gpu.UUID]int64{"GPU-1": 12}, Basis: BasisEngine},
		&Gap{Reason: GapRestart, Span: 9000, Wall: 9001, Bridged: []Bridge{{ID: 1, Part: "1/4", Memory: "1/4"}}, Cards: []int{1}},
		&Correction{Card: 1, To: Open{ID: 1, Part: "1/4"}, From: sharing.CauseUnobserved, Span: 5, Part: "1/4", Memory: "1/4", Refers: 7, Reason: "proof"},
		&FactSeen{Fact{What: FactHealth, Device: "GPU-1", Text: "unwell", Detail: map[string]string{"to": "warn"}}},
		&XIDSeen{GPU: "GPU-1", GPUInstance: -1, ComputeInstance: -1, Code: 79, Count: 2},
		&PodSeen{Pod{Namespace: "team-a", Name: "p", UID: "u", Labels: map[string]string{"a": "b"}}},
		&NodeSeen{Labels: map[string]string{"pool": "h100"}},
		&Close{ID: 1, Why: CloseEnded},
		&Carry{State: []byte(`{"registers":[]}`)},
	}
	all := make([]Record, 0, len(bodies))
	for i, body := range bodies {
		all = append(all, Record{Seq: uint64(i + 1), At: Instant{"boot", int64(1000 * i), 1_780_000_000_000 + int64(1000*i)}, Body: body})
	}
	return all
}

func lines(t testing.TB, records []Record) []byte {
	t.Helper()
	text, _, _, err := appendLines(nil, records, link{}, "")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestEveryKindOfRecordIsReadAsItWasWritten(t *testing.T) {
	want := oneOfEach()
	var prev link
	boot := ""
	text := lines(t, want)
	for i, line := range bytes.SplitAfter(text, []byte("\n"))[:len(want)] {
		got, before, err := parseLine(bytes.TrimSuffix(line, []byte("\n")), boot)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Errorf("%s record reads as (-wrote +read):\n%s", want[i].Body.Kind(), diff)
		}
		if before != prev {
			t.Errorf("record %d repeats the link %s, want %s", got.Seq, before, prev)
		}
		prev, boot = linkOf(line), got.At.BootID
	}
	if n := bytes.Count(text, []byte("\n")); n != len(want) {
		t.Errorf("%d records are %d lines", len(want), n)
	}
}

func TestABeatIsShort(t *testing.T) {
	text, err := appendLine(nil, Record{Seq: 123_456_789, At: Instant{"b", 3_456_789_012, 1_780_000_000_000}, Body: &Beat{}}, link{}, "b")
	// Of these there are 8,640 a day.
	if err != nil || len(text) > 90 {
		t.Errorf("%d bytes: %s %v", len(text), text, err)
	}
}

func TestNoByteOfALineCanBeChangedUnseen(t *testing.T) {
	for _, r := range oneOfEach() {
		text, err := appendLine(nil, r, link{1, 2, 3}, "boot")
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.TrimSuffix(text, []byte("\n"))
		for i := range text {
			for _, bit := range []byte{1, 4, 0x20, 0x80} {
				changed := bytes.Clone(text)
				changed[i] ^= bit
				if _, _, err := parseLine(changed, "boot"); !errors.Is(err, errCorrupt) {
					t.Fatalf("byte %d of %s: %v", i, text, err)
				}
			}
			if _, _, err := parseLine(text[:i], "boot"); !errors.Is(err, errCorrupt) {
				t.Fatalf("cut at byte %d: %v", i, err)
			}
		}
	}
}

// summed is a line whose sum is right, whatever it says.
func summed(rest string) []byte {
	digits := lineSum([]byte(rest))
	return fmt.Appendf(nil, "%s %s", digits, rest)
}

func TestALineOfALaterVersionIsToldFromADamagedOne(t *testing.T) {
	zeros := strings.Repeat("0", 32)
	for _, rest := range []string{
		zeros + " 7 levitate 1 2 {}",
		zeros + " 7 beat 1 2 {}",
		zeros + " 7 beat 1 2",
		zeros + " -7 beat 1 2 -",
		zeros + " 7 beat 1.5 2 -",
		zeros + ` 7 carry 1 2 {"v":2,"state":{}}`,
		zeros + ` 7 open 1 2 {"id":"seven"}`,
		zeros + ` 7 open 1 2 -`,
		strings.Repeat("x", 32) + " 7 beat 1 2 -",
	} {
		if r, _, err := parseLine(summed(rest), "boot"); !errors.Is(err, errNewer) {
			t.Errorf("%q is read as %+v, %v", rest, r, err)
		}
	}
	if _, _, err := parseLine(summed(zeros+` 7 close 1 2 {"id":7,"why":"ended","more":1}`), "boot"); err != nil {
		t.Errorf("what a later version adds to a record is in the way: %v", err)
	}
}

func TestOnlyACarryOrABeginTellsOfAnotherBoot(t *testing.T) {
	for _, r := range oneOfEach() {
		r.At.BootID = "another"
		if begin, ok := r.Body.(*Begin); ok {
			begin.BootID = "another"
		}
		_, err := appendLine(nil, r, link{}, "boot")
		kind := r.Body.Kind()
		if may := kind == KindCarry || kind == KindBegin; may != (err == nil) || !may && !errors.Is(err, errBoots) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	for line := range bytes.SplitSeq(lines(f, oneOfEach()), []byte("\n")) {
		if len(line) > lineSumLen {
			f.Add(string(line[lineSumLen+1:]))
		}
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, rest string) {
		r, prev, err := parseLine(summed(rest), "boot")
		if err != nil {
			return
		}
		text, err := appendLine(nil, r, prev, r.At.BootID)
		if err != nil {
			t.Fatalf("%q is read as %+v, and cannot be written: %v", rest, r, err)
		}
		again, link, err := parseLine(bytes.TrimSuffix(text, []byte("\n")), "boot")
		if err != nil || link != prev || !cmp.Equal(again, r) {
			t.Fatalf("%q is read as %+v, and then as %+v, %v", rest, r, again, err)
		}
	})
}
