// SPDX-License-Identifier: Apache-2.0

package dcgm

// #include <stdlib.h>
// #include "binding.h"
import "C"

import (
	"fmt"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// maxFields is how many fields a field group can have; DCGM refuses the 128th.
const maxFields = C.MAX_FIELDS_PER_GROUP

// groupID is a group of entities.
type groupID uint64

// String names the group in errors.
func (g groupID) String() string { return "group " + strconv.FormatUint(uint64(g), 10) }

// fieldGroupID is a group of fields.
type fieldGroupID uint64

// String names the field group in errors.
func (g fieldGroupID) String() string { return "field group " + strconv.FormatUint(uint64(g), 10) }

// createGroup makes a group of entities; names need not be unique. An entity that DCGM
// refuses, because it does not know it or it is there twice, fails the whole, and what was
// made is destroyed again.
func (h *handle) createGroup(name string, members []entity) (groupID, error) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	var group C.uint64_t
	err := h.do("dcgmGroupCreate", name, func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_create_group(l, id, cName, &group)
	})
	if err != nil {
		return 0, err
	}
	for _, e := range members {
		err := h.do("dcgmGroupAddEntity", name, func(l *C.struct_library, id C.uint64_t) C.int32_t {
			return C.call_add_entity(l, id, group, C.int32_t(e.group), C.uint32_t(e.id))
		})
		if err != nil {
			// The refusal says more than a failure to clean up after it.
			_ = h.destroyGroup(groupID(group))
			return 0, fmt.Errorf("adding %s: %w", e, err)
		}
	}
	return groupID(group), nil
}

// destroyGroup ends a group and its watches.
func (h *handle) destroyGroup(group groupID) error {
	return h.do("dcgmGroupDestroy", group.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_destroy_group(l, id, C.uint64_t(group))
	})
}

// groupIDs are all groups of the engine, of all its clients, with DCGM's own two.
func (h *handle) groupIDs() ([]groupID, error) {
	ids := make([]groupID, C.MAX_GROUPS)
	var count C.uint32_t
	err := h.do("dcgmGroupGetAllIds", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_group_ids(l, id, (*C.uint64_t)(unsafe.Pointer(&ids[0])), &count)
	})
	if err != nil {
		return nil, err
	}
	return first(ids, count), nil
}

// createFieldGroup makes a group of 1 to maxFields fields that the library knows, under a
// name that no other field group of the engine has.
func (h *handle) createFieldGroup(name string, ids []gpu.FieldID) (fieldGroupID, error) {
	const call = "dcgmFieldGroupCreate"
	if len(ids) == 0 || len(ids) > maxFields {
		return 0, fmt.Errorf("%s of %s: %d fields, and DCGM takes 1 to %d", call, name, len(ids), maxFields)
	}
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	var group C.uint64_t
	err := h.do(call, name, func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_create_field_group(l, id, C.int32_t(len(ids)), (*C.uint16_t)(&ids[0]), cName, &group)
	})
	if err != nil {
		return 0, err
	}
	return fieldGroupID(group), nil
}

// destroyFieldGroup ends a field group.
func (h *handle) destroyFieldGroup(fields fieldGroupID) error {
	return h.do("dcgmFieldGroupDestroy", fields.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_destroy_field_group(l, id, C.uint64_t(fields))
	})
}

// watch has the engine sample the fields of the group's entities each period, and keep what is
// neither older than keep nor more than samples (0 is any number). It is not atomic: on an
// error some fields may be watched.
func (h *handle) watch(group groupID, fields fieldGroupID, period, keep time.Duration, samples int32) error {
	return h.do("dcgmWatchFields", group.String()+", "+fields.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_watch(l, id, C.uint64_t(group), C.uint64_t(fields),
			C.int64_t(period.Microseconds()), C.double(keep.Seconds()), C.int32_t(samples))
	})
}

// unwatch ends a watch. Its errors do no harm: DCGM answers -16 where the watch is gone
// already, and where a field of the node is among the fields.
func (h *handle) unwatch(group groupID, fields fieldGroupID) error {
	return h.do("dcgmUnwatchFields", group.String()+", "+fields.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_unwatch(l, id, C.uint64_t(group), C.uint64_t(fields))
	})
}

