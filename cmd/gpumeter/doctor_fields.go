// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/exporter"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// checkFields says which rows of the counter file are not given, by whom and why.
func (d *doctor) checkFields(ctx context.Context, e exam) outcome {
	if e.reading == nil || len(e.fields()) == 0 {
		return found(finding{Status: statusInfo, Text: "not looked at, since there is no reading"})
	}
	// A field that is blank at first may be one that takes two samples, or one that never comes.
	r := *e.reading
	var trouble []finding
	for tries := 0; tries < 3 && hasBlank(&r, e.chosen.Driver); tries++ {
		if !sleep(ctx, d.pause) {
			break
		}
		again, err := e.read(ctx)
		if err != nil {
			trouble = append(trouble, finding{Status: statusWarn, Text: "the second reading failed: " + err.Error()})
			break
		}
		r = again
	}
	trouble = append(trouble, d.newTroubles(e.reading, &r)...)
	if !answers(&r) {
		return found(append(trouble, finding{Status: statusInfo, Text: "not looked at, since no GPU answers"})...)
	}
	absent := absentFields(&r, rowNames(e.counters), e.chosen.Driver)
	out := slices.Concat(trouble, d.explainAbsent(e, &r, absent))
	return outcome{out, func(e *exam) { e.reading, e.absent = &r, absent }}
}

// onlyAfterEvents reports whether a field has no value before the first event.
func onlyAfterEvents(id gpu.FieldID) bool { return id == gpu.FieldXID || id == gpu.FieldBindEvent }

func hasBlank(r *gpu.Reading, driver app.Driver) bool {
	return slices.ContainsFunc(absentFields(r, nil, driver), func(a absentField) bool { return a.reason == gpu.ReasonBlank })
}

// answers reports whether any GPU gives anything.
func answers(r *gpu.Reading) bool {
	return slices.ContainsFunc(r.Samples, func(s gpu.Sample) bool {
		return s.Entity.GPU != "" && slices.ContainsFunc(s.Values, func(v gpu.Value) bool {
			return v.Reason() != gpu.ReasonLost && v.Reason() != gpu.ReasonTimeout && v.Reason() != gpu.ReasonScope
		})
	})
}

// absentFields are the fields that GPUs and GPU instances do not give, under the given names. What concerns a whole GPU,
// one that is lost or hangs, is not a field's matter.
func absentFields(r *gpu.Reading, names map[gpu.FieldID]string, driver app.Driver) []absentField {
	indices := make(map[gpu.UUID]int)
	for _, d := range r.Devices {
		indices[d.UUID] = d.Index
	}
	out := untoldFields(r, names, driver)
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.Entity.Kind != gpu.KindGPU && s.Entity.Kind != gpu.KindGPUInstance {
			continue
		}
		for column, id := range r.Fields {
			v := s.Values[column]
			reason := v.Reason()
			switch {
			case v.Present(), id.Computed(), reason == gpu.ReasonScope, reason == gpu.ReasonLost, reason == gpu.ReasonTimeout:
				continue
			case reason == gpu.ReasonBlank && onlyAfterEvents(id):
				continue
			}
			a := absentField{
				Field: names[id], ID: int(id), UUID: string(s.Entity.GPU), GPU: indices[s.Entity.GPU],
				Reason: reason.String(), id: id, reason: reason,
			}
			if s.Entity.Kind == gpu.KindGPUInstance {
				a.GPUInstance = &s.Entity.ID
			}
			out = append(out, a)
		}
	}
	return out
}

