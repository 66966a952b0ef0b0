// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// xidLogLimit bounds the lines of one tick: a node where every GPU reports everything is
// told in numbers.
const xidLogLimit = 32

// xidLog gives the log a line for an XID, and for one that repeats a line each logPause with
// how often it came.
type xidLog struct {
	log *slog.Logger
	// table says what the codes mean; nil for nobody knows.
	table *health.XIDTable
	told  map[XIDKey]*toldXID
}

type toldXID struct {
	at     time.Time
	untold int
	// last is when the last one was, zero where the source does not say.
	last time.Time
}

func newXIDLog(log *slog.Logger, table *health.XIDTable) *xidLog {
	return &xidLog{log: log, table: table, told: map[XIDKey]*toldXID{}}
}

// report takes the events of a tick and the devices that are known.
func (l *xidLog) report(events []gpu.Event, devices []gpu.Device, now time.Time) {
	for _, e := range events {
		if e.Kind != gpu.EventXID {
			continue
		}
		key := XIDKey{GPU: e.GPU, GPUInstance: e.GPUInstance, ComputeInstance: e.ComputeInstance, XID: e.Code}
		if l.told[key] == nil {
			l.told[key] = &toldXID{}
		}
		l.told[key].untold++
		l.told[key].last = e.Time
	}
	if len(l.told) == 0 {
		return
	}
	var due []XIDKey
	for key, t := range l.told {
		switch quiet := now.Sub(t.at) >= logPause; {
		case quiet && t.untold > 0:
			due = append(due, key)
		case quiet:
			delete(l.told, key)
		}
	}
	slices.SortFunc(due, func(a, b XIDKey) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GPUInstance, b.GPUInstance),
			cmp.Compare(a.ComputeInstance, b.ComputeInstance), cmp.Compare(a.XID, b.XID))
	})
	for i, key := range due {
		t := l.told[key]
		if i < xidLogLimit {
			l.log.Warn("XID", l.attrs(key, t, devices)...)
		}
		t.at, t.untold = now, 0
	}
	if more := len(due) - xidLogLimit; more > 0 {
		l.log.Warn("XIDs of more devices and codes; gpumeter_xid_errors_total has them all", "more", more)
	}
}

// attrs say which XID it was and where, how often since it was last told, and when, since a repeat is
// told late.
func (l *xidLog) attrs(k XIDKey, t *toldXID, devices []gpu.Device) []any {
	out := []any{"xid", k.XID}
	if l.table != nil {
		known := l.table.Lookup(k.XID)
		out = append(out, "name", known.Name, "class", known.Class.String())
	}
	out = append(append(out, "gpu", string(k.GPU)), placed(devices, k.GPU)...)
	if k.GPUInstance != gpu.NoInstance {
		out = append(out, "gpu_instance", k.GPUInstance)
	}
	if k.ComputeInstance != gpu.NoInstance {
		out = append(out, "compute_instance", k.ComputeInstance)
	}
	if t.untold > 1 {
		out = append(out, "times", t.untold)
	}
	if !t.last.IsZero() {
		out = append(out, "at", t.last)
	}
	return out
}
