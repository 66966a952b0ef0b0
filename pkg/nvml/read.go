// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Read answers the fields of every GPU and GPU instance. It comes back a little before ctx
// ends with what there is then: a GPU that has not answered is in trouble, its values absent.
// The error is for a driver that is away as a whole, or a ctx that is over.
func (s *Source) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	w := s.wait(ctx)
	defer w.end()
	if err := s.takeTurn(w); err != nil {
		return gpu.Reading{}, err
	}
	defer s.endTurn()
	if err := s.awake(w); err != nil {
		return gpu.Reading{}, err
	}
	if s.plan == nil || !slices.Equal(s.plan.fields, fields) {
		s.plan = newPlan(fields, s.queries, s.lib.has)
	}
	answers, troubles, err := s.survey(w, s.plan)
	if err != nil {
		return gpu.Reading{}, err
	}
	r := s.assemble(s.question(s.plan), answers)
	r.Troubles = append(troubles, r.Troubles...)
	r.Origin = s.Origin()
	if s.plan.peers {
		r.Peers = s.peers.between(r.Devices)
	}
	if err := s.cancelled(w); err != nil {
		return gpu.Reading{}, err
	}
	var dropped int
	if r.Events, dropped = s.queue.take(); dropped > 0 {
		r.Troubles = append(r.Troubles, gpu.Trouble{
			Reason: gpu.ReasonError, Text: fmt.Sprintf("%d events had no room and are lost: readings are too far apart", dropped),
		})
	}
	r.Time = time.Now()
	return r, nil
}

// Parts is one card with its MIG devices, as NVML describes them.
func (s *Source) Parts(ctx context.Context, uuid gpu.UUID) ([]gpu.Device, error) {
	w := s.wait(ctx)
	defer w.end()
	if err := s.takeTurn(w); err != nil {
		return nil, err
	}
	defer s.endTurn()
	if err := s.awake(w); err != nil {
		return nil, err
	}
	answers, _, err := s.survey(w, nil)
	if err != nil {
		return nil, err
	}
	for i, a := range answers {
		if i == len(s.before) {
			s.before = append(s.before, remembered{})
		}
		s.before[i] = remembered{a.device, a.parts}
	}
	for i, a := range answers {
		if a.device.UUID == uuid && a.answered {
			return append([]gpu.Device{a.device}, a.parts...), nil
		}
		if a.device.UUID == uuid {
			return nil, failed(kindTimeout, "describe %s: %s", uuid, s.late(i))
		}
	}
	return nil, fmt.Errorf("describe %s: NVML knows no such GPU", uuid)
}

// surveyed is a card's answer, or what was known of it where it did not answer.
type surveyed struct {
	answer
	answered bool
}

// question is what to ask each card for a plan.
func (s *Source) question(p *plan) question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return question{plan: p, node: s.facts, gpus: s.cfg.GPUs, links: s.cfg.Switches}
}

// survey asks all cards at once, each on its lane, and waits for them together.
func (s *Source) survey(w *waiting, p *plan) ([]surveyed, []gpu.Trouble, error) {
	q := s.question(p)
	ask := func(c *card) (call[answer], bool) { return begin(c.lane, func() answer { return c.answer(q) }) }

	calls := make([]call[answer], len(s.cards), len(s.cards)+1)
	begun := make([]bool, len(s.cards), len(s.cards)+1)
	counting, idle := begin(s.node, s.count)
	known := len(s.before)
	for i := range known {
		calls[i], begun[i] = ask(s.cards[i])
	}
	n, troubles, err := s.counted(w, counting, idle, known)
	if err != nil {
		for i := range known {
			if begun[i] {
				_, _ = calls[i].wait(w.Done())
			}
		}
		return nil, nil, err
	}
	for len(s.cards) < n {
		s.cards = append(s.cards, newCard(s, len(s.cards)))
		calls, begun = append(calls, call[answer]{}), append(begun, false)
	}
	for i := known; i < n; i++ {
		calls[i], begun[i] = ask(s.cards[i])
	}
	for i := n; i < known; i++ {
		// The driver's list got shorter.
		if begun[i] {
			_, _ = calls[i].wait(w.Done())
		}
		if left, idle := begin(s.cards[i].lane, func() struct{} { s.cards[i].become(""); return struct{}{} }); idle {
			_, _ = left.wait(w.Done())
		}
	}
	out := make([]surveyed, n)
	for i := range n {
		if i < known {
			out[i].device, out[i].parts = s.before[i].device, s.before[i].parts
		}
		if begun[i] {
			if a, ok := calls[i].wait(w.Done()); ok {
				out[i] = surveyed{a, true}
			}
		}
	}
	if err := s.cancelled(w); err != nil {
		return nil, nil, err
	}
	for i := range out {
		if out[i].gone != nvml.SUCCESS {
			return nil, nil, s.lose(out[i].gone)
		}
	}
	s.remember(out)
	return out, troubles, nil
}

type counted struct {
	n   int
	ret nvml.Return
}

// count asks how many GPUs there are.
func (s *Source) count() counted {
	s.node.doing.Store(new("nvmlDeviceGetCount_v2"))
	n, ret := s.lib.DeviceGetCount()
	return counted{n, ret}
}

// mostGPUs bounds what a driver says: no node has as many.
const mostGPUs = 1024

