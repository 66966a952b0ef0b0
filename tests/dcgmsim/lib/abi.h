// SPDX-License-Identifier: Apache-2.0

// The binary interface of libdcgm.so.4 as far as this library has it. It is stated
// here once more, on purpose: a mistake in the binding must not be shared.

#ifndef DCGMSIM_ABI_H
#define DCGMSIM_ABI_H

#include <stddef.h>
#include <stdint.h>

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define VERSION_WORD(type, n) ((uint32_t)sizeof(type) | (uint32_t)(n) << 24)

typedef uint64_t word;

enum {
    ST_OK = 0,
    ST_BADPARAM = -1,
    ST_GENERIC_ERROR = -3,
    ST_MEMORY = -4,
    ST_NOT_CONFIGURED = -5,
    ST_NOT_SUPPORTED = -6,
    ST_INIT_ERROR = -7,
    ST_UNINITIALIZED = -10,
    ST_VER_MISMATCH = -12,
    ST_UNKNOWN_FIELD = -13,
    ST_NO_DATA = -14,
    ST_NOT_WATCHED = -16,
    ST_GPU_IS_LOST = -18,
    ST_CONNECTION_NOT_VALID = -21,
    ST_MAX_LIMIT = -24,
    ST_DUPLICATE_KEY = -26,
    ST_INSUFFICIENT_SIZE = -31,
    ST_MODULE_NOT_LOADED = -33,
    ST_GPUS_DETACHED = -67,
};

// Entity groups.
enum { GLOBAL, GPU, VGPU, SWITCH, GI, CI, LINK, CPU, CORE, CONNECTX };

enum {
    MAX_GPUS = 32,
    MAX_SWITCHES = 12,
    MAX_CPUS = 8,
    MAX_GROUPS = 64,
    MAX_GROUP_ENTITIES = 1024,
    MAX_FIELDS_PER_GROUP = 127,
    MAX_SWITCH_PORTS = 256,
    MAX_LINKS = 36,
    MAX_LINKS_V4 = 18,
    MAX_CORES = 1024,
    MAX_MIG_ENTITIES = 448,
};

#define HANDLE_EMBEDDED 0x7fffffffu
#define HANDLE_GARBAGE 0x14u
#define GROUP_ALL_GPUS 0x7fffffffu
#define GROUP_ALL_SWITCHES 0x7ffffffeu

#define INT32_BLANK 0x7ffffff0
#define INT64_BLANK 0x7ffffffffffffff0LL
#define FP64_BLANK 140737488355328.0
#define STR_BLANK "<<<NULL>>>"

typedef struct { uint32_t group, id; } entity_t;
SIZE(entity_t, 8);

typedef union { int64_t i64; double dbl; char str[256]; unsigned char blob[4096]; } payload_t;

typedef struct {
    uint32_t version;
    uint16_t field_id, field_type;
    int32_t status;
    int64_t ts;
    payload_t value;
} value_v1;
SIZE(value_v1, 4120);
AT(value_v1, field_type, 6);
AT(value_v1, status, 8);
AT(value_v1, ts, 16);
AT(value_v1, value, 24);

typedef struct {
    uint32_t version, group, entity;
    uint16_t field_id, field_type;
    int32_t status;
    uint32_t unused;
    int64_t ts;
    payload_t value;
} value_v2;
SIZE(value_v2, 4128);
AT(value_v2, entity, 8);
AT(value_v2, field_id, 12);
AT(value_v2, status, 16);
AT(value_v2, ts, 24);
AT(value_v2, value, 32);

typedef int (*entity_callback)(int32_t group, uint32_t entity, value_v1 *values, int32_t n, void *user);

typedef struct { char short_name[10], unit[4]; int16_t width; } output_format;
SIZE(output_format, 16);

