// SPDX-License-Identifier: Apache-2.0

#define _POSIX_C_SOURCE 200809L
#include "binding.h"

#include <stdlib.h>
#include <string.h>

enum {
	ST_MEMORY = -4,
	ST_VERSION_MISMATCH = -12,
};

struct records *new_records(void)
{
	return calloc(1, sizeof(struct records));
}

void free_records(struct records *r)
{
	if (r == NULL)
		return;
	free(r->at);
	free(r->text);
	free(r);
}

// grow makes room for more elements of a size behind those used. What it holds stays as it
// was where there is no memory for it.
static int grow(void **at, size_t *capacity, size_t used, size_t more, size_t size)
{
	if (used + more <= *capacity)
		return 0;
	size_t wanted = *capacity < 64 ? 64 : 2 * *capacity;
	while (wanted < used + more)
		wanted *= 2;
	void *grown = realloc(*at, wanted * size);
	if (grown == NULL)
		return ST_MEMORY;
	*at = grown;
	*capacity = wanted;
	return 0;
}

static int32_t keep(struct records *r, int32_t entity_group, uint32_t entity, const struct field_value *v)
{
	if (v->version != VERSION_FIELD_VALUE)
		return ST_VERSION_MISMATCH;
	if (grow((void **)&r->at, &r->capacity, r->count, 1, sizeof(*r->at)) != 0)
		return ST_MEMORY;
	struct record kept = {
		.entity_group = entity_group,
		.entity = entity,
		.field = v->field,
		.type = v->type,
		.status = v->status,
		.ts = v->ts,
	};
	if (v->type == 's') {
		size_t length = strnlen(v->value.str, sizeof(v->value.str));
		if (grow((void **)&r->text, &r->text_capacity, r->text_length, length, 1) != 0)
			return ST_MEMORY;
		if (length > 0)
			memcpy(r->text + r->text_length, v->value.str, length);
		kept.text = r->text_length;
		kept.text_length = (uint32_t)length;
		r->text_length += length;
	} else {
		memcpy(&kept.bits, &v->value, sizeof(kept.bits));
	}
	r->at[r->count++] = kept;
	return 0;
}

// keep_values is what DCGM calls for each value, on the caller's thread, while the call lasts.
// A result other than 0 ends the enumeration and is told to nobody, so it is kept in records.
static int32_t keep_values(int32_t entity_group, uint32_t entity, struct field_value *values, int32_t count, void *user)
{
	struct records *r = user;

	for (int32_t i = 0; values != NULL && i < count && r->failed == 0; i++)
		r->failed = keep(r, entity_group, entity, &values[i]);
	return r->failed;
}

static void empty(struct records *r)
{
	r->count = 0;
	r->text_length = 0;
	r->next = 0;
	r->failed = 0;
}

int32_t call_init(const struct library *l)
{
	return l->init();
}

int32_t call_start_embedded(const struct library *l, const char *log_file, int32_t severity, uint64_t *handle)
{
	struct start_embedded_v2_params params = {
		.version = VERSION_START_EMBEDDED_V2_PARAMS,
		.operation_mode = OPERATION_MODE_AUTO,
		.log_file = log_file,
		.severity = severity,
	};
	int32_t status = l->start_embedded(&params);
	*handle = params.handle;
	return status;
}

int32_t call_stop_embedded(const struct library *l, uint64_t handle)
{
	return l->stop_embedded(handle);
}

int32_t call_connect(const struct library *l, const char *address, uint32_t is_unix, uint32_t timeout_ms, uint64_t *handle)
{
	struct connect_v2_params params = {
		.version = VERSION_CONNECT_V2_PARAMS,
		.timeout_ms = timeout_ms,
		.address_is_unix_socket = is_unix,
	};
	return l->connect(address, &params, handle);
}

int32_t call_disconnect(const struct library *l, uint64_t handle)
{
	return l->disconnect(handle);
}

int32_t call_version_info(const struct library *l, struct version_info *info)
{
	info->version = VERSION_VERSION_INFO;
	return l->version_info(info);
}

int32_t call_engine_version_info(const struct library *l, uint64_t handle, struct version_info *info)
{
	info->version = VERSION_VERSION_INFO;
	return l->engine_version_info(handle, info);
}

const char *call_error_string(const struct library *l, int32_t code)
{
	return l->error_string(code);
}

int32_t call_module_statuses(const struct library *l, uint64_t handle, struct module_statuses *statuses)
{
	statuses->version = VERSION_MODULE_STATUSES;
	return l->module_statuses(handle, statuses);
}

int32_t call_devices(const struct library *l, uint64_t handle, int supported, uint32_t *ids, int32_t *count)
{
	return supported ? l->supported_devices(handle, ids, count) : l->all_devices(handle, ids, count);
}

int32_t call_gpu_status(const struct library *l, uint64_t handle, uint32_t gpu, int32_t *status)
{
	return l->gpu_status != NULL ? l->gpu_status(handle, gpu, status) : SYMBOL_MISSING;
}

int32_t call_attributes(const struct library *l, uint64_t handle, uint32_t gpu, struct device_attributes *attributes)
{
	attributes->version = VERSION_DEVICE_ATTRIBUTES;
	return l->attributes(handle, gpu, attributes);
}

