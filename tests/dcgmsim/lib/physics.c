// SPDX-License-Identifier: Apache-2.0

// What the fields read. Every value is a function of the entity and the time, so that
// samples can be taken late, in order, and the same again.

#include <math.h>
#include <string.h>

#include "sim.h"

#define TURN 6.283185307179586

enum { FB_RESERVED = 540 };

// blank is a value that is not there: kind 0 no data, 1 not found, 2 not supported, 3
// not permitted.
sample_t blank(char type, int kind, int status)
{
    static const char *const texts[] = { STR_BLANK, "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>" };
    sample_t s = { .status = status };

    if (type == 'd')
        s.number.dbl = FP64_BLANK + kind;
    else if (type == 's')
        s.text = texts[kind];
    else
        s.number.i64 = INT64_BLANK + kind;
    return s;
}

static sample_t whole(double v)
{
    return (sample_t){ .number.i64 = (int64_t)v };
}

static sample_t text(const char *v)
{
    return (sample_t){ .text = intern(v) };
}

const override_t *find_override(entity_t e, uint16_t field, bool is_status)
{
    for (int i = 0; i < S.override_count; i++) {
        const override_t *o = &S.overrides[i];

        if (o->field == field && o->is_status == is_status && o->entity.id == e.id && o->entity.group == e.group)
            return o;
    }
    return NULL;
}

static double seconds(int64_t t)
{
    return (double)(t - S.base) / 1e6;
}

// load goes up and down once a minute, out of step from GPU to GPU.
static double load(double phase, int64_t t)
{
    return 0.5 + 0.4 * sin(TURN * seconds(t) / 60 + phase);
}

static double watts(uint32_t gpu, int64_t t)
{
    return 70 + 600 * load(gpu, t);
}

// millijoules is the integral of watts, so the two always agree.
static double millijoules(uint32_t gpu, int64_t t)
{
    double s = seconds(t), swing = cos(gpu) - cos(TURN * s / 60 + gpu);

    return 5e9 + 1e8 * gpu + 1000 * (370 * s + 240 * 60 / TURN * swing);
}

static sample_t framebuffer(uint16_t field, uint32_t total, double l)
{
    double reserved = total < 20000 ? FB_RESERVED / 8 : FB_RESERVED;
    double used = floor(total * (0.1 + 0.5 * l));

    switch (field) {
    case 250:
        return whole(total);
    case 251:
        return whole(total - used - reserved);
    case 252:
        return whole(used);
    case 253:
        return whole(reserved);
    default:
        return (sample_t){ .number.dbl = used / (total - reserved) };
    }
}

static bool is_framebuffer(uint16_t field)
{
    return field >= 250 && field <= 254;
}

static sample_t profile(const field_meta *f, double l, int64_t t, double share)
{
    if (f->type == 'd')
        return (sample_t){ .number.dbl = l * (1 - 0.1 * (f->id % 8)) };
    if (f->id >= 1076)
        return whole(1e9 * share * seconds(t) + 1e12);
    return whole(1e6 * share * l * (f->id % 16 + 1));
}

static sample_t gpu_text(uint32_t id, uint16_t field)
{
    const gpu_t *g = &S.gpus[id];

    switch (field) {
    case 50:
        return text(g->model);
    case 51:
        return text(g->arch >= 8 ? "NVIDIA" : "Tesla");
    case 53:
        return text(g->serial);
    case 54:
        return text(g->uuid);
    case 56:
        return text("2.1");
    case 57:
        return text(g->pci);
    case 80:
        return text("7.16");
    case 82:
        return text("G520.0200.00.05");
    case 85:
        return text("96.00.74.00.01");
    default:
        return blank('s', 2, 0);
    }
}

static sample_t gpu_clock(const gpu_t *g, uint16_t field, double l)
{
    switch (field) {
    case 100:
        return whole(345 + 1635 * l);
    case 101:
        return whole(g->arch >= 9 ? 2619 : 1593);
    case 110:
    case 113:
        return whole(1980);
    case 111:
    case 114:
        return whole(2619);
    default:
        return blank('i', 2, 0);
    }
}

static sample_t gpu_identity(uint32_t id, const field_meta *f)
{
    const gpu_t *g = &S.gpus[id];

    switch (f->id) {
    case 52:
        return whole(id);
    case 55:
        return whole(g->minor);
    case 63:
        return whole(g->arch << 16);
    case 66:
    case 86:
        return whole(1);
    case 67:
        return whole(g->mig);
    case 69:
        return whole(g->max_mig);
    case 235:
    case 237:
        return whole(5);
    case 236:
    case 238:
        return whole(16);
    default:
        return blank(f->type, 2, 0);
    }
}

