// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/gpu/gputest"
)

func TestSimKeepsTheContract(t *testing.T) {
	gputest.Run(t, func(t *testing.T, gpus gpu.Selection) gputest.Machine {
		return newStaged(t, gpus).machine()
	})
}

// staged is a node whose story is written while it is told: an act is an event at this
// moment, and the future is played anew. The past stays as it was, because a node is a
// function of its scenario and of time.
type staged struct {
	t *testing.T
	n *Node
	// cut and gone are what a node does not have of its own: an engine that can be away, and
	// cards that are taken from the driver.
	cut  bool
	gone map[int]bool
}

func newStaged(t *testing.T, gpus gpu.Selection) *staged {
	s, err := Parse("staged.yaml", []byte(`
gpus:
  - {model: H100-80, count: 2}
  - {model: H100-80, mig: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]}
  - {model: H100-80, mig: []}
  - {model: H100-80, mig: [7g.80gb]}
pods:
  - {name: a, copies: 2, load: train}
  - {name: b, resource: nvidia.com/mig-2g.20gb, load: inference}
`))
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNode(s, Options{Start: story, GPUs: gpus})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return &staged{t: t, n: n, gone: map[int]bool{}}
}

func (s *staged) machine() gputest.Machine {
	return gputest.Machine{
		Read:        s.read,
		Alarms:      s.n.Alarms(),
		Unsupported: 171,
		Health:      true,
		Peers:       true,
		XID: func(index, instance, code int) {
			s.do(eventSpec{do: doXID, gpu: index, instance: instance, code: code})
		},
		Repartition: func(index int) {
			slots, err := s.n.scenario.cards[index].model.place([]string{"2g.20gb@0", "2g.20gb@2", "3g.40gb@4"})
			if err != nil {
				s.t.Fatal(err)
			}
			s.do(eventSpec{do: doRepartition, gpu: index, slots: slots})
		},
		Break:  func() { s.cut = true },
		Mend:   func() { s.cut = false },
		Detach: func(index int) { s.gone[index] = true },
		Attach: func(index int) { delete(s.gone, index) },
		Lose:   func(index int) { s.do(eventSpec{do: doGPULost, gpu: index}) },
		Return: func(index int) { s.do(eventSpec{do: doGPUBack, gpu: index}) },
		Hang:   func(index int) { s.do(eventSpec{do: doHang, gpu: index, last: longest}) },
		Unhang: func(index int) { s.end(doHang, index) },
		Slow: func(index int, delay time.Duration) {
			s.end(doSlow, index)
			if delay > 0 {
				s.do(eventSpec{do: doSlow, gpu: index, delay: delay, last: longest})
			}
		},
	}
}

// errCut is a node without its engine.
type errCut struct{}

func (errCut) Error() string { return "the engine is away" }
func (errCut) Kind() string  { return "connection" }

func (s *staged) read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	if s.cut {
		return gpu.Reading{}, errCut{}
	}
	r, err := s.n.Read(ctx, fields)
	if len(s.gone) > 0 {
		gone := map[gpu.UUID]bool{}
		for index := range s.gone {
			gone[s.n.cards[index].uuid] = true
		}
		r.Devices = slices.DeleteFunc(slices.Clone(r.Devices), func(d gpu.Device) bool { return gone[d.Card()] })
		r.Samples = slices.DeleteFunc(r.Samples, func(sm gpu.Sample) bool { return gone[sm.Entity.GPU] })
		r.Processes = slices.DeleteFunc(r.Processes, func(p gpu.Process) bool { return gone[p.GPU] })
	}
	return r, err
}

// do lets an event happen now.
func (s *staged) do(e eventSpec) {
	e.at, e.count = s.n.Elapsed(), max(e.count, 1)
	if e.do != doXID {
		e.instance = gpu.NoInstance
	}
	s.n.scenario.events = append(s.n.scenario.events, e)
	s.play()
}

// end ends the last event of a kind on a GPU now.
func (s *staged) end(do string, index int) {
	for i, e := range slices.Backward(s.n.scenario.events) {
		if e.do == do && e.gpu == index && e.last == longest {
			s.n.scenario.events[i].last = max(s.n.Elapsed()-e.at, 1)
			break
		}
	}
	s.play()
}

func (s *staged) play() {
	var uuids []string
	for i := range s.n.cards {
		uuids = append(uuids, string(s.n.cards[i].uuid))
	}
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.n.line = play(s.n.scenario, s.n.seed, uuids)
	if s.n.bell != nil {
		s.n.bell.Reset(0)
	}
}
