// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

enum { FIRST_PROF = 1001, LAST_PROF = 1099, BIND_EVENT = 6, XID = 230, MAX_ID = 2000 };

// The type of field 877 changed in 4.6.
#define TYPE(id, type) ((id) == 877 && SIM_VERSION < 40600 ? 'i' : (type))
#define WIDTH(type) ((type) == 'i' || (type) == 'd' ? 8 : 0)

static const output_format formats[] = {
#define FIELD(id, type, level, scope, unit, tag, since) { "FIELD", unit, 8 },
#include "fields.def"
#undef FIELD
};

enum position {
#define FIELD(id, type, level, scope, unit, tag, since) POSITION_##id,
#include "fields.def"
#undef FIELD
};

static const struct { int since; field_meta meta; } fields[] = {
#define FIELD(id, type, level, scope, unit, tag, since) \
    { since, { id, TYPE(id, type), WIDTH(type), tag, scope, 0, level, &formats[POSITION_##id] } },
#include "fields.def"
#undef FIELD
};

static const uint16_t positions[MAX_ID] = {
#define FIELD(id, type, level, scope, unit, tag, since) [id] = POSITION_##id + 1,
#include "fields.def"
#undef FIELD
};

const field_meta *field_by_id(uint16_t id)
{
    if (id >= MAX_ID || !positions[id] || fields[positions[id] - 1].since > SIM_VERSION)
        return NULL;
    return &fields[positions[id] - 1].meta;
}

bool is_prof(uint16_t id)
{
    return id >= FIRST_PROF && id <= LAST_PROF;
}

bool is_event(uint16_t id)
{
    return id == BIND_EVENT || id == XID;
}

// field_home is the entity whose cache keeps the field: global ones have but one.
entity_t field_home(entity_t e, const field_meta *f)
{
    return f->scope == 0 ? (entity_t){ GLOBAL, 0 } : e;
}

EXPORT const field_meta *DcgmFieldGetById(uint16_t id)
{
    const field_meta *f;

    if (enter(CALL_DcgmFieldGetById))
        return NULL;
    f = S.inited || S.fields_inited ? field_by_id(id) : NULL;
    leave(0);
    return f;
}

EXPORT const field_meta *DcgmFieldGetByTag(const char *tag)
{
    const field_meta *f = NULL;

    if (!tag || enter(CALL_DcgmFieldGetByTag))
        return NULL;
    for (size_t i = 0; i < LENGTH(fields) && (S.inited || S.fields_inited); i++)
        if (!strcmp(fields[i].meta.tag, tag) && fields[i].since <= SIM_VERSION)
            f = &fields[i].meta;
    leave(0);
    return f;
}

EXPORT int DcgmFieldsInit(void)
{
    if (enter(CALL_DcgmFieldsInit))
        return -1;
    S.fields_inited = true;
    return leave(0);
}

EXPORT int DcgmFieldsTerm(void)
{
    if (enter(CALL_DcgmFieldsTerm))
        return -1;
    S.fields_inited = false;
    return leave(0);
}

EXPORT const char *DcgmFieldsGetEntityGroupString(uint32_t group)
{
    static const char *const names[] = {
        "None", "GPU", "vGPU", "NvSwitch", "GPU_I", "GPU_CI", "NvLink", "CPU", "CPU_CORE", "ConnectX",
    };

    return group < LENGTH(names) ? names[group] : "Unknown";
}
