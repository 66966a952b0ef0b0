// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

static int judge_field_group(int32_t n, const uint16_t *ids, const char *name)
{
    size_t length = strlen(name);

    if (n < 1 || n > MAX_FIELDS_PER_GROUP || length == 0 || length >= TEXT)
        return ST_BADPARAM;
    for (int i = 0; i < n; i++)
        if (!field_by_id(ids[i]))
            return ST_BADPARAM;
    for (int i = 0; i < MAX_GROUPS; i++)
        if (S.field_groups[i].used && !strcmp(S.field_groups[i].name, name))
            return ST_DUPLICATE_KEY;
    return ST_OK;
}

EXPORT int dcgmFieldGroupCreate(word handle, int32_t n, const uint16_t *ids, const char *name, word *id)
{
    int rc = enter_engine(CALL_dcgmFieldGroupCreate, handle);
    field_group_t *g = NULL;

    if (rc)
        return rc;
    if (!ids || !name || !id)
        return leave(misuse(ST_BADPARAM, "dcgmFieldGroupCreate", "NULL ids, name or group"));
    if ((rc = judge_field_group(n, ids, name)))
        return leave(rc);
    for (int i = 0; i < MAX_GROUPS && !g; i++)
        if (!S.field_groups[i].used)
            g = &S.field_groups[i];
    if (!g)
        return leave(ST_MAX_LIMIT);
    memset(g, 0, sizeof(*g));
    g->used = true;
    g->owner = handle;
    g->id = S.next_field_group++;
    snprintf(g->name, TEXT, "%s", name);
    memcpy(g->fields, ids, (size_t)n * sizeof(*ids));
    g->count = n;
    *id = g->id;
    return leave(ST_OK);
}

EXPORT int dcgmFieldGroupDestroy(word handle, word id)
{
    int rc = enter_engine(CALL_dcgmFieldGroupDestroy, handle);
    field_group_t *g;

    if (rc)
        return rc;
    g = find_field_group(id);
    if (!g)
        return leave(misuse(ST_NO_DATA, "dcgmFieldGroupDestroy", "a field group that is not there, or not any more"));
    if (g->builtin)
        return leave(ST_BADPARAM);
    g->used = false;
    return leave(ST_OK);
}

EXPORT int dcgmFieldGroupGetInfo(word handle, field_group_info *info)
{
    int rc = enter_engine(CALL_dcgmFieldGroupGetInfo, handle);
    const field_group_t *g;
    word id;

    if (rc)
        return rc;
    if (!info)
        return leave(misuse(ST_BADPARAM, "dcgmFieldGroupGetInfo", "NULL info"));
    if (info->version != VERSION_WORD(field_group_info, 1))
        return leave(ST_VER_MISMATCH);
    id = info->id;
    if (!(g = find_field_group(id)))
        return leave(ST_NO_DATA);
    memset((char *)info + 4, POISON, sizeof(*info) - 4);
    info->id = id;
    info->count = (uint32_t)g->count;
    snprintf(info->name, sizeof(info->name), "%s", g->name);
    memcpy(info->fields, g->fields, (size_t)g->count * sizeof(*g->fields));
    return leave(ST_OK);
}
