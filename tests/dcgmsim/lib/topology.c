// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

enum { NOT_APPLICABLE = -1 };

static mig_entry *add_entry(mig_hierarchy *h, const gpu_t *g, entity_t entity, entity_t parent)
{
    mig_entry *e = &h->list[h->count++];

    e->entity = entity;
    e->parent = parent;
    snprintf(e->gpu_uuid, sizeof(e->gpu_uuid), "%s", g->uuid);
    return e;
}

static uint32_t ci_profile(uint32_t slices)
{
    return slices >= 7 ? 4 : slices - 1;
}

static void add_gpu(mig_hierarchy *h, uint32_t id)
{
    const gpu_t *g = &S.gpus[id];
    int order[MAX_GI], n = gi_order(g, order), cis = 0;

    for (int i = 0; i < n && h->count < MAX_MIG_ENTITIES; i++) {
        const gpu_instance *gi = &g->gis[order[i]];
        entity_t parent = { GI, (uint32_t)gi_id(id, i) };
        mig_entry *e = add_entry(h, g, parent, (entity_t){ GPU, id });

        e->nvml_gpu = id;
        e->nvml_gi = gi->nvml;
        e->nvml_ci = (uint32_t)NOT_APPLICABLE;
        e->profile = gi->profile_id;
        e->slices = gi->slices;
        for (int j = 0; j < gi->ci_count && h->count < MAX_MIG_ENTITIES; j++) {
            e = add_entry(h, g, (entity_t){ CI, (uint32_t)gi_id(id, cis++) }, parent);
            e->nvml_gpu = id;
            e->nvml_gi = gi->nvml;
            e->nvml_ci = gi->cis[j].nvml;
            e->profile = ci_profile(gi->cis[j].slices);
            e->slices = gi->cis[j].slices;
        }
    }
}

EXPORT int dcgmGetGpuInstanceHierarchy(word handle, mig_hierarchy *h)
{
    int rc = enter_engine(CALL_dcgmGetGpuInstanceHierarchy, handle);

    if (rc)
        return rc;
    if (!h)
        return leave(misuse(ST_BADPARAM, "dcgmGetGpuInstanceHierarchy", "NULL hierarchy"));
    if (h->version != VERSION_WORD(mig_hierarchy, 2))
        return leave(ST_VER_MISMATCH);
    memset((char *)h + 4, POISON, sizeof(*h) - 4);
    h->count = 0;
    for (uint32_t i = 0; i < MAX_GPUS; i++)
        if (gpu_ready(i))
            add_gpu(h, i);
    return leave(ST_OK);
}

static uint32_t switch_states(switch_links *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MAX_SWITCHES; i++)
        if (S.switches[i].there) {
            out[n].entity = i;
            memcpy(out[n++].state, S.switches[i].port_state, sizeof(out->state));
        }
    return n;
}

static void fill_v4(link_status_v4 *l)
{
    memset((char *)l + 4, POISON, sizeof(*l) - 4);
    l->gpu_count = 0;
    for (uint32_t i = 0; i < MAX_GPUS; i++)
        if (gpu_ready(i)) {
            l->gpus[l->gpu_count].entity = i;
            memcpy(l->gpus[l->gpu_count++].state, S.gpus[i].link_state, sizeof(l->gpus[0].state));
        }
    l->switch_count = switch_states(l->switches);
}

#if SIM_VERSION >= 40600
static void fill_v5(link_status_v5 *l)
{
    memset((char *)l + 4, POISON, sizeof(*l) - 4);
    l->gpu_count = 0;
    for (uint32_t i = 0; i < MAX_GPUS; i++)
        if (gpu_ready(i)) {
            l->gpus[l->gpu_count].entity = i;
            memcpy(l->gpus[l->gpu_count++].state, S.gpus[i].link_state, sizeof(l->gpus[0].state));
        }
    l->switch_count = switch_states(l->switches);
}
#endif

