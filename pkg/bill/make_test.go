// SPDX-License-Identifier: Apache-2.0

package bill

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/ledger"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestABillNamesHowSharesWereWeighed(t *testing.T) {
	for _, tt := range []struct {
		name     string
		policies [][]string
		want     string
		note     string
	}{
		{"nobody says", [][]string{nil}, "", ""},
		{"one", [][]string{{"blend"}}, "mig-blend+replica-even@v1", ""},
		{"one and one who does not say", [][]string{{"blend"}, nil}, "mig-blend+replica-even@v1", ""},
		{
			"two nodes, two ways", [][]string{{"memory"}, {"blend"}}, "mig-blend,memory+replica-even@v1",
			"MIG devices were weighed in more than one way: blend on node-1; memory on node-0",
		},
		{
			"changed in between", [][]string{{"blend", "compute"}}, "mig-blend,compute+replica-even@v1",
			"MIG devices were weighed in more than one way: blend on node-0; compute on node-0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(day(1), day(2))
			f.Nodes = nil
			for i, p := range tt.policies {
				f.Nodes[f.node(fmt.Sprintf("node-%d", i), nil)].Policies = p
			}
			b := bill(t, f, Options{})
			if b.PolicyVersion != tt.want || strings.Join(b.Notes, "\n") != tt.note {
				t.Errorf("policy %q, notes %q", b.PolicyVersion, b.Notes)
			}
		})
	}
}

func TestANodeThatWasNotMeteredFromTheBeginningIsNamed(t *testing.T) {
	f := newFleet(day(1), day(30))
	for i := range 12 {
		f.Nodes[f.node(fmt.Sprintf("new-%02d", i), nil)].Created = day(15)
	}
	f.Nodes[f.node("later", nil)].Created = day(30)
	b := bill(t, f, Options{})
	if len(b.Notes) != 1 || !b.Complete || strings.Contains(b.Notes[0], "later") {
		t.Fatalf("complete %t, notes %q", b.Complete, b.Notes)
	}
	for _, want := range []string{"new-00 (2026-03-15T00:00:00Z), ", "new-09 (2026-03-15T00:00:00Z) and 2 more", "in no bill"} {
		if !strings.Contains(b.Notes[0], want) {
			t.Errorf("note %q lacks %q", b.Notes[0], want)
		}
	}
	if b = bill(t, newFleet(day(1), day(30)), Options{}); len(b.Notes) > 0 {
		t.Errorf("nobody is new, and the notes are %q", b.Notes)
	}
}

func TestWhatIsHeldOfAGPUSaysWhichOneItIs(t *testing.T) {
	f := newFleet(day(1), day(2))
	for i, card := range []string{"GPU-a", "GPU-b"} {
		f.rest(0, "", 86400, onGPU(card, i))
	}
	f.held(0, "a", 3600, func(h *ledger.Held) { h.Card = "GPU-b" })
	f.rest(0, sharing.CauseUnobserved, 86400-3600, onGPU("GPU-b", 1))
	f.rest(0, sharing.CauseUnobserved, 3600, onGPU("GPU-b", 1), func(r *ledger.Rest) { r.Corrected = true })
	f.rest(0, sharing.CauseFree, 86400, onGPU("GPU-a", 0))
	b, err := Make(f.Usage, Options{From: day(1), To: day(2)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range b.Rows {
		for i := range r.Items {
			if item := &r.Items[i]; item.CardIndex != map[bool]int{true: 1}[item.Card == "GPU-b"] {
				t.Errorf("%s of %s is of GPU %d", r.Kind, item.Card, item.CardIndex)
			}
		}
	}
}

func onGPU(card string, index int) func(*ledger.Rest) {
	return func(r *ledger.Rest) { r.Card, r.Index = gpu.UUID(card), index }
}

func TestTheRowsOfAMonthThatGoesOnKeepTheirNames(t *testing.T) {
	ids := func(last int) (ids []string) {
		f := newFleet(day(1), day(last))
		f.held(0, "a", 3600)
		f.rest(0, sharing.CauseFree, 1)
		for _, r := range bill(t, f, Options{GroupBy: byNamespace}).Rows {
			ids = append(ids, r.ID)
		}
		return ids
	}
	if one, two := ids(10), ids(20); !slices.Equal(one, two) {
		t.Errorf("on the 10th %v, on the 20th %v", one, two)
	}
}
