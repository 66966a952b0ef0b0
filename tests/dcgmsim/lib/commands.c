// SPDX-License-Identifier: Apache-2.0

// The words that describe the machine: its engine, instances, switches and CPUs.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const char *option(int n, char **words, int from, const char *key)
{
    for (int i = from; i + 1 < n; i++)
        if (!strcmp(words[i], key))
            return words[i + 1];
    return NULL;
}

static bool option_number(int n, char **words, int from, const char *key, uint32_t fallback, uint32_t *out)
{
    const char *text = option(n, words, from, key);

    *out = fallback;
    return text ? id_word(text, out, 100000) : true;
}

static bool version_command(int n, char **words)
{
    unsigned a, b, c;

    if (n != 2 || sscanf(words[1], "%u.%u.%u", &a, &b, &c) != 3)
        return fail_line("want: version MAJOR.MINOR.PATCH");
    if (a * 10000 + b * 100 + c != SIM_VERSION)
        return fail_line("this library was built as version %d", SIM_VERSION);
    return true;
}

static bool engine_command(int n, char **words)
{
    static const char *const kinds[] = { "both", "embedded", "remote" };

    for (size_t i = 0; n >= 2 && n <= 3 && i < LENGTH(kinds); i++)
        if (!strcmp(words[1], kinds[i])) {
            S.engine = (int)i;
            snprintf(S.address, sizeof(S.address), "%s", n == 3 ? words[2] : "");
            return true;
        }
    return fail_line("want: engine both|embedded|remote [ADDRESS]");
}

static bool driver_command(int n, char **words)
{
    if (n != 2)
        return fail_line("want: driver VERSION");
    snprintf(S.driver, sizeof(S.driver), "%s", words[1]);
    return true;
}

static bool mig_command(int n, char **words)
{
    gpu_t *g;

    if (n != 3 || (strcmp(words[2], "on") && strcmp(words[2], "off")))
        return fail_line("want: mig GPU on|off");
    if (!known_gpu(words[1], &g))
        return false;
    g->mig = !strcmp(words[2], "on");
    g->gi_count = 0;
    series_drop_gone();
    return true;
}

// use_profile fills what a profile's name says, such as 1g.10gb or 1g.10gb+me.
static bool use_profile(gpu_instance *gi, const gpu_t *g, const char *name)
{
    static const struct { uint32_t slices, index, id, double_index, double_id; } kinds[] = {
        { 1, 0, 19, 9, 15 }, { 2, 1, 14, 1, 14 }, { 3, 2, 9, 2, 9 }, { 4, 3, 5, 3, 5 }, { 7, 4, 0, 4, 0 },
    };
    unsigned slices, gb, eighths, whole = (g->fb + 1023) / 1024;

    if (sscanf(name, "%ug.%ugb", &slices, &gb) != 2)
        return fail_line("\"%s\" is not a profile such as 1g.10gb", name);
    eighths = (gb * 8 + whole / 2) / whole;
    if (eighths == 0)
        eighths = 1;
    for (size_t i = 0; i < LENGTH(kinds); i++) {
        if (kinds[i].slices != slices)
            continue;
        bool twice = slices == 1 && eighths > 1, media = strstr(name, "+me") != NULL;

        gi->slices = slices;
        gi->profile_index = media ? 7 : twice ? kinds[i].double_index : kinds[i].index;
        gi->profile_id = media ? 20 : twice ? kinds[i].double_id : kinds[i].id;
        gi->fb = g->fb * eighths / 8;
        snprintf(gi->profile, sizeof(gi->profile), "%s", name);
        return true;
    }
    return fail_line("no profile has %u slices", slices);
}

static gpu_instance *find_nvml_gi(gpu_t *g, uint32_t nvml)
{
    for (int i = 0; i < g->gi_count; i++)
        if (g->gis[i].nvml == nvml)
            return &g->gis[i];
    return NULL;
}

