// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestALedgerThatCannotBeReadIsNamedBesideThoseThatCan(t *testing.T) {
	whole, broken := newDesk(t), newDesk(t)
	for _, d := range []*desk{whole, broken} {
		d.stand(time.Hour, seat("a-1", 1))
		d.flush()
	}
	good, bad := whole.reader(), broken.reader()
	for _, name := range segmentsOf(t, broken.dir) {
		if err := os.WriteFile(name, []byte("nonsense\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q := Query{Boundaries: deskTimes(0, time.Hour), Nodes: []string{"node-1"}}
	u, err := ReadUsage(t.Context(), []*Reader{bad, good}, q)
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Nodes) != 2 || heldOf(u, "team-a", 0) != micros(time.Hour) || u.Held[0].Node != 1 {
		t.Fatalf("usage %+v", u)
	}
	missing := u.Nodes[0].Missing
	if len(missing) != 1 || missing[0].Reason != "unreadable" || !missing[0].From.Equal(q.Boundaries[0]) || !missing[0].To.Equal(q.Boundaries[1]) ||
		!strings.Contains(missing[0].Text, bad.Dir()) {
		t.Errorf("missing %+v", missing)
	}
	if _, err := ReadUsage(t.Context(), []*Reader{bad}, q); err == nil || !strings.Contains(err.Error(), bad.Dir()) {
		t.Errorf("no ledger can be read, and the error is %v", err)
	}
}

func segmentsOf(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, bookFolder, segmentGlob))
	if err != nil || len(names) == 0 {
		t.Fatalf("segments %v, %v", names, err)
	}
	return names
}

func TestUsageSaysHowMIGDevicesWereWeighed(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, seat("a-1", 1))
	for _, policy := range []string{"memory", "compute"} {
		d.write(d.account.Begin(Begin{LedgerID: "ledger-1", Node: "node-1", Policy: policy}, d.at))
		d.stand(time.Hour, seat("a-1", 1))
	}
	for _, tt := range []struct {
		from, to time.Duration
		want     []string
	}{
		{0, 30 * time.Minute, []string{"blend"}},
		{70 * time.Minute, 80 * time.Minute, []string{"memory"}},
		{10 * time.Minute, 80 * time.Minute, []string{"blend", "memory"}},
		{10 * time.Minute, 170 * time.Minute, []string{"blend", "compute", "memory"}},
		{150 * time.Minute, 170 * time.Minute, []string{"compute"}},
	} {
		if got := d.usage(DetailSeries, tt.from, tt.to).Nodes[0].Policies; !slices.Equal(got, tt.want) {
			t.Errorf("from %v to %v: %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}

func TestNothingUsedOfSomethingHeldIsAnAnswer(t *testing.T) {
	for _, tt := range []struct {
		name string
		used map[Basis]int64
		held int64
		want map[Basis]int64
	}{
		{"nobody measured it", nil, 5, nil},
		{"idle", map[Basis]int64{BasisUtil: 0}, 5, map[Basis]int64{BasisUtil: 0}},
		{"nothing of nothing", map[Basis]int64{BasisUtil: 0}, 0, nil},
		{"used", map[Basis]int64{BasisUtil: 3}, 5, map[Basis]int64{BasisUtil: 3}},
		{"measured in another way since", map[Basis]int64{BasisUtil: 0, BasisEngine: 2}, 5, map[Basis]int64{BasisEngine: 2}},
	} {
		if got := KnownUse(maps.Clone(tt.used), tt.held); !maps.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A GPU that somebody forgot to give back is the first that a ranking of waste has to show.
func TestAnIdleHolderIsMeasuredWithNothing(t *testing.T) {
	d := newDesk(t)
	for range 3 {
		d.pass(time.Minute)
		d.write(d.account.Observe(Observation{
			At: d.at, Cards: d.cards, Lines: []Line{whole("a-idle")}, Busy: map[gpu.UUID]int64{"GPU-0": 0}, Basis: BasisUtil,
		}))
	}
	for _, detail := range []Detail{DetailSeries, DetailPods} {
		u := d.usage(detail, 0, 3*time.Minute)
		if len(u.Held) != 1 || !maps.Equal(u.Held[0].Used, map[Basis]int64{BasisUtil: 0}) {
			t.Errorf("held %+v", u.Held)
		}
	}
}
