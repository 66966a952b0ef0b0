// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// shelfState is what readings know of the links and switches, or of the CPUs and cores.
type shelfState struct {
	name   string
	scopes []gpu.Scope
	worker *worker[shelfJob, shelfAnswer]
	// spots are the last that were known.
	spots    []spot
	answer   shelfAnswer
	answered bool
	// there are the numbers of all entities of its kinds, selected or not, guarded by Source.mu.
	there map[gpu.Kind][]int
}

// of is the trouble of a GPU, or of nothing in particular.
func (t trouble) of(id gpu.UUID) gpu.Trouble {
	return gpu.Trouble{GPU: id, Reason: t.reason, Text: t.text}
}

// builder fills a reading's samples. The values of cards and their instances are in one slice, which
// is never written to again; those of the rest are the same as long as nothing changes.
type builder struct {
	*gpu.Reading
	cols   *columns
	gpus   gpu.Selection
	named  map[uint32]gpu.UUID
	marks  map[gpu.Entity]mark
	node   map[gpu.FieldID]gpu.Value
	values []gpu.Value
}

// mark is when an entity last answered, in DCGM's measure and in ours.
type mark struct {
	ts int64
	at time.Time
}

func (s *Source) builder(r *gpu.Reading, ss *session) *builder {
	ofCards, all := 0, 0
	for _, c := range s.cards {
		ofCards += len(c.devices)
	}
	for _, f := range s.shelves() {
		if len(s.cols.ids(f.scopes...)) > 0 {
			all += len(f.spots)
		}
	}
	all += ofCards
	r.Samples = make([]gpu.Sample, 0, all)
	return &builder{Reading: r, cols: s.cols, gpus: s.settings.gpus, named: s.named, marks: s.marks, node: s.nodeValues(ss), values: make([]gpu.Value, 0, ofCards*len(s.cols.fields))}
}

// nodeValues are what the node has as this reading's GPUs say it, or else those of a reading
// before: each GPU's watches can go for a moment, and with them those of the node.
func (s *Source) nodeValues(ss *session) map[gpu.FieldID]gpu.Value {
	if s.nodeOf != ss {
		// After an upgrade the driver is another one.
		s.nodeOf = ss
		clear(s.node)
	}
	for _, c := range s.cards {
		if !c.answered || c.answer.rows == nil || len(c.answer.rows.spots) == 0 {
			continue
		}
		row := c.answer.rows.row(0)
		for i, scope := range s.cols.scopes {
			if scope == gpu.ScopeNode && row[i].Present() {
				s.node[s.cols.fields[i]] = row[i]
			}
		}
	}
	return s.node
}

// complete fills in what the node has, where a GPU that answers cannot say it.
func (b *builder) complete(row []gpu.Value) {
	for i, scope := range b.cols.scopes {
		if scope != gpu.ScopeNode || row[i].Reason() != gpu.ReasonBlank {
			continue
		}
		if v, known := b.node[b.cols.fields[i]]; known {
			row[i] = v
		}
	}
}

// addCard adds a GPU and its instances: what they answered, or why they did not.
func (b *builder) addCard(c *cardState) {
	var self gpu.UUID
	if len(c.devices) > 0 {
		self = c.devices[0].UUID
	}
	switch {
	case !c.answered && c.worker.busy():
		name := fmt.Sprintf("GPU %d", c.id)
		if self == "" {
			name += " (no UUID known yet)"
		}
		b.Troubles = append(b.Troubles, gpu.Trouble{GPU: self, Reason: gpu.ReasonTimeout, Text: fmt.Sprintf(
			"%s: a call into DCGM has not come back since %s; its driver may hang: see dmesg for NVRM and Xid, and restart the driver of this node",
			name, c.worker.since.Format(time.TimeOnly))})
		b.addAbsent(spotsOf(c.devices, b.gpus), gpu.ReasonTimeout)
	case !c.answered || c.answer.gone:
	default:
		why := gpu.ReasonError
		for i, t := range c.answer.troubles {
			b.Troubles = append(b.Troubles, t.of(self))
			if i == 0 {
				why = t.reason
			}
		}
		if c.answer.rows == nil {
			b.addAbsent(spotsOf(c.devices, b.gpus), why)
		} else {
			for i := range c.answer.rows.spots {
				b.complete(c.answer.rows.row(i))
			}
			b.addRows(c.answer.rows)
		}
	}
}

// addShelf adds links and switches, or CPUs and cores.
func (b *builder) addShelf(f *shelfState) {
	if f.answered {
		for _, t := range f.answer.troubles {
			b.Troubles = append(b.Troubles, t.of(""))
		}
		for i, s := range f.answer.rows.spots {
			b.add(s, f.answer.rows.newest[i], f.answer.rows.unchanging(i))
		}
		return
	}
	b.Troubles = append(b.Troubles, gpu.Trouble{Reason: gpu.ReasonTimeout, Text: fmt.Sprintf(
		"a call into DCGM for %s has not come back since %s", f.name, f.worker.since.Format(time.TimeOnly))})
	b.addAbsent(f.spots, gpu.ReasonTimeout)
}

func (b *builder) addRows(rows *rows) {
	for i, s := range rows.spots {
		first := len(b.values)
		b.values = append(b.values, rows.row(i)...)
		b.add(s, rows.newest[i], b.values[first:len(b.values):len(b.values)])
	}
}

// addAbsent adds entities that have not answered.
func (b *builder) addAbsent(spots []spot, why gpu.Reason) {
	for _, s := range spots {
		b.add(s, 0, b.cols.row(s.Kind, s.divided, why))
	}
}

// add adds an entity whose newest value is of ts, which is 0 where it gave none. The row is the
// reading's from now on.
func (b *builder) add(s spot, ts int64, row []gpu.Value) {
	e := s.Entity
	if e.Kind == gpu.KindLink {
		if parent := linkOf(s.entity.id).parent; parent.group == groupGPU {
			if e.GPU = b.named[parent.id]; e.GPU == "" {
				return
			}
		}
	}
	b.Samples = append(b.Samples, gpu.Sample{Entity: e, Time: b.mark(e, ts), Values: row})
}

// mark is when an entity's values are of. Where it gave none, it is when it last did, and a
// time of DCGM's that stands still is one of ours that does, though it lie in our future.
func (b *builder) mark(e gpu.Entity, ts int64) time.Time {
	m := b.marks[e]
	if ts > 0 && ts != m.ts {
		m = mark{ts, timeOf(ts, b.Time)}
		b.marks[e] = m
	}
	return m.at
}

// forget drops the marks of entities that are gone.
func (b *builder) forget() {
	if len(b.marks) <= len(b.Samples) {
		return
	}
	there := make(map[gpu.Entity]bool, len(b.Samples))
	for _, s := range b.Samples {
		there[s.Entity] = true
	}
	maps.DeleteFunc(b.marks, func(e gpu.Entity, _ mark) bool { return !there[e] })
}
