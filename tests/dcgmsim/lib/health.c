// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

static int set_health(enum call c, word handle, word group, uint32_t systems)
{
    entity_t list[MAX_GROUP_ENTITIES];
    group_t *g = find_group(group);
    int n, rc;

    if (!g)
        return misuse(ST_NOT_CONFIGURED, call_name(c), "a group that is not there, or not any more");
    n = group_entities(group, list);
    if ((rc = touch(handle, gpu_mask(list, n))))
        return rc;
    if (!(g = find_group(group)))
        return ST_NOT_CONFIGURED;
    g->health = systems;
    return ST_OK;
}

EXPORT int dcgmHealthSet(word handle, word group, uint32_t systems)
{
    int rc = enter_engine(CALL_dcgmHealthSet, handle);

    return rc ? rc : leave(set_health(CALL_dcgmHealthSet, handle, group, systems));
}

EXPORT int dcgmHealthSet_v2(word handle, const health_set *params)
{
    int rc = enter_engine(CALL_dcgmHealthSet_v2, handle);

    if (rc)
        return rc;
    if (!params)
        return leave(misuse(ST_BADPARAM, "dcgmHealthSet_v2", "NULL params"));
    if (params->version != VERSION_WORD(health_set, 2))
        return leave(ST_VER_MISMATCH);
    return leave(set_health(CALL_dcgmHealthSet_v2, handle, params->group, params->systems));
}

EXPORT int dcgmHealthGet(word handle, word group, uint32_t *systems)
{
    int rc = enter_engine(CALL_dcgmHealthGet, handle);
    const group_t *g;

    if (rc)
        return rc;
    if (!systems)
        return leave(misuse(ST_BADPARAM, "dcgmHealthGet", "NULL systems"));
    if (!(g = find_group(group)))
        return leave(misuse(ST_NOT_CONFIGURED, "dcgmHealthGet", "a group that is not there, or not any more"));
    *systems = g->health;
    return leave(ST_OK);
}

static bool has_member(const entity_t *list, int n, entity_t e)
{
    for (int i = 0; i < n; i++)
        if (list[i].group == e.group && list[i].id == e.id)
            return true;
    return false;
}

static void check(health_response *r, const entity_t *list, int n, uint32_t systems)
{
    for (int i = 0; i < S.fault_count; i++) {
        const fault_t *f = &S.faults[i];
        incident *at = &r->list[r->count];

        if (!(f->system & systems) || !has_member(list, n, f->entity))
            continue;
        memset(at, POISON, sizeof(*at));
        at->system = f->system;
        at->health = f->health;
        at->code = f->code;
        at->entity = f->entity;
        strcpy(at->text, f->text);
        r->count++;
        if (f->health > r->overall)
            r->overall = f->health;
    }
}

EXPORT int dcgmHealthCheck(word handle, word group, health_response *r)
{
    entity_t list[MAX_GROUP_ENTITIES];
    int n, rc = enter_engine(CALL_dcgmHealthCheck, handle);
    const group_t *g;

    if (rc)
        return rc;
    if (!r)
        return leave(misuse(ST_BADPARAM, "dcgmHealthCheck", "NULL response"));
    if (r->version != VERSION_WORD(health_response, 5))
        return leave(ST_VER_MISMATCH);
    if (!find_group(group))
        return leave(misuse(ST_NOT_CONFIGURED, "dcgmHealthCheck", "a group that is not there, or not any more"));
    n = group_entities(group, list);
    if ((rc = touch(handle, gpu_mask(list, n))))
        return leave(rc);
    if (!(g = find_group(group)))
        return leave(ST_NOT_CONFIGURED);
    n = group_entities(group, list);
    r->overall = r->count = 0;
    memset(r->list, POISON, sizeof(r->list[0]));
    check(r, list, n, g->health);
    return leave(ST_OK);
}