int32_t call_entities(const struct library *l, uint64_t handle, int32_t group, uint32_t *ids, int32_t *count)
{
	return l->entities(handle, group, ids, count, 0);
}

struct mig_hierarchy *call_hierarchy(const struct library *l, uint64_t handle, int32_t *status)
{
	struct mig_hierarchy *hierarchy = calloc(1, sizeof(*hierarchy));
	if (hierarchy == NULL) {
		*status = ST_MEMORY;
		return NULL;
	}
	hierarchy->version = VERSION_MIG_HIERARCHY;
	*status = l->hierarchy(handle, hierarchy);
	if (*status != 0) {
		free(hierarchy);
		return NULL;
	}
	return hierarchy;
}

int32_t call_cpus(const struct library *l, uint64_t handle, struct cpu_hierarchy *hierarchy)
{
	hierarchy->version = VERSION_CPU_HIERARCHY;
	return l->cpus(handle, hierarchy);
}

int32_t call_links(const struct library *l, uint64_t handle, struct nvlink_status *links)
{
	links->version = VERSION_NVLINK_STATUS;
	return l->links(handle, links);
}

int32_t call_peers(const struct library *l, uint64_t handle, struct nvlink_p2p_status *peers)
{
	peers->version = VERSION_NVLINK_P2P_STATUS;
	return l->peers != NULL ? l->peers(handle, peers) : SYMBOL_MISSING;
}

int32_t call_topology(const struct library *l, uint64_t handle, uint32_t gpu, struct device_topology *topology)
{
	topology->version = VERSION_DEVICE_TOPOLOGY;
	return l->topology != NULL ? l->topology(handle, gpu, topology) : SYMBOL_MISSING;
}

int32_t call_create_group(const struct library *l, uint64_t handle, const char *name, uint64_t *group)
{
	return l->create_group(handle, GROUP_EMPTY, name, group);
}

int32_t call_destroy_group(const struct library *l, uint64_t handle, uint64_t group)
{
	return l->destroy_group(handle, group);
}

int32_t call_add_entity(const struct library *l, uint64_t handle, uint64_t group, int32_t entity_group, uint32_t entity)
{
	return l->add_entity(handle, group, entity_group, entity);
}

int32_t call_group_ids(const struct library *l, uint64_t handle, uint64_t *groups, uint32_t *count)
{
	return l->group_ids(handle, groups, count);
}

int32_t call_create_field_group(const struct library *l, uint64_t handle, int32_t count, const uint16_t *fields, const char *name, uint64_t *field_group)
{
	return l->create_field_group(handle, count, fields, name, field_group);
}

int32_t call_destroy_field_group(const struct library *l, uint64_t handle, uint64_t field_group)
{
	return l->destroy_field_group(handle, field_group);
}

int32_t call_watch(const struct library *l, uint64_t handle, uint64_t group, uint64_t field_group, int64_t period_us, double keep_s, int32_t samples)
{
	return l->watch(handle, group, field_group, period_us, keep_s, samples);
}

int32_t call_unwatch(const struct library *l, uint64_t handle, uint64_t group, uint64_t field_group)
{
	return l->unwatch(handle, group, field_group);
}

int32_t call_update(const struct library *l, uint64_t handle, int32_t wait)
{
	return l->update(handle, wait);
}

int32_t call_latest(const struct library *l, uint64_t handle, uint64_t group, uint64_t field_group, struct records *r)
{
	empty(r);
	int32_t status = l->latest(handle, group, field_group, keep_values, r);
	return status != 0 ? status : r->failed;
}

int32_t call_since(const struct library *l, uint64_t handle, uint64_t group, uint64_t field_group, int64_t since, struct records *r)
{
	empty(r);
	int32_t status = l->since(handle, group, field_group, since, &r->next, keep_values, r);
	return status != 0 ? status : r->failed;
}

int32_t call_metric_groups(const struct library *l, uint64_t handle, struct metric_groups *groups)
{
	groups->version = VERSION_PROF_METRIC_GROUPS;
	return l->metric_groups(handle, groups);
}

int32_t call_set_health(const struct library *l, uint64_t handle, uint64_t group, uint32_t systems, int64_t interval_us, double keep_s)
{
	struct health_set_params params = {
		.version = VERSION_HEALTH_SET_PARAMS,
		.group = group,
		.systems = systems,
		.update_interval_us = interval_us,
		.max_keep_age_s = keep_s,
	};
	return l->set_health(handle, &params);
}

struct health_response *call_check_health(const struct library *l, uint64_t handle, uint64_t group, int32_t *status)
{
	struct health_response *response = calloc(1, sizeof(*response));
	if (response == NULL) {
		*status = ST_MEMORY;
		return NULL;
	}
	response->version = VERSION_HEALTH_RESPONSE;
	*status = l->check_health(handle, group, response);
	if (*status != 0) {
		free(response);
		return NULL;
	}
	return response;
}

int32_t call_attach_driver(const struct library *l, uint64_t handle)
{
	return l->attach_driver != NULL ? l->attach_driver(handle) : SYMBOL_MISSING;
}

int32_t call_detach_driver(const struct library *l, uint64_t handle)
{
	return l->detach_driver != NULL ? l->detach_driver(handle) : SYMBOL_MISSING;
}

const struct field_meta *call_field(const struct library *l, uint16_t id)
{
	return l->field(id);
}
