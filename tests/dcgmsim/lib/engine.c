// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

#include "sim.h"

EXPORT int dcgmInit(void)
{
    int rc = enter(CALL_dcgmInit);

    if (rc)
        return rc;
    S.inited = true;
    return leave(ST_OK);
}

EXPORT int dcgmShutdown(void)
{
    int rc = enter(CALL_dcgmShutdown);

    if (rc)
        return rc;
    close_connections();
    drop_owner(HANDLE_EMBEDDED);
    S.embedded = S.inited = false;
    return leave(ST_OK);
}

static int start(int32_t mode, word *handle)
{
    if (!S.inited)
        return ST_UNINITIALIZED;
    if (mode != 1 && mode != 2)
        return ST_BADPARAM;
    if (S.engine == ENGINE_REMOTE)
        return ST_INIT_ERROR;
    S.embedded = true;
    *handle = HANDLE_EMBEDDED;
    return ST_OK;
}

EXPORT int dcgmStartEmbedded(int32_t mode, word *handle)
{
    int rc = enter(CALL_dcgmStartEmbedded);

    if (rc)
        return rc;
    if (!handle)
        return leave(misuse(ST_BADPARAM, "dcgmStartEmbedded", "NULL handle"));
    return leave(start(mode, handle));
}

// The version word says which of three layouts it is; they agree up to the handle.
EXPORT int dcgmStartEmbedded_v2(start_v1 *params)
{
    int rc = enter(CALL_dcgmStartEmbedded_v2);

    if (rc)
        return rc;
    if (!params)
        return leave(misuse(ST_BADPARAM, "dcgmStartEmbedded_v2", "NULL params"));
    if (params->version != VERSION_WORD(start_v1, 1) && params->version != VERSION_WORD(start_v2, 2) &&
        (SIM_VERSION < 40301 || params->version != VERSION_WORD(start_v3, 3)))
        return leave(ST_VER_MISMATCH);
    return leave(start(params->mode, &params->handle));
}

EXPORT int dcgmStopEmbedded(word handle)
{
    int rc = enter(CALL_dcgmStopEmbedded);

    if (rc)
        return rc;
    if (!S.inited)
        return leave(ST_UNINITIALIZED);
    if (handle != HANDLE_EMBEDDED)
        return leave(misuse(ST_BADPARAM, "dcgmStopEmbedded", "a handle that is not the embedded engine's"));
    drop_owner(HANDLE_EMBEDDED);
    S.embedded = false;
    return leave(ST_OK);
}

static bool listens(const char *address, bool unix_socket)
{
    char full[TEXT + 8];

    if (S.down || S.engine == ENGINE_EMBEDDED)
        return false;
    if (!S.address[0])
        return true;
    snprintf(full, sizeof(full), "%s%s", unix_socket ? "unix:" : "", address);
    return !strcmp(full, S.address);
}

static int connect_to(const char *address, bool unix_socket, bool persist, word *handle)
{
    connection_t *c;

    if (!S.inited)
        return ST_UNINITIALIZED;
    if (!listens(address, unix_socket)) {
        *handle = HANDLE_GARBAGE;
        return ST_CONNECTION_NOT_VALID;
    }
    if (!(c = calloc(1, sizeof(*c))))
        return ST_MEMORY;
    if (S.next_handle == HANDLE_GARBAGE)
        S.next_handle++;
    c->handle = *handle = S.next_handle++;
    c->persist = persist;
    c->next = S.connections;
    S.connections = c;
    return ST_OK;
}

EXPORT int dcgmConnect(const char *address, word *handle)
{
    int rc = enter(CALL_dcgmConnect);

    if (rc)
        return rc;
    if (!address || !handle)
        return leave(misuse(ST_BADPARAM, "dcgmConnect", "NULL address or handle"));
    return leave(connect_to(address, false, false, handle));
}

EXPORT int dcgmConnect_v2(const char *address, const connect_v2 *params, word *handle)
{
    int rc = enter(CALL_dcgmConnect_v2);

    if (rc)
        return rc;
    if (!address || !params || !handle)
        return leave(misuse(ST_BADPARAM, "dcgmConnect_v2", "NULL address, params or handle"));
    if (params->version == VERSION_WORD(connect_v1, 1))
        return leave(connect_to(address, false, params->persist, handle));
    if (params->version != VERSION_WORD(connect_v2, 2))
        return leave(ST_VER_MISMATCH);
    return leave(connect_to(address, params->unix_socket, params->persist, handle));
}

#if SIM_VERSION >= 40500
EXPORT int dcgmConnect_v3(const char *uri, const connect_v3 *params, word *handle)
{
    static const char *const schemes[] = { "tcp://", "unix://", "vsock://" };
    int rc = enter(CALL_dcgmConnect_v3);

    if (rc)
        return rc;
    if (!uri || !params || !handle)
        return leave(misuse(ST_BADPARAM, "dcgmConnect_v3", "NULL address, params or handle"));
    if (params->version != VERSION_WORD(connect_v3, 1))
        return leave(ST_VER_MISMATCH);
    for (size_t i = 0; i < LENGTH(schemes); i++)
        if (!strncmp(uri, schemes[i], strlen(schemes[i])))
            return leave(connect_to(uri + strlen(schemes[i]), i == 1, params->persist, handle));
    return leave(ST_BADPARAM);
}
#endif

static void close_connection(connection_t **at)
{
    connection_t *c = *at;

    *at = c->next;
    if (!c->persist)
        drop_owner(c->handle);
    free(c);
}

// close_connections ends every connection, as seen from the engine's side.
void close_connections(void)
{
    while (S.connections)
        close_connection(&S.connections);
}