EXPORT int dcgmGetNvLinkLinkStatus(word handle, uint32_t *links)
{
    int rc = enter_engine(CALL_dcgmGetNvLinkLinkStatus, handle);

    if (rc)
        return rc;
    if (!links)
        return leave(misuse(ST_BADPARAM, "dcgmGetNvLinkLinkStatus", "NULL status"));
#if SIM_VERSION >= 40600
    if (*links == VERSION_WORD(link_status_v5, 5)) {
        fill_v5((link_status_v5 *)links);
        return leave(ST_OK);
    }
#endif
    if (*links != VERSION_WORD(link_status_v4, 4))
        return leave(ST_VER_MISMATCH);
    fill_v4((link_status_v4 *)links);
    return leave(ST_OK);
}

#if SIM_VERSION >= 40301
EXPORT int dcgmGetNvLinkP2PStatus(word handle, p2p_status *p)
{
    int rc = enter_engine(CALL_dcgmGetNvLinkP2PStatus, handle);

    if (rc)
        return rc;
    if (!p)
        return leave(misuse(ST_BADPARAM, "dcgmGetNvLinkP2PStatus", "NULL status"));
    if (p->version != VERSION_WORD(p2p_status, 1))
        return leave(ST_VER_MISMATCH);
    memset((char *)p + 4, POISON, sizeof(*p) - 4);
    p->count = 0;
    for (uint32_t i = 0; i < MAX_GPUS; i++)
        if (gpu_ready(i)) {
            p->gpus[p->count].entity = i;
            memcpy(p->gpus[p->count++].state, S.gpus[i].p2p, sizeof(p->gpus[0].state));
        }
    return leave(ST_OK);
}
#endif

/* A path is a bit for the number of links (bit 8 is one), or for the buses between the GPUs. */
#define PATH_SYSTEM 0x20

#define FILL_PATHS(t)                                                                  \
    do {                                                                               \
        memset((char *)(t) + 4, POISON, sizeof(*(t)) - 4);                             \
        memset((t)->affinity, 0, sizeof((t)->affinity));                               \
        (t)->affinity[0] = 0xff;                                                       \
        (t)->count = 0;                                                                \
        for (uint32_t i = 0; i < MAX_GPUS; i++)                                        \
            if (i != gpu && gpu_ready(i)) {                                            \
                uint32_t n = S.gpus[gpu].direct[i];                                    \
                (t)->paths[(t)->count].gpu = i;                                        \
                (t)->paths[(t)->count].path = n ? 0x100u << (n - 1) : PATH_SYSTEM;     \
                (t)->paths[(t)->count++].links = n ? (1u << n) - 1 : 0;                \
            }                                                                          \
    } while (0)

EXPORT int dcgmGetDeviceTopology(word handle, uint32_t gpu, uint32_t *topology)
{
    int rc = enter_engine(CALL_dcgmGetDeviceTopology, handle);

    if (rc)
        return rc;
    if (!topology)
        return leave(misuse(ST_BADPARAM, "dcgmGetDeviceTopology", "NULL topology"));
    if (!gpu_ready(gpu))
        return leave(ST_BADPARAM);
    if ((rc = touch(handle, 1ULL << gpu)))
        return leave(rc);
#if SIM_VERSION >= 40600
    if (*topology == VERSION_WORD(topology_v2, 2)) {
        FILL_PATHS((topology_v2 *)topology);
        return leave(ST_OK);
    }
#endif
    if (*topology != VERSION_WORD(topology_v1, 1))
        return leave(ST_VER_MISMATCH);
    FILL_PATHS((topology_v1 *)topology);
    return leave(ST_OK);
}

static void own(owned_cores *cores, const cpu_t *cpu)
{
    memset(cores, 0, sizeof(*cores));
    cores->version = VERSION_WORD(owned_cores, 1);
    for (uint32_t i = cpu->first; i < cpu->first + cpu->cores; i++)
        cores->mask[i / 64] |= 1ULL << i % 64;
}

