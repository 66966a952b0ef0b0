// SPDX-License-Identifier: Apache-2.0

// The commands that ask what there is.

#include <stdlib.h>
#include <string.h>

#include "probe.h"

int attributes(FILE *out, uint32_t gpu)
{
    API(dcgmGetDeviceAttributes, word, uint32_t, attributes_v3 *);
    attributes_v3 *a = calloc(1, sizeof(*a));
    int rc;

    a->version = 0x03001464;
    rc = dcgmGetDeviceAttributes(handle, gpu, a);
    if (!rc)
        PRINT("%s %s %s %s mig %u fb %u\n", a->ids.uuid, a->ids.name, a->ids.pci, a->ids.driver, a->settings.mig, a->memory.fb_total);
    free(a);
    return rc;
}

int hierarchy(FILE *out)
{
    API(dcgmGetGpuInstanceHierarchy, word, mig_hierarchy *);
    mig_hierarchy *h = calloc(1, sizeof(*h));
    int rc;

    h->version = 0x02011f08;
    rc = dcgmGetGpuInstanceHierarchy(handle, h);
    for (uint32_t i = 0; !rc && i < h->count; i++) {
        const mig_entry *e = &h->list[i];

        PRINT("%u:%u in %u:%u gpu %u gi %d ci %d profile %u slices %u\n", e->entity.group, e->entity.id, e->parent.group,
              e->parent.id, e->nvml_gpu, (int)e->nvml_gi, (int)e->nvml_ci, e->profile, e->slices);
    }
    free(h);
    return rc;
}

int links(FILE *out, bool v5)
{
    API(dcgmGetNvLinkLinkStatus, word, void *);
    link_status_v5 *five = calloc(1, sizeof(*five));
    link_status_v4 *four = (link_status_v4 *)five;
    int rc;

    five->version = v5 ? 0x050042bc : 0x040039bc;
    rc = dcgmGetNvLinkLinkStatus(handle, five);
    for (uint32_t i = 0; !rc && i < five->gpu_count; i++) {
        const uint32_t *state = v5 ? five->gpus[i].state : four->gpus[i].state;

        PRINT("gpu %u", v5 ? five->gpus[i].entity : four->gpus[i].entity);
        for (int l = 0; l < (v5 ? MAX_LINKS : MAX_LINKS_V4); l++)
            PRINT(" %u", state[l]);
        PRINT("\n");
    }
    for (uint32_t i = 0; !rc && i < (v5 ? five->switch_count : four->switch_count); i++) {
        const switch_links *s = v5 ? &five->switches[i] : &four->switches[i];

        PRINT("switch %u %u %u %u\n", s->entity, s->state[0], s->state[1], s->state[2]);
    }
    free(five);
    return rc;
}

int peers(FILE *out)
{
    API(dcgmGetNvLinkP2PStatus, word, p2p_status *);
    p2p_status p = { .version = 0x01001088 };
    int rc = dcgmGetNvLinkP2PStatus(handle, &p);

    for (uint32_t i = 0; !rc && i < p.count; i++)
        PRINT("%u: %u %u %u\n", p.gpus[i].entity, p.gpus[i].state[0], p.gpus[i].state[1], p.gpus[i].state[2]);
    return rc;
}

int topology(FILE *out, uint32_t gpu, uint32_t version)
{
    API(dcgmGetDeviceTopology, word, uint32_t, void *);
    topology_v1 one = { .version = 0x010001c0 };
    topology_v2 two = { .version = 0x02000338 };
    int rc = dcgmGetDeviceTopology(handle, gpu, version == 2 ? (void *)&two : (void *)&one);

    for (uint32_t i = 0; !rc && i < (version == 2 ? two.count : one.count); i++)
        PRINT("%u: %llx %llx\n", version == 2 ? two.paths[i].gpu : one.paths[i].gpu,
              (unsigned long long)(version == 2 ? two.paths[i].path : one.paths[i].path),
              (unsigned long long)(version == 2 ? two.paths[i].links : one.paths[i].links));
    return rc;
}