// counted is how many GPUs there are: as before, where the driver does not say.
func (s *Source) counted(w *waiting, counting call[counted], idle bool, known int) (int, []gpu.Trouble, error) {
	c, ok := counted{}, false
	if idle {
		c, ok = counting.wait(w.Done())
	}
	if err := s.cancelled(w); err != nil {
		return 0, nil, err
	}
	switch {
	case !ok && known == 0:
		return 0, nil, failed(kindTimeout, "read GPUs through NVML: %s has not come back for %v",
			s.node.at(), s.node.outstanding().Round(time.Millisecond))
	case !ok:
		return known, []gpu.Trouble{{
			Reason: gpu.ReasonTimeout, Text: "NVML does not say how many GPUs there are; new ones are not seen",
		}}, nil
	case driverGone(c.ret):
		return 0, nil, s.lose(c.ret)
	case c.ret != nvml.SUCCESS || c.n < 0 || c.n > mostGPUs:
		if known == 0 {
			return 0, nil, failed(kindDriver, "count the GPUs: %w; %s", returned(c.ret), remedyOf(c.ret))
		}
		return known, []gpu.Trouble{{Reason: reasonOf(c.ret), Text: "the GPUs cannot be counted: " + returned(c.ret).Error()}}, nil
	}
	s.mu.Lock()
	s.facts.gpus = c.n
	s.mu.Unlock()
	return c.n, nil, nil
}

// late says what a card's lane is waiting for.
func (s *Source) late(index int) string {
	l := s.cards[index].lane
	function, since := l.at(), l.outstanding().Round(time.Millisecond)
	if function == "" {
		function = "NVML"
	}
	return fmt.Sprintf("%s has not come back for %v; see dmesg for XIDs 119 and 120 and lines with NVRM", function, since)
}

// listed is a card with what a reading has of it.
type listed struct {
	remembered
	answer *answer
}

// assemble makes a reading of the answers, cards in the order of their indices.
func (s *Source) assemble(q question, answers []surveyed) gpu.Reading {
	r := gpu.Reading{Source: Name, Fields: slices.Clone(q.plan.fields)}
	// A GPU that is at an index now is nowhere else, whatever was known of the other index.
	place := make(map[gpu.UUID]int)
	for i, a := range answers {
		if _, twice := place[a.device.UUID]; a.answered && a.fresh && !twice {
			place[a.device.UUID] = i
		}
	}
	var cards []listed
	before := s.before
	s.before = make([]remembered, len(answers))
	for i := range answers {
		a := &answers[i]
		if !a.answered {
			a.troubles = []gpu.Trouble{{GPU: a.device.UUID, Reason: gpu.ReasonTimeout, Text: fmt.Sprintf("GPU %d: %s", i, s.late(i))}}
			a.samples = q.silent(a.device, a.parts, gpu.ReasonTimeout)
		}
		if at, known := place[a.device.UUID]; a.device.UUID == "" || known && at != i {
			for _, t := range a.troubles {
				r.Troubles = append(r.Troubles, gpu.Trouble{Reason: t.Reason, Text: t.Text})
			}
			continue
		}
		place[a.device.UUID] = i
		s.before[i] = remembered{a.device, a.parts}
		cards = append(cards, listed{s.before[i], &a.answer})
	}
	cards = append(cards, s.missing(q, before, place)...)
	slices.SortStableFunc(cards, func(a, b listed) int { return cmp.Compare(a.device.Index, b.device.Index) })
	var links []gpu.Sample
	for _, c := range cards {
		r.Devices = append(append(r.Devices, c.device), c.parts...)
		r.Samples = append(r.Samples, c.answer.samples...)
		links = append(links, c.answer.links...)
		r.Processes = append(r.Processes, c.answer.processes...)
		r.Troubles = append(r.Troubles, c.answer.troubles...)
	}
	r.Samples = append(r.Samples, links...)
	s.recollect(r.Samples)
	s.tellInventory(r.Devices)
	return r
}

// recollect gives the samples of entities that did not answer the time of their last values.
func (s *Source) recollect(samples []gpu.Sample) {
	heard := make(map[gpu.Entity]time.Time, len(samples))
	for i := range samples {
		sample := &samples[i]
		if sample.Time.IsZero() {
			sample.Time = s.heard[sample.Entity]
		}
		heard[sample.Entity] = sample.Time
	}
	s.heard = heard
}

// missing are the lost cards that the driver does not even list any more. They stay until they
// are back: a card does not cease to exist by breaking. One that was well has been taken away.
func (s *Source) missing(q question, before []remembered, place map[gpu.UUID]int) []listed {
	var out []listed
	candidates := slices.Concat(s.gone, before)
	s.gone = nil
	for _, card := range candidates {
		if _, there := place[card.device.UUID]; there || !card.device.Lost {
			continue
		}
		place[card.device.UUID] = -1
		s.gone = append(s.gone, card)
		out = append(out, listed{card, &answer{
			samples: q.silent(card.device, card.parts, gpu.ReasonLost),
			troubles: []gpu.Trouble{{
				GPU: card.device.UUID, Reason: gpu.ReasonLost,
				Text: fmt.Sprintf("GPU %d at %s was lost, and the driver no longer lists it", card.device.Index, card.device.PCIBusID),
			}},
		}})
	}
	return out
}
