// SPDX-License-Identifier: Apache-2.0

// What the parts of the pretend library share: the machine, the engine, and the way
// into and out of a call.

#ifndef DCGMSIM_SIM_H
#define DCGMSIM_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "abi.h"

#ifndef SIM_VERSION
#error "compile with -DSIM_VERSION=40600 or another version"
#endif

#define EXPORT __attribute__((visibility("default")))
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum call {
#define CALL(name) CALL_##name,
#include "calls.def"
#undef CALL
    CALLS
};

enum { MAX_GI = 8, MAX_CI = 8, TEXT = 256, MAX_OVERRIDES = 8192, MAX_WATCHERS = 16, POISON = 0xA5 };

typedef struct { uint32_t nvml, slices; char uuid[80]; } compute_instance;
typedef struct {
    uint32_t nvml, slices, profile_index, profile_id, placement, fb;
    char profile[32], uuid[80];
    compute_instance cis[MAX_CI];
    int ci_count;
} gpu_instance;

enum prof { PROF_ALL, PROF_NONE, PROF_LIST };

/* States of the way between two GPUs, as NVML numbers them. */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

typedef struct {
    bool there, detached, lost, lost_blank, hung, mig;
    int64_t slow;
    char model[TEXT], uuid[80], pci[32], serial[32];
    uint32_t minor, fb, arch, links, max_mig;
    uint32_t link_state[MAX_LINKS], p2p[MAX_GPUS], direct[MAX_GPUS];
    gpu_instance gis[MAX_GI];
    int gi_count;
    enum prof prof;
    uint16_t prof_fields[64];
    int prof_count;
} gpu_t;

typedef struct { bool there; uint32_t ports, port_state[MAX_SWITCH_PORTS]; } switch_t;
typedef struct { bool there; uint32_t first, cores; } cpu_t;

typedef struct { int64_t ts; int32_t status; union { int64_t i64; double dbl; } number; const char *text; } sample_t;

typedef struct { entity_t entity; uint16_t field; bool is_status; sample_t sample; } override_t;

typedef struct { word owner; int64_t period, keep; int max; } watcher_t;
typedef struct series {
    struct series *next;
    entity_t entity;
    const field_meta *field;
    watcher_t watchers[MAX_WATCHERS];
    int watcher_count;
    int64_t period, keep, last;
    int max;
    bool warm;
    sample_t *ring;
    int capacity, head, count;
} series_t;

typedef struct { entity_t entity; uint16_t field; sample_t sample; } event_t;

typedef struct {
    bool used, builtin;
    word id, owner;
    char name[TEXT];
    entity_t entities[MAX_GROUP_ENTITIES];
    int count;
    uint32_t health;
} group_t;

typedef struct {
    bool used, builtin;
    word id, owner;
    char name[TEXT];
    uint16_t fields[128];
    int count;
} field_group_t;

typedef struct connection { struct connection *next; word handle; bool persist; } connection_t;

typedef struct { entity_t entity; uint32_t system, health, code; char text[1024]; } fault_t;

typedef struct { bool hung; int rc; int64_t times; } call_plan;

enum { ENGINE_BOTH, ENGINE_EMBEDDED, ENGINE_REMOTE };

// sim is everything. One mutex guards it; a call that hangs lets go of it.
struct sim {
    pthread_mutex_t lock;
    bool opened, broken, inited, fields_inited, embedded, down, strict, hang_all, loading;
    int engine;
    char address[TEXT], driver[32];
    int64_t base, frozen_at;
    bool frozen;

    gpu_t gpus[MAX_GPUS];
    switch_t switches[MAX_SWITCHES];
    cpu_t cpus[MAX_CPUS];
    uint32_t core_count;

    override_t *overrides;
    int override_count;
    event_t past[64];
    int past_count;
    fault_t faults[128];
    int fault_count;
    call_plan plans[CALLS];

    group_t groups[MAX_GROUPS];
    field_group_t field_groups[MAX_GROUPS];
    word next_group, next_field_group, next_handle;
    int max_groups;
    connection_t *connections;
    series_t *series[4096];
    int series_count;
};
extern struct sim S;

// entry.c
int enter(enum call c);
int enter_engine(enum call c, word handle);
int leave(int rc);
int touch(word handle, uint64_t gpus);
int misuse(int rc, const char *call, const char *what);
int check_handle(word handle);
int64_t now_us(void);
void sleep_us(int64_t us);

// trace.c
void trace_open(const char *library);
void trace_count(enum call c);
void trace_blocked(int change);
void trace_consumed(uint64_t bytes);
void trace_error(const char *text);
void trace_engine(void);
const char *call_name(enum call c);
int call_by_name(const char *name);

// scenario.c
void scenario_open(const char *library);
void scenario_read(void);
bool fail_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

// words.c: parsing of single words; false after fail_line
bool number_word(const char *w, int64_t *out);
bool id_word(const char *w, uint32_t *out, uint32_t limit);
bool duration_word(const char *w, int64_t *us);
bool entity_word(const char *w, entity_t *out);
bool field_word(const char *w, const field_meta **out);
bool known_gpu(const char *w, gpu_t **out);

// commands.c, faults.c, models.c
typedef bool (*command)(int n, char **words);
command find_machine_command(const char *word);
command find_fault_command(const char *word);
command find_model_command(const char *word);
void set_gpu_defaults(uint32_t id, const char *model);

// machine.c
bool entity_exists(entity_t e);
int gpu_of(entity_t e);
uint64_t gpu_mask(const entity_t *list, int n);
bool gpu_ready(uint32_t id);
int gi_order(const gpu_t *g, int order[MAX_GI]);
int gi_id(uint32_t gpu, int running);
const gpu_instance *find_gi(entity_t e, const compute_instance **ci);
int list_entities(uint32_t group, bool only_supported, entity_t *out, int max);
bool prof_supported(const gpu_t *g, uint16_t field);
void stable_uuid(char *out, size_t size, const char *prefix, const char *seed);
const char *intern(const char *text);
bool has_cpus(void);

// fields.c
const field_meta *field_by_id(uint16_t id);
bool is_prof(uint16_t id);
bool is_event(uint16_t id);
entity_t field_home(entity_t e, const field_meta *f);

// physics.c
sample_t blank(char type, int kind, int status);
sample_t measure(entity_t e, const field_meta *f, int64_t t);
const override_t *find_override(entity_t e, uint16_t field, bool is_status);

// series.c
series_t *series_find(entity_t e, uint16_t field);
series_t *series_watch(entity_t e, const field_meta *f, watcher_t w);
bool series_unwatch(entity_t e, const field_meta *f, word owner);
void series_advance(series_t *s, int64_t now);
void series_advance_all(void);
void series_update(series_t *s, int64_t now);
void series_push(series_t *s, sample_t sample);
void series_drop_owner(word owner);
void series_drop_gpu(uint32_t gpu);
void series_drop_gone(void);
sample_t series_latest(entity_t e, const field_meta *f);
void record_event(entity_t e, uint16_t field, int64_t value, bool same_ts, int64_t ago);

// groups.c
group_t *find_group(word id);
field_group_t *find_field_group(word id);
int group_entities(word id, entity_t *out);
void reset_groups(void);
void drop_owner(word owner);

// watch.c
int look_up(const char *call, word handle, word group, word fields, entity_t *list, const field_group_t **out, int *rc);

// engine.c
void detach_gpu(uint32_t id);
void attach_gpu(uint32_t id);
void close_connections(void);
void forget_remote(void);

#endif
