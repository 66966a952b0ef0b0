// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

#include "sim.h"

static void write_payload(payload_t *to, const field_meta *f, sample_t s)
{
    if (f->type == 's')
        snprintf(to->str, sizeof(to->str), "%s", s.text ? s.text : STR_BLANK);
    else if (f->type != 'b' || s.status)
        to->i64 = s.number.i64;
}

// write_v1 writes what the library has to say. All else in the record keeps its poison.
static void write_v1(value_v1 *v, const field_meta *f, sample_t s)
{
    v->version = VERSION_WORD(value_v1, 1);
    v->field_id = f->id;
    v->field_type = (uint16_t)f->type;
    v->status = s.status;
    v->ts = s.ts;
    write_payload(&v->value, f, s);
}

// What one callback will be told. Texts are interned, so they outlive the lock.
typedef struct { entity_t entity; const field_meta *field; sample_t sample; } record_t;
typedef struct { record_t *list; size_t count, capacity; } records_t;

static bool add_record(records_t *r, entity_t e, const field_meta *f, sample_t sample)
{
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 512;
        record_t *list = realloc(r->list, capacity * sizeof(*list));

        if (!list)
            return false;
        r->list = list;
        r->capacity = capacity;
    }
    r->list[r->count++] = (record_t){ e, f, sample };
    return true;
}

// deliver runs without the lock: the callback may call the library again.
static void deliver(records_t *r, entity_callback callback, void *user)
{
    value_v1 *v = malloc(sizeof(*v));
    int stop = !v;

    if (v)
        memset(v, POISON, sizeof(*v));
    for (size_t i = 0; i < r->count && !stop; i++) {
        const record_t *at = &r->list[i];

        write_v1(v, at->field, at->sample);
        stop = callback((int32_t)at->entity.group, at->entity.id, v, 1, user);
        memset(v, POISON, offsetof(value_v1, value) + sizeof(v->value.str));
    }
    free(v);
    free(r->list);
}

EXPORT int dcgmGetLatestValues_v2(word handle, word group, word fields, entity_callback callback, void *user)
{
    entity_t list[MAX_GROUP_ENTITIES];
    const field_group_t *g;
    records_t records = { 0 };
    bool fits = true;
    int n, rc = enter_engine(CALL_dcgmGetLatestValues_v2, handle);

    if (rc)
        return rc;
    if (!callback)
        return leave(misuse(ST_BADPARAM, "dcgmGetLatestValues_v2", "NULL callback"));
    n = look_up("dcgmGetLatestValues_v2", handle, group, fields, list, &g, &rc);
    for (int i = 0; i < n && fits; i++)
        for (int j = 0; j < g->count && fits; j++) {
            const field_meta *f = field_by_id(g->fields[j]);

            fits = add_record(&records, list[i], f, series_latest(list[i], f));
        }
    leave(0);
    deliver(&records, callback, user);
    return fits ? rc : ST_MEMORY;
}

// add_since adds what is kept of one field since a time, in order. -16 if it is not watched.
static int add_since(records_t *r, entity_t e, const field_meta *f, int64_t since, int64_t *newest)
{
    series_t *s = series_find(field_home(e, f), f->id);

    if (!s || !s->watcher_count)
        return ST_NOT_WATCHED;
    series_advance(s, now_us());
    for (int i = 0; i < s->count; i++) {
        sample_t sample = s->ring[(s->head + i) % s->capacity];

        if (sample.ts < since)
            continue;
        if (!add_record(r, e, f, sample))
            return ST_MEMORY;
        if (sample.ts > *newest)
            *newest = sample.ts;
    }
    return ST_OK;
}

// A field that is not watched ends the call, after what came before it was told.
EXPORT int dcgmGetValuesSince_v2(word handle, word group, word fields, int64_t since, int64_t *next,
                                 entity_callback callback, void *user)
{
    entity_t list[MAX_GROUP_ENTITIES];
    const field_group_t *g;
    records_t records = { 0 };
    int64_t newest = since - 1;
    int n, rc = enter_engine(CALL_dcgmGetValuesSince_v2, handle);

    if (rc)
        return rc;
    if (!callback || !next)
        return leave(misuse(ST_BADPARAM, "dcgmGetValuesSince_v2", "NULL callback or next"));
    *next = 0;
    n = look_up("dcgmGetValuesSince_v2", handle, group, fields, list, &g, &rc);
    for (int i = 0; i < n && !rc; i++)
        for (int j = 0; j < g->count && !rc; j++)
            rc = add_since(&records, list[i], field_by_id(g->fields[j]), since, &newest);
    leave(0);
    deliver(&records, callback, user);
    if (!rc)
        *next = newest + 1;
    return rc;
}

// read_cached and read_live are the two kinds of read that need no group.
static sample_t read_cached(entity_t e, const field_meta *f)
{
    return entity_exists(e) ? series_latest(e, f) : blank(f->type, 0, ST_NOT_WATCHED);
}

