// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

static int list_gpus(enum call c, word handle, bool only_supported, uint32_t *ids, int32_t *count)
{
    entity_t list[MAX_GPUS];
    int rc = enter_engine(c, handle);

    if (rc)
        return rc;
    if (!ids || !count)
        return leave(misuse(ST_BADPARAM, call_name(c), "NULL list or count"));
    memset(ids, POISON, MAX_GPUS * sizeof(*ids));
    *count = list_entities(GPU, only_supported, list, MAX_GPUS);
    for (int i = 0; i < *count; i++)
        ids[i] = list[i].id;
    return leave(ST_OK);
}

EXPORT int dcgmGetAllDevices(word handle, uint32_t *ids, int32_t *count)
{
    return list_gpus(CALL_dcgmGetAllDevices, handle, false, ids, count);
}

EXPORT int dcgmGetAllSupportedDevices(word handle, uint32_t *ids, int32_t *count)
{
    return list_gpus(CALL_dcgmGetAllSupportedDevices, handle, true, ids, count);
}

#if SIM_VERSION >= 40500
EXPORT int dcgmGetGpuStatus(word handle, uint32_t gpu, int32_t *status)
{
    enum { UNKNOWN, OK, LOST = 4, DETACHED = 7 };
    int rc = enter_engine(CALL_dcgmGetGpuStatus, handle);

    if (rc)
        return rc;
    if (!status)
        return leave(misuse(ST_BADPARAM, "dcgmGetGpuStatus", "NULL status"));
    if (gpu >= MAX_GPUS || !S.gpus[gpu].there)
        *status = UNKNOWN;
    else
        *status = S.gpus[gpu].detached ? DETACHED : S.gpus[gpu].lost ? LOST : OK;
    return leave(ST_OK);
}
#endif

#if SIM_VERSION >= 40203
EXPORT int dcgmGetGpuChipArchitecture(word handle, uint32_t gpu, int32_t *arch)
{
    int rc = enter_engine(CALL_dcgmGetGpuChipArchitecture, handle);

    if (rc)
        return rc;
    if (!arch)
        return leave(misuse(ST_BADPARAM, "dcgmGetGpuChipArchitecture", "NULL architecture"));
    if (gpu >= MAX_GPUS || !S.gpus[gpu].there)
        return leave(ST_BADPARAM);
    *arch = (int32_t)S.gpus[gpu].arch;
    return leave(ST_OK);
}
#endif

EXPORT int dcgmGetEntityGroupEntities(word handle, uint32_t group, uint32_t *ids, int32_t *count, uint32_t flags)
{
    entity_t list[MAX_CORES];
    int n, room, rc = enter_engine(CALL_dcgmGetEntityGroupEntities, handle);

    if (rc)
        return rc;
    if (!count || (!ids && *count > 0))
        return leave(misuse(ST_BADPARAM, "dcgmGetEntityGroupEntities", "NULL list or count"));
    if (group == VGPU || group == LINK)
        return leave(ST_NOT_SUPPORTED);
    if ((group == CPU || group == CORE) && !has_cpus())
        return leave(ST_MODULE_NOT_LOADED);
    if (group == GLOBAL || group > (SIM_VERSION >= 40100 ? CONNECTX : CORE))
        return leave(ST_BADPARAM);
    room = *count;
    n = list_entities(group, flags & 1, list, MAX_CORES);
    *count = n;
    if (n > room)
        return leave(ST_INSUFFICIENT_SIZE);
    for (int i = 0; i < n; i++)
        ids[i] = list[i].id;
    return leave(ST_OK);
}

static void blank_attributes(attributes_v3 *a)
{
    char *const texts[] = {
        a->ids.brand, a->ids.name, a->ids.pci, a->ids.serial, a->ids.uuid, a->ids.vbios, a->ids.inforom, a->ids.driver,
    };
    uint32_t *const numbers[] = {
        &a->thermal.slowdown,    &a->thermal.shutdown, &a->power.current,       &a->power.standard,
        &a->power.enforced,      &a->power.min,        &a->power.max,           &a->ids.pci_device,
        &a->ids.pci_subsystem,   &a->memory.fb_total,  &a->memory.bar1_total,   &a->memory.fb_used,
        &a->memory.fb_free,      &a->settings.mig,     &a->settings.persistence, &a->settings.confidential,
        &a->ids.virtualization,
    };

    memset((char *)a + 4, POISON, sizeof(*a) - 4);
    a->clocks.count = 0;
    for (size_t i = 0; i < LENGTH(texts); i++)
        strcpy(texts[i], STR_BLANK);
    for (size_t i = 0; i < LENGTH(numbers); i++)
        *numbers[i] = INT32_BLANK;
}

static void identify(identifiers *ids, uint32_t gpu)
{
    const struct { char *to; uint16_t field; } texts[] = {
        { ids->brand, 51 }, { ids->name, 50 },  { ids->pci, 57 },     { ids->serial, 53 },
        { ids->uuid, 54 },  { ids->vbios, 85 }, { ids->inforom, 82 },
    };

    for (size_t i = 0; i < LENGTH(texts); i++)
        snprintf(texts[i].to, TEXT, "%s", measure((entity_t){ GPU, gpu }, field_by_id(texts[i].field), now_us()).text);
    snprintf(ids->driver, sizeof(ids->driver), "%s", S.driver);
    ids->pci_device = 0x233010de;
    ids->pci_subsystem = 0x16c110de;
    ids->virtualization = 0;
}

static uint32_t mebibytes(uint32_t gpu, uint16_t field)
{
    sample_t s = measure((entity_t){ GPU, gpu }, field_by_id(field), now_us());

    return s.number.i64 >= INT64_BLANK ? INT32_BLANK : (uint32_t)s.number.i64;
}

// A GPU that is not there has attributes too: blank ones, and no error.
EXPORT int dcgmGetDeviceAttributes(word handle, uint32_t gpu, attributes_v3 *a)
{
    int rc = enter_engine(CALL_dcgmGetDeviceAttributes, handle);

    if (rc)
        return rc;
    if (!a)
        return leave(misuse(ST_BADPARAM, "dcgmGetDeviceAttributes", "NULL attributes"));
    if (a->version != VERSION_WORD(attributes_v3, 3))
        return leave(ST_VER_MISMATCH);
    if (gpu < MAX_GPUS && (rc = touch(handle, 1ULL << gpu)))
        return leave(rc);
    blank_attributes(a);
    if (!gpu_ready(gpu))
        return leave(ST_OK);
    identify(&a->ids, gpu);
    if (S.gpus[gpu].lost)
        return leave(ST_OK);
    a->thermal.slowdown = 87;
    a->thermal.shutdown = 92;
    a->power.current = a->power.standard = a->power.enforced = a->power.max = 700;
    a->power.min = 200;
    a->memory.fb_total = mebibytes(gpu, 250);
    a->memory.fb_used = mebibytes(gpu, 252);
    a->memory.fb_free = mebibytes(gpu, 251);
    a->memory.bar1_total = 131072;
    a->settings.persistence = 1;
    a->settings.mig = S.gpus[gpu].mig;
    a->settings.confidential = 0;
    return leave(ST_OK);
}
