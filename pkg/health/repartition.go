// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"slices"
	"time"
)

// MIGState is a MIG manager's word on the node: how far dividing its GPUs anew is. Any other word than
// those below says that nothing is under way.
type MIGState string

const (
	// MIGUnsaid: nobody knows what the MIG manager says now; what it said before stands.
	MIGUnsaid MIGState = ""
	// MIGNone: no MIG manager says anything of the node.
	MIGNone MIGState = "none"
	// MIGPending: GPUs are being reset and divided anew.
	MIGPending MIGState = "pending"
	// MIGRebooting: the node is restarted for it.
	MIGRebooting MIGState = "rebooting"
	// MIGSuccess: it is over, and the GPUs are divided as they should be.
	MIGSuccess MIGState = "success"
	// MIGFailed: it is over, and they may not be.
	MIGFailed MIGState = "failed"
)

// MIGStates are the words that a MIG manager uses.
func MIGStates() []MIGState { return []MIGState{MIGPending, MIGRebooting, MIGSuccess, MIGFailed} }

// MIGStateLabel is the label of a node that has a MIG manager's word.
const MIGStateLabel = "nvidia.com/mig.config.state"

// MIGStateOf is that word, given the labels of the node; known says that they are, which those of a node that there is not are never.
func MIGStateOf(labels map[string]string, known bool) MIGState {
	if !known {
		return MIGUnsaid
	}
	return MIGState(cmp.Or(labels[MIGStateLabel], string(MIGNone)))
}

// UnderWay says whether GPUs are being divided anew.
func (s MIGState) UnderWay() bool { return s == MIGPending || s == MIGRebooting }

// Repartition is how far dividing the node's GPUs anew is, as the state of health has it.
type Repartition struct {
	// State is the MIG manager's word; MIGUnsaid where it was never known.
	State MIGState `json:"state,omitempty"`
	// Since is from when it has said so.
	Since time.Time `json:"since,omitzero"`
	// Began is when judging was paused for it, Until when it goes on at the latest; both are zero where
	// nothing is under way, or judging is never paused.
	Began time.Time `json:"began,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Paused says that judging is paused, Overdue that it goes on because the repartition takes too long.
	Paused  bool `json:"paused"`
	Overdue bool `json:"overdue"`
}

// repartition is what a state keeps of one.
type repartition struct {
	State MIGState  `json:"state,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Began is when the pause that there is, or was last, began, and Until when it is over at the latest; Ended when
	// the last repartition ended.
	Began  time.Time `json:"began,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	Ended  time.Time `json:"ended,omitzero"`
	Paused bool      `json:"paused,omitempty"`
}

// repartition takes in what the MIG manager says. A pause that begins before whatever is wrong could be judged after another is
// the same one, so that a word that comes and goes blinds nobody for longer than the limit: a GPU that hangs may be why the MIG
// manager tries again and again.
func (f *fold) repartition() {
	r := &f.d.Repartition
	said := MIGState(word(string(f.e.MIGState)))
	if said != MIGUnsaid && said != r.State {
		was := r.State.UnderWay()
		r.State, r.Since, f.durable = said, f.now, true
		switch {
		case said.UnderWay() && !was && (r.Ended.IsZero() || f.now.Sub(r.Ended) >= f.cfg.HoldDown+f.cfg.StuckAfter):
			r.Began = f.now
		case was && !said.UnderWay():
			r.Ended = f.now
		}
	}
	if until := r.Began.Add(f.cfg.RepartitionFor); r.State.UnderWay() && f.cfg.RepartitionFor > 0 {
		r.Until = until
	} else {
		r.Until = time.Time{}
	}
	paused := f.now.Before(r.Until)
	if paused == r.Paused {
		f.paused = paused
		return
	}
	r.Paused, f.paused, f.durable = paused, paused, true
	f.standAnew()
	if !paused {
		f.missAnew()
	}
}

// missAnew lets an absence that a repartition excused begin now. That there was one stays known: it is evidence once the GPU is back.
func (f *fold) missAnew() {
	for i := range f.d.Cards {
		c := &f.d.Cards[i]
		if !c.Gone || c.Lost {
			continue
		}
		c.Away, c.Gone = time.Time{}, false
		for k := range c.Conditions {
			c.Conditions[k].Returned = true
		}
	}
}

// view is what others get to know of it.
func (r *repartition) view() Repartition {
	out := Repartition{State: r.State, Since: r.Since, Paused: r.Paused}
	if r.State.UnderWay() && !r.Until.IsZero() {
		out.Began, out.Until, out.Overdue = r.Began, r.Until, !r.Paused
	}
	return out
}

// valid says whether r can have been written by MarshalJSON.
func (r *repartition) valid() bool {
	times := []time.Time{r.Since, r.Began, r.Until, r.Ended}
	return string(r.State) == word(string(r.State)) && !slices.ContainsFunc(times, func(t time.Time) bool { return !writable(t) })
}
