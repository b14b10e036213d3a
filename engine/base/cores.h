/* engine/base/cores.h - the cores of this machine, read with hwloc: which CPUs are threads of one core, and which cores
 * are close to each other.
 * Threads: thread-safe. The first mr_cores_get of a process takes some milliseconds, and reads the machine; later ones
 *          look only at the CPUs of the calling thread. Call it at the start, never in a step. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CORES_H
#define MR_ENGINE_BASE_CORES_H

#include <stdint.h>

enum { MR_CORES_MAX = 1024 };

/* The cores that have a CPU on which the calling thread may run. Their order is that of packages, NUMA nodes and
 * caches, so that neighbours in the list share as many of these as possible. */
typedef struct mr_cores {
    int32_t n;                     /* at least 1 */
    int32_t n_cpus;                /* CPUs on which the thread may run, SMT siblings included */
    int32_t n_all, n_all_cpus;     /* cores and CPUs that control groups leave to this process */
    int32_t cpu_ids[MR_CORES_MAX]; /* [n] the first CPU of each core */
} mr_cores;

void mr_cores_get(mr_cores *out);
/* How many threads the cores can keep busy: n, or the CPU quota of control groups (versions 1 and 2, rounded to the
 * nearest integer) if the quota is lower. At least 1. */
int32_t mr_cores_usable(const mr_cores *cores);

#endif