EXPORT int dcgmGetCpuHierarchy(word handle, cpu_hierarchy_v1 *h)
{
    int rc = enter_engine(CALL_dcgmGetCpuHierarchy, handle);

    if (rc)
        return rc;
    if (!h)
        return leave(misuse(ST_BADPARAM, "dcgmGetCpuHierarchy", "NULL hierarchy"));
    if (h->version != VERSION_WORD(cpu_hierarchy_v1, 1))
        return leave(ST_VER_MISMATCH);
    if (!has_cpus())
        return leave(ST_MODULE_NOT_LOADED);
    memset((char *)h + 4, POISON, sizeof(*h) - 4);
    h->count = 0;
    for (uint32_t i = 0; i < MAX_CPUS; i++)
        if (S.cpus[i].there) {
            h->cpus[h->count].id = i;
            own(&h->cpus[h->count++].cores, &S.cpus[i]);
        }
    return leave(ST_OK);
}

EXPORT int dcgmGetCpuHierarchy_v2(word handle, cpu_hierarchy_v2 *h)
{
    int rc = enter_engine(CALL_dcgmGetCpuHierarchy_v2, handle);

    if (rc)
        return rc;
    if (!h)
        return leave(misuse(ST_BADPARAM, "dcgmGetCpuHierarchy_v2", "NULL hierarchy"));
    if (h->version != VERSION_WORD(cpu_hierarchy_v2, 2))
        return leave(ST_VER_MISMATCH);
    if (!has_cpus())
        return leave(ST_MODULE_NOT_LOADED);
    memset((char *)h + 4, POISON, sizeof(*h) - 4);
    h->count = 0;
    for (uint32_t i = 0; i < MAX_CPUS; i++)
        if (S.cpus[i].there) {
            h->cpus[h->count].id = i;
            snprintf(h->cpus[h->count].serial, 256, "000000017820%04u", i);
            own(&h->cpus[h->count++].cores, &S.cpus[i]);
        }
    return leave(ST_OK);
}

static void add_metric_group(metric_groups *m, uint16_t from, uint16_t to, const gpu_t *g)
{
    metric_group *group = &m->groups[m->count];

    group->count = 0;
    for (uint16_t id = from; id < to && group->count < LENGTH(group->fields); id++)
        if (field_by_id(id) && prof_supported(g, id))
            group->fields[group->count++] = id;
    if (!group->count)
        return;
    group->major = (uint16_t)m->count;
    group->minor = 0;
    m->count++;
}

EXPORT int dcgmProfGetSupportedMetricGroups(word handle, metric_groups *m)
{
    static const uint16_t starts[] = { 1001, 1040, 1084, 1100 };
    int rc = enter_engine(CALL_dcgmProfGetSupportedMetricGroups, handle);
    uint32_t gpu;

    if (rc)
        return rc;
    if (!m)
        return leave(misuse(ST_BADPARAM, "dcgmProfGetSupportedMetricGroups", "NULL groups"));
    if (m->version != VERSION_WORD(metric_groups, 3))
        return leave(ST_VER_MISMATCH);
    gpu = m->gpu;
    if (!gpu_ready(gpu))
        return leave(ST_BADPARAM);
    if ((rc = touch(handle, 1ULL << gpu)))
        return leave(rc);
    if (S.gpus[gpu].prof == PROF_NONE)
        return leave(ST_MODULE_NOT_LOADED);
    memset(m->groups, POISON, sizeof(m->groups));
    m->count = 0;
    for (size_t i = 0; i + 1 < LENGTH(starts); i++)
        add_metric_group(m, starts[i], starts[i + 1], &S.gpus[gpu]);
    return leave(ST_OK);
}

EXPORT int dcgmProfPause(word handle)
{
    int rc = enter_engine(CALL_dcgmProfPause, handle);

    return rc ? rc : leave(ST_OK);
}

EXPORT int dcgmProfResume(word handle)
{
    int rc = enter_engine(CALL_dcgmProfResume, handle);

    return rc ? rc : leave(ST_OK);
}
