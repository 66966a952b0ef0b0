// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// accountVersion is the version of an account's state as it is written.
const accountVersion = 1

// accountState is an account as it is written. Equal accounts are written alike.
type accountState struct {
	Version int               `json:"version"`
	Begin   Begin             `json:"begin"`
	Created int64             `json:"created"`
	Seq     uint64            `json:"seq"`
	At      Instant           `json:"at"`
	Charged Instant           `json:"charged"`
	Away    bool              `json:"away,omitempty"`
	Age     int64             `json:"age"`
	Last    uint64            `json:"last_line"`
	Cards   []cardState       `json:"cards,omitempty"`
	Lines   []lineState       `json:"lines,omitempty"`
	Series  []seriesState     `json:"series,omitempty"`
	Pods    []podState        `json:"pods,omitempty"`
	Facts   []Pod             `json:"pod_facts,omitempty"`
	Late    []lateState       `json:"late,omitempty"`
	Hidden  []lateState       `json:"hidden,omitempty"`
	Gaps    map[string]int64  `json:"gaps,omitempty"`
	XIDs    []XIDSeen         `json:"xids,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

type amountState struct {
	GPU    sharing.Fraction `json:"gpu,omitzero"`
	Memory sharing.Fraction `json:"memory,omitzero"`
	Energy sharing.Fraction `json:"energy,omitzero"`
}

type cardState struct {
	Card
	Capacity    amountState                   `json:"capacity"`
	Allocated   amountState                   `json:"allocated"`
	Basis       map[Basis]sharing.Fraction    `json:"basis,omitempty"`
	Unallocated map[sharing.Cause]amountState `json:"unallocated,omitempty"`
	Corrected   map[sharing.Cause]amountState `json:"corrected,omitempty"`
	Since       int64                         `json:"since"`
	Used        int64                         `json:"used,omitempty"`
	Counter     int64                         `json:"counter,omitempty"`
	Metered     bool                          `json:"metered,omitempty"`
}

type lineState struct {
	*Open
	Since  int64 `json:"since"`
	Energy int64 `json:"energy,omitempty"`
	Busy   int64 `json:"busy,omitempty"`
	Basis  Basis `json:"basis,omitempty"`
}

// seriesKey is a Series as it is written.
type seriesKey struct {
	Namespace string       `json:"namespace"`
	Resource  string       `json:"resource,omitempty"`
	Mode      sharing.Mode `json:"mode,omitempty"`
	Model     string       `json:"model,omitempty"`
	Profile   string       `json:"profile,omitempty"`
}

// podKey is a PodSeries as it is written.
type podKey struct {
	seriesKey
	Pod         string   `json:"pod"`
	PodUID      string   `json:"uid,omitempty"`
	Container   string   `json:"container,omitempty"`
	Card        gpu.UUID `json:"card"`
	GPUInstance int      `json:"gi"`
}

type registerState struct {
	amountState
	Used map[Basis]sharing.Fraction `json:"used,omitempty"`
}

type seriesState struct {
	seriesKey
	registerState
}

type podState struct {
	podKey
	registerState
	Ended    int64  `json:"ended,omitempty"`
	EndedAge int64  `json:"ended_age,omitempty"`
	EndedSeq uint64 `json:"ended_seq,omitempty"`
	Unseen   bool   `json:"unseen,omitempty"`
}

type lateState struct {
	*Open
	Refers uint64 `json:"refers"`
	Span   int64  `json:"span"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Age    int64  `json:"age"`
	MiB    int64  `json:"mib,omitempty"`
}

// UnmarshalJSON reads what MarshalJSON wrote. After an error the account is as it was; the error wraps errNewer where
// a newer version wrote it.
func (a *Account) UnmarshalJSON(data []byte) error {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("read the state of an account: %w", err)
	}
	if head.Version != accountVersion {
		return fmt.Errorf("read the state of an account: %w: version %d, and this program knows %d", errNewer, head.Version, accountVersion)
	}
	var s accountState
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read the state of an account: %w", err)
	}
	read := NewAccount()
	if err := read.restore(&s); err != nil {
		return fmt.Errorf("read the state of an account: %w", err)
	}
	read.dropped, read.stall = a.dropped, a.stall
	*a = *read
	return nil
}

func (a *Account) restore(s *accountState) error {
	for _, at := range []Instant{s.At, s.Charged} {
		if at.Boot < 0 || at.Boot > maxClock || at.Wall < -maxClock || at.Wall > maxClock {
			return fmt.Errorf("its time is none: %+v", at)
		}
	}
	if s.Age < 0 || s.Age > maxClock || !s.Away && s.At != s.Charged {
		return errors.New("what it charged up to is not the last record")
	}
	a.begin, a.created, a.seq, a.at, a.charged = s.Begin, s.Created, s.Seq, s.At, s.Charged
	a.away, a.age = s.Away, s.Age
	if s.Gaps != nil {
		a.gaps = s.Gaps
	}
	if s.Labels != nil {
		a.labels = s.Labels
	}
	for i := range s.XIDs {
		x := &s.XIDs[i]
		a.xids[XID{GPU: x.GPU, GPUInstance: x.GPUInstance, ComputeInstance: x.ComputeInstance, Code: x.Code}] = x.Count
	}
	for reason, span := range s.Gaps {
		if span < 0 || span > maxClock {
			return fmt.Errorf("gaps of %d ms for %q", span, reason)
		}
	}
	return cmp.Or(a.restoreCards(s), a.restoreRegisters(s), a.restoreLines(s), a.restoreLate(s))
}

