// SPDX-License-Identifier: Apache-2.0

// The engine's cache: what is watched, and the samples kept of it.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { MOST_SAMPLES = 65536, MOST_AT_ONCE = 4096 };

static size_t bucket(entity_t e, uint16_t field)
{
    uint64_t h = ((uint64_t)e.group << 48 ^ (uint64_t)e.id << 16 ^ field) * 0x9e3779b97f4a7c15ULL;

    return h >> 52;
}

series_t *series_find(entity_t e, uint16_t field)
{
    for (series_t *s = S.series[bucket(e, field)]; s; s = s->next)
        if (s->field->id == field && s->entity.group == e.group && s->entity.id == e.id)
            return s;
    return NULL;
}

// prune keeps to the longest wish of the watchers, but always the newest sample.
static void prune(series_t *s)
{
    int most = s->max > 0 && s->max < MOST_SAMPLES ? s->max : MOST_SAMPLES;
    int64_t newest = s->ring[(s->head + s->count - 1) % s->capacity].ts;

    while (s->count > most ||
           (s->count > 1 && s->keep > 0 && s->ring[s->head].ts < newest - s->keep)) {
        s->head = (s->head + 1) % s->capacity;
        s->count--;
    }
}

static bool grow(series_t *s)
{
    int capacity = s->capacity ? s->capacity * 2 : 4;
    sample_t *ring = malloc((size_t)capacity * sizeof(*ring));

    if (!ring)
        return false;
    for (int i = 0; i < s->count; i++)
        ring[i] = s->ring[(s->head + i) % s->capacity];
    free(s->ring);
    s->ring = ring;
    s->capacity = capacity;
    s->head = 0;
    return true;
}

void series_push(series_t *s, sample_t sample)
{
    if (s->count == s->capacity && !grow(s))
        return;
    s->ring[(s->head + s->count++) % s->capacity] = sample;
    prune(s);
}

static bool readable(const series_t *s)
{
    int gpu = gpu_of(s->entity);

    return !is_event(s->field->id) && !(gpu >= 0 && S.gpus[gpu].lost) && !find_override(s->entity, s->field->id, true);
}

static void take(series_t *s, int64_t t)
{
    sample_t sample = measure(s->entity, s->field, t);

    // The first value of a profiling field has nothing to be the difference to.
    if (is_prof(s->field->id) && !s->warm)
        sample = blank(s->field->type, 0, 0);
    s->warm = true;
    sample.ts = t;
    s->last = t;
    if (sample.status == ST_NO_DATA)
        return;
    series_push(s, sample);
}

// series_advance takes the samples that have come due since the last time.
void series_advance(series_t *s, int64_t now)
{
    int64_t due = s->watcher_count && s->period > 0 ? (now - s->last) / s->period : 0;

    if (due <= 0)
        return;
    if (!readable(s)) {
        s->last += due * s->period;
        return;
    }
    if (due > MOST_AT_ONCE) {
        s->last += (due - MOST_AT_ONCE) * s->period;
        due = MOST_AT_ONCE;
    }
    while (due-- > 0)
        take(s, s->last + s->period);
}

void series_advance_all(void)
{
    int64_t now = now_us();

    for (size_t i = 0; i < LENGTH(S.series); i++)
        for (series_t *s = S.series[i]; s; s = s->next)
            series_advance(s, now);
}

// series_update takes a sample now, whether due or not; it replaces one of the same instant.
void series_update(series_t *s, int64_t now)
{
    series_advance(s, now);
    if (!readable(s) || now < s->last)
        return;
    if (s->count && s->ring[(s->head + s->count - 1) % s->capacity].ts == now) {
        if (is_prof(s->field->id))
            return;
        s->count--;
    }
    take(s, now);
}

static void agree(series_t *s)
{
    bool all = false, ever = false;

    s->period = s->keep = s->max = 0;
    for (int i = 0; i < s->watcher_count; i++) {
        const watcher_t *w = &s->watchers[i];

        if (!s->period || w->period < s->period)
            s->period = w->period;
        all |= w->max == 0;
        ever |= w->keep == 0;
        if (w->max > s->max)
            s->max = w->max;
        if (w->keep > s->keep)
            s->keep = w->keep;
    }
    if (all)
        s->max = 0;
    if (ever)
        s->keep = 0;
}

static void recall_events(series_t *s)
{
    for (int i = 0; i < S.past_count; i++) {
        const event_t *p = &S.past[i];

        if (p->field == s->field->id && p->entity.group == s->entity.group && p->entity.id == s->entity.id)
            series_push(s, p->sample);
    }
}

