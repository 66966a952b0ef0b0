// SPDX-License-Identifier: Apache-2.0

/*
 * A management library with next to nothing in it, as an old driver's or a broken one is: what
 * is called and is not here ends the process, as with the real one. It states the interface by
 * itself. INIT_RETURNS is what its initialisation says.
 */

#include <string.h>

#ifndef INIT_RETURNS
#define INIT_RETURNS 0
#endif

#define INVALID_ARGUMENT 2
#define INSUFFICIENT_SIZE 7
#define GPUS 2

struct gpu {
	int index;
};

static struct gpu gpus[GPUS] = {{0}, {1}};
static int users;

static int tell(char *out, unsigned int size, const char *text)
{
	if (strlen(text) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(out, text);
	return 0;
}

int nvmlInit_v2(void)
{
	if (INIT_RETURNS == 0)
		users++;
	return INIT_RETURNS;
}

int nvmlShutdown(void)
{
	if (users == 0)
		return 1;
	users--;
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (users == 0)
		return 1;
	*count = GPUS;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **gpu)
{
	if (index >= GPUS)
		return INVALID_ARGUMENT;
	*gpu = &gpus[index];
	return 0;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, unsigned int size)
{
	return tell(uuid, size, gpu->index == 0 ? "GPU-00000000-0000-0000-0000-000000000000" : "GPU-11111111-1111-1111-1111-111111111111");
}

int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned int size)
{
	(void)gpu;
	return tell(name, size, "Tesla T4");
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	return tell(version, size, "450.51.05");
}

int nvmlDeviceGetTemperature(struct gpu *gpu, int sensor, unsigned int *celsius)
{
	(void)sensor;
	*celsius = 30 + gpu->index;
	return 0;
}

/* It knows temperatures of memory and nothing else. */
struct field_value {
	unsigned int field, scope;
	long long timestamp, latency;
	unsigned int type, result;
	unsigned long long value;
};

int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field_value *values)
{
	int i;

	for (i = 0; i < count; i++) {
		values[i].result = values[i].field == 82 ? 0 : INVALID_ARGUMENT;
		values[i].type = 1;
		values[i].value = 60 + gpu->index;
	}
	return 0;
}
