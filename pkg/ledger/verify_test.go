// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// threePages is a ledger of three segments.
func threePages(t *testing.T) *desk {
	t.Helper()
	d := newDesk(t)
	for _, pod := range []string{"a-1", "b-1"} {
		d.stand(10*time.Minute, seat(pod, 2), left(sharing.CauseUnrequested, 1, 2))
		d.turn()
	}
	d.stand(10*time.Minute, whole("a-1"))
	return d
}

func verified(t *testing.T, d *desk) Verification {
	t.Helper()
	v, err := d.reader().Verify(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVerifySaysWhatItProved(t *testing.T) {
	d := threePages(t)
	v := verified(t, d)
	if len(v.Problems) > 0 || v.Contradicts() {
		t.Fatalf("problems %+v", v.Problems)
	}
	if v.Node != "node-1" || v.LedgerID != "ledger-1" || v.Segments != 3 || v.Cards != 1 || v.First != 1 || v.Last != d.account.seq || v.Records != d.account.seq ||
		!v.From.Equal(deskStart) || !v.To.Equal(deskStart.Add(30*time.Minute)) {
		t.Errorf("verification %+v", v)
	}
	if want := sharing.NewFraction(30*60*1000, 1); !v.Proven.Equal(want) || !v.Capacity.Equal(want) {
		t.Errorf("proven %s of %s", v.Proven, v.Capacity)
	}
}

// Sums, links and numbers are right again after these: somebody took trouble.
func TestARewrittenHistoryIsFound(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(r *Record)
		want string
	}{
		{"a part of a pod that was more", func(r *Record) {
			if o, ok := r.Body.(*Open); ok && o.Pod == "b-1" {
				o.Part = "1/4"
			}
		}, ProblemRecord},
		{"a pod of another namespace", func(r *Record) {
			if o, ok := r.Body.(*Open); ok && o.Pod == "a-1" {
				o.Namespace = "team-b"
			}
		}, ProblemCarry},
		{"a time that was shorter", func(r *Record) {
			if r.Seq >= 40 && r.Seq < 65 {
				r.At.Boot -= 5000
			}
		}, ProblemCarry},
		{"time that goes back", func(r *Record) {
			if r.Seq == 20 {
				r.At.Boot -= 60_000
			}
		}, ProblemRecord},
		{"totals that somebody changed", func(r *Record) {
			if c, ok := r.Body.(*Carry); ok {
				c.State = json.RawMessage(strings.Replace(string(c.State), `"gpu":"600000"`, `"gpu":"700000"`, 1))
			}
		}, ProblemConservation},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := threePages(t)
			rechain(t, d.segments(), tt.edit)
			v := verified(t, d)
			if !slices.ContainsFunc(v.Problems, func(p Problem) bool { return p.Kind == tt.want }) || !v.Contradicts() {
				t.Errorf("problems %+v", v.Problems)
			}
		})
	}
}

// A stamp that nothing rests on is changed, and the sums are right: only the chain can tell.
func TestAChangeThatChangesNoTotalIsFound(t *testing.T) {
	later := func(r *Record) {
		if r.Seq == 20 {
			r.At.Wall++
		}
	}
	t.Run("within a page", func(t *testing.T) {
		d := threePages(t)
		path := d.segments()[0]
		var all []byte
		boot := ""
		for line, err := range scanSegment(path) {
			if err != nil {
				t.Fatal(err)
			}
			later(&line.Record)
			if all, err = appendLine(all, line.Record, line.Prev, boot); err != nil {
				t.Fatal(err)
			}
			boot = line.At.BootID
		}
		edited(t, path, func([]byte) []byte { return all })
		if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemChain || v.Problems[0].Line != 21 || !v.Contradicts() {
			t.Errorf("problems %+v", v.Problems)
		}
	})
	t.Run("from a page to the next", func(t *testing.T) {
		d := threePages(t)
		rechain(t, d.segments()[:1], later)
		if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemChain || v.Problems[0].Line != 1 || !v.Contradicts() {
			t.Errorf("problems %+v", v.Problems)
		}
	})
}

