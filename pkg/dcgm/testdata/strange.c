// SPDX-License-Identifier: Apache-2.0

// A library with libdcgm's names that answers as no DCGM would, to hold the binding against
// broken, hostile and very old libraries. The group that is asked about chooses what is done.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BUILD_INFO
#define BUILD_INFO "arch:x86_64;version:4.9.9;build:0"
#endif

typedef struct {
	uint32_t version;
	uint16_t field, type;
	int32_t status, unused;
	int64_t ts;
	union {
		int64_t i64;
		double dbl;
		char str[4096];
	} value;
} value_t;

typedef int (*callback_t)(int, uint32_t, value_t *, int, void *);

// beside tells the path of a file beside this library.
static const char *beside(char *path, size_t size, const char *suffix)
{
	Dl_info info;
	dladdr((void *)beside, &info);
	snprintf(path, size, "%s.%s", info.dli_fname, suffix);
	return path;
}

static void note(const char *suffix)
{
	char path[4096];
	FILE *file = fopen(beside(path, sizeof(path), suffix), "a");
	if (file != NULL) {
		fputs("x", file);
		fclose(file);
	}
}

static void wait_for(const char *suffix)
{
	char path[4096];
	beside(path, sizeof(path), suffix);
	while (access(path, F_OK) != 0)
		usleep(500);
}

#define NOTHING(name) \
	int name(void) { return 0; }

NOTHING(dcgmInit)
NOTHING(dcgmModuleGetStatuses)
NOTHING(dcgmGetDeviceAttributes)
NOTHING(dcgmGetCpuHierarchy)
NOTHING(dcgmGroupDestroy)
NOTHING(dcgmFieldGroupCreate)
NOTHING(dcgmFieldGroupDestroy)
NOTHING(dcgmWatchFields)
NOTHING(dcgmUnwatchFields)
NOTHING(dcgmUpdateAllFields)
NOTHING(dcgmHealthSet_v2)
#ifndef LACKING
NOTHING(dcgmGroupAddEntity)
NOTHING(dcgmGroupCreate)
#endif

int dcgmStartEmbedded_v2(unsigned char *params)
{
	char path[4096];
	uint64_t handle = 0x7fffffff;
	memcpy(params + 8, &handle, sizeof(handle));
	if (access(beside(path, sizeof(path), "slow"), F_OK) == 0) {
		note("starting");
		wait_for("go");
	}
	note("started");
	return 0;
}

int dcgmStopEmbedded(uint64_t handle)
{
	(void)handle;
	note("stopped");
	return 0;
}

int dcgmConnect_v2(const char *address, void *params, uint64_t *handle)
{
	(void)params;
	*handle = 0x14;
	return strcmp(address, "nobody") == 0 ? -21 : 0;
}

int dcgmDisconnect(uint64_t handle)
{
	(void)handle;
	note("disconnected");
	return 0;
}

int dcgmVersionInfo(char *info)
{
	strcpy(info + 4, BUILD_INFO);
	return 0;
}

// The engine fills its text to the last byte, without a zero.
int dcgmHostengineVersionInfo(uint64_t handle, char *info)
{
	(void)handle;
	memset(info + 4, 'x', 512);
	return 0;
}

const char *errorString(int code)
{
	(void)code;
	return NULL;
}

int dcgmGetAllDevices(uint64_t handle, uint32_t *ids, int *count)
{
	(void)handle;
	for (uint32_t i = 0; i < 32; i++)
		ids[i] = i;
	*count = INT_MAX;
	return 0;
}

int dcgmGetAllSupportedDevices(uint64_t handle, uint32_t *ids, int *count)
{
	(void)handle;
	(void)ids;
	*count = -1;
	return 0;
}

int dcgmGetEntityGroupEntities(uint64_t handle, int group, uint32_t *ids, int *count, uint32_t flags)
{
	(void)handle;
	(void)group;
	(void)ids;
	(void)flags;
	*count = INT_MAX;
	return -31;
}

int dcgmGetGpuInstanceHierarchy(uint64_t handle, char *hierarchy)
{
	(void)handle;
	memset(hierarchy + 4, 0xff, 73480 - 4);
	return 0;
}

int dcgmGetNvLinkLinkStatus(uint64_t handle, char *links)
{
	(void)handle;
	memset(links + 4, 0xff, 14780 - 4);
	return 0;
}

int dcgmGroupGetAllIds(uint64_t handle, uint64_t *ids, uint32_t *count)
{
	(void)handle;
	(void)ids;
	*count = UINT32_MAX;
	return 0;
}

int dcgmProfGetSupportedMetricGroups(uint64_t handle, char *groups)
{
	(void)handle;
	memset(groups + 12, 0xff, 1376 - 12);
	return 0;
}

int dcgmHealthCheck(uint64_t handle, uint64_t group, char *response)
{
	(void)handle;
	(void)group;
	memset(response + 4, 0xff, 1069068 - 4);
	return 0;
}

const void *DcgmFieldGetById(uint16_t id)
{
	static unsigned char meta[72];
	return id == 0 ? NULL : meta;
}

static value_t *values(int n)
{
	static __thread value_t v[8];
	memset(v, 0xA5, sizeof(v));
	for (int i = 0; i < n; i++) {
		v[i].version = 0x01001018;
		v[i].field = (uint16_t)(100 + i);
		v[i].type = 'i';
		v[i].status = 0;
		v[i].ts = 1000 + i;
		v[i].value.i64 = -i;
	}
	return v;
}

static int deliver(uint64_t group, callback_t callback, void *user)
{
	value_t *v = values(8);

	switch (group) {
	case 10: // several values in one call
		return callback(1, 7, v, 8, user) != 0;
	case 11: // the records of some other DCGM, and more behind them
		callback(1, 0, v, 1, user);
		v[0].version = 0x02001020;
		callback(1, 0, v, 1, user);
		v[0].version = 0x01001018;
		callback(1, 0, v, 1, user);
		return 0;
	case 12: // text that never ends, and an empty one
		v[0].type = v[1].type = 's';
		v[1].value.str[0] = '\0';
		memset(v[0].value.str, 'y', sizeof(v[0].value.str));
		return callback(1, 0, v, 2, user);
	case 13: // nothing, strangely
		callback(1, 0, NULL, 5, user);
		callback(1, 0, v, -5, user);
		callback(1, 0, v, 0, user);
		return 0;
	case 14: // very many
		for (uint32_t i = 0; i < 100000; i++) {
			v = values(1);
			v[0].value.i64 = i;
			if (i % 2 == 1) {
				v[0].type = 's';
				snprintf(v[0].value.str, 256, "text %u", i % 100);
			}
			if (callback(4, i, v, 1, user) != 0)
				return 0;
		}
		return 0;
	case 15: // some, then a failure
		callback(1, 0, v, 3, user);
		return -16;
	case 16: // a hang
		note("hanging");
		callback(1, 0, v, 1, user);
		wait_for("go");
		callback(1, 1, v, 1, user);
		return 0;
	case 17: // a code that no one knows
		return -999;
	default:
		return 0;
	}
}

int dcgmGetLatestValues_v2(uint64_t handle, uint64_t group, uint64_t fields, callback_t callback, void *user)
{
	(void)handle;
	(void)fields;
	return deliver(group, callback, user);
}

int dcgmGetValuesSince_v2(uint64_t handle, uint64_t group, uint64_t fields, int64_t since, int64_t *next, callback_t callback, void *user)
{
	(void)handle;
	(void)fields;
	*next = since + 1;
	return deliver(group, callback, user);
}
