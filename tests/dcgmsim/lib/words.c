// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

#include "sim.h"

bool number_word(const char *w, int64_t *out)
{
    char *end;

    *out = strtoll(w, &end, 0);
    return *w && !*end ? true : fail_line("\"%s\" is not a whole number", w);
}

bool id_word(const char *w, uint32_t *out, uint32_t limit)
{
    int64_t n;

    if (!number_word(w, &n))
        return false;
    if (n < 0 || n >= limit)
        return fail_line("%s is not below %u", w, limit);
    *out = (uint32_t)n;
    return true;
}

bool duration_word(const char *w, int64_t *us)
{
    static const struct { const char *unit; double us; } units[] = {
        { "us", 1 }, { "ms", 1e3 }, { "s", 1e6 }, { "m", 60e6 }, { "h", 3600e6 },
    };
    char *end;
    double n = strtod(w, &end);

    for (size_t i = 0; end != w && i < LENGTH(units); i++)
        if (!strcmp(end, units[i].unit)) {
            *us = (int64_t)(n * units[i].us);
            return true;
        }
    return fail_line("\"%s\" is not a duration such as 200ms or 5s", w);
}

static bool link_word(const char *w, entity_t *out)
{
    unsigned parent, port;

    if (sscanf(w, "gpu:%u:%u", &parent, &port) == 2)
        out->id = (uint32_t)GPU | (port & 0xffff) << 8 | (parent & 0xff) << 24;
    else if (sscanf(w, "switch:%u:%u", &parent, &port) == 2)
        out->id = (uint32_t)SWITCH | (port & 0xffff) << 8 | (parent & 0xff) << 24;
    else
        return fail_line("\"%s\" is not a link such as link:gpu:0:3", w);
    out->group = LINK;
    return true;
}

// entity_word reads 0 or gpu:0 (a GPU), gi:7, ci:7, switch:0, cpu:0, core:3,
// link:gpu:0:3, link:switch:0:3 or global. The ids are DCGM's.
bool entity_word(const char *w, entity_t *out)
{
    static const struct { const char *prefix; uint32_t group; } kinds[] = {
        { "gpu:", GPU }, { "gi:", GI }, { "ci:", CI }, { "switch:", SWITCH }, { "cpu:", CPU }, { "core:", CORE },
    };

    out->group = GPU;
    if (!strcmp(w, "global")) {
        *out = (entity_t){ GLOBAL, 0 };
        return true;
    }
    if (!strncmp(w, "link:", 5))
        return link_word(w + 5, out);
    for (size_t i = 0; i < LENGTH(kinds); i++)
        if (!strncmp(w, kinds[i].prefix, strlen(kinds[i].prefix))) {
            out->group = kinds[i].group;
            w += strlen(kinds[i].prefix);
            break;
        }
    return id_word(w, &out->id, 100000);
}

bool field_word(const char *w, const field_meta **out)
{
    uint32_t id;

    if (!id_word(w, &id, 65536))
        return false;
    *out = field_by_id((uint16_t)id);
    return *out ? true : fail_line("field %s is not in this version", w);
}

bool known_gpu(const char *w, gpu_t **out)
{
    uint32_t id;

    if (!id_word(w, &id, MAX_GPUS))
        return false;
    *out = &S.gpus[id];
    return (*out)->there ? true : fail_line("there is no GPU %s", w);
}
