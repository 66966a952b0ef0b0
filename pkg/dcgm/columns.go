// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"slices"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// columns are what readings are asked for, worked out once per list of fields. Never
// modified once made.
type columns struct {
	fields []gpu.FieldID
	scopes []gpu.Scope
	// given says of each column whether this libdcgm can give it at all.
	given []bool
	// first is the column of a field; twin is, of each column, the first of the same field.
	first map[gpu.FieldID]int
	twin  []int
	// wanted are the given fields by scope, each once, in ascending order.
	wanted map[gpu.Scope][]gpu.FieldID
	// twins says that a field was asked for more than once.
	twins bool
	// health and peers are wishes for what stands beside the samples.
	health, peers bool
}

// newColumns works out what is asked for; lookup is what libdcgm knows of a field.
func newColumns(fields []gpu.FieldID, lookup func(gpu.FieldID) (fieldMeta, bool)) *columns {
	c := &columns{
		fields: slices.Clone(fields),
		scopes: make([]gpu.Scope, len(fields)),
		given:  make([]bool, len(fields)),
		twin:   make([]int, len(fields)),
		first:  make(map[gpu.FieldID]int, len(fields)),
		wanted: map[gpu.Scope][]gpu.FieldID{},
	}
	for i, id := range fields {
		c.health = c.health || id == gpu.FieldHealthStatus
		c.peers = c.peers || id == gpu.FieldP2PStatus
		c.twin[i] = i
		if j, again := c.first[id]; again {
			c.twin[i], c.scopes[i], c.given[i], c.twins = j, c.scopes[j], c.given[j], true
			continue
		}
		c.first[id] = i
		if id.Computed() {
			continue
		}
		meta, known := lookup(id)
		c.scopes[i] = scopeOf(id, meta, known)
		c.given[i] = known && meta.kind != gpu.FieldUnknown && meta.kind != gpu.FieldBinary && c.scopes[i] != gpu.ScopeUnknown
		if c.given[i] {
			c.wanted[c.scopes[i]] = append(c.wanted[c.scopes[i]], id)
		}
	}
	for _, ids := range c.wanted {
		slices.Sort(ids)
	}
	return c
}

// scopeOf is what a field is a quantity of: as the catalogue has it, and where that leaves it
// open, or the field is newer, as libdcgm has it.
func scopeOf(id gpu.FieldID, meta fieldMeta, known bool) gpu.Scope {
	if f, ok := gpu.FieldByID(id); ok && f.Scope != gpu.ScopeUnknown {
		return f.Scope
	}
	if !known {
		return gpu.ScopeUnknown
	}
	if meta.global {
		return gpu.ScopeNode
	}
	switch meta.level {
	case groupNone:
		return gpu.ScopeNode
	case groupGPU:
		return gpu.ScopeGPU
	case groupGPUInstance, groupComputeInstance:
		return gpu.ScopeGPUInstance
	case groupVGPU:
		return gpu.ScopeVGPU
	case groupSwitch:
		return gpu.ScopeSwitch
	case groupLink:
		return gpu.ScopeLink
	case groupCPU:
		return gpu.ScopeCPU
	case groupCPUCore:
		return gpu.ScopeCPUCore
	case groupConnectX:
		return gpu.ScopeConnectX
	default:
		return gpu.ScopeUnknown
	}
}

// ids are the given fields of some scopes, in ascending order within each.
func (c *columns) ids(scopes ...gpu.Scope) []gpu.FieldID {
	var out []gpu.FieldID
	for _, s := range scopes {
		out = append(out, c.wanted[s]...)
	}
	return out
}

// concerns reports whether a field of a scope is a quantity of an entity. What the node has
// stands on each GPU and instance; a quantity of instances stands on the GPU where none
// of its instances is read.
func concerns(scope gpu.Scope, kind gpu.Kind, divided bool) bool {
	switch scope {
	case gpu.ScopeNode:
		return kind == gpu.KindGPU || kind == gpu.KindGPUInstance
	case gpu.ScopeGPU:
		return kind == gpu.KindGPU
	case gpu.ScopeGPUInstance:
		return kind == gpu.KindGPUInstance || kind == gpu.KindGPU && !divided
	case gpu.ScopeLink:
		return kind == gpu.KindLink
	case gpu.ScopeSwitch:
		return kind == gpu.KindSwitch
	case gpu.ScopeCPU:
		return kind == gpu.KindCPU
	case gpu.ScopeCPUCore:
		return kind == gpu.KindCPUCore
	default:
		return false
	}
}

// row is an entity's row before anything is known: what it cannot have is absent for its
// reason, and the rest for the reason given.
func (c *columns) row(kind gpu.Kind, divided bool, rest gpu.Reason) []gpu.Value {
	row := make([]gpu.Value, len(c.fields))
	for i, id := range c.fields {
		switch {
		case id.Computed(), c.scopes[i] != gpu.ScopeUnknown && !concerns(c.scopes[i], kind, divided):
			row[i] = gpu.Absent(gpu.ReasonScope)
		case !c.given[i]:
			row[i] = gpu.Absent(gpu.ReasonNotSupported)
		default:
			row[i] = gpu.Absent(rest)
		}
	}
	return row
}

// idle reports whether no value with a time of its own can come into an empty row: what the
// node has and the last XID are older than the reading.
func (c *columns) idle(row []gpu.Value) bool {
	for i, v := range row {
		if v.Reason() == gpu.ReasonBlank && c.scopes[i] != gpu.ScopeNode && c.fields[i] != gpu.FieldXID {
			return false
		}
	}
	return true
}

// repeat gives the columns of a field that was asked for twice the same value.
func (c *columns) repeat(row []gpu.Value) {
	if !c.twins {
		return
	}
	for i, j := range c.twin {
		row[i] = row[j]
	}
}
