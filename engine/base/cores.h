/* engine/base/cores.h - the cores of this machine, by hwloc: which CPUs are threads of one core, and which are close.
 * Threads: thread-safe. Looking takes some milliseconds: once at a start, never in a step. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CORES_H
#define MR_ENGINE_BASE_CORES_H

#include <stdint.h>

enum { MR_CORES_MAX = 1024 };

/* Cores that have a CPU on which the calling thread may run. They stand in the order of packages, NUMA nodes and
 * caches, so that a part of the list is as close together as can be. */
typedef struct mr_cores {
    int32_t n;                     /* at least 1 */
    int32_t n_cpus;                /* on which the thread may run, SMT siblings counted */
    int32_t n_all, n_all_cpus;     /* cores and CPUs that control groups leave to this process */
    int32_t cpu_ids[MR_CORES_MAX]; /* [n] the first CPU of each */
} mr_cores;

void mr_cores_get(mr_cores *out);
/* How many threads can be kept busy on them: n, or the CPU quota of control groups (versions 1 and 2, rounded to the
 * nearest whole) where that is less; at least 1. */
int32_t mr_cores_usable(const mr_cores *cores);

#endif
