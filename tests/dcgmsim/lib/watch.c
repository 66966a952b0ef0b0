// SPDX-License-Identifier: Apache-2.0

#include "sim.h"

static uint64_t group_mask(word id)
{
    entity_t list[MAX_GROUP_ENTITIES];
    int n = group_entities(id, list);

    return n > 0 ? gpu_mask(list, n) : 0;
}

// look_up finds both groups after the GPUs in them have let the call through; the
// count of entities, or -1 with rc.
int look_up(const char *call, word handle, word group, word fields, entity_t *list, const field_group_t **out, int *rc)
{
    if (group_entities(group, list) < 0 || !find_field_group(fields)) {
        bool bad_group = group_entities(group, list) < 0;

        *rc = misuse(bad_group ? ST_NOT_CONFIGURED : ST_NO_DATA, call, "a group that is not there, or not any more");
        return -1;
    }
    if ((*rc = touch(handle, group_mask(group))))
        return -1;
    *out = find_field_group(fields);
    int n = group_entities(group, list);
    if (n >= 0 && *out)
        return n;
    *rc = ST_NOT_CONFIGURED;
    return -1;
}

static int watch_one(entity_t e, const field_meta *f, watcher_t w)
{
    int gpu = gpu_of(e);

    if (gpu >= 0 && gpu < MAX_GPUS && S.gpus[gpu].there && S.gpus[gpu].detached)
        return SIM_VERSION >= 40500 ? ST_GPUS_DETACHED : ST_BADPARAM;
    if (!entity_exists(e))
        return ST_BADPARAM;
    if (gpu >= 0 && is_prof(f->id) && S.gpus[gpu].prof == PROF_NONE)
        return ST_MODULE_NOT_LOADED;
    return series_watch(field_home(e, f), f, w) ? ST_OK : ST_MEMORY;
}

// What can be watched stays watched when something else in the groups cannot.
EXPORT int dcgmWatchFields(word handle, word group, word fields, int64_t period, double keep, int32_t max)
{
    entity_t list[MAX_GROUP_ENTITIES];
    const field_group_t *g;
    int n, rc = enter_engine(CALL_dcgmWatchFields, handle);
    watcher_t w = { handle, period, (int64_t)(keep * 1e6), max };

    if (rc)
        return rc;
    if (period <= 0 || keep < 0 || max < 0)
        return leave(ST_BADPARAM);
    n = look_up("dcgmWatchFields", handle, group, fields, list, &g, &rc);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < g->count; j++) {
            int one = watch_one(list[i], field_by_id(g->fields[j]), w);

            if (one)
                rc = one;
        }
    return leave(rc);
}

EXPORT int dcgmUnwatchFields(word handle, word group, word fields)
{
    entity_t list[MAX_GROUP_ENTITIES];
    const field_group_t *g;
    int n, rc = enter_engine(CALL_dcgmUnwatchFields, handle);

    if (rc)
        return rc;
    n = look_up("dcgmUnwatchFields", handle, group, fields, list, &g, &rc);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < g->count; j++) {
            const field_meta *f = field_by_id(g->fields[j]);

            if (!series_unwatch(field_home(list[i], f), f, handle) || f->scope == 0)
                rc = ST_NOT_WATCHED;
        }
    return leave(rc);
}

EXPORT int dcgmUpdateAllFields(word handle, int32_t wait)
{
    uint64_t mask = 0;
    int64_t now;
    int rc = enter_engine(CALL_dcgmUpdateAllFields, handle);

    if (rc)
        return rc;
    for (size_t i = 0; wait && i < LENGTH(S.series); i++)
        for (series_t *s = S.series[i]; s; s = s->next)
            mask |= gpu_mask(&s->entity, 1);
    if ((rc = touch(handle, mask)))
        return leave(rc);
    now = now_us();
    for (size_t i = 0; i < LENGTH(S.series); i++)
        for (series_t *s = S.series[i]; s; s = s->next)
            series_update(s, now);
    return leave(ST_OK);
}
