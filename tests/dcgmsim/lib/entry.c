// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "sim.h"

enum { POLL_US = 20000 };

struct sim S = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .driver = "580.95.05",
    .max_groups = MAX_GROUPS,
    .next_handle = 1,
};

int64_t now_us(void)
{
    struct timespec t;

    if (S.frozen)
        return S.frozen_at;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void sleep_us(int64_t us)
{
    struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    nanosleep(&t, NULL);
}

static void open_once(void)
{
    Dl_info info;
    const char *library = "libdcgm.so.4";

    if (S.opened)
        return;
    S.opened = true;
    S.base = now_us();
    if (dladdr(&S, &info) && info.dli_fname)
        library = info.dli_fname;
    reset_groups();
    trace_open(library);
    S.loading = true;
    scenario_open(library);
    S.loading = false;
}

int check_handle(word handle)
{
    if (!S.inited)
        return ST_UNINITIALIZED;
    if (handle == HANDLE_EMBEDDED)
        return S.embedded ? ST_OK : ST_UNINITIALIZED;
    for (connection_t *c = S.connections; c; c = c->next)
        if (c->handle == handle)
            return S.down ? ST_CONNECTION_NOT_VALID : ST_OK;
    if (handle == HANDLE_GARBAGE || (handle > 0 && handle < S.next_handle))
        return ST_CONNECTION_NOT_VALID;
    return ST_BADPARAM;
}

// wait_blocked waits in a hung call, without the lock. The world may be another one after it.
static void wait_blocked(void)
{
    trace_blocked(1);
    pthread_mutex_unlock(&S.lock);
    sleep_us(POLL_US);
    pthread_mutex_lock(&S.lock);
    trace_blocked(-1);
    scenario_read();
}

static int follow_plan(enum call c, const word *handle)
{
    int rc = ST_OK;

    while (S.plans[c].hung || S.hang_all) {
        wait_blocked();
        if (handle && (rc = check_handle(*handle)))
            return rc;
    }
    if (S.plans[c].rc) {
        rc = S.plans[c].rc;
        if (S.plans[c].times > 0 && --S.plans[c].times == 0)
            S.plans[c].rc = 0;
    }
    return rc;
}

static int begin(enum call c, const word *handle)
{
    int rc = ST_OK;

    pthread_mutex_lock(&S.lock);
    open_once();
    scenario_read();
    trace_count(c);
    if (S.broken)
        rc = ST_INIT_ERROR;
    if (!rc && handle)
        rc = check_handle(*handle);
    if (!rc)
        rc = follow_plan(c, handle);
    if (rc)
        pthread_mutex_unlock(&S.lock);
    return rc;
}

// enter takes the lock for a call that needs no engine. Only after 0 is leave due.
int enter(enum call c)
{
    return begin(c, NULL);
}

// enter_engine takes the lock for a call on a handle. Only after 0 is leave due.
int enter_engine(enum call c, word handle)
{
    return begin(c, &handle);
}

int leave(int rc)
{
    trace_engine();
    pthread_mutex_unlock(&S.lock);
    return rc;
}

static bool any_hung(uint64_t gpus)
{
    for (int i = 0; i < MAX_GPUS; i++)
        if (gpus >> i & 1 && S.gpus[i].hung)
            return true;
    return false;
}

// touch waits as long as these GPUs make a call wait. What was looked up before it
// may be gone after it.
int touch(word handle, uint64_t gpus)
{
    int64_t slow = 0;
    int rc;

    for (int i = 0; i < MAX_GPUS; i++)
        if (gpus >> i & 1)
            slow += S.gpus[i].slow;
    if (slow) {
        trace_blocked(1);
        pthread_mutex_unlock(&S.lock);
        sleep_us(slow);
        pthread_mutex_lock(&S.lock);
        trace_blocked(-1);
        scenario_read();
    }
    while (any_hung(gpus)) {
        wait_blocked();
        if ((rc = check_handle(handle)))
            return rc;
    }
    return check_handle(handle);
}

// misuse is what a caller must never do. A strict library ends the process.
int misuse(int rc, const char *call, const char *what)
{
    if (S.strict) {
        fprintf(stderr, "dcgmsim: %s: %s\n", call, what);
        abort();
    }
    return rc;
}
