// SPDX-License-Identifier: Apache-2.0

// Holds what binding.h declares against DCGM's documented sizes and offsets, at compile time.

#include "binding.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "DCGM's ABI is stated for little-endian machines");
_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(int) == 4, "DCGM's ABI is stated for LP64 machines");

#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), "size of " #type)
#define AT(type, member, offset) _Static_assert(offsetof(struct type, member) == (offset), "offset of " #type "." #member)
#define VERSION(type, word, number) \
	_Static_assert((word) == (sizeof(struct type) | (uint32_t)(number) << 24), "version of " #type)

SIZE(field_meta, 72);
AT(field_meta, field, 0);
AT(field_meta, type, 2);
AT(field_meta, size, 3);
AT(field_meta, tag, 4);
AT(field_meta, scope, 52);
AT(field_meta, nvml_field, 56);
AT(field_meta, entity_level, 60);
AT(field_meta, format, 64);

SIZE(entity_pair, 8);
AT(entity_pair, group, 0);
AT(entity_pair, id, 4);

SIZE(connect_v2_params, 16);
VERSION(connect_v2_params, VERSION_CONNECT_V2_PARAMS, 2);
AT(connect_v2_params, version, 0);
AT(connect_v2_params, persist_after_disconnect, 4);
AT(connect_v2_params, timeout_ms, 8);
AT(connect_v2_params, address_is_unix_socket, 12);

SIZE(start_embedded_v2_params, 80);
VERSION(start_embedded_v2_params, VERSION_START_EMBEDDED_V2_PARAMS, 2);
AT(start_embedded_v2_params, version, 0);
AT(start_embedded_v2_params, operation_mode, 4);
AT(start_embedded_v2_params, handle, 8);
AT(start_embedded_v2_params, log_file, 16);
AT(start_embedded_v2_params, severity, 24);
AT(start_embedded_v2_params, deny_count, 28);
AT(start_embedded_v2_params, service_account, 32);
AT(start_embedded_v2_params, deny, 40);

SIZE(version_info, 516);
VERSION(version_info, VERSION_VERSION_INFO, 2);
AT(version_info, text, 4);

SIZE(module_status, 8);
AT(module_status, id, 0);
AT(module_status, status, 4);
SIZE(module_statuses, 136);
VERSION(module_statuses, VERSION_MODULE_STATUSES, 1);
AT(module_statuses, count, 4);
AT(module_statuses, at, 8);

SIZE(device_identifiers, 2064);
AT(device_identifiers, brand, 4);
AT(device_identifiers, name, 260);
AT(device_identifiers, pci_bus_id, 516);
AT(device_identifiers, serial, 772);
AT(device_identifiers, uuid, 1028);
AT(device_identifiers, vbios, 1284);
AT(device_identifiers, inforom_image, 1540);
AT(device_identifiers, pci_device, 1796);
AT(device_identifiers, pci_subsystem, 1800);
AT(device_identifiers, driver, 1804);
AT(device_identifiers, virtualization_mode, 2060);
SIZE(device_memory, 20);
AT(device_memory, fb_total, 8);
SIZE(device_settings, 16);
AT(device_settings, mig_mode, 8);
SIZE(device_attributes, 5220);
VERSION(device_attributes, VERSION_DEVICE_ATTRIBUTES, 3);
AT(device_attributes, clock_sets, 4);
AT(device_attributes, thermals, 3084);
AT(device_attributes, power_limits, 3096);
AT(device_attributes, identifiers, 3120);
AT(device_attributes, memory, 5184);
AT(device_attributes, settings, 5204);

SIZE(mig_entity, 164);
AT(mig_entity, entity, 0);
AT(mig_entity, parent, 8);
AT(mig_entity, gpu_uuid, 16);
AT(mig_entity, nvml_gpu, 16 + 128);
AT(mig_entity, nvml_instance, 16 + 132);
AT(mig_entity, nvml_compute_instance, 16 + 136);
AT(mig_entity, nvml_profile, 16 + 140);
AT(mig_entity, nvml_profile_slices, 16 + 144);
SIZE(mig_hierarchy, 73480);
VERSION(mig_hierarchy, VERSION_MIG_HIERARCHY, 2);
AT(mig_hierarchy, count, 4);
AT(mig_hierarchy, at, 8);

SIZE(owned_cores, 136);
AT(owned_cores, mask, 8);
SIZE(cpu, 144);
AT(cpu, id, 0);
AT(cpu, cores, 8);
SIZE(cpu_hierarchy, 1160);
VERSION(cpu_hierarchy, VERSION_CPU_HIERARCHY, 1);
AT(cpu_hierarchy, count, 4);
AT(cpu_hierarchy, at, 8);

SIZE(gpu_links, 76);
AT(gpu_links, gpu, 0);
AT(gpu_links, state, 4);
SIZE(switch_links, 1028);
AT(switch_links, nvswitch, 0);
AT(switch_links, state, 4);
SIZE(nvlink_status, 14780);
VERSION(nvlink_status, VERSION_NVLINK_STATUS, 4);
AT(nvlink_status, gpu_count, 4);
AT(nvlink_status, gpus, 8);
AT(nvlink_status, switch_count, 2440);
AT(nvlink_status, switches, 2444);

SIZE(gpu_peers, 132);
AT(gpu_peers, gpu, 0);
AT(gpu_peers, status, 4);
SIZE(nvlink_p2p_status, 4232);
VERSION(nvlink_p2p_status, VERSION_NVLINK_P2P_STATUS, 1);
AT(nvlink_p2p_status, gpu_count, 4);
AT(nvlink_p2p_status, gpus, 8);

SIZE(gpu_path, 12);
AT(gpu_path, gpu, 0);
AT(gpu_path, links, 8);
SIZE(device_topology, 448);
VERSION(device_topology, VERSION_DEVICE_TOPOLOGY, 1);
AT(device_topology, count, 72);
AT(device_topology, paths, 76);

SIZE(metric_group, 136);
AT(metric_group, major, 0);
AT(metric_group, minor, 2);
AT(metric_group, field_count, 4);
AT(metric_group, fields, 8);
SIZE(metric_groups, 1376);
VERSION(metric_groups, VERSION_PROF_METRIC_GROUPS, 3);
AT(metric_groups, gpu, 8);
AT(metric_groups, count, 12);
AT(metric_groups, at, 16);

SIZE(health_set_params, 40);
VERSION(health_set_params, VERSION_HEALTH_SET_PARAMS, 2);
AT(health_set_params, group, 8);
AT(health_set_params, systems, 16);
AT(health_set_params, update_interval_us, 24);
AT(health_set_params, max_keep_age_s, 32);

SIZE(health_incident, 1044);
AT(health_incident, system, 0);
AT(health_incident, health, 4);
AT(health_incident, message, 8);
AT(health_incident, code, 8 + 1024);
AT(health_incident, entity, 1036);
SIZE(health_response, 1069068);
VERSION(health_response, VERSION_HEALTH_RESPONSE, 5);
AT(health_response, overall, 4);
AT(health_response, count, 8);
AT(health_response, at, 12);

SIZE(field_value, 4120);
VERSION(field_value, VERSION_FIELD_VALUE, 1);
AT(field_value, version, 0);
AT(field_value, field, 4);
AT(field_value, type, 6);
AT(field_value, status, 8);
AT(field_value, ts, 16);
AT(field_value, value, 24);
