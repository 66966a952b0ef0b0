// SPDX-License-Identifier: Apache-2.0

#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stdio.h>

#include "../lib/abi.h"

#define API(name, ...) int (*name)(__VA_ARGS__) = find(#name)
#define PRINT(...) fprintf(out, __VA_ARGS__)

extern word handle;

void *find(const char *name);

int attributes(FILE *out, uint32_t gpu);
int hierarchy(FILE *out);
int links(FILE *out, bool v5);
int peers(FILE *out);
int topology(FILE *out, uint32_t gpu, uint32_t version);
int cpus(FILE *out);
int prof(FILE *out, uint32_t gpu);
int list(FILE *out, uint32_t eg, int32_t room);
int devices(FILE *out, const char *name);
int number(const char *name, FILE *out, uint32_t gpu);
int version(FILE *out);
int meta(FILE *out, uint16_t id);
int wrong(FILE *out);

#endif
