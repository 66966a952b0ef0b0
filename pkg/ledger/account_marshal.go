// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// MarshalJSON writes the whole account but for what Observe remembers: that is for one meter's life.
//
// It is written with every commit, so what does not change is encoded once: the long lists are put together of
// what is kept of each entry.
func (a *Account) MarshalJSON() ([]byte, error) {
	out, err := json.Marshal(a.shortState())
	if err != nil {
		return nil, fmt.Errorf("write the state of an account: %w", err)
	}
	w := stateWriter{out: out[:len(out)-1]}
	w.list("lines", len(a.lines))
	for _, id := range a.openIDs() {
		l := a.lines[id]
		w.entry(&l.json, l.said)
		w.number("since", l.since)
		w.measured(l)
		w.out = append(w.out, '}')
	}
	series := slices.SortedFunc(maps.Values(a.series), func(x, y *seriesAccount) int { return x.key.compare(&y.key) })
	w.list("series", len(series))
	for _, x := range series {
		w.entry(&x.json, seriesKey(x.key))
		w.register(x.amount, x.used)
		w.out = append(w.out, '}')
	}
	pods := slices.SortedFunc(maps.Values(a.pods), func(x, y *podAccount) int { return x.key.compare(&y.key) })
	w.list("pods", len(pods))
	for _, p := range pods {
		w.entry(&p.json, podKeyOf(p.key))
		w.register(p.amount, p.used)
		if p.endedSeq != 0 {
			w.number("ended", p.ended)
			w.number("ended_age", p.endedAge)
			w.number("ended_seq", int64(p.endedSeq))
		}
		if p.unseen {
			w.out = append(w.out, `,"unseen":true`...)
		}
		w.out = append(w.out, '}')
	}
	w.list("pod_facts", len(pods))
	for i, p := range pods {
		// The registers of a pod stand beside each other.
		if h := a.holders[p.holder()]; i == 0 || pods[i-1].holder() != p.holder() {
			w.entry(&h.json, h.facts)
			w.out = append(w.out, '}')
		}
	}
	w.close()
	if w.err != nil {
		return nil, fmt.Errorf("write the state of an account: %w", w.err)
	}
	return append(w.out, '}'), nil
}

// shortState is the state without the long lists.
func (a *Account) shortState() *accountState {
	s := &accountState{
		Version: accountVersion, Begin: a.begin, Created: a.created, Seq: a.seq, At: a.at, Charged: a.charged,
		Away: a.away, Age: a.age, Last: a.lastLine, Gaps: a.gaps, Labels: a.labels,
	}
	for _, c := range a.cards {
		s.Cards = append(s.Cards, cardState{
			Card: c.card, Capacity: amountState(c.capacity), Allocated: amountState(c.allocated), Basis: c.basis,
			Unallocated: amountStates(c.unallocated), Corrected: amountStates(c.corrected),
			Since: c.since, Used: c.used, Counter: c.counter, Metered: c.metered,
		})
	}
	s.Late, s.Hidden = lateStates(a.late), lateStates(a.hidden)
	for _, x := range sortedXIDs(a.xids) {
		s.XIDs = append(s.XIDs, xidSeen(x, a.xids[x]))
	}
	return s
}

// stateWriter appends lists to an object that is open.
type stateWriter struct {
	out    []byte
	inList bool
	first  bool
	err    error
}

// list ends the list before and begins another. The size is a guess of its entries.
func (w *stateWriter) list(name string, size int) {
	w.close()
	w.out = append(slices.Grow(w.out, 400*size), `,"`+name+`":[`...)
	w.inList, w.first = true, true
}

func (w *stateWriter) close() {
	if w.inList {
		w.out = append(w.out, ']')
	}
	w.inList = false
}

// entry begins an entry with what never changes of it, which is encoded where it is not yet kept. It stays open.
func (w *stateWriter) entry(kept *[]byte, what any) {
	if *kept == nil {
		data, err := json.Marshal(what)
		if err != nil {
			w.err = cmp.Or(w.err, err)
			return
		}
		*kept = data[:len(data)-1]
	}
	if !w.first {
		w.out = append(w.out, ',')
	}
	w.first = false
	w.out = append(w.out, *kept...)
}