typedef struct {
    uint16_t id;
    char type;
    uint8_t size;
    char tag[48];
    int32_t scope, nvml_id;
    uint32_t level;
    const output_format *format;
} field_meta;
SIZE(field_meta, 72);
AT(field_meta, tag, 4);
AT(field_meta, scope, 52);
AT(field_meta, level, 60);
AT(field_meta, format, 64);

typedef struct { uint32_t version, persist; } connect_v1;
typedef struct { uint32_t version, persist, timeout_ms, unix_socket; } connect_v2;
typedef struct { uint32_t version, persist, timeout_ms; } connect_v3;
SIZE(connect_v1, 8);
SIZE(connect_v2, 16);
SIZE(connect_v3, 12);

typedef struct {
    uint32_t version;
    int32_t mode;
    word handle;
    const char *log_file;
    int32_t severity;
    uint32_t deny_count;
    uint32_t deny[10];
} start_v1;
SIZE(start_v1, 72);
AT(start_v1, handle, 8);
AT(start_v1, log_file, 16);
AT(start_v1, severity, 24);
AT(start_v1, deny, 32);

typedef struct {
    uint32_t version;
    int32_t mode;
    word handle;
    const char *log_file;
    int32_t severity;
    uint32_t deny_count;
    const char *account;
    uint32_t deny[10];
} start_v2;
SIZE(start_v2, 80);
AT(start_v2, account, 32);
AT(start_v2, deny, 40);

typedef struct {
    uint32_t version;
    int32_t mode;
    word handle;
    const char *log_file;
    int32_t severity;
    uint32_t deny_count;
    const char *account;
    uint32_t deny[16];
} start_v3;
SIZE(start_v3, 104);
AT(start_v3, deny, 40);

typedef struct { uint32_t version; char text[512]; } version_info;
SIZE(version_info, 516);

typedef struct { uint32_t version, overall; } engine_health;
SIZE(engine_health, 8);

typedef struct {
    uint32_t version, count;
    struct { uint32_t id, status; } modules[16];
} module_statuses;
SIZE(module_statuses, 136);

typedef struct { uint32_t version, mem, sm; } clock_set;
typedef struct { uint32_t version, count; clock_set sets[256]; } clock_sets;
typedef struct { uint32_t version, slowdown, shutdown; } thermals;
typedef struct { uint32_t version, current, standard, enforced, min, max; } power_limits;
typedef struct { uint32_t version, bar1_total, fb_total, fb_used, fb_free; } memory_usage;
typedef struct { uint32_t version, persistence, mig, confidential; } device_settings;
typedef struct {
    uint32_t version;
    char brand[256], name[256], pci[256], serial[256], uuid[256], vbios[256], inforom[256];
    uint32_t pci_device, pci_subsystem;
    char driver[256];
    uint32_t virtualization;
} identifiers;
SIZE(clock_sets, 3080);
SIZE(identifiers, 2064);
AT(identifiers, pci, 516);
AT(identifiers, uuid, 1028);
AT(identifiers, pci_device, 1796);
AT(identifiers, driver, 1804);
AT(identifiers, virtualization, 2060);

typedef struct {
    uint32_t version;
    clock_sets clocks;
    thermals thermal;
    power_limits power;
    identifiers ids;
    memory_usage memory;
    device_settings settings;
} attributes_v3;
SIZE(attributes_v3, 5220);
AT(attributes_v3, thermal, 3084);
AT(attributes_v3, power, 3096);
AT(attributes_v3, ids, 3120);
AT(attributes_v3, memory, 5184);
AT(attributes_v3, settings, 5204);

typedef struct {
    entity_t entity, parent;
    char gpu_uuid[128];
    uint32_t nvml_gpu, nvml_gi, nvml_ci, profile, slices;
} mig_entry;
SIZE(mig_entry, 164);
AT(mig_entry, nvml_gpu, 144);
AT(mig_entry, slices, 160);

typedef struct { uint32_t version, count; mig_entry list[MAX_MIG_ENTITIES]; } mig_hierarchy;
SIZE(mig_hierarchy, 73480);

