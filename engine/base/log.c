/* engine/base/log.c - writes log lines to a file descriptor, and leaves out lines that repeat too often. log_line.c
 * formats the lines. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log_line.h"

enum { N_SLOTS = 64 };

/* Counts the lines with the same text, digits aside, in the second that began at start_ns. */
typedef struct repeat_slot {
    uint64_t key;
    int64_t start_ns;
    uint32_t n_written, n_left_out;
} repeat_slot;

/* Each setting is independent of all other data, so every access is relaxed. */
static atomic_int log_level = MR_LOG_INFO, log_rank = -1, log_fd = STDERR_FILENO;
static atomic_bool log_json;

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER; /* guards slots and keeps lines in order */
static repeat_slot slots[N_SLOTS];

bool mr_log_enabled(mr_log_level level) {
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void mr_log_set_level(mr_log_level level) {
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void mr_log_set_json(bool json) {
    atomic_store_explicit(&log_json, json, memory_order_relaxed);
}

void mr_log_set_rank(int rank) {
    atomic_store_explicit(&log_rank, rank, memory_order_relaxed);
}

void mr_log_set_fd(int fd) {
    atomic_store_explicit(&log_fd, fd, memory_order_relaxed);
}

bool mr_log_level_parse(const char *name, mr_log_level *out_level) {
    for (mr_log_level l = MR_LOG_ERROR; l <= MR_LOG_DATA; l++) {
        if (strcmp(name, log_level_name(l)) == 0) {
            *out_level = l;
            return true;
        }
    }
    return false;
}

/* FNV-1a hash of s without its digits. */
static uint64_t hash_text(uint64_t h, const char *s) {
    for (; *s; s++)
        if (*s < '0' || *s > '9')
            h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
    return h;
}

/* Whether the line may be written now. out_left_out: how many such lines were left out before. The caller holds
 * sink_lock. */
static bool repeat_admit(mr_log_level level, const char *component, const char *text, uint32_t *out_left_out) {
    uint64_t key = hash_text(UINT64_C(0xcbf29ce484222325) + (uint64_t)level, component);
    key = hash_text(key, text);
    repeat_slot *s = &slots[key % N_SLOTS];
    int64_t now = mr_clock_now_ns();
    if (s->key != key) {
        *s = (repeat_slot){.key = key, .start_ns = now};
    } else if (now - s->start_ns >= MR_NS_PER_S || now < s->start_ns) {
        s->start_ns = now;
        s->n_written = 0;
    }
    if (s->n_written >= MR_LOG_REPEATS) {
        s->n_left_out++;
        return false;
    }
    s->n_written++;
    *out_left_out = s->n_left_out;
    s->n_left_out = 0;
    return true;
}

static int64_t unix_now_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / MR_NS_PER_MS;
}

/* A partial write is not continued: the rest could land between lines of other ranks. */
static void write_line(const char *line, size_t bytes) {
    int fd = atomic_load_explicit(&log_fd, memory_order_relaxed);
    for (int tries = 0; tries < 8; tries++)
        if (write(fd, line, bytes) >= 0 || errno != EINTR)
            return;
}

/* With counts_repeats, the line is left out when too many lines like it were written. fields: see log_line.fields. */
static void write_text(mr_log_level level, const char *component, const char *text, const char *fields,
                       bool counts_repeats) {
    char out[MR_LOG_LINE_BYTES];
    log_line line = {
        .unix_ms = unix_now_ms(),
        .level = level,
        .rank = atomic_load_explicit(&log_rank, memory_order_relaxed),
        .component = component,
        .text = text,
        .fields = fields,
    };
    bool json = atomic_load_explicit(&log_json, memory_order_relaxed);
    pthread_mutex_lock(&sink_lock);
    if (!counts_repeats || repeat_admit(level, component, text, &line.n_left_out)) {
        size_t n = json ? log_line_json(&line, out, sizeof out) : log_line_plain(&line, out, sizeof out);
        write_line(out, n);
    }
    pthread_mutex_unlock(&sink_lock);
}

void mr_log_write(mr_log_level level, const char *component, const char *fmt, ...) {
    if (!mr_log_enabled(level))
        return;
    int saved_errno = errno;
    char text[MR_LOG_LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(text, sizeof text, fmt, args) < 0)
        text[0] = 0;
    va_end(args);
    write_text(level, component, text, NULL, level <= MR_LOG_INFO);
    errno = saved_errno;
}

void mr_log_always(const char *component, const char *text) {
    int saved_errno = errno;
    write_text(MR_LOG_INFO, component, text, NULL, false);
    errno = saved_errno;
}

void mr_log_event(mr_log_level level, const char *component, const char *text, const char *fields) {
    if (!mr_log_enabled(level))
        return;
    int saved_errno = errno;
    write_text(level, component, text, fields, false);
    errno = saved_errno;
}
