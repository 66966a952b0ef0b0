// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

func TestAReaderMissesWhatIsBeforeItsNow(t *testing.T) {
	d := newDesk(t)
	d.stand(time.Hour, seat("a-1", 1))
	d.flush()
	r, err := OpenReader(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, now := range []time.Duration{time.Hour, 65 * time.Minute, 90 * time.Minute} {
		u, err := r.At(func() time.Time { return deskStart.Add(now) }).Usage(t.Context(), Query{Boundaries: deskTimes(0, 2*time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		missing := u.Nodes[0].Missing
		if late := now == 90*time.Minute; (len(missing) == 1) != late || late && !missing[0].To.Equal(deskStart.Add(now)) {
			t.Errorf("%v after the start: missing %+v", now, missing)
		}
	}
}
