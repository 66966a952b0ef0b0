// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "binding.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct symbol {
	const char *name;
	size_t offset;
	int optional;
};

#define REQUIRED(name, member) {name, offsetof(struct library, member), 0}
#define OPTIONAL(name, member) {name, offsetof(struct library, member), 1}

static const struct symbol symbols[] = {
	REQUIRED("dcgmInit", init),
	REQUIRED("dcgmStartEmbedded_v2", start_embedded),
	REQUIRED("dcgmStopEmbedded", stop_embedded),
	REQUIRED("dcgmConnect_v2", connect),
	REQUIRED("dcgmDisconnect", disconnect),
	REQUIRED("dcgmVersionInfo", version_info),
	REQUIRED("dcgmHostengineVersionInfo", engine_version_info),
	REQUIRED("errorString", error_string),
	REQUIRED("dcgmModuleGetStatuses", module_statuses),
	REQUIRED("dcgmGetAllDevices", all_devices),
	REQUIRED("dcgmGetAllSupportedDevices", supported_devices),
	OPTIONAL("dcgmGetGpuStatus", gpu_status),
	REQUIRED("dcgmGetDeviceAttributes", attributes),
	REQUIRED("dcgmGetEntityGroupEntities", entities),
	REQUIRED("dcgmGetGpuInstanceHierarchy", hierarchy),
	REQUIRED("dcgmGetCpuHierarchy", cpus),
	REQUIRED("dcgmGetNvLinkLinkStatus", links),
	OPTIONAL("dcgmGetNvLinkP2PStatus", peers),
	OPTIONAL("dcgmGetDeviceTopology", topology),
	REQUIRED("dcgmGroupCreate", create_group),
	REQUIRED("dcgmGroupDestroy", destroy_group),
	REQUIRED("dcgmGroupAddEntity", add_entity),
	REQUIRED("dcgmGroupGetAllIds", group_ids),
	REQUIRED("dcgmFieldGroupCreate", create_field_group),
	REQUIRED("dcgmFieldGroupDestroy", destroy_field_group),
	REQUIRED("dcgmWatchFields", watch),
	REQUIRED("dcgmUnwatchFields", unwatch),
	REQUIRED("dcgmUpdateAllFields", update),
	REQUIRED("dcgmGetLatestValues_v2", latest),
	REQUIRED("dcgmGetValuesSince_v2", since),
	REQUIRED("dcgmProfGetSupportedMetricGroups", metric_groups),
	REQUIRED("dcgmHealthSet_v2", set_health),
	REQUIRED("dcgmHealthCheck", check_health),
	OPTIONAL("dcgmAttachDriver", attach_driver),
	OPTIONAL("dcgmDetachDriver", detach_driver),
	REQUIRED("DcgmFieldGetById", field),
};

// find_symbols fills l from its loaded library and returns how many required symbols the
// library does not have; message gets their names.
static int find_symbols(struct library *l, char *message, size_t size)
{
	int lacking = 0;
	size_t used = 0;

	message[0] = '\0';
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *found = dlsym(l->loaded, symbols[i].name);
		memcpy((char *)l + symbols[i].offset, &found, sizeof(found));
		if (found != NULL || symbols[i].optional)
			continue;
		int n = snprintf(message + used, size - used, "%s%s", lacking > 0 ? ", " : "", symbols[i].name);
		if (n > 0)
			used = used + (size_t)n < size ? used + (size_t)n : size - 1;
		lacking++;
	}
	return lacking;
}

struct library *load_library(const char *name, char *message, size_t size, int *incomplete)
{
	*incomplete = 0;
	struct library *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		snprintf(message, size, "out of memory");
		return NULL;
	}
	l->loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (l->loaded == NULL) {
		const char *why = dlerror();
		snprintf(message, size, "%s", why != NULL ? why : "the loader does not say why");
		free(l);
		return NULL;
	}
	if (find_symbols(l, message, size) > 0) {
		*incomplete = 1;
		unload_library(l);
		return NULL;
	}
	return l;
}

void unload_library(struct library *l)
{
	dlclose(l->loaded);
	free(l);
}

int can_load(const char *name)
{
	void *loaded = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
	if (loaded == NULL)
		return 0;
	dlclose(loaded);
	return 1;
}

const char *library_path(const struct library *l)
{
	Dl_info info;
	void *symbol;

	memcpy(&symbol, &l->init, sizeof(symbol));
	return dladdr(symbol, &info) != 0 ? info.dli_fname : NULL;
}
