// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

// Groups of the engine's own: all GPUs, all NVSwitches; and three of its field groups.
enum { OWN_GROUPS = 2, OWN_FIELD_GROUPS = 3 };

void reset_groups(void)
{
    static const char *const own[] = { "DCGM_ALL_SUPPORTED_GPUS", "DCGM_ALL_SUPPORTED_NVSWITCHES" };

    memset(S.groups, 0, sizeof(S.groups));
    memset(S.field_groups, 0, sizeof(S.field_groups));
    for (int i = 0; i < OWN_GROUPS; i++) {
        S.groups[i].used = S.groups[i].builtin = true;
        S.groups[i].id = (word)i;
        snprintf(S.groups[i].name, TEXT, "%s", own[i]);
    }
    for (int i = 0; i < OWN_FIELD_GROUPS; i++) {
        field_group_t *g = &S.field_groups[i];

        g->used = g->builtin = true;
        g->id = (word)i + 1;
        snprintf(g->name, TEXT, "DCGM_INTERNAL_%d", i);
        g->fields[g->count++] = 150;
    }
    S.next_group = OWN_GROUPS;
    S.next_field_group = OWN_FIELD_GROUPS + 1;
}

group_t *find_group(word id)
{
    for (int i = 0; i < MAX_GROUPS; i++)
        if (S.groups[i].used && S.groups[i].id == id)
            return &S.groups[i];
    return NULL;
}

field_group_t *find_field_group(word id)
{
    for (int i = 0; i < MAX_GROUPS; i++)
        if (S.field_groups[i].used && S.field_groups[i].id == id)
            return &S.field_groups[i];
    return NULL;
}

// group_entities writes the members of a group, at most MAX_GROUP_ENTITIES; -1: no such group.
int group_entities(word id, entity_t *out)
{
    const group_t *g = find_group(id);

    if (id == GROUP_ALL_GPUS || id == 0)
        return list_entities(GPU, true, out, MAX_GROUP_ENTITIES);
    if (id == GROUP_ALL_SWITCHES || id == 1)
        return list_entities(SWITCH, true, out, MAX_GROUP_ENTITIES);
    if (!g)
        return -1;
    memcpy(out, g->entities, (size_t)g->count * sizeof(*out));
    return g->count;
}

// drop_owner forgets all that a connection made.
void drop_owner(word owner)
{
    for (int i = 0; i < MAX_GROUPS; i++) {
        if (!S.groups[i].builtin && S.groups[i].owner == owner)
            S.groups[i].used = false;
        if (!S.field_groups[i].builtin && S.field_groups[i].owner == owner)
            S.field_groups[i].used = false;
    }
    series_drop_owner(owner);
}

static void fill_group(group_t *g, int32_t type)
{
    static const uint32_t first[] = { GPU, 0, SWITCH, GI, CI };
    static const uint32_t everything[] = { GPU, SWITCH, GI, CI, CPU, CORE };

    if (type == 5) {
        for (size_t i = 0; i < LENGTH(everything) && g->count < MAX_GROUP_ENTITIES; i++) {
            int room = MAX_GROUP_ENTITIES - g->count;
            int n = list_entities(everything[i], true, g->entities + g->count, room);

            g->count += n < room ? n : room;
        }
    } else if (type != 1) {
        g->count = list_entities(first[type], true, g->entities, MAX_GROUP_ENTITIES);
    }
}

EXPORT int dcgmGroupCreate(word handle, int32_t type, const char *name, word *id)
{
    int free = -1, used = 0, rc = enter_engine(CALL_dcgmGroupCreate, handle);

    if (rc)
        return rc;
    if (!name || !id)
        return leave(misuse(ST_BADPARAM, "dcgmGroupCreate", "NULL name or group"));
    if (type < 0 || type > 5 || strlen(name) >= TEXT)
        return leave(ST_BADPARAM);
    for (int i = 0; i < MAX_GROUPS; i++) {
        used += S.groups[i].used;
        if (!S.groups[i].used && free < 0)
            free = i;
    }
    if (used >= S.max_groups || free < 0)
        return leave(ST_MAX_LIMIT);
    group_t *g = &S.groups[free];
    memset(g, 0, sizeof(*g));
    g->used = true;
    g->owner = handle;
    g->id = S.next_group++;
    snprintf(g->name, TEXT, "%s", name);
    fill_group(g, type);
    *id = g->id;
    return leave(ST_OK);
}