// rechain writes segments anew with sums and links that fit.
func rechain(t *testing.T, paths []string, edit func(*Record)) {
	t.Helper()
	var prev link
	boot := ""
	for _, path := range paths {
		var lines []byte
		for line, err := range scanSegment(path) {
			if err != nil {
				t.Fatal(err)
			}
			edit(&line.Record)
			start := len(lines)
			if lines, err = appendLine(lines, line.Record, prev, boot); err != nil {
				t.Fatal(err)
			}
			prev, boot = linkOf(lines[start:]), line.At.BootID
		}
		if err := os.WriteFile(path, lines, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryProblemIsToldWithItsPlace(t *testing.T) {
	d := threePages(t)
	paths := d.segments()
	for _, path := range paths[:2] {
		edited(t, path, func(data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			lines[4][20] ^= 1
			return bytes.Join(lines, nil)
		})
	}
	v := verified(t, d)
	for _, path := range paths[:2] {
		if !slices.ContainsFunc(v.Problems, func(p Problem) bool {
			return p.File == filepath.Base(path) && p.Line == 5 && p.Record > 0 && p.Kind == ProblemDamage
		}) {
			t.Errorf("%s: problems %+v", path, v.Problems)
		}
	}
}

func TestProblemsAreBoundedAndTheWorstAreTold(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, whole("a-1"))
	edited(t, d.segments()[0], func(data []byte) []byte {
		lines := bytes.SplitAfter(data, []byte("\n"))
		for _, line := range lines[2 : len(lines)-1] {
			line[2] ^= 1
		}
		return bytes.Join(lines, nil)
	})
	v := verified(t, d)
	if len(v.Problems) != maxProblems || v.More == 0 || !v.Contradicts() {
		t.Errorf("%d problems and %d more", len(v.Problems), v.More)
	}
}

func TestWhatIsMissingIsNoContradiction(t *testing.T) {
	t.Run("a page in the middle", func(t *testing.T) {
		d := threePages(t)
		remove(t, d.segments()[1])
		v := verified(t, d)
		if len(v.Problems) != 1 || v.Problems[0].Kind != ProblemMissing || v.Contradicts() {
			t.Errorf("problems %+v", v.Problems)
		}
	})
	t.Run("the first page, which is retention", func(t *testing.T) {
		d := threePages(t)
		remove(t, d.segments()[0])
		v := verified(t, d)
		if want := sharing.NewFraction(20*60*1000, 1); len(v.Problems) > 0 || len(v.Notes) != 1 || !v.Proven.Equal(want) {
			t.Errorf("verification %+v", v)
		}
	})
	t.Run("a page that was set aside", func(t *testing.T) {
		d := threePages(t)
		if err := os.Rename(d.segments()[1], d.segments()[1]+".corrupt-20261101T000000Z"); err != nil {
			t.Fatal(err)
		}
		if v := verified(t, d); len(v.Problems) != 2 || v.Contradicts() || !strings.Contains(v.Problems[1].Text, "set aside") {
			t.Errorf("verification %+v", v)
		}
	})
	t.Run("a line that is being written", func(t *testing.T) {
		d := threePages(t)
		last := d.segments()[2]
		d.see(whole("a-1"))
		d.ahead()
		edited(t, last, func(data []byte) []byte { return data[:len(data)-3] })
		if v := verified(t, d); len(v.Problems) > 0 || len(v.Notes) != 1 || v.Last != d.account.seq-1 {
			t.Errorf("verification %+v", v)
		}
	})
	t.Run("a later version's record", func(t *testing.T) {
		d := threePages(t)
		edited(t, d.segments()[2], func(data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			next := fmt.Sprintf("%s %d levitate 1 2 {}", linkOf(lines[len(lines)-2]), d.account.seq+1)
			return append(append(data, summed(next)...), '\n')
		})
		if v := verified(t, d); len(v.Problems) != 1 || v.Problems[0].Kind != ProblemUnread || v.Contradicts() {
			t.Errorf("problems %+v", v.Problems)
		}
	})
}

func TestVerifyEndsWhenItIsTold(t *testing.T) {
	d := threePages(t)
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	_, err := d.reader().Verify(ctx, func(done float64, what string) {
		told++
		if done <= 0 || done > 1 || what == "" {
			t.Errorf("%v of %q is done", done, what)
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) || told == 0 {
		t.Errorf("error %v after %d", err, told)
	}
}