func (a *Account) restoreCards(s *accountState) error {
	for i := range s.Cards {
		c := &s.Cards[i]
		do, err := a.prepareCard(&CardSeen{N: i + 1, Card: c.Card})
		if err != nil {
			return err
		}
		if a.byUUID[c.UUID] != nil {
			return fmt.Errorf("card %s is there twice", c.UUID)
		}
		do()
		card := a.cards[i]
		card.capacity, card.allocated = Amount(c.Capacity), Amount(c.Allocated)
		for cause, amount := range c.Unallocated {
			card.unallocated[cause] = Amount(amount)
		}
		for cause, amount := range c.Corrected {
			card.corrected[cause] = Amount(amount)
		}
		maps.Copy(card.basis, c.Basis)
		card.counter, card.metered = c.Counter, c.Metered
		if card.negative() || c.Counter < 0 {
			return fmt.Errorf("card %s has a register below zero", c.UUID)
		}
	}
	return nil
}

func (c *cardAccount) negative() bool {
	if c.capacity.negative() || c.allocated.negative() {
		return true
	}
	for _, m := range []map[sharing.Cause]Amount{c.unallocated, c.corrected} {
		for _, amount := range m {
			if amount.negative() {
				return true
			}
		}
	}
	return anyNegative(c.basis)
}

func anyNegative(m map[Basis]sharing.Fraction) bool {
	for _, f := range m {
		if f.Sign() < 0 {
			return true
		}
	}
	return false
}

func (a *Account) restoreRegisters(s *accountState) error {
	for i := range s.Series {
		x := &s.Series[i]
		if Amount(x.amountState).negative() || anyNegative(x.Used) {
			return fmt.Errorf("namespace %q has a register below zero", x.Namespace)
		}
		series := a.seriesOf(Series(x.seriesKey))
		series.amount = Amount(x.amountState)
		maps.Copy(series.used, x.Used)
	}
	var ended []*podAccount
	for i := range s.Pods {
		x := &s.Pods[i]
		if Amount(x.amountState).negative() || anyNegative(x.Used) || x.EndedAge < 0 || x.EndedAge > s.Age {
			return fmt.Errorf("pod %s/%s has a register below zero", x.Namespace, x.Pod)
		}
		p := a.podOf(PodSeries{
			Series: Series(x.seriesKey), Pod: x.Pod, PodUID: x.PodUID, Container: x.Container, Card: x.Card, GPUInstance: x.GPUInstance,
		})
		p.amount, p.born = Amount(x.amountState), 0
		maps.Copy(p.used, x.Used)
		p.ended, p.endedAge, p.endedSeq, p.unseen = x.Ended, x.EndedAge, x.EndedSeq, x.Unseen
		if p.endedSeq != 0 {
			ended = append(ended, p)
		}
	}
	slices.SortFunc(ended, func(x, y *podAccount) int {
		return cmp.Or(cmp.Compare(x.endedSeq, y.endedSeq), x.key.compare(&y.key))
	})
	for _, p := range slices.Compact(ended) {
		a.ended.add(p)
	}
	for _, p := range s.Facts {
		a.know(p)
	}
	return nil
}

func (a *Account) restoreLines(s *accountState) error {
	var measured []lineState
	for _, l := range s.Lines {
		if l.Open == nil || l.Since < 0 || l.Since > s.Charged.Boot {
			return errors.New("a line is open since after the last record")
		}
		do, err := a.prepareOpen(l.Open)
		if err != nil {
			return err
		}
		do()
		line := a.lines[l.ID]
		if l.Energy < 0 || l.Energy > 2*maxClock || l.Busy < 0 || l.Busy > 2*maxClock || l.Busy > 0 && line.device == nil {
			return fmt.Errorf("line %d has measured what cannot be", l.ID)
		}
		line.since, line.energy = l.Since, l.Energy
		measured = append(measured, l)
	}
	// A line that is opened settles its device, so this comes when all are.
	for _, l := range measured {
		if l.Busy > 0 {
			line := a.lines[l.ID]
			line.busy, line.device.basis = l.Busy, l.Basis
		}
	}
	if a.lastLine > s.Last {
		return fmt.Errorf("line %d is open, and %d was the last", a.lastLine, s.Last)
	}
	a.lastLine = s.Last
	for _, p := range a.pods {
		if len(p.lines) == 0 && p.endedSeq == 0 && !p.unseen {
			return fmt.Errorf("pod %s/%s neither holds anything nor has ended", p.key.Namespace, p.key.Pod)
		}
	}
	for i, c := range a.cards {
		c.since, c.used = s.Cards[i].Since, s.Cards[i].Used
		if c.since < 0 || c.used < 0 || c.used > maxClock || len(c.lines) > 0 && c.since > s.Charged.Boot {
			return fmt.Errorf("card %s counts since after the last record", c.card.UUID)
		}
	}
	return nil
}

func (a *Account) restoreLate(s *accountState) error {
	var errLate, errHidden error
	a.late, errLate = a.lateLines(s.Late, s.Age)
	a.hidden, errHidden = a.lateLines(s.Hidden, s.Age)
	return cmp.Or(errLate, errHidden)
}

func (a *Account) lateLines(states []lateState, age int64) ([]*lateLine, error) {
	var lines []*lateLine
	for _, l := range states {
		if l.Open == nil || a.card(l.Card) == nil || l.Span < 0 || l.Span > maxClock || l.Age > age {
			return nil, errors.New("a line that may yet be proven is of no card or time")
		}
		line, err := lineOf(l.Open, a.card(l.Card).card)
		if err != nil {
			return nil, err
		}
		lines = append(lines, &lateLine{
			said: l.Open, line: line, refers: l.Refers, span: l.Span, from: l.From, to: l.To, age: l.Age, mebibytes: l.MiB,
		})
	}
	return lines, nil
}
