/* engine/base/cgroup.c - reads the limits of CPU time and memory that control groups set for this process. A limit of a
 * parent group counts, too. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/cgroup.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, FILE_BYTES = 8192 };

/* Reads the beginning of a small file as a string. Returns false when the file cannot be read. */
static bool read_file(const char *path, char out[FILE_BYTES]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, out, FILE_BYTES - 1);
    close(fd);
    if (n < 0)
        return false;
    out[n] = 0;
    return true;
}

static bool read_in(const char *dir, const char *name, char out[FILE_BYTES]) {
    char path[PATH_BYTES];
    return (size_t)snprintf(path, sizeof path, "%s/%s", dir, name) < sizeof path && read_file(path, out);
}

/* --- The groups of a process ------------------------------------------------------------------------------------- */

/* Called for the folder of each group. */
typedef void visit_fn(const char *dir, void *ctx);

/* A controller, and the function that reads the folder of a group in each version. */
typedef struct controller {
    const char *name;
    visit_fn *v1, *v2;
    void *ctx;
} controller;

/* Visits mount/group and its parents up to mount. */
static void visit_up(const char *mount, const char *group, visit_fn *visit, void *ctx) {
    char dir[PATH_BYTES];
    int len = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (len < 0 || (size_t)len >= sizeof dir)
        return;
    for (size_t floor = strlen(mount);;) {
        visit(dir, ctx);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < floor || strlen(dir) <= floor)
            return;
        *slash = 0;
    }
}

/* Whether the comma-separated list holds the name. */
static bool has_name(const char *list, size_t len, const char *name) {
    size_t name_len = strlen(name);
    for (size_t at = 0; at < len;) {
        const char *comma = memchr(list + at, ',', len - at);
        size_t n = comma ? (size_t)(comma - list) - at : len - at;
        if (n == name_len && memcmp(list + at, name, n) == 0)
            return true;
        at += n + 1;
    }
    return false;
}

static void visit_groups(const char *group_file, const char *group_root, const controller *c) {
    char text[FILE_BYTES], mount[PATH_BYTES];
    if (!read_file(group_file, text))
        return;
    char *rest = text;
    /* Lines are "id:controllers:path". The line of version 2 has id 0 and no controllers. */
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        size_t len = (size_t)(path - list) - 1;
        if (len == 0) {
            visit_up(group_root, path + 1, c->v2, c->ctx);
        } else if (has_name(list + 1, len, c->name)) {
            snprintf(mount, sizeof mount, "%s/%.*s", group_root, (int)len, list + 1);
            visit_up(mount, path + 1, c->v1, c->ctx);
        }
    }
}

/* --- CPU --------------------------------------------------------------------------------------------------------- */

static void take_quota(double *least, int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0)
        return;
    double cpus = (double)quota / (double)period;
    if (*least <= 0 || cpus < *least)
        *least = cpus;
}

/* cpu.max holds "quota period" or "max period". */
static void quota_v2(const char *dir, void *ctx) {
    char text[FILE_BYTES];
    int64_t quota, period;
    if (read_in(dir, "cpu.max", text) && sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) == 2)
        take_quota(ctx, quota, period);
}

/* A quota of -1 means no quota. */
static void quota_v1(const char *dir, void *ctx) {
    char quota_text[FILE_BYTES], period_text[FILE_BYTES];
    int64_t quota, period;
    if (read_in(dir, "cpu.cfs_quota_us", quota_text) && sscanf(quota_text, "%" SCNd64, &quota) == 1 &&
        read_in(dir, "cpu.cfs_period_us", period_text) && sscanf(period_text, "%" SCNd64, &period) == 1)
        take_quota(ctx, quota, period);
}

double cgroup_cpu_quota(const char *group_file, const char *group_root) {
    double least = 0;
    controller c = {"cpu", quota_v1, quota_v2, &least};
    visit_groups(group_file, group_root, &c);
    return least;
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* Reads a file that holds one number. Returns false for "max". */
static bool read_number(const char *dir, const char *name, uint64_t *out) {
    char text[FILE_BYTES];
    return read_in(dir, name, text) && sscanf(text, "%" SCNu64, out) == 1;
}

/* Returns the number behind "key " at the beginning of a line, or 0 when no line has the key. */
static uint64_t number_behind(const char *text, const char *key) {
    size_t len = strlen(key);
    uint64_t n = 0;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, len) == 0 && line[len] == ' ')
            return sscanf(line + len, "%" SCNu64, &n) == 1 ? n : 0;
    }
    return 0;
}

/* Names of files, and of keys in memory.stat. */
typedef struct memory_names {
    const char *limit, *used, *active_file, *inactive_file;
} memory_names;

static void look_at_memory(const char *dir, const memory_names *names, uint64_t *least) {
    char stat[FILE_BYTES];
    uint64_t limit, used;
    if (!read_number(dir, names->limit, &limit) || !read_number(dir, names->used, &used))
        return;
    uint64_t file = 0;
    if (read_in(dir, "memory.stat", stat))
        file = number_behind(stat, names->active_file) + number_behind(stat, names->inactive_file);
    used -= file < used ? file : used;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < *least)
        *least = left;
}

static void memory_v2(const char *dir, void *ctx) {
    look_at_memory(dir, &(memory_names){"memory.max", "memory.current", "active_file", "inactive_file"}, ctx);
}

/* In version 1 a group without a limit holds a number that is larger than any memory. */
static void memory_v1(const char *dir, void *ctx) {
    look_at_memory(
        dir,
        &(memory_names){"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file"},
        ctx);
}

uint64_t cgroup_memory_left(const char *group_file, const char *group_root) {
    uint64_t least = UINT64_MAX;
    controller c = {"memory", memory_v1, memory_v2, &least};
    visit_groups(group_file, group_root, &c);
    return least;
}
