// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

#include "sim.h"

static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3ULL;
    return h;
}

static uint64_t mix(uint64_t h)
{
    h = (h ^ h >> 31) * 0x9e3779b97f4a7c15ULL;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9ULL;
    return h ^ h >> 32;
}

// stable_uuid makes a UUID of a seed, the same one in every run.
void stable_uuid(char *out, size_t size, const char *prefix, const char *seed)
{
    uint64_t a = mix(hash(0xcbf29ce484222325ULL, seed)), b = mix(hash(a, seed));

    snprintf(out, size, "%s%08x-%04x-5%03x-8%03x-%012llx", prefix, (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xffff),
             (unsigned)(a & 0xfff), (unsigned)(b >> 52), (unsigned long long)(b & 0xffffffffffffULL));
}

// intern keeps one copy of each text for ever, so that samples can point at it.
const char *intern(const char *text)
{
    static struct kept { struct kept *next; char text[]; } *buckets[1024];
    struct kept **at = &buckets[hash(0xcbf29ce484222325ULL, text) % 1024];

    for (struct kept *k = *at; k; k = k->next)
        if (!strcmp(k->text, text))
            return k->text;
    struct kept *k = malloc(sizeof(*k) + strlen(text) + 1);
    if (!k)
        return "";
    strcpy(k->text, text);
    k->next = *at;
    *at = k;
    return k->text;
}

bool gpu_ready(uint32_t id)
{
    return id < MAX_GPUS && S.gpus[id].there && !S.gpus[id].detached;
}

// gi_order lists the instances as DCGM numbers them: by profile, then by NVML's id.
int gi_order(const gpu_t *g, int order[MAX_GI])
{
    for (int i = 0; i < g->gi_count; i++) {
        int at = i;
        const gpu_instance *a = &g->gis[i];

        for (; at > 0; at--) {
            const gpu_instance *b = &g->gis[order[at - 1]];

            if (b->profile_index < a->profile_index || (b->profile_index == a->profile_index && b->nvml < a->nvml))
                break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return g->gi_count;
}

int gi_id(uint32_t gpu, int running)
{
    return (int)(gpu * S.gpus[gpu].max_mig) + running;
}

// parent_gpu is the GPU of an instance's id: each GPU has max_mig ids in turn.
static int parent_gpu(uint32_t id)
{
    for (uint32_t g = 0; g < MAX_GPUS; g++)
        if (S.gpus[g].there && id / S.gpus[g].max_mig == g)
            return (int)g;
    return -1;
}

// gpu_of is the GPU that an entity is or is part of, or -1.
int gpu_of(entity_t e)
{
    switch (e.group) {
    case GPU:
        return e.id < MAX_GPUS ? (int)e.id : -1;
    case GI:
    case CI:
        return parent_gpu(e.id);
    case LINK:
        return (e.id & 0xff) == GPU ? (int)(e.id >> 24) : -1;
    default:
        return -1;
    }
}

uint64_t gpu_mask(const entity_t *list, int n)
{
    uint64_t mask = 0;

    for (int i = 0; i < n; i++) {
        int g = gpu_of(list[i]);

        if (g >= 0 && g < MAX_GPUS)
            mask |= 1ULL << g;
    }
    return mask;
}

// find_gi is the GPU instance of a GI or CI, and the compute instance of a CI.
const gpu_instance *find_gi(entity_t e, const compute_instance **ci)
{
    int gpu = gpu_of(e), order[MAX_GI], running, cis = 0;

    *ci = NULL;
    if (gpu < 0 || !gpu_ready((uint32_t)gpu) || (e.group != GI && e.group != CI))
        return NULL;
    const gpu_t *g = &S.gpus[gpu];
    int n = gi_order(g, order);
    running = (int)e.id - gi_id((uint32_t)gpu, 0);
    for (int i = 0; i < n; i++) {
        const gpu_instance *gi = &g->gis[order[i]];

        if (e.group == GI && i == running)
            return gi;
        if (e.group == CI && running < cis + gi->ci_count) {
            *ci = &gi->cis[running - cis];
            return gi;
        }
        cis += gi->ci_count;
    }
    return NULL;
}

static bool link_exists(uint32_t id)
{
    uint32_t parent = id >> 24, port = id >> 8 & 0xffff;

    if ((id & 0xff) == GPU)
        return gpu_ready(parent) && port < S.gpus[parent].links;
    return (id & 0xff) == SWITCH && parent < MAX_SWITCHES && S.switches[parent].there && port < S.switches[parent].ports;
}

bool entity_exists(entity_t e)
{
    const compute_instance *ci;

    switch (e.group) {
    case GLOBAL:
        return true;
    case GPU:
        return gpu_ready(e.id);
    case SWITCH:
        return e.id < MAX_SWITCHES && S.switches[e.id].there;
    case GI:
    case CI:
        return find_gi(e, &ci) != NULL;
    case LINK:
        return link_exists(e.id);
    case CPU:
        return e.id < MAX_CPUS && S.cpus[e.id].there;
    case CORE:
        return e.id < S.core_count;
    default:
        return false;
    }
}

bool has_cpus(void)
{
    for (int i = 0; i < MAX_CPUS; i++)
        if (S.cpus[i].there)
            return true;
    return false;
}

static int list_instances(uint32_t group, entity_t *out, int n, int max)
{
    for (uint32_t g = 0; g < MAX_GPUS; g++) {
        const gpu_t *gpu = &S.gpus[g];
        int count = 0;

        if (!gpu_ready(g))
            continue;
        for (int i = 0; i < gpu->gi_count; i++)
            count += group == GI ? 1 : gpu->gis[i].ci_count;
        for (int i = 0; i < count; i++, n++)
            if (n < max)
                out[n] = (entity_t){ group, (uint32_t)gi_id(g, i) };
    }
    return n;
}

// list_entities counts the entities of a group and writes the first max of them.
int list_entities(uint32_t group, bool only_supported, entity_t *out, int max)
{
    static const uint32_t limits[] = { [GPU] = MAX_GPUS, [SWITCH] = MAX_SWITCHES, [CPU] = MAX_CPUS, [CORE] = MAX_CORES };
    int n = 0;

    if (group == GI || group == CI)
        return list_instances(group, out, 0, max);
    if (group >= LENGTH(limits))
        return 0;
    for (uint32_t i = 0; i < limits[group]; i++) {
        entity_t e = { group, i };
        bool listed = group == GPU && !only_supported ? S.gpus[i].there : entity_exists(e);

        if (group == GPU && only_supported && S.gpus[i].lost)
            listed = false;
        if (listed && n++ < max)
            out[n - 1] = e;
    }
    return n;
}

// prof_supported says whether the GPU's profiling metrics have the field.
bool prof_supported(const gpu_t *g, uint16_t field)
{
    if (g->prof != PROF_LIST)
        return g->prof == PROF_ALL;
    for (int i = 0; i < g->prof_count; i++)
        if (g->prof_fields[i] == field)
            return true;
    return false;
}
