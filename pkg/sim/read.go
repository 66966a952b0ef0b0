// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// Source is the name of a simulated node's readings.
const Source = "sim"

// Read answers the fields of every card and GPU instance, as a driver would now.
// The columns are the fields as given. The events are those since the reading before, or
// since the story began; each is in one reading. A card that is slow delays the answer; what
// it does not say before ctx ends, or while it hangs, is a Trouble of that card
// alone. The error is ctx's, when it was over before the call.
func (n *Node) Read(ctx context.Context, fields []gpu.FieldID) (gpu.Reading, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Reading{}, fmt.Errorf("read the GPUs of %s: %w", n.scenario.Node, err)
	}
	late := n.waitForSlow(ctx)
	elapsed := n.Elapsed()
	r := n.reading(elapsed, fields, n.noteAnswers(elapsed, late))
	r.Events = n.tell(elapsed)
	return r, nil
}

// ReadingAt is what Read answers at a time since the story began, without delay.
// It depends on nothing but its arguments, the scenario and the seed, so it has no
// events: they are what happened since a reading before. See Events.
func (n *Node) ReadingAt(elapsed time.Duration, fields []gpu.FieldID) gpu.Reading {
	return n.reading(elapsed, fields, nil)
}

// waitForSlow waits as long as the slowest card makes it, in real time, and returns
// the cards that had not answered when nearly all of ctx's time was gone.
func (n *Node) waitForSlow(ctx context.Context) []int {
	cards := n.line.at(n.Elapsed()).state.cards
	var delay time.Duration
	for _, c := range cards {
		if !c.lost {
			delay = max(delay, c.slow)
		}
	}
	if delay == 0 {
		return nil
	}
	patience := delay
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		patience = min(delay, left-left/10)
	}
	begun := time.Now()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	waited := time.Since(begun)
	var late []int
	for i, c := range cards {
		if c.slow > waited && !c.lost {
			late = append(late, i)
		}
	}
	return late
}

// noteAnswers notes which cards answer a reading, and returns for those that are late when they
// last did.
func (n *Node) noteAnswers(elapsed time.Duration, late []int) map[int]time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := make(map[int]time.Time, len(late))
	at := n.start.Add(max(elapsed, 0))
	for i, c := range n.line.at(elapsed).state.cards {
		if slices.Contains(late, i) {
			before[i] = n.answered[i]
		} else if !c.silent() && at.After(n.answered[i]) {
			n.answered[i] = at
		}
	}
	return before
}

// column is a field with its catalogue entry.
type column struct {
	id    gpu.FieldID
	scope gpu.Scope
	typ   gpu.FieldType
	known bool
}