// update has the engine sample now what is due, and waits for it if told to.
func (h *handle) update(wait bool) error {
	var waits C.int32_t
	if wait {
		waits = 1
	}
	return h.do("dcgmUpdateAllFields", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_update(l, id, waits)
	})
}

// latest fills r with the last sample of each field of each entity, in the order of the group
// and, within an entity, of the fields. The records must not be used until it returns. On an
// error they are not complete.
func (h *handle) latest(group groupID, fields fieldGroupID, r *records) error {
	const call = "dcgmGetLatestValues_v2"
	err := h.enter(call)
	if err != nil {
		return err
	}
	defer h.leave()
	status, err := r.fill(func(kept *C.struct_records) C.int32_t {
		return C.call_latest(h.library.functions, h.id, C.uint64_t(group), C.uint64_t(fields), kept)
	})
	if err == nil && status == 0 {
		return nil
	}
	return h.filled(call, group, fields, status, err)
}

// since fills r with all samples that the engine keeps from a time on, in microseconds since
// 1970; 0 is all it has. Those of one field of one entity follow each other in ascending time.
// next is where to go on from. On an error, as when a field is not watched, the records have
// what came before it and next is not to be used.
func (h *handle) since(group groupID, fields fieldGroupID, since int64, r *records) (next int64, err error) {
	const call = "dcgmGetValuesSince_v2"
	err = h.enter(call)
	if err != nil {
		return 0, err
	}
	defer h.leave()
	status, err := r.fill(func(kept *C.struct_records) C.int32_t {
		s := C.call_since(h.library.functions, h.id, C.uint64_t(group), C.uint64_t(fields), C.int64_t(since), kept)
		next = int64(kept.next)
		return s
	})
	if err == nil && status == 0 {
		return next, nil
	}
	return 0, h.filled(call, group, fields, status, err)
}

// filled is the error of a call that was to fill records.
func (h *handle) filled(call string, group groupID, fields fieldGroupID, status C.int32_t, err error) error {
	if err != nil {
		return fmt.Errorf("%s of %s, %s: %w", call, group, fields, err)
	}
	return h.library.failure(call, group.String()+", "+fields.String(), status)
}

// metricGroups are the profiling fields that a GPU offers, over all its metric groups, in
// ascending order.
func (h *handle) metricGroups(gpuID uint32) ([]gpu.FieldID, error) {
	raw := new(C.struct_metric_groups)
	raw.gpu = C.uint32_t(gpuID)
	err := h.do("dcgmProfGetSupportedMetricGroups", entity{groupGPU, gpuID}.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_metric_groups(l, id, raw)
	})
	if err != nil {
		return nil, err
	}
	var ids []gpu.FieldID
	groups := first(raw.at[:], raw.count)
	for i := range groups {
		for _, id := range first(groups[i].fields[:], groups[i].field_count) {
			ids = append(ids, gpu.FieldID(id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// setHealth has the engine watch what the health checks of the systems in mask need, each
// interval, and keep it for a time.
func (h *handle) setHealth(group groupID, mask uint32, interval, keep time.Duration) error {
	return h.do("dcgmHealthSet_v2", group.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_set_health(l, id, C.uint64_t(group), C.uint32_t(mask),
			C.int64_t(interval.Microseconds()), C.double(keep.Seconds()))
	})
}

// incident is what a health check found.
type incident struct {
	entity entity
	// system has a bit of DCGM's health mask, or several.
	system uint32
	// health is DCGM's result: 10 warn, 20 fail.
	health int32
	// code is DCGM's number of the error, text its words, which are not always right.
	code uint32
	text string
}

// checkHealth evaluates the checks that setHealth asked for, over the time since the last
// evaluation. It can take long.
func (h *handle) checkHealth(group groupID) (incidents []incident, err error) {
	var raw *C.struct_health_response
	err = h.do("dcgmHealthCheck", group.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		var status C.int32_t
		raw = C.call_check_health(l, id, C.uint64_t(group), &status)
		return status
	})
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(raw))
	found := first(raw.at[:], raw.count)
	for i := range found {
		f := &found[i]
		incidents = append(incidents, incident{
			entity: entityOf(f.entity),
			system: uint32(f.system),
			health: int32(f.health),
			code:   uint32(f.code),
			text:   textOf(f.message[:]),
		})
	}
	return incidents, nil
}
