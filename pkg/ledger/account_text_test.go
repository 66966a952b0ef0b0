// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

func TestTextOfOthersIsCutToWhatALogCanHold(t *testing.T) {
	c := a100(0)
	hostile := sharing.Holder{Namespace: "\xff\xfe", Pod: "a\x00b\n\u2028" + strings.Repeat("x", 5000), Container: "<&>", PodUID: "\xc3\x28"}
	o := seen(instant("b", 0), []Card{{UUID: c.UUID, Model: "\xf0\x28", Memory: -1}}, wholeLine(c, hostile))
	o.NodeLabels = map[string]string{"\xff": "\xfe"}
	o.Pods = []Pod{{Namespace: hostile.Namespace, Name: hostile.Pod, UID: hostile.PodUID, Labels: map[string]string{"k\xff": "v\xff"}}}
	o.Facts = []Fact{{What: "\xff", Text: "\xff"}}
	o.XIDs = map[XID]uint64{{GPU: "\xff", Code: 79}: 1}
	a := begun(instant("b", 0))
	replayed := NewAccount()
	first := Record{Seq: 1, At: instant("b", 0), Body: &a.begin}
	for _, r := range append([]Record{first}, a.Observe(o)...) {
		if err := replayed.Apply(throughJSON(t, r)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(written(t, a), written(t, replayed)); diff != "" {
		t.Error(diff)
	}
	o.XIDs, o.Facts = nil, nil
	if got := kinds(a.Observe(o)); !slices.Equal(got, []Kind{KindBeat}) {
		t.Errorf("the same again says %v", got)
	}
	reopened(t, a)
}
