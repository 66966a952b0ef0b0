// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestAProofThatComesLateMovesWhatWasUnobserved(t *testing.T) {
	c := a100(0)
	tests := []struct {
		name  string
		after int64
		holds sharing.Holder
		want  int64
	}{
		{"the UID comes", minute, pod("p"), minute},
		{"it comes an hour late", 62 * minute, pod("p"), 0},
		{"it is another pod's", minute, sharing.Holder{Namespace: "team", Pod: "p", Container: "main", PodUID: "another"}, 0},
		{"it is another container's", minute, sharing.Holder{Namespace: "team", Pod: "p", Container: "side", PodUID: "uid-p"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := begun(instant("b", 0))
			a.Observe(seen(instant("b", 0), []Card{c}, wholeLine(c, pod("p"))))
			a.Begin(Begin{LedgerID: "ledger"}, instant("b", minute))
			records := a.Observe(seen(instant("b", minute), []Card{c}, wholeLine(c, nameless(pod("p")))))
			gapSeq := records[0].Seq
			a = reopenedWatch(t, a)
			for at := 2 * minute; at < minute+tt.after; at += minute {
				a.Observe(seen(instant("b", at), []Card{c}, wholeLine(c, nameless(pod("p")))))
			}
			for range 2 {
				records = a.Observe(seen(instant("b", minute+tt.after), []Card{c}, wholeLine(c, tt.holds)))
				if correction, ok := find[*Correction](records); ok && (correction.Refers != gapSeq || correction.FromWall != epoch || correction.ToWall != epoch+minute) {
					t.Errorf("%+v", correction)
				}
			}
			totals := a.Totals()
			wantGPU(t, "corrected", totals.Cards[0].Corrected[sharing.CauseUnobserved].GPU, tt.want)
			wantGPU(t, "unobserved", totals.Cards[0].Unallocated[sharing.CauseUnobserved].GPU, minute)
			wantGPU(t, "the namespace", seriesTotal(totals, "team").GPU, tt.want+tt.after)
			wantGPU(t, "capacity", totals.Cards[0].Capacity.GPU, minute+tt.after)
			if err := checkConservation(totals); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAProofThatComesLateIsForTheLesserPart(t *testing.T) {
	c := a100(0)
	seats := func(h sharing.Holder, of int64) []Line {
		rest := fraction(of-1, of)
		return []Line{seatLine(c, h, 1, int(of)), restLine(c, sharing.CauseUnrequested, rest, rest)}
	}
	for _, tt := range []struct{ before, after, want int64 }{{2, 4, minute / 4}, {4, 2, minute / 4}, {2, 2, minute / 2}} {
		a := begun(instant("b", 0))
		a.Observe(seen(instant("b", 0), []Card{c}, seats(pod("p"), tt.before)...))
		a.Begin(Begin{LedgerID: "ledger"}, instant("b", minute))
		a.Observe(seen(instant("b", minute), []Card{c}, seats(nameless(pod("p")), tt.after)...))
		a.Observe(seen(instant("b", minute), []Card{c}, seats(pod("p"), tt.after)...))
		corrected := a.Totals().Cards[0].Corrected[sharing.CauseUnobserved]
		wantGPU(t, "corrected", corrected.GPU, tt.want)
		wantGPU(t, "corrected memory", corrected.Memory, tt.want*c.Memory)
	}
}

// reopenedWatch is an account as it is read, with what Observe remembers.
func reopenedWatch(t *testing.T, a *Account) *Account {
	t.Helper()
	b := reopened(t, a)
	b.watch = a.watch
	return b
}
