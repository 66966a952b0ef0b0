// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// query is one way to ask NVML for one or more fields: a call that answers several is made once.
type query struct {
	fields []gpu.FieldID
	// needs are the functions of the library that it calls; see library.has.
	needs []string
	// static answers stay as they are for as long as the GPU is the same.
	static bool
	// known answers come from what was heard before, without a call.
	known bool
	read  func(*probe)
}

// entityKind is what rows are told apart by.
type entityKind int

const (
	// undivided is a GPU of which no GPU instance is read, divided one with some.
	undivided entityKind = iota
	divided
	instance
	link

	entityKinds
)

// plan is what to ask for a set of fields. It does not change once made.
type plan struct {
	fields []gpu.FieldID
	rows   [entityKinds]rowPlan
	// node are the fields that are the same wherever they are read.
	node []gpu.FieldID
	// links and peers say that these are among the wishes.
	links, peers bool
}

// rowPlan is what to ask of one kind of entity.
type rowPlan struct {
	// blank is the row before anything was asked: fields out of scope and those that NVML does
	// not have are settled.
	blank []gpu.Value
	// columns are where the answers go.
	columns map[gpu.FieldID][]int
	queries []*query
}

// newPlan settles once per set of fields what would be the same in every reading.
func newPlan(fields []gpu.FieldID, queries []*query, has func(...string) bool) *plan {
	p := &plan{fields: slices.Clone(fields), peers: slices.Contains(fields, gpu.FieldP2PStatus)}
	answered := make(map[gpu.FieldID]*query)
	for _, q := range queries {
		usable := has(q.needs...)
		for _, id := range q.fields {
			if answered[id] == nil && usable && slices.Contains(fields, id) {
				answered[id] = q
			}
		}
	}
	for kind := range entityKinds {
		p.rows[kind] = newRowPlan(p.fields, kind, answered)
	}
	for _, id := range p.fields {
		if scopeOf(id) == gpu.ScopeNode {
			p.node = append(p.node, id)
		}
		p.links = p.links || scopeOf(id) == gpu.ScopeLink && answered[id] != nil
	}
	return p
}

func newRowPlan(fields []gpu.FieldID, kind entityKind, answered map[gpu.FieldID]*query) rowPlan {
	row := rowPlan{blank: make([]gpu.Value, len(fields)), columns: make(map[gpu.FieldID][]int)}
	for i, id := range fields {
		q := answered[id]
		switch scope := scopeOf(id); {
		case id.Computed(), !concerns(scope, kind):
			row.blank[i] = gpu.Absent(gpu.ReasonScope)
		case scope == gpu.ScopeNode:
			row.columns[id] = append(row.columns[id], i)
		case q == nil:
			row.blank[i] = gpu.Absent(gpu.ReasonNotSupported)
		default:
			row.columns[id] = append(row.columns[id], i)
			if !slices.Contains(row.queries, q) {
				row.queries = append(row.queries, q)
			}
		}
	}
	return row
}

func scopeOf(id gpu.FieldID) gpu.Scope {
	f, _ := gpu.FieldByID(id)
	if f.Scope == gpu.ScopeUnknown {
		// Engines that DCGM's catalogue does not describe, and whatever nobody knows.
		return gpu.ScopeGPU
	}
	return f.Scope
}

// concerns reports whether a field of a scope is a quantity of the entity.
func concerns(scope gpu.Scope, kind entityKind) bool {
	switch scope {
	case gpu.ScopeNode:
		return true
	case gpu.ScopeGPU:
		return kind == undivided || kind == divided
	case gpu.ScopeGPUInstance:
		return kind == undivided || kind == instance
	case gpu.ScopeLink:
		return kind == link
	default:
		return false
	}
}

// probe is one entity that is being read: a GPU, or one of its GPU instances or links.
type probe struct {
	*card
	plan *rowPlan
	// device is the handle to ask: the GPU's, or a MIG device's of the GPU instance.
	device nvml.Device
	// instance is NVML's id of the GPU instance, else gpu.NoInstance; link the number of the link.
	instance, link int
	values         []gpu.Value
	// static says that the query under way has answers to remember, asking that it makes a call.
	static, asking bool
	// heard says that a call gave a value, failed that one did not come to an answer.
	heard, failed bool
}

// failing reports whether a value is absent because its entity did not answer.
func failing(r gpu.Reason) bool {
	return r == gpu.ReasonLost || r == gpu.ReasonTimeout || r == gpu.ReasonError
}

// wants reports whether the field is asked of this entity.
func (p *probe) wants(id gpu.FieldID) bool { return len(p.plan.columns[id]) > 0 }

// put answers a field, wherever it stands among the columns.
func (p *probe) put(id gpu.FieldID, v gpu.Value) {
	for _, i := range p.plan.columns[id] {
		p.values[i] = v
		p.heard = p.heard || p.asking && v.Present()
		p.failed = p.failed || p.asking && failing(v.Reason())
	}
	if p.static && (v.Present() || v.Reason() == gpu.ReasonNotSupported) {
		p.remembered[id] = v
	}
}

// fail answers fields with the reason of a call that failed.
func (p *probe) fail(ret nvml.Return, ids ...gpu.FieldID) {
	p.note(ret)
	for _, id := range ids {
		p.put(id, gpu.Absent(reasonOf(ret)))
	}
}

// give answers a field with what a call returned.
func give[T any](p *probe, id gpu.FieldID, v T, ret nvml.Return, as func(T) gpu.Value) {
	if ret != nvml.SUCCESS {
		p.fail(ret, id)
		return
	}
	p.put(id, as(v))
}

// ask makes one query; whatever goes wrong inside costs its fields only.
func (p *probe) ask(q *query) {
	defer func() {
		defer func() { p.static, p.asking = false, false }()
		if fault := recover(); fault != nil {
			p.panicked(strings.Join(q.needs, ", "), fault)
			for _, id := range q.fields {
				p.put(id, gpu.Absent(gpu.ReasonError))
			}
		}
	}()
	if q.static && p.recall(q) {
		return
	}
	if len(q.needs) > 0 {
		p.lane.doing.Store(&q.needs[0])
	}
	p.static, p.asking = q.static, !q.known
	q.read(p)
}

// recall answers a static query from what it answered before.
func (p *probe) recall(q *query) bool {
	for _, id := range q.fields {
		if _, known := p.remembered[id]; p.wants(id) && !known {
			return false
		}
	}
	for _, id := range q.fields {
		if p.wants(id) {
			p.put(id, p.remembered[id])
		}
	}
	return true
}
