// SPDX-License-Identifier: Apache-2.0

package gpu

// FieldID is DCGM's number of a field.
type FieldID uint16

// Fields that the house speaks of by name.
const (
	FieldDriverVersion FieldID = 1
	FieldBindEvent     FieldID = 6
	FieldName          FieldID = 50
	FieldUUID          FieldID = 54
	FieldMIGMode       FieldID = 67
	FieldClockReasons  FieldID = 112
	FieldXID           FieldID = 230
)

// The metrics that dcgm-exporter computes, under the numbers it gives them. No driver
// knows these fields: among the fields of a reading they are wishes for what its Health,
// Peers and Events hold, and their column is ReasonScope.
const (
	FieldXIDErrorsCount FieldID = 9001 + iota
	FieldClockEventsCount
	FieldHealthStatus
	FieldP2PStatus
	FieldXIDErrorsTotal
	FieldClockEventsTotal
)

// Computed reports whether the field is one of dcgm-exporter's computed metrics.
func (id FieldID) Computed() bool { return id >= FieldXIDErrorsCount && id <= FieldClockEventsTotal }

// Profiling reports whether the field is one of DCGM's profiling metrics, which need
// hardware counters that only one program can have at a time on most cards.
func (id FieldID) Profiling() bool { return id >= 1001 && id < 1100 }

// FieldType is how DCGM stores a field.
type FieldType uint8

// The types of field.
const (
	FieldUnknown FieldType = iota
	FieldInt
	FieldFloat
	FieldText
	FieldBinary
)

// Scope is the kind of thing a field is a quantity of. A physical quantity of the
// card (power, energy, temperature, XID, ECC) has ScopeGPU and is read once per
// GPU, never once per slice.
type Scope uint8

// The scopes of fields.
const (
	ScopeUnknown Scope = iota
	// ScopeNode: one value per node, such as the driver version.
	ScopeNode
	// ScopeGPU: one value per physical GPU.
	ScopeGPU
	// ScopeGPUInstance: one value per GPU instance on a GPU in MIG mode with
	// instances, one per GPU elsewhere.
	ScopeGPUInstance
	ScopeLink
	ScopeSwitch
	ScopeCPU
	ScopeCPUCore
	ScopeVGPU
	ScopeConnectX
)

// Field describes one of DCGM's fields.
type Field struct {
	ID FieldID
	// Name is DCGM's present name, Aliases its earlier ones.
	Name    string
	Aliases []string
	Type    FieldType
	Scope   Scope
	// Unit is DCGM's text for the unit, often empty: "C", "W", "mJ", "KB/s", "MB/s".
	Unit string
	// Tag is DCGM's lower-case name, "gpu_temp".
	Tag string
}