static series_t *series_new(entity_t e, const field_meta *f)
{
    series_t *s = calloc(1, sizeof(*s)), **at = &S.series[bucket(e, f->id)];

    if (!s)
        return NULL;
    s->entity = e;
    s->field = f;
    s->next = *at;
    *at = s;
    S.series_count++;
    return s;
}

// series_watch adds a watcher, or gives the one of the same owner its new wishes.
series_t *series_watch(entity_t e, const field_meta *f, watcher_t w)
{
    series_t *s = series_find(e, f->id);
    bool fresh = !s;
    int i = 0;

    if (fresh && !(s = series_new(e, f)))
        return NULL;
    while (i < s->watcher_count && s->watchers[i].owner != w.owner)
        i++;
    if (i == MAX_WATCHERS)
        return NULL;
    s->watchers[i] = w;
    if (i == s->watcher_count)
        s->watcher_count++;
    agree(s);
    if (!fresh)
        return s;
    s->last = now_us();
    if (is_event(f->id))
        recall_events(s);
    else if (SIM_VERSION >= 40600 && readable(s))
        take(s, s->last);
    return s;
}

static void series_free(series_t **at)
{
    series_t *s = *at;

    *at = s->next;
    free(s->ring);
    free(s);
    S.series_count--;
}

static bool drop_watcher(series_t *s, word owner)
{
    for (int i = 0; i < s->watcher_count; i++)
        if (s->watchers[i].owner == owner) {
            s->watchers[i] = s->watchers[--s->watcher_count];
            agree(s);
            return true;
        }
    return false;
}

bool series_unwatch(entity_t e, const field_meta *f, word owner)
{
    series_t **at = &S.series[bucket(e, f->id)];
    series_t *s = series_find(e, f->id);

    if (!s || !drop_watcher(s, owner))
        return false;
    while (*at != s)
        at = &(*at)->next;
    if (!s->watcher_count)
        series_free(at);
    return true;
}

void series_drop_owner(word owner)
{
    for (size_t i = 0; i < LENGTH(S.series); i++)
        for (series_t **at = &S.series[i]; *at;) {
            drop_watcher(*at, owner);
            if ((*at)->watcher_count)
                at = &(*at)->next;
            else
                series_free(at);
        }
}

void series_drop_gpu(uint32_t gpu)
{
    for (size_t i = 0; i < LENGTH(S.series); i++)
        for (series_t **at = &S.series[i]; *at;)
            if (gpu_of((*at)->entity) == (int)gpu)
                series_free(at);
            else
                at = &(*at)->next;
}

void series_drop_gone(void)
{
    for (size_t i = 0; i < LENGTH(S.series); i++)
        for (series_t **at = &S.series[i]; *at;)
            if (entity_exists((*at)->entity))
                at = &(*at)->next;
            else
                series_free(at);
}

// series_latest is what a cached read returns.
sample_t series_latest(entity_t e, const field_meta *f)
{
    entity_t home = field_home(e, f);
    series_t *s = series_find(home, f->id);
    const override_t *told = find_override(home, f->id, true);
    int gpu = gpu_of(home);

    if (!s || !s->watcher_count)
        return blank(f->type, 0, ST_NOT_WATCHED);
    if (told)
        return blank(f->type, 0, told->sample.status);
    if (gpu >= 0 && S.gpus[gpu].lost && !is_event(f->id))
        return blank(f->type, 0, S.gpus[gpu].lost_blank ? 0 : ST_GPU_IS_LOST);
    series_advance(s, now_us());
    if (!s->count)
        return blank(f->type, 0, ST_NO_DATA);
    return s->ring[(s->head + s->count - 1) % s->capacity];
}

// record_event keeps an event for its watchers. What happened before the library was
// loaded is kept for whoever watches first.
void record_event(entity_t e, uint16_t field, int64_t value, bool same_ts, int64_t ago)
{
    series_t *s = series_find(e, field);
    sample_t sample = { .ts = now_us() - ago, .number.i64 = value };

    if (s && s->count) {
        int64_t last = s->ring[(s->head + s->count - 1) % s->capacity].ts;

        if (same_ts || sample.ts <= last)
            sample.ts = same_ts ? last : last + 1;
    }
    if (s && s->watcher_count)
        series_push(s, sample);
    else if (S.loading && S.past_count < (int)LENGTH(S.past))
        S.past[S.past_count++] = (event_t){ e, field, sample };
}
