// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// spot is what a row of a reading is of: an entity in DCGM's numbering and in ours.
type spot struct {
	entity entity
	gpu.Entity
	// divided says that the entity's card has instances that are read.
	divided bool
}

// rows are the values of some entities in one reading. They are used again for the next one.
type rows struct {
	cols  *columns
	spots []spot
	// blank are the values before anything is known.
	blank, values []gpu.Value
	// newest is the time of each row's newest value, in DCGM's measure.
	newest []int64
	// idle says of each row that no value with a time of its own is asked of it.
	idle []bool
	// xid is the time of the XID that is in the first row.
	xid int64
	// hint is the row that was last written to: records come entity by entity.
	hint int
	// now is when this reading was begun; a value whose time has not moved for longer than
	// patience is stale. With a patience of 0 none is.
	now      time.Time
	patience time.Duration
	pulses   []pulse
	// sent is what the last reading was given of each row that unchanging told. Never written to.
	sent [][]gpu.Value
}

// pulse is the time of a value in DCGM's measure, and when we first saw it to be that. Times
// are only compared for being the same: DCGM takes them from the driver or another host's clock.
type pulse struct {
	ts   int64
	seen time.Time
}

// layOut makes a row for each spot; blank is what it holds before anything is known.
func (r *rows) layOut(cols *columns, spots []spot, blank func(spot) []gpu.Value) {
	*r = rows{cols: cols, spots: spots, newest: make([]int64, len(spots)), patience: r.patience}
	for _, s := range spots {
		row := blank(s)
		r.blank = append(r.blank, row...)
		r.idle = append(r.idle, cols.idle(row))
	}
	r.values = make([]gpu.Value, len(r.blank))
	r.pulses = make([]pulse, len(r.blank))
	r.sent = make([][]gpu.Value, len(spots))
}

// empty takes back what was known, for a reading that begins.
func (r *rows) empty() {
	r.now = time.Now()
	copy(r.values, r.blank)
	clear(r.newest)
	r.xid, r.hint = 0, 0
}

// row is the values of one spot, with those of fields that were asked for twice.
func (r *rows) row(i int) []gpu.Value {
	n := len(r.cols.fields)
	row := r.values[i*n : (i+1)*n]
	r.cols.repeat(row)
	return row
}

// unchanging is row i for a reading: what the reading before had where it is still the same, as that
// of a link mostly is.
func (r *rows) unchanging(i int) []gpu.Value {
	if row := r.row(i); !slices.Equal(row, r.sent[i]) {
		r.sent[i] = slices.Clone(row)
	}
	return r.sent[i]
}

// put places a value in its entity's row, if it has one and the field is its quantity.
func (r *rows) put(e entity, col int, v gpu.Value, ts int64) {
	for n := range r.spots {
		i := (r.hint + n) % len(r.spots)
		if r.spots[i].entity != e {
			continue
		}
		r.hint = i
		cell := i*len(r.cols.fields) + col
		if r.blank[cell].Reason() != gpu.ReasonBlank {
			return
		}
		if v.Present() && r.frozen(cell, ts) {
			v = gpu.Absent(gpu.ReasonStale)
		}
		r.values[cell] = v
		if v.Present() {
			r.newest[i] = max(r.newest[i], ts)
		}
		return
	}
}

// frozen reports whether the engine goes on, but not with this value.
func (r *rows) frozen(cell int, ts int64) bool {
	p := &r.pulses[cell]
	if p.ts != ts || p.seen.IsZero() {
		*p = pulse{ts, r.now}
	}
	return r.patience > 0 && r.now.Sub(p.seen) > r.patience
}

// putEverywhere places what the node has in every row.
func (r *rows) putEverywhere(col int, v gpu.Value) {
	for i := range r.spots {
		r.values[i*len(r.cols.fields)+col] = v
	}
}

// putXID places the last XID of a card and its parts in the card's row.
func (r *rows) putXID(col int, v gpu.Value, ts int64) {
	if len(r.spots) == 0 || r.spots[0].Kind != gpu.KindGPU {
		return
	}
	switch {
	case v.Present() && ts >= r.xid:
		r.values[col], r.xid = v, ts
	case !v.Present() && r.xid == 0:
		r.values[col] = v
	}
}

// expire takes back all values, because they are too old.
func (r *rows) expire() {
	for i, v := range r.values {
		if v.Present() {
			r.values[i] = gpu.Absent(gpu.ReasonStale)
		}
	}
}

// attest sets the time of rows of which nothing with a time is asked: their entity is known to
// have answered then by other signs.
func (r *rows) attest(ts int64) {
	for i, idle := range r.idle {
		if idle {
			r.newest[i] = ts
		}
	}
}
