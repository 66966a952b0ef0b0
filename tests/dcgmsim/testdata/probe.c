// SPDX-License-Identifier: Apache-2.0

// A client of libdcgm that a test talks to: one command a line on stdin; for each, what
// it found, and a line with a dot and the return code.

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

static void *library;
word handle;
static word group, fields;
static pthread_t thread;
static char *thread_text;
static size_t thread_length;

void *find(const char *name)
{
    void *symbol = dlsym(library, name);

    if (!symbol)
        fprintf(stderr, "probe: no %s\n", name);
    return symbol;
}

static bool poisoned(const void *at, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (((const unsigned char *)at)[i] != 0xA5)
            return false;
    return true;
}

static void print_value(FILE *out, int type, const payload_t *p)
{
    if (type == 's')
        PRINT("%s", p->str);
    else if (type == 'd')
        PRINT("%.17g", p->dbl);
    else
        PRINT("%lld", (long long)p->i64);
}

static int show(int32_t eg, uint32_t e, value_v1 *v, int32_t n, void *user)
{
    FILE *out = user;
    size_t used = v->field_type == 's' ? strlen(v->value.str) + 1 : 8;

    PRINT("%d:%u %u %c %d %lld ", eg, e, v->field_id, v->field_type, v->status, (long long)v->ts);
    print_value(out, v->field_type, &v->value);
    if (n != 1 || v->version != 0x01001018 || !poisoned(v, 12, 16) || !poisoned(&v->value, used, 4096))
        PRINT(" DIRTY");
    PRINT("\n");
    return 0;
}

static int parse_ids(char *list, uint16_t *ids)
{
    int n = 0;
    char *rest;

    for (char *w = strtok_r(list, ",", &rest); w; w = strtok_r(NULL, ",", &rest))
        ids[n++] = (uint16_t)atoi(w);
    return n;
}

static int make_group(FILE *out, char *members, bool all)
{
    API(dcgmGroupCreate, word, int32_t, const char *, word *);
    API(dcgmGroupAddEntity, word, word, uint32_t, uint32_t);
    int rc = dcgmGroupCreate(handle, all ? 0 : 1, "group", &group);
    unsigned eg, e;
    char *rest;

    for (char *w = strtok_r(members, ",", &rest); !rc && w; w = strtok_r(NULL, ",", &rest))
        if (sscanf(w, "%u:%u", &eg, &e) == 2)
            rc = dcgmGroupAddEntity(handle, group, eg, e);
    PRINT("%llu\n", (unsigned long long)group);
    return rc;
}

static int make_fields(FILE *out, char *list, const char *name)
{
    API(dcgmFieldGroupCreate, word, int32_t, const uint16_t *, const char *, word *);
    uint16_t ids[256];
    int n = parse_ids(list, ids), rc = dcgmFieldGroupCreate(handle, n, ids, name, &fields);

    PRINT("%llu\n", (unsigned long long)fields);
    return rc;
}

static int entities(FILE *out, char *list, char *field_list, uint32_t flags)
{
    API(dcgmEntitiesGetLatestValues, word, const entity_t *, uint32_t, const uint16_t *, uint32_t, uint32_t, value_v2 *);
    entity_t pairs[16];
    uint16_t ids[16];
    uint32_t n = 0;
    int rc, count = parse_ids(field_list, ids);
    value_v2 *values = malloc(256 * sizeof(*values));
    char *rest;

    for (char *w = strtok_r(list, ",", &rest); w; w = strtok_r(NULL, ",", &rest), n++)
        sscanf(w, "%u:%u", &pairs[n].group, &pairs[n].id);
    rc = dcgmEntitiesGetLatestValues(handle, pairs, n, ids, (uint32_t)count, flags, values);
    for (uint32_t i = 0; !rc && i < n * (uint32_t)count; i++) {
        const value_v2 *v = &values[i];

        PRINT("%u:%u %u %c %d %lld ", v->group, v->entity, v->field_id, v->field_type, v->status, (long long)v->ts);
        print_value(out, v->field_type, &v->value);
        PRINT("\n");
    }
    free(values);
    return rc;
}

static int check(FILE *out)
{
    API(dcgmHealthCheck, word, word, health_response *);
    health_response *r = calloc(1, sizeof(*r));
    int rc;

    r->version = 0x0510500c;
    rc = dcgmHealthCheck(handle, group, r);
    if (!rc)
        PRINT("overall %u\n", r->overall);
    for (uint32_t i = 0; !rc && i < r->count; i++)
        PRINT("%u:%u system %x health %u code %u %s\n", r->list[i].entity.group, r->list[i].entity.id, r->list[i].system,
              r->list[i].health, r->list[i].code, r->list[i].text);
    free(r);
    return rc;
}