typedef struct { uint32_t version, count; char name[256]; entity_t list[MAX_GROUP_ENTITIES]; } group_info_v3;
SIZE(group_info_v3, 8456);

typedef struct { uint32_t version, count; word id; char name[256]; uint16_t fields[128]; } field_group_info;
SIZE(field_group_info, 528);

typedef struct { uint32_t version; word group; uint32_t systems; int64_t interval; double keep; } health_set;
SIZE(health_set, 40);
AT(health_set, group, 8);
AT(health_set, systems, 16);
AT(health_set, interval, 24);
AT(health_set, keep, 32);

typedef struct { uint32_t system, health; char text[1024]; uint32_t code; entity_t entity; } incident;
SIZE(incident, 1044);
AT(incident, code, 1032);
AT(incident, entity, 1036);

typedef struct { uint32_t version, overall, count; incident list[1024]; } health_response;
SIZE(health_response, 1069068);

typedef struct { uint32_t entity, state[MAX_LINKS_V4]; } gpu_links_v3;
typedef struct { uint32_t entity, state[MAX_LINKS]; } gpu_links_v4;
typedef struct { uint32_t entity, state[MAX_SWITCH_PORTS]; } switch_links;
typedef struct {
    uint32_t version, gpu_count;
    gpu_links_v3 gpus[MAX_GPUS];
    uint32_t switch_count;
    switch_links switches[MAX_SWITCHES];
} link_status_v4;
typedef struct {
    uint32_t version, gpu_count;
    gpu_links_v4 gpus[MAX_GPUS];
    uint32_t switch_count;
    switch_links switches[MAX_SWITCHES];
} link_status_v5;
SIZE(link_status_v4, 14780);
AT(link_status_v4, switch_count, 2440);
SIZE(link_status_v5, 17084);
AT(link_status_v5, switch_count, 4744);

typedef struct { uint32_t version, count; struct { uint32_t entity, state[MAX_GPUS]; } gpus[MAX_GPUS]; } p2p_status;
SIZE(p2p_status, 4232);

typedef struct { uint32_t gpu, path, links; } gpu_path_v1;
typedef struct { uint32_t version; uint64_t affinity[8]; uint32_t count; gpu_path_v1 paths[MAX_GPUS - 1]; } topology_v1;
typedef struct { uint32_t gpu; uint64_t path, links; } gpu_path_v2;
typedef struct { uint32_t version; uint64_t affinity[8]; uint32_t count; gpu_path_v2 paths[MAX_GPUS - 1]; } topology_v2;
SIZE(topology_v1, 448);
AT(topology_v1, paths, 76);
SIZE(topology_v2, 824);
AT(topology_v2, paths, 80);

typedef struct { uint32_t version; uint64_t mask[MAX_CORES / 64]; } owned_cores;
SIZE(owned_cores, 136);
AT(owned_cores, mask, 8);
typedef struct { uint32_t version, count; struct { uint32_t id; owned_cores cores; } cpus[MAX_CPUS]; } cpu_hierarchy_v1;
typedef struct {
    uint32_t version, count;
    struct { uint32_t id; owned_cores cores; char serial[256]; } cpus[MAX_CPUS];
} cpu_hierarchy_v2;
SIZE(cpu_hierarchy_v1, 1160);
SIZE(cpu_hierarchy_v2, 3208);

typedef struct { uint16_t major, minor; uint32_t count; uint16_t fields[64]; } metric_group;
typedef struct { uint32_t version, unused, gpu, count; metric_group groups[10]; } metric_groups;
SIZE(metric_group, 136);
SIZE(metric_groups, 1376);
AT(metric_groups, groups, 16);

typedef struct { uint32_t version; int64_t bytes; } engine_memory;
typedef struct { uint32_t version; double total, kernel, user; } engine_cpu;
SIZE(engine_memory, 16);
SIZE(engine_cpu, 32);

#endif