static bool add_ci(const gpu_t *g, gpu_instance *gi, uint32_t nvml, uint32_t slices, const char *uuid)
{
    compute_instance *ci = &gi->cis[gi->ci_count];
    char seed[160];

    if (gi->ci_count == MAX_CI)
        return fail_line("too many compute instances");
    ci->nvml = nvml;
    ci->slices = slices;
    snprintf(seed, sizeof(seed), "%s/%u/%u", g->uuid, gi->nvml, nvml);
    stable_uuid(ci->uuid, sizeof(ci->uuid), "MIG-", seed);
    if (uuid)
        snprintf(ci->uuid, sizeof(ci->uuid), "%s", uuid);
    gi->ci_count++;
    return true;
}

static bool remove_gi(gpu_t *g, const char *nvml)
{
    uint32_t id;
    gpu_instance *gi;

    if (!id_word(nvml, &id, 1000))
        return false;
    gi = find_nvml_gi(g, id);
    if (!gi)
        return fail_line("there is no GPU instance %u", id);
    memmove(gi, gi + 1, (size_t)(&g->gis[g->gi_count] - (gi + 1)) * sizeof(*gi));
    g->gi_count--;
    series_drop_gone();
    return true;
}

static bool gi_command(int n, char **words)
{
    gpu_t *g;
    gpu_instance gi = { 0 };
    const char *profile, *uuid;
    bool ci = n > 2 && !strcmp(words[n - 1], "ci");

    if (n < 4)
        return fail_line("want: gi GPU profile NAME nvml ID [placement N] [uuid MIG-...] [ci], or gi GPU remove ID");
    if (!known_gpu(words[1], &g))
        return false;
    if (!strcmp(words[2], "remove"))
        return remove_gi(g, words[3]);
    profile = option(n, words, 2, "profile");
    if (!profile || (n - ci) % 2)
        return fail_line("want: gi GPU profile NAME nvml ID [placement N] [uuid MIG-...] [ci]");
    if (!use_profile(&gi, g, profile) || !option_number(n, words, 2, "nvml", 7 + (uint32_t)g->gi_count, &gi.nvml) ||
        !option_number(n, words, 2, "placement", (uint32_t)g->gi_count, &gi.placement))
        return false;
    if (!g->mig || g->gi_count == MAX_GI || g->gi_count == (int)g->max_mig || find_nvml_gi(g, gi.nvml))
        return fail_line("GPU %s is not in MIG mode, is full, or has that instance", words[1]);
    g->gis[g->gi_count++] = gi;
    uuid = option(n, words, 2, "uuid");
    if (ci && !add_ci(g, &g->gis[g->gi_count - 1], 0, gi.slices, uuid))
        return false;
    series_drop_gone();
    return true;
}

static bool ci_command(int n, char **words)
{
    gpu_t *g;
    gpu_instance *gi;
    uint32_t gi_nvml, nvml, slices;

    if (n < 4 || n % 2 || strcmp(words[2], "gi"))
        return fail_line("want: ci GPU gi ID [nvml ID] [slices N] [uuid MIG-...]");
    if (!known_gpu(words[1], &g) || !id_word(words[3], &gi_nvml, 1000))
        return false;
    gi = find_nvml_gi(g, gi_nvml);
    if (!gi)
        return fail_line("there is no GPU instance %u", gi_nvml);
    if (!option_number(n, words, 4, "nvml", (uint32_t)gi->ci_count, &nvml) ||
        !option_number(n, words, 4, "slices", gi->slices, &slices))
        return false;
    return add_ci(g, gi, nvml, slices, option(n, words, 4, "uuid"));
}

static bool switch_command(int n, char **words)
{
    uint32_t id, ports;

    if (n != 4 || strcmp(words[2], "ports"))
        return fail_line("want: switch ID ports COUNT");
    if (!id_word(words[1], &id, MAX_SWITCHES) || !id_word(words[3], &ports, MAX_SWITCH_PORTS + 1))
        return false;
    S.switches[id].there = true;
    S.switches[id].ports = ports;
    for (uint32_t i = 0; i < MAX_SWITCH_PORTS; i++)
        S.switches[id].port_state[i] = i < ports ? 3 : 0;
    return true;
}

