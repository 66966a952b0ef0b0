// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// healthDesk is where readings hear of the health checks. Each GPU has checks of its own, so
// that one that hangs does not keep the others from theirs; where the engine has no groups for
// that, all GPUs have one.
type healthDesk struct {
	*settings
	// rounds are in the order of their GPUs.
	rounds []*healthRound
	asked  bool
}

// healthRound has the checks of some GPUs, one round after the other.
type healthRound struct {
	id     uint32
	worker *worker[healthJob, healthAnswer]
	// ss, cards and began are those of the last round that was begun; cards is empty while
	// nothing is checked.
	ss    *session
	cards map[uint32]gpu.UUID
	began time.Time
	// report is that of the last round that was finished, err why a later one was not.
	report gpu.HealthReport
	err    error
	// wanted says that there is a GPU to check, hangs that another call for it hangs.
	wanted, hangs bool
}

// tend takes in rounds that have finished and begins those that are due. GPUs of which stuck
// says that a call hangs already get no second one to hang.
func (d *healthDesk) tend(s *survey, cards map[uint32]gpu.UUID, stuck func(uint32) bool) {
	d.asked = true
	shares := map[uint32]map[uint32]gpu.UUID{}
	for id, uuid := range cards {
		if s.roomy() {
			shares[id] = map[uint32]gpu.UUID{id: uuid}
		} else {
			shares[0] = cards
		}
	}
	for id := range shares {
		if i, found := slices.BinarySearchFunc(d.rounds, id, func(r *healthRound, id uint32) int { return cmp.Compare(r.id, id) }); !found {
			check := (&checker{settings: d.settings}).check
			d.rounds = slices.Insert(d.rounds, i, &healthRound{id: id, worker: newWorker(check, nil)})
		}
	}
	for _, r := range d.rounds {
		r.hear()
		share := shares[r.id]
		r.wanted, r.hangs = len(share) > 0, slices.ContainsFunc(slices.Collect(maps.Keys(share)), stuck)
		due := s.ss != r.ss || time.Since(r.began) >= d.pauses.round || !maps.Equal(share, r.cards)
		switch {
		case !r.wanted:
			r.stop(s.ss)
		case due && !r.hangs && !r.worker.busy():
			r.begin(healthJob{ss: s.ss, cards: share, instances: s.instances})
		}
	}
}

func (r *healthRound) begin(job healthJob) {
	if !maps.Equal(job.cards, r.cards) {
		r.report, r.err = gpu.HealthReport{}, nil
	}
	r.ss, r.cards, r.began = job.ss, job.cards, time.Now()
	r.worker.begin(job)
}

func (r *healthRound) hear() {
	if a, ok := r.worker.late(); ok && len(r.cards) > 0 {
		if r.err = a.err; a.err == nil && !a.report.Time.IsZero() {
			r.report = a.report
		}
	}
}

// stop ends the checks of GPUs that are gone, or of which nobody asks any more.
func (r *healthRound) stop(ss *session) {
	if r.worker.busy() || len(r.cards) == 0 {
		return
	}
	if r.ss == ss {
		r.worker.begin(healthJob{ss: ss})
	}
	r.ss, r.cards, r.report, r.err = nil, nil, gpu.HealthReport{}, nil
}

// stop ends all checks where nobody asks for them any more.
func (d *healthDesk) stop(ss *session) {
	if !d.asked {
		return
	}
	d.asked = false
	for _, r := range d.rounds {
		r.hear()
		r.stop(ss)
		d.asked = d.asked || len(r.cards) > 0
	}
}

// report joins the last rounds. There is none before each GPU had its first, or has waited too
// long for it; a result that is too old is none.
func (d *healthDesk) report() gpu.HealthReport {
	var out gpu.HealthReport
	for _, r := range d.rounds {
		switch {
		case !r.wanted || len(r.cards) == 0 || r.report.Time.IsZero() && (r.err != nil || r.hangs):
		case r.report.Time.IsZero() && time.Since(r.began) < d.pauses.overdue:
			return gpu.HealthReport{}
		case time.Since(r.report.Time) <= d.pauses.forget:
			out.Checked = append(out.Checked, r.report.Checked...)
			out.Incidents = append(out.Incidents, r.report.Incidents...)
			if r.report.Time.After(out.Time) {
				out.Time = r.report.Time
			}
		}
	}
	return out
}

// troubles are of the checks that do not come back and of those that fail: one for all where
// they fail for the same reason.
func (d *healthDesk) troubles() []gpu.Trouble {
	var late, failed []gpu.Trouble
	rounds := 0
	for _, r := range d.rounds {
		if !r.wanted || len(r.cards) == 0 {
			continue
		}
		rounds++
		if r.worker.busy() && time.Since(r.began) >= d.pauses.overdue {
			late = append(late, gpu.Trouble{GPU: r.only(), Reason: gpu.ReasonTimeout, Text: fmt.Sprintf(
				"DCGM's health check of %s has not come back since %s; its last result is dropped after %.0f min",
				r.names(), r.began.Format(time.TimeOnly), d.pauses.forget.Minutes())})
		}
		if r.err != nil {
			failed = append(failed, troubleOf(r.err).of(r.only()))
		}
	}
	alike := !slices.ContainsFunc(failed, func(t gpu.Trouble) bool { return t.Reason != failed[0].Reason })
	if len(failed) > 0 && len(failed) == rounds && alike {
		failed = failed[:1]
		failed[0].GPU = ""
	}
	return append(late, failed...)
}

// only is the GPU of the round, empty where it has several.
func (r *healthRound) only() gpu.UUID {
	if len(r.cards) != 1 {
		return ""
	}
	return r.cards[r.id]
}

func (r *healthRound) names() string {
	if len(r.cards) != 1 {
		return fmt.Sprintf("%d GPUs", len(r.cards))
	}
	return entity{groupGPU, r.id}.String()
}
