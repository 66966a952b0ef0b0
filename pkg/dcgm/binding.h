// SPDX-License-Identifier: Apache-2.0

// The part of libdcgm's ABI (DCGM 4.0 and newer, 64-bit little-endian) that this package
// uses, stated by itself so that no header of DCGM is needed to build. abi.c asserts
// every size and offset. Versions are written out: a struct is asked for in the layout
// that is declared here, whatever a newer libdcgm would prefer.

#ifndef GPUMETER_DCGM_BINDING_H
#define GPUMETER_DCGM_BINDING_H

#include <stddef.h>
#include <stdint.h>

// Programs export their C functions to what they load; libdcgm shall not meet these.
#pragma GCC visibility push(hidden)

enum {
	VERSION_CONNECT_V2_PARAMS = 0x02000010,
	VERSION_START_EMBEDDED_V2_PARAMS = 0x02000050,
	VERSION_VERSION_INFO = 0x02000204,
	VERSION_MODULE_STATUSES = 0x01000088,
	VERSION_DEVICE_ATTRIBUTES = 0x03001464,
	VERSION_MIG_HIERARCHY = 0x02011f08,
	VERSION_CPU_HIERARCHY = 0x01000488,
	VERSION_NVLINK_STATUS = 0x040039bc,
	VERSION_NVLINK_P2P_STATUS = 0x01001088,
	VERSION_DEVICE_TOPOLOGY = 0x010001c0,
	VERSION_PROF_METRIC_GROUPS = 0x03000560,
	VERSION_HEALTH_SET_PARAMS = 0x02000028,
	VERSION_HEALTH_RESPONSE = 0x0510500c,
	VERSION_FIELD_VALUE = 0x01001018,
};

enum {
	OPERATION_MODE_AUTO = 1,
	GROUP_EMPTY = 1,
	MAX_GPUS = 32,
	MAX_GROUPS = 64,
	MAX_FIELDS_PER_GROUP = 127,
	// What a call returns where libdcgm does not have its symbol. DCGM's own codes are
	// small negative numbers.
	SYMBOL_MISSING = INT32_MIN,
};

struct field_meta {
	uint16_t field;
	char type;
	uint8_t size;
	char tag[48];
	int32_t scope;
	int32_t nvml_field;
	int32_t entity_level;
	const void *format;
};

struct entity_pair {
	int32_t group;
	uint32_t id;
};

struct connect_v2_params {
	uint32_t version;
	uint32_t persist_after_disconnect;
	uint32_t timeout_ms;
	uint32_t address_is_unix_socket;
};

struct start_embedded_v2_params {
	uint32_t version;
	int32_t operation_mode;
	uint64_t handle; // written by libdcgm
	const char *log_file;
	int32_t severity;
	uint32_t deny_count;
	const char *service_account;
	uint32_t deny[10];
};

struct version_info {
	uint32_t version;
	char text[512];
};

struct module_status {
	int32_t id;
	int32_t status;
};

struct module_statuses {
	uint32_t version;
	uint32_t count;
	struct module_status at[16];
};

struct device_identifiers {
	uint32_t version;
	char brand[256];
	char name[256];
	char pci_bus_id[256];
	char serial[256];
	char uuid[256];
	char vbios[256];
	char inforom_image[256];
	uint32_t pci_device;
	uint32_t pci_subsystem;
	char driver[256];
	uint32_t virtualization_mode;
};

struct device_memory {
	uint32_t version;
	uint32_t bar1_total;
	uint32_t fb_total;
	uint32_t fb_used;
	uint32_t fb_free;
};

struct device_settings {
	uint32_t version;
	uint32_t persistence_mode;
	uint32_t mig_mode;
	uint32_t confidential_compute_mode;
};

struct device_attributes {
	uint32_t version;
	unsigned char clock_sets[3080];
	unsigned char thermals[12];
	unsigned char power_limits[24];
	struct device_identifiers identifiers;
	struct device_memory memory;
	struct device_settings settings;
};

struct mig_entity {
	struct entity_pair entity;
	struct entity_pair parent;
	char gpu_uuid[128];
	uint32_t nvml_gpu;
	uint32_t nvml_instance;
	uint32_t nvml_compute_instance;
	uint32_t nvml_profile;
	uint32_t nvml_profile_slices;
};

struct mig_hierarchy {
	uint32_t version;
	uint32_t count;
	struct mig_entity at[448];
};

struct owned_cores {
	uint32_t version;
	uint64_t mask[16];
};

struct cpu {
	uint32_t id;
	struct owned_cores cores;
};

struct cpu_hierarchy {
	uint32_t version;
	uint32_t count;
	struct cpu at[8];
};

struct gpu_links {
	uint32_t gpu;
	int32_t state[18];
};

struct switch_links {
	uint32_t nvswitch;
	int32_t state[256];
};