// untoldFields are the health checks and the ways between GPUs, which are no sample's values, on
// the GPUs that answer where a reading is to have them and does not.
func untoldFields(r *gpu.Reading, names map[gpu.FieldID]string, driver app.Driver) []absentField {
	var untold []gpu.FieldID
	for _, id := range r.Fields {
		if id == gpu.FieldHealthStatus && r.Health.Time.IsZero() || id == gpu.FieldP2PStatus && len(r.Peers) == 0 && severalCards(r) {
			untold = append(untold, id)
		}
	}
	refused := slices.ContainsFunc(r.Troubles, func(t gpu.Trouble) bool { return t.GPU == "" && t.Reason == gpu.ReasonNotSupported })
	var out []absentField
	for _, d := range r.Devices {
		if d.IsMIG() || d.Lost || slices.ContainsFunc(r.Troubles, func(t gpu.Trouble) bool { return t.GPU == d.UUID && silences(t) }) {
			continue
		}
		for _, id := range untold {
			reason := gpu.ReasonBlank
			if refused || !supports(driver, id) {
				reason = gpu.ReasonNotSupported
			}
			out = append(out, absentField{
				Field: names[id], ID: int(id), UUID: string(d.UUID), GPU: d.Index, Reason: reason.String(), id: id, reason: reason,
			})
		}
	}
	return out
}

// severalCards reports whether there are two physical GPUs, between which there can be a way.
func severalCards(r *gpu.Reading) bool {
	cards := 0
	for _, d := range r.Devices {
		if !d.IsMIG() {
			cards++
		}
	}
	return cards > 1
}

func fieldName(id gpu.FieldID) string {
	if f, ok := gpu.FieldByID(id); ok {
		return f.Name
	}
	return fmt.Sprintf("field %d", id)
}

// cause is why a field is absent, as far as it makes a difference to what can be done.
type cause struct {
	reason gpu.Reason
	// never: the source can give the field on no GPU.
	never bool
	// unprofiled: it is a profiling field, and the GPU gives none of them.
	unprofiled bool
	// profiling: it is a profiling field, that the GPU would give but for something else.
	profiling bool
	// computed: it is no field of DCGM's, but what a module or a call of its own answers.
	computed bool
}

// absentGroup are fields that are absent for one cause on the same GPUs.
type absentGroup struct {
	cause
	gpus   string
	fields []string
}

// explainAbsent puts the absent fields into lines: one for each cause and set of GPUs.
func (d *doctor) explainAbsent(e exam, r *gpu.Reading, absent []absentField) []finding {
	missing := make(map[gpu.FieldID]map[cause][]int)
	profiled := profiledGPUs(r)
	for _, a := range absent {
		c := cause{reason: a.reason, computed: a.id.Computed()}
		if a.reason == gpu.ReasonNotSupported {
			c.never = !supports(e.chosen.Driver, a.id)
			c.unprofiled = a.id.Profiling() && !profiled[gpu.UUID(a.UUID)]
		} else {
			c.profiling = a.id.Profiling()
		}
		if missing[a.id] == nil {
			missing[a.id] = make(map[cause][]int)
		}
		missing[a.id][c] = append(missing[a.id][c], a.GPU)
	}
	names := rowNames(e.counters)
	var groups []absentGroup
	for _, id := range r.Fields {
		for c, indices := range missing[id] {
			slices.Sort(indices)
			on := numberedGPUs(slices.Compact(indices))
			i := slices.IndexFunc(groups, func(g absentGroup) bool { return g.cause == c && g.gpus == on })
			if i < 0 {
				i = len(groups)
				groups = append(groups, absentGroup{cause: c, gpus: on})
			}
			groups[i].fields = append(groups[i].fields, names[id])
		}
	}
	slices.SortFunc(groups, func(a, b absentGroup) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.fields[0], b.fields[0]))
	})
	out := []finding{{Status: statusOK, Text: countedRows(e.counters.Rows(), r, missing)}}
	for _, g := range groups {
		f := d.explain(g.cause, e.chosen.Name)
		f.Text = fmt.Sprintf("%s on %s: %s", f.Text, g.gpus, strings.Join(g.fields, ", "))
		out = append(out, f)
	}
	return out
}

// countedRows says how many rows of the counter file have all their values. The clock events are
// counted out of a field of their own.
func countedRows(rows []exporter.Counter, r *gpu.Reading, missing map[gpu.FieldID]map[cause][]int) string {
	given := 0
	for _, row := range rows {
		id := row.Field.ID
		if id == gpu.FieldClockEventsCount || id == gpu.FieldClockEventsTotal {
			id = gpu.FieldClockReasons
		}
		if missing[id] == nil {
			given++
		}
	}
	text := fmt.Sprintf("%d of the counter file's %d rows have a value on every GPU that answers", given, len(rows))
	if slices.ContainsFunc(r.Troubles, silences) || slices.ContainsFunc(r.Devices, func(d gpu.Device) bool { return d.Lost }) {
		text += ", which not all do"
	}
	return text
}

