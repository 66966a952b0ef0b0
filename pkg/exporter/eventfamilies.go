// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/meter"
)

// addXIDs counts the driver's errors. On each card the codes that an operator alerts on
// are there from the start, because the first step of a counter that was not there is lost
// to increase(). The profile of an instance is no label: the instance may be gone, and its
// number another one's by now.
func (f *ownFamilies) addXIDs() {
	totals := f.snapshot.Totals.XIDs
	if f.snapshot.Ledger != nil {
		// What was counted before this process is known with the first commit.
		if totals = f.snapshot.XIDs; totals == nil {
			return
		}
	}
	f.begin("gpumeter_xid_errors_total", "Errors that the driver reported (XIDs), each counted once, by code and by what it asks of the operator; over restarts where a ledger is kept.", kindCounter)
	alerted := f.cfg.XIDs.Alerted()
	born := make(map[int]bool, len(alerted))
	named := make([][2]label, len(alerted))
	for i, x := range alerted {
		born[x.Code] = true
		named[i] = [2]label{{"xid", strconv.Itoa(x.Code)}, {"class", x.Class.String()}}
	}
	for _, card := range f.node.cards {
		set := f.set("UUID", string(card.UUID))
		for i, x := range alerted {
			key := meter.XIDKey{GPU: card.UUID, GPUInstance: gpu.NoInstance, ComputeInstance: gpu.NoInstance, XID: x.Code}
			f.count(f.labels.extend(set, named[i][:]...), int64(totals[key]))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(totals), f.compareXIDs) {
		if born[key.XID] && key.GPUInstance == gpu.NoInstance && key.ComputeInstance == gpu.NoInstance && f.node.devices[key.GPU] != nil {
			continue
		}
		f.count(f.set(
			"UUID", string(key.GPU), "GPU_I_ID", instanceNumber(key.GPUInstance), "GPU_CI_ID", instanceNumber(key.ComputeInstance),
			"xid", strconv.Itoa(key.XID), "class", f.cfg.XIDs.Lookup(key.XID).Class.String()), int64(totals[key]))
	}
}

func (f *ownFamilies) compareXIDs(a, b meter.XIDKey) int {
	return cmp.Or(
		cmp.Compare(f.index(a.GPU), f.index(b.GPU)), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.GPUInstance, b.GPUInstance),
		cmp.Compare(a.ComputeInstance, b.ComputeInstance), cmp.Compare(a.XID, b.XID))
}

// instanceNumber is an instance as a label value, empty for none.
func instanceNumber(id int) string {
	if id == gpu.NoInstance {
		return ""
	}
	return strconv.Itoa(id)
}

// addHealthTime says how old what DCGM_EXP_GPU_HEALTH_STATUS shows is, where it is asked for.
func (f *ownFamilies) addHealthTime() {
	if !slices.ContainsFunc(f.settings.rows, func(row Counter) bool { return row.Field.ID == gpu.FieldHealthStatus }) {
		return
	}
	f.begin("gpumeter_health_check_timestamp_seconds", "When the last round of DCGM's health checks was complete, in Unix time; it stands still while a check is blocked.", kindGauge)
	f.instant(f.set(), f.snapshot.Reading.Health.Time)
}

func (f *ownFamilies) addSourceInfo() {
	r := &f.snapshot.Reading
	if r.Source == "" && f.cfg.SourceReason == "" {
		return
	}
	f.begin("gpumeter_source_info", "Where the values of the GPUs come from, and why from there; always 1.", kindGauge)
	f.count(f.set(
		"source", r.Source, "library", r.Origin.Library, "engine", r.Origin.Engine, "driver", r.Origin.Driver,
		"reason", f.cfg.SourceReason), 1)
}
