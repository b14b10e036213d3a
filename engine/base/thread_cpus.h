/* engine/base/thread_cpus.h - internal to thread_cpus.c and its tests: the CPU quota of control groups.
 * Threads: thread-safe. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_THREAD_CPUS_H
#define MR_ENGINE_BASE_THREAD_CPUS_H

/* The smallest quota, in CPUs, of the groups named in group_file (as /proc/self/cgroup) and of their parents, below
 * group_root (as /sys/fs/cgroup); 0 where there is none. Files that are missing or malformed set no quota. */
double thread_cpu_quota(const char *group_file, const char *group_root);

#endif
