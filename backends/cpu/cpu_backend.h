/* backends/cpu/cpu_backend.h - the CPU as a backend: kernels in the numerics of engine/NUMERICS.md on a thread pool.
 * Threads: see backends/backend.h. The thread that submits computes, too, so one thread cannot submit to two backends
 *          at the same time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_CPU_BACKEND_H
#define MR_BACKENDS_CPU_CPU_BACKEND_H

#include "backends/backend.h"

typedef struct mr_cpu_options {
    int32_t n_threads; /* computing threads, the caller's included; at least 1 */
    bool adapts;       /* runs a program on fewer threads if fewer are measured to be faster (cpu_choice.h) */
    /* [n_threads] Thread i > 0 is bound to CPU cpu_ids[i]; the caller has bound itself to cpu_ids[0]. NULL: no thread
     * is bound. Read in create only. */
    const int *cpu_ids;
} mr_cpu_options;

MR_MUST_USE mr_status mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err);

#endif
