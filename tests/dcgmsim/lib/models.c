// SPDX-License-Identifier: Apache-2.0

#include <string.h>

#include "sim.h"

typedef struct {
    const char *word, *name;
    uint32_t fb, arch, links, max_mig;
} model_t;

static const model_t models[] = {
    { "h100", "NVIDIA H100 80GB HBM3", 81559, 9, 18, 7 },
    { "h200", "NVIDIA H200", 143771, 9, 18, 7 },
    { "b200", "NVIDIA B200", 183359, 10, 18, 7 },
    { "a100", "NVIDIA A100-SXM4-80GB", 81920, 7, 12, 7 },
    { "a30", "NVIDIA A30", 24576, 7, 0, 4 },
    { "l4", "NVIDIA L4", 23034, 8, 0, 7 },
    { "t4", "Tesla T4", 15360, 6, 0, 7 },
};

// What the profiling module has on GPUs older than Hopper.
static const uint16_t module_fields[] = { 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012 };

static void use_model(gpu_t *g, const model_t *m)
{
    snprintf(g->model, sizeof(g->model), "%s", m->name);
    g->fb = m->fb;
    g->arch = m->arch;
    g->links = m->links;
    g->max_mig = m->max_mig;
    g->prof = m->arch >= 9 ? PROF_ALL : PROF_LIST;
    memcpy(g->prof_fields, module_fields, sizeof(module_fields));
    g->prof_count = LENGTH(module_fields);
    for (uint32_t i = 0; i < MAX_LINKS; i++)
        g->link_state[i] = i < g->links ? 3 : 0;
}

static const model_t *find_model(const char *word)
{
    for (size_t i = 0; i < LENGTH(models); i++)
        if (!strcmp(models[i].word, word))
            return &models[i];
    return NULL;
}

// set_gpu_defaults makes a GPU of the model, h100 for an unknown word.
void set_gpu_defaults(uint32_t id, const char *model)
{
    static const uint32_t buses[] = { 0x18, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb };
    gpu_t *g = &S.gpus[id];
    const model_t *m = find_model(model);
    char seed[32];

    memset(g, 0, sizeof(*g));
    g->there = true;
    g->minor = id;
    use_model(g, m ? m : &models[0]);
    snprintf(seed, sizeof(seed), "gpu %u", id);
    stable_uuid(g->uuid, sizeof(g->uuid), "GPU-", seed);
    snprintf(g->pci, sizeof(g->pci), "%08x:%02x:00.0", id / 8, buses[id % 8]);
    snprintf(g->serial, sizeof(g->serial), "16503230%05u", 40000 + id);
    for (uint32_t i = 0; i < MAX_GPUS; i++)
        if (i != id && S.gpus[i].there)
            g->p2p[i] = S.gpus[i].p2p[id] = S.gpus[i].links && g->links ? P2P_OK : P2P_NOT_SUPPORTED;
}

static bool gpus_command(int n, char **words)
{
    uint32_t count;

    if (n != 3)
        return fail_line("want: gpus COUNT MODEL");
    if (!id_word(words[1], &count, MAX_GPUS + 1))
        return false;
    if (!find_model(words[2]))
        return fail_line("unknown model \"%s\"", words[2]);
    for (uint32_t i = 0; i < count; i++)
        set_gpu_defaults(i, words[2]);
    return true;
}

static bool gpu_number(gpu_t *g, const char *key, const char *value)
{
    const struct { const char *key; uint32_t *to; uint32_t limit; } numbers[] = {
        { "minor", &g->minor, 4096 },     { "fb", &g->fb, 1 << 24 },        { "arch", &g->arch, 100 },
        { "links", &g->links, MAX_LINKS + 1 }, { "slices", &g->max_mig, 9 },
    };

    for (size_t i = 0; i < LENGTH(numbers); i++)
        if (!strcmp(numbers[i].key, key)) {
            if (!id_word(value, numbers[i].to, numbers[i].limit))
                return false;
            for (uint32_t l = 0; l < MAX_LINKS; l++)
                g->link_state[l] = l < g->links ? 3 : 0;
            return g->max_mig > 0 ? true : fail_line("slices must not be 0");
        }
    return fail_line("unknown word \"%s\" of a GPU", key);
}

static bool gpu_text(gpu_t *g, const char *key, const char *value)
{
    const struct { const char *key; char *to; size_t size; } texts[] = {
        { "model", g->model, sizeof(g->model) },
        { "uuid", g->uuid, sizeof(g->uuid) },
        { "pci", g->pci, sizeof(g->pci) },
        { "serial", g->serial, sizeof(g->serial) },
    };

    for (size_t i = 0; i < LENGTH(texts); i++)
        if (!strcmp(texts[i].key, key)) {
            snprintf(texts[i].to, texts[i].size, "%s", value);
            return true;
        }
    return gpu_number(g, key, value);
}

static bool gpu_command(int n, char **words)
{
    uint32_t id;
    int i = 2;

    if (n < 2)
        return fail_line("want: gpu ID [MODEL] [KEY VALUE]...");
    if (!id_word(words[1], &id, MAX_GPUS))
        return false;
    if (n > 2 && find_model(words[2]))
        set_gpu_defaults(id, words[i++]);
    else if (!S.gpus[id].there)
        set_gpu_defaults(id, "h100");
    for (; i + 1 < n; i += 2)
        if (!gpu_text(&S.gpus[id], words[i], words[i + 1]))
            return false;
    return i == n ? true : fail_line("\"%s\" has no value", words[i]);
}

command find_model_command(const char *word)
{
    if (!strcmp(word, "gpu"))
        return gpu_command;
    return strcmp(word, "gpus") ? NULL : gpus_command;
}
