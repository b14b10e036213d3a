/* engine/base/cgroup.h - internal to engine/base and its tests: the CPU time and memory that control groups (versions 1
 * and 2) leave to this process.
 * Source:  the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1.
 * Threads: thread-safe. Errors: files that are missing or malformed set no limit. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CGROUP_H
#define MR_ENGINE_BASE_CGROUP_H

#include <stdint.h>

#define CGROUP_FILE "/proc/self/cgroup"
#define CGROUP_ROOT "/sys/fs/cgroup"

/* The functions below read the groups named in group_file (a file like CGROUP_FILE) and the parents of these groups,
 * below group_root (a folder like CGROUP_ROOT). */

/* The smallest CPU quota, in CPUs; 0 if no group has one. */
double cgroup_cpu_quota(const char *group_file, const char *group_root);
/* The least memory that a limit leaves, in bytes. Pages of files count as free, because the kernel can drop them.
 * UINT64_MAX if there is no limit. */
uint64_t cgroup_memory_left(const char *group_file, const char *group_root);

#endif
