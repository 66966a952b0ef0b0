// SPDX-License-Identifier: Apache-2.0

// The words for what happens to the machine: values, events, faults.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

static void forget_override(entity_t e, uint16_t field, bool is_status)
{
    override_t *o = (override_t *)find_override(e, field, is_status);

    if (o)
        *o = S.overrides[--S.override_count];
}

static bool keep_override(entity_t e, uint16_t field, bool is_status, sample_t sample)
{
    override_t *o = (override_t *)find_override(e, field, is_status);

    if (!S.overrides && !(S.overrides = calloc(MAX_OVERRIDES, sizeof(*S.overrides))))
        return fail_line("no memory");
    if (!o && S.override_count == MAX_OVERRIDES)
        return fail_line("more than %d values set", MAX_OVERRIDES);
    if (!o)
        o = &S.overrides[S.override_count++];
    *o = (override_t){ e, field, is_status, sample };
    return true;
}

static bool value_word(const char *w, char type, sample_t *out)
{
    static const char *const kinds[] = { "blank", "notfound", "notsupported", "notperm" };
    char *end;

    for (int i = 0; i < (int)LENGTH(kinds); i++)
        if (!strcmp(kinds[i], w)) {
            *out = blank(type, i, 0);
            return true;
        }
    *out = (sample_t){ 0 };
    if (type == 's')
        out->text = intern(w);
    else if (type == 'i')
        return number_word(w, &out->number.i64);
    else if (type == 'd') {
        out->number.dbl = strtod(w, &end);
        return *w && !*end ? true : fail_line("\"%s\" is not a number", w);
    } else
        return fail_line("a binary field has no value here");
    return true;
}

static bool field_command(int n, char **words)
{
    entity_t e;
    const field_meta *f;
    sample_t sample;

    if (n != 4)
        return fail_line("want: field ENTITY FIELD VALUE|blank|notfound|notsupported|notperm|default");
    if (!entity_word(words[1], &e) || !field_word(words[2], &f))
        return false;
    e = field_home(e, f);
    if (!strcmp(words[3], "default")) {
        forget_override(e, f->id, false);
        forget_override(e, f->id, true);
        return true;
    }
    return value_word(words[3], f->type, &sample) && keep_override(e, f->id, false, sample);
}

static bool text_command(int n, char **words)
{
    entity_t e;
    const field_meta *f;
    char text[TEXT] = "";

    if (n < 3)
        return fail_line("want: text ENTITY FIELD WORDS...");
    if (!entity_word(words[1], &e) || !field_word(words[2], &f))
        return false;
    if (f->type != 's')
        return fail_line("field %s is no text", words[2]);
    for (int i = 3; i < n; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i > 3 ? " " : "", words[i]);
    return keep_override(field_home(e, f), f->id, false, (sample_t){ .text = intern(text) });
}

static bool status_command(int n, char **words)
{
    entity_t e;
    const field_meta *f;
    int64_t code;

    if (n != 4)
        return fail_line("want: status ENTITY FIELD CODE");
    if (!entity_word(words[1], &e) || !field_word(words[2], &f) || !number_word(words[3], &code))
        return false;
    e = field_home(e, f);
    if (code == 0) {
        forget_override(e, f->id, true);
        return true;
    }
    return keep_override(e, f->id, true, (sample_t){ .status = (int32_t)code });
}

static bool prof_command(int n, char **words)
{
    gpu_t *g;
    char *rest, *word;

    if (n != 3)
        return fail_line("want: prof GPU all|none|ID,ID,...");
    if (!known_gpu(words[1], &g))
        return false;
    g->prof = !strcmp(words[2], "all") ? PROF_ALL : !strcmp(words[2], "none") ? PROF_NONE : PROF_LIST;
    g->prof_count = 0;
    for (word = strtok_r(words[2], ",", &rest); g->prof == PROF_LIST && word; word = strtok_r(NULL, ",", &rest)) {
        const field_meta *f;

        if (!field_word(word, &f))
            return false;
        if (!is_prof(f->id) || g->prof_count == (int)LENGTH(g->prof_fields))
            return fail_line("%s is no profiling field, or too many", word);
        g->prof_fields[g->prof_count++] = f->id;
    }
    return true;
}