func (w *stateWriter) number(name string, n int64) {
	w.out = append(append(append(w.out, `,"`...), name...), `":`...)
	w.out = strconv.AppendInt(w.out, n, 10)
}

func (w *stateWriter) measured(l *openLine) {
	if l.energy > 0 {
		w.number("energy", l.energy)
	}
	if l.busy == 0 {
		return
	}
	w.number("busy", l.busy)
	basis, err := json.Marshal(l.device.basis)
	w.err = cmp.Or(w.err, err)
	w.out = append(append(w.out, `,"basis":`...), basis...)
}

func (w *stateWriter) register(amount Amount, used map[Basis]sharing.Fraction) {
	for _, q := range []struct {
		name  string
		value sharing.Fraction
	}{{"gpu", amount.GPU}, {"memory", amount.Memory}, {"energy", amount.Energy}} {
		if !q.value.IsZero() {
			w.out = append(append(append(w.out, `,"`...), q.name...), `":"`...)
			w.out = append(append(w.out, q.value.String()...), '"')
		}
	}
	if len(used) == 0 {
		return
	}
	data, err := json.Marshal(used)
	if err != nil {
		w.err = cmp.Or(w.err, err)
		return
	}
	w.out = append(append(w.out, `,"used":`...), data...)
}

func podKeyOf(key PodSeries) podKey {
	return podKey{
		seriesKey: seriesKey(key.Series), Pod: key.Pod, PodUID: key.PodUID, Container: key.Container,
		Card: key.Card, GPUInstance: key.GPUInstance,
	}
}

func amountStates(m map[sharing.Cause]Amount) map[sharing.Cause]amountState {
	out := make(map[sharing.Cause]amountState, len(m))
	for cause, amount := range m {
		out[cause] = amountState(amount)
	}
	return out
}

func lateStates(lines []*lateLine) []lateState {
	var out []lateState
	for _, l := range lines {
		out = append(out, lateState{Open: l.said, Refers: l.refers, Span: l.span, From: l.from, To: l.to, Age: l.age, MiB: l.mebibytes})
	}
	return out
}

func sortedXIDs(m map[XID]uint64) []XID {
	return slices.SortedFunc(maps.Keys(m), func(x, y XID) int {
		return cmp.Or(cmp.Compare(x.GPU, y.GPU), cmp.Compare(x.GPUInstance, y.GPUInstance),
			cmp.Compare(x.ComputeInstance, y.ComputeInstance), cmp.Compare(x.Code, y.Code))
	})
}

func xidSeen(x XID, count uint64) XIDSeen {
	return XIDSeen{GPU: x.GPU, GPUInstance: x.GPUInstance, ComputeInstance: x.ComputeInstance, Code: x.Code, Count: count}
}

// openIDs are the numbers of the open lines, ascending.
func (a *Account) openIDs() []uint64 { return slices.Sorted(maps.Keys(a.lines)) }

// applyCarry takes a state over where there is none yet, and looks that it says the same where there is.
func (a *Account) applyCarry(seq uint64, c *Carry) error {
	carried := NewAccount()
	if a.seq == 0 {
		if err := carried.UnmarshalJSON(c.State); err != nil {
			return err
		}
		if carried.seq+1 != seq {
			return fmt.Errorf("it carries the state after record %d", carried.seq)
		}
		carried.dropped, carried.stall = a.dropped, a.stall
		*a = *carried
		return nil
	}
	if a.seq+1 != seq {
		return fmt.Errorf("record %d is missing: begin with this carry", a.seq+1)
	}
	mine, err := a.MarshalJSON()
	if err != nil {
		return err
	}
	if bytes.Equal(mine, c.State) {
		return nil
	}
	// Another version may have written the same otherwise.
	if err := carried.UnmarshalJSON(c.State); err != nil {
		return err
	}
	theirs, err := carried.MarshalJSON()
	if err != nil {
		return err
	}
	if !bytes.Equal(mine, theirs) {
		return errors.New("it carries another state than the records before it come to")
	}
	return nil
}