static int set_health(uint32_t mask)
{
    API(dcgmHealthSet_v2, word, const health_set *);
    health_set s = { .version = 0x02000028, .group = group, .systems = mask, .interval = 1000000, .keep = 60 };

    return dcgmHealthSet_v2(handle, &s);
}

static int start(FILE *out, int layout)
{
    API(dcgmStartEmbedded_v2, void *);
    static const uint32_t versions[] = { 0, 0x01000048, 0x02000050, 0x03000068 };
    start_v3 s = { .version = versions[layout], .mode = 1 };
    int rc = dcgmStartEmbedded_v2(&s);

    handle = rc ? handle : s.handle;
    PRINT("%llx\n", (unsigned long long)s.handle);
    return rc;
}

static int connect_to(FILE *out, const char *address, const char *how)
{
    API(dcgmConnect_v2, const char *, const connect_v2 *, word *);
    connect_v2 p = { .version = 0x02000010, .persist = !strcmp(how, "persist"), .timeout_ms = 1000, .unix_socket = !strcmp(how, "unix") };
    word got = 0;
    int rc = dcgmConnect_v2(address, &p, &got);

    handle = got;
    PRINT("%s\n", got ? "wrote a handle" : "wrote no handle");
    return rc;
}

static int connect_uri(const char *uri)
{
    API(dcgmConnect_v3, const char *, const connect_v3 *, word *);
    connect_v3 p = { .version = 0x0100000c };

    return dcgmConnect_v3(uri, &p, &handle);
}

// churn makes and unmakes groups and watches, and reads, many times.
static int churn(int times)
{
    API(dcgmGroupDestroy, word, word);
    API(dcgmFieldGroupDestroy, word, word);
    API(dcgmWatchFields, word, word, word, int64_t, double, int32_t);
    API(dcgmUnwatchFields, word, word, word);
    API(dcgmUpdateAllFields, word, int32_t);
    API(dcgmGetLatestValues_v2, word, word, word, entity_callback, void *);
    FILE *nowhere = fopen("/dev/null", "w");
    int rc = 0;

    for (int i = 0; i < times && !rc; i++) {
        char members[] = "1:0,1:1", ids[] = "54,150,155,230,1001";

        rc = make_group(nowhere, members, false);
        rc = rc ? rc : make_fields(nowhere, ids, "churn");
        rc = rc ? rc : dcgmWatchFields(handle, group, fields, 1000, 1, 4);
        rc = rc ? rc : dcgmUpdateAllFields(handle, 1);
        rc = rc ? rc : dcgmGetLatestValues_v2(handle, group, fields, show, nowhere);
        rc = rc ? rc : dcgmUnwatchFields(handle, group, fields);
        rc = rc ? rc : dcgmGroupDestroy(handle, group);
        rc = rc ? rc : dcgmFieldGroupDestroy(handle, fields);
    }
    fclose(nowhere);
    return rc;
}

static int run(FILE *out, char *line);

static void *run_thread(void *line)
{
    FILE *out = open_memstream(&thread_text, &thread_length);
    int rc = run(out, line);

    fclose(out);
    free(line);
    return (void *)(intptr_t)rc;
}

static int join(FILE *out)
{
    void *rc;

    pthread_join(thread, &rc);
    PRINT("%s", thread_text);
    free(thread_text);
    return (int)(intptr_t)rc;
}

static int simple(const char *w, char *a)
{
    if (!strcmp(w, "init") || !strcmp(w, "shutdown"))
        return ((int (*)(void))find(!strcmp(w, "init") ? "dcgmInit" : "dcgmShutdown"))();
    if (!strcmp(w, "stop") || !strcmp(w, "disconnect"))
        return ((int (*)(word))find(!strcmp(w, "stop") ? "dcgmStopEmbedded" : "dcgmDisconnect"))(handle);
    if (!strcmp(w, "attach") || !strcmp(w, "detach"))
        return ((int (*)(word))find(!strcmp(w, "attach") ? "dcgmAttachDriver" : "dcgmDetachDriver"))(handle);
    if (!strcmp(w, "unwatch"))
        return ((int (*)(word, word, word))find("dcgmUnwatchFields"))(handle, group, fields);
    if (!strcmp(w, "update"))
        return ((int (*)(word, int32_t))find("dcgmUpdateAllFields"))(handle, 1);
    if (!strcmp(w, "destroy"))
        return ((int (*)(word, word))find("dcgmGroupDestroy"))(handle, group);
    if (!strcmp(w, "destroyfields"))
        return ((int (*)(word, word))find("dcgmFieldGroupDestroy"))(handle, fields);
    if (!strcmp(w, "null"))
        return ((int (*)(word, void *, void *))find("dcgmGetAllDevices"))(handle, NULL, NULL);
    if (!strcmp(w, "health"))
        return set_health((uint32_t)strtoul(a, NULL, 0));
    if (!strcmp(w, "churn"))
        return churn(atoi(a));
    if (!strcmp(w, "connect3"))
        return connect_uri(a);
    fprintf(stderr, "probe: unknown command %s\n", w);
    exit(2);
}

