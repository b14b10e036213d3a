// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread_cpus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/thread.h"

enum { PATH_BYTES = 4096, FILE_BYTES = 4096 };

/* The start of a small file as a string; false where it cannot be read. */
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

/* Version 2: cpu.max holds "quota period" or "max period". 0: no quota. */
static double quota_v2(const char *dir) {
    char path[PATH_BYTES], text[FILE_BYTES];
    int64_t quota, period;
    if ((size_t)snprintf(path, sizeof path, "%s/cpu.max", dir) >= sizeof path || !read_file(path, text) ||
        sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0;
    return (double)quota / (double)period;
}

/* Version 1: two files; a quota of -1 is none. */
static double quota_v1(const char *dir) {
    char path[PATH_BYTES], text[FILE_BYTES];
    int64_t quota, period;
    if ((size_t)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir) >= sizeof path || !read_file(path, text) ||
        sscanf(text, "%" SCNd64, &quota) != 1 || quota <= 0)
        return 0;
    if ((size_t)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir) >= sizeof path || !read_file(path, text) ||
        sscanf(text, "%" SCNd64, &period) != 1 || period <= 0)
        return 0;
    return (double)quota / (double)period;
}

/* The smaller of two quotas, where 0 is none. */
static double quota_min(double a, double b) {
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* The smallest quota from mount/group up to mount. */
static double quota_up(const char *mount, const char *group, double (*quota)(const char *dir)) {
    char dir[PATH_BYTES];
    int len = snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (len < 0 || (size_t)len >= sizeof dir)
        return 0;
    double least = 0;
    for (size_t floor = strlen(mount);;) {
        least = quota_min(quota(dir), least);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < floor || strlen(dir) <= floor)
            return least;
        *slash = 0;
    }
}

/* Whether the comma-separated list holds the cpu controller. */
static bool has_cpu(const char *list, size_t len) {
    for (size_t at = 0; at < len;) {
        const char *comma = memchr(list + at, ',', len - at);
        size_t n = comma ? (size_t)(comma - list) - at : len - at;
        if (n == 3 && memcmp(list + at, "cpu", 3) == 0)
            return true;
        at += n + 1;
    }
    return false;
}

double thread_cpu_quota(const char *group_file, const char *group_root) {
    char text[FILE_BYTES], mount[PATH_BYTES];
    if (!read_file(group_file, text))
        return 0;
    double least = 0;
    char *rest = text;
    /* Lines are "id:controllers:path"; version 2 has id 0 and no controllers. */
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        size_t len = (size_t)(path - list) - 1;
        if (len == 0) {
            least = quota_min(quota_up(group_root, path + 1, quota_v2), least);
        } else if (has_cpu(list + 1, len)) {
            snprintf(mount, sizeof mount, "%s/%.*s", group_root, (int)len, list + 1);
            least = quota_min(quota_up(mount, path + 1, quota_v1), least);
        }
    }
    return least;
}

int mr_thread_allowed_cpus(int *out_ids, int max) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        /* More CPUs than the set holds: all that are online. */
        int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
        for (int i = 0; i < n && i < max; i++)
            out_ids[i] = i;
        return n > 0 ? n : 1;
    }
    int n = 0;
    for (int id = 0; id < CPU_SETSIZE; id++) {
        if (!CPU_ISSET(id, &set))
            continue;
        if (n < max)
            out_ids[n] = id;
        n++;
    }
    return n;
}

int mr_thread_usable_cores(void) {
    int n = mr_thread_allowed_cpus(NULL, 0);
    double quota = thread_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    int rounded = quota > 0 && quota < n ? (int)(quota + 0.5) : n;
    return rounded > 1 ? rounded : 1;
}

mr_status mr_thread_pin(int cpu_id, mr_err *err) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu_id >= 0 && cpu_id < CPU_SETSIZE)
        CPU_SET(cpu_id, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return mr_err_set(err, MR_E_INVALID, "cannot bind a thread to cpu %d: error %d", cpu_id, errno);
    return MR_OK;
}
