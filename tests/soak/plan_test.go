// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// happening is one thing that is done to the node.
type happening struct {
	at   time.Duration
	verb string
	// seed is for what the verb draws by itself.
	seed uint64
}

// The verbs.
const (
	verbXID         = "xid"
	verbLose        = "lose a GPU"
	verbHang        = "hang or slow a GPU"
	verbRepartition = "repartition"
	verbClear       = "operator's clearing"
	verbCounters    = "counter file"
	verbConfig      = "plugin's config"
	verbKubelet     = "kubelet restarts"
	verbKillKubelet = "kill -9 kubelet"
	verbKillExport  = "kill -9 exporter"
	verbStopExport  = "restart exporter"
	verbKillPlugin  = "kill -9 device plugin"
	verbStopPlugin  = "restart device plugin"
)

// weights are how often each verb is drawn, of their sum.
func weights() []struct {
	verb string
	n    int
} {
	return []struct {
		verb string
		n    int
	}{
		{verbXID, 10}, {verbLose, 4}, {verbHang, 6}, {verbRepartition, 4}, {verbClear, 4}, {verbCounters, 8}, {verbConfig, 6}, {verbKubelet, 3},
		{verbKillKubelet, 2}, {verbKillExport, 3}, {verbStopExport, 1}, {verbKillPlugin, 3}, {verbStopPlugin, 1},
	}
}

// endsOurs reports whether a verb ends one of our two programs.
func endsOurs(verb string) bool {
	return slices.Contains([]string{verbKillExport, verbStopExport, verbKillPlugin, verbStopPlugin}, verb)
}

// pause is the longest between two happenings.
const pause = 6 * time.Second

// plan is all that happens in a soak. In the second half our own programs live on, so that what they hold at its beginning and at its end can be
// compared.
func plan(seed uint64, length time.Duration) []happening {
	r := rand.New(rand.NewPCG(seed, 6))
	sum := 0
	for _, w := range weights() {
		sum += w.n
	}
	var out []happening
	for at := 10 * time.Second; at < length-10*time.Second; {
		drawn, verb := r.IntN(sum), ""
		for _, w := range weights() {
			if drawn -= w.n; drawn < 0 {
				verb = w.verb
				break
			}
		}
		h := happening{at, verb, r.Uint64()}
		at += time.Second + time.Duration(r.Int64N(int64(pause-time.Second)))
		if h.at < length/2 || !endsOurs(verb) {
			out = append(out, h)
		}
	}
	return out
}

func TestASeedIsASoakThatCanBeRepeated(t *testing.T) {
	first, again, other := plan(7, time.Hour), plan(7, time.Hour), plan(8, time.Hour)
	if !slices.Equal(first, again) {
		t.Error("two plans of one seed differ")
	}
	if slices.Equal(first, other) {
		t.Error("two seeds have one plan")
	}
}

func TestAnHourHasEverythingInItAndASecondHalfInWhichOurProgramsLive(t *testing.T) {
	count := map[string]int{}
	for _, h := range plan(1, time.Hour) {
		count[h.verb]++
		if h.at >= 30*time.Minute && endsOurs(h.verb) {
			t.Errorf("%v: %s", h.at, h.verb)
		}
	}
	for _, w := range weights() {
		if count[w.verb] < 3 {
			t.Errorf("%s comes %d times in an hour", w.verb, count[w.verb])
		}
	}
}