// profiledGPUs are those that give a profiling field, themselves or by an instance.
func profiledGPUs(r *gpu.Reading) map[gpu.UUID]bool {
	out := make(map[gpu.UUID]bool)
	for i := range r.Samples {
		for column, id := range r.Fields {
			if id.Profiling() && r.Samples[i].Values[column].Present() {
				out[r.Samples[i].Entity.GPU] = true
			}
		}
	}
	return out
}

func numberedGPUs(indices []int) string {
	if len(indices) == 1 {
		return fmt.Sprintf("GPU %d", indices[0])
	}
	return "GPUs " + app.Ranges(indices)
}

// rowNames are the fields' names as the counter file has them.
func rowNames(c *exporter.Counters) map[gpu.FieldID]string {
	names := make(map[gpu.FieldID]string)
	for _, id := range c.Fields() {
		names[id] = fieldName(id)
	}
	for _, row := range c.Rows() {
		names[row.Field.ID] = row.Name
	}
	return names
}

// supports reports whether the source can ever give a field. One that does not say can.
func supports(driver app.Driver, id gpu.FieldID) bool {
	s, ok := driver.(interface{ Supports(gpu.FieldID) bool })
	return !ok || s.Supports(id)
}

// explain is what the cause means and what to do about it.
func (d *doctor) explain(c cause, source string) finding {
	switch {
	case c.never && !(c.computed && source == app.SourceDCGM):
		return finding{Status: statusWarn, Text: "not given by " + source, Remedy: "install datacenter-gpu-manager-4, whose DCGM gives them, or take the rows out of the counter file"}
	case c.reason == gpu.ReasonNotSupported && c.unprofiled:
		return finding{Status: statusWarn, Text: "no profiling", Remedy: "it takes Volta or newer, and before Hopper DCGM's profiling module (datacenter-gpu-manager-4-proprietary)"}
	case c.reason == gpu.ReasonNotSupported && c.computed:
		return finding{Status: statusWarn, Text: "not supported", Remedy: "update DCGM (NVLink between GPUs takes 4.3 or newer), or take the rows out of the counter file"}
	case c.reason == gpu.ReasonNotSupported:
		return finding{Status: statusInfo, Text: "not supported", Remedy: "nothing to do: the hardware, its driver or its MIG mode does not have them"}
	case c.reason == gpu.ReasonNotPermitted && c.profiling:
		return finding{Status: statusWarn, Text: "not permitted", Remedy: "run with the capability SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"}
	case c.reason == gpu.ReasonNotPermitted:
		return finding{Status: statusWarn, Text: "not permitted", Remedy: d.permit()}
	case c.reason == gpu.ReasonNotFound:
		return finding{Status: statusInfo, Text: "not found"}
	case c.reason == gpu.ReasonBlank && c.profiling:
		return finding{Status: statusWarn, Text: "blank (no value came)", Remedy: "another program may have the profiling counters (see profilers)"}
	case c.reason == gpu.ReasonBlank:
		return finding{Status: statusWarn, Text: "blank (no value came)", Remedy: "look again in a minute"}
	case c.reason == gpu.ReasonStale:
		return finding{Status: statusWarn, Text: "stale (no new value came)", Remedy: "see whether the host engine keeps up, and dmesg for NVRM and Xid lines"}
	case c.reason == gpu.ReasonType:
		return finding{Status: statusWarn, Text: "text instead of a number", Remedy: "give the rows the type label"}
	case c.reason == gpu.ReasonImplausible:
		return finding{Status: statusWarn, Text: "implausible", Remedy: "see whether nvidia-smi shows the same; a newer driver may help"}
	default:
		return finding{Status: statusWarn, Text: "failed (" + c.reason.String() + ")", Remedy: "--debug shows what the library says"}
	}
}
