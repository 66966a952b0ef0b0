// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// logOf writes beats as segments of the given numbers of lines, and returns their folder.
func logOf(t *testing.T, counts ...int) string {
	t.Helper()
	dir := t.TempDir()
	w := &logWriter{disk: osDisk{hasty: true}, dir: dir}
	seq := uint64(0)
	for _, count := range counts {
		for i := range count {
			seq++
			r := Record{Seq: seq, At: Instant{"boot", int64(seq) * 1000, int64(seq) * 1000}, Body: &Beat{}}
			if i == 0 {
				r.Body = &Carry{State: []byte("{}")}
			}
			if _, err := w.write([]Record{r}); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.drop()
	return dir
}

// told is what a scan says, in short: sequences, and kinds of damage with the record before.
func told(dir string) []string {
	var out []string
	for line, err := range scanSegments(dir) {
		if d, ok := errors.AsType[*damage](err); ok {
			out = append(out, fmt.Sprintf("%s after %d", d.What, d.After))
		}
		if line.Body != nil {
			out = append(out, fmt.Sprint(line.Seq))
		}
	}
	return out
}

func edited(t *testing.T, path string, edit func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, edit(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAScanTellsWhatIsWrongAndGoesOn(t *testing.T) {
	flip := func(line int) func([]byte) []byte {
		return func(data []byte) []byte {
			all := bytes.SplitAfter(data, []byte("\n"))
			all[line][50] ^= 1
			return bytes.Join(all, nil)
		}
	}
	cut := func(from, to int) func([]byte) []byte {
		return func(data []byte) []byte {
			all := bytes.SplitAfter(data, []byte("\n"))
			return bytes.Join(append(all[:from:from], all[to:]...), nil)
		}
	}
	swap := func(data []byte) []byte {
		all := bytes.SplitAfter(data, []byte("\n"))
		all[1], all[2] = all[2], all[1]
		return bytes.Join(all, nil)
	}
	shorter := func(n int) func([]byte) []byte {
		return func(data []byte) []byte { return data[:len(data)-n] }
	}
	tests := []struct {
		name    string
		segment uint64
		edit    func([]byte) []byte
		want    string
	}{
		{"nothing", 1, func(d []byte) []byte { return d }, "[1 2 3 4 5 6 7]"},
		{"a flipped bit", 1, flip(1), "[1 corrupt after 1 3 4 5 6 7]"},
		{"a flipped bit in the first line", 5, flip(0), "[1 2 3 4 corrupt after 4 6 7]"},
		{"a line was taken out", 1, cut(1, 2), "[1 chain after 1 3 4 5 6 7]"},
		{"the end of a segment was taken out", 1, cut(2, 4), "[1 2 chain after 2 5 6 7]"},
		{"lines were exchanged", 1, swap, "[1 chain after 1 3 chain after 3 2 chain after 2 4 5 6 7]"},
		{"the last line is torn", 5, shorter(1), "[1 2 3 4 5 6 torn after 6]"},
		{"the last line of an earlier segment is torn", 1, shorter(7), "[1 2 3 corrupt after 3 5 6 7]"},
		{"zeros at the end", 5, func(d []byte) []byte { return append(d, make([]byte, 4096)...) }, "[1 2 3 4 5 6 7 torn after 7]"},
		{"a line of a later version", 5, func(d []byte) []byte {
			return append(append(d, summed(fmt.Sprintf("%032x 8 levitate 1 1 {}", 0))...), '\n')
		}, "[1 2 3 4 5 6 7 newer after 7]"},
		{"an empty segment", 5, func([]byte) []byte { return nil }, "[1 2 3 4]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := logOf(t, 4, 3)
			edited(t, filepath.Join(dir, segmentName(tt.segment)), tt.edit)
			if got := fmt.Sprint(told(dir)); got != tt.want {
				t.Errorf("told %s, want %s", got, tt.want)
			}
		})
	}
}

func TestALogBeginsWhereItsFirstSegmentDoes(t *testing.T) {
	dir := logOf(t, 2, 2, 2)
	if err := os.Remove(filepath.Join(dir, segmentName(1))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"log-1.gml", "log-000000000001.gml.corrupt-x", "log-.gml", "totals.db", "log-000000000009.gml.new"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(told(dir)); got != "[3 4 5 6]" {
		t.Errorf("told %s", got)
	}
	if got := told(filepath.Join(dir, "nowhere")); len(got) != 0 {
		t.Errorf("a folder that is not there tells %s", got)
	}
}

func TestALineLongerThanAnyBufferIsRead(t *testing.T) {
	dir := t.TempDir()
	long := append(append([]byte(`{"x":"`), bytes.Repeat([]byte("y"), 5<<20)...), `"}`...)
	w := &logWriter{disk: osDisk{hasty: true}, dir: dir}
	at := Instant{"boot", 1, 1}
	if _, err := w.write([]Record{{1, at, &Carry{State: long}}, {2, at, &Beat{}}}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(told(dir)); got != "[1 2]" {
		t.Errorf("told %s", got)
	}
}

func TestAWholeLogOfOtherBytesIsToldAndReadToItsEnd(t *testing.T) {
	dir := logOf(t, 2)
	if err := os.WriteFile(filepath.Join(dir, segmentName(1)), bytes.Repeat([]byte{0xff}, maxLine+1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(told(dir)); got != "[corrupt after 0 torn after 0]" {
		t.Errorf("told %s", got)
	}
}
