// SPDX-License-Identifier: Apache-2.0

package dcgm

// #include <stdlib.h>
// #include "binding.h"
import "C"

import (
	"fmt"
	"strconv"
	"unsafe"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// entityGroup is a kind of entity, DCGM's dcgm_field_entity_group_t.
type entityGroup int32

// The entity groups.
const (
	groupNone entityGroup = iota
	groupGPU
	groupVGPU
	groupSwitch
	groupGPUInstance
	groupComputeInstance
	groupLink
	groupCPU
	groupCPUCore
	groupConnectX
)

// String is DCGM's word for the group.
func (g entityGroup) String() string {
	names := [...]string{"node", "GPU", "vGPU", "NvSwitch", "GPU-I", "GPU-CI", "link", "CPU", "CPU core", "ConnectX"}
	if g >= 0 && int(g) < len(names) {
		return names[g]
	}
	return "entity of group " + strconv.Itoa(int(g))
}

// entity is one thing in DCGM's numbering.
type entity struct {
	group entityGroup
	id    uint32
}

// String names the entity in errors, "GPU 3".
func (e entity) String() string { return e.group.String() + " " + strconv.FormatUint(uint64(e.id), 10) }

// engineVersion is the engine's version, such as "4.6.0"; a connection's may differ from the
// library's.
func (h *handle) engineVersion() (string, error) {
	info := new(C.struct_version_info)
	err := h.do("dcgmHostengineVersionInfo", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_engine_version_info(l, id, info)
	})
	if err != nil {
		return "", err
	}
	return versionIn(textOf(info.text[:]))
}

// module is a part of the engine that is loaded when it is needed.
type module struct {
	// name and status are DCGM's words, "profiling" and "loaded".
	name, status string
}

// moduleStatuses are the engine's modules.
func (h *handle) moduleStatuses() ([]module, error) {
	statuses := new(C.struct_module_statuses)
	err := h.do("dcgmModuleGetStatuses", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_module_statuses(l, id, statuses)
	})
	if err != nil {
		return nil, err
	}
	modules := make([]module, 0, len(statuses.at))
	for _, s := range first(statuses.at[:], statuses.count) {
		modules = append(modules, module{name: moduleName(int(s.id)), status: moduleStatus(int(s.status))})
	}
	return modules, nil
}

func moduleName(id int) string {
	names := [...]string{
		"core", "nvswitch", "vgpu", "introspect", "health", "policy", "config", "diag", "profiling", "sysmon", "mndiag",
	}
	if id >= 0 && id < len(names) {
		return names[id]
	}
	return "module " + strconv.Itoa(id)
}

func moduleStatus(status int) string {
	names := [...]string{"not loaded", "denylisted", "failed", "loaded", "unloaded", "paused", "reloadable"}
	if status >= 0 && status < len(names) {
		return names[status]
	}
	return "status " + strconv.Itoa(status)
}

// allDevices are the ids of all GPUs the engine has ever seen, also of detached ones.
func (h *handle) allDevices() ([]uint32, error) { return h.devices("dcgmGetAllDevices", 0) }

// supportedDevices are the ids of the GPUs that can be used now.
func (h *handle) supportedDevices() ([]uint32, error) {
	return h.devices("dcgmGetAllSupportedDevices", 1)
}

func (h *handle) devices(call string, supported C.int) ([]uint32, error) {
	ids := make([]uint32, C.MAX_GPUS)
	var count C.int32_t
	err := h.do(call, "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_devices(l, id, supported, (*C.uint32_t)(&ids[0]), &count)
	})
	if err != nil {
		return nil, err
	}
	return first(ids, count), nil
}

// The states of a GPU that gpuStatus tells.
const (
	gpuUnknown int32 = iota
	gpuOK
	gpuUnsupported
	gpuInaccessible
	gpuLost
	gpuFake
	gpuDisabled
	gpuDetached
)

// gpuStatus is the state of a GPU. It is missing before DCGM 4.5.
func (h *handle) gpuStatus(gpuID uint32) (int32, error) {
	var status C.int32_t
	err := h.do("dcgmGetGpuStatus", entity{groupGPU, gpuID}.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_gpu_status(l, id, C.uint32_t(gpuID), &status)
	})
	return int32(status), err
}

// attributes are what does not change about a GPU while it is there, and its MIG mode. Text
// that DCGM does not know is empty.
type attributes struct {
	uuid, name, pciBusID, driver string
	migEnabled                   bool
	// fbTotalMiB is the framebuffer's size in MiB, 0 where it is not known.
	fbTotalMiB uint32
}

