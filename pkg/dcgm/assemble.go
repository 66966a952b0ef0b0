// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
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
}

// of is the trouble of a GPU, or of nothing in particular.
func (t trouble) of(id gpu.UUID) gpu.Trouble {
	return gpu.Trouble{GPU: id, Reason: t.reason, Text: t.text}
}

// builder fills a reading's samples. All their values are in one slice, which is never written
// to again.
type builder struct {
	*gpu.Reading
	cols   *columns
	gpus   gpu.Selection
	named  map[uint32]gpu.UUID
	values []gpu.Value
}

func (s *Source) builder(r *gpu.Reading) *builder {
	n := 0
	for _, c := range s.cards {
		n += len(c.devices)
	}
	for _, f := range s.shelves() {
		n += len(f.spots)
	}
	r.Samples = make([]gpu.Sample, 0, n)
	return &builder{Reading: r, cols: s.cols, gpus: s.settings.gpus, named: s.named, values: make([]gpu.Value, 0, n*len(s.cols.fields))}
}

// addCard adds a GPU and its instances: what they answered, or why they did not.
func (b *builder) addCard(c *cardState) {
	var self gpu.UUID
	if len(c.devices) > 0 {
		self = c.devices[0].UUID
	}
	switch {
	case !c.answered && c.worker.busy():
		b.Troubles = append(b.Troubles, gpu.Trouble{GPU: self, Reason: gpu.ReasonTimeout, Text: fmt.Sprintf(
			"a call into DCGM for GPU %d has not come back since %s; its driver may hang", c.id, c.worker.since.Format(time.TimeOnly))})
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
		b.addRows(f.answer.rows)
		return
	}
	b.Troubles = append(b.Troubles, gpu.Trouble{Reason: gpu.ReasonTimeout, Text: fmt.Sprintf(
		"a call into DCGM for %s has not come back since %s", f.name, f.worker.since.Format(time.TimeOnly))})
	b.addAbsent(f.spots, gpu.ReasonTimeout)
}

func (b *builder) addRows(rows *rows) {
	for i, s := range rows.spots {
		b.add(s, timeOf(rows.newest[i], b.Time), rows.row(i))
	}
}

// addAbsent adds entities that have not answered.
func (b *builder) addAbsent(spots []spot, why gpu.Reason) {
	for _, s := range spots {
		b.add(s, b.Time, b.cols.row(s.Kind, s.divided, why))
	}
}

func (b *builder) add(s spot, at time.Time, row []gpu.Value) {
	e := s.Entity
	if e.Kind == gpu.KindLink {
		if parent := linkOf(s.entity.id).parent; parent.group == groupGPU {
			if e.GPU = b.named[parent.id]; e.GPU == "" {
				return
			}
		}
	}
	first := len(b.values)
	b.values = append(b.values, row...)
	b.Samples = append(b.Samples, gpu.Sample{Entity: e, Time: at, Values: b.values[first:len(b.values):len(b.values)]})
}