// event_entity finds the instance that NVML's ids name in an event on a GPU.
static bool event_entity(uint32_t gpu, int64_t gi, int64_t ci, entity_t *out)
{
    const gpu_t *g = &S.gpus[gpu];
    int order[MAX_GI], n = gi_order(g, order), cis = 0;

    *out = (entity_t){ GPU, gpu };
    if (gi < 0)
        return true;
    for (int i = 0; i < n; cis += g->gis[order[i++]].ci_count) {
        const gpu_instance *at = &g->gis[order[i]];

        if (at->nvml != (uint32_t)gi)
            continue;
        *out = (entity_t){ GI, (uint32_t)gi_id(gpu, i) };
        for (int j = 0; ci >= 0 && j < at->ci_count; j++)
            if (at->cis[j].nvml == (uint32_t)ci) {
                *out = (entity_t){ CI, (uint32_t)gi_id(gpu, cis + j) };
                return true;
            }
        return ci < 0 ? true : fail_line("there is no compute instance %d", (int)ci);
    }
    return fail_line("there is no GPU instance %d", (int)gi);
}

static bool xid_command(int n, char **words)
{
    uint32_t gpu;
    int64_t code, gi = -1, ci = -1, ago = 0;
    entity_t e;
    gpu_t *g;
    bool same = false;

    if (n < 3)
        return fail_line("want: xid GPU CODE [gi ID [ci ID]] [ago DURATION] [same]");
    if (!known_gpu(words[1], &g) || !id_word(words[1], &gpu, MAX_GPUS) || !number_word(words[2], &code))
        return false;
    for (int i = 3; i < n; i++) {
        bool last = i + 1 == n;

        if (!strcmp(words[i], "same"))
            same = true;
        else if (last)
            return fail_line("unknown word \"%s\" of an XID", words[i]);
        else if (!strcmp(words[i], "gi") ? !number_word(words[++i], &gi)
                 : !strcmp(words[i], "ci") ? !number_word(words[++i], &ci)
                 : !strcmp(words[i], "ago") ? !duration_word(words[++i], &ago)
                                            : !fail_line("unknown word \"%s\" of an XID", words[i]))
            return false;
    }
    if (!event_entity(gpu, gi, ci, &e))
        return false;
    record_event(e, 230, code, same, ago);
    return true;
}

static bool lost_command(int n, char **words)
{
    gpu_t *g;

    if (n < 2 || n > 3 || (n == 3 && strcmp(words[2], "blank")))
        return fail_line("want: lost GPU [blank], or back GPU");
    if (!known_gpu(words[1], &g))
        return false;
    g->lost = !strcmp(words[0], "lost");
    g->lost_blank = n == 3;
    return true;
}

static bool detach_command(int n, char **words)
{
    uint32_t id;

    if (n != 2)
        return fail_line("want: detach GPU, or attach GPU");
    if (!id_word(words[1], &id, MAX_GPUS))
        return false;
    if (!S.gpus[id].there)
        return fail_line("there is no GPU %u", id);
    if (!strcmp(words[0], "detach"))
        detach_gpu(id);
    else
        attach_gpu(id);
    return true;
}

static bool bind_command(int n, char **words)
{
    if (n != 2 || (strcmp(words[1], "begin") && strcmp(words[1], "end")))
        return fail_line("want: bind begin|end");
    record_event((entity_t){ GLOBAL, 0 }, 6, strcmp(words[1], "begin") ? 2 : 1, false, 0);
    return true;
}