struct nvlink_status {
	uint32_t version;
	uint32_t gpu_count;
	struct gpu_links gpus[32];
	uint32_t switch_count;
	struct switch_links switches[12];
};

struct gpu_peers {
	uint32_t gpu;
	int32_t status[32];
};

struct nvlink_p2p_status {
	uint32_t version;
	uint32_t gpu_count;
	struct gpu_peers gpus[32];
};

struct gpu_path {
	uint32_t gpu;
	int32_t path;
	uint32_t links;
};

struct device_topology {
	uint32_t version;
	uint64_t affinity[8];
	uint32_t count;
	struct gpu_path paths[31];
};

struct metric_group {
	uint16_t major;
	uint16_t minor;
	uint32_t field_count;
	uint16_t fields[64];
};

struct metric_groups {
	uint32_t version;
	uint32_t unused;
	uint32_t gpu;
	uint32_t count;
	struct metric_group at[10];
};

struct health_set_params {
	uint32_t version;
	uint64_t group;
	uint32_t systems;
	int64_t update_interval_us;
	double max_keep_age_s;
};

struct health_incident {
	uint32_t system;
	int32_t health;
	char message[1024];
	uint32_t code;
	struct entity_pair entity;
};

struct health_response {
	uint32_t version;
	int32_t overall;
	uint32_t count;
	struct health_incident at[1024];
};

// A record that libdcgm hands to the callback; the union has 4096 bytes.
struct field_value {
	uint32_t version;
	uint16_t field;
	uint16_t type;
	int32_t status;
	int64_t ts;
	union {
		int64_t i64;
		double dbl;
		char str[256];
		char blob[4096];
	} value;
};

typedef int32_t (*value_callback)(int32_t entity_group, uint32_t entity, struct field_value *values, int32_t count, void *user);

// The functions of one loaded libdcgm. Those marked optional are NULL in a library that
// is older than they are. A library is written while it is loaded and only read then.
struct library {
	void *loaded;

	int32_t (*init)(void);
	int32_t (*start_embedded)(struct start_embedded_v2_params *);
	int32_t (*stop_embedded)(uint64_t);
	int32_t (*connect)(const char *, struct connect_v2_params *, uint64_t *);
	int32_t (*disconnect)(uint64_t);
	int32_t (*version_info)(struct version_info *);
	int32_t (*engine_version_info)(uint64_t, struct version_info *);
	const char *(*error_string)(int32_t);
	int32_t (*module_statuses)(uint64_t, struct module_statuses *);
	int32_t (*all_devices)(uint64_t, uint32_t *, int32_t *);
	int32_t (*supported_devices)(uint64_t, uint32_t *, int32_t *);
	int32_t (*gpu_status)(uint64_t, uint32_t, int32_t *); // optional
	int32_t (*attributes)(uint64_t, uint32_t, struct device_attributes *);
	int32_t (*entities)(uint64_t, int32_t, uint32_t *, int32_t *, uint32_t);
	int32_t (*hierarchy)(uint64_t, struct mig_hierarchy *);
	int32_t (*cpus)(uint64_t, struct cpu_hierarchy *);
	int32_t (*links)(uint64_t, struct nvlink_status *);
	int32_t (*peers)(uint64_t, struct nvlink_p2p_status *); // optional
	int32_t (*topology)(uint64_t, uint32_t, struct device_topology *); // optional
	int32_t (*create_group)(uint64_t, int32_t, const char *, uint64_t *);
	int32_t (*destroy_group)(uint64_t, uint64_t);
	int32_t (*add_entity)(uint64_t, uint64_t, int32_t, uint32_t);
	int32_t (*group_ids)(uint64_t, uint64_t *, uint32_t *);
	int32_t (*create_field_group)(uint64_t, int32_t, const uint16_t *, const char *, uint64_t *);
	int32_t (*destroy_field_group)(uint64_t, uint64_t);
	int32_t (*watch)(uint64_t, uint64_t, uint64_t, int64_t, double, int32_t);
	int32_t (*unwatch)(uint64_t, uint64_t, uint64_t);
	int32_t (*update)(uint64_t, int32_t);
	int32_t (*latest)(uint64_t, uint64_t, uint64_t, value_callback, void *);
	int32_t (*since)(uint64_t, uint64_t, uint64_t, int64_t, int64_t *, value_callback, void *);
	int32_t (*metric_groups)(uint64_t, struct metric_groups *);
	int32_t (*set_health)(uint64_t, struct health_set_params *);
	int32_t (*check_health)(uint64_t, uint64_t, struct health_response *);
	int32_t (*attach_driver)(uint64_t); // optional
	int32_t (*detach_driver)(uint64_t); // optional
	const struct field_meta *(*field)(uint16_t);
};

