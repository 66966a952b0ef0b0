// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

//go:generate go run fields_generate.go

// FieldByID is the field with DCGM's number id, and whether the catalogue has
// it. The numbers did not change between DCGM 3.3 and 4.6, the names did.
//
// Where DCGM itself says nothing about a number (a section marker, or a field
// that the library knows by name only) the type is FieldUnknown and the scope
// ScopeUnknown. The scope of five fields is not DCGM's: the name, UUID and CUDA
// device string of a card and its XID are ScopeGPU although DCGM keeps them per
// compute instance, and so is DCGM_FI_DEV_VGPU_LICENSE_STATUS (526) although DCGM
// declares it for vGPUs, because dcgm-exporter and its users ask the GPU for it.
//
// The Aliases of the returned Field are shared and must not be modified. Safe for
// concurrent use.
func FieldByID(id FieldID) (Field, bool) {
	if id.Computed() {
		return computedField(id), true
	}
	i := sort.Search(len(fieldTable), func(i int) bool { return fieldTable[i].ID >= id })
	if i == len(fieldTable) || fieldTable[i].ID != id {
		return Field{}, false
	}
	return fieldTable[i], true
}

// FieldByName is the field that name stands for, and whether the catalogue has
// it. A name is, exactly as written: DCGM's present or earlier name of a field
// ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_GPU_TEMP"); its number ("150"); or
// what dcgm-exporter 1.x called it ("dcgm_gpu_temp").
//
// The 1.x names follow a rule: "dcgm_" and the field's tag, else a present or
// earlier name in lower case ("dcgm_fi_prof_dram_active"), else that without the
// "fi_dev_" ("dcgm_nvlink_bandwidth_total", whose tag has changed since).
//
// The Aliases of the returned Field are shared and must not be modified. Safe for
// concurrent use.
func FieldByName(name string) (Field, bool) {
	switch {
	case name == "":
		return Field{}, false
	case name[0] >= '0' && name[0] <= '9':
		return fieldByNumber(name)
	case strings.HasPrefix(name, "dcgm_"):
		return fieldByOldName(name)
	case strings.HasPrefix(name, "DCGM_EXP_"):
		for id := FieldXIDErrorsCount; id.Computed(); id++ {
			if f := computedField(id); f.Name == name {
				return f, true
			}
		}
		return Field{}, false
	}
	return fieldNamed(name)
}

// computedField is one of dcgm-exporter's computed metrics.
func computedField(id FieldID) Field {
	name := [...]string{
		"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_GPU_HEALTH_STATUS",
		"DCGM_EXP_P2P_STATUS", "DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_CLOCK_EVENTS_TOTAL",
	}[id-FieldXIDErrorsCount]
	return Field{ID: id, Name: name, Type: FieldInt, Scope: ScopeGPU}
}

// Fields is the catalogue of DCGM's own fields in ascending order of id, the caller's own copy.
func Fields() []Field {
	fields := slices.Clone(fieldTable[:])
	for i := range fields {
		fields[i].Aliases = slices.Clone(fields[i].Aliases)
	}
	return fields
}

func fieldByNumber(text string) (Field, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || text[0] == '0' && text != "0" {
		return Field{}, false
	}
	return FieldByID(FieldID(n))
}

// fieldNamed walks the table: a name is looked up once per row of a
// configuration, and a second, sorted table of a thousand names would have to be
// kept true for the sake of a microsecond.
func fieldNamed(name string) (Field, bool) {
	for i := range fieldTable {
		f := &fieldTable[i]
		if f.Name == name || slices.Contains(f.Aliases, name) {
			return *f, true
		}
	}
	return Field{}, false
}

func fieldByOldName(name string) (Field, bool) {
	// Unicode has letters beyond ASCII whose upper case is an ASCII letter.
	if strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf || 'A' <= r && r <= 'Z' }) {
		return Field{}, false
	}
	tag := strings.TrimPrefix(name, "dcgm_")
	for i := range fieldTable {
		if f := &fieldTable[i]; f.Tag != "" && f.Tag == tag {
			return *f, true
		}
	}
	if strings.HasPrefix(tag, "fi_") {
		return fieldNamed(strings.ToUpper(name))
	}
	return fieldNamed("DCGM_FI_DEV_" + strings.ToUpper(tag))
}