static bool hang_command(int n, char **words)
{
    bool on = !strcmp(words[0], "hang");
    gpu_t *g;
    int c;

    if (n == 2 && !strcmp(words[1], "all")) {
        S.hang_all = on;
        for (int i = 0; !on && i < MAX_GPUS; i++)
            S.gpus[i].hung = false;
        for (int i = 0; !on && i < CALLS; i++)
            S.plans[i].hung = false;
        return true;
    }
    if (n == 3 && !strcmp(words[1], "call")) {
        c = call_by_name(words[2]);
        if (c < 0)
            return fail_line("unknown call \"%s\"", words[2]);
        S.plans[c].hung = on;
        return true;
    }
    if (n != 2)
        return fail_line("want: %s GPU|all|call NAME", words[0]);
    if (!known_gpu(words[1], &g))
        return false;
    g->hung = on;
    return true;
}

static bool slow_command(int n, char **words)
{
    gpu_t *g;

    if (n != 3)
        return fail_line("want: slow GPU DURATION");
    return known_gpu(words[1], &g) && duration_word(words[2], &g->slow);
}

static bool fail_command(int n, char **words)
{
    int c = n > 1 ? call_by_name(words[1]) : -1;
    int64_t rc, times = 0;

    if (n < 3 || n > 4)
        return fail_line("want: fail CALL CODE [TIMES]");
    if (c < 0)
        return fail_line("unknown call \"%s\"", words[1]);
    if (!number_word(words[2], &rc) || (n == 4 && !number_word(words[3], &times)))
        return false;
    S.plans[c].rc = (int)rc;
    S.plans[c].times = times;
    return true;
}

static bool down_command(int n, char **words)
{
    if (n != 1)
        return fail_line("%s has no words", words[0]);
    if (strcmp(words[0], "drop"))
        S.down = !strcmp(words[0], "down");
    if (strcmp(words[0], "up"))
        close_connections();
    if (S.down)
        forget_remote();
    return true;
}

static bool system_word(const char *w, uint32_t *out)
{
    static const char *const names[] = {
        "pcie", "nvlink", "pmu", "mcu", "memory", "sm", "inforom", "thermal", "power", "driver",
        "nvswitch-nonfatal", "nvswitch-fatal", "connectx",
    };

    for (uint32_t i = 0; i < LENGTH(names); i++)
        if (!strcmp(names[i], w)) {
            *out = 1u << i;
            return true;
        }
    return fail_line("unknown health system \"%s\"", w);
}

static void clear_faults(entity_t e)
{
    int kept = 0;

    for (int i = 0; i < S.fault_count; i++)
        if (S.faults[i].entity.group != e.group || S.faults[i].entity.id != e.id)
            S.faults[kept++] = S.faults[i];
    S.fault_count = kept;
}

static bool health_command(int n, char **words)
{
    entity_t e;
    int64_t code;
    fault_t *f = &S.faults[S.fault_count];

    if (n == 3 && entity_word(words[1], &e) && !strcmp(words[2], "clear")) {
        clear_faults(e);
        return true;
    }
    if (n != 6 || (strcmp(words[3], "fail") && strcmp(words[3], "warn")))
        return fail_line("want: health ENTITY SYSTEM fail|warn CODE \"TEXT\", or health ENTITY clear");
    if (S.fault_count == (int)LENGTH(S.faults))
        return fail_line("more than %d incidents", S.fault_count);
    if (!entity_word(words[1], &f->entity) || !system_word(words[2], &f->system) || !number_word(words[4], &code))
        return false;
    f->health = strcmp(words[3], "fail") ? 10 : 20;
    f->code = (uint32_t)code;
    snprintf(f->text, sizeof(f->text), "%s", words[5]);
    S.fault_count++;
    return true;
}

command find_fault_command(const char *word)
{
    static const struct { const char *word; command run; } commands[] = {
        { "field", field_command },   { "text", text_command },     { "status", status_command }, { "prof", prof_command },
        { "xid", xid_command },       { "lost", lost_command },     { "back", lost_command },     { "bind", bind_command },
        { "detach", detach_command }, { "attach", detach_command }, { "hang", hang_command },     { "unhang", hang_command },
        { "slow", slow_command },     { "fail", fail_command },     { "down", down_command },     { "up", down_command },
        { "drop", down_command },     { "health", health_command },
    };

    for (size_t i = 0; i < LENGTH(commands); i++)
        if (!strcmp(commands[i].word, word))
            return commands[i].run;
    return NULL;
}