int cpus(FILE *out)
{
    API(dcgmGetCpuHierarchy_v2, word, cpu_hierarchy_v2 *);
    cpu_hierarchy_v2 h = { .version = 0x02000c88 };
    int rc = dcgmGetCpuHierarchy_v2(handle, &h);

    for (uint32_t i = 0; !rc && i < h.count; i++)
        PRINT("%u %llx %llx\n", h.cpus[i].id, (unsigned long long)h.cpus[i].cores.mask[0], (unsigned long long)h.cpus[i].cores.mask[1]);
    return rc;
}

int prof(FILE *out, uint32_t gpu)
{
    API(dcgmProfGetSupportedMetricGroups, word, metric_groups *);
    metric_groups m = { .version = 0x03000560, .gpu = gpu };
    int rc = dcgmProfGetSupportedMetricGroups(handle, &m);

    for (uint32_t i = 0; !rc && i < m.count; i++)
        PRINT("%u from %u\n", m.groups[i].count, m.groups[i].fields[0]);
    return rc;
}

int list(FILE *out, uint32_t eg, int32_t room)
{
    API(dcgmGetEntityGroupEntities, word, uint32_t, uint32_t *, int32_t *, uint32_t);
    uint32_t ids[64];
    int32_t n = room;
    int rc = dcgmGetEntityGroupEntities(handle, eg, ids, &n, 0);

    PRINT("%d:", n);
    for (int i = 0; !rc && i < n; i++)
        PRINT(" %u", ids[i]);
    PRINT("\n");
    return rc;
}

int devices(FILE *out, const char *name)
{
    int (*call)(word, uint32_t *, int32_t *) = find(name);
    uint32_t ids[MAX_GPUS];
    int32_t n = 0;
    int rc = call(handle, ids, &n);

    for (int i = 0; !rc && i < n; i++)
        PRINT("%u ", ids[i]);
    PRINT("\n");
    return rc;
}

int number(const char *name, FILE *out, uint32_t gpu)
{
    int (*call)(word, uint32_t, int32_t *) = find(name);
    int32_t n = 0;
    int rc = call(handle, gpu, &n);

    if (!rc)
        PRINT("%d\n", n);
    return rc;
}

int version(FILE *out)
{
    API(dcgmVersionInfo, version_info *);
    version_info v = { .version = 0x02000204 };
    int rc = dcgmVersionInfo(&v);

    PRINT("%s\n", v.text);
    return rc;
}

int meta(FILE *out, uint16_t id)
{
    const field_meta *(*by_id)(uint16_t) = find("DcgmFieldGetById");
    const field_meta *f = by_id(id);

    if (f)
        PRINT("%u %c %s scope %d level %u\n", f->id, f->type, f->tag, f->scope, f->level);
    return f ? 0 : -1;
}

// wrong tries every versioned call with a version word of nothing.
int wrong(FILE *out)
{
    static const char *const calls[] = {
        "dcgmHostengineVersionInfo", "dcgmHostengineIsHealthy", "dcgmModuleGetStatuses", "dcgmGetGpuInstanceHierarchy",
        "dcgmGetNvLinkLinkStatus", "dcgmGetNvLinkP2PStatus", "dcgmGetCpuHierarchy", "dcgmGetCpuHierarchy_v2",
        "dcgmProfGetSupportedMetricGroups", "dcgmHealthSet_v2", "dcgmFieldGroupGetInfo",
    };
    static const char *const longer[] = { "dcgmGetDeviceAttributes", "dcgmGetDeviceTopology", "dcgmHealthCheck", "dcgmGroupGetInfo" };
    uint32_t *room = calloc(1, sizeof(health_response));

    room[0] = 0x07000008;
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
        PRINT("%s %d\n", calls[i], ((int (*)(word, void *))find(calls[i]))(handle, room));
    for (size_t i = 0; i < sizeof(longer) / sizeof(*longer); i++)
        PRINT("%s %d\n", longer[i], ((int (*)(word, word, void *))find(longer[i]))(handle, 0, room));
    free(room);
    return 0;
}
