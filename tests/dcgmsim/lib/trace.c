// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

// The trace is a file that the test maps or reads while the library writes it.
typedef struct { char name[56]; uint64_t count; } counter_t;
typedef struct {
    char magic[8];
    uint64_t consumed, blocked, groups, field_groups, series, connections, embedded, spare;
    char error[1024];
    counter_t calls[CALLS];
} trace_t;

static trace_t private_trace;
static trace_t *trace = &private_trace;

static const char *const names[CALLS] = {
#define CALL(name) #name,
#include "calls.def"
#undef CALL
};

const char *call_name(enum call c)
{
    return names[c];
}

int call_by_name(const char *name)
{
    for (int i = 0; i < CALLS; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

void trace_open(const char *library)
{
    char path[4096];
    void *mapped;
    int file;

    snprintf(path, sizeof(path), "%s.trace", library);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0 && ftruncate(file, sizeof(trace_t)) == 0) {
        mapped = mmap(NULL, sizeof(trace_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            trace = mapped;
    }
    if (file >= 0)
        close(file);
    for (int i = 0; i < CALLS; i++)
        snprintf(trace->calls[i].name, sizeof(trace->calls[i].name), "%s", names[i]);
    memcpy(trace->magic, "dcgmsim1", 8);
}

static void add(uint64_t *to, int64_t n)
{
    __atomic_fetch_add(to, (uint64_t)n, __ATOMIC_RELAXED);
}

static void set(uint64_t *to, uint64_t n)
{
    __atomic_store_n(to, n, __ATOMIC_RELAXED);
}

void trace_count(enum call c)
{
    add(&trace->calls[c].count, 1);
}

void trace_blocked(int change)
{
    add(&trace->blocked, change);
}

void trace_consumed(uint64_t bytes)
{
    set(&trace->consumed, bytes);
}

void trace_error(const char *text)
{
    snprintf(trace->error, sizeof(trace->error), "%s", text);
}

// trace_engine shows how much the engine holds, so that a test can look for leaks.
void trace_engine(void)
{
    uint64_t groups = 0, field_groups = 0, connections = 0;

    for (int i = 0; i < MAX_GROUPS; i++) {
        groups += S.groups[i].used && !S.groups[i].builtin;
        field_groups += S.field_groups[i].used && !S.field_groups[i].builtin;
    }
    for (connection_t *c = S.connections; c; c = c->next)
        connections++;
    set(&trace->groups, groups);
    set(&trace->field_groups, field_groups);
    set(&trace->series, (uint64_t)S.series_count);
    set(&trace->connections, connections);
    set(&trace->embedded, S.embedded);
}
