// SPDX-License-Identifier: Apache-2.0

#include <ctype.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

enum { MAX_WORDS = 40, MAX_LINE = 4096 };

static char path[4096];
static int file = -1;
static int64_t consumed;
static int line_number;

// fail_line reports the line being read and breaks the library; it is always false.
bool fail_line(const char *format, ...)
{
    char what[1024], text[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    snprintf(text, sizeof(text), "%.900s:%d: %.900s", path, line_number, what);
    fprintf(stderr, "dcgmsim: %s\n", text);
    trace_error(text);
    S.broken = true;
    return false;
}

// split cuts a line into words; double quotes keep blanks together. -1: bad quotes.
static int split(char *line, char **words)
{
    int n = 0;
    char *p = line;

    for (;;) {
        while (isspace((unsigned char)*p))
            p++;
        if (!*p || *p == '#')
            return n;
        if (n == MAX_WORDS)
            return -1;
        if (*p == '"') {
            words[n++] = ++p;
            p = strchr(p, '"');
            if (!p)
                return -1;
            *p++ = 0;
            continue;
        }
        words[n++] = p;
        while (*p && !isspace((unsigned char)*p))
            p++;
        if (*p)
            *p++ = 0;
    }
}

static bool apply(char *line)
{
    char *words[MAX_WORDS];
    int n = split(line, words);
    command run;

    if (n < 0)
        return fail_line("an open quote, or more than %d words", MAX_WORDS);
    if (n == 0)
        return true;
    run = find_machine_command(words[0]);
    if (!run)
        run = find_model_command(words[0]);
    if (!run)
        run = find_fault_command(words[0]);
    if (!run)
        return fail_line("unknown word \"%s\"", words[0]);
    return run(n, words);
}

static void apply_text(char *text)
{
    char *line = text, *end;

    while (!S.broken && (end = strchr(line, '\n'))) {
        *end = 0;
        line_number++;
        apply(line);
        line = end + 1;
    }
}

// read_from returns the whole lines of the file from where the last read ended.
static char *read_from(int64_t size)
{
    int64_t length = size - consumed;
    char *text = malloc((size_t)length + 1);
    char *end;
    ssize_t got;

    if (!text)
        return NULL;
    got = pread(file, text, (size_t)length, consumed);
    if (got < 0)
        got = 0;
    text[got] = 0;
    end = strrchr(text, '\n');
    if (end)
        end[1] = 0;
    else
        text[0] = 0;
    consumed += (int64_t)strlen(text);
    return text;
}

void scenario_read(void)
{
    struct stat info;
    char *text;

    if (file < 0 || S.broken || fstat(file, &info) || info.st_size <= consumed)
        return;
    text = read_from(info.st_size);
    if (text && *text) {
        if (!S.loading)
            series_advance_all();
        apply_text(text);
        trace_consumed((uint64_t)consumed);
        trace_engine();
    }
    free(text);
}

void scenario_open(const char *library)
{
    const char *asked = getenv("DCGMSIM_SCENARIO");
    char standard[] = "gpus 8 h100\n";

    if (asked && *asked)
        snprintf(path, sizeof(path), "%s", asked);
    else
        snprintf(path, sizeof(path), "%s.scenario", library);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        scenario_read();
        return;
    }
    if (asked && *asked)
        fail_line("cannot be opened");
    else
        apply_text(standard);
}