// attributes describe a GPU. DCGM does not fail on an id that it does not know: the uuid is
// empty then.
func (h *handle) attributes(gpuID uint32) (attributes, error) {
	raw := new(C.struct_device_attributes)
	err := h.do("dcgmGetDeviceAttributes", entity{groupGPU, gpuID}.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_attributes(l, id, C.uint32_t(gpuID), raw)
	})
	if err != nil {
		return attributes{}, err
	}
	out := attributes{
		uuid:       knownText(raw.identifiers.uuid[:]),
		name:       knownText(raw.identifiers.name[:]),
		pciBusID:   knownText(raw.identifiers.pci_bus_id[:]),
		driver:     knownText(raw.identifiers.driver[:]),
		migEnabled: raw.settings.mig_mode == 1,
	}
	if total := uint32(raw.memory.fb_total); total < int32Blank {
		out.fbTotalMiB = total
	}
	return out, nil
}

// migEntity is a GPU instance or a compute instance.
type migEntity struct {
	// entity and parent are in DCGM's numbering; the parent of a GPU instance is its GPU, of a
	// compute instance its GPU instance.
	entity, parent entity
	// gpuInstance and computeInstance are NVML's numbers, gpu.NoInstance for none.
	gpuInstance, computeInstance int
	// slices are the compute slices of its profile.
	slices int
}

// hierarchy lists the GPU instances of all GPUs, each followed by its compute instances.
func (h *handle) hierarchy() ([]migEntity, error) {
	var raw *C.struct_mig_hierarchy
	err := h.do("dcgmGetGpuInstanceHierarchy", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		var status C.int32_t
		raw = C.call_hierarchy(l, id, &status)
		return status
	})
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(raw))
	var entities []migEntity
	listed := first(raw.at[:], raw.count)
	for i := range listed {
		e := &listed[i]
		entities = append(entities, migEntity{
			entity:          entityOf(e.entity),
			parent:          entityOf(e.parent),
			gpuInstance:     instanceOf(e.nvml_instance),
			computeInstance: instanceOf(e.nvml_compute_instance),
			slices:          max(instanceOf(e.nvml_profile_slices), 0),
		})
	}
	return entities, nil
}

// instanceOf is a number of NVML's; all ones and DCGM's sentinels are none.
func instanceOf(id C.uint32_t) int {
	if uint32(id) >= int32Blank {
		return gpu.NoInstance
	}
	return int(id)
}

// entities are the ids of all entities of a group. DCGM does not list vGPUs and links.
func (h *handle) entities(group entityGroup) ([]uint32, error) {
	const call, tries = "dcgmGetEntityGroupEntities", 4
	room := 64
	for range tries {
		ids := make([]uint32, room)
		count := C.int32_t(room)
		err := h.do(call, group.String(), func(l *C.struct_library, id C.uint64_t) C.int32_t {
			return C.call_entities(l, id, C.int32_t(group), (*C.uint32_t)(&ids[0]), &count)
		})
		if err == nil {
			return first(ids, count), nil
		}
		if returned(err) != stInsufficientSize {
			return nil, err
		}
		const most = 1 << 16
		room = min(max(int(count), 2*room), most)
	}
	return nil, fmt.Errorf("%s of %s: the number of entities changes too fast to be read", call, group)
}

// attachDriver lets the engine use the driver again. It is missing before DCGM 4.5.
func (h *handle) attachDriver() error {
	return h.do("dcgmAttachDriver", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_attach_driver(l, id)
	})
}

// detachDriver makes the engine let go of the driver: no GPU is supported then, and the
// watches on GPUs are gone for good. It is missing before DCGM 4.5.
func (h *handle) detachDriver() error {
	return h.do("dcgmDetachDriver", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_detach_driver(l, id)
	})
}

func entityOf(pair C.struct_entity_pair) entity {
	return entity{group: entityGroup(pair.group), id: uint32(pair.id)}
}

// first is as much of the array as DCGM says is filled, and never more than there is.
func first[T any, N C.int32_t | C.uint32_t](array []T, count N) []T {
	return array[:min(max(int(count), 0), len(array))]
}

// textOf is C's text in an array, which need not end in a zero.
func textOf(array []C.char) string {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&array[0])), len(array))
	for i, c := range raw {
		if c == 0 {
			return string(raw[:i])
		}
	}
	return string(raw)
}

// knownText is textOf, empty for DCGM's sentinels.
func knownText(array []C.char) string {
	if text := textOf(array); !isBlank(text) {
		return text
	}
	return ""
}