EXPORT int dcgmGroupDestroy(word handle, word id)
{
    int rc = enter_engine(CALL_dcgmGroupDestroy, handle);
    group_t *g;

    if (rc)
        return rc;
    g = find_group(id);
    if (!g)
        return leave(misuse(ST_NOT_CONFIGURED, "dcgmGroupDestroy", "a group that is not there, or not any more"));
    if (g->builtin)
        return leave(ST_BADPARAM);
    g->used = false;
    return leave(ST_OK);
}

static int find_member(const group_t *g, entity_t e)
{
    for (int i = 0; i < g->count; i++)
        if (g->entities[i].group == e.group && g->entities[i].id == e.id)
            return i;
    return -1;
}

static int change_group(enum call c, word handle, word id, entity_t e, bool add)
{
    int at, rc = enter_engine(c, handle);
    group_t *g;

    if (rc)
        return rc;
    g = find_group(id);
    if (!g)
        return leave(misuse(ST_NOT_CONFIGURED, call_name(c), "a group that is not there, or not any more"));
    if ((rc = touch(handle, gpu_mask(&e, 1))))
        return leave(rc);
    if (!(g = find_group(id)))
        return leave(ST_NOT_CONFIGURED);
    at = find_member(g, e);
    if (g->builtin || (add ? at >= 0 || !entity_exists(e) || e.group == GLOBAL : at < 0))
        return leave(ST_BADPARAM);
    if (add && g->count == MAX_GROUP_ENTITIES)
        return leave(ST_MAX_LIMIT);
    if (add)
        g->entities[g->count++] = e;
    else
        memmove(&g->entities[at], &g->entities[at + 1], (size_t)(--g->count - at) * sizeof(e));
    return leave(ST_OK);
}

EXPORT int dcgmGroupAddDevice(word handle, word id, uint32_t gpu)
{
    return change_group(CALL_dcgmGroupAddDevice, handle, id, (entity_t){ GPU, gpu }, true);
}

EXPORT int dcgmGroupAddEntity(word handle, word id, uint32_t group, uint32_t entity)
{
    return change_group(CALL_dcgmGroupAddEntity, handle, id, (entity_t){ group, entity }, true);
}

EXPORT int dcgmGroupRemoveDevice(word handle, word id, uint32_t gpu)
{
    return change_group(CALL_dcgmGroupRemoveDevice, handle, id, (entity_t){ GPU, gpu }, false);
}

EXPORT int dcgmGroupRemoveEntity(word handle, word id, uint32_t group, uint32_t entity)
{
    return change_group(CALL_dcgmGroupRemoveEntity, handle, id, (entity_t){ group, entity }, false);
}

EXPORT int dcgmGroupGetInfo(word handle, word id, group_info_v3 *info)
{
    int n, rc = enter_engine(CALL_dcgmGroupGetInfo, handle);
    const group_t *g;

    if (rc)
        return rc;
    if (!info)
        return leave(misuse(ST_BADPARAM, "dcgmGroupGetInfo", "NULL info"));
    if (info->version != VERSION_WORD(group_info_v3, 3))
        return leave(ST_VER_MISMATCH);
    g = find_group(id);
    if (!g)
        return leave(misuse(ST_NOT_CONFIGURED, "dcgmGroupGetInfo", "a group that is not there, or not any more"));
    memset((char *)info + 4, POISON, sizeof(*info) - 4);
    n = group_entities(id, info->list);
    info->count = (uint32_t)(n < MAX_GROUP_ENTITIES ? n : MAX_GROUP_ENTITIES);
    snprintf(info->name, sizeof(info->name), "%s", g->name);
    return leave(ST_OK);
}

EXPORT int dcgmGroupGetAllIds(word handle, word *ids, uint32_t *count)
{
    int rc = enter_engine(CALL_dcgmGroupGetAllIds, handle);

    if (rc)
        return rc;
    if (!ids || !count)
        return leave(misuse(ST_BADPARAM, "dcgmGroupGetAllIds", "NULL list or count"));
    *count = 0;
    for (int i = 0; i < MAX_GROUPS; i++)
        if (S.groups[i].used)
            ids[(*count)++] = S.groups[i].id;
    return leave(ST_OK);
}