static int run(FILE *out, char *line)
{
    char *rest, *w = strtok_r(line, " ", &rest), *a = strtok_r(NULL, " ", &rest), *b = strtok_r(NULL, " ", &rest);
    char *c = strtok_r(NULL, " ", &rest);

    a = a ? a : "";
    b = b ? b : "";
    if (!strcmp(w, "start"))
        return start(out, *a ? atoi(a) : 1);
    if (!strcmp(w, "connect"))
        return connect_to(out, a, b);
    if (!strcmp(w, "group"))
        return make_group(out, a, false);
    if (!strcmp(w, "allgpus"))
        return make_group(out, a, true);
    if (!strcmp(w, "fields"))
        return make_fields(out, a, b);
    if (!strcmp(w, "watch")) {
        API(dcgmWatchFields, word, word, word, int64_t, double, int32_t);
        return dcgmWatchFields(handle, group, fields, atoll(a), atof(b), c ? atoi(c) : 0);
    }
    if (!strcmp(w, "latest")) {
        API(dcgmGetLatestValues_v2, word, word, word, entity_callback, void *);
        return dcgmGetLatestValues_v2(handle, group, fields, show, out);
    }
    if (!strcmp(w, "since")) {
        API(dcgmGetValuesSince_v2, word, word, word, int64_t, int64_t *, entity_callback, void *);
        int64_t next = -1;
        int rc = dcgmGetValuesSince_v2(handle, group, fields, atoll(a), &next, show, out);

        PRINT("next %lld\n", (long long)next);
        return rc;
    }
    if (!strcmp(w, "entities"))
        return entities(out, a, b, c ? (uint32_t)atoi(c) : 0);
    if (!strcmp(w, "devices"))
        return devices(out, "dcgmGetAllDevices");
    if (!strcmp(w, "supported"))
        return devices(out, "dcgmGetAllSupportedDevices");
    if (!strcmp(w, "attributes"))
        return attributes(out, (uint32_t)atoi(a));
    if (!strcmp(w, "hierarchy"))
        return hierarchy(out);
    if (!strcmp(w, "links"))
        return links(out, *a == '5');
    if (!strcmp(w, "peers"))
        return peers(out);
    if (!strcmp(w, "topology"))
        return topology(out, (uint32_t)atoi(a), (uint32_t)atoi(b));
    if (!strcmp(w, "cpus"))
        return cpus(out);
    if (!strcmp(w, "prof"))
        return prof(out, (uint32_t)atoi(a));
    if (!strcmp(w, "check"))
        return check(out);
    if (!strcmp(w, "list"))
        return list(out, (uint32_t)atoi(a), atoi(b));
    if (!strcmp(w, "number"))
        return number(a, out, (uint32_t)atoi(b));
    if (!strcmp(w, "version"))
        return version(out);
    if (!strcmp(w, "meta"))
        return meta(out, (uint16_t)atoi(a));
    if (!strcmp(w, "wrong"))
        return wrong(out);
    if (!strcmp(w, "join"))
        return join(out);
    return simple(w, a);
}

int main(int argc, char **argv)
{
    char line[4096];

    for (int i = 1; i < argc; i++)
        if (!(library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL))) {
            fprintf(stderr, "probe: %s\n", dlerror());
            return 2;
        }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        int rc = 0;

        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "use ", 4))
            library = dlopen(line + 4, RTLD_NOW | RTLD_LOCAL);
        else if (!strncmp(line, "& ", 2))
            rc = pthread_create(&thread, NULL, run_thread, strdup(line + 2));
        else
            rc = run(stdout, line);
        printf(". %d\n", rc);
    }
    return 0;
}