// forget_remote is the death of the remote engine: what should persist is gone as well.
void forget_remote(void)
{
    for (word owner = 1; owner < S.next_handle; owner++)
        drop_owner(owner);
}

EXPORT int dcgmDisconnect(word handle)
{
    connection_t **at = &S.connections;
    int rc = enter_engine(CALL_dcgmDisconnect, handle);

    if (rc)
        return rc;
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    if (!*at)
        return leave(ST_BADPARAM);
    close_connection(at);
    return leave(ST_OK);
}

static int tell_version(version_info *info, const char *call)
{
    if (!info)
        return misuse(ST_BADPARAM, call, "NULL info");
    if (info->version != VERSION_WORD(version_info, 2))
        return ST_VER_MISMATCH;
    memset(info->text, POISON, sizeof(info->text));
    snprintf(info->text, sizeof(info->text),
             "version:%d.%d.%d;arch:x86_64;buildtype:Release;buildid:1;builddate:2026-01-01;commit:pretend;branch:none",
             SIM_VERSION / 10000, SIM_VERSION / 100 % 100, SIM_VERSION % 100);
    return ST_OK;
}

EXPORT int dcgmVersionInfo(version_info *info)
{
    int rc = enter(CALL_dcgmVersionInfo);

    return rc ? rc : leave(tell_version(info, "dcgmVersionInfo"));
}

EXPORT int dcgmHostengineVersionInfo(word handle, version_info *info)
{
    int rc = enter_engine(CALL_dcgmHostengineVersionInfo, handle);

    return rc ? rc : leave(tell_version(info, "dcgmHostengineVersionInfo"));
}

EXPORT int dcgmHostengineIsHealthy(word handle, engine_health *health)
{
    int rc = enter_engine(CALL_dcgmHostengineIsHealthy, handle);

    if (rc)
        return rc;
    if (!health)
        return leave(misuse(ST_BADPARAM, "dcgmHostengineIsHealthy", "NULL health"));
    if (health->version != VERSION_WORD(engine_health, 1))
        return leave(ST_VER_MISMATCH);
    health->overall = 0;
    return leave(ST_OK);
}

EXPORT int dcgmModuleGetStatuses(word handle, module_statuses *statuses)
{
    enum { MODULES = 11, HEALTH = 4, SYSMON = 9, FAILED = 2, LOADED = 3 };
    int rc = enter_engine(CALL_dcgmModuleGetStatuses, handle);

    if (rc)
        return rc;
    if (!statuses)
        return leave(misuse(ST_BADPARAM, "dcgmModuleGetStatuses", "NULL statuses"));
    if (statuses->version != VERSION_WORD(module_statuses, 1))
        return leave(ST_VER_MISMATCH);
    memset(statuses->modules, POISON, sizeof(statuses->modules));
    statuses->count = MODULES;
    for (uint32_t i = 0; i < MODULES; i++) {
        statuses->modules[i].id = i;
        statuses->modules[i].status = i == 0 || i == HEALTH ? LOADED : 0;
    }
    statuses->modules[SYSMON].status = has_cpus() ? LOADED : FAILED;
    return leave(ST_OK);
}

// A GPU that leaves or comes tells of it twice: the engine begins to look again, and is done.
static void bind_event(void)
{
    record_event((entity_t){ GLOBAL, 0 }, 6, 1, false, 0);
    record_event((entity_t){ GLOBAL, 0 }, 6, 2, false, 0);
}

void detach_gpu(uint32_t id)
{
    series_drop_gpu(id);
    S.gpus[id].detached = true;
    bind_event();
}

void attach_gpu(uint32_t id)
{
    S.gpus[id].detached = false;
    S.gpus[id].lost = false;
    bind_event();
}

#if SIM_VERSION >= 40500
static int change_driver(enum call c, word handle, void (*change)(uint32_t))
{
    int rc = enter_engine(c, handle);

    if (rc)
        return rc;
    for (uint32_t i = 0; i < MAX_GPUS; i++)
        if (S.gpus[i].there)
            change(i);
    return leave(ST_OK);
}

EXPORT int dcgmAttachDriver(word handle)
{
    return change_driver(CALL_dcgmAttachDriver, handle, attach_gpu);
}

EXPORT int dcgmDetachDriver(word handle)
{
    return change_driver(CALL_dcgmDetachDriver, handle, detach_gpu);
}
#endif

EXPORT int dcgmIntrospectGetHostengineMemoryUsage(word handle, engine_memory *memory, int32_t wait)
{
    int rc = enter_engine(CALL_dcgmIntrospectGetHostengineMemoryUsage, handle);

    (void)wait;
    if (rc)
        return rc;
    if (!memory || memory->version != VERSION_WORD(engine_memory, 1))
        return leave(memory ? ST_VER_MISMATCH : misuse(ST_BADPARAM, "dcgmIntrospectGetHostengineMemoryUsage", "NULL memory"));
    memory->bytes = 110 << 20;
    return leave(ST_OK);
}

EXPORT int dcgmIntrospectGetHostengineCpuUtilization(word handle, engine_cpu *cpu, int32_t wait)
{
    int rc = enter_engine(CALL_dcgmIntrospectGetHostengineCpuUtilization, handle);

    (void)wait;
    if (rc)
        return rc;
    if (!cpu || cpu->version != VERSION_WORD(engine_cpu, 1))
        return leave(cpu ? ST_VER_MISMATCH : misuse(ST_BADPARAM, "dcgmIntrospectGetHostengineCpuUtilization", "NULL cpu"));
    cpu->total = 0.009;
    cpu->kernel = 0.003;
    cpu->user = 0.006;
    return leave(ST_OK);
}