static sample_t read_live(entity_t e, const field_meta *f)
{
    int gpu = gpu_of(e);
    const override_t *told = find_override(field_home(e, f), f->id, true);
    sample_t s;

    if (!entity_exists(e))
        return blank(f->type, 0, ST_BADPARAM);
    if (told)
        return blank(f->type, 0, told->sample.status);
    if (gpu >= 0 && S.gpus[gpu].lost)
        return blank(f->type, 0, S.gpus[gpu].lost_blank ? 0 : ST_GPU_IS_LOST);
    s = measure(field_home(e, f), f, now_us());
    s.ts = s.status ? 0 : now_us();
    return s;
}

static const field_meta *unknown_field(void)
{
    static const field_meta none = { .type = 'i', .scope = 1, .level = GPU };

    return &none;
}

static void write_v2(value_v2 *v, entity_t e, uint16_t id, bool live)
{
    const field_meta *f = field_by_id(id);
    sample_t s;

    if (!f) {
        f = unknown_field();
        s = blank('i', 0, ST_UNKNOWN_FIELD);
    } else {
        s = live ? read_live(e, f) : read_cached(e, f);
    }
    memset(v, POISON, sizeof(*v));
    v->version = VERSION_WORD(value_v2, 2);
    v->group = e.group;
    v->entity = e.id;
    v->field_id = id;
    v->field_type = (uint16_t)f->type;
    v->status = s.status;
    v->ts = s.ts;
    write_payload(&v->value, f, s);
}

// judge_live keeps what a live read does badly: an event fails all of it, and a
// profiling field ends the process, as it does with an engine of the real library.
static int judge_live(const entity_t *entities, uint32_t ne, const uint16_t *fields, uint32_t nf)
{
    for (uint32_t j = 0; j < nf; j++) {
        if (is_event(fields[j]))
            return ST_GENERIC_ERROR;
        for (uint32_t i = 0; i < ne && is_prof(fields[j]); i++) {
            int gpu = gpu_of(entities[i]);

            if (gpu < 0 || !gpu_ready((uint32_t)gpu) || S.gpus[gpu].prof == PROF_NONE)
                continue;
            fprintf(stderr, "dcgmsim: a live read of profiling field %u: libdcgm would crash\n", fields[j]);
            abort();
        }
    }
    return ST_OK;
}

// The order of the records is not promised, so it is not the one of the arguments.
EXPORT int dcgmEntitiesGetLatestValues(word handle, const entity_t *entities, uint32_t ne, const uint16_t *fields,
                                       uint32_t nf, uint32_t flags, value_v2 *values)
{
    int rc = enter_engine(CALL_dcgmEntitiesGetLatestValues, handle);
    uint32_t n = ne * nf;
    bool live = flags & 1;

    if (rc)
        return rc;
    if (!entities || !fields || !values)
        return leave(misuse(ST_BADPARAM, "dcgmEntitiesGetLatestValues", "NULL entities, fields or values"));
    if (ne == 0 || nf == 0 || ne > MAX_GROUP_ENTITIES || nf > 128)
        return leave(ST_BADPARAM);
    if ((rc = touch(handle, gpu_mask(entities, (int)ne))))
        return leave(rc);
    if (live && (rc = judge_live(entities, ne, fields, nf)))
        return leave(rc);
    for (uint32_t i = 0; i < ne; i++)
        for (uint32_t j = 0; j < nf; j++)
            write_v2(&values[--n], entities[i], fields[j], live);
    return leave(ST_OK);
}

static int entity_latest(enum call c, word handle, entity_t e, const uint16_t *fields, uint32_t n, value_v1 *values)
{
    int rc = enter_engine(c, handle);

    if (rc)
        return rc;
    if (!fields || !values)
        return leave(misuse(ST_BADPARAM, call_name(c), "NULL fields or values"));
    if ((rc = touch(handle, gpu_mask(&e, 1))))
        return leave(rc);
    for (uint32_t i = 0; i < n; i++) {
        const field_meta *f = field_by_id(fields[i]);

        if (!f)
            return leave(ST_BADPARAM);
        memset(&values[i], POISON, sizeof(values[i]));
        write_v1(&values[i], f, read_cached(e, f));
    }
    return leave(ST_OK);
}

EXPORT int dcgmEntityGetLatestValues(word handle, uint32_t group, int32_t entity, const uint16_t *fields, uint32_t n,
                                     value_v1 *values)
{
    return entity_latest(CALL_dcgmEntityGetLatestValues, handle, (entity_t){ group, (uint32_t)entity }, fields, n, values);
}

EXPORT int dcgmGetLatestValuesForFields(word handle, int32_t gpu, const uint16_t *fields, uint32_t n, value_v1 *values)
{
    return entity_latest(CALL_dcgmGetLatestValuesForFields, handle, (entity_t){ GPU, (uint32_t)gpu }, fields, n, values);
}