static bool cpu_command(int n, char **words)
{
    uint32_t id, cores;

    if (n != 4 || strcmp(words[2], "cores"))
        return fail_line("want: cpu ID cores COUNT");
    if (!id_word(words[1], &id, MAX_CPUS) || !id_word(words[3], &cores, MAX_CORES + 1))
        return false;
    if (S.cpus[id].there || S.core_count + cores > MAX_CORES)
        return fail_line("CPU %u is there already, or more than %d cores", id, MAX_CORES);
    S.cpus[id] = (cpu_t){ true, S.core_count, cores };
    S.core_count += cores;
    return true;
}

static bool state_word(const char *w, uint32_t *state)
{
    static const char *const names[] = { "unsupported", "disabled", "down", "up" };

    for (uint32_t i = 0; i < LENGTH(names); i++)
        if (!strcmp(names[i], w)) {
            *state = i;
            return true;
        }
    return fail_line("a link is unsupported, disabled, down or up");
}

static bool link_command(int n, char **words)
{
    entity_t e;
    uint32_t port;

    if (n != 4)
        return fail_line("want: link GPU|switch:ID PORT up|down|disabled|unsupported");
    if (!entity_word(words[1], &e) || !id_word(words[2], &port, e.group == GPU ? MAX_LINKS : MAX_SWITCH_PORTS))
        return false;
    if (!entity_exists(e) || (e.group != GPU && e.group != SWITCH))
        return fail_line("%s has no links", words[1]);
    return state_word(words[3], e.group == GPU ? &S.gpus[e.id].link_state[port] : &S.switches[e.id].port_state[port]);
}

static bool peer_command(int n, char **words)
{
    uint32_t a, b, state, links = 0;

    if (n != 4 && n != 6)
        return fail_line("want: peer GPU GPU STATE [links COUNT]");
    if (!id_word(words[1], &a, MAX_GPUS) || !id_word(words[2], &b, MAX_GPUS) || !id_word(words[3], &state, 256))
        return false;
    if (n == 6 && strcmp(words[4], "links"))
        return fail_line("want: peer GPU GPU STATE [links COUNT]");
    if (n == 6 && !id_word(words[5], &links, 19))
        return false;
    S.gpus[a].p2p[b] = S.gpus[b].p2p[a] = state;
    S.gpus[a].direct[b] = S.gpus[b].direct[a] = links;
    return true;
}

static bool maxgroups_command(int n, char **words)
{
    uint32_t max;

    if (n != 2)
        return fail_line("want: maxgroups COUNT");
    if (!id_word(words[1], &max, MAX_GROUPS + 1))
        return false;
    S.max_groups = (int)max;
    return true;
}

static bool clock_command(int n, char **words)
{
    if (n != 2 || (strcmp(words[1], "frozen") && strcmp(words[1], "running")))
        return fail_line("want: clock frozen|running");
    S.frozen_at = now_us();
    S.frozen = !strcmp(words[1], "frozen");
    return true;
}

static bool advance_command(int n, char **words)
{
    int64_t us;

    if (n != 2 || !S.frozen)
        return fail_line("want: advance DURATION, with the clock frozen");
    if (!duration_word(words[1], &us))
        return false;
    S.frozen_at += us;
    series_advance_all();
    return true;
}

static bool strict_command(int n, char **words)
{
    if (n != 2 || (strcmp(words[1], "on") && strcmp(words[1], "off")))
        return fail_line("want: strict on|off");
    S.strict = !strcmp(words[1], "on");
    return true;
}

command find_machine_command(const char *word)
{
    static const struct { const char *word; command run; } commands[] = {
        { "version", version_command }, { "engine", engine_command },   { "driver", driver_command },
        { "mig", mig_command },         { "gi", gi_command },           { "ci", ci_command },
        { "switch", switch_command },   { "cpu", cpu_command },         { "link", link_command },
        { "peer", peer_command },       { "maxgroups", maxgroups_command }, { "clock", clock_command },
        { "advance", advance_command }, { "strict", strict_command },
    };

    for (size_t i = 0; i < LENGTH(commands); i++)
        if (!strcmp(commands[i].word, word))
            return commands[i].run;
    return NULL;
}