// load_library opens the library that the dynamic linker finds under name. It returns NULL
// and writes why into message: what the loader said, or the required symbols that the file
// does not have, separated by commas, with *incomplete set.
struct library *load_library(const char *name, char *message, size_t size, int *incomplete);

// unload_library undoes load_library; nothing of the library may be in use.
void unload_library(struct library *);

// can_load tells whether the dynamic linker finds a library under name.
int can_load(const char *name);

// library_path is the file that the loader took the library from, or NULL.
const char *library_path(const struct library *);

// What a record was taken of and what it says, without the 4 kB of DCGM's own record.
struct record {
	int32_t entity_group;
	uint32_t entity;
	uint16_t field;
	uint16_t type;
	int32_t status;
	int64_t ts;
	uint64_t bits;
	size_t text; // offset into records.text
	uint32_t text_length;
};

// Records that grow as they are filled and keep their memory when they are filled again.
struct records {
	struct record *at;
	size_t count, capacity;
	char *text;
	size_t text_length, text_capacity;
	int64_t next;   // written by read_since
	int32_t failed; // DCGM's code of what went wrong in the callback, or 0
};

struct records *new_records(void);
void free_records(struct records *);

// The calls, each with DCGM's return code or SYMBOL_MISSING.
int32_t call_init(const struct library *);
int32_t call_start_embedded(const struct library *, const char *log_file, int32_t severity, uint64_t *handle);
int32_t call_stop_embedded(const struct library *, uint64_t handle);
int32_t call_connect(const struct library *, const char *address, uint32_t is_unix, uint32_t timeout_ms, uint64_t *handle);
int32_t call_disconnect(const struct library *, uint64_t handle);
int32_t call_version_info(const struct library *, struct version_info *);
int32_t call_engine_version_info(const struct library *, uint64_t handle, struct version_info *);
const char *call_error_string(const struct library *, int32_t code);
int32_t call_module_statuses(const struct library *, uint64_t handle, struct module_statuses *);
int32_t call_devices(const struct library *, uint64_t handle, int supported, uint32_t *ids, int32_t *count);
int32_t call_gpu_status(const struct library *, uint64_t handle, uint32_t gpu, int32_t *status);
int32_t call_attributes(const struct library *, uint64_t handle, uint32_t gpu, struct device_attributes *);
int32_t call_entities(const struct library *, uint64_t handle, int32_t group, uint32_t *ids, int32_t *count);
// The result is the caller's to free; it is NULL where status is not 0.
struct mig_hierarchy *call_hierarchy(const struct library *, uint64_t handle, int32_t *status);
int32_t call_cpus(const struct library *, uint64_t handle, struct cpu_hierarchy *);
int32_t call_links(const struct library *, uint64_t handle, struct nvlink_status *);
int32_t call_peers(const struct library *, uint64_t handle, struct nvlink_p2p_status *);
int32_t call_topology(const struct library *, uint64_t handle, uint32_t gpu, struct device_topology *);
int32_t call_create_group(const struct library *, uint64_t handle, const char *name, uint64_t *group);
int32_t call_destroy_group(const struct library *, uint64_t handle, uint64_t group);
int32_t call_add_entity(const struct library *, uint64_t handle, uint64_t group, int32_t entity_group, uint32_t entity);
int32_t call_group_ids(const struct library *, uint64_t handle, uint64_t *groups, uint32_t *count);
int32_t call_create_field_group(const struct library *, uint64_t handle, int32_t count, const uint16_t *fields, const char *name, uint64_t *field_group);
int32_t call_destroy_field_group(const struct library *, uint64_t handle, uint64_t field_group);
int32_t call_watch(const struct library *, uint64_t handle, uint64_t group, uint64_t field_group, int64_t period_us, double keep_s, int32_t samples);
int32_t call_unwatch(const struct library *, uint64_t handle, uint64_t group, uint64_t field_group);
int32_t call_update(const struct library *, uint64_t handle, int32_t wait);
int32_t call_latest(const struct library *, uint64_t handle, uint64_t group, uint64_t field_group, struct records *);
int32_t call_since(const struct library *, uint64_t handle, uint64_t group, uint64_t field_group, int64_t since, struct records *);
int32_t call_metric_groups(const struct library *, uint64_t handle, struct metric_groups *);
int32_t call_set_health(const struct library *, uint64_t handle, uint64_t group, uint32_t systems, int64_t interval_us, double keep_s);
// The result is the caller's to free; it is NULL where status is not 0.
struct health_response *call_check_health(const struct library *, uint64_t handle, uint64_t group, int32_t *status);
int32_t call_attach_driver(const struct library *, uint64_t handle);
int32_t call_detach_driver(const struct library *, uint64_t handle);
const struct field_meta *call_field(const struct library *, uint16_t id);

#pragma GCC visibility pop

#endif
