/* engine/base/cgroup.h - internal to engine/base and its tests: what control groups (versions 1 and 2) leave to this
 * process.
 * Source:  the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1.
 * Threads: thread-safe. Errors: files that are missing or malformed set no limit. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CGROUP_H
#define MR_ENGINE_BASE_CGROUP_H

#include <stdint.h>

#define CGROUP_FILE "/proc/self/cgroup"
#define CGROUP_ROOT "/sys/fs/cgroup"

/* Both: of the groups named in group_file (as CGROUP_FILE) and of their parents, below group_root (as CGROUP_ROOT). */

/* The smallest CPU quota, in CPUs; 0 where there is none. */
double cgroup_cpu_quota(const char *group_file, const char *group_root);
/* The least memory that a limit leaves, pages of files counted as free, for the kernel takes them back; UINT64_MAX
 * where there is no limit. */
uint64_t cgroup_memory_left(const char *group_file, const char *group_root);

#endif