static sample_t gpu_level(uint32_t id, const field_meta *f, int64_t t)
{
    const gpu_t *g = &S.gpus[id];
    double l = load(id, t);

    switch (f->id) {
    case 140:
        return whole(30 + 55 * l);
    case 150:
        return whole(25 + 50 * l);
    case 155:
    case 157:
        return (sample_t){ .number.dbl = watts(id, t) };
    case 156:
        return whole(millijoules(id, t));
    case 158:
    case 159:
        return whole(f->id == 158 ? 87 : 92);
    case 160:
    case 163:
    case 164:
        return (sample_t){ .number.dbl = 700 };
    case 161:
    case 162:
        return (sample_t){ .number.dbl = f->id == 161 ? 200 : 700 };
    case 200:
    case 201:
        return whole(1e5 * l);
    case 203:
    case 204:
        if (g->mig)
            return blank('i', 2, 0);
        return whole(f->id == 203 ? 100 * l : 60 * l);
    case 449:
        return g->links ? whole(20.0 * g->links * l) : blank('i', 2, 0);
    case 526:
        return whole(0);
    }
    if (f->id >= 440 && f->id < 440 + 6)
        return f->id - 440u < g->links ? whole(20.0 * l) : blank('i', 2, 0);
    if (f->id >= 100 && f->id < 115 && f->id != 112)
        return gpu_clock(g, f->id, l);
    if (f->type == 'i' && ((f->id >= 240 && f->id < 246) || (f->id >= 300 && f->id < 440)))
        return g->links == 0 && f->id >= 400 ? blank('i', 2, 0) : whole(0);
    if (f->id == 112 || f->id == 190 || f->id == 202 || f->id == 206 || f->id == 207)
        return whole(0);
    return gpu_identity(id, f);
}

static sample_t gpu_field(uint32_t id, const field_meta *f, int64_t t)
{
    const gpu_t *g = &S.gpus[id];

    if (f->level == SWITCH || f->level == LINK || f->level == CPU || f->level == CORE || f->level == CONNECTX)
        return blank(f->type, 0, ST_NO_DATA);
    if (is_prof(f->id))
        return prof_supported(g, f->id) ? profile(f, load(id, t), t, 1) : blank(f->type, 2, 0);
    if (is_framebuffer(f->id))
        return framebuffer(f->id, g->fb, load(id, t));
    return f->type == 's' ? gpu_text(id, f->id) : gpu_level(id, f, t);
}

// instance_field is a field of a MIG entity. Those that DCGM does not keep for each
// instance repeat the GPU's value.
static sample_t instance_field(entity_t e, const field_meta *f, int64_t t)
{
    const compute_instance *ci;
    const gpu_instance *gi = find_gi(e, &ci);
    entity_t gpu = { GPU, (uint32_t)gpu_of(e) };
    char name[TEXT + 64];

    if (!gi)
        return blank(f->type, 0, ST_NO_DATA);
    double l = load(gpu.id + gi->nvml, t);
    if (is_prof(f->id) && prof_supported(&S.gpus[gpu.id], f->id)) {
        if (e.group == CI && (f->level == GPU || f->level == GI))
            return blank(f->type, 0, 0);
        return profile(f, l, t, gi->slices / 7.0);
    }
    if (is_framebuffer(f->id))
        return framebuffer(f->id, gi->fb, l);
    if (f->id == 54 && (ci || gi->ci_count))
        return text(ci ? ci->uuid : gi->cis[0].uuid);
    if (f->id == 50) {
        snprintf(name, sizeof(name), "%s MIG %s", S.gpus[gpu.id].model, gi->profile);
        return text(name);
    }
    return measure(gpu, f, t);
}

static sample_t global_field(const field_meta *f)
{
    char nvml[64];

    switch (f->id) {
    case 1:
        return text(S.driver);
    case 2:
        snprintf(nvml, sizeof(nvml), "13.%s", S.driver);
        return text(nvml);
    case 3:
        return text("dcgmsim");
    case 4:
        return whole(list_entities(GPU, false, NULL, 0));
    case 5:
        return whole(13000);
    default:
        return blank(f->type, 2, 0);
    }
}

static sample_t other_field(entity_t e, const field_meta *f, int64_t t)
{
    bool fits = f->level == e.group || (f->level == CORE && e.group == CPU);

    if (!fits)
        return blank(f->type, 0, ST_NO_DATA);
    if (f->type == 's')
        return blank('s', 2, 0);
    if (f->type == 'd')
        return (sample_t){ .number.dbl = load(e.id, t) };
    return whole(e.group == LINK ? 1e3 * seconds(t) + 1e6 : 40 + 10 * load(e.id, t));
}

// measure is the field's value at a time. A status of NO_DATA means that the entity
// never has a sample of it.
sample_t measure(entity_t e, const field_meta *f, int64_t t)
{
    const override_t *o = find_override(e, f->id, false);

    if (o)
        return o->sample;
    switch (e.group) {
    case GLOBAL:
        return global_field(f);
    case GPU:
        return gpu_field(e.id, f, t);
    case GI:
    case CI:
        return instance_field(e, f, t);
    default:
        return other_field(e, f, t);
    }
}