func (n *Node) reading(elapsed time.Duration, fields []gpu.FieldID, late map[int]time.Time) gpu.Reading {
	m := n.line.at(elapsed)
	before := n.line.at(elapsed - min(elapsed, thermalWindow))
	at := n.start.Add(max(elapsed, 0))
	columns := make([]column, len(fields))
	for i, id := range fields {
		f, ok := gpu.FieldByID(id)
		columns[i] = column{id, f.Scope, f.Type, ok && f.Type != gpu.FieldUnknown}
	}
	// Each card and each GPU instance is a device, and has a sample.
	devices := m.state.devices
	entities := len(devices)
	r := gpu.Reading{
		Time: at, Source: Source, Origin: gpu.Origin{Library: Source, Driver: n.scenario.driver},
		Fields: slices.Clone(fields), Devices: devices, Samples: make([]gpu.Sample, 0, entities),
	}
	values := make([]gpu.Value, entities*len(fields))
	for i := range n.cards {
		c := m.state.cards[i]
		if c.gone {
			continue
		}
		p := n.look(m, before, i)
		heard, isLate := late[i]
		if since, ever := n.line.heard(m, i); ever && !isLate {
			heard = n.start.Add(since)
		}
		switch {
		case c.lost:
			p.absent = gpu.ReasonLost
			r.Troubles = append(r.Troubles, gpu.Trouble{GPU: p.card.uuid, Reason: gpu.ReasonLost, Text: "the GPU has fallen off the bus"})
		case c.hang > 0 || isLate:
			p.absent = gpu.ReasonTimeout
			r.Troubles = append(r.Troubles, gpu.Trouble{GPU: p.card.uuid, Reason: gpu.ReasonTimeout, Text: "the driver did not answer for this GPU in time"})
		}
		p.divided = slices.ContainsFunc(devices[1:1+len(c.slots)], func(d gpu.Device) bool { return n.gpus.Minor(d.InstanceEntity) })
		for slot := -1; slot < len(c.slots); slot++ {
			d := &devices[0]
			devices = devices[1:]
			e := gpu.Entity{Kind: gpu.KindGPU, GPU: p.card.uuid}
			chosen := n.gpus.Major(d.Index)
			if slot >= 0 {
				e.Kind, e.ID = gpu.KindGPUInstance, d.GPUInstance
				chosen = n.gpus.Minor(d.InstanceEntity)
			}
			if !chosen {
				continue
			}
			row := values[:len(columns):len(columns)]
			values = values[len(columns):]
			p.fill(row, columns, slot)
			r.Samples = append(r.Samples, gpu.Sample{Entity: e, Time: heard, Values: row})
		}
	}
	if n.scenario.processes {
		r.Processes = n.processesAt(m)
	}
	r.Samples = n.appendLinks(r.Samples, columns, m, at)
	if slices.Contains(fields, gpu.FieldHealthStatus) {
		r.Health = n.healthAt(elapsed)
	}
	if slices.Contains(fields, gpu.FieldP2PStatus) {
		r.Peers = n.peersAt(m)
	}
	return r
}

// fill answers the columns for a card (slot -1) or one of its GPU instances.
func (p *physics) fill(row []gpu.Value, columns []column, slot int) {
	p.part = p.device(slot)
	for i := range columns {
		c := &columns[i]
		switch {
		case c.id.Computed():
			row[i] = gpu.Absent(gpu.ReasonScope)
		case !c.known:
			row[i] = gpu.Absent(gpu.ReasonNotSupported)
		case !p.concerns(c.scope, slot):
			row[i] = gpu.Absent(gpu.ReasonScope)
		case c.scope == gpu.ScopeNode:
			row[i] = p.nodeValue(c.id)
		case p.absent != gpu.ReasonNone:
			row[i] = gpu.Absent(p.absent)
		default:
			if f, ok := p.card.fields[c.id]; ok {
				row[i] = f.value(p.m.total, c.typ)
			} else if slot >= 0 {
				row[i] = p.instanceValue(c.id, slot)
			} else {
				row[i] = p.cardValue(c.id)
			}
		}
	}
}

// concerns reports whether a field of a scope is a quantity of the entity. A field
// of the node is the same wherever it is read.
func (p *physics) concerns(scope gpu.Scope, slot int) bool {
	switch scope {
	case gpu.ScopeNode:
		return true
	case gpu.ScopeGPU:
		return slot < 0
	case gpu.ScopeGPUInstance:
		return slot >= 0 || !p.divided
	default:
		return false
	}
}

// processesAt are the processes of the pods on each device.
func (n *Node) processesAt(m moment) []gpu.Process {
	var out []gpu.Process
	for i, c := range m.state.cards {
		if c.lost || c.hang > 0 {
			continue
		}
		first := len(out)
		for j := range c.uses {
			u := &c.uses[j]
			age := m.seconds - u.start
			p := gpu.Process{
				PID: u.pod.pid(n.line.placements, m.round), GPU: n.cards[i].uuid, GPUInstance: gpu.NoInstance,
				Name:        u.pod.spec.process,
				MemoryBytes: gpu.Int(u.usedMiB(age) << 20),
				SMUtil:      gpu.Absent(gpu.ReasonNotSupported),
			}
			if u.slot >= 0 {
				p.GPUInstance = c.slots[u.slot].instanceID(n.cards[i].model.capacity.Memory)
			} else {
				p.SMUtil = gpu.Float(u.load.at(age) * u.weight * u.load.kind.sm)
			}
			out = append(out, p)
		}
		slices.SortFunc(out[first:], func(a, b gpu.Process) int {
			return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPUInstance, b.GPUInstance))
		})
	}
	return out
}
